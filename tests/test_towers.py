import numpy as np
import pytest
import torch
from training_worlds import ITEMS, attributes, walks
from worlds import make_histories, make_items

from features.errors import ReleaseError
from ranking.onnx_export import parity
from ranking.onnx_model import OnnxModel
from ranking.retrieval.batches import batches, collate, windows_of
from ranking.retrieval.export import USER_TOWER, export_item_tower, export_user_tower
from ranking.retrieval.initial import initial_vectors
from ranking.retrieval.loss import Seen, full_softmax, sampled_softmax
from ranking.retrieval.model import TowerConfig, TwoTower
from ranking.retrieval.sequence import TOWER_EVENTS, EventLog, tower_inputs
from ranking.retrieval.train import train_towers
from ranking.training_config import CoarseConfig
from ranking.types import Histories

SMALL = TowerConfig(width=8, layers=2, heads=2)


@pytest.fixture(scope="module")
def trained() -> TwoTower:
    torch.set_num_threads(1)
    config = CoarseConfig(tower=SMALL, epochs=15, batch_events=128, learning_rate=0.01)
    return train_towers(walks(), attributes(), config, seed=1)[0]


def vectors_of(model: TwoTower) -> np.ndarray:
    with torch.no_grad():
        return model.item_vectors().numpy()


def user_vectors(model: TwoTower, histories: Histories) -> np.ndarray:
    feeds = tower_inputs(histories, vectors_of(model))
    with torch.no_grad():
        return model.users(*map(torch.from_numpy, feeds.values())).numpy()


def test_learns_what_comes_next(trained):
    histories = Histories(
        rows=np.array([[4, 5, 6], [38, 39, -1]]),
        values=np.full((2, 3), 3.0, np.float32),
        times=np.array([[0.0, 60, 120], [0, 60, 0]]),
        lengths=np.array([3, 2]),
        now=np.array([180.0, 120.0]),
    )
    scores = user_vectors(trained, histories) @ vectors_of(trained).T
    assert 7 in np.argsort(-scores[0])[:5]
    assert 0 in np.argsort(-scores[1])[:5]


