"""Makes the weights of our model of tensors with foreign names; `Imported` is what an importer hands on. Keras is not
imported."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.core.extras import load_tensorflow
from keras_transformer.core.task_registry import task_named
from keras_transformer.importing.folder import ModelFolder
from keras_transformer.importing.sentencepiece_rewrite import Vocabulary
from keras_transformer.importing.tensors import Place, TensorFile, blocks, open_safetensors, open_torch
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel

TRANSPOSED = (1, 0)  # a kernel that has outputs before inputs
# The axes of the kernels in a block, outputs first: H is the width of all heads, G of those of keys and values. Their
# order never changes.
BLOCK_AXES = {"query": "HD", "key": "GD", "value": "GD", "output": "DH", "gate": "FD", "in": "FD", "out": "DF"}
Opener = Callable[[Path], TensorFile]
FILES: dict[str, Opener] = {"model.safetensors": open_safetensors, "pytorch_model.bin": open_torch}
INDEX = ".index.json"  # behind the name of the whole file, for weights in several files
SHARD = re.compile(r"\w[\w.-]{,200}\.(safetensors|bin)", re.ASCII)


class Weight(NamedTuple):
    """A weight of our model, and the tensor that it is made of.

    Args:
        ours: the path of attributes from the model, such as `encoder_stack.blocks.0.feed_forward.kernel_in`.
        theirs: the tensor's name; empty if the model from outside has no such weight.
        axes: the tensor's axes, a letter each. `Layout` knows their sizes and how to order them.
        order: the axes of the tensor in the order of ours, as for `numpy.transpose`; empty if it is the same.
        default: the value of all numbers where the tensor is missing, or an array of them; None if it may not be
            missing.
        fixed: numbers that are set, by their places in our order on the last axis.
        factor: all numbers are multiplied by it.
        part: which part of how many equal parts along the last axis it is; the first of one by default.
        added: another tensor, whose first row is added to each row; "" for none. Its first axis has the letter A, the
            others are the same.
    """

    ours: str
    theirs: str
    axes: str
    order: tuple[int, ...] = ()
    default: float | np.ndarray | None = None
    fixed: Mapping[int, float] = {}
    factor: float = 1.0
    part: tuple[int, int] = (0, 1)
    added: str = ""


class Layout(NamedTuple):
    """Which tensors hold which weights of our model. An import reads by it, and an export writes by it.

    Args:
        table: the weights.
        sizes: the sizes of axes by their letters.
        orders: for a letter, the places of their numbers in our order; other axes stay as they are.
        unread: the names of other tensors that a file may have.
    """

    table: list[Weight]
    sizes: Mapping[str, int]
    orders: Mapping[str, np.ndarray] = {}
    unread: Iterable[str] = ()

    def shape(self, axes: str) -> tuple[int, ...]:
        """Returns the shape of a tensor with these axes."""
        return tuple(self.sizes[letter] for letter in axes)

    def tensors(self, values: Callable[[str], np.ndarray | None]) -> dict[str, np.ndarray]:
        """Makes the tensors of a file, from which `Weights.read` makes these values. Of several copies of a row the
        last counts: a model reads and emits that one. Rows that our model lacks are 0.

        Args:
            values: the numbers of the weight of our model at a path; None if our model has no such weight, which is
                then 0.
        """
        tensors: dict[str, np.ndarray] = {}
        for weight in self.table:
            if weight.added:
                tensors[weight.added] = np.zeros(self.shape(f"A{weight.axes[1:]}"), "float32")
            if weight.theirs:
                tensor = tensors.setdefault(weight.theirs, np.zeros(self.shape(weight.axes), "float32"))
                if (array := values(weight.ours)) is not None:
                    place, count = weight.part
                    np.split(tensor, count, axis=-1)[place][...] = self._in_their_order(weight, array)
        return tensors

    def _in_their_order(self, weight: Weight, array: np.ndarray) -> np.ndarray:
        shape, order = [*self.shape(weight.axes)], weight.order or tuple(range(len(weight.axes)))
        shape[-1] //= weight.part[1]
        for axis, letter in enumerate(weight.axes):
            shape[axis] = len(self.orders[letter]) if letter in self.orders else shape[axis]
        array = array.reshape([shape[axis] for axis in order]).transpose(np.argsort(order)) / np.float32(weight.factor)
        for axis, letter in enumerate(weight.axes):
            if letter in self.orders:
                shape = [*array.shape]
                shape[axis] = self.sizes[letter] // (weight.part[1] if axis == array.ndim - 1 else 1)
                places = (slice(None),) * axis + (self.orders[letter],)
                ordered = np.zeros(shape, "float32")
                ordered[places] = array
                array = ordered
        return array


class Weights:
    """The tensors that a model needs, checked before the model is made.

    Args:
        file: the tensors.
        layout: what the model needs, and where it lies.

    Raises:
        RequestError: a tensor is missing, unknown, or of another shape, or the file is too small to hold them all.
    """

    def __init__(self, file: TensorFile, layout: Layout):
        self.file = file
        self.layout = layout
        self.table = layout.table
        self._check()
        known = {*(name for weight in self.table for name in (weight.theirs, weight.added) if name), *layout.unread}
        if unknown := sorted(file.places.keys() - known):
            raise RequestError(
                f"{file.path}: expected the tensors of the model in config.json; received {unknown[0]!r:.80} too"
            )

    def give_to(self, model: FamilyModel) -> None:
        """Sets what Keras will make the weights of, for a model in a `keras.StatelessScope`."""
        for weight in self.table:
            variable_at(model, weight.ours)._initializer = partial(self._initial, weight)

    def _initial(self, weight: Weight, shape: tuple[int, ...], dtype: str) -> Any:
        from keras import ops

        return ops.convert_to_tensor(self.read(weight).reshape(shape), dtype)

    def _check(self) -> None:
        tensors = {}  # the bytes of each, which counts once: both sides of a Marian model may take one matrix
        for weight in self.table:
            if weight.theirs in self.file.places or weight.default is None:
                tensors[weight.theirs] = self._checked_bytes(weight.theirs, weight.axes)
            if weight.added:
                tensors[weight.added] = self._checked_bytes(weight.added, f"A{weight.axes[1:]}")
        num_bytes = sum(tensors.values())
        # Tensors may lie on the same numbers. Then a small file could describe a model that fills the memory.
        if num_bytes > self.file.num_bytes:
            raise RequestError(
                f"{self.file.path}: expected at least {num_bytes:,} bytes for its tensors; received fewer"
            )

    def _checked_bytes(self, name: str, axes: str) -> int:
        """Checks the shape of a tensor; returns its bytes."""
        place, expected = self.file.places.get(name), self.layout.shape(axes)
        if place is None or place.shape != expected:
            received = "none" if place is None else f"the shape {place.shape}"
            raise RequestError(
                f"{self.file.path}: expected a tensor {name} of the shape {expected}, as config.json has it; received "
                f"{received}"
            )
        return place.num_bytes

    def read(self, weight: Weight) -> np.ndarray:
        """Reads the tensor of a weight, in our order."""
        if weight.theirs not in self.file.places:
            assert weight.default is not None
            array = np.full(self.layout.shape(weight.axes), weight.default, "float32")
        else:
            array = self.file.read(weight.theirs, self.layout.orders.get(weight.axes[0]))
        array = array + self.file.read(weight.added)[0] if weight.added else array
        for axis, letter in enumerate(weight.axes):
            if letter in self.layout.orders and (axis > 0 or weight.theirs not in self.file.places):
                array = _ordered(array, self.layout.orders[letter], axis)
        for place, number in weight.fixed.items():
            array[..., place] = number
        place, count = weight.part
        array = np.split(array, count, axis=-1)[place] if count > 1 else array
        array = array.transpose(weight.order) if weight.order else array
        if weight.factor != 1:
            array *= np.float32(weight.factor)  # in its own memory, because a matrix may be large
        return array


def _ordered(array: np.ndarray, places: np.ndarray, axis: int) -> np.ndarray:
    """Returns the array with these places of an axis; in its own memory where there is room, because a matrix may be
    large."""
    if axis == 0 or len(places) != array.shape[axis]:
        return np.take(array, places, axis)
    for block in blocks(len(array)):
        array[block] = np.take(array[block], places, axis)
    return array


def dense_weights(
    kernel: str, bias: str, theirs: str, axes: str, order: tuple[int, ...] = TRANSPOSED
) -> Iterator[Weight]:
    """Yields our kernel and our bias of a dense layer, whose name in the model from outside is `theirs`. Outputs are
    the first of the kernel's axes there, unless its order is ours."""
    yield Weight(kernel, f"{theirs}.weight", axes, order=order)
    yield Weight(bias, f"{theirs}.bias", axes[0] if order else axes[-1])


