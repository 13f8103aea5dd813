"""The evaluation job: a release, a protocol, a JSON file and an HTML report.

``shortlist evaluate --protocol leave-last-out`` calls this; see docs/evaluation.md.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args

from features.errors import ConfigError, InputError
from features.store import read_interactions
from ranking.evaluation.config import EvaluationConfig
from ranking.evaluation.measurement import measure
from ranking.evaluation.report import write_report
from ranking.evaluation.result import EvaluationResult
from ranking.evaluation.values import save_values
from ranking.protocols import (
    ProtocolName,
    Split,
    hide_request_time,
    leave_last_out,
    time_cut,
    time_split,
)
from ranking.release import (
    Release,
    build_release,
    current_release,
    load_release,
    open_pipeline,
    release_path,
)
from ranking.types import Progress

if TYPE_CHECKING:
    import psycopg

    from features.store import Interactions

__all__ = ["EvaluationConfig", "evaluate", "report_path", "result_path", "values_path"]


def result_path(
    home: Path, release: str, protocol: str = "leave-last-out", hidden: bool = False
) -> Path:
    """Return where the JSON file of an evaluation is written.

    Parameters
    ----------
    home : Path
    release, protocol : str
    hidden : bool
        Whether the moment of the request was hidden.
    """
    return home / "reports" / f"{release}-{protocol}{'-hidden-time' if hidden else ''}.json"


def report_path(
    home: Path, release: str, protocol: str = "leave-last-out", hidden: bool = False
) -> Path:
    """Return where the HTML report of an evaluation is written."""
    return result_path(home, release, protocol, hidden).with_suffix(".html")


def values_path(result: Path) -> Path:
    """Return where the values of each user of a result are written."""
    return result.with_suffix(".npz")


def evaluate(
    connection: psycopg.Connection[Any],
    home: Path,
    release: str,
    protocol: str = "leave-last-out",
    config: EvaluationConfig | None = None,
    progress: Progress | None = None,
    baselines: Path | None = None,
) -> EvaluationResult:
    """Evaluate a release and write the result and the report.

    A time split needs models that saw nothing after the cut. If the release was trained with
    a cut, that one is used; else models are trained as the release's were, up to the moment
    that the config's share asks for, and kept in ``home/time-split`` for the next time. They
    are never served, and the result names their release.

    Parameters
    ----------
    connection : psycopg.Connection
        Connection of :func:`features.database.connect`; features are refreshed.
    home : Path
        Holds ``releases`` and ``reports``.
    release : str
        Id of a release.
    protocol : {"leave-last-out", "time-split"}
    config : EvaluationConfig, optional
    progress : callable, optional
        Called as ``progress(step, done, total)``.
    baselines : Path, optional
        Folder in which the lists of baselines are kept for the next release.

    Returns
    -------
    EvaluationResult

    Raises
    ------
    InputError
        If the protocol is unknown, the release was trained on what it would be tested on, or
        no user can be tested.
    ReleaseError
        If the release is unknown or damaged.
    """
    config = config or EvaluationConfig()
    if protocol not in get_args(ProtocolName):
        raise InputError(
            f"protocol {protocol!r}: expected one of {', '.join(get_args(ProtocolName))}"
        )
    found = load_release(release_path(home, release))
    interactions = _known_to(found, read_interactions(connection))
    if protocol == "leave-last-out":
        split = _leave_last_out(found, interactions)
    else:
        found, split = _time_split(connection, home, found, interactions, config, progress)
    if config.hide_request_time:
        split = hide_request_time(interactions, split)
    measured = measure(
        connection, open_pipeline(found), interactions, split, config, progress, baselines
    )
    result = measured.result
    path = result_path(home, release, protocol, config.hide_request_time)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_report(result, path.with_suffix(".html"))
    save_values(measured.values, values_path(path))
    partial = path.with_name(path.name + ".part")
    partial.write_text(result.model_dump_json(indent=2) + "\n", encoding="utf-8")
    partial.replace(path)
    return result


def _known_to(release: Release, interactions: Interactions) -> Interactions:
    """Return the events that the database had when the release was trained.

    An older event that arrived since could make one that was learnt from the user's last one.
    """
    last = release.training.get("last_interaction")
    if not isinstance(last, int):
        raise InputError(
            f"release {release.id} does not say on which events it was trained: expected "
            f"last_interaction in training.json. Run 'shortlist train', then 'shortlist release "
            "build'"
        )
    known = interactions.interaction_ids <= last
    return replace(
        interactions,
        user_keys=interactions.user_keys[known],
        item_keys=interactions.item_keys[known],
        interaction_ids=interactions.interaction_ids[known],
        values=interactions.values[known],
        times=interactions.times[known],
    )


def _leave_last_out(release: Release, interactions: Interactions) -> Split:
    holdout = release.training.get("holdout")
    if holdout != "last":
        raise InputError(
            f"release {release.id} was trained with holdout {holdout!r}: leave-last-out would test "
            "on events that it has seen; expected 'last'. Run 'shortlist train --holdout last', "
            "then 'shortlist release build'"
        )
    return leave_last_out(interactions)


def _time_split(
    connection: psycopg.Connection[Any],
    home: Path,
    release: Release,
    interactions: Interactions,
    config: EvaluationConfig,
    progress: Progress | None,
) -> tuple[Release, Split]:
    holdout = release.training.get("holdout")
    if isinstance(holdout, (int, float)):
        return release, time_split(interactions, cut=float(holdout))
    cut = time_cut(interactions.times, config.test_share)
    split = time_split(interactions, cut=cut)
    apart = home / "time-split"
    known = current_release(apart)
    if known is not None:
        kept = load_release(release_path(apart, known))
        if _same_training(kept, release, cut):
            return kept, split
    try:
        from ranking.training import train
        from ranking.training_config import TrainingConfig
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"time-split trains models up to the cut, which needs the package {error.name!r}; "
            "next: pip install -c constraints.txt -e '.[cpu,train]'"
        ) from None
    wanted = TrainingConfig.model_validate({**release.training["config"], "holdout": cut})
    run = train(connection, wanted, apart, progress)
    built = build_release(connection, run, apart, release.config, progress)
    return load_release(release_path(apart, built)), split


def _same_training(kept: Release, release: Release, cut: float) -> bool:
    """Whether `kept` is what training like `release` up to `cut` would give."""
    wanted = {**release.training["config"], "holdout": cut}
    return bool(kept.training["config"] == wanted) and kept.config == release.config
