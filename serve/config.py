"""All settings of Shortlist as one tree: a TOML file, the environment, and defaults.

The file is ``shortlist.toml`` or the one that ``SHORTLIST_CONFIG`` names. An environment
variable wins over it: ``SHORTLIST_SERVE__PORT=9000`` sets ``port`` in ``[serve]``.
``SHORTLIST_HOME`` and ``SHORTLIST_DATABASE_URL`` are short names. Unknown keys are refused
in both.
"""

from __future__ import annotations

import json
import os
from contextvars import ContextVar
from pathlib import Path
from typing import Any, Literal, get_args

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator
from pydantic_settings import (
    BaseSettings,
    InitSettingsSource,
    PydanticBaseSettingsSource,
    SettingsConfigDict,
)

from features.database import DatabaseConfig
from features.errors import ConfigError
from features.retention import LEAST_DAYS
from features.settings import CONFIG_VARIABLE, PREFIX, WINDOWS_VARIABLE, read_file
from features.spec import WINDOWS_DAYS
from ranking.evaluation.config import EvaluationConfig
from ranking.onnx_model import OnnxConfig
from ranking.release import ReleaseConfig
from ranking.training_config import TrainingConfig
from serve.problems import nearest

_SHORT_NAMES = {"SHORTLIST_DATABASE_URL": "SHORTLIST_DATABASE__URL"}
# Set by start() for the processes of one running service.
_INTERNAL = {CONFIG_VARIABLE, "SHORTLIST_INSTANCE"}

_path: ContextVar[Path | None] = ContextVar("path", default=None)


class ServeConfig(BaseModel):
    """The HTTP service: where it listens, how it scales and where it says no."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    host: str = Field(default="127.0.0.1", description="Address that the service listens on.")
    port: int = Field(default=8000, ge=0, le=65535, description="TCP port; 0: any free one.")
    topology: Literal["colocated", "split"] = Field(
        default="colocated",
        description="colocated: every replica holds all stages. split: API and retrieval replicas "
        "call fine-ranker replicas, for a GPU that many share.",
    )
    replicas: int = Field(default=1, ge=1, le=256, description="API replicas.")
    ranker_replicas: int = Field(default=1, ge=1, description="Fine-ranker replicas of `split`.")
    ranker_gpus: float = Field(
        default=0.0, ge=0, description="GPUs for each fine-ranker replica of `split`."
    )
    max_batch_requests: int = Field(default=64, ge=1, description="Most requests in a batch.")
    max_batch_rows: int = Field(
        default=32_768, ge=1, description="Most candidate rows that a batch ranks."
    )
    max_queued_requests: int = Field(
        default=512, ge=1, description="Requests that may wait in a replica; more get a 429."
    )
    batches_in_flight: int = Field(
        default=2, ge=1, description="Batches of a replica that `split` overlaps."
    )
    max_body_bytes: int = Field(
        default=1_048_576, ge=1024, description="Longest request body, in bytes; longer: 413."
    )
    body_timeout_s: float = Field(
        default=10.0, gt=0, description="Longest time to send a body, in seconds; longer: 408."
    )
    deadline_ms: int = Field(
        default=2000, ge=1, description="Default `deadline_ms` of a request, in milliseconds."
    )
    catalogue_poll_s: float = Field(
        default=0.5, gt=0, description="How often changed items are read, in seconds."
    )
    release_poll_s: float = Field(
        default=1.0, gt=0, description="How often a replica looks for a new release, in seconds."
    )
    request_id_ttl_s: float = Field(
        default=600.0, gt=0, description="How long a `request_id` gets the same answer, in seconds."
    )
    request_id_entries: int = Field(
        default=10_000, ge=0, description="Answers kept for `request_id` in a replica."
    )
    event_commit_rows: int = Field(
        default=2000, ge=1, description="Most events that one commit stores, of any requests."
    )
    event_queue_rows: int = Field(
        default=20_000, ge=1, description="Events that may wait in a replica; more get a 429."
    )
    impression_queue: int = Field(
        default=20_000, ge=0, description="Shown items that may wait for the database; 0: none."
    )
    impression_flush_s: float = Field(
        default=0.5, gt=0, description="How often impressions are written, in seconds."
    )
    otlp_endpoint: str | None = Field(
        default=None, description="OTLP/HTTP traces endpoint; none: no tracing, at no cost."
    )
    log_level: Literal["DEBUG", "INFO", "WARNING", "ERROR"] = Field(
        default="INFO", description="Least severe log record that is written."
    )
    access_log: bool = Field(default=False, description="One log record for each request.")


class FeaturesConfig(BaseModel):
    """How old features may be, how they are kept fresh, and which served ones are logged."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    windows_days: tuple[int, ...] = Field(
        default=WINDOWS_DAYS,
        description="Windows of the event counts: 1 to 8 different numbers of days from 1 to "
        "3650, ascending. After a change: `shortlist db apply`, `shortlist features refresh`, and "
        "new models.",
    )
    item_max_age_s: float = Field(
        default=604_800.0,
        gt=0,
        description="Age of item features since their refresh, in seconds; older ones take the "
        "defaults of the spec. User and cross features are read with each request.",
    )
    candidate_max_age_s: float = Field(
        default=2_592_000.0,
        gt=0,
        description="Age of co-visitation counts, which are of the release, in seconds.",
    )
    refresh_every_s: float = Field(
        default=600.0,
        ge=0,
        description="How often `shortlist serve` refreshes the features, in seconds; 0: never.",
    )
    keep_raw_days: int | None = Field(
        default=None,
        ge=LEAST_DAYS,
        description="Raw events and answers older than this many days are dropped once a day by "
        "`shortlist serve`, after they were counted; none: they stay.",
    )
    served_sample_rate: float = Field(
        default=0.01, ge=0, le=1, description="Share of answers whose features are logged."
    )
    served_rows: int = Field(
        default=10_000, ge=1, description="Answers whose logged features are kept, the latest."
    )
    served_queue: int = Field(
        default=200, ge=0, description="Logged answers that may wait for the database."
    )

    @field_validator("windows_days")
    @classmethod
    def _are_those_of_the_spec(cls, windows: tuple[int, ...]) -> tuple[int, ...]:
        if windows != WINDOWS_DAYS:
            raise ValueError(
                f"the features of this process have the windows {list(WINDOWS_DAYS)}; set them "
                f"where it starts, in the file that {CONFIG_VARIABLE} names or in "
                f"{WINDOWS_VARIABLE}"
            )
        return windows


