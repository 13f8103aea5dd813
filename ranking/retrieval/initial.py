"""A start for item vectors: the leading directions of damped co-visitation.

Two items that the same sequences hold close together start close together, which a transformer
would need many epochs to find out. The factors are those of ``log(1 + s_ij)`` over the symmetric
damped pair weights, by randomised subspace iteration (Halko et al. 2011,
https://arxiv.org/abs/0909.4061).
"""

from __future__ import annotations

import numpy as np
from scipy import sparse

from ranking.retrieval.covisitation import pair_weights
from ranking.retrieval.sequence import EventLog
from ranking.types import FloatArray

_REACH = 20
_ROUNDS = 4
_SURPLUS = 16


def initial_vectors(log: EventLog, width: int, scale: float, seed: int) -> FloatArray:
    """Return start vectors of all items.

    Parameters
    ----------
    log : EventLog
    width : int
        d.
    scale : float
        Standard deviation of the entries, over the items with events.
    seed : int

    Returns
    -------
    (N, d) float32
        0 for items without events; small random numbers in directions that the data has not.
    """
    rng = np.random.default_rng(seed)
    counts = log.counts()
    vectors = 0.1 * scale * rng.standard_normal((log.items, width), np.float32)
    vectors[counts == 0] = 0.0
    items, candidates, weights = pair_weights(log, _REACH, 1.0)
    rank = min(width, log.items - 1)
    if len(items) == 0 or rank < 1:
        return vectors
    damped = (counts + 3.0) ** -0.5
    logs = np.log1p(5.0 * weights * damped[items] * damped[candidates]).astype(np.float32)
    matrix = sparse.csr_matrix((logs, (items, candidates)), shape=(log.items, log.items))
    width_of_basis = min(rank + _SURPLUS, log.items)
    basis = rng.standard_normal((log.items, width_of_basis), np.float32)
    for _ in range(_ROUNDS):
        basis = np.linalg.qr(matrix @ basis).Q
    values, directions = np.linalg.eigh(basis.T @ (matrix @ basis))
    best = np.argsort(-values)[:rank]
    factors = (basis @ directions[:, best]) * np.sqrt(np.maximum(values[best], 0))
    spread = max(float(factors[counts > 0].std()), 1e-12)
    vectors[:, :rank] += factors * (scale / spread)
    return vectors.astype(np.float32)


def attribute_map(vectors: FloatArray, attributes: FloatArray, counts: np.ndarray) -> FloatArray:
    """Return the ridge regression (d, Fa) of vectors on attributes, items weighted by events."""
    weight = np.log1p(counts.astype(np.float64))[:, None]
    weighted = attributes * weight
    gram = weighted.T @ attributes + 10.0 * np.eye(attributes.shape[1])
    solution = np.linalg.solve(gram, weighted.T @ vectors)
    return np.ascontiguousarray(solution.T.astype(np.float32))
