import dataclasses

import numpy as np
import pytest
import torch
from worlds import make_histories, make_items, mean_tower

from features.spec import names
from ranking.fine.examples import Examples, collect
from ranking.fine.export import RANKER, export_ranker
from ranking.fine.inputs import ranker_inputs
from ranking.fine.model import Ranker, RankerConfig
from ranking.fine.probability import probabilities
from ranking.fine.ranker import OnnxRanker
from ranking.fine.train import INPUTS, FineConfig, train_ranker
from ranking.onnx_model import OnnxModel
from ranking.retrieval.retriever import RetrievalConfig, Retriever

SMALL = FineConfig(
    ranker=RankerConfig(hidden=16, attention_width=4), epochs=20, learning_rate=0.01, batch_lists=8
)
CROSS = len(names("cross"))


def make_parts(lengths: list[int], seed: int = 0) -> tuple[list, np.ndarray]:
    """Two batches of real retrieval results, and the item vectors."""
    items = make_items(80, seed=seed)
    retriever = Retriever(mean_tower, items, RetrievalConfig(candidates=20))
    parts = []
    rng = np.random.default_rng(seed)
    for half in np.array_split(np.array(lengths), 2):
        histories = make_histories(items, half.tolist(), seed + len(parts))
        candidates = retriever.retrieve(histories)
        B, C = candidates.rows.shape
        feeds = ranker_inputs(
            candidates,
            histories,
            rng.random((B, len(names("user"))), np.float32),
            rng.random((B, C, len(names("item"))), np.float32),
            rng.random((B, C, CROSS), np.float32),
            items,
        )
        parts.append((candidates, histories, feeds))
    return parts, items.vectors


def make_examples(n: int = 60) -> tuple[Examples, np.ndarray]:
    """The label is the candidate with the highest first item feature."""
    parts, vectors = make_parts([1 + k % 9 for k in range(n)])
    labels = np.concatenate(
        [
            np.take_along_axis(c.rows, feeds["item"][..., :1].argmax(axis=1), 1)[:, 0]
            for c, _, feeds in parts
        ]
    )
    later = [np.empty(0, np.int64)] * n
    return collect(parts, list(labels[:, None]), later, np.arange(n)), vectors


@pytest.fixture(scope="module")
def trained() -> tuple[Ranker, Examples, np.ndarray]:
    torch.set_num_threads(1)
    examples, vectors = make_examples()
    return train_ranker(examples, vectors, SMALL, seed=0)[0], examples, vectors


def scores(model: Ranker, examples: Examples, vectors: np.ndarray) -> np.ndarray:
    feeds = examples.batch(np.arange(len(examples)), vectors)
    with torch.no_grad():
        found = model(*(torch.from_numpy(feeds[name]) for name in INPUTS)).numpy()
    return np.where(feeds["mask"] > 0, found, -np.inf)


def test_learns_what_decides(trained):
    model, examples, vectors = trained
    best = examples.targets.argmax(axis=1)
    assert (scores(model, examples, vectors).argmax(axis=1) == best).mean() > 0.85


def test_untrained_ranker_repeats_the_coarse_order():
    examples, vectors = make_examples(4)
    torch.manual_seed(0)
    model, _, calibration = train_ranker(collect_nothing(), vectors, SMALL, 0)
    assert calibration is None
    with torch.no_grad():
        model.out.weight.zero_()
    found = scores(model, examples, vectors)
    assert (np.argsort(-found, axis=1, kind="stable") == np.arange(found.shape[1])).all()


def collect_nothing() -> Examples:
    parts, _ = make_parts([2, 2])
    missed = [np.array([10_000])] * 2
    nothing = collect(parts, missed, [np.empty(0, np.int64)] * 2, np.arange(2))
    assert (len(nothing), nothing.offered, nothing.retrieved) == (2, 2, 0)
    return nothing


def test_equal_seeds_give_equal_rankers(trained):
    model, examples, vectors = trained
    again, _, _ = train_ranker(examples, vectors, SMALL, seed=0)
    assert (scores(again, examples, vectors) == scores(model, examples, vectors)).all()


