"""Reads tensors from files from outside, of safetensors or of PyTorch: finds where each lies, and checks that it lies
in its file.

A PyTorch file is a pickle, which could call any function. Here it may make tensors and ordered dictionaries alone.
PyTorch's format is a zip archive whose index is a pickle, or, in old files, a row of pickles.
"""

from __future__ import annotations

import io
import math
import pickle
import struct
import zipfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save_file

from keras_transformer.core.files import write_whole

MAX_TENSORS = 100_000
MAX_AXES = 8
BLOCK = 4_096  # rows of a matrix, taken at once

# The bytes of a number of each type that is read.
BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2, "int64": 8, "int32": 4, "int16": 2, "int8": 1,
         "uint8": 1, "bool": 1}  # fmt: skip
MAX_HEADER_BYTES = 16 * 2**20
TYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
MAX_PICKLE_BYTES = 4 * 2**20  # an index may name many such files
# The operations of a pickle that `torch.save` writes. DUP, by which 79 bytes describe 2^30 objects, is not among them.
OPERATIONS = (
    "APPEND", "APPENDS", "BINFLOAT", "BINGET", "BININT", "BININT1", "BININT2", "BINPERSID", "BINPUT", "BINUNICODE",
    "BUILD", "EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "GLOBAL", "LONG1", "LONG_BINGET", "LONG_BINPUT", "MARK",
    "NEWFALSE", "NEWTRUE", "NONE", "PROTO", "REDUCE", "SETITEM", "SETITEMS", "STOP", "TUPLE", "TUPLE1", "TUPLE2",
    "TUPLE3",
)  # fmt: skip
# What a damaged pickle or archive raises.
DAMAGED_PICKLE = (
    ValueError, LookupError, TypeError, AttributeError, EOFError, RuntimeError, OverflowError, pickle.UnpicklingError,
    struct.error, zipfile.BadZipFile,
)  # fmt: skip
MAGIC = 0x1950A86A20F9469CFC6C  # the first pickle of a file of the older form
PROTOCOL = 1001  # the second one
STORAGES = {
    "DoubleStorage": "float64", "FloatStorage": "float32", "HalfStorage": "float16", "BFloat16Storage": "bfloat16",
    "LongStorage": "int64", "IntStorage": "int32", "ShortStorage": "int16", "CharStorage": "int8",
    "ByteStorage": "uint8", "BoolStorage": "bool",
}  # fmt: skip


class Place(NamedTuple):
    """Where a tensor lies."""

    path: Path
    dtype: str  # a key of `BYTES`
    shape: tuple[int, ...]
    offset: int  # in bytes, from the beginning of its file

    @property
    def num_bytes(self) -> int:
        """The bytes that the tensor takes in the file."""
        return math.prod(self.shape) * BYTES[self.dtype]


class TensorFile:
    """The tensors of a file, or of the files that an index names.

    Args:
        path: the file, or the index.
        places: where each tensor lies, by name.

    Raises:
        ValueError: a tensor has no possible shape, or does not lie in its file.
    """

    def __init__(self, path: Path, places: Mapping[str, Place]):
        self.path = path
        self.places = dict(places)
        if len(self.places) > MAX_TENSORS:
            raise ValueError(f"it holds more than {MAX_TENSORS:,} tensors")
        sizes = {file: file.stat().st_size for file in {place.path for place in self.places.values()}}
        self.num_bytes = sum(sizes.values())
        for name, place in self.places.items():
            require_shape(name, place.shape)
            if place.offset < 0 or place.offset + place.num_bytes > sizes[place.path]:
                raise ValueError(f"the tensor {name!r:.80} does not lie in the file")

    def read(self, name: str, rows: np.ndarray | None = None) -> np.ndarray:
        """Reads a tensor as float32.

        Args:
            name: its name.
            rows: the places on its first axis that are taken, in this order; by default all. Few are in memory twice.
        """
        place = self.places[name]
        dtype = np.dtype("uint16" if place.dtype == "bfloat16" else place.dtype).newbyteorder("<")
        if rows is None or 0 in place.shape:
            array = np.fromfile(place.path, dtype, math.prod(place.shape), offset=place.offset).reshape(place.shape)
            return _numbers(array if rows is None else array[rows], place.dtype)
        taken = np.empty((len(rows), *place.shape[1:]), "float32")
        for block in blocks(len(rows)):
            stored = np.memmap(place.path, dtype, "r", place.offset, place.shape)  # anew, so that old pages are free
            taken[block] = _numbers(stored[rows[block]], place.dtype)
        return taken


