"""Values of a graph that is recorded, and the precision that a graph computes in.

Letters in shapes: R rows, V vocabulary, D width.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, Union

import keras
import numpy as np

from keras_transformer.spec.options import Config

from .graph import CONTRIB_DOMAIN, ValueInfo

# What records a value: the class `Recorder`, which knows the modules that take it as an argument.
Recorder: TypeAlias = Any
# The size of an axis: a number, a recorded scalar, or None until somebody asks.
Size: TypeAlias = Union[int, "Recorded", None]


class Recorded:
    """A value that a graph will compute.

    It may be a view: another value in another shape. Only a node that takes the view in its own shape makes a node
    `Reshape` of it; many take the other value.

    Args:
        recorder: what records it.
        name: its name in the graph; None for a view.
        dtype: its type.
        sizes: the sizes of its axes.
        depth: the depth of the graph that computes it: 0 for the model's, 1 for the body of a loop in it, and so on.
        base: the value that it is a view of.
    """

    __array_ufunc__ = None  # NumPy leaves operators to this class

    def __init__(
        self,
        recorder: Recorder,
        name: str | None,
        dtype: str,
        sizes: list[Size],
        depth: int,
        base: Recorded | None = None,
    ):
        self.recorder = recorder
        self.dtype = dtype
        self.sizes = sizes
        self.base = base
        self._name = name
        self._depth = depth

    @property
    def name(self) -> str:
        """Its name in the graph."""
        if self._name is None:
            self._name, self._depth = self.recorder.reshaped(self)
        return self._name

    @property
    def depth(self) -> int:
        """The depth of the graph that has it."""
        return self.base.depth if self._name is None and self.base is not None else self._depth

    @property
    def whole(self) -> Recorded:
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
        raise self.recorder.unrecordable("a decision on a value that is known only when the graph runs")

    def __iter__(self) -> Any:
        raise self.recorder.unrecordable("a loop over a value that is known only when the graph runs")

    def __array__(self, *_: object, **__: object) -> Any:
        raise self.recorder.unrecordable(
            "an operation that is not of `keras_transformer.ops`: import `ops` from keras_transformer, not from keras"
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Recorded({self._name}, {self.dtype}, {self.shape})"

    def __getitem__(self, key: object) -> Recorded:
        return self.recorder.part(self, key)

    def __neg__(self) -> Recorded:
        return self.recorder.negative(self)

    def __invert__(self) -> Recorded:
        return self.recorder.logical_not(self)


def _operator(operation: str, is_reflected: bool = False) -> Callable[[Recorded, Any], Any]:
    def apply(self: Recorded, other: object) -> Any:
        if other is None:  # no operand: `None in sizes` is a question of Python
            return NotImplemented
        operands = (other, self) if is_reflected else (self, other)
        return getattr(self.recorder, operation)(*operands)

    return apply


for _name, _operation in {
    "add": "add", "sub": "subtract", "mul": "multiply", "truediv": "divide", "floordiv": "floor_divide", "mod": "mod",
    "pow": "power", "and": "logical_and", "or": "logical_or", "matmul": "matmul", "eq": "equal", "ne": "not_equal",
    "lt": "less", "le": "less_equal", "gt": "greater", "ge": "greater_equal",
}.items():  # fmt: skip
    setattr(Recorded, f"__{_name}__", _operator(_operation))
    if _name not in ("eq", "ne", "lt", "le", "gt", "ge"):
        setattr(Recorded, f"__r{_name}__", _operator(_operation, is_reflected=True))


def same(one: Size, other: Size) -> bool:
    """Whether two sizes are known to be equal."""
    if isinstance(one, Recorded) and isinstance(other, Recorded):
        return one.name == other.name
    return isinstance(one, int) and isinstance(other, int) and one == other


def all_same(some: list[Size], others: list[Size]) -> bool:
    """Whether two shapes are known to be equal."""
    return len(some) == len(others) and all(map(same, some, others))


def holds_recorded(nest: object) -> bool:
    """Whether a recorded value is among the values of a nest."""
    return any(isinstance(value, Recorded) for value in keras.tree.flatten(nest))


class Precision:
    """Weights and states in float32, or in float16.

    Args:
        dtype: their type. Softmax, the inner part of norms, and the search are always in float32.
    """

    def __init__(self, dtype: str = "float32"):
        self.dtype = dtype

    def product(self, r: Recorder, x: Recorded, weight: np.ndarray, bias: object = None) -> Recorded:
        """Rows (R, in), a weight (in, out) and a bias (out,) → (R, out). A weight may be a transposed table."""
        weight = weight if x.dtype == "float32" else r.derived(in_half, weight)
        if bias is not None:
            return self._gemm(r, x, weight, r.array(bias, x.dtype))
        made = self._gemm(r, x, weight)
        r.products[made.name] = x, weight
        return made

    def _gemm(self, r: Recorder, x: Recorded, weight: np.ndarray, *addend: object) -> Recorded:
        is_table = weight.flags.f_contiguous and not weight.flags.c_contiguous
        given = r.derived(np.transpose, weight) if is_table else weight
        options: Config = {"transB": 1} if is_table else {}
        sizes = [x.sizes[0], weight.shape[1]]
        return r.emit("Gemm", x, given, *addend, dtype=x.dtype, sizes=sizes, **options)

    def added(self, r: Recorder, x: Recorded, y: object) -> Recorded | None:
        """x + y in one node, if x is a product without an addend and y is a vector, or as large as x."""
        if x.whole.name not in r.products:
            return None
        rows, weight = r.products[x.whole.name]
        if len(r.sizes_of(y)) == 1 and same(r.sizes_of(y)[0], weight.shape[1]):
            addend = y
        elif isinstance(y, Recorded) and all_same(y.sizes, x.sizes):
            addend = r.rows(y)
        else:
            return None
        return r.view(self._gemm(r, rows, weight, addend), x.sizes)

    def divided(self, r: Recorder, x: Recorded, divisor: float) -> Recorded | None:
        """x / divisor, if x is a product without an addend: the product with another weight."""
        if x.whole.name not in r.products:
            return None
        rows, weight = r.products[x.whole.name]
        return r.view(self._gemm(r, rows, weight / np.asarray(divisor, weight.dtype)), x.sizes)

    def rows(self, r: Recorder, table: np.ndarray, ids: Recorded) -> Recorded:
        """Rows of a table (V, D): ids (R,) → (R, D)."""
        return r.take(table if self.dtype == "float32" else r.derived(in_half, table), ids, axis=0)


class Int8(Precision):
    """Products of 8-bit weights, with a scale for each column, and 8-bit states, with a scale for each row.

    The graph finds the scales of the states when it runs. Each row has its own, so neither neighbours nor padding
    change a row (ONNX's `DynamicQuantizeLinear` has one scale for all rows). Where sums of 8-bit products overflow, the
    states have 7 bits: see `sums_overflow`.
    """

    def product(self, r: Recorder, x: Recorded, weight: np.ndarray, bias: object = None) -> Recorded:
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

    def rows(self, r: Recorder, table: np.ndarray, ids: Recorded) -> Recorded:
        integers, scales = r.derived(by_rows, table)
        return r.multiply(r.cast(r.take(integers, ids, axis=0), "float32"), r.take(scales, ids, axis=0))


PRECISION = {"float32": Precision(), "float16": Precision("float16"), "int8": Int8()}


def in_half(weight: np.ndarray) -> np.ndarray:
    """A weight in float16."""
    return weight.astype("float16")


def by_columns(weight: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A weight quantised with a scale for each column."""
    return quantize(weight, axis=0)


def by_rows(table: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """A table quantised with a scale for each row."""
    return quantize(table, axis=1)


def scale_of_states(r: Recorder, is_positive: bool) -> tuple[Recorded, Recorded]:
    """The scale of states from -1 to 1, or from 0 to 1 if they are positive, and the integer that stands for 0."""
    in_7_bits, in_8_bits = ((1 / 127, 0), (1 / 255, 0)) if is_positive else ((1 / 63, 64), (1 / 127, 128))
    overflow = sums_overflow(r)
    scale, zero = (r.where(overflow, *map(np.float32, pair)) for pair in zip(in_7_bits, in_8_bits, strict=True))
    return scale, r.cast(zero, "uint8")


def sums_overflow(r: Recorder) -> Recorded:
    """Whether sums of 8-bit products overflow on the processor that runs the graph: the graph tries it.

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
