"""What the processes of one running service have in common: a directory, ports, variables.

Everything here must be set before Ray starts. Each value beyond its default was measured:
both throughput flags take the p50 of one client from 4.6 to 1.5 ms; the proxy's settings lose
no request when a replica is killed, frozen or replaced.
"""

from __future__ import annotations

import os
import secrets
import shlex
import socket
import sys
from dataclasses import dataclass
from pathlib import Path

from features.settings import WINDOWS_VARIABLE
from features.spec import WINDOWS_DAYS
from serve.config import ServeConfig

INSTANCE = "SHORTLIST_INSTANCE"

# Below the range that Linux hands out to clients.
_FIRST_PORT = 20_000
_LAST_PORT = 32_000
_REPLICA_PORTS = 200


@dataclass(frozen=True, slots=True)
class Instance:
    """One running service on this machine.

    Attributes
    ----------
    directory : Path
        Private to the user, and short: a Unix socket's path has at most 107 bytes, of which Ray
        and HAProxy take 80 for themselves.
    """

    directory: Path

    @classmethod
    def create(cls) -> Instance:
        """Make the directory of a new instance."""
        directory = Path("/tmp") / f"sl-{secrets.token_hex(4)}"  # noqa: S108  # must be short
        directory.mkdir(mode=0o700)
        return cls(directory)

    @property
    def name(self) -> str:
        """What marks the processes of this instance in their environment."""
        return self.directory.name

    @property
    def deployed(self) -> Path:
        """A file that exists once every replica runs."""
        return self.directory / "deployed"

    def proxy_files(self) -> list[Path]:
        """Return the configurations of the proxy, one for each node of Ray."""
        return list((self.directory / "h").glob("*/haproxy.cfg"))


def free_ports(length: int = 1, host: str = "127.0.0.1") -> int:
    """Return the first of `length` TCP ports in a row that nobody uses at this moment.

    The service binds them seconds later, so they are none that connections are given meanwhile.
    """
    for _ in range(100):
        first = _FIRST_PORT + secrets.randbelow(_LAST_PORT - _FIRST_PORT - length)
        sockets: list[socket.socket] = []
        try:
            for port in range(first, first + length):
                probe = socket.socket()
                sockets.append(probe)
                probe.bind((host, port))
        except OSError:
            continue
        finally:
            for probe in sockets:
                probe.close()
        return first
    raise OSError(f"no {length} free TCP ports in a row below {_LAST_PORT}")


def _proxy_wrapper(instance: Instance) -> Path:
    """Write the program that Serve starts in place of HAProxy (see `serve.haproxy`)."""
    script = instance.directory / "haproxy"
    script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m serve.haproxy "$@"\n')
    script.chmod(0o700)
    return script


def ray_environment(instance: Instance, config: ServeConfig) -> dict[str, str]:
    """Return the environment in which Ray and all its processes run.

    Parameters
    ----------
    instance : Instance
    config : ServeConfig

    Returns
    -------
    dict
        The present environment with ours over it.
    """
    ports = free_ports(_REPLICA_PORTS + 8)
    replicas = ports + 8
    proxy = instance.directory / "h"
    token = instance.directory / "token"
    token.write_text(secrets.token_hex(32))
    token.chmod(0o600)
    ours = {
        INSTANCE: instance.name,
        # Ray's workers have another directory, and so no shortlist.toml.
        WINDOWS_VARIABLE: str(list(WINDOWS_DAYS)),
        "OMP_NUM_THREADS": "1",
        "PYTHONUNBUFFERED": "1",
        "RAY_USAGE_STATS_ENABLED": "0",
        # Ray's own ports listen on loopback then, on Linux too.
        "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
        "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_SERVE_ENABLE_HA_PROXY": "1",
        "RAY_SERVE_THROUGHPUT_OPTIMIZED": "1",
        # Bytes: a full batch for the ranker of `split` has 15 MB, four times the default.
        "RAY_SERVE_REPLICA_GRPC_MAX_MESSAGE_LENGTH": str(256 * 2**20),
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": "serve.entrance:middlewares",
        "RAY_SERVE_DIRECT_INGRESS_MIN_HTTP_PORT": str(replicas),
        "RAY_SERVE_DIRECT_INGRESS_MAX_HTTP_PORT": str(replicas + _REPLICA_PORTS),
        "RAY_SERVE_DIRECT_INGRESS_MIN_DRAINING_PERIOD_S": "1",
        "RAY_SERVE_FALLBACK_PROXY_HTTP_PORT": str(ports),
        "RAY_SERVE_FALLBACK_PROXY_GRPC_PORT": str(ports + 1),
        "RAY_SERVE_PROXY_HEALTH_CHECK_PERIOD_S": "1",
        "RAY_SERVE_PROXY_HEALTH_CHECK_TIMEOUT_S": "5",
        "RAY_SERVE_PROXY_READY_CHECK_TIMEOUT_S": "30",
        "RAY_SERVE_HAPROXY_BINARY_PATH": str(_proxy_wrapper(instance)),
        "RAY_SERVE_HAPROXY_CONFIG_FILE_LOC": str(proxy / "haproxy.cfg"),
        "RAY_SERVE_HAPROXY_SOCKET_PATH": str(proxy / "admin.sock"),
        "RAY_SERVE_HAPROXY_METRICS_SOCKET_PATH": str(proxy / "m.sock"),
        "RAY_SERVE_HAPROXY_SERVER_STATE_BASE": str(proxy),
        "RAY_SERVE_HAPROXY_SERVER_STATE_FILE": str(proxy / "state"),
        "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0",
        "RAY_SERVE_HAPROXY_METRICS_PORT": str(ports + 2),
        "RAY_SERVE_HAPROXY_STATS_PORT": str(ports + 3),
        "RAY_SERVE_HAPROXY_NBTHREAD": "1",
        "RAY_SERVE_HAPROXY_HARD_STOP_AFTER_S": "10",
        "RAY_SERVE_HAPROXY_HEALTH_CHECK_INTER": "500ms",
        "RAY_SERVE_HAPROXY_RETRY_ON": "conn-failure empty-response",
        "RAY_SERVE_HAPROXY_RETRIES": "3",
        "RAY_SERVE_HAPROXY_TIMEOUT_CLIENT_S": "60",
        "RAY_SERVE_HAPROXY_TIMEOUT_CONNECT_S": "1",
        # Longer than any answer may take, so that a slow answer never becomes the proxy's 500.
        "RAY_SERVE_HAPROXY_TIMEOUT_SERVER_S": str(-(-config.deadline_ms // 1000) + 8),
    }
    return {**os.environ, **ours}
