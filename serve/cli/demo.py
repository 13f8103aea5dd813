"""The whole path on the sample, from an empty folder to answers over HTTP."""

from __future__ import annotations

import json
import socket
import time
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.panel import Panel

from features.errors import InputError
from serve.cli import build, context
from serve.cli.console import ERR, OUT, Steps, emit, seconds
from serve.cli.service import Stoppable, Stopped

if TYPE_CHECKING:
    import psycopg

    from ranking.evaluation.result import EvaluationResult
    from serve.config import Settings
    from serve.deployment import RunningService

USERS = 3
LIKED = 5
COUNT = 10
TIMED_REQUESTS = 300


def demo(
    exit_: Annotated[
        bool, typer.Option("--exit", help="Stop after printing instead of staying up.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Make the last line one JSON object, and stop.")
    ] = False,
    build_only: Annotated[
        bool, typer.Option("--build-only", help="Build the release; serve and evaluate nothing.")
    ] = False,
    port: Annotated[
        int | None, typer.Option(min=1, max=65535, help="TCP port; none: 8000, or a free one.")
    ] = None,
) -> None:
    """Load the sample, train, build a release, serve it, ask it, evaluate it; stay up.

    A second run reuses the database and the release. Ctrl-C stops everything it started.

    Example: shortlist demo --exit
    """
    settings = context.settings()
    with Stoppable() as stoppable, ExitStack() as stack:
        try:
            figures, service = run(settings, stack, port, build_only)
            if as_json:
                emit(figures)
            elif service is not None and not exit_:
                stay(service)
        except Stopped:
            ERR.print("\nstopping; the database and the release are kept for the next run")
        finally:
            stoppable.disarm()


def run(
    settings: Settings, stack: ExitStack, port: int | None, build_only: bool
) -> tuple[dict[str, Any], RunningService | None]:
    """Run all steps; what must be stopped at the end is pushed onto `stack`."""
    from serve.cli.people import example_users, sample_users

    started = time.monotonic()
    steps = Steps()
    with steps("database", "PostgreSQL starts"):
        connection = stack.enter_context(context.connected(settings))
    made = build.build(settings, connection, steps)
    people = [name for name, _ in sample_users(connection, TIMED_REQUESTS)]
    examples = example_users(connection, USERS)
    connection.rollback()
    figures: dict[str, Any] = {
        "users": made.users,
        "items": made.items,
        "interactions": made.interactions,
        "release": made.release,
        "seconds": steps.seconds,
    }
    if build_only:
        OUT.print(f"release {made.release} is ready; serve it with 'shortlist serve'")
        return figures, None
    service = start(settings, stack, port, steps)
    with steps("recommend", "The first users get their titles"):
        answers = [(user, ask(service.url, user)) for user in examples]
    steps.seconds["first_titles"] = round(time.monotonic() - started, 3)
    show_answers(connection, answers)
    with steps("evaluate", "Evaluation beside the baselines") as report:
        result = build.evaluation(settings, connection, made.release, report)
    connection.rollback()
    with steps("measure", f"{TIMED_REQUESTS} requests, one at a time") as report:
        timing = measure(service.url, people)
    show_figures(settings, result, timing)
    steps.seconds["total"] = round(time.monotonic() - started, 3)
    OUT.print(f"all of it took {seconds(steps.seconds['total'])}")
    figures |= {
        "coarse_recall_at_200": result.coarse_recall_at_200,
        "ann_recall_at_200": result.ann_recall_at_200,
        "ndcg_at_10": result.ndcg_at_10,
        "hr_at_10": result.hr_at_10,
        "timing_ms": timing.stages,
        "total_ms": timing.total,
    }
    return figures, service


