import re
from html.parser import HTMLParser

import numpy as np
import pytest

from ranking.evaluation import charts, comparison, report
from ranking.evaluation.bootstrap import Bootstrap
from ranking.evaluation.comparison import TestSet
from ranking.evaluation.result import (
    AnnRecall,
    EvaluationResult,
    Example,
    ExampleItem,
    ModelFigures,
    Percentiles,
)

LABELS = {
    "fine": "Coarse + fine",
    "coarse": "Coarse",
    "ann": "Two towers (ANN)",
    "item_to_item": "Item-to-item",
    "ease": "EASE",
    "popularity_recent": "Recent popularity",
    "popularity": "Popularity",
}
TITLE = "<script>alert('Alien & \"Aliens\"')</script>"


def made_up_result(users=120, items=600, seed=0, names=tuple(LABELS)):
    """A result over lists that are better the earlier their name stands in LABELS."""
    rng = np.random.default_rng(seed)
    relevant = rng.integers(0, items, size=(users, 1))
    lists = {}
    for number, name in enumerate(names):
        ranked = np.stack([rng.permutation(items)[:500] for _ in range(users)])
        for user in np.flatnonzero(rng.random(users) < 0.9 - 0.1 * number):
            place = min(int(rng.exponential(6 + 9 * number)), 499)
            ranked[user] = np.where(ranked[user] == relevant[user, 0], -1, ranked[user])
            ranked[user, place] = relevant[user, 0]
        lists[name] = ranked
    test = TestSet(
        relevant=relevant,
        history_lengths=rng.integers(1, 300, size=users),
        item_users=rng.geometric(0.03, size=items) - 1,
        users=users,
        vectors=rng.normal(size=(items, 8)).astype(np.float32),
    )
    bootstrap = Bootstrap(resamples=200)
    values = comparison.accuracies(lists, relevant)
    metrics = comparison.estimates(lists, values, test, bootstrap)
    coverage = comparison.coverages(lists, items)
    pairs = [("ndcg_at_10", "fine", other) for other in names[1:]]
    pairs += [("recall_at_200", "coarse", other) for other in names[2:]]
    stages = {"user_state": 0.2, "retrieve": 0.5, "features": 0.1, "rank": 0.8, "rerank": 0.05}
    return EvaluationResult(
        created="2026-12-01T09:30:12+00:00",
        release="2026-12-01T09-30-12-4f1c",
        protocol="leave-last-out",
        seed=0,
        resamples=200,
        confidence=0.95,
        users=users,
        items=items,
        interactions=5000,
        training_events=5000 - users,
        test_users=users,
        test_events=users,
        skipped={"single_event": 3, "repeated": 0},
        cut=None,
        coarse_recall_at_200=metrics.get("coarse", metrics["fine"])["recall_at_200"].mean,
        ann_recall_at_200=0.993,
        ndcg_at_10={name: metrics[name]["ndcg_at_10"].mean for name in names},
        hr_at_10={name: metrics[name]["hr_at_10"].mean for name in names},
        models={
            name: ModelFigures(
                label=LABELS[name],
                stage="cascade" if name in ("fine", "coarse", "ann") else "baseline",
                settings="made up",
                metrics=metrics[name],
                coverage_at_10=coverage[name],
            )
            for name in names
        },
        differences=comparison.differences(values, bootstrap, pairs),
        slices=comparison.slices(lists, values, test, bootstrap),
        ann=AnnRecall(k=200, recall=0.993, index="flat", queries=users),
        sources={"ann": 0.61, "item_to_item": 0.44, "trending": 0.2, "new": 0.02},
        timing_ms={s: Percentiles(p50=t, p95=2 * t, p99=3 * t) for s, t in stages.items()},
        total_ms=Percentiles(p50=1.7, p95=3.1, p99=4.4),
        latency_queries=300,
        examples=[
            Example(
                user_id=f"u{n}",
                history=[TITLE, "Blade Runner", "Alien", "Brazil"],
                held_out=["Metropolis"],
                places=[n + 1] if n % 2 == 0 else [],
                recommended=[
                    ExampleItem(
                        title="Metropolis" if place == n else f"Film {n}{place}",
                        score=0.9 - 0.1 * place,
                        sources=["ann", "item_to_item"] if place % 2 else ["trending"],
                        hit=place == n and n % 2 == 0,
                    )
                    for place in range(6)
                ],
            )
            for n in range(6)
        ],
        seconds={"baselines": 1.2, "pipeline": 8.0},
        machine="2 cores, Linux",
    )


