"""The few parts of HTTP that the service needs on top of ASGI, without a framework.

A no-op through FastAPI's validation was measured at half the requests per second of a raw
handler, and the dispatcher here is two dictionary look-ups.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, MutableMapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, unquote_to_bytes

import msgspec
from msgspec import Struct

from features.ids import id_problem
from serve.problems import ProblemError, from_decoding

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON: Header = (b"content-type", b"application/json")

# An early answer closes the connection; what the client is still sending then makes the
# kernel throw the answer away. So a body that is too long is read, and dropped, up to here.
_DISCARD = 64 * 2**20


class Disconnected(Exception):
    """The client went away before its request was complete."""


@dataclass(slots=True)
class Reply:
    """A complete answer."""

    status: int
    body: bytes
    headers: Sequence[Header] = (JSON,)


async def read_json(scope: Scope, receive: Receive, limit: int, seconds: float) -> bytes:
    """Read a JSON body.

    Parameters
    ----------
    scope, receive
        Of ASGI.
    limit : int
        Longest body, in bytes; enforced while it is read, so chunked bodies too.
    seconds : float
        Longest time until it is there.

    Raises
    ------
    ProblemError
        408 for a slow body, 413 for a longer one, 415 for another content type.
    Disconnected
        The client went away.
    """
    declared = 0
    media = None
    for name, value in scope["headers"]:
        if name == b"content-type":
            media = value
        elif name == b"content-length":
            # The HTTP server refused a length that is no number already.
            declared = int(value)
    message = await receive()
    body: bytes = message.get("body", b"")
    size = len(body)
    if message.get("more_body", False):
        try:
            async with asyncio.timeout(seconds):
                body, size = await _read_rest(receive, body, limit)
        except TimeoutError:
            raise ProblemError(
                408, "request_timeout", f"the body was not sent within {seconds:g} s"
            ) from None
    elif message["type"] == "http.disconnect":
        raise Disconnected
    if size > limit:
        raise ProblemError(
            413,
            "body_too_large",
            f"the body has {max(size, declared)} bytes, at most {limit} may be sent",
        )
    _check_media(media)
    return body


async def _read_rest(receive: Receive, first: bytes, limit: int) -> tuple[bytes, int]:
    """Return the body, or nothing of one that is longer than `limit`, and its size so far."""
    parts, size = [first], len(first)
    while size <= _DISCARD:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise Disconnected
        part = message.get("body", b"")
        size += len(part)
        if size <= limit:
            parts.append(part)
        else:
            parts.clear()
        if not message.get("more_body", False):
            break
    return b"".join(parts), size


def _check_media(media: bytes | None) -> None:
    if media == b"application/json":
        return
    kind, _, parameters = (media or b"").decode("latin-1").partition(";")
    charset = parameters.strip().lower().removeprefix("charset=").strip('"')
    if kind.strip().lower() == "application/json" and charset in ("", "utf-8", "utf8"):
        return
    sent = "no content type" if media is None else f"content type {media.decode('latin-1')[:80]!r}"
    raise ProblemError(415, "unsupported_media_type", f"{sent}; send 'application/json' in UTF-8")


def decode_json(body: bytes, decoder: msgspec.json.Decoder[Any], fields: Sequence[str]) -> Any:  # noqa: ANN401  # the decoder knows the type
    """Decode a body.

    Raises
    ------
    ProblemError
        400 for malformed JSON, 422 for a value that the type does not allow.
    """
    try:
        return decoder.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise from_decoding(error, fields, body) from None


def decode_query(scope: Scope, query: type[Struct], lists: frozenset[str]) -> Struct:
    """Decode query parameters; a list is given by repeating its name, ``name=`` is an empty text.

    Raises
    ------
    ProblemError
        422 for an unknown, repeated or invalid parameter.
    """
    raw: bytes = scope["query_string"]
    if not raw:
        return query()
    values: dict[str, Any] = {}
    try:
        pairs = parse_qsl(
            raw.decode("ascii"), keep_blank_values=True, errors="strict", max_num_fields=4096
        )
    except ValueError as error:
        raise ProblemError(422, "invalid_field", f"query string: {error}", pointer="") from None
    for name, text in pairs:
        if name in lists:
            values.setdefault(name, []).append(text)
        elif name in values:
            raise ProblemError(
                422, "invalid_field", f"parameter {name!r} is given twice", pointer=f"/{name}"
            )
        else:
            values[name] = text
    try:
        return msgspec.convert(values, query, strict=False)
    except msgspec.ValidationError as error:
        raise from_decoding(error, query.__struct_fields__, values) from None


def path_segments(scope: Scope) -> list[str]:
    """Return the decoded parts of the path; an encoded slash stays inside its part.

    Raises
    ------
    ProblemError
        422 for bytes that are no UTF-8.
    """
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    try:
        return [unquote_to_bytes(part).decode() for part in raw.partition(b"?")[0].split(b"/")[1:]]
    except UnicodeDecodeError:
        raise ProblemError(
            422, "invalid_field", "the path contains bytes that are not UTF-8", pointer="/id"
        ) from None


def check_id(text: str) -> str:
    """Return a path parameter if it can be an id.

    Raises
    ------
    ProblemError
        422 if it cannot.
    """
    problem = id_problem(text)
    if problem is not None:
        raise ProblemError(422, "invalid_field", f"the id {problem}", pointer="/id")
    return text


async def send_reply(send: Send, reply: Reply) -> None:
    """Send an answer."""
    headers = [*reply.headers, (b"content-length", b"%d" % len(reply.body))]
    await send({"type": "http.response.start", "status": reply.status, "headers": headers})
    await send({"type": "http.response.body", "body": reply.body})


def problem_reply(error: ProblemError) -> Reply:
    """Return the answer for a problem."""
    headers: list[Header] = [(b"content-type", b"application/problem+json")]
    if error.retry_after_s is not None:
        headers.append((b"retry-after", b"%d" % error.retry_after_s))
    if error.allow is not None:
        headers.append((b"allow", error.allow.encode()))
    if error.status in (408, 413):
        headers.append((b"connection", b"close"))
    return Reply(error.status, msgspec.json.encode(error.document()), headers)
