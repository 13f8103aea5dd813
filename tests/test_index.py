"""Contract of every index kind: exact, flat, HNSW and IVF, on a CPU and on a GPU."""

from __future__ import annotations

from pathlib import Path

import faiss
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from features.errors import InputError, ReleaseError
from ranking.retrieval.exact import ExactIndex, Index, recall
from ranking.retrieval.index import IndexConfig, build_index, load_index

KINDS = ["exact", "flat", "hnsw", "ivf", "ivf-sq8"]


def clustered(n: int, d: int = 16, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    centres = rng.standard_normal((12, d))
    points = centres[rng.integers(0, 12, n)] + 0.4 * rng.standard_normal((n, d))
    return points.astype(np.float32)


def make(kind: str, vectors: np.ndarray, **options: int) -> Index:
    if kind == "exact":
        return ExactIndex(vectors)
    name, _, codes = kind.partition("-")
    config = IndexConfig.model_validate({"kind": name, "ivf_codes": codes or "flat", **options})
    return build_index(vectors, config)


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.mark.parametrize("n", [1, 5, 300, 2_000])
def test_finds_the_nearest_in_order(kind: str, n: int) -> None:
    vectors = clustered(n)
    queries = clustered(10, seed=1)
    scores, rows = make(kind, vectors).search(queries, 5)
    assert scores.shape == rows.shape == (10, 5)
    assert scores.dtype == np.float32
    assert rows.dtype == np.int64
    found = min(n, 5)
    assert (rows[:, :found] >= 0).all()
    assert (np.diff(scores[:, :found], axis=1) <= 1e-5).all()
    for q, some, values in zip(queries, rows[:, :found], scores[:, :found], strict=True):
        assert len(set(some)) == found
        assert values == pytest.approx(vectors[some] @ q, rel=0.02, abs=0.1)
    assert recall(make(kind, vectors), queries, 5, ExactIndex(vectors)) >= 0.9


def test_k_beyond_the_number_of_items_is_padded(kind: str) -> None:
    scores, rows = make(kind, clustered(7)).search(clustered(3, seed=1), 20)
    assert (np.sort(rows, axis=1)[:, -7:] == np.arange(7)).all()
    assert (rows[:, 7:] == -1).all()
    assert np.isneginf(scores[:, 7:]).all()


def test_an_empty_index_finds_nothing(kind: str) -> None:
    scores, rows = make(kind, np.empty((0, 16), np.float32)).search(clustered(2), 3)
    assert (rows == -1).all()
    assert np.isneginf(scores).all()


def test_no_queries(kind: str) -> None:
    scores, rows = make(kind, clustered(9)).search(np.empty((0, 16), np.float32), 3)
    assert scores.shape == rows.shape == (0, 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_a_query_that_is_not_finite_finds_nothing_and_spares_the_others(
    kind: str, bad: float
) -> None:
    vectors = clustered(500)
    queries = clustered(3, seed=1)
    index = make(kind, vectors)
    good = index.search(queries[[0, 2]], 4)
    queries[1, 3] = bad
    scores, rows = index.search(queries, 4)
    assert (rows[1] == -1).all()
    assert np.isneginf(scores[1]).all()
    assert (rows[[0, 2]] == good[1]).all()


@pytest.mark.parametrize("exact_below", [0, 10_000])
@pytest.mark.parametrize("share", [0.0, 0.002, 0.05, 0.5, 1.0])
def test_a_filter_is_kept_and_never_leaves_a_query_short(
    kind: str, share: float, exact_below: int
) -> None:
    vectors = clustered(2_000)
    queries = clustered(20, seed=1)
    allowed = np.random.default_rng(2).random(2_000) < share
    allowed[17] = share > 0
    index = make(kind, vectors, exact_below=exact_below)
    scores, rows = index.search(queries, 50, allowed)
    wanted = min(50, int(allowed.sum()))
    assert ((rows >= 0).sum(axis=1) == wanted).all()
    assert allowed[rows[rows >= 0]].all()
    assert np.isneginf(scores[rows < 0]).all()
    _, exact = ExactIndex(vectors).search(queries, 50, allowed)
    if wanted:
        hits = [np.isin(e[:wanted], i).mean() for e, i in zip(exact, rows, strict=True)]
        assert np.mean(hits) >= 0.9


def test_a_filter_of_the_wrong_length_is_refused() -> None:
    with pytest.raises(InputError, match="filter has 3 rows, the index 9"):
        make("flat", clustered(9)).search(clustered(1), 2, np.ones(3, np.bool_))


def test_a_second_filter_replaces_the_first(kind: str) -> None:
    index = make(kind, clustered(400), exact_below=0)
    query = clustered(1, seed=1)
    for seed in range(4):
        allowed = np.random.default_rng(seed).random(400) < 0.5
        _, rows = index.search(query, 30, allowed)
        assert allowed[rows].all()


def test_added_vectors_get_the_next_rows_and_are_found(kind: str) -> None:
    vectors = clustered(600)
    index = make(kind, vectors[:590].copy())
    index.extend(vectors[:595])
    index.extend(vectors)
    assert index.ntotal == 600
    assert recall(index, vectors[590:], 60, ExactIndex(vectors)) >= 0.9
    allowed = np.zeros(600, np.bool_)
    allowed[592:] = True
    _, rows = index.search(vectors[590:], 10, allowed)
    assert (np.sort(rows, axis=1)[:, 2:] == np.arange(592, 600)).all()


def test_wrong_width_is_refused(kind: str) -> None:
    with pytest.raises(InputError, match=r"\(n, 16\), got \(2, 8\)"):
        make(kind, clustered(9)).search(np.ones((2, 8), np.float32), 1)


@pytest.mark.parametrize("kind", KINDS[1:])
def test_a_saved_index_gives_the_same_answers(kind: str, tmp_path: Path) -> None:
    vectors = clustered(3_000)
    queries = clustered(9, seed=1)
    built = make(kind, vectors)
    built.save(tmp_path / "index.faiss")
    loaded = load_index(tmp_path / "index.faiss", vectors)
    assert loaded.kind == kind.partition("-")[0]
    assert (loaded.search(queries, 20)[1] == built.search(queries, 20)[1]).all()


def test_a_file_of_other_vectors_or_none_is_refused(tmp_path: Path) -> None:
    make("flat", clustered(30)).save(tmp_path / "index.faiss")
    with pytest.raises(ReleaseError, match="holds 30 vectors of width 16"):
        load_index(tmp_path / "index.faiss", clustered(31))
    (tmp_path / "index.faiss").write_bytes(b"IxFI")
    with pytest.raises(ReleaseError, match="no index that Faiss can read"):
        load_index(tmp_path / "index.faiss", clustered(30))


def test_auto_is_flat_for_a_small_catalogue_and_ivf_for_a_large_one() -> None:
    assert build_index(clustered(99), IndexConfig(flat_below=100)).kind == "flat"
    assert build_index(clustered(100), IndexConfig(flat_below=100)).kind == "ivf"


def test_vectors_that_are_not_finite_are_refused() -> None:
    vectors = clustered(5)
    vectors[3, 2] = np.nan
    with pytest.raises(InputError, match="row 3 is not finite"):
        build_index(vectors)


@settings(max_examples=60, deadline=None)
@given(
    n=st.integers(1, 60),
    k=st.integers(1, 80),
    share=st.floats(0, 1),
    seed=st.integers(0, 2**16),
)
def test_flat_equals_the_oracle_under_any_filter(n: int, k: int, share: float, seed: int) -> None:
    rng = np.random.default_rng(seed)
    vectors = rng.standard_normal((n, 8)).astype(np.float32)
    query = rng.standard_normal((2, 8)).astype(np.float32)
    allowed = rng.random(n) < share
    flat = build_index(vectors, IndexConfig(kind="flat", exact_below=0))
    scores, rows = flat.search(query, k, allowed)
    exact_scores, exact_rows = ExactIndex(vectors).search(query, k, allowed)
    assert (exact_rows == rows).all()
    finite = np.isfinite(scores)
    assert (finite == np.isfinite(exact_scores)).all()
    assert scores[finite] == pytest.approx(exact_scores[finite], abs=1e-4)


@pytest.mark.gpu
@pytest.mark.skipif(faiss.get_num_gpus() == 0, reason="Faiss sees no GPU on this machine")
@pytest.mark.parametrize("kind", ["flat", "ivf"])
def test_the_gpu_is_used_and_agrees_with_the_oracle(kind: str, tmp_path: Path) -> None:
    vectors = clustered(60_000)
    queries = clustered(40, seed=1)
    index = make(kind, vectors)
    assert index.on_gpu  # type: ignore[attr-defined]  # only Faiss indexes know devices
    exact = ExactIndex(vectors)
    assert recall(index, queries, 100, exact) >= 0.95
    allowed = np.random.default_rng(0).random(60_000) < 0.5
    _, rows = index.search(queries, 100, allowed)
    _, wanted = exact.search(queries, 100, allowed)
    assert allowed[rows].all()
    assert np.mean([np.isin(w, i).mean() for w, i in zip(wanted, rows, strict=True)]) >= 0.95
    index.save(tmp_path / "index.faiss")  # type: ignore[attr-defined]
    assert load_index(tmp_path / "index.faiss", vectors).ntotal == 60_000
