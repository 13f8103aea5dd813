import numpy as np
import pytest
import torch
from worlds import make_histories, make_items, mean_tower

from features.spec import names
from ranking.fine.examples import Examples, collect, held_back
from ranking.fine.export import RANKER, export_ranker
from ranking.fine.inputs import ranker_inputs
from ranking.fine.model import Ranker, RankerConfig
from ranking.fine.ranker import OnnxRanker
from ranking.fine.train import INPUTS, FineConfig, train_ranker
from ranking.onnx_model import OnnxModel
from ranking.retrieval.retriever import RetrievalConfig, Retriever
from ranking.retrieval.sequence import EventLog

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
    return collect(parts, labels, later), vectors


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
    assert (scores(model, examples, vectors).argmax(axis=1) == examples.labels).mean() > 0.9


def test_untrained_ranker_repeats_the_coarse_order():
    examples, vectors = make_examples(4)
    torch.manual_seed(0)
    model, _ = train_ranker(collect_nothing(), vectors, SMALL, 0)
    with torch.no_grad():
        model.out.weight.zero_()
    found = scores(model, examples, vectors)
    assert (np.argsort(-found, axis=1, kind="stable") == np.arange(found.shape[1])).all()


def collect_nothing() -> Examples:
    parts, _ = make_parts([2, 2])
    missed = np.array([10_000, 10_000])
    nothing = collect(parts, missed, [np.empty(0, np.int64)] * 2)
    assert (len(nothing), nothing.offered) == (0, 2)
    return nothing


def test_equal_seeds_give_equal_rankers(trained):
    model, examples, vectors = trained
    again, _ = train_ranker(examples, vectors, SMALL, seed=0)
    assert (scores(again, examples, vectors) == scores(model, examples, vectors)).all()


def test_examples_hold_what_was_retrieved():
    parts, vectors = make_parts([3, 60, 0, 1])
    rows = np.concatenate([part[0].rows for part in parts])
    labels = rows[:, 2].copy()
    labels[1] = 10_000
    later = [rows[0, 4:6], *[np.empty(0, np.int64)] * 3]
    examples = collect(parts, labels, later)
    assert (len(examples), examples.offered) == (3, 4)
    assert examples.labels.tolist() == [2, 2, 2]
    np.testing.assert_array_equal(examples.rows, rows[[0, 2, 3]])
    mask = examples.inputs["mask"]
    assert mask[0].nonzero()[0].tolist() == [0, 1, 2, 3, *range(6, rows.shape[1])]
    feeds = examples.batch(np.array([0]), vectors)
    original = parts[0][2]
    for name in ("user", "item", "pair", "lengths"):
        np.testing.assert_array_equal(feeds[name][0], original[name][0])
    L = original["history"].shape[1]
    np.testing.assert_array_equal(feeds["history"][0, :L], original["history"][0])
    np.testing.assert_array_equal(feeds["candidates"][0], original["candidates"][0])


def test_held_back_events_are_the_latest_and_leave_a_history():
    n = 20 + 4 + 1
    log = EventLog(
        rows=np.zeros(n, np.int64),
        times=np.zeros(n),
        offsets=np.array([0, 20, 24, 25]),
        items=1,
        values=np.zeros(n, np.float32),
        positions=np.arange(n),
    )
    held = held_back(log, events=3, share=0.25)
    assert held.nonzero()[0].tolist() == [17, 18, 19, 23]


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
