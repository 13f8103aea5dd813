"""Run the Locust users of ``locustfile.py`` without a screen, and read what they measured.

Locust runs in a process of its own, since it replaces the sockets of the one it is in.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

LOCUSTFILE = Path(__file__).with_name("locustfile.py")


class LoadTestFailed(RuntimeError):
    """Locust ended without a report."""


@dataclass(frozen=True, slots=True)
class Load:
    """How hard, how long, and what still counts as good.

    Attributes
    ----------
    users : int
        Simulated users, each asking again as soon as it has its answer.
    seconds : int
        Duration.
    count : int
        Items asked for in each request.
    max_error_rate : float
        Share of requests that may fail, 0 to 1.
    max_p95_ms, max_p99_ms : float
        Limits on recommendations as clients see them, in milliseconds; 0: none.
    """

    users: int = 16
    seconds: int = 30
    count: int = 20
    max_error_rate: float = 0.0
    max_p95_ms: float = 0.0
    max_p99_ms: float = 0.0


def require_locust() -> None:
    """Refuse to begin without Locust.

    Raises
    ------
    LoadTestFailed
        It is not installed.
    """
    if find_spec("locust") is None:
        raise LoadTestFailed(
            "package 'locust' is not installed: expected extra `load`; install it with "
            "pip install -c constraints.txt -e '.[load]'"
        )


def run(
    url: str,
    people: Sequence[tuple[str, Sequence[str]]],
    load: Load,
    progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """Put `load` on the service at `url` and return the report.

    Parameters
    ----------
    url : str
        Scheme, host and port of the service.
    people : sequence of (str, sequence of str)
        Ids of users that exist, each with the ids of the items it has seen.
    load : Load
        What to do.
    progress : callable, optional
        Called as ``progress(step, done, total)``, in seconds.

    Returns
    -------
    dict
        ``requests``, ``error_rate``, ``errors``, ``client_ms`` and ``stages_ms`` (percentiles by
        name), ``rps``, ``broken_thresholds`` (empty: the test passed).

    Raises
    ------
    LoadTestFailed
        `people` is empty, or Locust did not come to its end: the message then has the end of
        what it printed.
    """
    if not people:
        raise LoadTestFailed("there is no user to be: expected at least one id of the database")
    with tempfile.TemporaryDirectory() as folder:
        users, report = Path(folder) / "users.json", Path(folder) / "report.json"
        users.write_text(json.dumps([{"id": name, "seen": list(seen)} for name, seen in people]))
        command: list[str | Path] = [
            *(sys.executable, "-m", "locust", "-f", LOCUSTFILE, "--headless", "--host", url),
            *("-u", str(load.users), "-r", str(load.users), "-t", f"{load.seconds}s"),
            *("--only-summary", "--load-users", users, "--load-report", report),
            *("--count", str(load.count), "--max-error-rate", str(load.max_error_rate)),
            *("--max-p95-ms", str(load.max_p95_ms), "--max-p99-ms", str(load.max_p99_ms)),
        ]
        # A locust.conf or LOCUST_ variable of the user must not change what is measured.
        environment = {k: v for k, v in os.environ.items() if not k.startswith("LOCUST_")}
        with (Path(folder) / "log").open("w+") as log:
            process = subprocess.Popen(
                command, cwd=folder, stdout=log, stderr=subprocess.STDOUT, env=environment
            )
            try:
                _wait(process, load.seconds, progress)
            finally:
                if process.poll() is None:
                    process.terminate()
                    process.wait()
            if not report.exists():
                log.seek(0)
                raise LoadTestFailed(
                    "".join(log.readlines()[-15:])
                    + f"locust ended with status {process.returncode} and no report: see above"
                )
        found: dict[str, Any] = json.loads(report.read_text())
    return found


def _wait(
    process: subprocess.Popen[bytes],
    seconds: int,
    progress: Callable[[str, int, int], None] | None,
) -> None:
    started = time.monotonic()
    while process.poll() is None:
        if progress is not None:
            progress("load", min(seconds, int(time.monotonic() - started)), seconds)
        if time.monotonic() - started > seconds + 60:
            raise LoadTestFailed(f"locust did not end 60 s after its {seconds} s")
        time.sleep(0.2)