def norm_weights(ours: str, theirs: str, file: TensorFile | None = None) -> Iterator[Weight]:
    """Yields the weights of a layer normalization, whose name in the model from outside is `theirs`. If a `file` is
    given, it may be an old one, where they are called gamma and beta."""
    is_old = file is not None and f"{theirs}.gamma" in file.places
    for own, name in (("gamma", "weight"), ("beta", "bias")):
        yield Weight(f"{ours}.{own}", f"{theirs}.{own if is_old else name}", "D")


def block_weights(
    ours: str,
    theirs: str,
    names: Mapping[str, str],
    has_biases: bool = True,
    order: tuple[int, ...] = TRANSPOSED,
    file: TensorFile | None = None,
) -> Iterator[Weight]:
    """Yields the weights of a block.

    Args:
        ours, theirs: the names of the block.
        names: by the path of each part of our block, such as `self_attention.query`, `feed_forward.in` or
            `feed_forward_residual.norm`, what the model from outside calls it.
        has_biases: whether its products and its norms have biases. Norms without are RMS norms.
        order: see `dense_weights`.
        file: see `norm_weights`.
    """
    for path, name in names.items():
        layer, _, part = path.rpartition(".")
        if part == "norm" and has_biases:
            yield from norm_weights(f"{ours}.{path}", f"{theirs}.{name}", file)
        elif part == "norm":
            yield Weight(f"{ours}.{path}.scale", f"{theirs}.{name}.weight", "D")
        else:
            kernel, bias = (
                f"{ours}.{layer}.{each}_{part}" if layer == "feed_forward" else f"{ours}.{path}_{each}"
                for each in ("kernel", "bias")
            )
            axes = BLOCK_AXES[part] if order else BLOCK_AXES[part][::-1]
            product = dense_weights(kernel, bias, f"{theirs}.{name}", axes, order)
            yield from product if has_biases else islice(product, 1)


