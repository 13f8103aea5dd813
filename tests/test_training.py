import json
from typing import Any

import numpy as np
import onnx
import pytest
from fixtures_database import Connection

from features.errors import InputError
from features.spec import spec_hash
from ranking.fine.model import RankerConfig
from ranking.fine.train import FineConfig
from ranking.retrieval.model import TowerConfig
from ranking.retrieval.train import CoarseConfig
from ranking.training import TrainingConfig, train

FILES = {
    "ease.npy",
    "ease_weights.npy",
    "id_vectors.npy",
    "item_keys.npy",
    "item_tower.onnx",
    "item_vectors.npy",
    "neighbour_scores.npy",
    "neighbours.npy",
    "ranker.onnx",
    "training.json",
    "trending.npy",
    "trending_scores.npy",
    "user_tower.onnx",
}
START = 1_000_000_000


def config(**more: Any) -> TrainingConfig:
    return TrainingConfig(
        threads=1,
        coarse=CoarseConfig(tower=TowerConfig(width=8), epochs=2, batch_events=256),
        fine=FineConfig(ranker=RankerConfig(hidden=8, attention_width=4), epochs=2),
        **more,
    )


def fill(connection: Connection, items: int, histories: list[list[int]]) -> None:
    with connection.cursor() as cursor:
        cursor.execute("insert into event_types (event_type) values ('view')")
        for row in range(items):
            cursor.execute(
                "insert into items (item_id, title, categories, attributes, created_at)"
                " values (%s, 'title', %s, %s, to_timestamp(%s))",
                (f"i{row}", [f"c{row % 3}"], json.dumps({"year": 1990 + row}), START - 10),
            )
        for user, history in enumerate(histories):
            cursor.execute("insert into users (user_id) values (%s)", (f"u{user}",))
            for place, row in enumerate(history):
                cursor.execute(
                    "insert into interactions"
                    " (event_id, user_key, item_key, event_type_key, value, occurred_at)"
                    " select %s, user_key, item_key, event_type_key, null, to_timestamp(%s)"
                    " from users, items, event_types where user_id = %s and item_id = %s",
                    (f"{user}-{place}", START + 60 * place, f"u{user}", f"i{row}"),
                )
    connection.commit()


def read(run: Any) -> dict[str, Any]:
    found = json.loads((run / "training.json").read_text())
    assert {path.name for path in run.iterdir()} == FILES
    for name in FILES:
        if name.endswith(".npy"):
            array = np.load(run / name, allow_pickle=False)
            assert array.dtype.kind == "i" or np.isfinite(array).all()
        if name.endswith(".onnx"):
            stored = {p.key: p.value for p in onnx.load(run / name).metadata_props}
            assert stored == {"run": found["run"], "spec_hash": spec_hash()}
    return found


def test_a_world_of_cycles(connection, tmp_path):
    histories = [[(user + step) % 20 for step in range(12)] for user in range(30)]
    fill(connection, 21, histories)
    calls: list[tuple[str, int, int, str]] = []
    run = train(connection, config(), tmp_path, lambda *call: calls.append((*call, "")[:4]))
    found = read(run)
    assert run.parent == tmp_path / "models"
    assert [path.name for path in run.parent.iterdir()] == [run.name] == [found["run"]]
    assert (found["items"], found["users"], found["events"]) == (21, 30, 30 * 11)
    assert found["events_in_database"] == 30 * 12
    assert found["labels"] == 60
    assert 0 < found["labels_retrieved"] <= 60
    assert found["holdout"] == "last"
    assert TrainingConfig.model_validate(found["config"]) == config()
    assert set(found["seconds"]) == {"read", "towers", "lists", "ranker", "export"}
    assert {step for step, *_ in calls} >= {"train: towers", "train: lists", "train: ranker"}
    neighbours = np.load(run / "neighbours.npy")
    assert neighbours[3, 0] == 4
    assert (neighbours[20] == -1).all()
    assert np.load(run / "trending.npy")[-1] == 20
    again = train(connection, config(), tmp_path)
    for name in ("item_vectors.npy", "neighbour_scores.npy", "trending_scores.npy"):
        assert (np.load(run / name) == np.load(again / name)).all()
    for name in ("user_tower.onnx", "ranker.onnx"):
        assert weights(run / name) == weights(again / name)


def random_histories(users: int, items: int) -> list[list[int]]:
    rng = np.random.default_rng(0)
    return [rng.permutation(items)[: rng.integers(5, 13)].tolist() for _ in range(users)]


def learnt(run: Any, but: tuple[str, ...] = ()) -> dict[str, Any]:
    """Everything in a run that came out of events."""
    found: dict[str, Any] = {
        name: np.load(run / name).tobytes() for name in FILES if name.endswith(".npy")
    }
    found |= {name: weights(run / name) for name in FILES if name.endswith(".onnx")}
    return {name: value for name, value in found.items() if name not in but}


LAST = (
    "select distinct on (user_key) interaction_id from interactions"
    " order by user_key, occurred_at desc, interaction_id desc"
)
CUT = START + 60 * 6


