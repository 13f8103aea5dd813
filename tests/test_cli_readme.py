"""README and docs: links that lead somewhere, commands and settings that exist, a whole diagram."""

from __future__ import annotations

import itertools
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve.cli.app import app
from serve.config import Settings

ROOT = Path(__file__).resolve().parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = page.read_text()
    links = re.findall(r"\]\(([^)#]+?)\)", text) + re.findall(r'href="([^"]+)"', text)
    for link in links:
        if not link.startswith("http"):
            assert (page.parent / link).exists(), link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_exist(page: Path) -> None:
    runner = CliRunner()
    for line in re.findall(r"^ {4}(?:\.venv/bin/)?shortlist (.*)$", page.read_text(), re.MULTILINE):
        words = re.match(r"(?:[a-z]+ ?)+", line.split("#")[0])
        assert words is not None, line
        names = words.group().split()
        options = re.findall(r"--[a-z0-9-]+", line.split("#")[0])
        # Arguments follow the names; the longest start that is a command is meant.
        for length in (2, 1):
            result = runner.invoke(app, [*names[:length], "--help"], env={"COLUMNS": "200"})
            if result.exit_code == 0:
                break
        assert result.exit_code == 0, line
        for option in options:
            assert option in result.output, f"{line}: {option}"


def test_the_diagram_is_straight() -> None:
    found = re.search(r"<pre>\n(.*?)</pre>", (ROOT / "README.md").read_text(), re.DOTALL)
    assert found is not None
    lines = re.sub(r"<[^>]+>", "", found.group(1)).splitlines()
    assert max(map(len, lines)) <= 84
    for upper, lower in itertools.pairwise(lines):
        for column, sign in enumerate(upper):
            if sign in "┌┐":
                below = lower[column] if column < len(lower) else " "
                assert below in "│├┤└┘┌┐", f"column {column}:\n{upper}\n{lower}"


def test_settings_exist() -> None:
    for page in PAGES:
        for variable in re.findall(r"SHORTLIST_([A-Z_]+)", page.read_text()):
            if variable in ("CONFIG", "DATABASE_URL"):
                continue
            model: object = Settings
            for key in variable.lower().split("__"):
                fields = getattr(model, "model_fields", {})
                assert key in fields, f"{page.name}: SHORTLIST_{variable}"
                model = fields[key].annotation