def first_of(file: TensorFile, names: list[str]) -> str:
    """Returns the first of the names that the file has. Tensors under the other names must be the same.

    Raises:
        RequestError: two of them differ.
    """
    first, *others = [name for name in names if name in file.places] or names[:1]
    for other in others:
        if not are_same(file, first, other):
            raise RequestError(f"{file.path}: expected {other} to be {first}, as config.json says; they differ")
    return first


def are_same(file: TensorFile, first: str, other: str) -> bool:
    """Whether two tensors of a file have the same numbers."""
    one, two = file.places[first], file.places[other]
    return one == two or (one.shape == two.shape and np.array_equal(file.read(first), file.read(other)))


def open_weights(folder: ModelFolder) -> TensorFile:
    """Opens the tensors of a folder: in one file or in several with an index; safetensors if they are there.

    Raises:
        RequestError: there are none, or a file is damaged or holds more than tensors, or the index does not fit.
    """
    for name, open_file in FILES.items():
        if folder.has(name):
            return _opened(folder, name, open_file)
        if folder.has(f"{name}{INDEX}"):
            return _joined(folder, f"{name}{INDEX}", open_file)
    raise RequestError(f"expected weights, {' or '.join(FILES)}; found neither in {folder.path}: download them too")


def _opened(folder: ModelFolder, name: str, open_file: Opener) -> TensorFile:
    path = folder.file(name)
    try:
        return open_file(path)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{folder.path / name} is damaged or not a file of weights: {error}") from error