def blocks(count: int) -> Iterator[slice]:
    """Yields `count` rows in parts."""
    return (slice(first, first + BLOCK) for first in range(0, count, BLOCK))


def _numbers(array: np.ndarray, dtype: str) -> np.ndarray:
    """Returns stored numbers as float32."""
    if dtype == "bfloat16":  # the upper half of a float32
        return (array.astype("uint32") << 16).view("float32")
    return array.astype("float32", copy=False)


def require_shape(name: str, shape: tuple[int, ...]) -> None:
    """Raises ValueError unless the shape has a few whole numbers, none of them negative."""
    if len(shape) > MAX_AXES or not all(type(size) is int and 0 <= size < 2**48 for size in shape):
        raise ValueError(f"the tensor {name!r:.80} has the impossible shape {shape!r:.80}")


def open_safetensors(path: Path) -> TensorFile:
    """Finds the tensors of a file. The package safetensors checks its header, and that they fill the file.

    It gives NumPy no numbers of bfloat16, so `TensorFile` reads the numbers, as it does PyTorch's.

    Raises:
        ValueError: the file is damaged, or is no safetensors file.
    """
    with path.open("rb") as file:
        num_bytes = int.from_bytes(file.read(8), "little")
    if num_bytes > MAX_HEADER_BYTES:  # the package takes memory for more
        raise ValueError(f"expected a header of at most {MAX_HEADER_BYTES:,} bytes; it says {num_bytes:,}")
    places, start = {}, 8 + num_bytes
    try:
        with safe_open(path, "np") as tensors:
            for name in tensors.offset_keys():  # one lies behind the other
                entry = tensors.get_slice(name)
                if entry.get_dtype() not in TYPES:
                    raise ValueError(f"the tensor {name!r:.80} has numbers of the type {entry.get_dtype()}")
                places[name] = Place(path, TYPES[entry.get_dtype()], tuple(entry.get_shape()), start)
                start += places[name].num_bytes
    except SafetensorError as error:
        raise ValueError(str(error)[:200]) from error
    return TensorFile(path, places)


def write_safetensors(path: Path, arrays: Mapping[str, np.ndarray]) -> None:
    """Writes tensors in float32, each under its name."""
    stored = {name: np.asarray(array, "<f4", order="C") for name, array in arrays.items()}
    with write_whole(path) as aside:
        save_file(stored, aside, {"format": "pt"})  # other readers ask for the format


class StorageType(NamedTuple):
    """Stands for a class of storages, such as `torch.FloatStorage`."""

    dtype: str


class Storage(NamedTuple):
    """A row of numbers in the file, on which tensors lie."""

    dtype: str
    key: str
    length: int


class Tensor(NamedTuple):
    """A tensor as the pickle describes it."""

    storage: Storage
    first: int  # the place of its first number in the storage
    shape: tuple[int, ...]


class Entries(dict):
    """Stands for a dictionary and for `collections.OrderedDict`, which a pickle makes empty and then fills.

    Keys are text alone: the hash of a tuple may take for ever, or the whole stack.
    """

    def __init__(self) -> None:
        super().__init__()

    def __setitem__(self, name: object, value: object) -> None:
        if type(name) is not str:
            raise ValueError(f"expected the name of a tensor; received {type(name).__name__}")
        super().__setitem__(name, value)


