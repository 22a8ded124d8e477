"""Files as `torch.save` writes them, made by hand: an archive with a pickle, or the older row of pickles."""

import io
import pickle
import struct
import zipfile

import numpy as np

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
    """The newer form."""
    content = io.BytesIO()
    with zipfile.ZipFile(content, "w", compression) as file:
        file.writestr("model/data.pkl", pickled)
        file.writestr("model/byteorder", "little")
        for key, numbers in storages.items():
            file.writestr(f"model/data/{key}", numbers)
        file.writestr("model/version", "3\n")
    return content.getvalue()


def row(pickled: bytes, storages: dict[str, bytes]) -> bytes:
    """The older form."""
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
