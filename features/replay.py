"""Up to which day impressions and clicks still are what a refresh knew.

An item's events are found by its index, but who was shown the item is not: computed again from
answers alone, a replay would read all that was ever shown. The partials of a day are what they
were at a refresh unless something touched that day that the refresh had not seen: an answer that
came later, or an event that came later and is a click. Corrections by hand do too, and are not
looked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from typing import Any

import numpy as np
import psycopg
from numpy.typing import NDArray

from features.binary import register

# What no refresh record tells (it is older than they are kept) was after no row.
_REFRESHES = """
select
    coalesce(min(known.watermark), 0), coalesce(min(known.answer_watermark), 0),
    ((timestamptz 'epoch' + wanted.moment * interval '1 microsecond') at time zone 'utc')::date
        - date '1970-01-01'
from unnest(%b::bigint[]) with ordinality as wanted (moment, place)
left join feature_refreshes as known
    on known.as_of = timestamptz 'epoch' + wanted.moment * interval '1 microsecond'
group by wanted.place, wanted.moment
order by wanted.place
"""

# An id was not seen by the refreshes with a lower watermark: unseen_by says by how many.
_LATE_ANSWERS = """
select
    width_bucket(answer_id - 1, %b::bigint[]) as unseen_by,
    min((served_at at time zone 'utc')::date - date '1970-01-01')
from answers
where answer_id > %s
group by unseen_by
"""
_LATE_CLICKS = """
select
    width_bucket(events.interaction_id - 1, %b::bigint[]) as unseen_by,
    min((events.occurred_at at time zone 'utc')::date - date '1970-01-01')
from interactions as events
inner join users using (user_key)
where
    events.interaction_id > %s
    and exists (
        select from answers
        where
            answers.user_id = users.user_id
            and answers.served_at <= events.occurred_at
            and answers.served_at >= events.occurred_at - interval '24 hours'
            and events.item_key = any(answers.item_keys)
    )
group by unseen_by
"""


def partials_before(
    connection: psycopg.Connection[Any], refreshed_at: Sequence[float]
) -> list[date]:
    """Return for each refresh the first UTC day that it did not know as it is now.

    It costs what came after the first of them, whatever was there before.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`.
    refreshed_at : sequence of float
        `as_of` of refreshes, in unix seconds.
    """
    moments = np.rint(np.asarray(refreshed_at, np.float64) * 1e6).astype(np.int64)
    with connection.transaction(), connection.cursor(binary=True) as cursor:
        register(cursor)
        # The planner cannot know how few rows lie behind a watermark.
        cursor.execute("set local enable_seqscan = off")
        rows = cursor.execute(_REFRESHES, (moments,)).fetchall()
        events, answers, days = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        for query, watermarks in ((_LATE_ANSWERS, answers), (_LATE_CLICKS, events)):
            days = np.minimum(days, _first_days(cursor, query, watermarks))
        cursor.execute("reset enable_seqscan")
    return [date.fromordinal(date(1970, 1, 1).toordinal() + day) for day in days.tolist()]


def _first_days(
    cursor: psycopg.Cursor[Any], query: str, watermarks: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Return the first day that rows beyond each watermark touch; the end of time for none."""
    order = np.argsort(watermarks, kind="stable")
    ascending = watermarks[order]
    first = np.full(len(ascending) + 1, np.iinfo(np.int64).max)
    for unseen_by, day in cursor.execute(query, (ascending, int(ascending[0]))).fetchall():
        first[unseen_by] = day
    # What more refreshes had not seen, those with a lower watermark had not either.
    late = np.minimum.accumulate(first[:0:-1])[::-1]
    found = np.empty_like(late)
    found[order] = late
    return found
