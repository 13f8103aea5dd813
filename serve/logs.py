"""Structured logs: one JSON object a line, with request id and release where there is one."""

from __future__ import annotations

import json
import logging
import sys
from datetime import UTC, datetime
from logging.handlers import RotatingFileHandler
from pathlib import Path

NAME = "shortlist"

_CONTEXT = ("request_id", "rec_id", "release", "route", "status", "ms")


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line, without its end."""
        moment = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, object] = {
            "time": moment.isoformat(timespec="milliseconds").replace("+00:00", "Z"),
            "level": record.levelname.lower(),
            "message": record.getMessage(),
        }
        for key in _CONTEXT:
            if (value := getattr(record, key, None)) is not None:
                line[key] = value
        if record.exc_info:
            line["exception"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=False)


def setup(level: str, path: Path | None = None) -> logging.Logger:
    """Send the logger of Shortlist to a file, or to standard error.

    Parameters
    ----------
    level : str
        Least severe level that is written.
    path : Path, optional
        File for each process; kept to four files of 16 MiB.

    Returns
    -------
    logging.Logger
    """
    logger = logging.getLogger(NAME)
    logger.setLevel(level)
    logger.propagate = False
    for old in logger.handlers[:]:
        logger.removeHandler(old)
        old.close()
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handler = RotatingFileHandler(path, maxBytes=16 * 2**20, backupCount=3, encoding="utf-8")
    handler.setFormatter(JsonFormatter())
    logger.addHandler(handler)
    return logger
