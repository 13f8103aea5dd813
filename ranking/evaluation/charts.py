"""Charts of the evaluation report, as inline SVG that follows the page's light or dark theme.

Altair draws with stand-in colours; in the SVG each one becomes a CSS variable of the page, so
one picture serves both themes and needs neither script nor network.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

import altair as alt
import vl_convert

from ranking.evaluation.result import CURVE, Difference, EvaluationResult, ModelFigures, Slice

MODEL_ORDER = (
    "fine",
    "coarse",
    "ann",
    "item_to_item",
    "ease",
    "ials",
    "popularity_recent",
    "popularity",
)
_INK, _SOFT, _GRID = "#010101", "#020202", "#030303"
_COLOURS = {name: f"#0a0b{number:02x}" for number, name in enumerate(MODEL_ORDER)}
_STAGE_COLOURS = [f"#0c0d{number:02x}" for number in range(6)]
_VARIABLES = (
    {_INK: "ink", _SOFT: "soft", _GRID: "grid"}
    | {colour: name.replace("_", "-") for name, colour in _COLOURS.items()}
    | {colour: f"stage-{number}" for number, colour in enumerate(_STAGE_COLOURS)}
)
_HALF, _WIDE = 330, 470
"""Width in px of the plot itself in half, and in three fifths, of a section of the page."""


def _svg(chart: alt.LayerChart, title: str) -> str:
    # The renderer measures text in its own font; the padding is for pages with a wider one.
    padding = {"left": 24, "right": 34, "top": 6, "bottom": 6}
    spec = (
        chart.properties(padding=padding)
        .configure(background="transparent", font="system-ui, sans-serif")
        .configure_view(stroke=None)
        .configure_axis(
            labelColor=_SOFT,
            titleColor=_SOFT,
            gridColor=_GRID,
            domainColor=_GRID,
            tickColor=_GRID,
            labelFontSize=12,
            titleFontSize=12,
            titleFontWeight="normal",
            labelLimit=220,
        )
        .configure_axisX(tickCount=5)
        .configure_text(fontSize=12)
        .to_dict()
    )
    svg = vl_convert.vegalite_to_svg(spec)
    svg = re.sub(
        r'"(#0[0-9a-f]{5})"',
        lambda match: f'"var(--{_VARIABLES[match[1]]})"' if match[1] in _VARIABLES else match[0],
        svg,
    )
    # Every chart numbers its clip paths from 1, and ids count for the whole page.
    prefix = re.sub(r"\W+", "-", title.lower())
    svg = re.sub(r"(url\(#| id=\")clip", rf"\g<1>{prefix}-clip", svg)
    return svg.replace("<svg ", f'<svg role="img" aria-label="{title}" ', 1)


def _models(models: Mapping[str, ModelFigures]) -> list[str]:
    return [name for name in MODEL_ORDER if name in models]


def _colour(names: Sequence[str], field: str = "model") -> alt.Color:
    return alt.Color(
        f"{field}:N",
        scale=alt.Scale(domain=list(names), range=[_COLOURS[name] for name in names]),
        legend=None,
    )


def accuracy(result: EvaluationResult, metric: str, title: str) -> str:
    """Return bars of one metric for every model, with intervals and values."""
    names = _models(result.models)
    rows = [
        {
            "model": name,
            "label": result.models[name].label,
            "mean": result.models[name].metrics[metric].mean,
            "low": result.models[name].metrics[metric].low,
            "high": result.models[name].metrics[metric].high,
            "text": f"{result.models[name].metrics[metric].mean:.4f}",
        }
        for name in names
    ]
    y = alt.Y("label:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False))
    base = alt.Chart(alt.InlineData(values=rows))
    chart = (
        base.mark_bar(height=18, cornerRadiusEnd=3, opacity=0.85).encode(
            x=alt.X("mean:Q", title=title), y=y, color=_colour(names)
        )
        + base.mark_rule(stroke=_INK, strokeWidth=1.5).encode(x="low:Q", x2="high:Q", y=y)
        + base.mark_text(align="left", dx=6, fill=_INK, fontWeight="bold").encode(
            x="high:Q", y=y, text="text:N"
        )
    ).properties(width=_HALF, height=32 * len(names))
    return _svg(chart, f"{title} of every model with 95% intervals")


def differences(found: Sequence[Difference], models: Mapping[str, ModelFigures]) -> str:
    """Return a forest plot of paired differences: an interval right of zero is a gain."""
    rows = [
        {
            "label": f"vs {models[part.other].label}",
            "other": part.other,
            "mean": part.estimate.mean,
            "low": part.estimate.low,
            "high": part.estimate.high,
            "text": f"{part.estimate.mean:+.4f}"
            + (f"  ({part.relative:+.0%})" if part.relative == part.relative else ""),
        }
        for part in sorted(found, key=lambda part: MODEL_ORDER.index(part.other))
    ]
    others = _models({part.other: models[part.other] for part in found})
    y = alt.Y("label:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False))
    base = alt.Chart(alt.InlineData(values=rows))
    zero = alt.Chart(alt.InlineData(values=[{"zero": 0}]))
    chart = (
        zero.mark_rule(stroke=_SOFT, strokeDash=[4, 3]).encode(x="zero:Q")
        + base.mark_rule(strokeWidth=3).encode(
            x=alt.X("low:Q", title=f"gain in {found[0].metric.replace('_', ' ')}"),
            x2="high:Q",
            y=y,
            color=_colour(others, "other"),
        )
        + base.mark_point(filled=True, size=90, opacity=1).encode(
            x="mean:Q", y=y, color=_colour(others, "other")
        )
        + base.mark_text(align="left", dx=9, fill=_INK).encode(x="high:Q", y=y, text="text:N")
    ).properties(width=_HALF - 40, height=34 * len(rows))
    return _svg(chart, f"Gains of {found[0].model} in {found[0].metric} with 95% intervals")


def recall_curve(result: EvaluationResult) -> str:
    """Return recall over the length of the list, one line a model, intervals as bands."""
    names = _models(result.models)
    rows = [
        {
            "model": name,
            "label": result.models[name].label,
            "k": k,
            "recall": result.models[name].metrics[f"recall_at_{k}"].mean,
            "low": result.models[name].metrics[f"recall_at_{k}"].low,
            "high": result.models[name].metrics[f"recall_at_{k}"].high,
        }
        for name in names
        for k in CURVE
    ]
    ends = _spread([row for row in rows if row["k"] == CURVE[-1]])
    bands = [row for row in rows if result.models[str(row["model"])].stage == "cascade"]
    x = alt.X(
        "k:Q",
        scale=alt.Scale(type="log", domain=[CURVE[0], CURVE[-1]]),
        axis=alt.Axis(values=list(CURVE), grid=False, format="d"),
        title="length of the list (log scale)",
    )
    base = alt.Chart(alt.InlineData(values=rows))
    chart = (
        alt.Chart(alt.InlineData(values=bands))
        .mark_area(opacity=0.14)
        .encode(x=x, y="low:Q", y2="high:Q", color=_colour(names))
        + base.mark_line(strokeWidth=2.2).encode(
            x=x,
            y=alt.Y("recall:Q", title="recall of the test items", axis=alt.Axis(format=".0%")),
            color=_colour(names),
        )
        + base.mark_point(filled=True, size=26, opacity=1).encode(
            x=x, y="recall:Q", color=_colour(names)
        )
        + alt.Chart(alt.InlineData(values=ends))
        .mark_text(align="left", dx=10, fontWeight="bold")
        .encode(x=x, y="place:Q", text="label:N", color=_colour(names))
    ).properties(width=_WIDE, height=360)
    return _svg(chart, "Recall over the length of the list")


def _spread(ends: Sequence[Mapping[str, Any]], gap: float = 0.05) -> list[dict[str, Any]]:
    """Move the labels at the ends of lines apart, so that none covers another."""
    top = max((float(row["recall"]) for row in ends), default=1.0) or 1.0
    ordered = sorted(ends, key=lambda row: -float(row["recall"]))
    places = [float(row["recall"]) for row in ordered]
    for below in range(1, len(places)):
        places[below] = min(places[below], places[below - 1] - gap * top)
    # Labels that fell below the axis push the others up again.
    for above in range(len(places) - 1, -1, -1):
        lowest = places[above + 1] + gap * top if above + 1 < len(places) else 0.0
        places[above] = max(places[above], lowest)
    return [{**row, "place": place} for row, place in zip(ordered, places, strict=True)]


def slices(found: Sequence[Slice], models: Mapping[str, ModelFigures], metric: str) -> str:
    """Return one dot a model and slice with its interval."""
    names = _models(models)
    rows = [
        {
            "slice": f"{part.label} (n = {part.users})",
            "model": name,
            "label": models[name].label,
            "mean": part.metrics[name][metric].mean,
            "low": part.metrics[name][metric].low,
            "high": part.metrics[name][metric].high,
        }
        for part in found
        for name in names
    ]
    y = alt.Y("slice:N", sort=None, title=None, axis=alt.Axis(ticks=False, grid=True))
    offset = alt.YOffset("model:N", sort=names)
    base = alt.Chart(alt.InlineData(values=rows))
    chart = (
        base.mark_rule(strokeWidth=1.6, opacity=0.6).encode(
            x=alt.X("low:Q", title=metric.replace("_", " ")),
            x2="high:Q",
            y=y,
            yOffset=offset,
            color=_colour(names),
        )
        + base.mark_point(filled=True, size=46, opacity=1).encode(
            x="mean:Q", y=y, yOffset=offset, color=_colour(names)
        )
    ).properties(width=_HALF, height=(11 * len(names) + 12) * len(found))
    return _svg(chart, f"{metric} by slice")


def waterfall(result: EvaluationResult) -> str:
    """Return the median of each stage one after the other, with its 99th percentile."""
    rows, start = [], 0.0
    for number, (stage, part) in enumerate(result.timing_ms.items()):
        rows.append(
            {
                "stage": stage,
                "start": start,
                "end": start + part.p50,
                "tail": start + part.p99,
                "text": f"{part.p50:.2f} ms",
                "colour": _STAGE_COLOURS[number % len(_STAGE_COLOURS)],
            }
        )
        start += part.p50
    y = alt.Y("stage:N", sort=None, title=None, axis=alt.Axis(ticks=False, domain=False))
    base = alt.Chart(alt.InlineData(values=rows))
    chart = (
        base.mark_rule(stroke=_SOFT, strokeWidth=1).encode(x="end:Q", x2="tail:Q", y=y)
        + base.mark_tick(color=_SOFT, thickness=1.5, height=9).encode(x="tail:Q", y=y)
        + base.mark_bar(height=20, cornerRadius=2).encode(
            x=alt.X("start:Q", title="milliseconds (bar: median, whisker: 99th percentile)"),
            x2="end:Q",
            y=y,
            color=alt.Color("colour:N", scale=None),
        )
        + base.mark_text(align="left", dx=6, fill=_INK, fontWeight="bold").encode(
            x="tail:Q", y=y, text="text:N"
        )
    ).properties(width=_WIDE, height=36 * len(rows))
    return _svg(chart, "Where the milliseconds of one request go")
