"""The operations of `ops` as ONNX nodes. Each takes the recorder, and then what the operation of Keras takes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from .graph import element_type
from .recorded import Recorded, Recorder, Size, all_same, same

OPERATIONS: dict[str, Callable[..., Any]] = {}


def operation(record: Callable[..., object]) -> Callable[..., Any]:
    """Enters an operation under its name, without the underscores."""
    OPERATIONS[record.__name__.strip("_")] = record
    return record


# One number each


def unary(r: Recorder, operator: str, x: Recorded) -> Recorded:
    """A function of each number."""
    if x.base is not None:
        return r.view(unary(r, operator, x.base), x.sizes)
    return r.emit(operator, x, dtype=x.dtype, sizes=x.sizes)


def binary(r: Recorder, operator: str, one: Any, other: Any, dtype: str | None = None, gives: str | None = None) -> Any:
    """A function of each number of two values, which broadcast.

    Args:
        operator: its name.
        dtype: the type of the operands; by default their common one.
        gives: the type of the result; by default that of the operands.
    """
    dtype = dtype or r.type_of(one, other)
    one, other = r.as_type(one, dtype), r.as_type(other, dtype)
    for x, y in ((one, other), (other, one)):
        beside = beside_whole(r, x, y)
        if beside is not None:
            pair = (x.whole, beside) if x is one else (beside, x.whole)
            return r.view(r.emit(operator, *pair, dtype=gives or dtype, sizes=broadcast(r, *pair)), x.sizes)
    return r.emit(operator, one, other, dtype=gives or dtype, sizes=broadcast(r, one, other))


def beside_whole(r: Recorder, x: object, y: object) -> Any:
    """What y is beside the value that x is a view of: the two give the same numbers as x and y. None: nothing is."""
    if not isinstance(x, Recorded) or x.base is None:
        return None
    sizes = r.sizes_of(y)
    if math.prod(size if isinstance(size, int) else 2 for size in sizes) == 1 and len(sizes) <= x.base.ndim:
        return y
    if len(sizes) == 1 and same(sizes[0], x.sizes[-1]) and same(sizes[0], x.base.sizes[-1]):
        return y
    if x.base.ndim == 2 and isinstance(y, Recorded) and all_same(sizes, [*x.sizes[:-1], 1]):
        return r.view(y, [x.base.sizes[0], 1])  # a number for each row
    if isinstance(y, Recorded) and all_same(sizes, x.sizes) and y.base is not None and y.base.ndim == x.base.ndim:
        differing = sum(not same(*pair) for pair in zip(x.base.sizes, y.base.sizes, strict=True))
        return y.base if differing < 2 else None
    return None


def broadcast(r: Recorder, *values: object) -> list[Size]:
    """The sizes of what values broadcast to."""
    return broadcast_sizes(*map(r.sizes_of, values))


def broadcast_sizes(*shapes: Sequence[Size]) -> list[Size]:
    """What shapes broadcast to. A number above 1 is a size; a size that is not known may be 1, unless it is alone."""
    rank = max(map(len, shapes))
    padded = [[*[1] * (rank - len(sizes)), *sizes] for sizes in shapes]
    found: list[Size] = []
    for sizes in zip(*padded, strict=True):
        others = [size for size in sizes if not (isinstance(size, int) and size == 1)]
        numbers = [size for size in others if isinstance(size, int)]
        is_one = len(others) == 1 or bool(others) and all(same(others[0], size) for size in others)
        found.append(numbers[0] if numbers else others[0] if is_one else None if others else 1)
    return found


def _is_neutral(r: Recorder, value: object, number: float) -> bool:
    return not isinstance(value, Recorded) and np.ndim(r.array(value)) == 0 and r.array(value) == number


@operation
def _add(r: Recorder, one: Any, other: Any) -> Recorded:
    dtype = r.type_of(one, other)
    for x, y in ((one, other), (other, one)):
        if _is_neutral(r, y, 0) and dtype == x.dtype:
            return x
    if dtype.startswith("float"):
        one, other = r.as_type(one, dtype), r.as_type(other, dtype)
        for x, y in ((one, other), (other, one)):
            if isinstance(x, Recorded) and (made := r.precision.added(r, x, y)) is not None:
                return made
    made = binary(r, "Add", one, other)
    if dtype.startswith("int") and all(_is_positive(r, x) for x in (one, other)):
        r.positive.add(made.whole.name)
    return made


def _is_positive(r: Recorder, x: object) -> bool:
    """Whether numbers are known not to be negative."""
    return x.whole.name in r.positive if isinstance(x, Recorded) else bool(np.all(r.array(x) >= 0))


@operation
def _multiply(r: Recorder, one: Any, other: Any) -> Any:
    for x, y in ((one, other), (other, one)):
        if _is_neutral(r, y, 1) and r.type_of(one, other) == x.dtype:
            return x
    return binary(r, "Mul", one, other)


@operation
def _divide(r: Recorder, one: object, other: object) -> Recorded:
    dtype = r.type_of(one, other)
    is_exact = isinstance(other, float) and math.frexp(other)[0] == 0.5  # a power of two
    if is_exact and isinstance(one, Recorded) and (made := r.precision.divided(r, one, other)) is not None:
        return made
    return binary(r, "Div", one, other, dtype if dtype.startswith("float") else "float32")


@operation
def _floor_divide(r: Recorder, one: Any, other: Any) -> Recorded:
    """Integers that are not negative take one node: ONNX rounds their quotient to 0."""
    if r.type_of(one, other).startswith("float"):
        return r.floor(r.divide(one, other))
    if _is_neutral(r, other, 1):
        return one
    if not (_is_positive(r, one) and isinstance(other, int) and other > 0):
        one = r.subtract(one, r.mod(one, other))
    return binary(r, "Div", one, other)


@operation
def _mod(r: Recorder, one: object, other: object) -> Recorded:
    if r.type_of(one, other).startswith("float"):  # ONNX has the remainder of another sign
        return r.subtract(one, r.multiply(r.floor_divide(one, other), other))
    return binary(r, "Mod", one, other)


@operation
def _where(r: Recorder, condition: object, one: object, other: object) -> Recorded:
    dtype = r.type_of(one, other)
    one, other, condition = r.as_type(one, dtype), r.as_type(other, dtype), r.as_type(condition, "bool")
    if dtype == "bool":  # ONNX Runtime has no `Where` of truths
        chosen = r.logical_and(condition, one), r.logical_and(r.logical_not(condition), other)
        return r.logical_or(*chosen)
    if isinstance(one, Recorded) and one.base is not None:
        beside = [beside_whole(r, one, value) for value in (condition, other)]
        if not any(value is None for value in beside):
            return r.view(_where(r, beside[0], one.base, beside[1]), one.sizes)
    return r.emit("Where", condition, one, other, dtype=dtype, sizes=broadcast(r, condition, one, other))


@operation
def _cast(r: Recorder, x: Recorded, dtype: Any) -> Recorded:
    dtype = keras.backend.standardize_dtype(dtype)
    if x.dtype == dtype:
        return x
    if x.base is not None:
        return r.view(_cast(r, x.base, dtype), x.sizes)
    made = r.emit("Cast", x, dtype=dtype, sizes=x.sizes, to=element_type(dtype))
    if (x.dtype, dtype) == ("float16", "float32"):
        r.widened[made.name] = x
    return made


@operation
def _relu(r: Recorder, x: Recorded) -> Recorded:
    y = unary(r, "Relu", x)
    r.positive.add(y.whole.name)
    return y


@operation
def _gelu(r: Recorder, x: Recorded, approximate: bool = True) -> Recorded:
    """In the order of nodes in which ONNX Runtime finds it and computes it as one operator."""
    if approximate:
        inner = r.multiply(r.add(x, r.multiply(r.power(x, 3.0), 0.044715)), math.sqrt(2 / math.pi))
        return r.multiply(r.multiply(x, 0.5), r.add(r.tanh(inner), 1.0))
    return r.multiply(r.multiply(x, r.add(r.erf(r.divide(x, math.sqrt(2))), 1.0)), 0.5)


_UNARY = {
    "exp": "Exp", "sin": "Sin", "cos": "Cos", "tanh": "Tanh", "sigmoid": "Sigmoid", "log": "Log", "abs": "Abs",
    "absolute": "Abs", "sqrt": "Sqrt", "round": "Round", "negative": "Neg", "logical_not": "Not", "erf": "Erf",
    "softplus": "Softplus", "floor": "Floor", "ceil": "Ceil", "sign": "Sign",
}  # fmt: skip
_BINARY = {
    "subtract": "Sub", "power": "Pow", "maximum": "Max", "minimum": "Min",
}  # fmt: skip
_COMPARING = {
    "equal": "Equal", "less": "Less", "less_equal": "LessOrEqual", "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
}  # fmt: skip
OPERATIONS |= {name: lambda r, x, how=how: unary(r, how, x) for name, how in _UNARY.items()}
OPERATIONS |= {name: lambda r, x, y, how=how: binary(r, how, x, y) for name, how in _BINARY.items()}
OPERATIONS |= {name: lambda r, x, y, how=how: binary(r, how, x, y, None, "bool") for name, how in _COMPARING.items()}
OPERATIONS |= {
    "logical_and": lambda r, x, y: binary(r, "And", x, y, "bool"),
    "logical_or": lambda r, x, y: binary(r, "Or", x, y, "bool"),
    "not_equal": lambda r, x, y: r.logical_not(r.equal(x, y)),
    "clip": lambda r, x, low, high: r.minimum(r.maximum(x, low), high),
    "square": lambda r, x: r.multiply(x, x),
    "silu": lambda r, x: r.multiply(x, r.sigmoid(x)),
    "convert_to_tensor": lambda r, x, dtype=None: x if dtype is None else r.cast(x, dtype),
    "stop_gradient": lambda r, x: x,
}


# Along axes


def reduced(r: Recorder, operator: str, x: Recorded, axis: Any, keepdims: bool) -> Recorded:
    """A function of the numbers along axes; of all numbers if `axis` is None."""
    if operator == "ReduceMean" and not x.dtype.startswith("float"):
        x = r.cast(x, "float32")
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = sorted(each % x.ndim for each in axes)
    sizes = [1 if place in axes else size for place, size in enumerate(x.sizes) if keepdims or place not in axes]
    if operator == "ReduceSum":  # takes the axes as an input
        return r.emit(operator, x, np.array(axes), dtype=x.dtype, sizes=sizes, keepdims=int(keepdims))
    # Counted from the end, ONNX Runtime finds norms, but it gives results of an empty batch a wrong shape.
    axes = [each - x.ndim for each in axes] if operator == "ReduceMean" else axes
    return r.emit(operator, x, dtype=x.dtype, sizes=sizes, keepdims=int(keepdims), axes=axes)


_REDUCED = {"mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "logsumexp": "ReduceLogSumExp"}
for _name, _operator in {**_REDUCED, "sum": "ReduceSum", "all": "ReduceMin", "any": "ReduceMax"}.items():
    # ONNX counts and looks for truths in integers.
    OPERATIONS[_name] = lambda r, x, axis=None, keepdims=False, how=_operator, gives=_name: r.cast(
        found := reduced(r, how, r.cast(x, "int32") if x.dtype == "bool" else x, axis, keepdims),
        "bool" if gives in ("all", "any") else found.dtype,
    )


@operation
def _log_softmax(r: Recorder, x: Recorded, axis: int = -1) -> Recorded:
    if axis == -1 and x.base is not None and same(x.sizes[-1], x.base.sizes[-1]):
        return r.view(_log_softmax(r, x.base), x.sizes)
    return r.emit("LogSoftmax", x, dtype=x.dtype, sizes=x.sizes, axis=axis)


@operation
def _top_k(r: Recorder, x: Recorded, k: int, sorted: bool = True) -> Any:
    rows = x.whole if x.whole.ndim == 2 and same(x.whole.sizes[-1], x.sizes[-1]) else x
    sizes = [*rows.sizes[:-1], k]
    found = r.emit("TopK", rows, np.array([k]), dtype=[x.dtype, "int64"], sizes=[sizes, sizes], outputs=2)
    r.positive.add(found[1].name)
    return tuple(r.view(one, [*x.sizes[:-1], k]) for one in found)


@operation
def _matmul(r: Recorder, one: object, other: object) -> Recorded:
    dtype = r.type_of(one, other)
    left, right = r.sizes_of(one), r.sizes_of(other)
    sizes = [*broadcast_sizes(left[:-2], right[:-2]), left[-2], right[-1]]
    return r.emit("MatMul", r.as_type(one, dtype), r.as_type(other, dtype), dtype=dtype, sizes=sizes)


@operation
def _softmax(r: Recorder, x: Recorded, axis: int = -1) -> Recorded:
    return r.emit("Softmax", x, dtype=x.dtype, sizes=x.sizes, axis=axis)


@operation
def _cumsum(r: Recorder, x: Recorded, axis: int) -> Recorded:
    return r.emit("CumSum", x, np.array(axis, "int32"), dtype=x.dtype, sizes=x.sizes)


@operation
def _one_hot(r: Recorder, x: Recorded, num_classes: int, axis: int = -1, dtype: str = "float32") -> Recorded:
    if axis not in (-1, x.ndim):
        raise r.unrecordable("`ops.one_hot` along another axis than the last")
    return r.cast(r.equal(r.expand_dims(x, -1), np.arange(num_classes)), dtype)