@pytest.mark.parametrize(
    ("holdout", "held_out"),
    [
        ("last", LAST),
        (
            float(CUT),
            f"select interaction_id from interactions where occurred_at >= to_timestamp({CUT})",
        ),
    ],
)
def test_held_out_events_leave_no_trace(connection, tmp_path, holdout, held_out):
    """The held-out events become others, then vanish: what was learnt stays the same, bit by bit.

    But for the ranker of "last": its lists count, as of their moments, what others had done by
    then, and that may be somebody's last event.
    """
    fill(connection, 30, random_histories(40, 30))
    but = ("ranker.onnx",) if holdout == "last" else ()
    first = learnt(train(connection, config(holdout=holdout), tmp_path), but)
    learnt_from_all = learnt(train(connection, config(holdout="none"), tmp_path), but)
    assert all(learnt_from_all[name] != first[name] for name in first if name != "item_keys.npy")
    connection.execute(
        "update interactions set item_key = 1 + (item_key + 7) % 30, value = 5"
        f" where interaction_id in ({held_out})"
    )
    connection.commit()
    assert learnt(train(connection, config(holdout=holdout), tmp_path), but) == first
    connection.execute(f"delete from interactions where interaction_id in ({held_out})")
    connection.commit()
    # Without its last event a user has another last one, which must not be held out now.
    rest = "none" if holdout == "last" else holdout
    assert learnt(train(connection, config(holdout=rest), tmp_path), but) == first


def weights(path: Any) -> list[bytes]:
    graph = onnx.load(path).graph
    return sorted(
        onnx.numpy_helper.to_array(initializer).tobytes() for initializer in graph.initializer
    )


def test_three_events_in_all(connection, tmp_path):
    fill(connection, 2, [[0, 1], [1]])
    found = read(train(connection, config(), tmp_path))
    assert (found["events"], found["labels"]) == (2, 0)


def test_one_event_of_one_user(connection, tmp_path):
    fill(connection, 1, [[0]])
    assert read(train(connection, config(), tmp_path))["events"] == 1


def test_holdouts(connection, tmp_path):
    fill(connection, 4, [[0, 1, 2, 3], [1, 2]])
    cut = read(train(connection, config(holdout=START + 120.0), tmp_path))
    assert (cut["holdout"], cut["events"]) == (START + 120.0, 4)
    with pytest.raises(InputError, match="0 of 6 events with holdout 5"):
        train(connection, config(holdout=5.0), tmp_path)
    assert not list((tmp_path / "models").glob(".training-*"))


def test_empty_catalogue(connection, tmp_path):
    with pytest.raises(InputError, match="shortlist load"):
        train(connection, config(), tmp_path)


def test_items_without_events(connection, tmp_path):
    fill(connection, 3, [])
    with pytest.raises(InputError, match="0 of 0 events"):
        train(connection, config(holdout="none"), tmp_path)


def test_a_killed_training_goes_on_and_leaves_nothing_behind(connection, tmp_path):
    """Killed in the last training of the towers, after lists and ranker; stale files are around."""
    fill(connection, 21, [[(user + step) % 20 for step in range(12)] for user in range(30)])
    stale = tmp_path / "models" / ".checkpoint-of-another-config"
    stale.mkdir(parents=True)
    (tmp_path / "models" / ".training-of-a-killed-process").mkdir()
    trained: list[str] = []

    class Killed(BaseException):
        pass

    def kill(step: str, done: int, total: int, detail: str = "") -> None:
        if step not in trained:
            trained.append(step)
        if step == "train: towers" and "train: ranker" in trained and detail.startswith("pass 2/"):
            raise Killed

    with pytest.raises(Killed):
        train(connection, config(), tmp_path, kill)
    kept = {path.name for path in (tmp_path / "models").iterdir()}
    assert stale.name in kept
    assert not list((tmp_path / "models").glob("*/training.json"))
    calls: list[tuple[str, str]] = []
    run = train(
        connection,
        config(),
        tmp_path,
        lambda step, done, total, detail="": calls.append((step, detail)),
    )
    passes = {(step, detail.partition(":")[0].partition(";")[0]) for step, detail in calls}
    assert {(step, place) for step, place in passes if place} == {("train: towers", "pass 2/2")}
    assert [path.name for path in run.parent.iterdir()] == [run.name]
    whole = train(connection, config(), tmp_path / "another")
    assert learnt(run) == learnt(whole)
    curves = read(run)["curves"]
    assert {name: [line["pass"] for line in curve] for name, curve in curves.items()} == {
        "towers": [1, 2],
        "towers, all events": [1, 2],
        "ranker": [1, 2],
    }
    assert all(0 <= line["ndcg_at_10"] <= 1 for line in curves["towers"])
    assert all(line["ndcg_at_10"] is None for line in curves["towers, all events"])
    assert read(run)["validation_events"] == 30


def test_what_was_kept_is_of_this_config_and_data_alone(connection, tmp_path):
    fill(connection, 21, [[(user + step) % 20 for step in range(12)] for user in range(30)])

    class Killed(BaseException):
        pass

    def first_detail(wanted: TrainingConfig) -> str:
        def kill(step: str, done: int, total: int, detail: str = "") -> None:
            if detail.startswith("pass 2/"):
                raise Killed
            if detail:
                details.append(detail)

        details: list[str] = []
        with pytest.raises(Killed):
            train(connection, wanted, tmp_path, kill)
        return details[0] if details else "pass 2"

    assert first_detail(config()).startswith("pass 1/")
    assert first_detail(config()) == "pass 2"
    assert first_detail(config(seed=8)).startswith("pass 1/")
    connection.execute("update interactions set value = 4 where interaction_id = 7")
    connection.commit()
    assert first_detail(config()).startswith("pass 1/")
