"""Files of `torch.save` are read without PyTorch, and nothing in them is called."""

import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.importing.torch_file import open_torch
from tests.importing.torch_pickles import archive, row, state, tensor, torch_file

ARRAYS = {
    "one": np.arange(6, dtype="float32").reshape(2, 3), "two": np.linspace(-1, 1, 5, dtype="float32"),
    "none": np.zeros((0, 4), "float32"), "number": np.array(7, "float32"),
}  # fmt: skip


@pytest.mark.parametrize("is_archive", [True, False], ids=["archive", "row"])
def test_arrays_come_back(tmp_path, is_archive):
    path = tmp_path / "file"
    path.write_bytes(torch_file(ARRAYS, is_archive))
    tensors = open_torch(path)
    assert tensors.places.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(tensors.read(name), array)


class Call:
    """Pickles as the call of a function."""

    def __init__(self, function: object, *arguments: object):
        self.function, self.arguments = function, arguments

    def __reduce__(self):
        return self.function, self.arguments


@pytest.mark.parametrize("is_archive", [True, False], ids=["archive", "row"])
def test_nothing_is_called(tmp_path, is_archive):
    seen = tmp_path / "seen"
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
    (one("0", (2, -3), 6), "impossible shape"), (one("9", (2, 3)), "9"),
    (archive(state({"one": tensor("0", (2, 3))}), ONE, zipfile.ZIP_DEFLATED), "no compressed files"),
    (archive(state({"one": SWAPPED}), ONE), r"whose numbers stand in order; received the strides \(1, 2\)"),
    (archive(state({"one": b"N"}), ONE), "expected a tensor under 'one'; received NoneType"),
    (archive(pickle.dumps([1]), {}), "expected a dictionary of tensors; received list"),
    (row(state({"one": tensor("0", (2, 3), 7, row=True)}), ONE), "has 6 numbers, not 7"),
    (pickle.dumps({"one": 1}), "no file of `torch.save`"), (b"", "."), (b"\x80\x02X\xff\xff\xff\x7f", "."),
    (b"\x80\x02r\xff\xff\xff\x7f.", "."),  # a far place of the memo
]  # fmt: skip


def test_what_does_not_fit_is_refused(tmp_path):
    for content, message in REFUSED:
        (tmp_path / "file").write_bytes(content)
        with pytest.raises(ValueError, match=message):
            open_torch(tmp_path / "file")
