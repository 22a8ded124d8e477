"""Traces what layers, models and search compute, and writes it down as an ONNX graph: a back end of `ops`.

A traced value is symbolic: a graph will compute it. While the tracer writes, it computes what depends on constants
alone, gives equal nodes one place, and puts each node in the outermost graph that has the node's inputs: what a loop
does not change is computed before the loop.

Letters in shapes: R rows, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import Any, NoReturn, TypeAlias, Union

import keras
import numpy as np

from keras_transformer import ops
from keras_transformer.spec.options import Config

from ..artefacts import Unwritable
from .graph import CONTRIB_DOMAIN, Graph, Model, ValueInfo

# What writes an operation or a layer: it takes the tracer, and what the operation takes.
Write: TypeAlias = Callable[..., Any]
# The size of an axis: a number, a symbolic scalar, or None until somebody asks.
Size: TypeAlias = Union[int, "SymbolicTensor", None]
# What an operation takes for a number, or for numbers: besides symbolic values, constants.
Operand: TypeAlias = Union["SymbolicTensor", keras.Variable, np.ndarray, np.generic, float]
Array: TypeAlias = Union["SymbolicTensor", np.ndarray]
# Values in tuples, lists and dictionaries.
Nest: TypeAlias = Any


class SymbolicTensor:
    """A value that a graph will compute.

    It may be a view: another value in another shape. Only a node that takes the view in its own shape makes a node
    `Reshape` of it; many take the other value.

    Args:
        tracer: what records it.
        name: its name in the graph; None for a view.
        dtype: its type.
        sizes: the sizes of its axes.
        depth: the depth of the graph that computes it: 0 for the model's, 1 for the body of a loop in it, and so on.
        base: the value that it is a view of.
    """

    __array_ufunc__ = None  # NumPy leaves operators to this class

    def __init__(
        self,
        tracer: Tracer,
        name: str | None,
        dtype: str,
        sizes: list[Size],
        depth: int,
        base: SymbolicTensor | None = None,
    ):
        self.tracer = tracer
        self.dtype = dtype
        self.sizes = sizes
        self.base = base
        self._name = name
        self._depth = depth

    @property
    def name(self) -> str:
        """Its name in the graph; a view gets one when it is asked for."""
        if self._name is None:
            self._name, self._depth = self.tracer.reshaped(self)
        return self._name

    @property
    def depth(self) -> int:
        """The depth of the graph that has it."""
        return self.base.depth if self._name is None and self.base is not None else self._depth

    @property
    def whole(self) -> SymbolicTensor:
        """The value that it is a view of, or itself."""
        return self if self.base is None else self.base

    @property
    def shape(self) -> tuple[int | None, ...]:
        """The sizes that are known numbers; None for the others."""
        return tuple(size if isinstance(size, int) else None for size in self.sizes)

    @property
    def ndim(self) -> int:
        """The number of axes."""
        return len(self.sizes)

    def described(self) -> ValueInfo:
        """Its name, type and shape."""
        return ValueInfo(self.name, self.dtype, self.shape)

    def __bool__(self) -> bool:
        raise self.tracer.untraceable("a decision on a value that is known only when the graph runs")

    def __iter__(self) -> NoReturn:
        raise self.tracer.untraceable("a loop over a value that is known only when the graph runs")

    def __array__(self, *_: Nest, **__: Nest) -> NoReturn:
        raise self.tracer.untraceable(
            "an operation that is not of `keras_transformer.ops`: import `ops` from keras_transformer, not from keras"
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"SymbolicTensor({self._name}, {self.dtype}, {self.shape})"

    def __getitem__(self, key: Nest) -> SymbolicTensor:
        return self.tracer.part(self, key)

    def __neg__(self) -> SymbolicTensor:
        return self.tracer.negative(self)

    def __invert__(self) -> SymbolicTensor:
        return self.tracer.logical_not(self)


def _operator(operation: str, is_reflected: bool = False) -> Callable[[SymbolicTensor, Operand], SymbolicTensor]:
    def apply(self: SymbolicTensor, other: Operand | None) -> SymbolicTensor:
        if other is None:  # no operand: `None in sizes` is a question of Python
            return NotImplemented
        operands = (other, self) if is_reflected else (self, other)
        return getattr(self.tracer, operation)(*operands)

    return apply


for _name, _operation in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide", "mod": "mod",
    "pow": "power", "and": "logical_and", "or": "logical_or", "matmul": "matmul", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}.items():  # fmt: skip
    setattr(SymbolicTensor, f"__{_name}__", _operator(_operation))
    if _name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(SymbolicTensor, f"__r{_name}__", _operator(_operation, is_reflected=True))


def same(one: Size, other: Size) -> bool:
    """Tells whether two sizes are known to be equal."""
    if isinstance(one, SymbolicTensor) and isinstance(other, SymbolicTensor):
        return one.name == other.name
    return isinstance(one, int) and isinstance(other, int) and one == other


def all_same(some: list[Size], others: list[Size]) -> bool:
    """Tells whether two shapes are known to be equal."""
    return len(some) == len(others) and all(map(same, some, others))


def holds_symbolic(nest: Nest) -> bool:
    """Whether a symbolic value is among the values of a nest."""
    return any(isinstance(value, SymbolicTensor) for value in keras.tree.flatten(nest))


class Untraceable(Unwritable):
    """A model computes something that has no form in ONNX here."""


def _with_int64() -> AbstractContextManager:
    """Within it Keras makes integers of 64 bits where they are asked for, which JAX else makes of 32."""
    if keras.config.backend() != "jax":
        return nullcontext()
    import jax

    return jax.enable_x64(True)


def model_of(r: Tracer, inputs: Sequence[ValueInfo], outputs: Sequence[tuple[ValueInfo, SymbolicTensor]]) -> Model:
    """Returns what was recorded, as a model with these inputs and outputs."""
    for info, value in outputs:
        r.graphs[0].named(value.name, info.name)
    return Model(r.graphs[0], inputs, [info for info, _ in outputs])


class Tracer:
    """Records what is computed as an ONNX graph; `ops.on` makes it the back end.

    Args:
        precision: the precision of weights and states.
        num_positions: how many positions the tables of positions have.
        num_tokens: how many tokens a search chooses among.
        operations: what writes each operation of `ops`, by its name.
        overrides: what writes each `ops.overridable` function, by its name.
        keras_layers: what writes the layers of Keras, by their classes.
    """

    integers = "int64"

    def __init__(
        self,
        precision: Precision,
        num_positions: int,
        num_tokens: int,
        operations: Mapping[str, Write],
        overrides: Mapping[str, Write],
        keras_layers: Mapping[type[keras.Layer], Write],
    ):
        self.graphs = [Graph()]
        self.precision = precision
        self.num_positions = num_positions
        self.num_tokens = num_tokens
        self.operations = operations
        self.overrides = {name: partial(write, self) for name, write in overrides.items()}
        self.keras_layers = keras_layers
        # While beams share keys: how many beams, how many keys were there before, and which of the keys a beam sees.
        self.num_sharing = 1
        self.num_alone: Size = 0
        self.seen: SymbolicTensor | None = None
        self.starts: SymbolicTensor | None = None  # (B,) where rows begin in a cache, if not all at its first place
        self.rounds: list[tuple[int, Size]] = []  # for each loop in rounds its body's depth, and the whole batch
        self._path: list[str] = []  # the layers whose calls are recorded now
        self._known: list[dict[tuple, Any]] = [{}]  # for each graph, its nodes
        self._vectors: dict[str, SymbolicTensor] = {}  # sizes in the shape (1,), by the names of the scalars
        self._axes: dict[str | int | None, Size] = {}  # the axes of the inputs, by their names
        self._arrays: dict[int, tuple[Any, np.ndarray]] = {}
        self._derived: dict[tuple, tuple[Any, Any]] = {}
        # How values were made that others may be made of in fewer nodes, by name.
        self.transposed: dict[str, tuple[SymbolicTensor, list[int]]] = {}
        self.products: dict[str, tuple[SymbolicTensor, np.ndarray]] = {}
        self.widened: dict[str, SymbolicTensor] = {}  # in float16, what was made float32
        self.positive: set[str] = set()  # numbers that are not negative

    @property
    def compute_dtype(self) -> str:
        """The type of states."""
        return self.precision.dtype

    # Operations and layers

    def __getattr__(self, name: str) -> Write:
        """An operation of `ops`: recorded if it takes a symbolic value, else computed by Keras at once."""
        if name.startswith("_"):
            raise AttributeError(name)

        def apply(*arguments: Nest, **named: Nest) -> Nest:
            if not holds_symbolic((arguments, named)):
                return self.computed(getattr(keras.ops, name), *arguments, **named)
            if name not in self.operations:
                raise self.untraceable(f"the operation `ops.{name}`")
            return self.operations[name](self, *arguments, **named)

        return apply

    def map_structure(self, function: Callable[..., Nest], *nests: Nest) -> Nest:
        """Maps nests as Keras's own function does."""
        return keras.tree.map_structure(function, *nests)

    def computed(self, function: Callable[..., Nest], *arguments: Nest, **named: Nest) -> Nest:
        """Computes what depends on constants alone by Keras, as arrays."""
        texts = [value for value in (*arguments, *named.values()) if isinstance(value, str)]
        with ops.on(None), _with_int64() if "int64" in texts else nullcontext():
            return keras.tree.map_structure(
                lambda value: value if isinstance(value, int | float | str) else keras.ops.convert_to_numpy(value),
                function(*arguments, **named),
            )

    def call_layer(self, layer: keras.Layer, *arguments: Nest, **named: Nest) -> Nest:
        """Records the call of a layer: a layer of Keras in the form that it has here, others by their `call`."""
        named.pop("training", None)
        if layer.autocast:
            arguments, named = keras.tree.map_structure(self._in_compute_type, (arguments, named))
        if not holds_symbolic((arguments, named)):
            return self.computed(layer, *arguments, **named)
        self._path.append(f"{layer.name} ({type(layer).__name__})")
        try:
            for kind, write in self.keras_layers.items():
                if type(layer).call is kind.call:
                    return write(self, layer, *arguments, **named)
            return layer.call(*arguments, **named)
        finally:
            self._path.pop()

    def _in_compute_type(self, value: Nest) -> Nest:
        """Casts an argument of a layer as Keras does."""
        is_float = isinstance(value, SymbolicTensor) and value.dtype.startswith("float")
        return self.cast(value, self.compute_dtype) if is_float else value

    def untraceable(self, what: str) -> Untraceable:
        """Returns the error that a model computes something without a form here."""
        where = f" in the layer {self._path[-1]}" if self._path else ""
        return Untraceable(f"ONNX has no form here of {what}{where}")

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

    def input(self, info: ValueInfo) -> SymbolicTensor:
        """Adds an input of the model.

        Its sizes are looked up at once: axes of one name share theirs, and so does all that is made of them.
        """
        known: list[Size] = [size if isinstance(size, int) else self._axes.get(size) for size in info.shape]
        value = SymbolicTensor(self, info.name, str(np.dtype(info.dtype)), known, 0)
        self.look_up_sizes(value)
        self._axes |= zip(info.shape, value.sizes, strict=True)
        return value

    def emit(
        self,
        operator: str,
        *inputs: Operand | None,
        dtype: Any,
        sizes: Any,
        outputs: int = 0,
        domain: str = "",
        **attributes: Any,
    ) -> Any:
        """Appends a node to the outermost graph that has its inputs, unless an equal node is there.

        Args:
            operator: its name.
            inputs: symbolic values, constants, or None for an input that is left out.
            dtype, sizes: the output's type and sizes; lists of them for several outputs.
            outputs: how many outputs, if there are several.
            domain: the domain of the operator.
            attributes: the attributes of the node.
        """
        symbolic = [value for value in inputs if isinstance(value, SymbolicTensor)]
        names = {id(value): value.name for value in symbolic}  # which makes nodes of views
        depth = max((value.depth for value in symbolic), default=0)
        self._require_of_active_sentences(symbolic)
        graph = self.graphs[depth]
        given = [None if x is None else names[id(x)] if id(x) in names else graph.value(self.array(x)) for x in inputs]
        key = (operator, tuple(given), outputs, domain, repr(sorted(attributes.items())))
        if key in self._known[depth]:
            return self._known[depth][key]
        made = graph(operator, *given, outputs=outputs, domain=domain, **attributes)
        described = zip(made, dtype, sizes, strict=True) if outputs else [(made, dtype, sizes)]
        found = [SymbolicTensor(self, name, of, [*shape], depth) for name, of, shape in described]
        self._known[depth][key] = found if outputs else found[0]
        if depth == 0:  # A batch may be empty here, and no node `Reshape` can find the sizes of an empty value.
            for value in found:
                self.look_up_sizes(value)
        return self._known[depth][key]

    def _require_of_active_sentences(self, values: Sequence[SymbolicTensor]) -> None:
        """Raises Untraceable if a node in a loop that drops sentences takes a value of all sentences."""
        for depth, batch in self.rounds:
            for value in values:
                if value.depth < depth < len(self.graphs) and any(same(size, batch) for size in value.sizes):
                    raise self.untraceable(
                        "a search whose steps take what they know of each sentence from outside: hand it on in the "
                        "state, in the cache, or in what `run_loop` is given"
                    )

    # Constants and types

    def derived(self, make: Callable[..., Nest], *arrays: np.ndarray) -> Nest:
        """Computes what a function makes of weights once: a loop is recorded several times."""
        key = (make, *map(id, arrays))
        if key not in self._derived:
            self._derived[key] = arrays, make(*arrays)
        return self._derived[key][1]

    def array(self, value: Operand, dtype: str | None = None) -> np.ndarray:
        """Returns a number, an array, or a weight as a constant; each weight gives the same array again."""
        if isinstance(value, keras.Variable) or keras.ops.is_tensor(value):
            if id(value) not in self._arrays:
                self._arrays[id(value)] = (value, keras.ops.convert_to_numpy(value))
            value = self._arrays[id(value)][1]
        value = np.asarray(value)
        if dtype is not None:
            return value if value.dtype == dtype else value.astype(dtype)
        return value.astype("float32") if value.dtype == np.float64 else value

    def type_of(self, *values: Operand) -> str:
        """Returns the common type of operands. A weight takes that of symbolic values; a Python number has none."""
        typed = [str(value.dtype) for value in values if isinstance(value, SymbolicTensor | np.ndarray | np.generic)]
        floats = [dtype.replace("64", "32") for dtype in typed if dtype.startswith("float")]
        if floats:
            return max(floats)  # singles win over halves
        if any(type(value) is float or isinstance(value, keras.Variable) for value in values):
            return "float32"
        is_truth = {*typed} == {"bool"} and not any(type(value) is int for value in values)
        return next((dtype for dtype in ("int64", "int32", "uint8") if dtype in typed), "bool" if is_truth else "int64")

    def as_type(self, value: Operand, dtype: str) -> Array:
        """Casts a value; what is not symbolic becomes a constant."""
        return self.cast(value, dtype) if isinstance(value, SymbolicTensor) else self.array(value, dtype)

    # Sizes and views

    def sizes_of(self, value: Operand) -> list[Size]:
        """Returns the sizes of any value."""
        return value.sizes if isinstance(value, SymbolicTensor) else [*np.shape(self.array(value))]

    def size(self, x: SymbolicTensor, axis: int) -> int | SymbolicTensor:
        """Returns the size of an axis; the graph looks it up if it is not known."""
        axis %= x.ndim
        size = x.sizes[axis]
        if size is None:
            vector = self.emit("Shape", x, dtype="int64", sizes=[1], start=axis, end=axis + 1)
            scalar = self.emit("Squeeze", vector, np.array([0]), dtype="int64", sizes=[])
            self._vectors[scalar.name] = vector
            self.positive.add(scalar.name)
            size = x.sizes[axis] = scalar
        return size

    def look_up_sizes(self, x: SymbolicTensor) -> None:
        """Makes all sizes of a value known."""
        for axis in range(x.ndim):
            self.size(x, axis)

    def vector(self, sizes: Sequence[Size]) -> Array:
        """Joins sizes (numbers and symbolic scalars) to one constant or symbolic value (n,)."""
        parts: list[Array] = []
        for size in sizes:
            assert size is not None
            if isinstance(size, SymbolicTensor):
                parts.append(self._vector_of(size))
            elif parts and isinstance(parts[-1], np.ndarray):
                parts[-1] = np.append(parts[-1], int(size))
            else:
                parts.append(np.array([int(size)], "int64"))
        if len(parts) < 2:
            return parts[0] if parts else np.zeros(0, "int64")
        return self.emit("Concat", *parts, dtype="int64", sizes=[len(sizes)], axis=0)

    def _vector_of(self, scalar: SymbolicTensor) -> SymbolicTensor:
        """Returns a scalar in the shape (1,)."""
        if scalar.name not in self._vectors:
            self._vectors[scalar.name] = self.emit(
                "Reshape", self.cast(scalar, "int64"), np.array([1]), dtype="int64", sizes=[1]
            )
        return self._vectors[scalar.name]

    def view(self, x: SymbolicTensor, sizes: Sequence[Size]) -> SymbolicTensor:
        """Returns a value in another shape of the same numbers, without a node."""
        whole = x.whole
        if all_same(whole.sizes, [*sizes]):
            return whole
        return SymbolicTensor(self, None, x.dtype, [*sizes], whole.depth, whole)

    def reshaped(self, view: SymbolicTensor) -> tuple[str, int]:
        """Makes the node of a view; returns its name and depth."""
        assert view.base is not None
        target, options = self._target(view.base, view.sizes)
        made = self.emit("Reshape", view.base, self.vector(target), dtype=view.dtype, sizes=view.sizes, **options)
        return made.name, made.depth

    def _target(self, whole: SymbolicTensor, sizes: Sequence[Size]) -> tuple[list[Size], Config]:
        """Returns the sizes for a node `Reshape`, and its options.

        No batch is empty in a loop. There, 0 copies a size and -1 stands for one that is not known.
        """
        if whole.depth == 0 and None not in sizes:
            return [*sizes], {} if all(isinstance(size, int) for size in sizes) else {"allowzero": 1}
        target: list[Size] = [
            0 if isinstance(size, SymbolicTensor) and axis < whole.ndim and same(whole.sizes[axis], size) else size
            for axis, size in enumerate(sizes)
        ]
        if sum(not isinstance(size, int) for size in target) > 1:
            target = [*sizes] if None in sizes else target
        unknown = [axis for axis, size in enumerate(target) if size is None] or [
            axis for axis, size in enumerate(target) if isinstance(size, SymbolicTensor)
        ]
        if unknown:
            target[unknown[0]] = -1
        if None in target:
            raise self.untraceable(f"a shape with two unknown sizes ({whole.shape} → {tuple(sizes)})")
        return target, {}

    def rows(self, x: SymbolicTensor) -> SymbolicTensor:
        """States (..., D) as rows (R, D)."""
        whole = x.whole
        if whole.ndim == 2 and same(whole.sizes[-1], x.sizes[-1]):
            return whole
        return x if x.ndim == 2 else self.view(x, [self.remaining(x.sizes, [x.sizes[-1]]), x.sizes[-1]])

    def remaining(self, old: Sequence[Size], given: Sequence[Size]) -> Size:
        """Returns the size that -1 stands for beside others; None if the graph would have to compute more."""
        if None in old or None in given:
            return None
        left = [size for size in old if isinstance(size, SymbolicTensor)]
        for size in given:
            if isinstance(size, SymbolicTensor):
                place = next((place for place, one in enumerate(left) if same(one, size)), None)
                if place is None:
                    return None
                left.pop(place)
        number, divisor = (int(np.prod([size for size in sizes if isinstance(size, int)])) for sizes in (old, given))
        if divisor == 0 or number % divisor:
            return None
        found: Size = number // divisor
        for size in left:
            found = size if isinstance(found, int) and found == 1 else self.multiply(size, found)
        return found


