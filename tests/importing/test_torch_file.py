"""Files of `torch.save` are read without PyTorch, and nothing in them is called; other tests write them with these."""

import contextlib
import io
import pickle
import pickletools
import struct
import time
import zipfile
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.importing.tensors import OPERATIONS, open_torch

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
        with pytest.raises(ValueError, match="it calls .*, which no file of weights|has the operation"):
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
    (archive(pickle.dumps([1], 2), {}), "expected a dictionary of tensors; received list"),
    (row(state({"one": tensor("0", (2, 3), 7, row=True)}), ONE), "has 6 numbers, not 7"),
    (pickle.dumps({"one": 1}, 2), "no file of `torch.save`"), (b"", "."), (b"\x80\x02X\xff\xff\xff\x7f", "."),
    (b"\x80\x02r\xff\xff\xff\x7f.", "."),  # a far place of the memo
    (archive(b"\x80\x02cos\nsystem\n.", {}), "it calls os.system"), (archive(b"\x80\x02(b", {}), "."),
    (archive(b"\x80\x02ctorch._utils\n_rebuild_tensor_v2\n}b.", {}), "it sets attributes"),
    (archive(b"\x80\x02}" + text("one") + b"ctorch\nSize\ns.", {}), "it calls torch.Size, which no file"),
    (archive(b"\x80\x02}" + text("one") + b"cos\nFloatStorage\ns.", {}), "it calls os.FloatStorage, which"),
]  # fmt: skip


def test_what_does_not_fit_is_refused(tmp_path):
    for content, message in REFUSED:
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            open_torch(tmp_path / "file")


def doubled(share: bytes, again: bytes, times: int = 25) -> bytes:
    """A pickle of a tuple of 2^times parts, each of which is put away and taken twice."""
    return b")" + (share + again + b"\x86") * times


SHARED = doubled(b"", b"2"), doubled(b"q\0", b"h\0"), doubled(b"r\0\0\0\0", b"j\0\0\0\0")  # DUP; BINGET; LONG_BINGET
LAUGHS = [  # where Python would ask for the hash or the `repr` of it
    *(text("storage") + each + text("0") + text("cpu") + number(1) + b"tQ" for each in SHARED),
    *(each + b"Q" for each in SHARED), *(b"ctorch._utils\n_rebuild_tensor_v2\n(" + each * 6 + b"tR" for each in SHARED),
    *(b"}" + each + b"Ns" for each in SHARED), *(b"}(" + each + b"Nu" for each in SHARED),
    *(b"ccollections\nOrderedDict\n(](](" + each + b"NeatR" for each in SHARED),
    *(b"ccollections\nOrderedDict\n)R" + each + b"Ns" for each in SHARED),
    *(tensor("0", (2, 3)).replace(number(2) + number(3), each) for each in SHARED),
    *(tensor("0", (2, 3)).replace(number(3) + number(1), each) for each in SHARED),
    b")" + b"\x85" * 300_000 + b"q\0}h\0Ns",  # whose hash has no end of the stack
    *(b"}(" + text("one") + each + b"u" for each in SHARED), *SHARED, b"]" * 300_000,
]  # fmt: skip


def test_a_pickle_that_doubles_itself_is_refused_at_once(tmp_path):
    for place, laugh in enumerate(LAUGHS):
        for pickled in (b"\x80\x02" + laugh + b".", state({"one": laugh}), pickle.dumps(["0"], 2)):
            for content in (archive(pickled, ONE), row(pickled, ONE), row(state({}), ONE) + laugh):
                (tmp_path / "file").write_bytes(content)
                begin = time.process_time()
                with pytest.raises(ValueError, match=r"^.{1,200}$"):
                    open_torch(tmp_path / "file")
                assert time.process_time() - begin < 5, place  # other threads of the process count, too


@pytest.mark.parity
@pytest.mark.parametrize("is_archive", [True, False], ids=["archive", "row"])
def test_the_operations_are_those_that_torch_writes(tmp_path, is_archive):
    import torch

    layer, written = torch.nn.Linear(300, 250), set()
    many = torch.nn.Sequential(*[torch.nn.Linear(1, 1) for _ in range(150)]).state_dict()
    shared = {"a": layer.weight.data, "b": layer.weight.data, "c": torch.zeros(1, 2, 3), "d": torch.zeros(())}
    rest = {"step": 2**40, "rate": 0.1, "names": ["a", "b"], "one": [1], "none": None, "on": True, "half": 500}
    for value in (layer.state_dict(), many, shared, {"a": layer.weight}, {"model": many, **rest}):
        torch.save(value, tmp_path / "file", _use_new_zipfile_serialization=is_archive)
        with (
            zipfile.ZipFile(tmp_path / "file").open("file/data.pkl") if is_archive else (tmp_path / "file").open("rb")
        ) as file:
            for _ in range(1 if is_archive else 5):
                written |= {operation.name for operation, _, _ in pickletools.genops(file)}
        with contextlib.suppress(ValueError):
            assert open_torch(tmp_path / "file").places.keys() == value.keys()
    assert written <= {*OPERATIONS} and {*OPERATIONS} - written <= ({"APPEND", "BININT2"} if is_archive else set())
