"""Work that is done again and again behind the requests."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from features.errors import ShortlistError
from serve.logs import NAME

_LOGGER = logging.getLogger(NAME)


async def repeat(work: Callable[[], Awaitable[object]], every_s: float) -> None:
    """Do `work` every `every_s` seconds until cancelled; one that fails is done again."""
    while True:
        await asyncio.sleep(every_s)
        try:
            await work()
        except ShortlistError as error:
            _LOGGER.warning("%s: %s", work.__name__, error)
        except Exception:
            _LOGGER.exception("%s failed and is tried again", work.__name__)
