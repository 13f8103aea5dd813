"""The towers of a release as functions of arrays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ranking.onnx_model import OnnxModel
from ranking.retrieval.attributes import ItemAttributes, item_attributes
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


class OnnxItemTower:
    """The item tower, for items that training did not know.

    Parameters
    ----------
    model : OnnxModel
        ``item_tower.onnx`` of a release.
    vocabulary : ItemAttributes
        Of its training.
    """

    def __init__(self, model: OnnxModel, vocabulary: ItemAttributes) -> None:
        self._model = model
        self._vocabulary = vocabulary

    def __call__(
        self,
        fields: Sequence[bytes],
        categories: Sequence[Sequence[str]],
        id_vectors: FloatArray | None = None,
    ) -> FloatArray:
        """Return item vectors (n, d).

        Parameters
        ----------
        fields : sequence of bytes
            One JSON object an item.
        categories : sequence of sequence of str
            Categories of each item.
        id_vectors : (n, d) float32 or None
            What training learnt of each item itself; None: nothing.
        """
        attributes = item_attributes(fields, categories, self._vocabulary)
        if id_vectors is None:
            width = int(self._model.inputs["id_vectors"].shape[1])
            id_vectors = np.zeros((len(attributes), width), np.float32)
        feeds = {"attributes": attributes, "id_vectors": id_vectors}
        vectors: FloatArray = self._model.run(feeds)[0]
        return vectors
