"""Reading and writing .npy files: mapped, read-only, never pickled."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray


def map_array(path: Path) -> NDArray[Any]:
    """Map a .npy file read-only, so that all processes of a machine share its pages.

    The result is a plain array over the mapping: `numpy.memmap` itself costs several
    microseconds in every slice and gather. An array without elements cannot be mapped and is
    read.
    """
    mapped = np.load(path, mmap_mode=None if _is_empty(path) else "r", allow_pickle=False)
    return np.asarray(mapped).view(np.ndarray)


def _is_empty(path: Path) -> bool:
    with path.open("rb") as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, _ = read(file)
    return 0 in shape
