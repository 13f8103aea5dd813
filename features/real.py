"""PostgreSQL's ``real``: what fits, and what is too small to be told from 0."""

from __future__ import annotations

_LARGEST = 3.4028234663852886e38
_SMALLEST = 1.1754943508222875e-38


def is_float32(value: float) -> bool:
    """Return whether `value` is finite and no larger than a 32-bit float holds."""
    return -_LARGEST <= value <= _LARGEST


def to_float32(value: float) -> float:
    """Return `value`, or 0 where a 32-bit float would lose it; PostgreSQL would refuse it."""
    return value if abs(value) >= _SMALLEST else 0.0
