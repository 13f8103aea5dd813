"""Experiments: files, data found by name, a database of its own, seeds reused, results compared."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from features.database import connect
from features.errors import ConfigError, InputError
from features.store import read_interactions
from ranking.evaluation import dataset
from ranking.evaluation.bootstrap import Bootstrap
from ranking.evaluation.compare import compare
from ranking.evaluation.config import EvaluationConfig
from ranking.evaluation.experiment import Experiment, find_data, presets, read_experiment
from ranking.evaluation.result import EvaluationResult
from ranking.evaluation.runs import experiment_path, run_experiment
from ranking.evaluation.values import load_values
from ranking.release import ReleaseConfig
from ranking.training_config import CoarseConfig, FineConfig, TrainingConfig

QUICK = EvaluationConfig(resamples=40, latency_requests=2, examples=1)
LOOSE = ReleaseConfig(min_recall=0.5, check_users=5)
TINY = TrainingConfig(coarse=CoarseConfig(epochs=1), fine=FineConfig(epochs=1), further_epochs=0)


def write_shop(folder: Path, users: int = 24, items: int = 20) -> Path:
    """Write items and events whose ids are text; each user's events share two seconds."""
    folder.mkdir(parents=True)
    rows = [f"sku-{number},thing {number},kind{number % 3}" for number in range(items)]
    (folder / "items.csv").write_text("item_id,title,categories\n" + "\n".join(rows) + "\n")
    rng = np.random.default_rng(0)
    lines = ["user_id,item_id,occurred_at"]
    for user in range(users):
        for place, item in enumerate(rng.permutation(items)[:8].tolist()):
            lines.append(f"u{user},sku-{item},{1_700_000_000 + place // 4}")
    (folder / "interactions.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture
def shop(tmp_path):
    return dataset.data_set(write_shop(tmp_path / "shop"))


@pytest.fixture
def server(database_url, shop):
    yield database_url
    dataset.drop(database_url, shop)


def test_presets_are_valid_and_files_say_what_is_wrong(tmp_path):
    assert {"ml-1m", "ml-1m-small"} <= set(presets())
    for name in presets():
        assert read_experiment(name).name == name
    path = tmp_path / "mine.toml"
    path.write_text('name = "mine"\ndata = "shop"\nseeds = [1, 2]\n[training.coarse]\nepochs = 9\n')
    found = read_experiment(str(path))
    assert (found.seeds, found.training.coarse.epochs, found.protocol) == (
        (1, 2),
        9,
        "leave-last-out",
    )
    assert found.with_seeds("4, 5").seeds == (4, 5)
    for text in ("4,x", "4,4", ""):
        with pytest.raises(InputError, match="as in 7,8,9"):
            found.with_seeds(text)
    path.write_text('name = "../mine"\ndata = "shop"\n[training.coarse]\nepoch = 9\n')
    with pytest.raises(ConfigError, match=r"(?s)name.*training\.coarse\.epoch"):
        read_experiment(str(path))
    with pytest.raises(ConfigError, match=r"presets are .*ml-1m"):
        read_experiment("ml-2m")


def test_data_is_a_path_or_a_name_in_the_folder(tmp_path):
    write_shop(tmp_path / "data" / "shop")
    assert find_data("shop", tmp_path / "data") == tmp_path / "data" / "shop"
    assert find_data(str(tmp_path / "data"), tmp_path) == tmp_path / "data"
    with pytest.raises(InputError, match=r"evaluation\.data_folder"):
        find_data("shops", tmp_path / "data")


def test_other_contents_are_another_data_set(tmp_path, shop):
    same = dataset.data_set(write_shop(tmp_path / "copy"))
    assert same.fingerprint == shop.fingerprint
    with (tmp_path / "copy" / "interactions.csv").open("a") as stream:
        stream.write("u1,sku-1,1700000999\n")
    assert dataset.data_set(tmp_path / "copy").fingerprint != shop.fingerprint


def test_a_database_is_made_once_in_the_order_of_the_file_and_leaves_the_main_one_alone(
    server, shop
):
    wanted = [line.split(",") for line in (shop.path / "interactions.csv").read_text().split()[1:]]
    for _ in range(2):
        with dataset.opened(server, shop) as connection:
            found = read_interactions(connection)
            ids = dict(connection.execute("select item_key, item_id from items").fetchall())
            connection.rollback()
        # Events of one second stay in the order of the file.
        held: dict[str, list[str]] = {}
        for user, item in zip(found.user_keys.tolist(), found.item_keys.tolist(), strict=True):
            held.setdefault(found.user_ids[user], []).append(ids[item])
        for user, items in held.items():
            assert items == [item for of, item, _ in wanted if of == user]
    with connect(server) as main:
        assert main.execute("select count(*) from interactions").fetchone() == (0,)


def test_data_without_a_good_event_is_refused(server, tmp_path):
    (tmp_path / "bad").mkdir()
    (tmp_path / "bad" / "interactions.csv").write_text("user_id,item_id,occurred_at\nu,i,never\n")
    data = dataset.data_set(tmp_path / "bad")
    try:
        with (
            pytest.raises(InputError, match="no event could be loaded"),
            dataset.opened(server, data),
        ):
            pass
    finally:
        dataset.drop(server, data)


def test_an_experiment_trains_each_seed_once_and_two_results_are_paired(server, shop, tmp_path):
    home = tmp_path / "home"
    wanted = Experiment(name="one", data="shop", seeds=(3,), training=TINY)
    with dataset.opened(server, shop) as connection:
        first = run_experiment(connection, shop, wanted, home, LOOSE, QUICK)
        assert [run.trained for run in first.runs] == [True]
        # As if the run had been cut after its first seed.
        both = wanted.model_copy(update={"seeds": (3, 4)})
        result = run_experiment(connection, shop, both, home, LOOSE, QUICK)
        assert [run.trained for run in result.runs] == [False, True]
        other = wanted.model_copy(
            update={"name": "two", "training": TINY.model_copy(update={"trending_items": 5})}
        )
        run_experiment(connection, shop, other, home, LOOSE, QUICK)
        hidden = run_experiment(
            connection, shop, wanted, home, LOOSE,
            QUICK.model_copy(update={"hide_request_time": True}),
        )  # fmt: skip
    assert [run.trained for run in hidden.runs] == [False]
    assert hidden.request_gap_s == 0.0
    folder = experiment_path(home, "one", "leave-last-out").parent
    parts = [
        EvaluationResult.model_validate_json((folder / run.result).read_text())
        for run in result.runs
    ]
    figures = [part.models["ann"].metrics["hr_at_10"].mean for part in parts]
    spread = result.models["ann"]["hr_at_10"]
    assert spread.seeds == figures
    assert spread.mean == pytest.approx(np.mean(figures))
    assert spread.sd == pytest.approx(abs(figures[0] - figures[1]) / 2**0.5)
    assert result.models["popularity"]["ndcg_at_10"].sd == 0.0
    text = json.loads((folder / "leave-last-out.json").read_text())
    assert text["seeds"] == [3, 4]
    assert {"commit", "code", "spec_hash", "versions", "seconds", "config"} <= set(text)
    compared = compare(home, "one", "two", bootstrap=Bootstrap(resamples=40))
    assert compared.users == 24
    pair = next(p for p in compared.pairs if (p.model, p.metric) == ("fine", "ndcg_at_10"))
    values = [load_values(folder / run.values).of("fine", "ndcg_at_10") for run in result.runs]
    assert pair.a == pytest.approx(np.mean(values))
    assert pair.difference.mean == pytest.approx(pair.a - pair.b)
    popular = next(p for p in compared.pairs if (p.model, p.metric) == ("popularity", "hr_at_10"))
    assert (popular.difference.low, popular.difference.high) == (0.0, 0.0)
    with pytest.raises(InputError, match="run 'shortlist evaluate'"):
        compare(home, "one", "three")


@pytest.mark.parametrize(("text", "told"), [("x", "cannot be read"), ("{}", "is none")])
def test_a_file_that_is_no_result_is_named(tmp_path, text, told):
    path = tmp_path / "x.json"
    path.write_text(text)
    with pytest.raises(InputError, match=rf"x.json' {told}"):
        compare(tmp_path, str(path), str(path))