def open_torch(path: Path) -> TensorFile:
    """Finds the tensors of a file of `torch.save`, by their names in its dictionary.

    Raises:
        ValueError: the file is damaged, is of another kind, or holds more than tensors.
    """
    try:
        with path.open("rb") as file:
            is_archive = file.read(4) == b"PK\x03\x04"
        entries, start_of = _read_archive(path) if is_archive else _read_row(path)
        return TensorFile(path, {name: _place(path, name, tensor, start_of) for name, tensor in entries.items()})
    except DAMAGED_PICKLE as error:
        raise ValueError(" ".join(str(error).split())[:200] or type(error).__name__) from error


def _place(path: Path, name: str, tensor: object, start_of: Callable[[Storage], int]) -> Place:
    if not isinstance(tensor, Tensor):
        raise ValueError(f"expected a tensor under {name!r:.80}; received {type(tensor).__name__}")
    place = Place(path, tensor.storage.dtype, tensor.shape, 0)
    size = BYTES[place.dtype]
    if tensor.first * size + place.num_bytes > tensor.storage.length * size:
        raise ValueError(f"the tensor {name!r:.80} does not lie in its storage")
    return place._replace(offset=start_of(tensor.storage) + tensor.first * size)


# Python's own unpickler in Python, of which type checkers know nothing: the one in C takes memory for whatever place of
# its memo a pickle names.
PythonUnpickler: Any = vars(pickle)["_Unpickler"]


class _Operations(dict):
    """What Python's unpickler does for each of `OPERATIONS`."""

    def __init__(self) -> None:
        codes = [getattr(pickle, name)[0] for name in OPERATIONS]
        super().__init__((code, PythonUnpickler.dispatch[code]) for code in codes)

    def __missing__(self, code: int) -> None:
        raise ValueError(f"its pickle has the operation {bytes([code])!r}, which `torch.save` never writes")


class _TensorUnpickler(PythonUnpickler):
    """Unpickles tensors and dictionaries alone.

    A pickle may name an object again, and so build one of 2^n parts in 2n bytes: of what it builds nothing but text and
    whole numbers is hashed, compared or shown.
    """

    dispatch = _Operations()

    def entries(self) -> Entries:
        """Unpickles a dictionary."""
        found = self.load()
        if not isinstance(found, Entries):
            raise ValueError(f"expected a dictionary of tensors; received {type(found).__name__}")
        return found

    def _make_dictionary(self) -> None:
        self.append(Entries())

    def _drop_attributes(self) -> None:
        self.stack.pop()
        if type(self.stack[-1]) is not Entries:
            raise ValueError("it sets attributes, which no file of weights needs")

    dispatch[pickle.EMPTY_DICT[0]] = _make_dictionary
    dispatch[pickle.BUILD[0]] = _drop_attributes

    def find_class(self, module: str, name: str) -> Callable[..., Tensor] | type[Entries] | StorageType:
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuilt
        if (module, name) == ("collections", "OrderedDict"):
            return Entries
        if module == "torch" and name in STORAGES:
            return StorageType(STORAGES[name])
        raise ValueError(f"it calls {module}.{name}, which no file of weights needs"[:160])

    def persistent_load(self, pid: Any) -> Storage:
        kind, storage_type, key, _, count, *view = pid
        if kind != "storage" or not isinstance(storage_type, StorageType) or any(each is not None for each in view):
            raise ValueError("expected a whole storage of a known type")
        if type(key) is not str or type(count) is not int or count < 0:
            raise ValueError("expected a storage with a key and a size")
        return Storage(storage_type.dtype, key, count)


def _rebuilt(*arguments: Any) -> Tensor:
    """Stands for `torch._utils._rebuild_tensor_v2`. Whether the tensor has a gradient, and hooks, follow."""
    storage, first, shape, strides, *_ = arguments
    if not all(type(sizes) is tuple and {int}.issuperset(map(type, sizes)) for sizes in (shape, strides)):
        raise ValueError("expected a tensor whose shape and strides are whole numbers")
    require_shape("of the pickle", shape)
    if not isinstance(storage, Storage) or type(first) is not int or first < 0:
        raise ValueError("expected a tensor of a storage, and the place of its first number")
    expected, step = [], 1
    for size in reversed(shape):
        expected.append(step)
        step *= size
    if any(size > 1 and one != other for size, one, other in zip(shape, strides, reversed(expected), strict=True)):
        raise ValueError(f"expected a tensor whose numbers stand in order; received the strides {strides!r:.80}")
    return Tensor(storage, first, shape)


