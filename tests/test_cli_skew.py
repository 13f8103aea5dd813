"""`shortlist features skew` on the command line."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
from served_answers import serve
from typer.testing import CliRunner, Result

from features.served import ServedSample
from features.spec import names
from serve.cli.app import app


@pytest.fixture(autouse=True)
def wide(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "80")


def skew(url: str, *arguments: str) -> Result:
    return CliRunner(env={"SHORTLIST_DATABASE_URL": url}).invoke(
        app, ["features", "skew", *arguments]
    )


def raised(sample: ServedSample) -> ServedSample:
    user = sample.user_features.copy()
    user[names("user").index("user_events")] += 1
    return replace(sample, user_features=user)


def test_no_difference_is_success(sample_url: str) -> None:
    assert "no answer was sampled" in skew(sample_url).output
    serve(sample_url, ["1", "2"])
    told = skew(sample_url)
    assert told.exit_code == 0, told.output
    assert "2 sampled answers" in told.output
    assert all(name in told.output for name in (*names("user"), *names("item"), *names("cross")))
    assert skew(sample_url, "--since", "2999-01-01").output.count("user_events ") == 1
    assert json.loads(skew(sample_url, "--since", "2999-01-01", "--json").stdout)["answers"] == 0


def test_a_difference_is_shown_and_fails(sample_url: str) -> None:
    serve(sample_url, ["1"], change=raised)
    told = skew(sample_url)
    assert told.exit_code == 1
    assert "user_events: served 21, computed again 20" in " ".join(told.output.split())
    found = json.loads(skew(sample_url, "--json").stdout)
    assert (found["answers"], found["differing"]) == (1, 1)
    row = found["features"][0]
    assert (row["feature"], row["compared"], row["differing"]) == ("user_events", 1, 1)
    assert row["largest"] == 1
    assert row["example"]["served"] - row["example"]["recomputed"] == 1


def test_a_missing_value_is_null_in_json(sample_url: str) -> None:
    def missing(sample: ServedSample) -> ServedSample:
        return replace(sample, user_features=np.full_like(sample.user_features, np.nan))

    serve(sample_url, ["1"], change=missing)
    row = json.loads(skew(sample_url, "--json").stdout)["features"][0]
    assert (row["differing"], row["largest"], row["example"]["served"]) == (1, None, None)
    assert row["example"]["recomputed"] == 20
    assert "served nan, computed again 20" in " ".join(skew(sample_url).output.split())
