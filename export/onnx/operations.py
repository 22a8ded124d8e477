"""Writes the operations of `ops` as ONNX nodes. Each takes the tracer, and then what the operation of Keras takes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import EllipsisType
from typing import Any, TypeAlias

import keras
import numpy as np
from numpy.typing import DTypeLike
from onnx import numpy_helper

from .graph import element_type
from .tracer import Nest, Operand, Size, SymbolicTensor, Tracer, Write, all_same, same

OPERATIONS: dict[str, Write] = {}


def operation(write: Write) -> Write:
    """Enters an operation under its name, without the underscores."""
    OPERATIONS[write.__name__.strip("_")] = write
    return write


# One number each


def unary(r: Tracer, operator: str, x: SymbolicTensor) -> SymbolicTensor:
    """Applies an operator to each number."""
    if x.base is not None:
        return r.view(unary(r, operator, x.base), x.sizes)
    return r.emit(operator, x, dtype=x.dtype, sizes=x.sizes)


def binary(
    r: Tracer, operator: str, one: Operand, other: Operand, dtype: str | None = None, gives: str | None = None
) -> Any:
    """Applies an operator to each number of two values, which broadcast.

    Args:
        operator: its name.
        dtype: the type of the operands; by default their common one.
        gives: the type of the result; by default that of the operands.
    """
    dtype = dtype or r.type_of(one, other)
    one, other = r.as_type(one, dtype), r.as_type(other, dtype)
    for x, y in ((one, other), (other, one)):
        if isinstance(x, SymbolicTensor) and (beside := beside_whole(r, x, y)) is not None:
            pair = (x.whole, beside) if x is one else (beside, x.whole)
            return r.view(r.emit(operator, *pair, dtype=gives or dtype, sizes=broadcast(r, *pair)), x.sizes)
    return r.emit(operator, one, other, dtype=gives or dtype, sizes=broadcast(r, one, other))


def beside_whole(r: Tracer, x: SymbolicTensor, y: Operand) -> Operand | None:
    """Returns y in the shape that fits the value that x is a view of; None if there is none."""
    if x.base is None:
        return None
    sizes = r.sizes_of(y)
    if math.prod(size if isinstance(size, int) else 2 for size in sizes) == 1 and len(sizes) <= x.base.ndim:
        return y
    if len(sizes) == 1 and same(sizes[0], x.sizes[-1]) and same(sizes[0], x.base.sizes[-1]):
        return y
    if x.base.ndim == 2 and isinstance(y, SymbolicTensor) and all_same(sizes, [*x.sizes[:-1], 1]):
        return r.view(y, [x.base.sizes[0], 1])  # a number for each row
    if isinstance(y, SymbolicTensor) and all_same(sizes, x.sizes) and y.base is not None and y.base.ndim == x.base.ndim:
        differing = sum(not same(*pair) for pair in zip(x.base.sizes, y.base.sizes, strict=True))
        return y.base if differing < 2 else None
    return None


def broadcast(r: Tracer, *values: Operand) -> list[Size]:
    """Returns the sizes that values broadcast to."""
    return broadcast_sizes(*map(r.sizes_of, values))


def broadcast_sizes(*shapes: Sequence[Size]) -> list[Size]:
    """Returns what shapes broadcast to. A number above 1 is a size; an unknown size may be 1, unless it is alone."""
    rank = max(map(len, shapes))
    padded = [[*[1] * (rank - len(sizes)), *sizes] for sizes in shapes]
    found: list[Size] = []
    for sizes in zip(*padded, strict=True):
        others = [size for size in sizes if not (isinstance(size, int) and size == 1)]
        numbers = [size for size in others if isinstance(size, int)]
        is_one = len(others) == 1 or bool(others) and all(same(others[0], size) for size in others)
        found.append(numbers[0] if numbers else others[0] if is_one else None if others else 1)
    return found


def _is_neutral(r: Tracer, value: Operand, number: float) -> bool:
    return not isinstance(value, SymbolicTensor) and np.ndim(r.array(value)) == 0 and r.array(value) == number


@operation
def _add(r: Tracer, one: Operand, other: Operand) -> SymbolicTensor:
    dtype = r.type_of(one, other)
    for x, y in ((one, other), (other, one)):
        if isinstance(x, SymbolicTensor) and _is_neutral(r, y, 0) and dtype == x.dtype:
            return x
    if dtype.startswith("float"):
        one, other = r.as_type(one, dtype), r.as_type(other, dtype)
        for x, y in ((one, other), (other, one)):
            if isinstance(x, SymbolicTensor) and (made := r.precision.added(r, x, y)) is not None:
                return made
    made = binary(r, "Add", one, other)
    if dtype.startswith("int") and all(_is_positive(r, x) for x in (one, other)):
        r.positive.add(made.whole.name)
    return made


def _is_positive(r: Tracer, x: Operand) -> bool:
    """Whether numbers are known not to be negative."""
    return x.whole.name in r.positive if isinstance(x, SymbolicTensor) else bool(np.all(r.array(x) >= 0))


@operation
def _multiply(r: Tracer, one: Operand, other: Operand) -> Any:
    for x, y in ((one, other), (other, one)):
        if isinstance(x, SymbolicTensor) and _is_neutral(r, y, 1) and r.type_of(one, other) == x.dtype:
            return x
    return binary(r, "Mul", one, other)


@operation
def _divide(r: Tracer, one: Operand, other: Operand) -> SymbolicTensor:
    dtype = r.type_of(one, other)
    if isinstance(one, SymbolicTensor) and isinstance(other, float) and math.frexp(other)[0] == 0.5:  # a power of two
        made = r.precision.divided(r, one, other)
        if made is not None:
            return made
    return binary(r, "Div", one, other, dtype if dtype.startswith("float") else "float32")


@operation
def _floor_divide(r: Tracer, one: Operand, other: Operand) -> SymbolicTensor:
    """Divides and rounds down. Integers that are not negative take one node: ONNX rounds their quotient to 0."""
    if r.type_of(one, other).startswith("float"):
        return r.floor(r.divide(one, other))
    if isinstance(one, SymbolicTensor) and _is_neutral(r, other, 1):
        return one
    if not (_is_positive(r, one) and isinstance(other, int) and other > 0):
        one = r.subtract(one, r.mod(one, other))
    return binary(r, "Div", one, other)


@operation
def _mod(r: Tracer, one: Operand, other: Operand) -> SymbolicTensor:
    if r.type_of(one, other).startswith("float"):  # ONNX has the remainder of another sign
        return r.subtract(one, r.multiply(r.floor_divide(one, other), other))
    return binary(r, "Mod", one, other)


@operation
def _where(r: Tracer, condition: Operand, one: Operand, other: Operand) -> SymbolicTensor:
    dtype = r.type_of(one, other)
    one, other, condition = r.as_type(one, dtype), r.as_type(other, dtype), r.as_type(condition, "bool")
    if dtype == "bool":  # ONNX Runtime has no `Where` of truths
        chosen = r.logical_and(condition, one), r.logical_and(r.logical_not(condition), other)
        return r.logical_or(*chosen)
    if isinstance(one, SymbolicTensor) and one.base is not None:
        beside = [beside_whole(r, one, value) for value in (condition, other)]
        if not any(value is None for value in beside):
            return r.view(_where(r, beside[0], one.base, beside[1]), one.sizes)
    return r.emit("Where", condition, one, other, dtype=dtype, sizes=broadcast(r, condition, one, other))


@operation
def _cast(r: Tracer, x: SymbolicTensor, dtype: DTypeLike) -> SymbolicTensor:
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
def _relu(r: Tracer, x: SymbolicTensor) -> SymbolicTensor:
    y = unary(r, "Relu", x)
    r.positive.add(y.whole.name)
    return y


@operation
def _gelu(r: Tracer, x: SymbolicTensor, approximate: bool = True) -> SymbolicTensor:
    """Writes the nodes in the order that ONNX Runtime finds and computes as one operator."""
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


def reduced(
    r: Tracer, operator: str, x: SymbolicTensor, axis: int | Sequence[int] | None, keepdims: bool
) -> SymbolicTensor:
    """Applies an operator to the numbers along axes; to all numbers if `axis` is None."""
    if operator == "ReduceMean" and not x.dtype.startswith("float"):
        x = r.cast(x, "float32")
    axes = range(x.ndim) if axis is None else [axis] if isinstance(axis, int) else axis
    axes = sorted(each % x.ndim for each in axes)
    sizes = [1 if place in axes else size for place, size in enumerate(x.sizes) if keepdims or place not in axes]
    if operator == "ReduceSum":  # takes the axes as an input
        return r.emit(operator, x, np.array(axes), dtype=x.dtype, sizes=sizes, keepdims=int(keepdims))
    # Counted from the end, ONNX Runtime finds norms, but it gives results of an empty batch a wrong shape.
    axes = [-1] if operator == "ReduceMean" and axes == [x.ndim - 1] else axes
    return r.emit(operator, x, dtype=x.dtype, sizes=sizes, keepdims=int(keepdims), axes=axes)


_REDUCED = {"mean": "ReduceMean", "max": "ReduceMax", "min": "ReduceMin", "logsumexp": "ReduceLogSumExp"}
for _name, _operator in {**_REDUCED, "sum": "ReduceSum", "all": "ReduceMin", "any": "ReduceMax"}.items():
    # ONNX counts and looks for truths in integers.
    OPERATIONS[_name] = lambda r, x, axis=None, keepdims=False, how=_operator, gives=_name: r.cast(
        found := reduced(r, how, r.cast(x, "int32") if x.dtype == "bool" else x, axis, keepdims),
        "bool" if gives in ("all", "any") else found.dtype,
    )


@operation
def _log_softmax(r: Tracer, x: SymbolicTensor, axis: int = -1) -> SymbolicTensor:
    if axis == -1 and x.base is not None and same(x.sizes[-1], x.base.sizes[-1]):
        return r.view(_log_softmax(r, x.base), x.sizes)
    return r.emit("LogSoftmax", x, dtype=x.dtype, sizes=x.sizes, axis=axis)


@operation
def _argmax(r: Tracer, x: SymbolicTensor, axis: int = -1) -> SymbolicTensor:
    assert axis in (-1, x.ndim - 1)
    # Of an empty batch ONNX Runtime leaves the axis in, and with `keepdims` at its size; TopK ends the process in 1.24.
    return r.emit("ArgMax", x, dtype="int64", sizes=[*x.sizes[:-1], 1], axis=-1, keepdims=1)[..., 0]


@operation
def _contains(r: Tracer, ids: SymbolicTensor, size: Size) -> SymbolicTensor:
    places, nowhere = r.cast(ids, "int64"), r.zeros([*r.shape(ids)[:-1], size], "bool")
    sizes = [*ids.sizes[:-1], size]
    return r.emit("ScatterElements", nowhere, places, r.equal(places, places), dtype="bool", sizes=sizes, axis=-1)


@operation
def _top_k(r: Tracer, x: SymbolicTensor, k: int, sorted: bool = True) -> tuple[SymbolicTensor, ...]:
    rows = x.whole if x.whole.ndim == 2 and same(x.whole.sizes[-1], x.sizes[-1]) else x
    sizes = [*rows.sizes[:-1], k]
    found = r.emit("TopK", rows, np.array([k]), dtype=[x.dtype, "int64"], sizes=[sizes, sizes], outputs=2)
    r.positive.add(found[1].name)
    return tuple(r.view(one, [*x.sizes[:-1], k]) for one in found)


@operation
def _matmul(r: Tracer, one: Operand, other: Operand) -> SymbolicTensor:
    dtype = r.type_of(one, other)
    left, right = r.sizes_of(one), r.sizes_of(other)
    sizes = [*broadcast_sizes(left[:-2], right[:-2]), left[-2], right[-1]]
    return r.emit("MatMul", r.as_type(one, dtype), r.as_type(other, dtype), dtype=dtype, sizes=sizes)


@operation
def _softmax(r: Tracer, x: SymbolicTensor, axis: int = -1) -> SymbolicTensor:
    return r.emit("Softmax", x, dtype=x.dtype, sizes=x.sizes, axis=axis)


@operation
def _cumsum(r: Tracer, x: SymbolicTensor, axis: int) -> SymbolicTensor:
    return r.emit("CumSum", x, np.array(axis, "int32"), dtype=x.dtype, sizes=x.sizes)


@operation
def _one_hot(r: Tracer, x: SymbolicTensor, num_classes: int, axis: int = -1, dtype: str = "float32") -> SymbolicTensor:
    if axis not in (-1, x.ndim):
        raise r.untraceable("`ops.one_hot` along another axis than the last")
    return r.cast(r.equal(r.expand_dims(x, -1), np.arange(num_classes)), dtype)


# Shapes

# What stands in the brackets of `x[key]` for an axis, or for a new one.
Place: TypeAlias = int | np.integer | SymbolicTensor | slice | EllipsisType | None
Key: TypeAlias = Place | tuple[Place, ...]
END = np.iinfo("int64").max  # as the end of a slice: to the end of the axis


@operation
def _reshape(r: Tracer, x: Operand, newshape: int | SymbolicTensor | Sequence[Size]) -> SymbolicTensor:
    sizes: list[Size] = [newshape] if isinstance(newshape, int | SymbolicTensor) else [*newshape]
    unknown = [axis for axis, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if unknown:
        given = [size for axis, size in enumerate(sizes) if axis != unknown[0]]
        sizes[unknown[0]] = r.remaining(r.sizes_of(x), given)
    if isinstance(x, SymbolicTensor):
        return r.view(x, sizes)
    target = r.vector([-1 if size is None else size for size in sizes])
    return r.emit("Reshape", x, target, dtype=str(r.array(x).dtype), sizes=sizes)


@operation
def _expand_dims(r: Tracer, x: SymbolicTensor, axis: int | Sequence[int]) -> SymbolicTensor:
    axes, sizes = [axis] if isinstance(axis, int) else [*axis], [*x.sizes]
    for place in (axes := sorted(each % (x.ndim + len(axes)) for each in axes)):
        sizes.insert(place, 1)
    if sizes.count(None) < 2:
        return r.view(x, sizes)
    return r.emit("Unsqueeze", x, np.array(axes), dtype=x.dtype, sizes=sizes)


@operation
def _squeeze(r: Tracer, x: SymbolicTensor, axis: int | Sequence[int]) -> SymbolicTensor:
    axes = {each % x.ndim for each in ([axis] if isinstance(axis, int) else axis)}
    sizes = [size for place, size in enumerate(x.sizes) if place not in axes]
    if sizes and sizes.count(None) < 2:
        return r.view(x, sizes)
    return r.emit("Squeeze", x, np.array(sorted(axes)), dtype=x.dtype, sizes=sizes)


@operation
def _transpose(r: Tracer, x: SymbolicTensor, axes: Sequence[int] | None = None) -> SymbolicTensor:
    order = [axis % x.ndim for axis in (reversed(range(x.ndim)) if axes is None else axes)]
    sizes = [x.sizes[axis] for axis in order]
    wide = [axis for axis in order if not same(x.sizes[axis], 1)]
    if wide == sorted(wide) and x.sizes.count(None) < 2:
        return r.view(x, sizes)
    if x.base is None and x.name in r.transposed:  # two at once are one
        x, before = r.transposed[x.name]
        order = [before[axis] for axis in order]
        if order == sorted(order):
            return x
    made = r.emit("Transpose", x, dtype=x.dtype, sizes=sizes, perm=order)
    r.transposed[made.name] = x, order
    return made


@operation
def _swapaxes(r: Tracer, x: SymbolicTensor, axis1: int, axis2: int) -> SymbolicTensor:
    order = [*range(x.ndim)]
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return r.transpose(x, order)


@operation
def _concatenate(r: Tracer, xs: Sequence[Operand], axis: int = -1) -> SymbolicTensor:
    dtype = r.type_of(*xs)
    shapes = [r.sizes_of(x) for x in xs]
    axis %= len(shapes[0])
    sizes = [next((size for size in axes if size is not None), None) for axes in zip(*shapes, strict=True)]
    numbers = [each[axis] for each in shapes if isinstance(each[axis], int)]
    sizes[axis] = sum(numbers) if len(numbers) == len(shapes) else None  # type: ignore[arg-type]
    return r.emit("Concat", *(r.as_type(x, dtype) for x in xs), dtype=dtype, sizes=sizes, axis=axis)


@operation
def _split(r: Tracer, x: SymbolicTensor, indices_or_sections: int, axis: int = 0) -> list[SymbolicTensor]:
    size = x.sizes[axis]
    if not isinstance(indices_or_sections, int) or not isinstance(size, int):
        raise r.untraceable("`ops.split` at places, or of an axis of unknown size")
    count, sizes = indices_or_sections, [*x.sizes]
    sizes[axis] = size // count
    return r.emit("Split", x, dtype=[x.dtype] * count, sizes=[sizes] * count, outputs=count, axis=axis % x.ndim)


@operation
def _pad(
    r: Tracer,
    x: SymbolicTensor,
    pad_width: Sequence[tuple[Size, Size]],
    mode: str = "constant",
    constant_values: float = 0,
) -> SymbolicTensor:
    if mode != "constant":
        raise r.untraceable(f"`ops.pad` in the mode {mode!r}")
    for axis, widths in enumerate(pad_width):
        sizes, dtype = r.shape(x), x.dtype
        shapes = [[] if _is(width, 0) else [*sizes[:axis], width, *sizes[axis + 1 :]] for width in widths]
        before, behind = ([r.full(each, constant_values, dtype)] if each else [] for each in shapes)
        if before or behind:  # not by `Pad`, which CUDA lacks for integers
            x = r.concatenate([*before, x, *behind], axis)
    return x


@operation
def _broadcast_to(r: Tracer, x: Operand, shape: Sequence[Size]) -> SymbolicTensor:
    dtype = x.dtype if isinstance(x, SymbolicTensor) else str(r.array(x).dtype)
    return r.emit("Expand", x, r.vector(shape), dtype=dtype, sizes=[*shape])


@operation
def _repeat(r: Tracer, x: SymbolicTensor, repeats: int, axis: int | None = None) -> SymbolicTensor:
    if not isinstance(repeats, int) or axis is None and x.ndim > 1:
        raise r.untraceable("`ops.repeat` without an axis or one number")
    axis, sizes = (axis or 0) % x.ndim, [*r.shape(x)]
    wide = r.broadcast_to(r.expand_dims(x, axis + 1), [*sizes[: axis + 1], repeats, *sizes[axis + 1 :]])
    return r.reshape(wide, [*sizes[:axis], sizes[axis] * repeats, *sizes[axis + 1 :]])  # two numbers make a number


# Parts


@operation
def part(r: Tracer, x: SymbolicTensor, key: Key) -> SymbolicTensor:
    """Writes `x[key]`."""
    kept: list[int] = []
    added: list[int] = []
    starts: list[Size] = []
    ends: list[Size] = []
    axes, sizes, axis = [], [*x.sizes], 0
    for one in _each_axis(r, x, key):
        if one is None:
            added.append(len(kept) + len(added))
            continue
        start, end = (one.start, one.stop) if isinstance(one, slice) else (one, None if _is(one, -1) else one + 1)
        kept += [axis] * isinstance(one, slice)
        if _is(_sliced(x.sizes[axis], slice(start, end)), x.shape[axis] or -1):
            start = end = None  # all of the axis
        if start is not None or end is not None:
            starts.append(0 if start is None else start)
            ends.append(END if end is None else end)
            axes.append(axis)
            sizes[axis] = _sliced(x.sizes[axis], one) if isinstance(one, slice) else 1
        axis += 1
    gone = [axis for axis in range(x.ndim) if axis not in kept]
    if axes == gone and len(gone) == 1:
        x = r.take(x, r.as_type(starts[0], "int64"), axis=gone[0])
    else:
        if axes:
            x = r.emit("Slice", x, r.vector(starts), r.vector(ends), np.array(axes), dtype=x.dtype, sizes=sizes)
        x = r.squeeze(x, gone) if gone else x
    return r.expand_dims(x, added) if added else x


def _each_axis(r: Tracer, x: SymbolicTensor, key: Key) -> list[Nest]:
    """Returns the parts of a key, one for each axis, and None for each new one."""
    keys = [*key] if isinstance(key, tuple) else [key]
    places = [place for place, one in enumerate(keys) if one is Ellipsis]
    named = sum(one is not None and one is not Ellipsis for one in keys)
    place = places[0] if places else len(keys)
    keys[place : place + len(places)] = [slice(None)] * (x.ndim - named)
    for one in keys:
        is_place = isinstance(one, int | np.integer) or isinstance(one, SymbolicTensor) and one.ndim == 0
        if not (one is None or is_place or isinstance(one, slice) and one.step is None):
            raise r.untraceable(f"a part `x[{one!r}]`: take `ops.take` for places")
    return keys


def _is(value: Operand, number: int) -> bool:
    return isinstance(value, int) and value == number


def _sliced(size: Size, one: slice) -> Size:
    """Returns the size of a slice; None if the graph alone knows it."""
    if isinstance(size, int) and not isinstance(one.start, SymbolicTensor) and not isinstance(one.stop, SymbolicTensor):
        return len(range(*one.indices(size)))
    return None


@operation
def _take(r: Tracer, x: Operand, indices: Operand, axis: int | None = None) -> SymbolicTensor:
    if axis is None:
        raise r.untraceable("`ops.take` without an axis")
    x, indices = (each if isinstance(each, SymbolicTensor) else r.array(each) for each in (x, indices))
    old = r.sizes_of(x)
    axis %= len(old)
    sizes = [*old[:axis], *r.sizes_of(indices), *old[axis + 1 :]]
    return r.emit("Gather", x, indices, dtype=str(x.dtype), sizes=sizes, axis=axis)


@operation
def _take_along_axis(r: Tracer, x: Operand, indices: Operand, axis: int = -1) -> SymbolicTensor:
    x, indices = (each if isinstance(each, SymbolicTensor) else r.array(each) for each in (x, indices))
    old, given = r.sizes_of(x), r.sizes_of(indices)
    axis %= len(old)
    if any(place != axis and not same(*pair) for place, pair in enumerate(zip(old, given, strict=True))):
        whole, width = r.shape(x), r.shape(indices)[axis]
        given = [width if place == axis else size for place, size in enumerate(whole)]
        indices = r.broadcast_to(indices, given)
    sizes = [given[axis] if place == axis else size for place, size in enumerate(old)]
    return r.emit("GatherElements", x, indices, dtype=str(x.dtype), sizes=sizes, axis=axis)


# What is made of sizes


@operation
def _arange(
    r: Tracer,
    start: int | SymbolicTensor,
    stop: int | SymbolicTensor | None = None,
    step: int = 1,
    dtype: DTypeLike | None = None,
) -> SymbolicTensor:
    """Counts in int64, so that no node needs a cast."""
    start, stop = (0, start) if stop is None else (start, stop)
    if _is(start, 0) and _is(step, 1):
        values = counted(r, stop, exclusive=1)
    else:
        bounds = [r.as_type(each, "int64") for each in (start, stop, step)]
        values = r.emit("Range", *bounds, dtype="int64", sizes=[None])
    return r.cast(values, dtype) if dtype is not None and str(dtype).startswith("float") else values


def counted(r: Tracer, size: int | SymbolicTensor, **how: Any) -> SymbolicTensor:
    """Counts places (size,). Not by `Range`, which on a GPU reads its numbers on the host."""
    one = numpy_helper.from_array(np.ones(1, "int64"))
    ones = r.emit("ConstantOfShape", r.vector([size]), dtype="int64", sizes=[size], value=one)
    found = r.emit("CumSum", ones, np.array(0, "int32"), dtype="int64", sizes=[size], **how)
    r.positive.add(found.name)
    return found


@operation
def _full(
    r: Tracer, shape: int | SymbolicTensor | Sequence[Size], fill_value: Operand, dtype: DTypeLike | None = None
) -> SymbolicTensor:
    shape = [shape] if isinstance(shape, int | SymbolicTensor) else [*shape]
    number = r.array(fill_value, keras.backend.standardize_dtype(dtype))
    return r.emit("Expand", number, r.vector(shape), dtype=str(number.dtype), sizes=shape)


_OTHERS: dict[str, Write] = {
    "shape": lambda r, x: tuple(r.size(x, axis) for axis in range(x.ndim)),
    "stack": lambda r, x, axis=0: r.concatenate([r.expand_dims(one, axis) for one in x], axis),
    "zeros": lambda r, shape, dtype=None: _full(r, shape, 0, dtype),
    "ones": lambda r, shape, dtype=None: _full(r, shape, 1, dtype),
    "zeros_like": lambda r, x, dtype=None: _full(r, r.shape(x), 0, dtype or x.dtype),
    "ones_like": lambda r, x, dtype=None: _full(r, r.shape(x), 1, dtype or x.dtype),
}
OPERATIONS |= _OTHERS
