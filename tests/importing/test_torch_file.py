"""Files of `torch.save` are read without PyTorch, and nothing in them is called; other tests write them with these."""

import io
import pickle
import struct
import zipfile
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.importing.tensors import open_torch

Arrays = dict[str, np.ndarray]


def text(value: str) -> bytes:
    """A string as a pickle spells it."""
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def number(value: int) -> bytes:
    """A whole number as a pickle spells it."""
    return b"J" + struct.pack("<i", value)


def tensor(key: str, shape: tuple[int, ...], count: int | None = None, first: int = 0, row: bool = False) -> bytes:
    """A tensor as a pickle spells it: a call of a function of PyTorch's, with a storage of floats."""
    count = int(np.prod(shape)) if count is None else count
    strides = [int(np.prod(shape[place + 1 :])) for place in range(len(shape))]
    storage = text("storage") + b"ctorch\nFloatStorage\n" + text(key) + text("cpu") + number(count)
    sizes = [b"(" + b"".join(map(number, numbers)) + b"t" for numbers in (shape, strides)]
    arguments = b"(" + storage + (b"N" if row else b"") + b"tQ" + number(first) + b"".join(sizes)
    hooks = b"ccollections\nOrderedDict\n)R"
    return b"ctorch._utils\n_rebuild_tensor_v2\n(" + arguments + b"\x89" + hooks + b"tR"


def state(entries: dict[str, bytes]) -> bytes:
    """An ordered dictionary as a pickle, with an attribute as PyTorch's modules set it."""
    items = b"".join(text(name) + value for name, value in entries.items())
    metadata = b"}" + text("_metadata") + b"ccollections\nOrderedDict\n)Rsb"
    return b"\x80\x02ccollections\nOrderedDict\n)R(" + items + b"u" + metadata + b"."


def archive(pickled: bytes, storages: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """The newer form: an archive with a pickle."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        file.writestr("model/data.pkl", pickled)
        file.writestr("model/byteorder", "little")
        for key, numbers in storages.items():
            file.writestr(f"model/data/{key}", numbers)
        file.writestr("model/version", "3\n")
    return content.getvalue()


def row(pickled: bytes, storages: dict[str, bytes]) -> bytes:
    """The older form: a row of pickles."""
    system = {"protocol_version": 1001, "little_endian": True, "type_sizes": {"int": 4}}
    heads = [0x1950A86A20F9469CFC6C, 1001, system]
    parts = [pickle.dumps(head, 2) for head in heads] + [pickled, pickle.dumps([*storages], 2)]
    return b"".join(parts) + b"".join(struct.pack("<q", len(each) // 4) + each for each in storages.values())


def torch_file(arrays: Arrays, is_archive: bool = True) -> bytes:
    """A file of these arrays in float32."""
    storages = {str(place): array.tobytes() for place, array in enumerate(arrays.values())}
    places = {name: str(place) for place, name in enumerate(arrays)}
    pickled = state({name: tensor(places[name], array.shape, row=not is_archive) for name, array in arrays.items()})
    return archive(pickled, storages) if is_archive else row(pickled, storages)


ARRAYS = {
    "one": np.arange(6, dtype="float32").reshape(2, 3), "two": np.linspace(-1, 1, 5, dtype="float32"),
    "none": np.zeros((0, 4), "float32"), "number": np.array(7, "float32"),
}  # fmt: skip


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function: object, *arguments: object):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("is_archive", [True, False], ids=["archive", "row"])
def test_arrays_come_back_and_nothing_is_called(tmp_path, is_archive):
    (tmp_path / "arrays").write_bytes(torch_file(ARRAYS, is_archive))
    tensors, seen = open_torch(tmp_path / "arrays"), tmp_path / "seen"
    assert tensors.places.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(tensors.read(name), array)
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        pickled = pickle.dumps({"one": Call(Path.touch, seen)}, protocol)
        path = tmp_path / "file"
        path.write_bytes(archive(pickled, {}) if is_archive else row(pickled, {}))
        with pytest.raises(ValueError, match="it calls .*, which no file of weights needs"):
            open_torch(path)
    assert not seen.exists()


ONE = {"0": ARRAYS["one"].tobytes()}
SWAPPED = tensor("0", (2, 3)).replace(b"(J\3\0\0\0J\1\0\0\0t", b"(J\1\0\0\0J\2\0\0\0t")


def one(*arguments, **options) -> bytes:
    """An archive of a tensor on `ONE`."""
    return archive(state({"one": tensor(*arguments, **options)}), ONE)


REFUSED = [
    (one("0", (2, 4), 6), "does not lie in its storage"), (one("0", (2, 3), 6, first=1), "does not lie in its storage"),
    (one("0", (2, 3), 7), "longer than its file"), (one("0", (2, 3), first=-1), "expected a tensor of a storage"),
    (one("0", (2, -3), 6), "impossible shape"),
    (archive(state({"one": tensor("0", (2, 3))}), ONE, zipfile.ZIP_DEFLATED), "no compressed files"),
    (archive(state({"one": SWAPPED}), ONE), r"whose numbers stand in order; received the strides \(1, 2\)"),
    (archive(state({"one": b"N"}), ONE), "expected a tensor under 'one'; received NoneType"),
    (archive(pickle.dumps([1]), {}), "expected a dictionary of tensors; received list"),
    (row(state({"one": tensor("0", (2, 3), 7, row=True)}), ONE), "has 6 numbers, not 7"),
    (pickle.dumps({"one": 1}), "no file of `torch.save`"), (b"", "."), (b"\x80\x02X\xff\xff\xff\x7f", "."),
    (b"\x80\x02r\xff\xff\xff\x7f.", "."),  # a far place of the memo
    (archive(b"\x80\x02}U\3onectorch\nSize\ns.", {}), "it calls torch.Size, which no file of weights needs"),
    (archive(b"\x80\x02}U\3onecos\nFloatStorage\ns.", {}), "it calls os.FloatStorage, which"),
]  # fmt: skip


def test_what_does_not_fit_is_refused(tmp_path):
    for content, message in REFUSED:
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            open_torch(tmp_path / "file")
