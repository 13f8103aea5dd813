"""Where the settings are, and the one of them that decides what the features are.

All others are read by those who start a job or the service and passed on. The windows name
features, so every process that imports the spec must know them: they are read here, once.
"""

from __future__ import annotations

import json
import os
import tomllib
from pathlib import Path
from typing import Any

from features.errors import ConfigError

PREFIX = "SHORTLIST_"
CONFIG_VARIABLE = "SHORTLIST_CONFIG"
CONFIG_FILE = "shortlist.toml"
WINDOWS_VARIABLE = "SHORTLIST_FEATURES__WINDOWS_DAYS"

_DEFAULT_WINDOWS = [1, 7, 30, 90]
_MOST_WINDOWS = 8
_LONGEST_WINDOW = 3650


def read_file(path: Path | None = None) -> dict[str, Any]:
    """Read the settings file.

    Parameters
    ----------
    path : Path, optional
        TOML file; None takes ``SHORTLIST_CONFIG``, else ``shortlist.toml`` if there is one.

    Raises
    ------
    ConfigError
        The file is missing or no TOML.
    """
    named = path or os.environ.get(CONFIG_VARIABLE)
    if named is None and not Path(CONFIG_FILE).exists():
        return {}
    file = Path(named or CONFIG_FILE)
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(
            f"settings file {str(file)!r} does not exist; correct {CONFIG_VARIABLE} or unset it"
        ) from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"settings file {str(file)!r} is no readable TOML: {error}") from error


def windows_days() -> tuple[int, ...]:
    """Return the windows of the event counts: the variable, else the file, else the default.

    Returns
    -------
    tuple of int
        Days, ascending.

    Raises
    ------
    ConfigError
        The list is not what it must be, or the settings file cannot be read.
    """
    text = os.environ.get(WINDOWS_VARIABLE)
    if text is not None:
        try:
            return _checked(json.loads(text), f"environment variable {WINDOWS_VARIABLE}")
        except ValueError:
            return _checked(text, f"environment variable {WINDOWS_VARIABLE}")
    table = read_file().get("features")
    found = table.get("windows_days") if isinstance(table, dict) else None
    return _checked(_DEFAULT_WINDOWS if found is None else found, "setting 'features.windows_days'")


def _checked(value: object, key: str) -> tuple[int, ...]:
    if (
        isinstance(value, list)
        and 1 <= len(value) <= _MOST_WINDOWS
        and all(type(days) is int and 1 <= days <= _LONGEST_WINDOW for days in value)
        and value == sorted(set(value))
    ):
        return tuple(value)
    raise ConfigError(
        f"{key} is {value!r}: expected 1 to {_MOST_WINDOWS} different whole numbers of days from"
        f" 1 to {_LONGEST_WINDOW}, ascending, such as {_DEFAULT_WINDOWS}"
    )
