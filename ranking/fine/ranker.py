"""The fine stage behind one protocol: local ONNX here, a remote one in ``serve``."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

from numpy.typing import NDArray

from ranking.onnx_model import OnnxModel
from ranking.types import FloatArray

RankerInputs = Mapping[str, NDArray[Any]]
"""All inputs of ``ranker.onnx`` (:func:`ranking.fine.inputs.ranker_inputs`)."""


class Ranker(Protocol):
    """Scores candidates."""

    def score(self, inputs: RankerInputs) -> FloatArray:
        """Return a score for each candidate (B, C); higher is better, padding is arbitrary."""


class OnnxRanker:
    """The ranker of a release, in this process.

    Parameters
    ----------
    model : OnnxModel
        ``ranker.onnx`` of a release.
    """

    def __init__(self, model: OnnxModel) -> None:
        self._model = model

    def score(self, inputs: RankerInputs) -> FloatArray:
        """See :meth:`Ranker.score`."""
        scores: FloatArray = self._model.run(inputs)[0]
        return scores
