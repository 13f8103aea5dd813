"""The HTML report of an evaluation: one file, no script, nothing loaded from elsewhere."""

from __future__ import annotations

from importlib import resources
from pathlib import Path

import jinja2

from ranking.evaluation import charts
from ranking.evaluation.bootstrap import Estimate
from ranking.evaluation.result import CURVE, EvaluationResult

TITLES = {
    "ndcg_at_10": "NDCG@10",
    "hr_at_10": "hit rate@10",
    "hr_at_50": "hit rate@50",
    "mrr": "MRR",
    "novelty_at_10": "novelty (bits)",
    "diversity_at_10": "diversity",
} | {f"recall_at_{k}": f"recall@{k}" for k in CURVE}


def write_report(result: EvaluationResult, path: Path) -> Path:
    """Write the report of `result` to `path`, replacing it at once.

    Parameters
    ----------
    result : EvaluationResult
    path : Path
        The HTML file; its folder is made when missing.

    Returns
    -------
    Path
        `path`.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(path.name + ".part")
    partial.write_text(render(result), encoding="utf-8")
    return partial.replace(path)


def render(result: EvaluationResult) -> str:
    """Return the report as an HTML document."""
    environment = jinja2.Environment(
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=jinja2.FunctionLoader(_template),
    )
    environment.filters["interval"] = _interval
    environment.filters["number"] = _number
    environment.filters["percent"] = lambda value: f"{value:.1%}" if value == value else "n/a"
    shown = [name for name in charts.MODEL_ORDER if name in result.models]
    figures = {name: result.models[name] for name in shown}
    ranked = [part for part in result.differences if part.metric == "ndcg_at_10"]
    retrieved = [part for part in result.differences if part.metric == "recall_at_200"]
    return environment.get_template("report.html.j2").render(
        r=result,
        models=figures,
        titles=TITLES,
        headline=headline(result),
        cold_warm=[part for part in result.slices if part.kind in ("users", "items")],
        drawings={
            "ndcg": charts.accuracy(result, "ndcg_at_10", "NDCG@10"),
            "hr": charts.accuracy(result, "hr_at_10", "hit rate@10"),
            "ranked": charts.differences(ranked, figures) if ranked else "",
            "retrieved": charts.differences(retrieved, figures) if retrieved else "",
            "recall": charts.recall_curve(result),
            "latency": charts.waterfall(result) if result.timing_ms else "",
            "history": _sliced(result, "history", "ndcg_at_10"),
            "training_events": _sliced(result, "training_events", "recall_at_200"),
        },
    )


def headline(result: EvaluationResult) -> str:
    """Return the finding in one sentence, which says so when the cascade does not win."""
    fine = result.models["fine"].metrics["ndcg_at_10"].mean
    against = [
        part for part in result.differences if part.metric == "ndcg_at_10" and part.model == "fine"
    ]
    if not against:
        return f"The cascade reaches NDCG@10 {fine:.4f}."
    closest = min(against, key=lambda part: part.estimate.mean)
    name = result.models[closest.other].label
    gain = f"{closest.relative:+.0%}" if closest.relative == closest.relative else "from zero"
    if all(part.estimate.low > 0 for part in against):
        return f"The full cascade beats everything it was compared with: {gain} over {name}."
    if closest.estimate.high < 0:
        return f"{name} ranks better than the full cascade here ({gain} for the cascade)."
    return f"The full cascade and {name} cannot be told apart on these users ({gain})."


def _sliced(result: EvaluationResult, kind: str, metric: str) -> str:
    found = [part for part in result.slices if part.kind == kind]
    return charts.slices(found, result.models, metric) if found else ""


def _template(name: str) -> str:
    return resources.files(__package__).joinpath("templates", name).read_text(encoding="utf-8")


def _number(value: float, digits: int = 4) -> str:
    return f"{value:.{digits}f}" if value == value else "n/a"


def _interval(estimate: Estimate, digits: int = 4) -> str:
    return f"{_number(estimate.low, digits)} to {_number(estimate.high, digits)}"
