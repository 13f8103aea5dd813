"""What the service costs beside its computation: in process, `colocated` and `split` in one run.

Rounds take turns, since a machine is not equally fast at all times: each round measures the
stages called in this process, then each topology over HTTP, freshly started and warmed, with
the same release and the same requests. Figures are medians over the rounds, ratios medians of
the ratios within a round. HTTP clients are keep-alive connections of one uvloop process
(:mod:`loadtests.generator`); their CPU time is in the result.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import psutil
import uvloop

from features.errors import ReleaseError
from loadtests.generator import post_request, repeat
from loadtests.generator import run as generate

if TYPE_CHECKING:
    from serve.config import Settings

CLIENTS = (1, 8, 16)
TOPOLOGIES: tuple[Literal["colocated", "split"], ...] = ("colocated", "split")
PEOPLE = 500
COUNT = 20
WARM_UP = 200
PATH = "/v1/recommendations"

Report = Callable[[str, int, int], None]


def bodies(people: Sequence[str]) -> list[bytes]:
    """Return the request bodies that everything here answers, one for each of `people`."""
    return [
        json.dumps({"user_id": user, "count": COUNT, "fields": ["title"], "scenario": "loadtest"})
        .encode()
        for user in people
    ]  # fmt: skip


def machine() -> dict[str, Any]:
    """Return what a reader needs to place the figures."""
    model = ""
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            model = line.split(":", 1)[1].strip()
            break
    return {
        "cpu": model or platform.machine(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(psutil.virtual_memory().total / 2**30, 1),
        "load_1m": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "system": platform.platform(),
    }


def over_http(
    settings: Settings,
    topology: Literal["colocated", "split"],
    people: Sequence[str],
    requests: int,
    step: Callable[[str], None],
) -> dict[str, dict[str, float]]:
    """Start one topology, warm it, and measure it at each number of clients."""
    from serve import deployment

    config = settings.serve.model_copy(update={"topology": topology, "port": 0})
    found = {}
    with deployment.start(settings.model_copy(update={"serve": config})) as service:
        wire = [post_request(service.url, PATH, body) for body in bodies(people)]
        generate(service.url, repeat(wire, WARM_UP), max(CLIENTS))
        for clients in CLIENTS:
            step(f"{topology}, {clients} clients")
            summary = generate(service.url, repeat(wire, requests), clients).summary()
            if summary["failed"]:
                raise RuntimeError(
                    f"{topology}: {summary['failed']} of {requests} requests failed at {clients} "
                    f"clients; see {service.log}"
                )
            found[str(clients)] = summary
    return found


def median(rows: Sequence[dict[str, float]]) -> dict[str, float]:
    """Return the median of each key over `rows`."""
    return {key: round(statistics.median(row[key] for row in rows), 4) for key in rows[0]}


def summarise(
    raw: Sequence[dict[str, float]], servers: dict[str, list[dict[str, dict[str, float]]]]
) -> dict[str, Any]:
    """Return medians over rounds, and ratios taken within each round.

    Parameters
    ----------
    raw : sequence of dict
        For each round ``p50_ms``, ``p99_ms`` and ``qps`` in process.
    servers : dict
        For each topology and round: clients to ``p50_ms``, ``p99_ms``, ``qps``.
    """
    best = {
        name: [max(row["qps"] for row in by_clients.values()) for by_clients in rounds]
        for name, rounds in servers.items()
    }

    def ratio(values: Sequence[float], bases: Sequence[float]) -> float:
        return round(statistics.median(v / b for v, b in zip(values, bases, strict=True)), 3)

    p50 = [row["p50_ms"] for row in raw]
    qps = [row["qps"] for row in raw]
    one = {name: [r["1"]["p50_ms"] for r in rounds] for name, rounds in servers.items()}
    middle = median(raw)
    return {
        "raw_ms": middle["p50_ms"],
        "raw_p99_ms": middle["p99_ms"],
        "raw_qps": middle["qps"],
        "servers": {
            name: {key: median([r[key] for r in rounds]) for key in rounds[0]}
            for name, rounds in servers.items()
        },
        "ratios": {
            "colocated_p50": ratio(one["colocated"], p50),
            "colocated_qps": ratio(best["colocated"], qps),
            "split_p50": ratio(one["split"], p50),
        },
    }


async def _in_process(settings: Settings, people: Sequence[str], requests: int) -> list[float]:
    """Return the milliseconds that each request takes, stages called one after the other."""
    from serve.engine import Engine
    from serve.respond import Ranked, query_of, respond
    from serve.schemas import RecommendationRequest

    wanted = [
        RecommendationRequest(user, COUNT, fields=["title"])
        for user in itertools.islice(itertools.cycle(people), WARM_UP + requests)
    ]
    took = []
    with tempfile.TemporaryDirectory() as folder:
        async with Engine(settings, Path(folder)) as engine:
            serving = engine.holder.serving
            if serving is None:
                raise SystemExit(f"error: no release of {settings.home} can be served")
            for request in wanted:
                started = time.perf_counter()
                states = await engine.store.user_states([request.user_id])
                ranking = serving.pipeline.recommend([query_of(request, states[0])], states)[0]
                done = Ranked(serving, ranking, states[0].as_of, 0.0, 0.0, 0.0, time.perf_counter())
                respond(request, done, started)
                took.append((time.perf_counter() - started) * 1e3)
    return took[WARM_UP:]


def in_process(settings: Settings, people: Sequence[str], requests: int) -> dict[str, float]:
    """Measure user state, pipeline and JSON encoding, called in one thread of one process.

    The process is fresh, and has the environment of a replica: libraries decide how many
    threads they use when they are imported.
    """
    job = {"settings": settings.model_dump(mode="json"), "people": people, "requests": requests}
    result = subprocess.run(
        [sys.executable, "-m", "loadtests.bench"],
        input=json.dumps(job),
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        check=False,
    )
    if result.returncode != 0:
        raise ReleaseError(
            f"the stages could not be measured in process (see above); is there a release in "
            f"{settings.home}? 'shortlist demo --build-only' makes one"
        )
    found: dict[str, float] = json.loads(result.stdout.splitlines()[-1])
    return found


def run(
    settings: Settings, people: Sequence[str], rounds: int, requests: int, report: Report
) -> dict[str, Any]:
    """Measure all of it.

    Parameters
    ----------
    settings : Settings
        Whose database runs and whose current release is measured.
    people : sequence of str
        Ids of users that exist.
    rounds : int
        Rounds that take turns.
    requests : int
        Requests in each single measurement.
    report : callable
        Called as ``report(step, done, total)``.

    Returns
    -------
    dict
        ``raw_ms``, ``raw_qps``, ``servers``, ``ratios``, ``machine`` and how it was measured.
    """
    about = machine()
    raw: list[dict[str, float]] = []
    servers: dict[str, list[dict[str, dict[str, float]]]] = {name: [] for name in TOPOLOGIES}
    total = rounds * (1 + len(TOPOLOGIES) * len(CLIENTS))
    done = 0

    def step(label: str) -> None:
        nonlocal done
        report("measurements", done, total)
        done += 1

    for _ in range(rounds):
        step("in process")
        raw.append(in_process(settings, people, requests))
        for name in TOPOLOGIES:
            servers[name].append(over_http(settings, name, people, requests, step))
    report("measurements", total, total)
    return summarise(raw, servers) | {
        "rounds": rounds,
        "requests": requests,
        "count": COUNT,
        "client": "keep-alive connections of one uvloop process, loadtests/generator.py",
        "machine": about,
    }


def _main() -> None:
    """Measure in process what stdin says; print the figures as JSON."""
    from serve.config import Settings

    job = json.load(sys.stdin)
    settings = Settings.model_validate(job["settings"])
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        took = runner.run(_in_process(settings, job["people"], job["requests"]))
    p50, p99 = np.percentile(took, (50, 99))
    found = {"p50_ms": float(p50), "p99_ms": float(p99), "qps": len(took) / sum(took) * 1e3}
    print(json.dumps(found))


if __name__ == "__main__":
    _main()
