"""Ways to make a damaged or a hostile file out of a checkpoint's."""

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

Damage = Callable[[Path], Any]


class Trap:
    """Runs when unpickled."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def load(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def arrays(change: Callable[[dict[str, Any]], dict[str, Any]]) -> Damage:
    """Writes other arrays."""
    return lambda path: np.savez(path, **change(load(path)))


def first(change: Callable[[np.ndarray], Any]) -> Damage:
    """Changes the first array."""
    return arrays(lambda values: {**values, (name := next(iter(values))): change(values[name])})


def contents(change: Callable[[bytes], bytes]) -> Damage:
    """Other bytes in the file."""
    return lambda path: path.write_bytes(change(path.read_bytes()))


def rewrite(path: Path, data: Callable[[bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """Writes the archive anew with other contents for its first array."""
    with zipfile.ZipFile(path) as file:
        members = {name: file.read(name) for name in file.namelist()}
    with zipfile.ZipFile(path, "w", compression) as file:
        for place, (name, value) in enumerate(members.items()):
            file.writestr(name, data(value) if place == 0 else value)


def header(text: bytes) -> Damage:
    """Another header for the first array."""
    length = (len(text) + 1).to_bytes(2, "little")
    return lambda path: rewrite(path, lambda data: b"\x93NUMPY\x01\x00" + length + text + b"\n")


def bomb(path: Path) -> None:
    rewrite(path, lambda data: data + bytes(100_000_000), zipfile.ZIP_DEFLATED)


def bomb_that_hides_its_size(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        size = file.infolist()[0].file_size
    bomb(path)
    small, large = (number.to_bytes(4, "little") for number in (size, size + 100_000_000))
    path.write_bytes(path.read_bytes().replace(large, small))


def other_compression(data: bytes) -> bytes:
    """Says that it is compressed, which its bytes are not."""
    changed = bytearray(data)
    for place in changed.index(b"PK\x03\x04") + 8, changed.index(b"PK\x01\x02") + 10:
        changed[place : place + 2] = (8).to_bytes(2, "little")
    return bytes(changed)


def folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def link_out_of_the_folder(path: Path) -> None:
    path.symlink_to(path.rename(path.parent.parent / f"outside-{path.name}"))


DAMAGES: dict[str, Damage] = {
    "truncated": contents(lambda data: data[:-100]),
    "no archive": contents(lambda data: b"weights" * 1000),
    "other bytes": contents(lambda data: data.replace(b"NUMPY", b"NUMPX")),
    "a folder in its place": folder_in_its_place,
    "a link out of the folder": link_out_of_the_folder,
    "pickled objects": first(lambda _: np.array([Trap()], object)),
    "another shape": first(lambda array: array[..., None]),
    "another type": first(lambda array: array.astype(">f4")),
    "columns first": arrays(lambda values: {name: np.asfortranarray(array) for name, array in values.items()}),
    "a missing array": arrays(lambda values: dict([*values.items()][1:])),
    "an extra array": arrays(lambda values: {**values, "../../outside": np.zeros(3)}),
    "a bomb": bomb,
    "a bomb that hides its size": bomb_that_hides_its_size,
    "a header of 2^60 entries": header(
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1073741824, 1073741824), }"
    ),
    "code for a header": header(b"__import__('os')._exit(3)".ljust(117)),
    "a nested header": header(b"(" * 900),
    "another compression": contents(other_compression),
}
