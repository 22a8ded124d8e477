"""Tensors in a file from outside: where each lies, checked against the size of the file, and read as arrays."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np

MAX_TENSORS = 100_000
MAX_AXES = 8

# The bytes of a number of each type that is read.
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
         "uint8": 1, "bool": 1}  # fmt: skip


class Place(NamedTuple):
    """Where a tensor lies in its file."""

    dtype: str  # a key of `BYTES`
    shape: tuple[int, ...]
    offset: int  # in bytes, from the beginning of the file

    @property
    def num_bytes(self) -> int:
        """The bytes that the tensor takes in the file."""
        return math.prod(self.shape) * BYTES[self.dtype]


class TensorFile:
    """The tensors of a file.

    Args:
        path: the file.
        places: where each tensor lies, by name.

    Raises:
        ValueError: a tensor has no possible shape, or does not lie in the file.
    """

    def __init__(self, path: Path, places: Mapping[str, Place]):
        self.path = path
        self.places = dict(places)
        size = path.stat().st_size
        if len(self.places) > MAX_TENSORS:
            raise ValueError(f"it holds more than {MAX_TENSORS:,} tensors")
        for name, place in self.places.items():
            require_shape(name, place.shape)
            if place.offset < 0 or place.offset + place.num_bytes > size:
                raise ValueError(f"the tensor {name!r:.80} does not lie in the file")

    def read(self, name: str) -> np.ndarray:
        """The tensor as float32."""
        place = self.places[name]
        stored = "uint16" if place.dtype == "bfloat16" else place.dtype
        count = math.prod(place.shape)
        array = np.fromfile(self.path, np.dtype(stored).newbyteorder("<"), count, offset=place.offset)
        if place.dtype == "bfloat16":  # the upper half of a float32
            array = (array.astype("uint32") << 16).view("float32")
        return array.reshape(place.shape).astype("float32")


def require_shape(name: str, shape: object) -> None:
    """Raises ValueError unless the shape is a tuple of a few whole numbers, none of them negative."""
    is_shape = isinstance(shape, tuple) and len(shape) <= MAX_AXES
    if not (is_shape and all(type(size) is int and 0 <= size < 2**48 for size in shape)):  # type: ignore[attr-defined]
        raise ValueError(f"the tensor {name!r:.80} has the impossible shape {shape!r:.80}")
