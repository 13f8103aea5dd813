"""The few HTTP calls that commands make of a running service; standard library only."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from features.errors import InputError, ShortlistError

TIMEOUT_S = 10.0


class ServiceUnreachable(ShortlistError):
    """No service answers at the URL."""


class RequestRefused(ShortlistError):
    """The service answered with a problem document."""


def call(url: str, path: str, body: object = None) -> dict[str, Any]:
    """GET `path`, or POST `body` to it as JSON, and return the parsed answer.

    Raises
    ------
    InputError
        `url` is no http or https URL.
    ServiceUnreachable
        Nothing answers there.
    RequestRefused
        The answer has a status of 4xx or 5xx; the message has its title, detail and field.
    """
    if urlsplit(url).scheme not in ("http", "https"):
        raise InputError(f"url {url!r}: expected http://HOST:PORT")
    request = urllib.request.Request(  # noqa: S310 - the scheme is checked above
        url.rstrip("/") + path,
        None if body is None else json.dumps(body).encode(),
        {"Content-Type": "application/json"},
    )
    try:
        with urllib.request.urlopen(request, timeout=TIMEOUT_S) as response:  # noqa: S310
            answer: dict[str, Any] = json.loads(response.read())
            return answer
    except urllib.error.HTTPError as error:
        text = error.read().decode(errors="replace")
        try:
            problem = json.loads(text)
            field = f" ({problem['pointer']})" if problem.get("pointer") else ""
            text = f"{problem['title']}: {problem['detail']}{field}"
        except (ValueError, KeyError, TypeError):
            text = text[:500]
        raise RequestRefused(f"{url}{path} answered {error.code}: {text}") from None
    except (urllib.error.URLError, TimeoutError, ConnectionError) as error:
        raise ServiceUnreachable(
            f"no service answers at {url} ({getattr(error, 'reason', error)}); start one with"
            " 'shortlist serve', or name another with --url"
        ) from None
