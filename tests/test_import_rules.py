"""Downstream may import upstream, never the reverse; serving never imports torch."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

PACKAGES = ["sql", "features", "ranking", "serve"]
# Inside ranking: what retrieval finds, fine scores, re-rank orders, the pipeline connects, a
# release carries and evaluation measures. A module that is not listed may be used by all.
STAGES = [
    "ranking.retrieval",
    "ranking.fine",
    "ranking.rerank",
    "ranking.answer",
    "ranking.pipeline",
    "ranking.release",
    "ranking.evaluation",
]
# Training reads the pipeline's own request reader and retriever, so that it sees what serving
# will see; nothing that serves imports these.
OFFLINE = {"ranking.training", "ranking.lists", "ranking.fine.examples"}
COMPARISON = {f"loadtests.{name}" for name in ("bench", "bench_features", "bench_ingest", "plans")}


def modules(package: str) -> Iterator[tuple[str, Path]]:
    for path in sorted((ROOT / package).rglob("*.py")):
        parts = path.relative_to(ROOT).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


def imports(path: Path) -> set[str]:
    """Return every module a file imports, also inside functions and for type checks."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return found


def inside(name: str, package: str) -> bool:
    return name == package or name.startswith(f"{package}.")


@pytest.mark.parametrize("place", range(len(PACKAGES)))
def test_packages_import_only_what_is_upstream(place: int) -> None:
    later = [*PACKAGES[place + 1 :], "loadtests"]
    if PACKAGES[place] == "serve":
        later = []  # the command line starts the load tests
    faults = [
        f"{name} imports {target}"
        for name, path in modules(PACKAGES[place])
        for target in imports(path)
        if any(inside(target, package) for package in later)
    ]
    assert faults == []


def test_stages_of_ranking_import_only_what_is_upstream() -> None:
    def stage(name: str) -> int:
        return next((at for at, package in enumerate(STAGES) if inside(name, package)), -1)

    faults = [
        f"{name} imports {target}"
        for name, path in modules("ranking")
        if name not in OFFLINE and stage(name) >= 0
        for target in imports(path)
        if stage(target) > stage(name)
    ]
    assert faults == []


def test_load_tests_know_the_service_by_http_alone() -> None:
    faults = [
        f"{name} imports {target}"
        for name, path in modules("loadtests")
        if name not in COMPARISON
        for target in imports(path)
        if inside(target, "ranking") or inside(target, "serve")
    ]
    assert faults == []


def test_nothing_unpickles_or_evaluates() -> None:
    banned = {"pickle", "dill", "cloudpickle", "joblib", "marshal", "shelve"}
    faults = []
    for package in [*PACKAGES, "loadtests"]:
        for name, path in modules(package):
            faults += [
                f"{name} imports {target}"
                for target in imports(path)
                if target.partition(".")[0] in banned
            ]
            faults += [
                f"{name}:{node.lineno} calls {node.func.id}"
                for node in ast.walk(ast.parse(path.read_text()))
                if isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in ("eval", "exec")
            ]
    assert faults == []


@pytest.mark.parametrize("module", ["ranking.pipeline", "ranking.release", "serve.app"])
def test_the_serving_path_loads_no_training_library(module: str) -> None:
    code = (
        f"import sys, {module}; "
        "print(sorted({'torch', 'onnx', 'scipy', 'matplotlib', 'altair'} & set(sys.modules)))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"
