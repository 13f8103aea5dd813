"""The partials and sums of a refresh from raw rows, slowly and obviously: the oracle of its SQL."""

from collections import defaultdict
from datetime import UTC, date, datetime, timedelta

from features.spec import WINDOWS_DAYS

HOUR, DAY = timedelta(hours=1), timedelta(days=1)


def read_point(connection):
    return connection.execute(
        "select watermark, answer_watermark, as_of, raw_since from refresh_point"
    ).fetchone()


def expected(connection):
    """Return what each table should hold, by its key, from the raw rows of the database."""
    watermark, answer_watermark, as_of, _ = read_point(connection)
    arrived = connection.execute(
        "select interaction_id, user_key, item_key, occurred_at, value::double precision"
        " from interactions where interaction_id <= %s order by interaction_id",
        (watermark,),
    ).fetchall()
    answers = connection.execute(
        "select user_key, served_at, item_keys from answers left join users using (user_id)"
        " where answer_id <= %s and served_at < %s",
        (answer_watermark, as_of),
    ).fetchall()
    categories = dict(connection.execute("select item_key, categories from items").fetchall())
    counted = [row for row in arrived if row[3] < as_of]

    def sums(rows):
        values = [row[4] for row in rows if row[4] is not None]
        return len(rows), len(values), sum(values), sum(value * value for value in values)

    def grouped(key):
        groups = defaultdict(list)
        for row in counted:
            groups[key(row)].append(row)
        return groups

    impressions, clicks = defaultdict(int), defaultdict(int)
    for _, served_at, keys in answers:
        for key in keys:
            impressions[key, served_at.astimezone(UTC).date()] += 1
    for _, user, item, moment, _ in counted:
        if any(
            person == user and item in keys and moment - DAY <= served_at <= moment
            for person, served_at, keys in answers
        ):
            clicks[item, day(moment)] += 1

    item_daily, item_totals = {}, {}
    by_item_day = grouped(lambda row: (row[2], day(row[3])))
    for key in by_item_day.keys() | impressions.keys():
        rows = by_item_day.get(key, [])
        last_at = max((row[3] for row in rows), default=None)
        item_daily[key] = (*sums(rows), impressions.get(key, 0), clicks.get(key, 0), last_at)
    by_item = grouped(lambda row: row[2])
    for item in by_item.keys() | {key for key, _ in impressions}:
        rows = by_item.get(item, [])
        windows = [
            sum(row[3] >= as_of - timedelta(days=days) for row in rows) for days in WINDOWS_DAYS
        ]
        item_totals[item] = (
            *sums(rows),
            sum(count for (key, _), count in impressions.items() if key == item),
            sum(count for (key, _), count in clicks.items() if key == item),
            max((row[3] for row in rows), default=None),
            windows,
        )
    click_daily = {
        when: (
            sum(count for (_, at), count in impressions.items() if at == when),
            sum(count for (_, at), count in clicks.items() if at == when),
        )
        for when in {at for _, at in impressions} | {at for _, at in clicks}
    }
    user_daily = {
        key: (*sums(rows), min(row[3] for row in rows), max(row[3] for row in rows))
        for key, rows in grouped(lambda row: (row[1], day(row[3]))).items()
    }
    category_daily, category_totals = defaultdict(lambda: [0, 0.0]), defaultdict(lambda: [0, 0.0])
    for _, user, item, moment, value in counted:
        for name in categories[item]:
            for entry in (category_daily[user, name, day(moment)], category_totals[user, name]):
                entry[0] += 1
                entry[1] += value or 0.0
    user_totals = {}
    for user, rows in grouped(lambda row: row[1]).items():
        named = sorted(name for person, name in category_totals if person == user)
        user_totals[user] = (
            *sums(rows),
            min(row[3] for row in rows),
            max(row[3] for row in rows),
            len({day(row[3]) for row in rows}),
            {row[2] for row in rows},
            named,
            [tuple(category_totals[user, name]) for name in named],
        )
    return {
        "item_daily": item_daily,
        "click_daily": click_daily,
        "user_daily": user_daily,
        "user_category_daily": {key: tuple(entry) for key, entry in category_daily.items()},
        "covisit_daily": pairs(arrived, as_of),
        "item_totals": item_totals,
        "user_category_totals": {key: tuple(entry) for key, entry in category_totals.items()},
        "user_totals": user_totals,
    }


def day(moment: datetime) -> date:
    return moment.astimezone(UTC).date()


def pairs(arrived, as_of):
    """Count the pairs of an event with the two that the user's events have before it."""
    found = defaultdict(int)
    last = defaultdict(list)
    for _, user, item, moment, _ in arrived:
        for earlier, earlier_at in last[user][-2:]:
            if (
                earlier != item
                and abs(moment - earlier_at) <= HOUR
                and max(moment, earlier_at) < as_of
            ):
                found[earlier, item, day(max(moment, earlier_at))] += 1
        last[user].append((item, moment))
    return {key: (count,) for key, count in found.items()}


def stored(connection):
    """Return what the tables hold, in the form of :func:`expected`."""

    def rows(keys, columns, table):
        size = keys.count(",") + 1
        found = connection.execute(f"select {keys}, {columns} from {table}").fetchall()
        return {row[0] if size == 1 else row[:size]: row[size:] for row in found}

    sums = "events, valued, value_sum, value_square_sum"
    user_totals = {}
    for key, row in rows(
        "user_key",
        f"{sums}, first_at, last_at, active_days, seen_items, seen_compacted, category_names,"
        " category_sums",
        "user_totals",
    ).items():
        seen = [int.from_bytes(row[7][at : at + 4]) for at in range(0, len(row[7]), 4)]
        assert len(set(seen[: row[8]])) == row[8]
        user_totals[key] = (*row[:7], set(seen), row[9] or [], unpacked(row[10]))
    return {
        "item_daily": rows(
            "item_key, event_day", f"{sums}, impressions, clicks, last_at", "item_daily"
        ),
        "click_daily": rows("event_day", "impressions, clicks", "click_daily"),
        "user_daily": rows("user_key, event_day", f"{sums}, first_at, last_at", "user_daily"),
        "user_category_daily": rows(
            "user_key, category, event_day", "events, value_sum", "user_category_daily"
        ),
        "covisit_daily": rows("item_key, other_key, event_day", "pairs", "covisit_daily"),
        "item_totals": rows(
            "item_key", f"{sums}, impressions, clicks, last_at, window_events", "item_totals"
        ),
        "user_category_totals": rows(
            "user_key, category", "events, value_sum", "user_category_totals"
        ),
        "user_totals": user_totals,
    }


def unpacked(packed):
    import numpy as np

    sums = np.frombuffer(packed or b"", ">f4").reshape(-1, 2)
    return [(int(events), float(value_sum)) for events, value_sum in sums]


def differences(connection):
    """Return each entry that is not as it should be: table, key, stored, expected."""
    connection.commit()
    real, wanted = stored(connection), expected(connection)
    connection.commit()
    return [
        (table, key, real[table].get(key), wanted[table].get(key))
        for table in wanted
        for key in real[table].keys() | wanted[table].keys()
        if real[table].get(key) != wanted[table].get(key)
    ]