class Settings(BaseSettings):
    """Everything that can be set."""

    model_config = SettingsConfigDict(extra="forbid", frozen=True)

    home: Path = Field(
        default=Path(".shortlist"),
        description="Directory of the embedded database, models, releases, reports and logs.",
    )
    database: DatabaseConfig = Field(default_factory=DatabaseConfig)
    features: FeaturesConfig = Field(default_factory=FeaturesConfig)
    training: TrainingConfig = Field(default_factory=TrainingConfig)
    release: ReleaseConfig = Field(default_factory=ReleaseConfig)
    evaluation: EvaluationConfig = Field(default_factory=EvaluationConfig)
    onnx: OnnxConfig = Field(default_factory=OnnxConfig)
    serve: ServeConfig = Field(default_factory=ServeConfig)

    @classmethod
    def settings_customise_sources(
        cls,
        settings_cls: type[BaseSettings],
        init_settings: PydanticBaseSettingsSource,
        env_settings: PydanticBaseSettingsSource,
        dotenv_settings: PydanticBaseSettingsSource,
        file_secret_settings: PydanticBaseSettingsSource,
    ) -> tuple[PydanticBaseSettingsSource, ...]:
        """Arguments win over the environment, the environment over the file."""
        return init_settings, _FileAndEnvironment(settings_cls)


class _FileAndEnvironment(InitSettingsSource):
    """The TOML file with the variables over it; the library's own source skips unknown ones."""

    def __init__(self, settings_cls: type[BaseSettings]) -> None:
        values = read_file(_path.get())
        for variable, text in sorted(os.environ.items()):
            if variable.startswith(PREFIX) and variable not in _INTERNAL:
                _put(values, variable, text)
        super().__init__(settings_cls, values)


def load_settings(path: Path | None = None) -> Settings:
    """Read the settings: defaults, over them the TOML file, over it the environment.

    Parameters
    ----------
    path : Path, optional
        TOML file; None takes ``SHORTLIST_CONFIG``, else ``shortlist.toml`` if there is one.

    Returns
    -------
    Settings
        With `home` made absolute.

    Raises
    ------
    ConfigError
        A file is missing or no TOML, a key is unknown, or a value is out of range.
    """
    token = _path.set(path)
    try:
        settings = Settings()
    except ValidationError as error:
        raise ConfigError(_message(error)) from None
    finally:
        _path.reset(token)
    return settings.model_copy(update={"home": settings.home.expanduser().absolute()})


def _put(values: dict[str, Any], variable: str, text: str) -> None:
    """Put one variable into the tree of values."""
    keys = _SHORT_NAMES.get(variable, variable).removeprefix(PREFIX).lower().split("__")
    _check_known(variable, keys)
    target = values
    for key in keys[:-1]:
        target = target.setdefault(key, {})
    try:
        target[keys[-1]] = json.loads(text) if text[:1] in ("{", "[") else text
    except ValueError as error:
        raise ConfigError(f"environment variable {variable} is no valid JSON: {error}") from error


def _check_known(variable: str, keys: list[str]) -> None:
    model: type[BaseModel] | None = Settings
    for depth, key in enumerate(keys):
        fields = model.model_fields if model is not None else {}
        inner = model_in(fields[key].annotation) if key in fields else None
        if key not in fields or (depth == len(keys) - 1 and inner is not None):
            start = PREFIX + "".join(f"{part.upper()}__" for part in keys[:depth])
            hint = nearest(key, fields)
            meant = (
                f"did you mean {start}{hint.upper()}?"
                if hint
                else "deploy/shortlist.toml lists all"
            )
            raise ConfigError(
                f"environment variable {variable} is no setting of Shortlist; {meant}"
            )
        model = inner


def model_in(annotation: object) -> type[BaseModel] | None:
    """Return the component config that a field holds, if it holds one."""
    for kind in (annotation, *get_args(annotation)):
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
    return None


def _message(error: ValidationError) -> str:
    """Return one line for each problem; values of secrets are not shown."""
    lines = []
    for problem in error.errors(include_url=False):
        key = ".".join(map(str, problem["loc"]))
        if problem["type"] == "extra_forbidden":
            hint = nearest(str(problem["loc"][-1]), _siblings(problem["loc"][:-1]))
            meant = f"; did you mean {hint!r}?" if hint else ""
            lines.append(f"setting {key!r} is unknown{meant}")
        else:
            value = "…" if "url" in key else repr(problem["input"])
            lines.append(f"setting {key!r} is {value}: {problem['msg']}")
    return "; ".join(lines)


def _siblings(path: tuple[int | str, ...]) -> list[str]:
    model: type[BaseModel] | None = Settings
    for key in path:
        if model is None or str(key) not in model.model_fields:
            return []
        model = model_in(model.model_fields[str(key)].annotation)
    return [] if model is None else list(model.model_fields)
