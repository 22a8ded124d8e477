"""Ways to make a damaged or a hostile file out of a checkpoint's."""

from __future__ import annotations

import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np


class Trap:
    """Runs when unpickled."""

    sprung = False

    def __reduce__(self):
        return setattr, (Trap, "sprung", True)


def load(path: Path) -> dict[str, Any]:
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def save(path: Path, values: dict[str, Any], **more: Any) -> None:
    np.savez(path, **{**values, **more})


def first(change: Callable[[np.ndarray], Any]) -> Callable[[Path], None]:
    """Changes the first array."""

    def damage(path: Path) -> None:
        values = load(path)
        name = next(iter(values))
        save(path, {**values, name: change(values[name])})

    return damage


def folder_in_its_place(path: Path) -> None:
    path.unlink()
    path.mkdir()


def dangling_link(path: Path) -> None:
    path.unlink()
    path.symlink_to(path.parent / "nowhere")


def link_out_of_the_folder(path: Path) -> None:
    outside = path.rename(path.parent.parent / f"outside-{path.name}")
    path.symlink_to(outside)


def rewrite(path: Path, data: Callable[[bytes], bytes], compression: int = zipfile.ZIP_STORED) -> None:
    """Writes the archive anew with other contents for its first array."""
    with zipfile.ZipFile(path) as file:
        contents = {name: file.read(name) for name in file.namelist()}
    name = next(iter(contents))
    with zipfile.ZipFile(path, "w", compression) as file:
        for key, value in contents.items():
            file.writestr(key, data(value) if key == name else value)


def bomb(path: Path) -> None:
    rewrite(path, lambda data: data + bytes(100_000_000), zipfile.ZIP_DEFLATED)


def bomb_that_hides_its_size(path: Path) -> None:
    with zipfile.ZipFile(path) as file:
        size = file.infolist()[0].file_size
    bomb(path)
    small, large = (number.to_bytes(4, "little") for number in (size, size + 100_000_000))
    path.write_bytes(path.read_bytes().replace(large, small))


def header(text: bytes) -> Callable[[Path], None]:
    """Another header for the first array."""
    length = (len(text) + 1).to_bytes(2, "little")
    return lambda path: rewrite(path, lambda data: b"\x93NUMPY\x01\x00" + length + text + b"\n")


def compression(number: int) -> Callable[[Path], Any]:
    """Says that it is compressed in this way, which its bytes are not."""

    def damage(path: Path) -> None:
        changed = bytearray(path.read_bytes())
        for place in changed.index(b"PK\x03\x04") + 8, changed.index(b"PK\x01\x02") + 10:
            changed[place : place + 2] = number.to_bytes(2, "little")
        path.write_bytes(changed)

    return damage


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-100])


# Each makes a damaged or hostile file out of a whole one.
DAMAGES: dict[str, Callable[[Path], Any]] = {
    "truncated": truncated,
    "empty": lambda path: path.write_bytes(b""),
    "no archive": lambda path: path.write_bytes(b"weights" * 1000),
    "other bytes": lambda path: path.write_bytes(path.read_bytes().replace(b"NUMPY", b"NUMPX")),
    "a folder in its place": folder_in_its_place,
    "a link out of the folder": link_out_of_the_folder,
    "a dangling link": dangling_link,
    "pickled objects": first(lambda _: np.array([Trap()], object)),
    "another shape": first(lambda array: array[..., None]),
    "another type": first(lambda array: array.astype(">f4")),
    "columns first": lambda path: save(path, {name: np.asfortranarray(array) for name, array in load(path).items()}),
    "another name": lambda path: save(
        path, {f"{key}{'x' * (not at)}": v for at, (key, v) in enumerate(load(path).items())}
    ),
    "a missing array": lambda path: save(path, dict([*load(path).items()][1:])),
    "an extra array": lambda path: save(path, load(path), **{"../../outside": np.zeros(3)}),
    "a bomb": bomb,
    "a bomb that hides its size": bomb_that_hides_its_size,
    "a header of 2^60 entries": header(
        b"{'descr': '<f4', 'fortran_order': False, 'shape': (1073741824, 1073741824), }"
    ),
    "code for a header": header(b"__import__('os')._exit(3)".ljust(117)),
    "a nested header": header(b"(" * 900),
    "unfinished compression": compression(8),
    "unknown compression": compression(77),
}
