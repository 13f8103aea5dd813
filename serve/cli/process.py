"""A service in a process of its own: started, waited for, and stopped without a trace."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from features.errors import ShortlistError

START_TIMEOUT_S = 90.0
STOP_TIMEOUT_S = 30.0
LOG_LINES = 15


class ServiceError(ShortlistError):
    """The service did not start, or ended by itself."""


@dataclass(frozen=True, slots=True)
class Service:
    """A running service.

    Attributes
    ----------
    url : str
        Where it answers, without a slash at the end.
    process : subprocess.Popen
        The command ``shortlist serve``; Ray and the replicas are below it.
    log : Path
        What it printed.
    """

    url: str
    process: subprocess.Popen[bytes]
    log: Path


def free_port() -> int:
    """Return a TCP port of the loopback address that nothing listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
    return port


def answers(url: str, timeout_s: float = 2.0) -> bool:
    """Return whether `url` answers with a status of 2xx."""
    try:
        with urllib.request.urlopen(url, timeout=timeout_s) as response:  # noqa: S310 - our own http URL
            return 200 <= int(response.status) < 300
    except (urllib.error.URLError, OSError):
        return False


@contextmanager
def running(
    *arguments: str, port: int, log: Path, environment: Mapping[str, str] | None = None
) -> Iterator[Service]:
    """Run ``shortlist serve`` on the loopback address until the block ends.

    The service gets a session of its own, so that a Ctrl-C in the terminal reaches only this
    process, which then stops the service in order.

    Parameters
    ----------
    *arguments : str
        More options of ``shortlist serve``.
    port : int
        TCP port to serve on.
    log : Path
        File that takes what the service prints.
    environment : mapping, optional
        Variables set for the service beside those of this process.

    Raises
    ------
    ServiceError
        The service ends, or is not ready within 90 seconds; the message has the end of its log.
    """
    log.parent.mkdir(parents=True, exist_ok=True)
    command = [sys.executable, "-m", "serve.cli", "serve", "--port", str(port), *arguments]
    with log.open("wb") as output:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    service = Service(f"http://127.0.0.1:{port}", process, log)
    try:
        wait_ready(service)
        yield service
    finally:
        stop(process)


def wait_ready(service: Service) -> None:
    """Return once ``/readyz`` answers; raise :class:`ServiceError` if it never does."""
    deadline = time.monotonic() + START_TIMEOUT_S
    while not answers(service.url + "/readyz"):
        status = service.process.poll()
        if status is not None or time.monotonic() > deadline:
            happened = (
                f"ended with status {status}"
                if status is not None
                else f"was not ready after {START_TIMEOUT_S:.0f} s"
            )
            lines = service.log.read_text(errors="replace").splitlines()[-LOG_LINES:]
            raise ServiceError(
                "\n".join(lines) + f"\nthe service at {service.url} {happened}: read the end of its"
                f" log above, the whole of it is in {service.log}"
            )
        time.sleep(0.1)


def stop(process: subprocess.Popen[bytes]) -> list[int]:
    """Stop `process` and all that it started; return the pids that had to be killed.

    SIGTERM first: the service drains, stops Ray and leaves. What is left after 30 seconds, or
    was left behind, is killed.
    """
    try:
        family = psutil.Process(process.pid).children(recursive=True)
    except psutil.NoSuchProcess:
        family = []
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
    _, alive = psutil.wait_procs(family, timeout=3)
    for left in alive:
        left.kill()
    psutil.wait_procs(alive, timeout=3)
    return [left.pid for left in alive]
