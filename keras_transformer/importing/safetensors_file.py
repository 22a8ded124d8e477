"""Reads where tensors lie in a safetensors file: a header in JSON, then the numbers.

Format: https://huggingface.co/docs/safetensors, "Format".
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from keras_transformer.importing.tensors import Place, TensorFile

MAX_HEADER_BYTES = 16 * 2**20
TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip


def open_safetensors(path: Path) -> TensorFile:
    """The tensors of a file.

    Raises:
        ValueError: the file is damaged, or is no safetensors file.
    """
    with path.open("rb") as file:
        num_bytes = int.from_bytes(file.read(8), "little")
        if not 2 <= num_bytes <= MAX_HEADER_BYTES:
            raise ValueError(f"expected a header of 2 to {MAX_HEADER_BYTES:,} bytes; it says {num_bytes:,}")
        header = json.loads(file.read(num_bytes).decode("utf-8"))
    if not isinstance(header, dict):
        raise ValueError("its header is no object")
    header.pop("__metadata__", None)
    tensors = TensorFile(path, {name: _place_of_entry(name, entry, 8 + num_bytes) for name, entry in header.items()})
    _check_that_nothing_is_between(tensors, 8 + num_bytes)
    return tensors


def _place_of_entry(name: str, entry: Any, start: int) -> Place:
    """Where a tensor lies; the numbers of all tensors begin at `start`."""
    if not isinstance(entry, dict) or entry.keys() != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"expected type, shape and offsets of the tensor {name!r:.80}; received {entry!r:.80}")
    dtype, shape, offsets = entry["dtype"], entry["shape"], entry["data_offsets"]
    if dtype not in list(TYPES):  # a list, because a type that is a list cannot be looked up in a dictionary
        raise ValueError(f"the tensor {name!r:.80} has the type {dtype!r:.20}, which is not read")
    are_numbers = [
        isinstance(each, list) and all(type(one) is int and one >= 0 for one in each) for each in (shape, offsets)
    ]
    if not all(are_numbers) or len(offsets) != 2:
        raise ValueError(f"the tensor {name!r:.80} has the shape {shape!r:.80} and the offsets {offsets!r:.80}")
    place = Place(TYPES[dtype], tuple(shape), start + offsets[0])
    if place.num_bytes != offsets[1] - offsets[0]:
        raise ValueError(f"the tensor {name!r:.80} takes {place.num_bytes:,} bytes; its offsets are {offsets}")
    return place


def _check_that_nothing_is_between(tensors: TensorFile, start: int) -> None:
    """Raises ValueError unless the tensors fill the file without a gap and without overlapping, as the format says."""
    for place in sorted(tensors.places.values(), key=lambda place: (place.offset, place.num_bytes)):
        if place.offset != start:
            raise ValueError(f"its tensors leave a gap or overlap at byte {start:,}")
        start += place.num_bytes
    if start != tensors.path.stat().st_size:
        raise ValueError("it holds something besides its tensors")
