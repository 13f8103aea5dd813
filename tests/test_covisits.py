"""Co-visits: the view, the lists as of a moment and the release's rows equal a slow count."""

import numpy as np
from slow_features import covisits, read_raw

from features.covisits import covisits_as_of, read_covisits
from features.refresh import refresh
from ranking.covisits import covisit_arrays

DAY = 86_400
START = 1_500_000_000


def insert(connection, events):
    connection.execute("insert into users (user_id) select 'u' || n from generate_series(1, 4) n")
    connection.execute("insert into items (item_id) select 'i' || n from generate_series(1, 70) n")
    connection.execute("insert into event_types (event_type) values ('view')")
    with connection.cursor() as cursor:
        cursor.executemany(
            "insert into interactions (user_key, item_key, occurred_at, event_type_key)"
            " values (%s, %s, to_timestamp(%s), 1)",
            events,
        )
    connection.commit()


def lists(items, others, pairs):
    found = {}
    for item, other, count in zip(items.tolist(), others.tolist(), pairs.tolist(), strict=True):
        found.setdefault(item, []).append((other, count))
    return found


def random_events(seed, count=900):
    random = np.random.default_rng(seed)
    moments = START + np.cumsum(random.choice([5, 700, 3600, 3601, 9 * 3600], count))
    # A few arrive late or early, at the edges of days and of the 90 days.
    moved = random.choice(count, 60, replace=False)
    moments[moved] += random.choice([-95 * DAY, -90 * DAY, DAY, -3600], 60)
    people = np.repeat(random.integers(1, 5, count), 6)[:count]
    return [
        (int(user), int(item), int(moment))
        for user, item, moment in zip(
            people, np.minimum(random.geometric(0.2, count), 70), moments, strict=True
        )
    ]


def test_the_view_and_lists_as_of_any_moment(connection):
    events = random_events(1)
    insert(connection, events)
    last = max(moment for _, _, moment in events)
    refresh(connection)
    raw, _ = read_raw(connection)
    moments = [START + 20 * DAY, last - last % DAY, last - 40 * DAY + 7, last + 60 * DAY]
    for moment in moments:
        wanted = covisits(raw, moment * 1_000_000)
        assert wanted
        found = connection.execute(
            "select item_key, other_key, pairs from item_covisits_as_of(to_timestamp(%s))"
            " order by item_key, rank",
            (moment,),
        ).fetchall()
        assert lists(*np.array(found, np.int64).T) == wanted
        keys = np.arange(1, 72)
        others, pairs = covisits_as_of(connection, keys, np.full(len(keys), moment))
        for key, row, counts in zip(keys.tolist(), others, pairs, strict=True):
            real = row >= 0
            mine = list(zip(row[real].tolist(), counts[real].tolist(), strict=True))
            assert mine == wanted.get(key, [])
            assert not counts[~real].any()
    # Nothing of the last 90 days: the view is empty.
    assert len(read_covisits(connection)[0]) == 0


def test_the_rows_of_a_release(connection):
    refresh(connection)
    (now,) = connection.execute("select extract(epoch from now())::bigint").fetchone()
    pair = [(1, 1, now - 2 * DAY), (1, 2, now - 2 * DAY + 60), (1, 3, now - 2 * DAY + 120)]
    # Item 4 has 60 followers of one pair each; those with the lowest keys stay.
    many = [
        event
        for other in range(5, 65)
        for event in [
            (2, 4, now - 5 * DAY + 9000 * other % DAY),
            (2, other, now - 5 * DAY + 9000 * other % DAY + 1),
        ]
    ]
    insert(connection, pair + many + pair[:2])
    refresh(connection)
    keys = np.array([1, 2, 3, *range(5, 71)])  # item 4 is not in the release
    rows, pairs = covisit_arrays(connection, keys)
    assert rows.shape == pairs.shape == (69, 50)
    assert rows[0, :3].tolist() == [1, 2, -1]
    assert pairs[0, :3].tolist() == [2, 1, 0]
    assert (rows[:, 0] >= 0).sum() >= 2
    everything, found = covisit_arrays(connection, np.arange(1, 71))
    assert everything[3].tolist() == list(range(4, 54))
    assert found[3].tolist() == [1] * 50
