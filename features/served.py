"""What sampled answers were ranked with, kept so that it can be computed again.

Everything is stored as it was before :mod:`features.encode`: raw values, NaN where missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from psycopg import AsyncConnection
from psycopg_pool import AsyncConnectionPool

from features.ids import id_problem
from features.real import is_moment
from features.retry import run_async

Pool = AsyncConnectionPool[AsyncConnection[Any]]
FloatArray = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class ServedSample:
    """The features of n candidates of one answer.

    Attributes
    ----------
    rec_id : str
        UUID of the answer.
    served_at : float
        Unix seconds.
    user_id : str
        External id.
    release : str
        Which release ranked them.
    spec_hash : str
        Of the feature spec that orders the columns.
    user_as_of : float
        Unix seconds of the user's state.
    user_snapshot : str
        What the read of the user saw (``pg_current_snapshot()``).
    item_as_of : float
        Unix seconds of the refresh that the item features are of.
    item_snapshot : str
        What that refresh saw; empty where unknown.
    user_features : (Fu,) float32
    item_keys : (n,) int64
        Keys of the database.
    item_features : (n, Fi) float32
    cross_features : (n, Fx) float32
    """

    rec_id: str
    served_at: float
    user_id: str
    release: str
    spec_hash: str
    user_as_of: float
    user_snapshot: str
    item_as_of: float
    item_snapshot: str
    user_features: FloatArray
    item_keys: NDArray[np.int64]
    item_features: FloatArray
    cross_features: FloatArray


# An answer of someone who was erased while it waited is dropped: the erasure holds the table
# until it commits, so this statement sees it.
_RECORD_SERVED: str = """
insert into served_features (
    served_at, rec_id, user_id, release, spec_hash, user_as_of, user_snapshot, item_as_of,
    item_snapshot, user_features, item_keys, item_features, cross_features
)
select
    to_timestamp(served.served_at), served.rec_id, served.user_id, served.release,
    served.spec_hash, to_timestamp(served.user_as_of), served.user_snapshot::pg_snapshot,
    to_timestamp(served.item_as_of), nullif(served.item_snapshot, '')::pg_snapshot,
    served.user_features,
    (%(item_keys)s::integer[])[served.first_place:served.last_place],
    served.item_features, served.cross_features
from unnest(
    %(served_at)s::double precision[], %(rec_id)s::uuid[], %(user_id)s::text[],
    %(release)s::text[], %(spec_hash)s::text[], %(user_as_of)s::double precision[],
    %(user_snapshot)s::text[], %(item_as_of)s::double precision[], %(item_snapshot)s::text[],
    %(user_features)s::bytea[], %(item_features)s::bytea[], %(cross_features)s::bytea[],
    %(first)s::integer[], %(last)s::integer[]
) as served (
    served_at, rec_id, user_id, release, spec_hash, user_as_of, user_snapshot, item_as_of,
    item_snapshot, user_features, item_features, cross_features, first_place, last_place
)
where not exists (
    select from erasures
    where
        erasures.user_hash = sha256(convert_to(served.user_id, 'utf8'))
        and erasures.erased_at >= to_timestamp(served.served_at)
)
on conflict (served_at, rec_id) do nothing
returning rec_id
"""

_PRUNE_SERVED: str = """
delete from served_features
where
    (served_at, rec_id) < (
        select
            oldest_kept.served_at,
            oldest_kept.rec_id
        from served_features as oldest_kept
        order by oldest_kept.served_at desc, oldest_kept.rec_id desc
        offset %s - 1 limit 1
    )
returning rec_id
"""


def packed(values: FloatArray) -> bytes:
    """Return a vector or matrix row by row, as the table holds it: big-endian float4."""
    return values.astype(">f4").tobytes()


def unpacked(data: bytes, columns: int) -> FloatArray:
    """Return the matrix (n, columns) that :func:`packed` made."""
    return np.frombuffer(data, ">f4").reshape(-1, columns).astype(np.float32)


def _is_storable(sample: ServedSample) -> bool:
    texts = (sample.user_id, sample.release)
    moments = (sample.served_at, sample.user_as_of, sample.item_as_of)
    return (
        all(id_problem(text, len(text)) is None for text in texts)
        and all(is_moment(moment) for moment in moments)
        and bool(sample.user_snapshot)
    )


async def record_served(pool: Pool, samples: Sequence[ServedSample]) -> int:
    """Store the features of answers, with one statement.

    Returns
    -------
    int
        Answers that are new. One without a snapshot of its user, or with a value that
        PostgreSQL cannot hold, is left out.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL cannot be reached.
    """
    kept = [sample for sample in samples if _is_storable(sample)]
    if not kept:
        return 0
    ends = np.cumsum([len(sample.item_keys) for sample in kept])
    texts = ("rec_id", "user_id", "release", "spec_hash", "user_snapshot", "item_snapshot")
    moments = ("served_at", "user_as_of", "item_as_of")
    matrices = ("user_features", "item_features", "cross_features")
    parameters = {
        **{name: [getattr(sample, name) for sample in kept] for name in texts},
        **{name: np.array([getattr(s, name) for s in kept], np.float64) for name in moments},
        **{name: [packed(getattr(sample, name)) for sample in kept] for name in matrices},
        "item_keys": np.concatenate([sample.item_keys for sample in kept]).astype(np.int32),
        "first": np.concatenate([[1], ends[:-1] + 1]).astype(np.int32),
        "last": ends.astype(np.int32),
    }
    return len(await run_async(pool, _RECORD_SERVED, parameters))


async def prune_served(pool: Pool, most_rows: int) -> int:
    """Delete the oldest answers beyond `most_rows` (at least 1); return how many.

    Raises
    ------
    DatabaseUnavailable
        PostgreSQL cannot be reached.
    """
    return len(await run_async(pool, _PRUNE_SERVED, (most_rows,)))
