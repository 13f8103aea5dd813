"""Start and stop the service on Ray Serve.

Ray runs in a process of its own (`serve.ray_main`), so that its environment is set before it is
imported, a caller needs no Ray, and stopping can end every process that was started.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from features.errors import ShortlistError
from ranking.release import current_release
from serve.config import Settings
from serve.ray_environment import INSTANCE, Instance, free_ports, ray_environment

_STOP_S = 20.0
# The proxy's configuration follows the replicas within a tenth of a second.
_QUIET_S = 0.7


class StartError(ShortlistError):
    """The service did not become ready."""


class ServiceEnded(ShortlistError):
    """The main process of the service ended although nobody stopped it."""


@dataclass(slots=True)
class RunningService:
    """A service that this process started.

    Attributes
    ----------
    url : str
        Where it answers, without a final slash.
    pid : int
        Its main process.
    log : Path
        What that process printed.
    instance : Instance
        Its directory, and the name that marks its processes.
    """

    url: str
    pid: int
    log: Path
    instance: Instance
    _process: subprocess.Popen[bytes] = field(repr=False)

    def alive(self) -> bool:
        """Return whether the main process still runs."""
        return self._process.poll() is None

    def settled(self) -> bool:
        """Return whether every replica runs and the proxy knows them all.

        A reload of the proxy closes idle connections, so none should follow.
        """
        if not self.instance.deployed.exists():
            return False
        last = max((path.stat().st_mtime for path in self.instance.proxy_files()), default=0.0)
        return last < time.time() - _QUIET_S

    def wait(self) -> None:
        """Wait as long as the service runs; a signal handler that raises ends the wait.

        Raises
        ------
        ServiceEnded
            Its main process is gone; what it printed last is in the message.
        """
        status = self._process.wait()
        raise ServiceEnded(
            f"the service ended by itself with exit status {status}; start it again. "
            f"{self.log} ends with:\n{_tail(self.log)}"
        )

    def stop(self) -> None:
        """End every process of the service and remove its directory; again: nothing."""
        if self._process.poll() is None:
            self._process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._process.wait(_STOP_S)
        end_processes(self.instance.name)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(5)
        shutil.rmtree(self.instance.directory, ignore_errors=True)

    def __enter__(self) -> RunningService:
        """Return itself."""
        return self

    def __exit__(self, *_: object) -> None:
        """Stop."""
        self.stop()


def start(settings: Settings, *, timeout_s: float = 90.0) -> RunningService:
    """Start the service and wait until it is ready.

    Parameters
    ----------
    settings : Settings
        With `serve.port` 0 a free port is taken.
    timeout_s : float
        Longest wait, in seconds.

    Returns
    -------
    RunningService

    Raises
    ------
    StartError
        It ended or was not ready in time; the message ends with what it printed last.
    """
    config = settings.serve
    if current_release(settings.home) is None:
        raise StartError(
            f"no release is promoted in {settings.home / 'releases'}; "
            "run 'shortlist release build' first"
        )
    if config.port == 0:
        config = config.model_copy(update={"port": free_ports(host=config.host)})
        settings = settings.model_copy(update={"serve": config})
    url = f"http://{_reachable(config.host)}:{config.port}"
    if _answers(f"{url}/healthz"):
        raise StartError(
            f"serve.port {config.port} on {config.host} is in use; stop the service that runs "
            "there, or set SHORTLIST_SERVE__PORT to another port (0: any free one)"
        )
    instance = Instance.create()
    logs = settings.home / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / "service.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "serve.ray_main", str(instance.directory)],
            stdin=subprocess.PIPE,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=ray_environment(instance, config),
            # Ctrl-C is for the caller, who then stops the service in order.
            start_new_session=True,
        )
    assert process.stdin is not None
    # Through a pipe: arguments and environment of a process can be read by others.
    with process.stdin as pipe:
        pipe.write(settings.model_dump_json().encode())
    service = RunningService(url, process.pid, log, instance, process)
    try:
        _wait_ready(service, timeout_s)
    except BaseException:
        service.stop()
        raise
    return service


def processes(name: str) -> Iterator[psutil.Process]:
    """Yield the processes that run for the instance `name`, this one excepted."""
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error, OSError):
            if process.pid != os.getpid() and process.environ().get(INSTANCE) == name:
                yield process


def end_processes(name: str) -> None:
    """End every process of an instance, also those whose parents died first."""
    for _ in range(3):
        left = list(processes(name))
        if not left:
            return
        for process in left:
            with contextlib.suppress(psutil.Error):
                process.kill()
        psutil.wait_procs(left, timeout=5)


def _wait_ready(service: RunningService, timeout_s: float) -> None:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        if not service.alive():
            raise StartError(f"the service ended while it started:\n{_tail(service.log)}")
        if service.settled() and _answers(f"{service.url}/readyz"):
            return
        time.sleep(0.1)
    raise StartError(
        f"the service was not ready within {timeout_s:.0f} s: {_why_not(service.url)}\n"
        f"{_tail(service.log)}"
    )


def _reachable(host: str) -> str:
    """Return where a client of this machine finds a service that listens on `host`."""
    return "127.0.0.1" if host in ("0.0.0.0", "::") else host  # noqa: S104  # nothing is bound here


def _answers(url: str) -> bool:
    try:
        with urllib.request.urlopen(url, timeout=2) as answer:  # noqa: S310  # our own http URL
            return bool(answer.status == 200)
    except OSError:
        return False


def _why_not(url: str) -> str:
    try:
        with urllib.request.urlopen(f"{url}/readyz", timeout=2):  # noqa: S310  # our own http URL
            return "it is now"
    except urllib.error.HTTPError as error:
        with contextlib.suppress(ValueError, KeyError):
            checks = json.loads(error.read())["checks"]
            return "; ".join(check["detail"] for check in checks if not check["passed"])
        return str(error)
    except OSError as error:
        return str(error)


def _tail(path: Path, lines: int = 20) -> str:
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])
