"""Rows of bulk calls and item fields: between the API's structs and the feature store's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import UNSET, Struct

from features.events import EventRow
from features.items import ItemInput
from serve.problems import ProblemError, from_decoding
from serve.schemas import MAX_ROWS, BulkResult, Event, Item, RowResult

RowStruct = TypeVar("RowStruct", Event, Item)

_JSON = msgspec.json.Decoder()
_RAW_ROWS = msgspec.json.Decoder(list[msgspec.Raw])


def fields_of(text: bytes, wanted: Sequence[str]) -> msgspec.Raw:
    """Return the wanted fields of an item; those it does not have are left out."""
    fields = _JSON.decode(text)
    return msgspec.Raw(
        msgspec.json.encode({name: fields[name] for name in wanted if name in fields})
    )


def read_rows(
    body: bytes, decoder: msgspec.json.Decoder[RowStruct], row_type: type[Struct]
) -> tuple[list[RowStruct | ProblemError], bool]:
    """Read one row or a list of rows; each row of a list is judged alone.

    Returns
    -------
    rows : list
        A row, or what is wrong with it.
    single : bool
        Whether the body was one row and not a list.

    Raises
    ------
    ProblemError
        The body is no JSON, is neither object nor list, or the list is empty or too long.
    """
    single = body.lstrip()[:1] != b"["
    try:
        raws = [msgspec.Raw(body)] if single else _RAW_ROWS.decode(body)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise from_decoding(error, (), body) from None
    if not 1 <= len(raws) <= MAX_ROWS:
        raise ProblemError(
            422, "invalid_field", f"{len(raws)} rows; send 1 to {MAX_ROWS} at once", pointer=""
        )
    rows: list[RowStruct | ProblemError] = []
    for raw in raws:
        try:
            rows.append(decoder.decode(raw))
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
            rows.append(from_decoding(error, row_type.__struct_fields__, bytes(raw)))
    return rows, single


def results_of(
    rows: Sequence[RowStruct | ProblemError],
    single: bool,
    id_of: Callable[[RowStruct], str],
    outcomes: Sequence[Any],
) -> BulkResult:
    """Join what was wrong with rows and what the database said of the others.

    Parameters
    ----------
    rows : sequence
        Of :func:`read_rows`.
    single : bool
        One row that was not a list: pointers are into it.
    id_of : callable
        Event or item id of a row.
    outcomes : sequence
        Of the good rows, in order, with ``status`` and ``reason``.
    """
    left = iter(outcomes)
    results = []
    for index, row in enumerate(rows):
        place = "" if single else f"/{index}"
        if isinstance(row, ProblemError):
            results.append(
                RowResult(
                    index,
                    "rejected",
                    code=row.code,
                    detail=row.detail,
                    pointer=f"{place}{row.pointer or ''}",
                )
            )
            continue
        outcome = next(left)
        result = RowResult(index, _STATUS[outcome.status], id=id_of(row))
        if outcome.reason is not None:
            code, colon, detail = outcome.reason.partition(": ")
            result.code, result.detail = (code, detail) if colon else ("invalid_row", code)
            result.pointer = place if place else UNSET
        results.append(result)
    number = Counter(result.status for result in results)
    return BulkResult(number["accepted"], number["duplicate"], number["rejected"], results)


# An item that is put again as it was has arrived too.
_STATUS: dict[str, Any] = {
    "accepted": "accepted",
    "created": "accepted",
    "updated": "accepted",
    "unchanged": "duplicate",
    "duplicate": "duplicate",
    "rejected": "rejected",
}


def event_row(event: Event) -> EventRow:
    """Return the row to store for an event."""
    return EventRow(
        user_id=event.user_id,
        item_id=event.item_id,
        event_type=event.event_type,
        value=event.value,
        occurred_at=None if event.occurred_at is None else event.occurred_at.timestamp(),
        event_id=event.event_id,
    )


def item_input(item: Item) -> ItemInput:
    """Return the row to store for an item."""
    return ItemInput(
        item_id=item.item_id,
        title=item.title,
        categories=item.categories,
        attributes=item.attributes,
        available=item.available,
        created_at=None if item.created_at is None else item.created_at.timestamp(),
    )