def start(settings: Settings, stack: ExitStack, port: int | None, steps: Steps) -> RunningService:
    """Start the service on the wished port, or on a free one where the usual one is taken."""
    from serve import deployment

    chosen = settings.serve.port if port is None else port
    if not is_free(chosen):
        if port is not None:
            raise InputError(
                f"--port {port} is taken by another program: stop it, or choose another port"
            )
        ERR.print(f"port {chosen} is taken by another program; using a free one")
        chosen = 0
    config = settings.serve.model_copy(update={"port": chosen})
    with steps("serve", "Ray Serve starts, the release is warmed"):
        wanted = settings.model_copy(update={"serve": config})
        return stack.enter_context(deployment.start(wanted))


def is_free(port: int) -> bool:
    """Return whether `port` of the loopback address can be listened on now."""
    with socket.socket() as probe:
        # As servers do, so that connections in TIME_WAIT do not count.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def ask(url: str, user: str) -> dict[str, Any]:
    """Return the service's list for one user."""
    from serve.cli.client import call

    body = {"user_id": user, "count": COUNT, "fields": ["title"], "scenario": "demo"}
    return call(url, "/v1/recommendations", body)


def show_answers(
    connection: psycopg.Connection[Any], answers: list[tuple[str, dict[str, Any]]]
) -> None:
    """Print what each user liked beside what is recommended."""
    from serve.cli.people import liked
    from serve.cli.tables import liked_table, recommended_table

    for user, answer in answers:
        OUT.print()
        OUT.print(liked_table(user, liked(connection, user, LIKED)))
        OUT.print(recommended_table(answer, user))
    connection.rollback()
    OUT.print()


@dataclass(frozen=True, slots=True)
class Timing:
    """Of many requests: ``p50`` and ``p99`` of each stage and of the total, in milliseconds."""

    stages: dict[str, dict[str, float]]
    total: dict[str, float]
    explained: float


def measure(url: str, people: list[str]) -> Timing:
    """Ask for each of `people`, one at a time, and read the service's own stage times."""
    import numpy as np

    from loadtests.generator import post_request, repeat, run

    bodies = [
        json.dumps({"user_id": user, "count": COUNT, "fields": ["title"], "scenario": "demo"})
        for user in people
    ]
    requests = [post_request(url, "/v1/recommendations", body.encode()) for body in bodies]
    measured = run(url, repeat(requests, TIMED_REQUESTS), 1, keep=True)
    timings = [json.loads(body)["timing_ms"] for body in measured.bodies]
    found = {}
    for stage in timings[0]:
        p50, p99 = np.percentile([timing[stage] for timing in timings], (50, 99))
        found[stage] = {"p50": round(float(p50), 4), "p99": round(float(p99), 4)}
    sums = {stage: sum(timing[stage] for timing in timings) for stage in found}
    total = sums.pop("total")
    return Timing(found, found.pop("total"), sum(sums.values()) / total)


def show_figures(settings: Settings, result: EvaluationResult, timing: Timing) -> None:
    """Print the waterfall of the medians and the evaluation, and where its report is."""
    from ranking.evaluation.job import report_path
    from serve.cli.tables import evaluation_table, waterfall

    medians = {stage: row["p50"] for stage, row in timing.stages.items()}
    heading = f"Median of {TIMED_REQUESTS} requests, as the service measured them"
    OUT.print()
    OUT.print(waterfall(medians, timing.total["p50"], heading, timing.explained))
    OUT.print()
    OUT.print(evaluation_table(result))
    OUT.print(f"report: {report_path(settings.home, result.release)}", soft_wrap=True)
    OUT.print()


def stay(service: RunningService) -> None:
    """Say where the service is, and wait until it ends or a signal comes."""
    from serve.deployment import StartError

    url = service.url
    OUT.print(Panel(f"service {url}\ndocs    {url}/docs\n\nCtrl-C stops everything", expand=False))
    # Outside the panel, so that it can be copied whole.
    OUT.print(f"curl '{url}/v1/users/1/recommendations?count=5'", soft_wrap=True)
    while service.alive():
        time.sleep(0.5)
    raise StartError(f"the service ended by itself: its log is {service.log}")
