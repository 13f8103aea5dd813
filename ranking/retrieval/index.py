"""Nearest item vectors by inner product with Faiss: flat, IVF and HNSW, on a CPU or a GPU.

A filtered search never returns fewer than ``min(k, allowed.sum())`` rows: HNSW with a 1-in-5,000
filter was measured to find the one allowed item in 7 of 20 queries, so a selective filter, or
one that left a query short, is answered by an exact scan of what it allows.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import faiss
import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from features.errors import InputError, ReleaseError
from ranking.retrieval.exact import ExactIndex, blank_not_finite, checked, finite, padded
from ranking.types import BoolArray, FloatArray, RowArray

Kind = Literal["flat", "hnsw", "ivf"]

_MAX_GPU_K = 2048  # Faiss refuses more on a GPU.


class IndexConfig(BaseModel):
    """Which index a release gets and how it is built."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    kind: Literal["auto", "flat", "hnsw", "ivf"] = Field(
        default="auto", description="auto: flat below `flat_below` items, else ivf."
    )
    flat_below: int = Field(default=50_000, ge=0, description="Items; used by kind auto.")
    hnsw_links: int = Field(default=32, ge=4, description="Links a node and level (M).")
    hnsw_ef_construction: int = Field(default=100, ge=8, description="Queue length of the build.")
    hnsw_ef_search: int = Field(default=256, ge=8, description="Queue length of a search.")
    ivf_lists: int | None = Field(
        default=None, ge=1, description="Cells; None: the power of two next to 2 sqrt(items)."
    )
    ivf_probes: int = Field(
        default=32, ge=1, le=2048, description="Cells that a search scans; a GPU allows no more."
    )
    ivf_codes: Literal["flat", "sq8"] = Field(
        default="flat", description="sq8 stores a byte a dimension instead of four."
    )
    exact_below: int = Field(
        default=20_000,
        ge=0,
        description="Items; a filter that allows fewer is answered by an exact scan.",
    )
    threads: int = Field(
        default=1, ge=1, description="OpenMP threads of a search; one for each replica."
    )
    build_threads: int = Field(default=2, ge=1, description="OpenMP threads of a build.")
    seed: int = Field(default=0, description="Seed of the IVF clustering.")


class FaissIndex:
    """A Faiss index with the contract of :class:`Index`, on the CPU or on one GPU.

    Parameters
    ----------
    cpu : faiss.Index
        The trained and filled index; moved to the GPU where there is one and its type can.
    vectors : (N, d) float32
        The same vectors in full precision (the release maps them), for exact scans.
    config : IndexConfig
    """

    def __init__(self, cpu: faiss.Index, vectors: FloatArray, config: IndexConfig) -> None:
        self.kind: str = _kind(cpu)
        self.dimension = int(cpu.d)
        self._exact = ExactIndex(vectors)
        self._config = config
        self._resources: Any = None
        self._index = cpu
        faiss.omp_set_num_threads(config.threads)
        if faiss.get_num_gpus() > 0 and self.kind in ("flat", "ivf"):
            # One resources object for each owner: it is not safe to share between threads.
            self._resources = faiss.StandardGpuResources()
            self._index = faiss.index_cpu_to_gpu(self._resources, 0, cpu)
            if self.kind == "ivf":
                self._index.nprobe = cpu.nprobe
        self._bits: tuple[BoolArray, Any, Any] | None = None

    @property
    def ntotal(self) -> int:
        """Number of vectors."""
        return int(self._index.ntotal)

    @property
    def on_gpu(self) -> bool:
        """Whether searches run on a GPU."""
        return self._resources is not None

    def extend(self, vectors: FloatArray) -> None:
        """See :meth:`Index.extend`."""
        vectors = checked(vectors, self.dimension)
        self._index.add(vectors[self.ntotal :])
        self._exact.extend(vectors)
        self._bits = None

    def search(
        self, queries: FloatArray, k: int, allowed: BoolArray | None = None
    ) -> tuple[FloatArray, RowArray]:
        """Find the k best rows; see :meth:`Index.search`."""
        queries = checked(queries, self.dimension)
        if allowed is None:
            return self._plain(queries, k)
        if len(allowed) != self.ntotal:
            raise InputError(f"filter has {len(allowed)} rows, the index {self.ntotal}")
        count = int(np.count_nonzero(allowed))
        if count == self.ntotal:
            return self._plain(queries, k)
        if count < self._config.exact_below or count <= k:
            return self._exact.search(queries, k, allowed)
        if self.on_gpu:
            scores, rows = self._filter_after(queries, k, allowed, count)
        else:
            scores, rows = self._filter_inside(queries, k, allowed)
        short = rows[:, -1] < 0
        if short.any():
            scores[short], rows[short] = self._exact.search(queries[short], k, allowed)
        return scores, rows

    def save(self, path: Path) -> None:
        """Write the index to a file that :func:`load_index` reads."""
        index = faiss.index_gpu_to_cpu(self._index) if self.on_gpu else self._index
        faiss.write_index(index, str(path))

    def _plain(self, queries: FloatArray, k: int) -> tuple[FloatArray, RowArray]:
        keep = min(k, self.ntotal)
        # On a CPU, NumPy's product and partition take half the time of IndexFlatIP's heap.
        if (self.on_gpu and keep > _MAX_GPU_K) or (self.kind == "flat" and not self.on_gpu):
            return self._exact.search(queries, k)
        scores, rows = padded(len(queries), k)
        if keep and len(queries):
            found = self._index.search(finite(queries), keep)
            scores[:, :keep], rows[:, :keep] = found
            blank_not_finite(queries, scores, rows)
        return scores, rows

    def _filter_inside(
        self, queries: FloatArray, k: int, allowed: BoolArray
    ) -> tuple[FloatArray, RowArray]:
        scores, rows = self._index.search(finite(queries), k, params=self._parameters(allowed))
        blank_not_finite(queries, scores, rows)
        return scores, rows

    def _parameters(self, allowed: BoolArray) -> faiss.SearchParameters:
        """Return Faiss search parameters for a filter; the last filter's are kept."""
        if self._bits is not None and self._bits[0] is allowed:
            return self._bits[2]
        bits = np.packbits(allowed, bitorder="little")
        selector = faiss.IDSelectorBitmap(len(allowed), faiss.swig_ptr(bits))
        if self.kind == "ivf":
            parameters = faiss.SearchParametersIVF(sel=selector, nprobe=self._index.nprobe)
        elif self.kind == "hnsw":
            parameters = faiss.SearchParametersHNSW(
                sel=selector, efSearch=self._index.hnsw.efSearch
            )
        else:
            parameters = faiss.SearchParameters(sel=selector)
        # Faiss keeps pointers only: bits and selector must outlive the parameters.
        self._bits = (allowed, (bits, selector), parameters)
        return parameters

    def _filter_after(
        self, queries: FloatArray, k: int, allowed: BoolArray, count: int
    ) -> tuple[FloatArray, RowArray]:
        """Search wider and filter the result: Faiss's own GPU indexes take no selector."""
        wide = min(_MAX_GPU_K, self.ntotal, int(1.25 * k * self.ntotal / count) + 16)
        wide_scores, wide_rows = self._plain(queries, wide)
        ok = (wide_rows >= 0) & allowed[wide_rows]
        order = np.argsort(~ok, axis=1, kind="stable")[:, :k]
        kept = np.take_along_axis(ok, order, 1)
        scores, rows = padded(len(queries), k)
        scores[:, : order.shape[1]] = np.take_along_axis(wide_scores, order, 1)
        rows[:, : order.shape[1]] = np.where(kept, np.take_along_axis(wide_rows, order, 1), -1)
        blank_not_finite(queries, scores, rows)
        return scores, rows


