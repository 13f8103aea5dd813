"""An experiment: which data, protocol and seeds, and how the models are trained.

Written as a TOML file, so that what was run can be read, kept and run again; a few presets are
part of the package.
"""

from __future__ import annotations

import tomllib
from importlib.resources import files
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from features.errors import ConfigError, InputError
from ranking.protocols import ProtocolName
from ranking.training_config import TrainingConfig

_PRESETS = "presets"


class Experiment(BaseModel):
    """What `shortlist evaluate --config` reads."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str = Field(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$",
        max_length=80,
        description="Folder of the results.",
    )
    data: str = Field(
        min_length=1,
        description="Folder or file that `shortlist load` reads, or the name of one in the folder "
        "that the setting evaluation.data_folder names.",
    )
    protocol: ProtocolName = Field(
        default="leave-last-out", description="Which events are the test."
    )
    seeds: tuple[int, ...] = Field(
        default=(7,), min_length=1, description="Each one is trained and evaluated."
    )
    training: TrainingConfig = Field(
        default=TrainingConfig(),
        description="How models are trained, keys as in the settings; the seed is that of each "
        "run, and the holdout that of the protocol.",
    )

    def with_seeds(self, text: str) -> Experiment:
        """Return this experiment with the seeds of a list such as ``7,8,9``.

        Raises
        ------
        InputError
            It is no list of different numbers from 0 on.
        """
        parts = [part.strip() for part in text.split(",")]
        if not all(part.isdecimal() for part in parts) or len(set(parts)) < len(parts):
            raise InputError(f"seeds {text!r}: expected different numbers from 0 on, as in 7,8,9")
        return self.model_copy(update={"seeds": tuple(int(part) for part in parts)})


def read_experiment(source: str) -> Experiment:
    """Read an experiment file.

    Parameters
    ----------
    source : str
        Path of a TOML file, or the name of a preset.

    Raises
    ------
    ConfigError
        There is no such file or preset, it is no TOML, or a key is unknown or out of range.
    """
    path = Path(source)
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    elif source in presets():
        text = (files(__package__) / _PRESETS / f"{source}.toml").read_text(encoding="utf-8")
    else:
        raise ConfigError(
            f"experiment {source!r}: no such file, and no preset of that name; presets are "
            f"{', '.join(presets())}"
        )
    try:
        values: dict[str, Any] = tomllib.loads(text)
        return Experiment.model_validate(values)
    except tomllib.TOMLDecodeError as error:
        raise ConfigError(f"experiment {source!r} is no TOML: {error}") from None
    except ValidationError as error:
        faults = "; ".join(
            f"key {'.'.join(map(str, fault['loc']))!r}: {fault['msg']}"
            for fault in error.errors(include_url=False)
        )
        raise ConfigError(f"experiment {source!r}: {faults}") from None


def presets() -> list[str]:
    """Return the names of the experiments that come with the package."""
    folder = files(__package__) / _PRESETS
    return sorted(
        entry.name.removesuffix(".toml")
        for entry in folder.iterdir()
        if entry.name.endswith(".toml")
    )


def find_data(name: str, folder: Path) -> Path:
    """Return where the data `name` lies: a path as it is, else a name in `folder`.

    Raises
    ------
    InputError
        It is neither.
    """
    path = Path(name)
    if path.exists():
        return path.absolute()
    if (folder / name).exists():
        return (folder / name).absolute()
    raise InputError(
        f"data {name!r}: neither a file or folder nor a name in {folder}; put the files there, "
        "name their folder by the setting evaluation.data_folder "
        "(SHORTLIST_EVALUATION__DATA_FOLDER), or give their path"
    )