# Precisions


class Precision:
    """Keeps weights and states in float32, or in float16.

    Args:
        dtype: their type. Softmax, the inner part of norms, and the search are always in float32.
    """

    def __init__(self, dtype: str = "float32"):
        self.dtype = dtype

    def product(self, r: Tracer, x: SymbolicTensor, weight: np.ndarray, bias: Operand | None = None) -> SymbolicTensor:
        """Rows (R, in), a weight (in, out) and a bias (out,) → (R, out). A weight may be a transposed table."""
        weight = weight if x.dtype == "float32" else r.derived(in_half, weight)
        if bias is not None:
            return self._gemm(r, x, weight, r.array(bias, x.dtype))
        made = self._gemm(r, x, weight)
        r.products[made.name] = x, weight
        return made

    def _gemm(self, r: Tracer, x: SymbolicTensor, weight: np.ndarray, *addend: Operand) -> SymbolicTensor:
        is_table = weight.flags.f_contiguous and not weight.flags.c_contiguous
        given = r.derived(np.transpose, weight) if is_table else weight
        options: Config = {"transB": 1} if is_table else {}
        sizes = [x.sizes[0], weight.shape[1]]
        return r.emit("Gemm", x, given, *addend, dtype=x.dtype, sizes=sizes, **options)

    def added(self, r: Tracer, x: SymbolicTensor, y: Operand) -> SymbolicTensor | None:
        """x + y in one node, if x is a product without an addend and y is a vector, or as large as x."""
        if x.whole.name not in r.products:
            return None
        rows, weight = r.products[x.whole.name]
        if len(r.sizes_of(y)) == 1 and same(r.sizes_of(y)[0], weight.shape[1]):
            addend = y
        elif isinstance(y, SymbolicTensor) and all_same(y.sizes, x.sizes):
            addend = r.rows(y)
        else:
            return None
        return r.view(self._gemm(r, rows, weight, addend), x.sizes)

    def divided(self, r: Tracer, x: SymbolicTensor, divisor: float) -> SymbolicTensor | None:
        """x / divisor, if x is a product without an addend: the product with another weight."""
        if x.whole.name not in r.products:
            return None
        rows, weight = r.products[x.whole.name]
        return r.view(self._gemm(r, rows, weight / np.asarray(divisor, weight.dtype)), x.sizes)

    def rows(self, r: Tracer, table: np.ndarray, ids: SymbolicTensor) -> SymbolicTensor:
        """Rows of a table (V, D): ids (R,) → (R, D)."""
        return r.take(table if self.dtype == "float32" else r.derived(in_half, table), ids, axis=0)


