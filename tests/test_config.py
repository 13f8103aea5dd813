"""Settings: defaults, TOML file, environment, unknown keys, secrets."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import BaseModel

from features.errors import ConfigError
from serve.config import Settings, load_settings
from serve.reference import FILE, rendered


@pytest.fixture(autouse=True)
def _clean(monkeypatch, tmp_path):
    for name in list(os.environ):
        if name.startswith("SHORTLIST_"):
            monkeypatch.delenv(name)
    monkeypatch.chdir(tmp_path)


def test_defaults(tmp_path):
    settings = load_settings()
    assert settings.home == tmp_path / ".shortlist"
    assert settings.database.url is None
    assert settings.serve.host == "127.0.0.1"
    assert settings.serve.topology == "colocated"
    assert settings.serve.otlp_endpoint is None


def test_file_then_environment(monkeypatch, tmp_path):
    Path("shortlist.toml").write_text(
        'home = "data"\n[serve]\nport = 9001\nreplicas = 2\n[database]\npool_max_size = 9\n'
    )
    monkeypatch.setenv("SHORTLIST_SERVE__PORT", "9002")
    settings = load_settings()
    assert settings.home == tmp_path / "data"
    assert (settings.serve.port, settings.serve.replicas) == (9002, 2)
    assert settings.database.pool_max_size == 9


def test_training_is_configured_here_too(monkeypatch, tmp_path):
    Path("shortlist.toml").write_text("[training]\nseed = 3\n[training.coarse]\nepochs = 5\n")
    monkeypatch.setenv("SHORTLIST_TRAINING__HOLDOUT", "none")
    training = load_settings().training
    assert (training.seed, training.coarse.epochs, training.holdout) == (3, 5, "none")


def test_short_names(monkeypatch, tmp_path):
    monkeypatch.setenv("SHORTLIST_HOME", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("SHORTLIST_DATABASE_URL", "postgresql://u:secret@db/x")
    settings = load_settings()
    assert settings.home == tmp_path / "elsewhere"
    assert settings.database.url == "postgresql://u:secret@db/x"


def test_named_file(monkeypatch, tmp_path):
    (tmp_path / "other.toml").write_text("[serve]\nport = 7\n")
    monkeypatch.setenv("SHORTLIST_CONFIG", str(tmp_path / "other.toml"))
    assert load_settings().serve.port == 7
    (tmp_path / "third.toml").write_text("[serve]\nport = 8\n")
    assert load_settings(tmp_path / "third.toml").serve.port == 8


def test_nested_values_as_json(monkeypatch):
    monkeypatch.setenv("SHORTLIST_SERVE", '{"port": 4}')
    with pytest.raises(ConfigError, match="SHORTLIST_SERVE is no setting"):
        load_settings()


@pytest.mark.parametrize(
    ("variable", "value", "message"),
    [
        ("SHORTLIST_SERVE__PROT", "1", "did you mean SHORTLIST_SERVE__PORT?"),
        ("SHORTLIST_SERV__PORT", "1", "did you mean SHORTLIST_SERVE?"),
        ("SHORTLIST_NONSENSE", "1", "SHORTLIST_NONSENSE is no setting"),
        ("SHORTLIST_SERVE__PORT__DEEP", "1", "SHORTLIST_SERVE__PORT__DEEP is no setting"),
        ("SHORTLIST_SERVE__PORT", "abc", "'serve.port' is 'abc'"),
        ("SHORTLIST_SERVE__PORT", "70000", "'serve.port' is '70000'"),
        ("SHORTLIST_SERVE__TOPOLOGY", "both", "'serve.topology' is 'both'"),
        ("SHORTLIST_CONFIG", "missing.toml", "'missing.toml' does not exist"),
        ("SHORTLIST_SERVE__PORT", "{", "no valid JSON"),
    ],
)
def test_bad_environment(monkeypatch, variable, value, message):
    monkeypatch.setenv(variable, value)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[serve]\nprot = 1\n", "'serve.prot' is unknown; did you mean 'port'?"),
        ("[servee]\nport = 1\n", "'servee' is unknown; did you mean 'serve'?"),
        ("[serve]\nport = -1\n", "'serve.port' is -1"),
        ("[serve\n", "no readable TOML"),
        ("home = [1]\n", "'home'"),
    ],
)
def test_bad_file(text, message):
    Path("shortlist.toml").write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert message in str(caught.value)


def test_arguments_win_over_the_environment(monkeypatch, tmp_path):
    monkeypatch.setenv("SHORTLIST_HOME", "/elsewhere")
    assert Settings(home=tmp_path).home == tmp_path


def test_json_round_trip(tmp_path):
    settings = load_settings()
    assert Settings.model_validate_json(settings.model_dump_json()) == settings


def test_a_bad_secret_is_not_shown(monkeypatch):
    monkeypatch.setenv("SHORTLIST_DATABASE_URL", '{"password": "hush"}')
    with pytest.raises(ConfigError) as caught:
        load_settings()
    assert "hush" not in str(caught.value)


def test_secrets_are_not_in_repr(monkeypatch):
    monkeypatch.setenv("SHORTLIST_DATABASE_URL", "postgresql://u:hush@db/x")
    settings = load_settings()
    assert "hush" not in repr(settings)
    assert "hush" not in str(settings)


def _models(model: type[BaseModel]):
    yield model
    for field in model.model_fields.values():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from _models(field.annotation)


@pytest.mark.parametrize("model", list(_models(Settings)), ids=lambda model: model.__name__)
def test_every_field_is_documented_and_unknown_ones_are_refused(model):
    assert model.model_config.get("extra") == "forbid"
    assert model.model_config.get("frozen")
    for name, field in model.model_fields.items():
        nested = isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel)
        assert field.description or nested, f"{model.__name__}.{name} has no description"


def test_loading_settings_imports_no_torch():
    code = "import serve.config, sys; sys.exit('torch' in sys.modules or 'ray' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_the_committed_reference_is_the_generated_one():
    assert FILE.read_text(encoding="utf-8") == rendered(), "run: python -m serve.reference"


def test_the_reference_is_a_settings_file():
    text = re.sub(r"^# (\w+ = (?!.*# not set).*)$", r"\1", FILE.read_text(), flags=re.MULTILINE)
    Path("shortlist.toml").write_text(text)
    settings = load_settings()
    assert settings.serve == Settings().serve
    assert settings.training == Settings().training
