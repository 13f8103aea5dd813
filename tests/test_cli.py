"""The command line: help, errors that say what to do, and the database's life."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from serve.cli.app import app

Run = Callable[..., subprocess.CompletedProcess[str]]

COMMANDS = [
    "demo",
    "db",
    "db start",
    "db stop",
    "db url",
    "db apply",
    "load",
    "features",
    "features refresh",
    "features check",
    "features skew",
    "train",
    "release",
    "release build",
    "release list",
    "release promote",
    "release rollback",
    "evaluate",
    "serve",
    "recommend",
    "loadtest",
    "bench",
    "bench serve",
]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    folder = tmp_path_factory.mktemp("home")
    yield folder
    shortlist(folder, "db", "stop")


@pytest.fixture
def run(home: Path) -> Run:
    return lambda *arguments, **options: shortlist(home, *arguments, **options)


def shortlist(home: Path, *arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {k: v for k, v in os.environ.items() if not k.startswith("SHORTLIST_")}
    return subprocess.run(
        [sys.executable, "-m", "serve.cli", *arguments],
        capture_output=True,
        text=True,
        env={**environment, "SHORTLIST_HOME": str(home), "COLUMNS": "80", **variables},
        timeout=120,
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_has_an_example_and_fits(command: str) -> None:
    result = CliRunner(env={"COLUMNS": "80"}).invoke(app, [*command.split(), "--help"])
    assert result.exit_code == 0, result.output
    assert max(map(len, result.stdout.splitlines())) <= 80
    if command not in ("db", "features", "release", "bench"):
        example = "psql" if command == "db url" else f"shortlist {command}"
        assert f"Example: {example}" in " ".join(result.stdout.split())


def test_help_is_quick_and_loads_nothing_heavy(home: Path) -> None:
    code = (
        "import sys, serve.cli.app;"
        "print([m for m in ('torch', 'faiss', 'onnxruntime', 'ray', 'locust', 'altair')"
        " if m in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.stdout == "[]\n", result.stderr


@pytest.mark.parametrize(
    ("arguments", "variables", "said"),
    [
        (["db", "url"], {}, "start it with 'shortlist db start'"),
        (["load", "/nonexistent"], {}, "/nonexistent"),
        (["release", "rollback"], {}, "release"),
        (["release", "promote", "nothing"], {}, "nothing"),
        (["evaluate"], {}, "shortlist release build"),
        (["recommend", "1", "--url", "http://127.0.0.1:1"], {}, "start one with 'shortlist serve'"),
        (["recommend", "1", "--url", "file:///etc/passwd"], {}, "expected http://HOST:PORT"),
        (["db", "url"], {"SHORTLIST_HOEM": "x"}, "did you mean"),
        (
            ["db", "apply"],
            {"SHORTLIST_DATABASE_URL": "postgresql://u:secret@127.0.0.1:1/x"},
            "SHORTLIST_DATABASE",
        ),
    ],
)
def test_errors_say_what_to_do(
    run: Run, arguments: list[str], variables: dict[str, str], said: str
) -> None:
    result = run(*arguments, **variables)
    assert result.returncode == 1
    assert result.stderr.startswith("error: ") or "\nerror: " in result.stderr
    assert said in result.stderr
    assert "Traceback" not in result.stderr
    assert "secret" not in result.stderr


def test_an_unexpected_error_is_logged(tmp_path: Path) -> None:
    code = (
        "from serve.cli import app;"
        "app.app.command('break')(lambda: 1 / 0);"
        "import sys; sys.argv = ['shortlist', 'break']; app.run()"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, "SHORTLIST_HOME": str(tmp_path)},
    )
    assert result.returncode == 1
    assert "unexpected error: ZeroDivisionError: division by zero" in result.stderr
    assert "Traceback" not in result.stderr
    (log,) = (tmp_path / "logs").glob("error-*.log")
    assert "Traceback" in log.read_text()
    assert str(log) in result.stderr


def test_usage_errors_exit_with_2(run: Run) -> None:
    assert run("loadtest", "--users", "0").returncode == 2
    assert run("nonsense").returncode == 2


def data_set(folder: Path) -> Path:
    folder.mkdir()
    (folder / "movies.csv").write_text(
        "movieId,title,genres\n1,Heat (1995),Action|Crime\n2,Alien (1979),Horror\n"
    )
    (folder / "ratings.csv").write_text(
        "userId,movieId,rating,timestamp\n7,1,5,100\n7,2,x,101\n8,2,4,102\n8,99,4,103\n"
    )
    return folder


def test_the_database_step_by_step(run: Run, home: Path, tmp_path: Path) -> None:
    loaded = run("load", str(data_set(tmp_path / "data")), "--json")
    assert loaded.returncode == 0, loaded.stderr
    report = json.loads(loaded.stdout)
    assert (report["users"], report["items"], report["interactions"]) == (2, 2, 2)
    assert [(row["line"], row["column"]) for row in report["rejects"]] == [
        (3, "rating"),
        (5, "item"),
    ]
    # A command that started the server stops it; `db start` keeps it.
    assert servers(home) == []
    url = json.loads(run("db", "start", "--json").stdout)["url"]
    assert run("db", "url").stdout == url + "\n"
    assert json.loads(run("db", "apply", "--json").stdout) == {"applied": []}
    again = run("load", str(tmp_path / "data"))
    assert "0 users, 0 items, 0 interactions" in again.stdout
    assert "ratings.csv: was loaded whole before" in again.stderr
    forced = run("load", str(tmp_path / "data"), "--again")
    assert "0 users, 0 items, 0 interactions" in forced.stdout
    assert "ratings.csv:3 rating" in forced.stderr
    assert f"all of them: {home}/rejects/data.csv" in forced.stderr
    refreshed = run("features", "refresh", "--json")
    assert json.loads(refreshed.stdout)["seconds"]["item_totals"] >= 0
    assert not json.loads(run("features", "refresh", "--json").stdout)["full"]
    assert json.loads(run("features", "refresh", "--full", "--json").stdout)["full"]
    dropped = json.loads(run("db", "retain", "--days", "92", "--json").stdout)
    assert dropped["counts"]["interactions"] == 2
    erased = json.loads(run("db", "erase", "8", "--json").stdout)
    assert erased["id"] == "8"
    assert erased["rows"]["users"] == 1
    assert set(json.loads(run("db", "erase", "8", "--json").stdout)["rows"].values()) == {0}
    checks = run("features", "check", "--json")
    assert checks.returncode == 0, checks.stdout
    assert all(row["passed"] for row in json.loads(checks.stdout))
    assert servers(home) != []
    assert run("db", "stop").returncode == 0
    assert servers(home) == []


def test_the_last_command_to_leave_stops_the_server(run: Run, home: Path) -> None:
    code = (
        "import sys, time; from serve.cli import context;"
        "c = context.database(context.settings()); c.__enter__();"
        "print('in', flush=True); sys.stdin.readline(); c.__exit__(None, None, None)"
    )
    environment = {**os.environ, "SHORTLIST_HOME": str(home)}
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=environment,
    ) as first:
        assert first.stdout is not None
        assert first.stdout.readline() == "in\n"
        assert run("db", "apply").returncode == 0
        assert servers(home) != []
        first.communicate("\n", timeout=60)
    assert servers(home) == []


def servers(home: Path) -> list[int]:
    """Return the pids of the database processes that work in `home`, once they settled."""
    found: list[int] = []
    for _ in range(20):
        found = []
        for process in psutil.process_iter(["name", "cwd"]):
            if process.info["name"] == "postgres" and str(home) in str(process.info["cwd"]):
                found.append(process.pid)
        if not found:
            break
        time.sleep(0.05)
    return found
