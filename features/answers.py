"""Writing what was shown: one row for each answer, one statement for many of them.

Readers find an item a row in the view ``impressions``.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import uuid_utils
from numpy.typing import NDArray
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from features.ids import id_problem
from features.real import is_moment
from features.retry import run_async

Pool = AsyncConnectionPool[AsyncConnection[Any]]


@dataclass(frozen=True, slots=True)
class ShownAnswer:
    """One answer that was sent, with its n items in the order they were shown.

    Attributes
    ----------
    rec_id : str
        UUID of the answer.
    user_id : str
        External id, known or not.
    release, scenario : str
        Which release, for what page.
    item_keys : (n,) int64
        Keys of the database.
    scores : (n,) float32
        Final scores; what is not finite is stored as none.
    sources : sequence of n str
        First candidate source of each item, empty where there is none.
    served_at : float
        Unix seconds.
    """

    rec_id: str
    user_id: str
    release: str
    scenario: str | None
    item_keys: NDArray[np.int64]
    scores: NDArray[np.float32]
    sources: Sequence[str]
    served_at: float


# Items of all answers lie end to end; each answer takes its own, from first to last. An answer of
# someone who was erased while it waited is dropped: the erasure holds the table until it commits,
# so this statement sees it.
_RECORD_ANSWERS: str = """
insert into answers (served_at, rec_id, user_id, release, scenario, item_keys, scores, sources)
select
    to_timestamp(shown.served_at), shown.rec_id, shown.user_id, shown.release, shown.scenario,
    (%(item_keys)s::integer[])[shown.first_place:shown.last_place],
    (%(scores)s::real[])[shown.first_place:shown.last_place],
    trim_array(string_to_array(shown.sources, %(separator)s), 1)
from unnest(
    %(served_at)s::double precision[], %(rec_id)s::uuid[], %(user_id)s::text[],
    %(release)s::text[], %(scenario)s::text[], %(sources)s::text[], %(first)s::integer[],
    %(last)s::integer[]
) as shown (
    served_at, rec_id, user_id, release, scenario, sources, first_place, last_place
)
where not exists (
    select from erasures
    where
        erasures.user_hash = sha256(convert_to(shown.user_id, 'utf8'))
        and erasures.erased_at >= to_timestamp(shown.served_at)
)
on conflict (rec_id, served_at) do nothing
returning rec_id
"""
_SEPARATOR = "\x1f"


def _is_storable(answer: ShownAnswer) -> bool:
    """Return whether PostgreSQL can hold the answer: one that it refuses would take all along."""
    texts = (answer.user_id, answer.release, answer.scenario, "".join(answer.sources))
    try:
        uuid_utils.UUID(answer.rec_id)
    except ValueError:
        return False
    return (
        all(not text or id_problem(text, len(text)) is None for text in texts)
        and _SEPARATOR not in texts[3]
        and 0 < len(answer.item_keys) == len(answer.scores) == len(answer.sources)
        and 0 <= answer.item_keys.min() <= answer.item_keys.max() < 2**31
        and is_moment(answer.served_at)
    )


async def record_answers(pool: Pool, answers: Sequence[ShownAnswer]) -> int:
    """Store what was shown, with one statement; an answer that is stored already is skipped.

    Returns
    -------
    int
        Answers that are new. One without items, or with a value that PostgreSQL cannot hold, is
        left out.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL cannot be reached.
    """
    kept = [answer for answer in answers if _is_storable(answer)]
    if not kept:
        return 0
    ends = np.cumsum([len(answer.item_keys) for answer in kept])
    scores = np.concatenate([answer.scores for answer in kept]).astype(np.float32)
    parameters = {
        "served_at": np.array([answer.served_at for answer in kept], np.float64),
        "rec_id": [answer.rec_id for answer in kept],
        "user_id": [answer.user_id for answer in kept],
        "release": [answer.release for answer in kept],
        "scenario": [answer.scenario for answer in kept],
        "sources": [_SEPARATOR.join([*answer.sources, ""]) for answer in kept],
        "item_keys": np.concatenate([answer.item_keys for answer in kept]).astype(np.int32),
        "scores": np.where(np.isfinite(scores), scores, np.float32("nan")),
        "first": np.concatenate([[1], ends[:-1] + 1]).astype(np.int32),
        "last": ends.astype(np.int32),
        "separator": _SEPARATOR,
    }
    return len(await run_async(pool, _RECORD_ANSWERS, parameters))
