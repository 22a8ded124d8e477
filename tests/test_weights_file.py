"""Weights from strangers: what the configuration does not predict is refused before it is read."""

import errno
import io
import json
import os
import re
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import h5py
import numpy as np
import pytest

from keras_transformer.core import files
from keras_transformer.core.errors import RequestError
from keras_transformer.core.version import __version__
from keras_transformer.runs import run_folder as runs
from tests.answers import refused

WEIGHTS = "model.weights.h5"
ARRAY = "layers/token_embedding/vars/0"  # one that the model has


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_archive(path: Path, contents: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in contents.items():
            file.writestr(name, data)


def larger_than_declared(path: Path) -> None:
    """A bomb of 100 MB that declares the size of the model's weights."""
    size = len(entries(path)[WEIGHTS])
    write_archive(path, {WEIGHTS: bytes(100_000_000)}, zipfile.ZIP_DEFLATED)
    path.write_bytes(path.read_bytes().replace((100_000_000).to_bytes(4, "little"), size.to_bytes(4, "little")))


def smaller_than_declared(path: Path) -> None:
    write_archive(path, {WEIGHTS: b"\x89HDF\r\n\x1a\n"})
    size, declared = (8).to_bytes(4, "little"), (200_000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size + size, declared + declared))


def flip(path: Path, place: Callable[[bytearray], int]) -> None:
    """Turns all bits of a byte."""
    data = bytearray(path.read_bytes())
    data[place(data)] ^= 255
    path.write_bytes(data)


ARCHIVES: dict[str, Callable[[Path], object]] = {
    "truncated": lambda path: path.write_bytes(path.read_bytes()[:-1000]),
    "no archive": lambda path: path.write_bytes(b"weights" * 1000),
    "without weights": lambda path: write_archive(path, {name: b"" for name in entries(path) if name != WEIGHTS}),
    "weights that lead out of the folder": lambda path: write_archive(
        path, dict.fromkeys([f"../{WEIGHTS}", f"/tmp/{WEIGHTS}"], entries(path)[WEIGHTS])
    ),
    "declared too large": lambda path: write_archive(path, {WEIGHTS: bytes(100_000_000)}, zipfile.ZIP_DEFLATED),
    # As large as allowed, but compressed. A config.json of a large model could allow a bomb.
    "compressed": lambda path: write_archive(path, entries(path), zipfile.ZIP_DEFLATED),
    "larger than declared": larger_than_declared,
    "smaller than declared": smaller_than_declared,
    "contents that would stand before the beginning": lambda path: flip(path, lambda data: len(data) - 4),
    "another checksum": lambda path: flip(path, lambda data: data.index(b"\x89HDF") + 5000),
}

# Arrays: each function changes the HDF5 file inside.


def put(file: h5py.File, array: str, value: object) -> None:
    """Something else in an array's place."""
    del file[array]
    file[array] = value


def create(file: h5py.File, array: str, shape: tuple[int, ...], *options: object, **more: object) -> None:
    """An array of another kind in an array's place."""
    if array in file:
        del file[array]
    file.create_dataset(array, shape, *options, **more)


def soft_link(file: h5py.File, array: str) -> None:
    file["other"] = file[array][()]
    put(file, array, h5py.SoftLink("/other"))