class Int8(Precision):
    """Multiplies 8-bit states, with a scale for each row, by 8-bit weights, with a scale for each column.

    The graph finds the scales of the states when it runs. Each row has its own, so neither neighbours nor padding
    change a row (ONNX's `DynamicQuantizeLinear` has one scale for all rows). Where sums of 8-bit products overflow, the
    states have 7 bits: see `sums_overflow`.
    """

    def product(self, r: Tracer, x: SymbolicTensor, weight: np.ndarray, bias: Operand | None = None) -> SymbolicTensor:
        integers, scales = r.derived(by_columns, weight)
        is_positive = x.whole.name in r.positive
        largest = r.max(x if is_positive else r.abs(x), axis=1, keepdims=True)  # (R, 1)
        if x.depth == 0:  # ONNX Runtime makes (0, in) of no row
            target, sizes = r.vector([x.sizes[0], 1]), [x.sizes[0], 1]
            largest = r.emit("Reshape", largest, target, dtype="float32", sizes=sizes, allowzero=1)
        unit, zero = scale_of_states(r, is_positive)
        # A row of zeros becomes 0 / 0. Whatever integers that gives, scaling them by 0 gives zeros again.
        y = r.emit("QuantizeLinear", r.divide(x, largest), unit, zero, dtype="uint8", sizes=x.sizes)
        # One node of ONNX Runtime for the product and the weights' scales; it takes only one scale for all rows of x.
        given = y, integers, unit, scales.ravel(), zero
        sizes = [x.sizes[0], integers.shape[1]]
        y = r.emit("MatMulIntegerToFloat", *given, dtype="float32", sizes=sizes, domain=CONTRIB_DOMAIN)
        y = r.multiply(largest, y)  # in this order: ONNX's checker takes the type from the first operand
        return y if bias is None else r.add(y, r.array(bias, "float32"))

    def rows(self, r: Tracer, table: np.ndarray, ids: SymbolicTensor) -> SymbolicTensor:
        integers, scales = r.derived(by_rows, table)
        return r.multiply(r.cast(r.take(integers, ids, axis=0), "float32"), r.take(scales, ids, axis=0))


