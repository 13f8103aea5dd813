"""Work one step ahead: a thread makes the next value while the last one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

_POLL_S = 0.1
_END_S = 5.0


def ahead(values: Iterator[T]) -> Iterator[T]:
    """Yield `values`, the next of which is made in a thread; an error comes in its turn."""
    made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(maxsize=1)
    stopped = threading.Event()

    def put(value: T | None, error: BaseException | None = None) -> None:
        while not stopped.is_set():
            try:
                made.put((value, error), timeout=_POLL_S)
                return
            except queue.Full:
                continue

    def work() -> None:
        try:
            for value in values:
                put(value)
                if stopped.is_set():
                    return
        except BaseException as error:
            put(None, error)
        else:
            put(None)

    thread = threading.Thread(target=work, name="shortlist-load", daemon=True)
    thread.start()
    try:
        while True:
            value, error = made.get()
            if error is not None:
                raise error
            if value is None:
                return
            yield value
    finally:
        stopped.set()
        # It may wait for standard input, which nobody can stop: then it is left behind.
        thread.join(_END_S)
