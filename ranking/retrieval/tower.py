"""The towers of a release as functions of arrays."""

from __future__ import annotations

from ranking.onnx_model import OnnxModel
from ranking.retrieval.sequence import tower_inputs
from ranking.types import FloatArray, Histories


class OnnxUserTower:
    """The user tower: histories and item vectors to user vectors.

    Parameters
    ----------
    model : OnnxModel
        ``user_tower.onnx`` of a release.
    """

    def __init__(self, model: OnnxModel) -> None:
        self._model = model

    def __call__(self, histories: Histories, item_vectors: FloatArray) -> FloatArray:
        """Return user vectors (B, d) for item vectors (N, d)."""
        vectors: FloatArray = self._model.run(tower_inputs(histories, item_vectors))[0]
        return vectors