PRECISION = {"float32": Precision(), "float16": Precision("float16"), "int8": Int8()}


def in_half(weight: np.ndarray) -> np.ndarray:
    """Casts a weight to float16."""
    return weight.astype("float16")


def by_columns(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantises a weight with a scale for each column."""
    return quantize(weight, axis=0)


def by_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Quantises a table with a scale for each row."""
    return quantize(table, axis=1)


def scale_of_states(r: Tracer, is_positive: bool) -> tuple[SymbolicTensor, SymbolicTensor]:
    """Returns the scale of states from -1 to 1 (0 to 1 if they are positive), and the integer that stands for 0."""
    in_7_bits, in_8_bits = ((1 / 127, 0), (1 / 255, 0)) if is_positive else ((1 / 63, 64), (1 / 127, 128))
    overflow = sums_overflow(r)
    scale, zero = (r.where(overflow, *map(np.float32, pair)) for pair in zip(in_7_bits, in_8_bits, strict=True))
    return scale, r.cast(zero, "uint8")


def sums_overflow(r: Tracer) -> SymbolicTensor:
    """Tells whether sums of 8-bit products overflow on the processor that runs the graph: the graph tries it.

    They do on x86 without VNNI instructions, where ONNX Runtime's kernels add two products in 16 bits. Products of
    states in 7 bits fit. ONNX Runtime computes this once, when it loads the graph.
    """
    given = np.full((1, 2), 255, "uint8"), np.full((2, 1), 127, "int8")
    found = r.emit("MatMulInteger", *given, dtype="int32", sizes=[1, 1])
    return r.not_equal(r.squeeze(found, (0, 1)), np.int32(2 * 255 * 127))


def quantize(weights: np.ndarray, axis: int) -> tuple[np.ndarray, np.ndarray]:
    """Quantises weights to int8, with a scale for each column (`axis` 0) or row (`axis` 1).

    Returns:
        The integers, and the scales (1, columns) or (rows, 1) float32: integers times scales are about the weights.
    """
    scales = np.maximum(np.abs(weights).max(axis=axis, keepdims=True), 1e-12) / 127
    return np.round(weights / scales).astype("int8"), scales.astype("float32")