def test_examples_hold_what_was_retrieved():
    parts, vectors = make_parts([3, 60, 0, 1])
    rows = np.concatenate([part[0].rows for part in parts])
    taken = [
        rows[0, [2, 7]],
        np.array([10_000, 10_001]),
        np.array([rows[2, 0], 10_000]),
        rows[3, :1],
    ]
    later = [rows[0, 4:8], *[np.empty(0, np.int64)] * 3]
    examples = collect(parts, taken, later, np.array([5, 5, 6, 7]))
    assert (len(examples), examples.offered, examples.retrieved) == (4, 7, 4)
    C = rows.shape[1]
    wanted = np.zeros((4, C + 1), np.float32)
    wanted[0, [2, 7]] = wanted[2, [0, C]] = 0.5
    wanted[1, C] = wanted[3, 0] = 1
    np.testing.assert_array_equal(examples.targets, wanted)
    np.testing.assert_array_equal(examples.rows, rows)
    mask = examples.inputs["mask"]
    assert mask[0].nonzero()[0].tolist() == [0, 1, 2, 3, *range(7, C)]
    feeds = examples.batch(np.array([0]), vectors)
    original = parts[0][2]
    for name in ("user", "item", "pair", "lengths"):
        np.testing.assert_array_equal(feeds[name][0], original[name][0])
    L = original["history"].shape[1]
    np.testing.assert_array_equal(feeds["history"][0, :L], original["history"][0])
    np.testing.assert_array_equal(feeds["candidates"][0], original["candidates"][0])


def test_onnx_file_equals_torch_for_any_shape(trained, tmp_path):
    model, examples, vectors = trained
    feeds = examples.batch(np.arange(20), vectors)
    result = export_ranker(model, tmp_path, feeds, {"spec_hash": "x"}, 1e-3)
    assert result.max_difference < 1e-4
    assert [path.name for path in tmp_path.iterdir()] == [RANKER]
    ranker = OnnxRanker(OnnxModel(tmp_path / RANKER))
    for part in make_parts([0, 1, 60], seed=3)[0]:
        with torch.no_grad():
            wanted = model(*(torch.from_numpy(part[2][name]) for name in INPUTS)).numpy()
        found = ranker.score(part[2])
        np.testing.assert_allclose(found, wanted, atol=1e-4)
        assert np.isfinite(found).all()


def test_a_candidate_s_score_does_not_depend_on_padding(trained):
    model, examples, vectors = trained
    feeds = examples.batch(np.array([0]), vectors)
    tensors = {name: torch.from_numpy(feeds[name]) for name in INPUTS}
    with torch.no_grad():
        alone = model(**tensors)
        for name in ("item", "pair", "candidates", "mask"):
            shape = list(tensors[name].shape)
            shape[1] = 5
            tensors[name] = torch.cat([tensors[name], torch.zeros(shape)], dim=1)
        padded = model(**tensors)
    torch.testing.assert_close(padded[:, : alone.shape[1]], alone, rtol=1e-4, atol=1e-5)


def test_probabilities_hold_on_lists_that_were_not_learnt_from():
    examples, vectors = make_examples(400)
    half = np.arange(400) % 2 == 0
    missed = examples.targets.copy()
    missed[half] = 0
    missed[half, -1] = 1
    examples = dataclasses.replace(examples, targets=missed)
    config = SMALL.model_copy(update={"check_share": 0.25, "epochs": 4})
    model, curve, found = train_ranker(examples, vectors, config, seed=0)
    assert found is not None
    assert found.lists == 100
    assert found.listed_taken == pytest.approx(0.5, abs=0.1)
    assert found.listed_probability == pytest.approx(found.listed_taken, abs=0.1)
    assert found.error < 0.2
    likely = probabilities(scores(model, examples, vectors), examples.inputs["mask"])
    assert 0.4 < likely.sum(axis=1).mean() < 0.6
    assert curve[-1].ndcg_at_10 > curve[0].ndcg_at_10
