"""The main process of a running service: starts Ray and the deployments, waits, stops them.

Started by `serve.deployment.start` with the environment of `serve.ray_environment`; reads its
settings from standard input.
"""

from __future__ import annotations

import contextlib
import logging
import os
import shutil
import signal
import sys
import threading
from pathlib import Path
from types import FrameType

import psutil
import ray
from ray import serve as ray_serve
from ray.serve.config import HTTPOptions
from ray.serve.schema import LoggingConfig

from serve import logs
from serve.config import Settings
from serve.deployment import processes
from serve.ray_environment import Instance
from serve.refresher import Refresher
from serve.replica import Api, FineRanker

# Seconds that a replica gets for the requests it has when it is replaced or stopped.
_GRACE_S = 10.0
# Seconds that answers under way get when the service stops.
_DRAIN_S = 3.0
# Bytes: what passes between processes here is small; Ray would take a third of the memory.
_OBJECT_STORE = 80 * 2**20


def deploy(settings: Settings, directory: Path) -> ray_serve.Application:
    """Return the deployments of the configured topology, bound together."""
    config = settings.serve
    text = settings.model_dump_json()
    common = {
        "max_ongoing_requests": 100_000,
        "graceful_shutdown_timeout_s": _GRACE_S,
        "graceful_shutdown_wait_loop_s": 0.5,
        "health_check_period_s": 2,
        "logging_config": _logging(),
    }
    api = ray_serve.deployment(
        ray_serve.ingress(None)(Api),
        name="api",
        num_replicas=config.replicas,
        ray_actor_options={"num_cpus": 0},
        **common,
    )
    if config.topology == "colocated":
        return api.bind(text, str(directory))
    ranker = ray_serve.deployment(
        FineRanker,
        name="fine-ranker",
        num_replicas=config.ranker_replicas,
        ray_actor_options={"num_cpus": 0, "num_gpus": config.ranker_gpus},
        **common,
    )
    return api.bind(text, str(directory), ranker.bind(text))


def _logging() -> LoggingConfig:
    # Requests are counted and logged by the application.
    return LoggingConfig(log_level="WARNING", enable_access_log=False)


def _drain(instance: str) -> None:
    """Let the proxy take no more connections and finish what it has; then it ends."""
    proxies = [process for process in processes(instance) if process.name() == "haproxy"]
    for proxy in proxies:
        with contextlib.suppress(psutil.Error):
            proxy.send_signal(signal.SIGUSR1)
    psutil.wait_procs(proxies, timeout=_DRAIN_S)


def main(directory: Path) -> None:
    """Run until SIGTERM or SIGINT, or until the process that started this one is gone."""
    settings = Settings.model_validate_json(sys.stdin.read())
    starter = os.getppid()
    stop = threading.Event()

    def on_signal(_: int, __: FrameType | None) -> None:
        stop.set()

    ray.init(
        num_cpus=1,
        include_dashboard=False,
        configure_logging=True,
        logging_level=logging.WARNING,
        log_to_driver=False,
        object_store_memory=_OBJECT_STORE,
        _temp_dir=str(directory / "r"),
        _node_ip_address="127.0.0.1",
    )
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, on_signal)
    try:
        ray_serve.start(
            http_options=HTTPOptions(host=settings.serve.host, port=settings.serve.port),
            logging_config=_logging(),
        )
        ray_serve.run(deploy(settings, directory), name="shortlist", route_prefix="/")
        Instance(directory).deployed.touch()
        logs.setup(
            settings.serve.log_level, settings.home / "logs" / f"refresh-{os.getpid()}.jsonl"
        )
        with Refresher(settings):
            # A service does not outlive who started it, even if that was killed.
            while os.getppid() == starter and not stop.wait(1):
                pass
    finally:
        _drain(directory.name)
        ray_serve.shutdown()
        ray.shutdown()
        if os.getppid() != starter:
            shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