class Tags(HTMLParser):
    """Collects tags and addresses and checks that what opens closes."""

    void = frozenset({"meta", "br", "line", "path", "rect"})

    def __init__(self):
        super().__init__()
        self.open, self.seen, self.addresses = [], set(), []

    def handle_starttag(self, tag, attrs):
        self.seen.add(tag)
        self.addresses += [value for name, value in attrs if name in ("src", "href", "xlink:href")]
        if tag not in self.void:
            self.open.append(tag)

    def handle_endtag(self, tag):
        if tag not in self.void:
            assert self.open.pop() == tag


@pytest.fixture(scope="module")
def page():
    return report.render(made_up_result())


def test_the_page_is_whole_and_loads_nothing(page):
    tags = Tags()
    tags.feed(page)
    assert tags.open == []
    assert "script" not in tags.seen
    assert tags.addresses == []
    assert not re.search(r"url\((?!#)|@import", page)
    assert page.count("<svg") == 8
    names = re.findall(r' id="([^"]+)"', page)
    assert len(names) == len(set(names))
    assert set(re.findall(r"url\(#([^)]+)\)", page)) <= set(names)


def test_titles_are_escaped(page):
    assert "<script>" not in page
    assert "&lt;script&gt;" in page


def test_every_colour_of_a_chart_follows_the_theme(page):
    assert not re.search(r'"#0[0-9a-f]{5}"', page)
    for variable in set(re.findall(r"var\(--([\w-]+)\)", page)):
        assert f"--{variable}:" in page


def test_the_headline_names_the_closest_rival_and_is_honest():
    result = made_up_result()
    assert "beats everything it was compared with" in report.headline(result)
    turned = [
        part.model_copy(update={"estimate": type(part.estimate)(-0.1, -0.2, -0.05)})
        for part in result.differences
    ]
    worse = result.model_copy(update={"differences": turned})
    assert "ranks better than the full cascade" in report.headline(worse)
    unsure = [
        part.model_copy(update={"estimate": type(part.estimate)(0.01, -0.02, 0.03)})
        for part in result.differences
    ]
    tie = result.model_copy(update={"differences": unsure})
    assert "cannot be told apart" in report.headline(tie)


def test_a_single_user_and_no_examples(tmp_path):
    result = made_up_result(users=1).model_copy(update={"examples": [], "timing_ms": {}})
    path = report.write_report(result, tmp_path / "new" / "report.html")
    assert "Where do the milliseconds go" in path.read_text(encoding="utf-8")
    assert [file.name for file in path.parent.iterdir()] == ["report.html"]


def test_a_result_survives_its_json_file():
    result = made_up_result(users=1)
    # One user with one hit has no relative difference to a model without any: null in JSON.
    again = EvaluationResult.model_validate_json(result.model_dump_json())
    assert again.model_dump_json() == result.model_dump_json()


def test_labels_at_the_ends_of_lines_keep_their_distance():
    ends = [{"label": str(n), "recall": value} for n, value in enumerate([0.9, 0.9, 0.01, 0, 0.91])]
    places = sorted(row["place"] for row in charts._spread(ends))
    assert min(np.diff(places)) >= 0.05 * 0.91 - 1e-9
    assert places[0] >= 0
    order = [row["label"] for row in sorted(charts._spread(ends), key=lambda row: -row["place"])]
    assert order == ["4", "0", "1", "2", "3"]
