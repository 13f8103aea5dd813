"""Tables: they fit into 80 columns, say what they should, and survive odd titles."""

from __future__ import annotations

import io
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console, RenderableType

from serve.cli.console import Steps, progress, seconds, table
from serve.cli.tables import BAR, liked_table, recommended_table, waterfall


def shown(renderable: RenderableType) -> list[str]:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    console.print(renderable)
    text = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    return [line.rstrip() for line in text.splitlines()]


def answer(title: str) -> dict[str, Any]:
    sources = [{"name": "ann", "rank": 3, "score": 0.5}, {"name": "trending", "rank": 0}]
    return {
        "items": [
            {"id": "i1", "score": 0.81234, "sources": sources, "fields": {"title": title}},
            {"id": "pinned", "score": None, "sources": []},
        ],
        "notes": [{"code": "cold_start", "detail": "nothing is known"}],
    }


def test_recommended() -> None:
    lines = shown(recommended_table(answer("Heat"), "u[1]"))
    assert lines[0] == "Recommended to user u[1]"
    assert lines[2].split() == ["1", "Heat", "0.812", "trending", "1,", "ann", "4"]
    assert lines[3].split() == ["2", "pinned"]
    assert lines[4] == "cold_start: nothing is known"


@given(
    st.lists(st.sampled_from(["ann", "item_to_item", "trending", "new_items"]), unique=True),
    st.lists(st.integers(0, 499), min_size=4, max_size=4),
    st.sampled_from([3, 40]),
)
def test_a_place_is_shown_whole_or_not_at_all(
    names: list[str], ranks: list[int], width: int
) -> None:
    hits = [{"name": n, "rank": r, "score": 1} for n, r in zip(names, ranks, strict=False)]
    item = {"id": "x" * width, "score": 1.234, "sources": hits}
    line = shown(recommended_table({"items": [item], "notes": []}, "1"))[2]
    places = {f"{hit['name']} {hit['rank'] + 1}" for hit in hits}
    told = [part for part in line.partition("1.234")[2].strip().split(", ") if part]
    assert set(told) <= places | {"…"}
    assert ("…" in told) == (len(told) - ("…" in told) < len(places))


@given(st.text(alphabet=st.characters(blacklist_categories=["Cs", "Cc"]), max_size=200))
def test_any_title_fits(title: str) -> None:
    for line in shown(recommended_table(answer(title), "1")) + shown(
        liked_table("1", [(title, 4.5), (title, None)])
    ):
        assert len(line) <= 80


@given(st.lists(st.floats(0, 1000), min_size=1, max_size=9), st.floats(0.9, 1.2))
def test_waterfall_bars_follow_each_other(times: list[float], unexplained: float) -> None:
    stages = {f"stage{number}": took for number, took in enumerate(times)}
    total = sum(times) * unexplained
    lines = shown(waterfall(stages, total, "Stages"))[2:]
    assert len(lines) == len(times) + 1
    for line in lines:
        assert len(line) <= 80
    starts = [len(line) - len(line.rstrip("█▏▎▍▌▋▊▉")) for line in lines[:-1]]
    assert all(1 <= width <= BAR + 1 for width in starts)
    assert "stages explain" in lines[-1]


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.04, "0.0 s"), (9.94, "9.9 s"), (9.96, "10 s"), (59.4, "59 s"), (59.6, "1:00 min"),
     (185, "3:05 min")],
)  # fmt: skip
def test_seconds(value: float, text: str) -> None:
    assert seconds(value) == text


def test_steps_without_a_terminal_are_lines() -> None:
    console = Console(file=io.StringIO(), width=80, highlight=False)
    steps = Steps(console)
    with steps("train", "Both stages") as report:
        report("towers", 1, 2)
        report("ranker", 0, 0)
    steps.skip("load", "The sample")
    with pytest.raises(ValueError, match="boom"), steps("serve", "Ray"):
        raise ValueError("boom")
    text = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    assert [line[:13] for line in text.splitlines()] == ["✓ Both stages", "✓ The sample ", "✗ Ray"]
    assert set(steps.seconds) == {"train", "load"}
    assert "\x1b" not in text


def test_bars_on_a_terminal_leave_nothing_but_the_step() -> None:
    console = Console(file=io.StringIO(), width=80, force_terminal=True, highlight=False)
    with progress(console, "Training") as report:
        for done in range(3):
            report("towers", done, 3)
        report("ranker", 0, 0)
    text = console.file.getvalue()  # type: ignore[attr-defined]  # the StringIO above
    assert "towers" in text
    assert "ranker" in text


def test_a_heading_may_be_wider_than_its_table() -> None:
    rows = table("A heading that is long", "a", right=("a",))
    rows.add_row("1")
    assert shown(rows)[0] == "A heading that is long"
