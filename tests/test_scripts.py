"""The setup behind scripts/demo and scripts/test: fast when nothing changed, clear on failure."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import time
import tomllib
from importlib import metadata
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A copy of what the setup reads, in a path with a space and an accent."""
    root = tmp_path / "a clonè"
    root.mkdir()
    shutil.copytree(ROOT / "scripts", root / "scripts")
    for name in ("pyproject.toml", "constraints.txt"):
        shutil.copy(ROOT / name, root / name)
    return root


def setup(root: Path, *extras: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, root / "scripts" / "setup_venv.py", *extras],
        capture_output=True,
        text=True,
        env={**os.environ, **environment},
        timeout=120,
    )


def stamped(root: Path, extras: list[str]) -> Path:
    """Write the stamp that a complete setup of `extras` leaves."""
    code = (
        "import json, setup_venv as s; s.VENV.mkdir(exist_ok=True); a = s.accelerator();"
        "print(json.dumps({**s.fingerprint(a), 'extras': [*EXTRAS, a]}))"
    ).replace("EXTRAS", repr(extras))
    printed = subprocess.run(
        [sys.executable, "-c", code], cwd=root / "scripts", capture_output=True, text=True
    )
    script = root / ".venv" / "bin" / "shortlist"
    script.parent.mkdir()
    script.write_text('#!/bin/sh\necho ran "$@"\n')
    script.chmod(0o755)
    stamp = root / ".venv" / "shortlist-setup.json"
    stamp.write_text(printed.stdout)
    return stamp


def test_nothing_changed_returns_at_once(checkout: Path) -> None:
    stamped(checkout, ["serve", "train", "load"])
    started = time.monotonic()
    result = setup(checkout, "serve")
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
    assert time.monotonic() - started < 2


@pytest.mark.parametrize("change", ["constraints", "extra", "broken stamp"])
def test_a_change_installs_and_a_failure_says_what_to_do(checkout: Path, change: str) -> None:
    stamp = stamped(checkout, ["serve"])
    extras = ["serve"]
    if change == "constraints":
        (checkout / "constraints.txt").write_text("numpy==0\n")
    elif change == "extra":
        extras.append("load")
    else:
        stamp.write_text('{"inputs":')
    # Without an index the install fails, which is what must leave no stamp.
    result = setup(checkout, *extras, PIP_NO_INDEX="1", PIP_FIND_LINKS="")
    assert result.returncode == 1
    assert "error: installing the packages failed" in result.stderr
    assert "next:" in result.stderr
    assert not stamp.exists()


def test_demo_runs_from_any_folder_and_passes_arguments(checkout: Path, tmp_path: Path) -> None:
    stamped(checkout, ["serve", "train", "load"])
    link = tmp_path / "demo-link"
    link.symlink_to(checkout / "scripts" / "demo")
    for command in (checkout / "scripts" / "demo", link):
        result = subprocess.run(
            [command, "--exit", "--json"],
            cwd="/",
            capture_output=True,
            text=True,
            env={**os.environ, "HOME": "/nonexistent"},
        )
        assert result.stdout == "ran demo --exit --json\n", result.stderr


def fake_path(folder: Path, python: str | None) -> str:
    """Return a PATH with the tools of the script and `python` as the text of python3."""
    folder.mkdir()
    for tool in ("sh", "dirname", "readlink"):
        (folder / tool).symlink_to(shutil.which(tool) or tool)
    if python is not None:
        (folder / "python3").write_text(f"#!/bin/sh\n{python}\n")
        (folder / "python3").chmod(0o755)
    return str(folder)


@pytest.mark.parametrize(
    ("python", "message"),
    [
        (None, "no Python 3.11 or newer found"),
        ("exit 1", "no Python 3.11 or newer found"),
        ('case "$2" in *ensurepip*) exit 1;; esac', "lacks the modules venv and ensurepip"),
    ],
)
def test_a_missing_python_is_named(
    checkout: Path, tmp_path: Path, python: str | None, message: str
) -> None:
    path = fake_path(tmp_path / "bin", python)
    result = subprocess.run(
        [checkout / "scripts" / "demo"], capture_output=True, text=True, env={"PATH": path}
    )
    assert result.returncode == 1
    assert message in result.stderr
    assert "next:" in result.stderr


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().split()
    return {canonicalize_name(name): version for name, version in (x.split("==") for x in lines)}


def test_every_package_that_gets_installed_is_pinned() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    todo = [Requirement(text) for text in project["dependencies"]]
    todo += [Requirement(text) for name in extras if name != "gpu" for text in extras[name]]
    pinned, done = pins(), set()
    while todo:
        requirement = todo.pop()
        name = canonicalize_name(requirement.name)
        if (name, frozenset(requirement.extras)) in done:
            continue
        done.add((name, frozenset(requirement.extras)))
        distribution = metadata.distribution(name)
        assert pinned.get(name) == distribution.version.split("+")[0], name
        for text in distribution.requires or ():
            child = Requirement(text)
            wanted = [{"extra": extra} for extra in requirement.extras] or [{"extra": ""}]
            if child.marker is None or any(child.marker.evaluate(extra) for extra in wanted):
                todo.append(child)
    for text in extras["gpu"]:
        assert canonicalize_name(Requirement(text).name) in pinned


def test_no_registry_is_named() -> None:
    for name in ("pyproject.toml", "constraints.txt", "deploy/Dockerfile"):
        assert not re.search(r"https?://(?!127)|index-url|find-links", (ROOT / name).read_text()), (
            name
        )


def test_ci_calls_the_test_script() -> None:
    text = (ROOT / ".ci" / "run").read_text()
    assert "scripts/test" in text
    for script in (".ci/run", "scripts/demo", "scripts/test"):
        assert os.access(ROOT / script, os.X_OK), script
        subprocess.run(["sh", "-n", ROOT / script], check=True)


def test_the_stamp_is_whole_json_or_nothing(checkout: Path) -> None:
    stamp = stamped(checkout, ["dev"])
    assert set(json.loads(stamp.read_text())) == {
        "inputs",
        "accelerator",
        "python",
        "root",
        "extras",
    }