def test_last_position_is_that_of_training_and_ignores_padding(trained):
    items = make_items(ITEMS)
    histories = make_histories(items, [0, 1, 4, 9])
    vectors = torch.from_numpy(vectors_of(trained))
    feeds = {k: torch.from_numpy(v) for k, v in tower_inputs(histories, vectors.numpy()).items()}
    with torch.no_grad():
        last = trained.users(**feeds)
        every = trained.users.every_position(feeds["history"], feeds["values"], feeds["log_gaps"])
        wanted = every[torch.arange(4), feeds["lengths"]]
        alone = trained.users(
            feeds["history"][2:3, :4],
            feeds["values"][2:3, :4],
            feeds["log_gaps"][2:3, :4],
            feeds["lengths"][2:3],
        )
    torch.testing.assert_close(last, wanted, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(last[2:3], alone, rtol=1e-4, atol=1e-5)


def test_a_new_event_changes_the_vector(trained):
    histories = make_histories(make_items(ITEMS), [5])
    before = user_vectors(trained, histories)
    histories.rows[0, -1] = (histories.rows[0, -1] + 1) % ITEMS
    assert np.abs(user_vectors(trained, histories) - before).max() > 1e-3


def test_odd_inputs_give_finite_vectors(trained):
    histories = make_histories(make_items(ITEMS), [0, 3, TOWER_EVENTS // 4])
    histories.values[1] = np.nan
    histories.values[2, 0] = 1e30
    histories.times[2] = 1e12
    histories.rows[1, 1] = -1
    assert np.isfinite(user_vectors(trained, histories)).all()


def test_new_item_has_a_vector_from_attributes(trained):
    with torch.no_grad():
        new = trained.items(torch.from_numpy(attributes()[:1]), torch.zeros(1, 8))
    assert np.isfinite(new.numpy()).all()
    assert new.abs().sum() > 0


def test_onnx_files_equal_torch_for_any_batch_and_length(trained, tmp_path):
    vectors, item_parity = export_item_tower(trained, tmp_path, {"run": "r"}, 1e-3)
    histories = make_histories(make_items(ITEMS), [0, 7, 3])
    result = export_user_tower(trained, tmp_path, histories, vectors, {"run": "r"}, 1e-3)
    assert max(item_parity.max_difference, result.max_difference) < 1e-4
    assert result.values == 3 * 8
    model = OnnxModel(tmp_path / USER_TOWER)
    for lengths in ([0], [1], [30, 2, 0, 11, 5]):
        histories = make_histories(make_items(ITEMS), lengths)
        feeds = tower_inputs(histories, vectors)
        found = model.run(feeds)[0]
        np.testing.assert_allclose(found, user_vectors(trained, histories), atol=1e-4)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "item_tower.onnx",
        "user_tower.onnx",
    ]
    with pytest.raises(ReleaseError, match="at most 1e-12"):
        parity(trained.users, tmp_path / USER_TOWER, feeds, 1e-12)


def test_equal_seeds_give_equal_towers():
    config = CoarseConfig(tower=SMALL, epochs=1, batch_events=128)
    one, two, other = (train_towers(walks(), attributes(), config, seed)[0] for seed in (3, 3, 4))
    assert (vectors_of(one) == vectors_of(two)).all()
    assert (vectors_of(one) != vectors_of(other)).any()


def test_progress_reaches_its_total():
    calls = []
    config = CoarseConfig(tower=SMALL, epochs=2, batch_events=128)
    train_towers(walks(), attributes(), config, 0, progress=lambda *call: calls.append(call))
    # The end of a pass says once more where it is, with the figures of the pass.
    assert sorted({done for _, done, _, _ in calls}) == list(range(1, calls[-1][2] + 1))
    assert calls[-1][1] == calls[-1][2]
    assert calls[-1][3].startswith("pass 2/2: loss ")


def test_sampled_softmax_learns_too():
    config = CoarseConfig(
        tower=SMALL,
        epochs=15,
        batch_events=128,
        learning_rate=0.01,
        full_softmax_items=0,
        negatives=32,
    )
    model, _ = train_towers(walks(), attributes(), config, seed=1)
    histories = Histories(
        rows=np.array([[4, 5, 6]]),
        values=np.full((1, 3), 3.0, np.float32),
        times=np.array([[0.0, 60, 120]]),
        lengths=np.array([3]),
        now=np.array([180.0]),
    )
    scores = user_vectors(model, histories) @ vectors_of(model).T
    assert 7 in np.argsort(-scores[0])[:5]


@pytest.mark.parametrize("logits", [1, 25, 1000])
def test_full_softmax_and_its_gradients_are_those_of_cross_entropy(logits, monkeypatch):
    monkeypatch.setattr("ranking.retrieval.loss._LOGITS", logits)  # blocks of 1, 2 and all rows
    torch.manual_seed(0)
    targets = torch.randint(0, 11, (6,))
    found, wanted = [], []
    for loss, out in ((full_softmax, found), (None, wanted)):
        torch.manual_seed(1)
        users = torch.randn(6, 5, requires_grad=True)
        items = torch.randn(11, 5, requires_grad=True)
        value = (
            loss(users, items, targets)
            if loss
            else torch.nn.functional.cross_entropy(users @ items.T, targets)
        )
        (2 * value).backward()
        out.extend([value.detach(), users.grad, items.grad])
    for one, other in zip(found, wanted, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("logits", [1, 25, 1000])
def test_what_a_user_has_had_is_no_negative(logits, monkeypatch):
    monkeypatch.setattr("ranking.retrieval.loss._LOGITS", logits)
    torch.manual_seed(0)
    rows = torch.tensor([3, 3, 0, 9, 5, 5])
    starts, stops = torch.tensor([0, 0, 0, 2, 4]), torch.tensor([0, 3, 4, 4, 6])
    targets = torch.tensor([1, 0, 3, 10, 5])  # the second, third and last are had again
    users, items = torch.randn(5, 4, requires_grad=True), torch.randn(11, 4, requires_grad=True)
    hidden = torch.zeros(5, 11, dtype=torch.bool)
    for place, seen in enumerate([[], [3], [0, 9], [0, 9], []]):
        hidden[place, seen] = True
    wanted = torch.nn.functional.cross_entropy(
        (users @ items.T).masked_fill(hidden, -torch.inf), targets
    )
    found = full_softmax(users, items, targets, Seen(rows, starts, stops))
    torch.testing.assert_close(found, wanted)
    for one, other in zip(
        torch.autograd.grad(found, (users, items)),
        torch.autograd.grad(wanted, (users, items)),
        strict=True,
    ):
        torch.testing.assert_close(one, other)


def test_each_target_comes_with_all_that_its_user_had_before():
    length = 3 * TOWER_EVENTS
    log = walks(users=4, length=length)
    windows = windows_of(log)
    found = []
    for index in batches(windows, 500, np.random.default_rng(0)):
        batch = collate(log, windows, index, torch.device("cpu"))
        assert (batch.starts % length == 0).all()
        assert (batch.stops - batch.starts < length).all()
        torch.testing.assert_close(batch.targets, torch.from_numpy(log.rows)[batch.stops])
        assert int(batch.known.sum()) == len(batch.targets)
        found.extend(batch.stops.tolist())
    # One event is lost at each place where a history was cut in two.
    assert len(found) == len(set(found)) == len(log.rows) - 4 * 2


def test_sampled_softmax_estimates_the_full_one():
    torch.manual_seed(0)
    users, items = torch.randn(20, 5), 0.5 * torch.randn(50, 5)
    targets = torch.randint(0, 50, (20,))
    proposal = torch.softmax(torch.randn(50), 0)
    sampled = sampled_softmax(users, items, targets, proposal, 20_000)
    # The positive counts once in both; the sample leaves out only its own draws.
    torch.testing.assert_close(sampled, full_softmax(users, items, targets), rtol=0.03, atol=0.03)


@pytest.mark.parametrize(
    ("rows", "offsets", "items"),
    [([0], [0, 1], 1), ([0], [0, 1], 2), ([0, 1, 0], [0, 3], 2), ([0, 0], [0, 1, 2], 5)],
)
def test_tiny_logs_train(rows, offsets, items):
    n = len(rows)
    log = EventLog(
        rows=np.array(rows),
        times=np.zeros(n),
        offsets=np.array(offsets),
        items=items,
        values=np.full(n, np.nan, np.float32),
        positions=np.arange(n),
    )
    model, _ = train_towers(
        log, np.ones((items, 1), np.float32), CoarseConfig(tower=SMALL, epochs=2), 0
    )
    assert np.isfinite(vectors_of(model)).all()


def test_long_histories_are_cut_into_windows():
    n = 3 * TOWER_EVENTS
    rows = np.arange(n) % ITEMS
    log = EventLog(
        rows, np.arange(n) * 1.0, np.array([0, n]), ITEMS, np.ones(n, np.float32), np.arange(n)
    )
    model, _ = train_towers(log, attributes(), CoarseConfig(tower=SMALL, epochs=1), 0)
    assert np.isfinite(vectors_of(model)).all()


def test_items_held_by_the_same_sequences_start_close():
    vectors = initial_vectors(walks(), 8, 0.06, 0)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    near = [float(unit[row] @ unit[(row + 1) % ITEMS]) for row in range(ITEMS)]
    far = [float(unit[row] @ unit[(row + ITEMS // 2) % ITEMS]) for row in range(ITEMS)]
    assert np.mean(near) > np.mean(far) + 0.5
    assert vectors.std() == pytest.approx(0.06, rel=0.2)