def virtual_dataset(file: h5py.File, array: str) -> None:
    shape = file[array].shape
    del file[array]
    layout = h5py.VirtualLayout(shape, "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "data", shape)
    file.create_virtual_dataset(array, layout)


def nothing(file: h5py.File, array: str) -> None:
    """No array at all, and as many bytes."""
    for name in list(file):
        del file[name]
    file["ballast"] = np.zeros(100_000, "f4")


def many_small_arrays(file: h5py.File, array: str) -> None:
    for number in range(20):
        create(file, f"more/{number}", (1_000_000,), "f4", compression="gzip")


def groups_without_end(file: h5py.File, array: str) -> None:
    """Ways through it: 64 to the power of 15."""
    deepest = file.create_group("deepest")
    for depth in range(15):
        group = file.create_group(f"depth {depth}")
        for number in range(64):
            group[str(number)] = deepest
        deepest = group


LINK, NO_PLAIN_ARRAY = "it holds a link", "it holds something other than a plain array"
OUTSIDE = [("/etc/passwd", 0, h5py.h5f.UNLIMITED)]
GZIP = {"compression": "gzip"}
ARRAYS: dict[str, tuple[Callable[[h5py.File, str], object], str]] = {
    "a soft link": (soft_link, LINK),
    "a link to a file": (lambda file, array: put(file, array, h5py.ExternalLink("/etc/passwd", "/")), LINK),
    "a group of a file": (lambda file, array: file.update(elsewhere=h5py.ExternalLink("../other.h5", "/")), LINK),
    "storage outside": (
        lambda file, array: create(file, array, file[array].shape, "f4", external=OUTSIDE),
        NO_PLAIN_ARRAY,
    ),
    "a virtual array": (virtual_dataset, NO_PLAIN_ARRAY),
    "another shape": (lambda file, array: put(file, array, file[array][()].T), ""),
    "a scalar": (lambda file, array: put(file, array, 1.0), ""),
    "no array": (lambda file, array: file.pop(array), ""),
    "no group": (lambda file, array: file.pop(array.rpartition("/vars")[0]), ""),
    "nothing": (nothing, ""),
    "one more": (lambda file, array: create(file, array.replace("0", "1"), (3,)), ""),
    "a hidden bomb": (lambda file, array: create(file, "bomb", (100_000_000,), "f4", chunks=(1_000_000,), **GZIP), ""),
    "a bomb in place": (
        lambda file, array: create(file, array, (100_000_000, 16), "f4", chunks=(1_000_000, 16), fillvalue=1, **GZIP),
        "",
    ),
    "a size of 0 in 64 bits": (lambda file, array: create(file, array, (2**32, 2**32), "f4", chunks=(1024, 16)), ""),
    "many small arrays": (many_small_arrays, ""),
    "strings": (lambda file, array: create(file, array, file[array].shape, h5py.string_dtype()), ""),
    "references": (lambda file, array: create(file, "references", (3,), h5py.ref_dtype), ""),
    "records": (lambda file, array: create(file, "records", (3,), np.dtype([("a", "f4"), ("b", "i8")])), ""),
    "complex numbers": (lambda file, array: put(file, array, file[array][()].astype("c8")), ""),
    "an empty array": (lambda file, array: put(file, array, h5py.Empty("f4")), ""),
    "an array for a group": (lambda file, array: put(file, array.rpartition("/")[0], np.zeros(3, "f4")), ""),
    "a named type": (lambda file, array: file.update(type=np.dtype("f4")), ""),
    "groups without end": (groups_without_end, ""),
    "a circle": (lambda file, array: file.update(circle=file["/"]), ""),
}


def rewrite_weights(path: Path, change: Callable[[h5py.File, str], object], array: str = ARRAY) -> None:
    contents = entries(path)
    weights = io.BytesIO(contents[WEIGHTS])
    with h5py.File(weights, "r+") as file:
        change(file, array)
    write_archive(path, {**contents, WEIGHTS: weights.getvalue()})


def assert_refused(run: Path, message: str = "") -> None:
    path = run / "model.keras"
    with pytest.raises(RequestError, match=f"^{re.escape(str(path))} is damaged or not this run's: .") as caught:
        runs.load_model(run)
    assert "\n" not in str(caught.value)
    assert re.search(message, str(caught.value))


@pytest.mark.parametrize("name", ARCHIVES)
def test_a_damaged_or_hostile_archive_is_refused(run_folder, name):
    ARCHIVES[name](run_folder / "model.keras")
    before = sorted(run_folder.parent.rglob("*"))
    assert_refused(run_folder)
    assert sorted(run_folder.parent.rglob("*")) == before


@pytest.mark.parametrize("name", ARRAYS)
def test_an_array_that_the_model_does_not_predict_is_refused(run_folder, name):
    """Data of other places is refused before it is read."""
    change, message = ARRAYS[name]
    rewrite_weights(run_folder / "model.keras", change)
    assert_refused(run_folder, message)


def test_a_whole_model_of_an_older_layout_is_told_as_such_and_remade_from_its_checkpoint(run_folder):
    """The weights of a version that named the stacks' blocks otherwise."""
    path = run_folder / "model.keras"
    rewrite_weights(path, lambda file, _: file.move("encoder_stack/blocks", "encoder_blocks"))
    told = (
        f"{path} is whole, but its weights have other names than in this version, {__version__}: version "
        f"{__version__} wrote it; "
    )
    for advice in ("use that version", f"`keras-transformer average {run_folder} --last 1` makes it of the newest"):
        with pytest.raises(RequestError, match=f"^{re.escape(told + advice)}") as caught:
            runs.load_model(run_folder)
        assert "\n" not in str(caught.value)
        (run_folder / "checkpoints").mkdir(exist_ok=True)
        for part in ("weights", "state"):
            (run_folder / "checkpoints" / f"00000005.{part}.npz").touch()


def test_arrays_of_every_kind_must_be_there(run_folder):
    path = run_folder / "model.keras"
    whole, names = path.read_bytes(), []
    with h5py.File(io.BytesIO(entries(path)[WEIGHTS])) as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    assert ARRAY in names
    for name in names[:: len(names) // 7]:
        rewrite_weights(path, lambda file, array: file.pop(array), name)
        assert_refused(run_folder)
        path.write_bytes(whole)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO], ids=errno.errorcode.get)
