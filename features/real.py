"""Numbers and times from outside: what PostgreSQL can hold."""

from __future__ import annotations

LARGEST_FLOAT32 = 3.4028234663852886e38
SMALLEST_FLOAT32 = 1.1754943508222875e-38
_LARGEST_64 = 1.7976931348623157e308
# The years 1 to 9999, as unix seconds.
_EARLIEST, _LATEST = -62_135_596_800.0, 253_402_300_799.0


def is_float32(value: float) -> bool:
    """Return whether `value` is finite and no larger than a 32-bit float holds."""
    return -LARGEST_FLOAT32 <= value <= LARGEST_FLOAT32


def to_float32(value: float) -> float:
    """Return `value`, or 0 where a 32-bit float would lose it; PostgreSQL would refuse it."""
    return value if abs(value) >= SMALLEST_FLOAT32 else 0.0


def is_float64(value: float) -> bool:
    """Return whether `value` is finite and no larger than a 64-bit float holds."""
    return -_LARGEST_64 <= value <= _LARGEST_64


def is_moment(seconds: float) -> bool:
    """Return whether `seconds` since 1970 lie in the years 1 to 9999."""
    return _EARLIEST <= seconds <= _LATEST


def shown(value: float) -> str:
    """Return `value` for a message; an int may have more digits than Python writes."""
    return str(value) if is_float64(value) or isinstance(value, float) else "a huge integer"
