"""Every setting with its default and unit, as a TOML file to start from.

``python -m serve.reference`` writes it to ``deploy/shortlist.toml``; a test compares the two.
"""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

from pydantic import BaseModel

from serve.config import Settings, model_in

FILE = Path(__file__).parent.parent / "deploy" / "shortlist.toml"

_HEAD = """\
# All settings of Shortlist with their defaults: uncomment what you change. Copy the file to
# shortlist.toml, or name it in SHORTLIST_CONFIG. A variable wins over it, for example
# SHORTLIST_SERVE__PORT=9000. SHORTLIST_HOME and SHORTLIST_DATABASE_URL are short names.
"""


def rendered() -> str:
    """Return the file."""
    return _HEAD + "".join(
        f"\n{line}\n" if line.startswith("[") else f"{line}\n" for line in _table(Settings, ())
    )


def _table(model: type[BaseModel], path: tuple[str, ...]) -> list[str]:
    """Return the lines of a table: its own values first, as TOML wants it, then its tables."""
    lines = [f"[{'.'.join(path)}]"] if path else []
    tables: list[str] = []
    for name, field in model.model_fields.items():
        inner = model_in(field.annotation)
        if inner is not None:
            tables += _table(inner, (*path, name))
            continue
        lines += textwrap.wrap(
            field.description or "", 96, initial_indent="# ", subsequent_indent="# "
        )
        default = field.get_default(call_default_factory=True)
        lines.append(f"# {name} = {_value(default)}")
    return lines + tables


def _value(value: object) -> str:
    if value is None:
        return '""  # not set'
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{key} = {_value(item)}" for key, item in value.items()) + " }"
    return json.dumps(str(value) if isinstance(value, Path) else value)


if __name__ == "__main__":
    FILE.write_text(rendered(), encoding="utf-8")