def test_a_machine_that_fails_is_no_damage_to_the_model(run_folder, monkeypatch, number):
    def failing(*_):
        raise OSError(number, "told in other words")

    monkeypatch.setattr(files.shutil, "copyfileobj", failing)
    told = f"[Errno {number}] {os.strerror(number)}, while its weights were copied to {tempfile.gettempdir()}: "
    with pytest.raises(OSError, match=f"^{re.escape(told)}'{re.escape(str(run_folder / 'model.keras'))}'$") as caught:
        runs.load_model(run_folder)
    assert caught.value.errno == number
    assert refused("translate", run_folder, status=1).startswith("error: [Errno ")


def test_a_file_that_hdf5_cannot_read_is_no_damage_to_the_model(run_folder, monkeypatch):
    checked = files._check_arrays
    monkeypatch.setattr(files, "_check_arrays", lambda path, *sizes: checked(path.parent, *sizes))
    with pytest.raises(IsADirectoryError):
        runs.check_model(runs.RunFolder(run_folder), runs.read_config(run_folder))


def test_the_configuration_inside_is_not_even_read(run_folder, monkeypatch):
    path = run_folder / "model.keras"
    hostile = {"module": "builtins", "class_name": "exec", "config": "import os; os._exit(3)"}
    write_archive(path, {**entries(path), "config.json": json.dumps(hostile).encode()})
    opened, open_entry = [], zipfile.ZipFile.open

    def watched(self, name, *arguments, **options):
        opened.append(getattr(name, "filename", name))
        return open_entry(self, name, *arguments, **options)

    monkeypatch.setattr(zipfile.ZipFile, "open", watched)
    assert runs.load_model(run_folder).count_params() > 0
    assert opened == [WEIGHTS]


def test_a_config_that_asks_for_more_than_the_file_holds_is_refused_in_one_line(run_folder):
    config = runs.read_config(run_folder)
    config.model["hidden_dim"] = 65_536
    (run_folder / "config.json").write_text(json.dumps(config.sections))
    assert_refused(run_folder, r"expected about [\d,]+ bytes of weights; it holds")
    error = refused("translate", run_folder)
    assert error.startswith(f"error: {run_folder / 'model.keras'} is damaged or not this run's: ")
    assert error.count("\n") == 1
