"""A back end of `ops` that computes nothing: it writes down what layers, models and search compute as an ONNX graph.

While it records, it computes what depends on constants alone, gives equal nodes one place, and puts each node in the
outermost graph that has the node's inputs: what a loop does not change is computed before the loop.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_transformer import ops
from keras_transformer.models.transformer import members_of
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import longest

from ..artefacts import Unwritable
from .graph import Graph, Model, ValueInfo
from .operations import OPERATIONS
from .overrides import FORMS_OF_KERAS, OVERRIDES
from .recorded import PRECISION, Precision, Recorded, Size, all_same, holds_recorded, same
from .shapes import part

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel


class Unrecordable(Unwritable):
    """A model computes something that has no form in ONNX here."""


def recorder_of(model: FamilyModel, precision: str, kind: type[Recorder] | None = None) -> Recorder:
    """A recorder for a model, with tables of all its positions."""
    members = members_of(model)
    if hasattr(model, "max_source_length"):
        num_positions = max(longest(member.max_source_length) for member in members)
    elif hasattr(model, "image_shape"):
        arguments = model.arguments()
        num_positions = (arguments["image_size"] // arguments["patch_size"]) ** 2 + 1
    else:
        num_positions = model.context_length
    return (kind or Recorder)(PRECISION[precision], num_positions, getattr(model, "vocabulary_size", 0))


def _with_int64() -> AbstractContextManager:
    """Within it Keras makes integers of 64 bits where they are asked for, which JAX else makes of 32."""
    if keras.config.backend() != "jax":
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def model_of(r: Recorder, inputs: Sequence[ValueInfo], outputs: Sequence[tuple[ValueInfo, Any]]) -> Model:
    """What was recorded, as a model with these inputs and outputs."""
    for info, value in outputs:
        r.graphs[0].named(value.name, info.name)
    return Model(r.graphs[0], inputs, [info for info, _ in outputs])


class Recorder:
    """Records a graph.

    Args:
        precision: the precision of weights and states.
        num_positions: how many positions the tables of positions have.
        num_tokens: how many tokens a search chooses among.
    """

    integers = "int64"
    OVERRIDES: Mapping[str, Callable[..., Any]] = OVERRIDES

    def __init__(self, precision: Precision, num_positions: int, num_tokens: int = 0):
        self.graphs = [Graph()]
        self.precision = precision
        self.num_positions = num_positions
        self.num_tokens = num_tokens
        self.overrides: dict[str, Callable[..., Any]] = {
            name: partial(way, self) for name, way in self.OVERRIDES.items()
        }
        # While beams share keys: how many beams, how many keys were there before, and which of the keys a beam sees.
        self.num_sharing = 1
        self.num_alone: Size = 0
        self.seen: Recorded | None = None
        self.rounds: list[tuple[int, Size]] = []  # for each loop in rounds its body's depth, and the whole batch
        self._path: list[str] = []  # the layers whose calls are recorded now
        self._known: list[dict[tuple, Any]] = [{}]  # for each graph, its nodes
        self.vectors: dict[str, Recorded] = {}  # sizes in the shape (1,), by the names of the scalars
        self._axes: dict[str | int | None, Size] = {}  # the axes of the inputs, by their names
        self._arrays: dict[int, tuple[Any, np.ndarray]] = {}
        self._derived: dict[tuple, tuple[Any, Any]] = {}
        # How values were made that others may be made of in fewer nodes, by name.
        self.transposed: dict[str, tuple[Recorded, list[int]]] = {}
        self.products: dict[str, tuple[Recorded, np.ndarray]] = {}
        self.widened: dict[str, Recorded] = {}  # in float16, what was made float32
        self.positive: set[str] = set()  # numbers that are not negative

    @property
    def compute_dtype(self) -> str:
        """The type of states."""
        return self.precision.dtype

    # Operations and layers

    def __getattr__(self, name: str) -> Callable[..., Any]:
        """An operation of `ops`: recorded if it takes a recorded value, else computed by Keras at once."""
        if name.startswith("_"):
            raise AttributeError(name)

        def apply(*arguments: object, **named: object) -> Any:
            if not holds_recorded((arguments, named)):
                return self.computed(getattr(keras.ops, name), *arguments, **named)
            if name not in OPERATIONS:
                raise self.unrecordable(f"the operation `ops.{name}`")
            return OPERATIONS[name](self, *arguments, **named)

        return apply

    def part(self, x: Recorded, key: object) -> Recorded:
        """`x[key]`."""
        return part(self, x, key)

    def map_structure(self, function: Callable[..., object], *nests: object) -> Any:
        """As Keras's own."""
        return keras.tree.map_structure(function, *nests)

    def computed(self, function: Callable[..., object], *arguments: object, **named: object) -> Any:
        """What Keras computes of constants, as arrays."""
        texts = [value for value in (*arguments, *named.values()) if isinstance(value, str)]
        with ops.on(None), _with_int64() if "int64" in texts else nullcontext():
            return keras.tree.map_structure(
                lambda value: value if isinstance(value, int | float | str) else keras.ops.convert_to_numpy(value),
                function(*arguments, **named),
            )

    def call_layer(self, layer: Any, *arguments: Any, **named: Any) -> Any:
        """Records the call of a layer: a layer of Keras in the form that it has here, others by their `call`."""
        named.pop("training", None)
        if layer.autocast:
            arguments, named = keras.tree.map_structure(self._in_compute_type, (arguments, named))
        if not holds_recorded((arguments, named)):
            return self.computed(layer, *arguments, **named)
        self._path.append(f"{layer.name} ({type(layer).__name__})")
        try:
            for kind, form in FORMS_OF_KERAS.items():
                if type(layer).call is kind.call:  # type: ignore[attr-defined]
                    return form(self, layer, *arguments, **named)
            return layer.call(*arguments, **named)
        finally:
            self._path.pop()

    def _in_compute_type(self, value: object) -> Any:
        """What Keras makes of an argument of a layer."""
        is_float = isinstance(value, Recorded) and value.dtype.startswith("float")
        return self.cast(value, self.compute_dtype) if is_float else value

    def unrecordable(self, what: str) -> Unrecordable:
        """The error that a model computes something that has no form here."""
        where = f" in the layer {self._path[-1]}" if self._path else ""
        return Unrecordable(f"ONNX has no form here of {what}{where}")

    # Graphs and nodes

    def enter(self) -> int:
        """Begins the body of a loop; returns its depth."""
        self.graphs.append(Graph(self.graphs[-1]))
        self._known.append({})
        return len(self.graphs) - 1

    def leave(self) -> None:
        """Goes back to the graph around the body."""
        self.graphs.pop()
        self._known.pop()

    def input(self, info: ValueInfo) -> Recorded:
        """An input of the model. Its sizes are looked up at once: axes of one name share theirs, and so does all that
        is made of them."""
        known: list[Size] = [size if isinstance(size, int) else self._axes.get(size) for size in info.shape]
        value = Recorded(self, info.name, str(np.dtype(info.dtype)), known, 0)
        self.look_up_sizes(value)
        self._axes |= zip(info.shape, value.sizes, strict=True)
        return value

    def emit(
        self, operator: str, *inputs: Any, dtype: Any, sizes: Any, outputs: int = 0, domain: str = "", **attributes: Any
    ) -> Any:
        """A node in the outermost graph that has its inputs, or the equal node that is there.

        Args:
            operator: its name.
            inputs: recorded values, constants, or None for an input that is left out.
            dtype, sizes: the output's type and sizes; lists of them for several outputs.
            outputs: how many outputs, if there are several.
            domain: the domain of the operator.
            attributes: the attributes of the node.
        """
        recorded = [value for value in inputs if isinstance(value, Recorded)]
        names = {id(value): value.name for value in recorded}  # which makes nodes of views
        depth = max((value.depth for value in recorded), default=0)
        self._require_of_active_sentences(recorded)
        graph = self.graphs[depth]
        given = [None if x is None else names[id(x)] if id(x) in names else graph.value(self.array(x)) for x in inputs]
        key = (operator, tuple(given), outputs, domain, repr(sorted(attributes.items())))
        if key in self._known[depth]:
            return self._known[depth][key]
        made = graph(operator, *given, outputs=outputs, domain=domain, **attributes)
        described = zip(made, dtype, sizes, strict=True) if outputs else [(made, dtype, sizes)]
        found = [Recorded(self, name, of, [*shape], depth) for name, of, shape in described]
        self._known[depth][key] = found if outputs else found[0]
        if depth == 0:  # A batch may be empty here, and no node `Reshape` can find the sizes of an empty value.
            for value in found:
                self.look_up_sizes(value)
        return self._known[depth][key]

    def _require_of_active_sentences(self, values: Sequence[Recorded]) -> None:
        """Raises Unrecordable if a node in a loop that drops sentences takes a value of all sentences."""
        for depth, batch in self.rounds:
            for value in values:
                if value.depth < depth < len(self.graphs) and any(same(size, batch) for size in value.sizes):
                    raise self.unrecordable(
                        "a search whose steps take what they know of each sentence from outside: hand it on in the "
                        "state, in the cache, or in what `run_loop` is given"
                    )

    # Constants and types

    def derived(self, make: Callable[..., object], *arrays: np.ndarray) -> Any:
        """What a function makes of weights, once: a loop is recorded several times."""
        key = (make, *map(id, arrays))
        if key not in self._derived:
            self._derived[key] = arrays, make(*arrays)
        return self._derived[key][1]

    def array(self, value: object, dtype: str | None = None) -> np.ndarray:
        """A number, an array, or a weight as a constant; each weight gives the same array again."""
        if isinstance(value, keras.Variable) or keras.ops.is_tensor(value):
            if id(value) not in self._arrays:
                self._arrays[id(value)] = (value, keras.ops.convert_to_numpy(value))
            value = self._arrays[id(value)][1]
        value = np.asarray(value)
        if dtype is not None:
            return value if value.dtype == dtype else value.astype(dtype)
        return value.astype("float32") if value.dtype == np.float64 else value

    def type_of(self, *values: object) -> str:
        """The common type of operands. A weight takes that of recorded values; a Python number has none of its own."""
        typed = [str(value.dtype) for value in values if isinstance(value, Recorded | np.ndarray | np.generic)]
        floats = [dtype.replace("64", "32") for dtype in typed if dtype.startswith("float")]
        if floats:
            return max(floats)  # singles win over halves
        if any(type(value) is float or isinstance(value, keras.Variable) for value in values):
            return "float32"
        is_truth = {*typed} == {"bool"} and not any(type(value) is int for value in values)
        return next((dtype for dtype in ("int64", "int32", "uint8") if dtype in typed), "bool" if is_truth else "int64")

    def as_type(self, value: object, dtype: str) -> Any:
        """A value in another type; of no recorded value, a constant."""
        return self.cast(value, dtype) if isinstance(value, Recorded) else self.array(value, dtype)

    # Sizes and views

    def sizes_of(self, value: object) -> list[Size]:
        """The sizes of any value."""
        return value.sizes if isinstance(value, Recorded) else [*np.shape(self.array(value))]

    def size(self, x: Recorded, axis: int) -> Size:
        """The size of an axis, which the graph looks up if it is not known."""
        axis %= x.ndim
        if x.sizes[axis] is None:
            vector = self.emit("Shape", x, dtype="int64", sizes=[1], start=axis, end=axis + 1)
            scalar = self.emit("Squeeze", vector, np.array([0]), dtype="int64", sizes=[])
            self.vectors[scalar.name] = vector
            self.positive.add(scalar.name)
            x.sizes[axis] = scalar
        return x.sizes[axis]

    def value_of(self, name: str) -> Recorded:
        """The value that a node of the outermost graph makes."""
        made = keras.tree.flatten([*self._known[0].values()])
        return next(value for value in made if value.name == name)

    def look_up_sizes(self, x: Recorded) -> None:
        """Makes all sizes of a value known."""
        for axis in range(x.ndim):
            self.size(x, axis)

    def vector(self, sizes: Sequence[Any]) -> Any:
        """Sizes (numbers and recorded scalars) as one constant or recorded value (n,)."""
        parts: list[Any] = []
        for size in sizes:
            if isinstance(size, Recorded):
                parts.append(self._vector_of(size))
            elif parts and isinstance(parts[-1], np.ndarray):
                parts[-1] = np.append(parts[-1], int(size))
            else:
                parts.append(np.array([int(size)], "int64"))
        if len(parts) < 2:
            return parts[0] if parts else np.zeros(0, "int64")
        return self.emit("Concat", *parts, dtype="int64", sizes=[len(sizes)], axis=0)

    def _vector_of(self, scalar: Recorded) -> Recorded:
        """A scalar in the shape (1,)."""
        if scalar.name not in self.vectors:
            self.vectors[scalar.name] = self.emit(
                "Reshape", self.cast(scalar, "int64"), np.array([1]), dtype="int64", sizes=[1]
            )
        return self.vectors[scalar.name]

    def view(self, x: Recorded, sizes: Sequence[Size]) -> Recorded:
        """A value in another shape of the same numbers, without a node."""
        whole = x.whole
        if all_same(whole.sizes, [*sizes]):
            return whole
        return Recorded(self, None, x.dtype, [*sizes], whole.depth, whole)

    def reshaped(self, view: Recorded) -> tuple[str, int]:
        """The name and the depth of a view in its own shape."""
        assert view.base is not None
        target, options = self._target(view.base, view.sizes)
        made = self.emit("Reshape", view.base, self.vector(target), dtype=view.dtype, sizes=view.sizes, **options)
        return made.name, made.depth

    def _target(self, whole: Recorded, sizes: Sequence[Size]) -> tuple[list[Size], Config]:
        """The sizes for a node `Reshape`, and its options.

        No batch is empty in a loop. There, 0 copies a size and -1 stands for one that is not known.
        """
        if whole.depth == 0 and None not in sizes:
            return [*sizes], {} if all(isinstance(size, int) for size in sizes) else {"allowzero": 1}
        target: list[Size] = [
            0 if isinstance(size, Recorded) and axis < whole.ndim and same(whole.sizes[axis], size) else size
            for axis, size in enumerate(sizes)
        ]
        if sum(not isinstance(size, int) for size in target) > 1:
            target = [*sizes] if None in sizes else target
        unknown = [axis for axis, size in enumerate(target) if size is None] or [
            axis for axis, size in enumerate(target) if isinstance(size, Recorded)
        ]
        if unknown:
            target[unknown[0]] = -1
        if None in target:
            raise self.unrecordable(f"a shape with two unknown sizes ({whole.shape} → {tuple(sizes)})")
        return target, {}

    def rows(self, x: Recorded) -> Recorded:
        """States (..., D) as rows (R, D)."""
        whole = x.whole
        if whole.ndim == 2 and same(whole.sizes[-1], x.sizes[-1]):
            return whole
        return x if x.ndim == 2 else self.view(x, [self.remaining(x.sizes, [x.sizes[-1]]), x.sizes[-1]])

    def remaining(self, old: Sequence[Size], given: Sequence[Size]) -> Size:
        """The size that -1 stands for, beside the given sizes; None if the graph would have to compute more."""
        if None in old or None in given:
            return None
        left = [size for size in old if isinstance(size, Recorded)]
        for size in given:
            if isinstance(size, Recorded):
                place = next((place for place, one in enumerate(left) if same(one, size)), None)
                if place is None:
                    return None
                left.pop(place)
        number, divisor = (int(np.prod([size for size in sizes if isinstance(size, int)])) for sizes in (old, given))
        if divisor == 0 or number % divisor:
            return None
        found: Any = number // divisor
        for size in left:
            found = size if isinstance(found, int) and found == 1 else self.multiply(size, found)
        return found
