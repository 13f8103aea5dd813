"""What an external id, or another text from outside, may be."""

from __future__ import annotations

ID_LENGTH = 256
EVENT_TYPE_LENGTH = 64
TITLE_LENGTH = 1000
ATTRIBUTE_LENGTH = 10_000
CATEGORIES = 100
"""Most categories of an item; the name of each is as long as an id at most."""


def id_problem(text: str, longest: int = ID_LENGTH) -> str | None:
    """Return why `text` cannot be an id, or None if it can.

    An id has 1 to `longest` characters, any but NUL (PostgreSQL stores none) and halves of a
    surrogate pair (they are no UTF-8).
    """
    if not text:
        return "is empty"
    if len(text) > longest:
        return f"has {len(text)} characters, at most {longest} are allowed"
    if "\0" in text:
        return "contains the character NUL"
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        return "contains bytes that are not UTF-8"
    return None
