"""The ranker's scores as probabilities, and how well these hold.

The ranker is trained with a softmax over the candidates and one option more, of score 0: that
the user's next item is none of them. So with ``s`` the scores of a list,

    p(i) = exp(s(i)) / (1 + sum over the list of exp(s))

is the probability that the next item is i, which can be multiplied with what an item is worth.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ranking.types import DoubleArray, FloatArray

_BINS = 10


@dataclass(frozen=True, slots=True)
class Calibration:
    """Probabilities beside what happened, on lists that the ranker did not learn from.

    Attributes
    ----------
    lists : int
    error : float
        Expected calibration error of the first candidate: the lists fall into ten bins of equal
        size by its probability; mean distance of probability and share taken (after Naeini et
        al. 2015, https://ojs.aaai.org/index.php/AAAI/article/view/9602).
    first_probability, first_taken : float
        Mean probability of the first candidate, and share in what was taken.
    listed_probability, listed_taken : float
        The same for all candidates of a list together.
    """

    lists: int
    error: float
    first_probability: float
    first_taken: float
    listed_probability: float
    listed_taken: float


def probabilities(scores: FloatArray, mask: FloatArray) -> DoubleArray:
    """Return the probability of each candidate.

    Parameters
    ----------
    scores : (B, C) float32
        Of ``ranker.onnx``; arbitrary where padded.
    mask : (B, C) float32
        1 for a candidate, 0 where padded.

    Returns
    -------
    (B, C) float64
        0 where padded; a list adds up to less than 1.
    """
    real = np.where(mask > 0, scores.astype(np.float64), -np.inf)
    top = np.maximum(real.max(axis=1, initial=-np.inf, keepdims=True), 0.0)
    parts = np.exp(real - top)
    found: DoubleArray = parts / (np.exp(-top) + parts.sum(axis=1, keepdims=True))
    return found


def calibration(likely: DoubleArray, targets: FloatArray) -> Calibration:
    """Compare probabilities with what was taken.

    Parameters
    ----------
    likely : (E, C) float64
        See :func:`probabilities`; at least one list and one candidate.
    targets : (E, C + 1) float32
        See :class:`ranking.fine.examples.Examples`.
    """
    first = likely.argmax(axis=1)
    said = np.take_along_axis(likely, first[:, None], 1)[:, 0]
    taken = np.take_along_axis(targets, first[:, None], 1)[:, 0].astype(np.float64)
    order = np.argsort(said, kind="stable")
    error = sum(
        len(part) * abs(said[part].mean() - taken[part].mean())
        for part in np.array_split(order, min(_BINS, len(order)))
    )
    return Calibration(
        lists=len(likely),
        error=float(error / len(likely)),
        first_probability=float(said.mean()),
        first_taken=float(taken.mean()),
        listed_probability=float(likely.sum(axis=1).mean()),
        listed_taken=float(1 - targets[:, -1].mean(dtype=np.float64)),
    )
