"""Experiments on the command line: data of its own, several seeds, two results compared."""

from __future__ import annotations

import re
import time
from typing import TYPE_CHECKING

from rich.console import Group
from rich.markup import escape
from rich.text import Text

from serve.cli import context
from serve.cli.console import OUT, emit, progress, seconds, table

if TYPE_CHECKING:
    from rich.table import Table

    from ranking.evaluation.compare import Comparison
    from ranking.evaluation.config import EvaluationConfig
    from ranking.evaluation.experiment import Experiment
    from ranking.evaluation.summary import ExperimentResult, Spread
    from serve.config import Settings

COLUMNS = {
    "NDCG@10": "ndcg_at_10",
    "HR@10": "hr_at_10",
    "HR@50": "hr_at_50",
    "recall@100": "recall_at_100",
    "recall@200": "recall_at_200",
    "recall@500": "recall_at_500",
}
# What 80 columns have room for with its spread over seeds; the JSON has all.
SHOWN = ("NDCG@10", "HR@10", "recall@200", "recall@500")


def chosen(
    settings: Settings,
    config: str | None,
    data: str | None,
    protocol: str | None,
    seeds: str | None,
) -> Experiment:
    """Return the experiment of a file, or of the settings, with what options say instead."""
    from ranking.evaluation.experiment import Experiment, read_experiment

    if config is not None:
        found = read_experiment(config)
    else:
        assert data is not None
        name = re.sub(r"[^A-Za-z0-9._-]+", "-", data.rstrip("/").rpartition("/")[2]).lstrip("._-")
        found = Experiment(
            name=f"{name or 'data'}-settings",
            data=data,
            seeds=(settings.training.seed,),
            training=settings.training,
        )
    said = {"data": data, "protocol": protocol}
    found = found.model_copy(
        update={key: value for key, value in said.items() if value is not None}
    )
    return found if seeds is None else found.with_seeds(seeds)


def run(
    settings: Settings,
    experiment: Experiment,
    config: EvaluationConfig,
    fresh: bool,
    as_json: bool,
) -> None:
    """Run an experiment in a database of its own and print what it found."""
    from ranking.evaluation import dataset
    from ranking.evaluation.experiment import find_data
    from ranking.evaluation.runs import experiment_path, forget, run_experiment

    started = time.perf_counter()
    data = dataset.data_set(find_data(experiment.data, config.data_folder))
    with context.database(settings) as url, progress() as report:
        if fresh:
            forget(settings.home, experiment.name)
            dataset.drop(url, data)
        with dataset.opened(url, data, report) as connection:
            prepared = {"data": round(time.perf_counter() - started, 3)}
            result = run_experiment(
                connection,
                data,
                experiment,
                settings.home,
                settings.release,
                config,
                report,
                prepared,
            )
    if as_json:
        emit(result.model_dump(mode="json"))
        return
    OUT.print(experiment_table(result))
    path = experiment_path(
        settings.home, experiment.name, experiment.protocol, config.hide_request_time
    )
    OUT.print(f"result: {path}", soft_wrap=True)


def compare(
    settings: Settings,
    config: EvaluationConfig,
    names: tuple[str, str],
    protocol: str,
    as_json: bool,
) -> None:
    """Compare two results and print the differences."""
    from ranking.evaluation.bootstrap import Bootstrap
    from ranking.evaluation.compare import compare as compare_results

    bootstrap = Bootstrap(config.resamples, config.confidence, config.seed)
    found = compare_results(
        settings.home, *names, protocol, config.hide_request_time, bootstrap=bootstrap
    )
    if as_json:
        emit(found.model_dump(mode="json"))
    else:
        OUT.print(comparison_table(found))


def experiment_table(result: ExperimentResult) -> Group:
    """Return every model of an experiment: mean over seeds, and their standard deviation."""
    hidden = "" if result.request_gap_s is None else ", time of the request hidden"
    heading = (
        f"{result.experiment.name}: {result.protocol}{hidden}, {result.test_users:,} users, "
        f"{len(result.seeds)} seed{'s' if len(result.seeds) > 1 else ''}"
    )
    rows = table(heading, "model", *SHOWN, right=SHOWN)
    metrics = [COLUMNS[name] for name in SHOWN]
    cascade = ("ann", "coarse", "fine")
    for name in (*(name for name in result.models if name not in cascade), *cascade):
        cells = [_spread(result.models[name][metric]) for metric in metrics]
        style = "bold" if name in cascade else None
        rows.add_row(escape(result.labels[name]), *cells, style=style)
    took = ", ".join(f"{name} {seconds(value)}" for name, value in result.seconds.items())
    return Group(rows, Text(f"time: {took}", "dim"))


def _spread(value: Spread) -> str:
    return _short(value.mean) + ("" if value.sd != value.sd else f" [dim]±{_short(value.sd)}[/]")


def _short(value: float) -> str:
    return f"{value:.4f}".removeprefix("0")


def comparison_table(found: Comparison) -> Table:
    """Return A, B and their difference; a star marks an interval without zero."""
    heading = f"{found.a.name} (a) against {found.b.name} (b): {found.users:,} users"
    figures = ("a", "b", "a - b", "interval", "")
    rows = table(heading, "model", "metric", *figures, right=figures[:4])
    shown = {metric: name for name, metric in COLUMNS.items()}
    for pair in found.pairs:
        estimate = pair.difference
        rows.add_row(
            escape(pair.model),
            shown[pair.metric],
            f"{pair.a:.4f}",
            f"{pair.b:.4f}",
            f"{estimate.mean:+.4f}",
            f"{estimate.low:+.4f} to {estimate.high:+.4f}",
            "*" if estimate.low > 0 or estimate.high < 0 else "",
        )
    return rows
