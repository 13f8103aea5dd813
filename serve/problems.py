"""Problem documents (RFC 9457): what every error of the API looks like.

A problem has a stable ``code`` for programs, a ``detail`` that names the value and what was
expected for people, and a ``pointer`` (RFC 6901) to the field of the request it is about.
"""

from __future__ import annotations

import contextlib
import difflib
import re
from collections.abc import Iterable, Iterator
from typing import Annotated

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType

from features.errors import ShortlistError
from serve.batcher import Closed, Expired, QueueFull

TITLES = {
    400: "The request cannot be read",
    404: "Not found",
    405: "Method not allowed",
    408: "The request came too slowly",
    413: "The body is too large",
    415: "The content type is not supported",
    422: "The request is not valid",
    429: "Too many requests are waiting",
    500: "Internal error",
    503: "Not available now",
}


class Problem(Struct, frozen=True, omit_defaults=True):
    """The body of every 4xx and 5xx answer."""

    type: Annotated[str, Meta(description="Address of the code's description in /docs.")]
    title: Annotated[str, Meta(description="The same for every problem of this status.")]
    status: Annotated[int, Meta(description="HTTP status.")]
    detail: Annotated[str, Meta(description="What was wrong, the value, and what was expected.")]
    code: Annotated[str, Meta(description="Stable name of the problem, for programs.")]
    pointer: Annotated[
        str | UnsetType,
        Meta(description="JSON pointer to the field; `/name` for a path or query parameter."),
    ] = UNSET


class ProblemError(ShortlistError):
    """An error that becomes a problem document.

    Parameters
    ----------
    status : int
        HTTP status.
    code : str
        Stable name of the problem.
    detail : str
        What was wrong, the value, and what was expected.
    pointer : str or None
        JSON pointer to the field.
    retry_after_s : int or None
        Seconds to wait before trying again; sent as ``Retry-After``.
    allow : str or None
        Methods that the path answers; sent as ``Allow``.
    """

    def __init__(
        self,
        status: int,
        code: str,
        detail: str,
        *,
        pointer: str | None = None,
        retry_after_s: int | None = None,
        allow: str | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code
        self.detail = detail
        self.pointer = pointer
        self.retry_after_s = retry_after_s
        self.allow = allow

    def document(self) -> Problem:
        """Return the body of the answer."""
        return Problem(
            type=f"/docs#problem-{self.code}",
            title=TITLES[self.status],
            status=self.status,
            detail=self.detail,
            code=self.code,
            pointer=UNSET if self.pointer is None else self.pointer,
        )


@contextlib.contextmanager
def queue_problems() -> Iterator[None]:
    """Turn what a queue says into a problem.

    Raises
    ------
    ProblemError
        429 for a full queue, 503 for a passed deadline or a service that stops.
    """
    try:
        yield
    except QueueFull as error:
        raise ProblemError(429, "overloaded", str(error), retry_after_s=1) from None
    except Expired as error:
        raise ProblemError(503, "deadline_exceeded", str(error), retry_after_s=1) from None
    except Closed as error:
        raise ProblemError(503, "not_ready", str(error), retry_after_s=1) from None


_PLACE = re.compile(r" - at (?:`key` in )?`\$?([^`]*)`$")
_STEP = re.compile(r"\.([^.\[\]]+)|\[(\d+|\.\.\.)\]")
_UNKNOWN = re.compile(r"unknown field `([^`]*)`")
_MISSING = re.compile(r"missing required field `([^`]*)`")


def _pointer(place: str) -> str:
    steps = [name or index for name, index in _STEP.findall(place)]
    return "".join("/" + step.replace("~", "~0").replace("/", "~1") for step in steps)


def nearest(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that `name` was probably meant to be, if any is close."""
    found = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return found[0] if found else None


def from_decoding(error: Exception, fields: Iterable[str], sent: object) -> ProblemError:
    """Translate an error of decoding to a problem.

    Parameters
    ----------
    error : Exception
        ``msgspec.ValidationError`` gives a 422, malformed JSON a 400.
    fields : iterable of str
        Names that the object may have, for the hint at an unknown one.
    sent : object
        The body (bytes), or an unchecked value, to show what was wrong.

    Returns
    -------
    ProblemError
    """
    text = str(error)
    if not isinstance(error, msgspec.ValidationError):
        return ProblemError(400, "invalid_json", f"{text}; send one JSON value in UTF-8")
    place = _PLACE.search(text)
    pointer = _pointer(place.group(1)) if place else ""
    text = _PLACE.sub("", text)
    if unknown := _UNKNOWN.search(text):
        name = unknown.group(1)
        hint = nearest(name, fields)
        meant = f"; did you mean {hint!r}?" if hint else "; see /docs for the known ones"
        return ProblemError(
            422, "unknown_field", f"unknown field {name!r}{meant}", pointer=f"{pointer}/{name}"
        )
    if missing := _MISSING.search(text):
        name = missing.group(1)
        return ProblemError(
            422, "missing_field", f"field {name!r} is required", pointer=f"{pointer}/{name}"
        )
    text = text[0].lower() + text[1:]
    return ProblemError(
        422, "invalid_field", f"{text}, got {_shown(sent, pointer)}", pointer=pointer
    )


def _shown(value: object, pointer: str) -> str:
    """Return the value at `pointer` as JSON, shortened."""
    if isinstance(value, bytes):
        try:
            value = msgspec.json.decode(value)
        except (msgspec.DecodeError, RecursionError):
            return "another value"  # beyond what any number or nesting may be
    for step in pointer.split("/")[1:]:
        step = step.replace("~1", "/").replace("~0", "~")
        if isinstance(value, dict) and step in value:
            value = value[step]
        elif isinstance(value, list) and step.isdecimal() and int(step) < len(value):
            value = value[int(step)]
        else:
            return "another value"
    text = msgspec.json.encode(value).decode()
    return text if len(text) <= 80 else f"{text[:77]}…"
