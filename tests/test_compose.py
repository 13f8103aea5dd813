"""docker-compose.yml: accepted by the tool where there is one, and health-checked throughout."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


def test_services_wait_for_health() -> None:
    services = yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]
    assert services["postgres"]["image"] == "postgres:18"
    assert "pg_isready" in services["postgres"]["healthcheck"]["test"]
    assert services["service"]["depends_on"] == {
        "postgres": {"condition": "service_healthy"},
        "prepare": {"condition": "service_completed_successfully"},
    }
    for name in ("prepare", "service"):
        build = services[name]["build"]
        stages = (ROOT / build["dockerfile"]).read_text().splitlines()
        assert any(line.endswith(f" AS {build['target']}") for line in stages), name


def test_the_image_drops_root_and_checks_readiness() -> None:
    for stage in (ROOT / "deploy" / "Dockerfile").read_text().split("\nFROM ")[1:]:
        if " AS service" in stage or " AS jobs" in stage:
            assert "\nUSER shortlist\n" in stage
        if " AS service" in stage:
            assert "HEALTHCHECK" in stage
            assert "/readyz" in stage


def test_compose_accepts_the_file() -> None:
    command = next(
        (c for c in (["docker", "compose"], ["docker-compose"]) if works([*c, "version"])), None
    )
    if command is None:
        pytest.skip("neither 'docker compose' nor docker-compose is installed")
    result = subprocess.run(
        [*command, "-f", ROOT / "docker-compose.yml", "config"], capture_output=True, text=True
    )
    assert result.returncode == 0, result.stderr
    assert "pg_isready" in result.stdout


def works(command: list[str]) -> bool:
    return shutil.which(command[0]) is not None and (
        subprocess.run(command, capture_output=True).returncode == 0
    )