def homes_in(folder: ModelFolder, index: str) -> dict[str, str]:
    """Reads the file of each tensor from an index.

    Raises:
        RequestError: the index is damaged, or names something else than files of weights beside it.
    """
    homes = folder.json(index).get("weight_map")
    if not isinstance(homes, dict) or not homes:
        raise RequestError(f"{folder.path / index}: expected the file of each tensor in 'weight_map'; received none")
    if strange := [name for name in homes.values() if not isinstance(name, str) or not SHARD.fullmatch(name)]:
        raise RequestError(f"{folder.path / index}: expected names of files of weights; received {strange[0]!r:.80}")
    return homes


def _joined(folder: ModelFolder, index: str, open_file: Opener) -> TensorFile:
    """Opens the tensors of the files that an index names.

    Raises:
        RequestError: the index is damaged, a file is missing or damaged, lacks a tensor or has another one.
    """
    homes = homes_in(folder, index)
    names = sorted({*homes.values()})
    files = {name: _opened(folder, name, open_file) for name in names}
    for tensor, name in homes.items():
        if tensor not in files[name].places:
            raise RequestError(f"{folder.path / index}: expected {tensor!r:.80} in {name}, as it says; found none")
    places: dict[str, Place] = {}
    for name, file in files.items():
        if strangers := [tensor for tensor in file.places if homes.get(tensor) != name]:
            raise RequestError(f"{folder.path / index}: {name} holds {strangers[0]!r:.80} too, which it does not say")
        places |= file.places
    try:
        return TensorFile(folder.path / index, places)
    except ValueError as error:
        raise RequestError(f"{folder.path / index}: {error}") from error


def variable_at(model: FamilyModel, path: str) -> Any:
    """Returns the variable at a path of attributes."""
    for name in path.split("."):
        model = model[int(name)] if name.isdecimal() else getattr(model, name)
    return model


class Imported(NamedTuple):
    """A model from outside, read and checked.

    Args:
        config: the complete arguments of our model.
        weights: the tensors, from which our model's weights are made.
        vocabularies: for what is read and for what is written, or one for both; models of images have none.
        search: the options of the search, see `SearchOptions`.
        languages: the languages of source and target; None if the model does not say.
        labels: the labels of a classifier, in the order of its logits.
        license: the licence that the folder names; "" if it names none.
        language_tags: the tag of each language, by the model's own code, of a translator between many languages.
    """

    config: Config
    weights: Weights
    vocabularies: tuple[Vocabulary, ...] = ()
    search: Config = {}
    languages: tuple[str, str] | None = None
    labels: list[str] = []
    license: str = ""
    language_tags: Mapping[str, str] = {}

    @property
    def task(self) -> str:
        """The task that the model was trained for, a key of `tasks.TASKS`."""
        return task_named(None, self.config.get("kind", model_spec.DEFAULT_KIND), {"labels"} if self.labels else ())

    def model(self) -> FamilyModel:
        """Makes the model, with its weights.

        Keras makes weights at the end of the scope, one after the other. Drawing them at random before would take three
        times the memory.
        """
        load_tensorflow()
        import keras

        from keras_transformer.models.model_factory import make_model

        with keras.StatelessScope():
            model = make_model(self.config)
            self.weights.give_to(model)
        model.license = self.license
        return model

    @property
    def source(self) -> Vocabulary:
        """The vocabulary of what is read."""
        return self.vocabularies[0]

    @property
    def target(self) -> Vocabulary:
        """The vocabulary of what is written."""
        return self.vocabularies[-1]
