"""The list of windows is a setting: read once a process, refused when wrong, right for any."""

import os
import random
import subprocess
import sys
import tomllib
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from refresh_history import add_answer, add_event
from slow_partials import differences

from features.errors import ConfigError, SchemaError
from features.refresh import refresh
from features.schema import apply, sql_files
from features.settings import WINDOWS_VARIABLE, windows_days
from features.spec import WINDOWS_DAYS, spec_hash
from serve.config import load_settings
from serve.ray_environment import Instance, ray_environment

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("SHORTLIST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def run(*command, windows):
    """Run Python in a process with these windows."""
    return subprocess.run(
        [sys.executable, *command],
        env={
            **os.environ,
            WINDOWS_VARIABLE: windows,
            "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "tests"))),
        },
        capture_output=True,
        text=True,
        check=False,
    )


def test_variable_then_file_then_default(monkeypatch):
    assert windows_days() == (1, 7, 30, 90)
    Path("shortlist.toml").write_text("[features]\nwindows_days = [2, 5]\n")
    assert windows_days() == (2, 5)
    monkeypatch.setenv(WINDOWS_VARIABLE, "[3650]")
    assert windows_days() == (3650,)


@pytest.mark.parametrize(
    "value", ["[]", "[0]", "[3651]", "[7, 1]", "[7, 7]", "[1.0]", "[true]", '["1"]', "7"]
)
def test_a_wrong_list_is_refused(monkeypatch, value):
    Path("shortlist.toml").write_text(f"[features]\nwindows_days = {value}\n")
    expected = r"from 1 to 3650, ascending, such as \[1, 7, 30, 90\]"
    with pytest.raises(ConfigError, match=r"setting 'features\.windows_days' is .*" + expected):
        windows_days()
    monkeypatch.setenv(WINDOWS_VARIABLE, value)
    with pytest.raises(ConfigError, match=f"variable {WINDOWS_VARIABLE} is .*{expected}"):
        windows_days()


def test_nine_windows_and_no_list_are_refused(monkeypatch):
    for value in (str(list(range(1, 10))), "", "1,7"):
        monkeypatch.setenv(WINDOWS_VARIABLE, value)
        with pytest.raises(ConfigError, match="expected 1 to 8 different whole numbers"):
            windows_days()


def test_the_command_line_says_what_is_wrong():
    found = run("-m", "serve.cli", "db", "url", windows="[7, 1]")
    assert found.returncode == 1
    assert f"error: environment variable {WINDOWS_VARIABLE} is [7, 1]: expected" in found.stderr


def test_settings_of_other_windows_than_the_process_has_are_refused():
    assert load_settings().features.windows_days == WINDOWS_DAYS
    Path("other.toml").write_text("[features]\nwindows_days = [3, 14]\n")
    with pytest.raises(ConfigError, match=r"have the windows \[1, 7, 30, 90\]; set them where"):
        load_settings(Path("other.toml"))


def test_every_process_of_a_service_gets_them():
    instance = Instance.create()
    try:
        environment = ray_environment(instance, load_settings().serve)
    finally:
        for path in sorted(instance.directory.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        instance.directory.rmdir()
    assert environment[WINDOWS_VARIABLE] == str(list(WINDOWS_DAYS))


def test_the_linter_reads_the_sql_of_the_default():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert project["tool"]["sqlfluff"]["templater"]["jinja"]["context"] == {
        "windows": list(windows_days())
    }


def test_only_views_and_functions_are_templates():
    ours, others = sql_files(), sql_files((3, 14))
    changed = [one.name for one, other in zip(ours, others, strict=True) if one != other]
    assert changed == [
        "10_formulas.sql",
        "12_item_features.sql",
        "20_user_states.sql",
        "21_as_of.sql",
        "22_user_as_of.sql",
    ]


def test_a_refresh_with_other_windows_than_those_of_the_views_is_refused(people):
    apply(people, sql_files((1, 7)))
    with pytest.raises(SchemaError, match=r"count windows of \[1, 7\] days, .* 'shortlist db ap"):
        refresh(people)


@pytest.mark.parametrize("windows", ["[3, 14]", "[5]", "[1, 2, 3, 7, 30, 90, 365, 3650]"])
def test_another_list_on_a_filled_database(people, database_url, windows):
    """Apply, refresh, view, live and as-of values in a process that has it; then back again."""
    draw = random.Random(windows)
    moment = datetime.now(UTC) - timedelta(hours=8)
    edges = [timedelta(days=days) for days in (0, 1, 3, 5, 7, 14, 30, 90, 365)]
    for _ in range(150):
        age = draw.choice(edges) + timedelta(microseconds=draw.choice([-1, 0, 1, 10**9, 10**10]))
        value = draw.choice([None, 0.5, 2.0])
        add_event(people, draw.randint(1, 3), draw.randint(1, 4), moment - age, value)
        if draw.random() < 0.2:
            add_answer(people, f"u{draw.randint(1, 3)}", moment - age, draw.sample(range(1, 5), 2))
    people.commit()
    refresh(people, as_of=moment - timedelta(hours=5))
    micros = str((moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(microseconds=1))
    found = run(str(ROOT / "tests/other_windows.py"), database_url, micros, windows=windows)
    assert found.returncode == 0, found.stderr
    assert found.stdout.strip() != spec_hash()
    assert apply(people)[0] == "10_formulas.sql"
    refresh(people)
    assert differences(people) == []