def _read_archive(path: Path) -> tuple[Entries, Callable[[Storage], int]]:
    """Reads the dictionary in an archive; returns it, and what tells where a storage begins."""
    with zipfile.ZipFile(path) as archive, path.open("rb") as file:
        infos = archive.infolist()
        if len(infos) > MAX_TENSORS:
            raise ValueError(f"it holds more than {MAX_TENSORS:,} files")
        files = {info.filename.partition("/")[2]: info for info in infos}
        entries = _TensorUnpickler(io.BytesIO(_content(file, files["data.pkl"]))).entries()
        if "byteorder" in files and _content(file, files["byteorder"]) != b"little":
            raise ValueError("its numbers are not little-endian")
        starts = {name.removeprefix("data/"): _start(file, info) for name, info in files.items() if "data/" in name}
    sizes = {name.removeprefix("data/"): info.file_size for name, info in files.items()}

    def start_of(storage: Storage) -> int:
        if storage.length * BYTES[storage.dtype] > sizes[storage.key]:
            raise ValueError(f"the storage {storage.key!r:.40} is longer than its file")
        return starts[storage.key]

    return entries, start_of


def _start(file: io.BufferedReader, info: zipfile.ZipInfo) -> int:
    """Finds where the content of a file in an archive begins. PyTorch does not compress."""
    if info.compress_type != zipfile.ZIP_STORED or info.compress_size != info.file_size:
        raise ValueError(f"expected no compressed files; {info.filename!r:.60} is one")
    file.seek(max(info.header_offset, 0))  # it may be negative in a damaged archive
    header = file.read(30)
    if info.header_offset < 0 or header[:4] != b"PK\x03\x04" or len(header) < 30:
        raise ValueError(f"{info.filename!r:.60} has no header")
    lengths = sum(int.from_bytes(header[at : at + 2], "little") for at in (26, 28))  # name and extra
    return info.header_offset + 30 + lengths


def _content(file: io.BufferedReader, info: zipfile.ZipInfo) -> bytes:
    if info.file_size > MAX_PICKLE_BYTES:
        raise ValueError(f"{info.filename!r:.60} is larger than {MAX_PICKLE_BYTES:,} bytes")
    file.seek(_start(file, info))
    return file.read(info.file_size)


def _read_row(path: Path) -> tuple[Entries, Callable[[Storage], int]]:
    """Reads the dictionary in a file of the older form; returns it, and what tells where a storage begins."""
    with path.open("rb") as file:
        pickles = io.BytesIO(file.read(MAX_PICKLE_BYTES))
        for expected in (MAGIC, PROTOCOL):
            if _TensorUnpickler(pickles).load() != expected:
                raise ValueError("it is no file of `torch.save`")
        if _TensorUnpickler(pickles).entries().get("little_endian") is not True:
            raise ValueError("its numbers are not little-endian")
        entries, keys = _TensorUnpickler(pickles).entries(), _TensorUnpickler(pickles).load()
        storages = {tensor.storage.key: tensor.storage for tensor in entries.values() if isinstance(tensor, Tensor)}
        starts, place = {}, pickles.tell()
        if type(keys) is not list or len(keys) > MAX_TENSORS or any(type(key) is not str for key in keys):
            raise ValueError(f"expected the names of at most {MAX_TENSORS:,} storages")
        for key in keys:
            file.seek(place)
            count = int.from_bytes(file.read(8), "little")
            if count != storages[key].length:
                raise ValueError(f"the storage {key!r:.40} has {count:,} numbers, not {storages[key].length:,}")
            starts[key] = place + 8
            place += 8 + count * BYTES[storages[key].dtype]
    return entries, lambda storage: starts[storage.key]
