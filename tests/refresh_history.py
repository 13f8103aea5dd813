"""Small histories for tests of refreshes: events, answers, corrections, and what is counted."""

from slow_partials import stored

from features.refresh import checks


def add_event(connection, user_key, item_key, occurred_at, value=None):
    """Store an event and return its interaction_id."""
    (found,) = connection.execute(
        "insert into interactions (user_key, item_key, occurred_at, value, event_type_key)"
        " values (%s, %s, %s, %s, 1) returning interaction_id",
        (user_key, item_key, occurred_at, value),
    ).fetchone()
    return found


def add_answer(connection, user_id, served_at, item_keys):
    """Store an answer and return its answer_id."""
    (found,) = connection.execute(
        "insert into answers (served_at, rec_id, user_id, release, item_keys, scores, sources)"
        " values (%s, gen_random_uuid(), %s, 'r', %s::integer[],"
        " array_fill(0::real, array[%s]), array_fill(''::text, array[%s])) returning answer_id",
        (served_at, user_id, item_keys, len(item_keys), len(item_keys)),
    ).fetchone()
    return found


def sums(connection):
    """Return all that is counted, by table and key."""
    found = stored(connection)
    connection.commit()
    return found


def failed(connection):
    """Return the names of the checks that fail."""
    return [check.check for check in checks(connection) if not check.passed]
