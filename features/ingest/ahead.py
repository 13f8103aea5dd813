"""Work one step ahead: a thread makes the next value while the last one is used."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from typing import TypeVar

T = TypeVar("T")

_END_S = 5.0


def ahead(values: Iterator[T]) -> Iterator[T]:
    """Yield `values`, the next of which is made in a thread; an error comes in its turn.

    No more than two are alive at a time: the one that is used and the one that is made.
    """
    made: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue()
    wanted = threading.Semaphore()
    stopped = threading.Event()

    def work() -> None:
        try:
            while True:
                wanted.acquire()
                value = None if stopped.is_set() else next(values, None)
                made.put((value, None))
                if value is None:
                    return
                del value
        except BaseException as error:
            made.put((None, error))

    thread = threading.Thread(target=work, name="shortlist-load", daemon=True)
    thread.start()
    try:
        while True:
            value, error = made.get()
            wanted.release()
            if error is not None:
                raise error
            if value is None:
                return
            yield value
            del value
    finally:
        stopped.set()
        wanted.release()
        # It may wait for standard input, which nobody can stop: then it is left behind.
        thread.join(_END_S)