def build_index(vectors: FloatArray, config: IndexConfig | None = None) -> FaissIndex:
    """Build the index that `config` asks for.

    Parameters
    ----------
    vectors : (N, d) float32
        Finite item vectors; N may be 0.

    Raises
    ------
    InputError
        If a vector holds NaN or infinity.
    """
    config = config or IndexConfig()
    vectors = np.ascontiguousarray(vectors, np.float32)
    N, d = vectors.shape
    if not np.isfinite(vectors).all():
        row = int(np.flatnonzero(~np.isfinite(vectors).all(axis=1))[0])
        raise InputError(f"item vector in row {row} is not finite; train again")
    kind = config.kind
    if kind == "auto":
        kind = "flat" if config.flat_below > N else "ivf"
    faiss.omp_set_num_threads(config.build_threads)
    if kind == "ivf" and N:
        lists = config.ivf_lists or 2 ** round(np.log2(2 * np.sqrt(N)))
        index = _empty_ivf(d, min(lists, N), config)
        index.train(vectors)
    elif kind == "hnsw":
        index = faiss.IndexHNSWFlat(d, config.hnsw_links, faiss.METRIC_INNER_PRODUCT)
        index.hnsw.efConstruction = config.hnsw_ef_construction
        index.hnsw.efSearch = config.hnsw_ef_search
    else:
        index = faiss.IndexFlatIP(d)
    index.add(vectors)
    return FaissIndex(index, vectors, config)


def load_index(path: Path, vectors: FloatArray, config: IndexConfig | None = None) -> FaissIndex:
    """Read an index that :meth:`FaissIndex.save` wrote, over the vectors it was built from.

    Faiss reads damaged files without complaint more often than not: check the sha256 before.

    Raises
    ------
    ReleaseError
        If Faiss refuses the file or it does not belong to `vectors`.
    """
    try:
        index = faiss.read_index(str(path))
    except RuntimeError as error:
        raise ReleaseError(f"{path.name} is no index that Faiss can read: {error}") from error
    if (index.ntotal, index.d) != vectors.shape:
        raise ReleaseError(
            f"{path.name} holds {index.ntotal} vectors of width {index.d}, "
            f"item_vectors.npy {len(vectors)} of width {vectors.shape[1]}; build the release again"
        )
    return FaissIndex(index, vectors, config or IndexConfig())


def _empty_ivf(d: int, lists: int, config: IndexConfig) -> faiss.Index:
    quantizer = faiss.IndexFlatIP(d)
    if config.ivf_codes == "sq8":
        index = faiss.IndexIVFScalarQuantizer(
            quantizer, d, lists, faiss.ScalarQuantizer.QT_8bit, faiss.METRIC_INNER_PRODUCT
        )
    else:
        index = faiss.IndexIVFFlat(quantizer, d, lists, faiss.METRIC_INNER_PRODUCT)
    index.own_fields = True
    quantizer.this.disown()
    index.cp.seed = config.seed
    index.cp.min_points_per_centroid = 1
    index.nprobe = min(config.ivf_probes, lists)
    return index


def _kind(index: faiss.Index) -> Kind:
    if isinstance(index, faiss.IndexIVF):
        return "ivf"
    if isinstance(index, faiss.IndexHNSW):
        return "hnsw"
    return "flat"
