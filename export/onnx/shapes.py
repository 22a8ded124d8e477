"""The operations of `ops` that look at shapes, change them, or take parts of values, as ONNX nodes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np
from onnx import numpy_helper

from .operations import OPERATIONS, operation
from .recorded import Recorded, Recorder, Size, same

END = np.iinfo("int64").max  # as the end of a slice: to the end of the axis


@operation
def _reshape(r: Recorder, x: Any, newshape: Any) -> Recorded:
    sizes = [newshape] if isinstance(newshape, int | Recorded) else [*newshape]
    unknown = [axis for axis, size in enumerate(sizes) if isinstance(size, int) and size == -1]
    if unknown:
        given = [size for axis, size in enumerate(sizes) if axis != unknown[0]]
        sizes[unknown[0]] = r.remaining(r.sizes_of(x), given)
    if isinstance(x, Recorded):
        return r.view(x, sizes)
    target = r.vector([-1 if size is None else size for size in sizes])
    return r.emit("Reshape", x, target, dtype=str(r.array(x).dtype), sizes=sizes)


@operation
def _expand_dims(r: Recorder, x: Recorded, axis: Any) -> Recorded:
    axes, sizes = [axis] if isinstance(axis, int) else [*axis], [*x.sizes]
    for place in (axes := sorted(each % (x.ndim + len(axes)) for each in axes)):
        sizes.insert(place, 1)
    if sizes.count(None) < 2:
        return r.view(x, sizes)
    return r.emit("Unsqueeze", x, np.array(axes), dtype=x.dtype, sizes=sizes)


@operation
def _squeeze(r: Recorder, x: Recorded, axis: Any) -> Recorded:
    axes = {each % x.ndim for each in ([axis] if isinstance(axis, int) else axis)}
    sizes = [size for place, size in enumerate(x.sizes) if place not in axes]
    if sizes and sizes.count(None) < 2:
        return r.view(x, sizes)
    return r.emit("Squeeze", x, np.array(sorted(axes)), dtype=x.dtype, sizes=sizes)


@operation
def _transpose(r: Recorder, x: Recorded, axes: Sequence[int] | None = None) -> Recorded:
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
def _swapaxes(r: Recorder, x: Recorded, axis1: int, axis2: int) -> Recorded:
    order = [*range(x.ndim)]
    order[axis1], order[axis2] = order[axis2], order[axis1]
    return r.transpose(x, order)


@operation
def _concatenate(r: Recorder, xs: Sequence[object], axis: int = -1) -> Recorded:
    dtype = r.type_of(*xs)
    shapes = [r.sizes_of(x) for x in xs]
    axis %= len(shapes[0])
    sizes = [next((size for size in axes if size is not None), None) for axes in zip(*shapes, strict=True)]
    numbers = [each[axis] for each in shapes if isinstance(each[axis], int)]
    sizes[axis] = sum(numbers) if len(numbers) == len(shapes) else None  # type: ignore[arg-type]
    return r.emit("Concat", *(r.as_type(x, dtype) for x in xs), dtype=dtype, sizes=sizes, axis=axis)


@operation
def _split(r: Recorder, x: Recorded, indices_or_sections: int, axis: int = 0) -> list[Recorded]:
    size = x.sizes[axis]
    if not isinstance(indices_or_sections, int) or not isinstance(size, int):
        raise r.unrecordable("`ops.split` at places, or of an axis of unknown size")
    count, sizes = indices_or_sections, [*x.sizes]
    sizes[axis] = size // count
    return r.emit("Split", x, dtype=[x.dtype] * count, sizes=[sizes] * count, outputs=count, axis=axis % x.ndim)


@operation
def _pad(r: Recorder, x: Recorded, pad_width: Any, mode: str = "constant", constant_values: Any = 0) -> Recorded:
    if mode != "constant":
        raise r.unrecordable(f"`ops.pad` in the mode {mode!r}")
    for axis, widths in enumerate(pad_width):
        sizes, dtype = r.shape(x), x.dtype
        shapes = [[] if _is(width, 0) else [*sizes[:axis], width, *sizes[axis + 1 :]] for width in widths]
        before, behind = ([r.full(each, constant_values, dtype)] if each else [] for each in shapes)
        if before or behind:  # not by `Pad`, which CUDA lacks for integers
            x = r.concatenate([*before, x, *behind], axis)
    return x


@operation
def _broadcast_to(r: Recorder, x: object, shape: Sequence[Size]) -> Recorded:
    dtype = x.dtype if isinstance(x, Recorded) else str(r.array(x).dtype)
    return r.emit("Expand", x, r.vector(shape), dtype=dtype, sizes=[*shape])


@operation
def _repeat(r: Recorder, x: Recorded, repeats: int, axis: int | None = None) -> Recorded:
    if not isinstance(repeats, int) or axis is None and x.ndim > 1:
        raise r.unrecordable("`ops.repeat` without an axis or one number")
    axis, sizes = (axis or 0) % x.ndim, [*r.shape(x)]
    wide = r.broadcast_to(r.expand_dims(x, axis + 1), [*sizes[: axis + 1], repeats, *sizes[axis + 1 :]])
    return r.reshape(wide, [*sizes[:axis], sizes[axis] * repeats, *sizes[axis + 1 :]])  # two numbers make a number


# Parts


def part(r: Recorder, x: Recorded, key: object) -> Recorded:
    """`x[key]`."""
    kept: list[int] = []
    added: list[int] = []
    starts, ends, axes, sizes, axis = [], [], [], [*x.sizes], 0
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


def _each_axis(r: Recorder, x: Recorded, key: object) -> list[Any]:
    """The parts of a key, one for each axis, and None for each new one."""
    keys = [*key] if isinstance(key, tuple) else [key]
    places = [place for place, one in enumerate(keys) if one is Ellipsis]
    named = sum(one is not None and one is not Ellipsis for one in keys)
    place = places[0] if places else len(keys)
    keys[place : place + len(places)] = [slice(None)] * (x.ndim - named)
    for one in keys:
        is_place = isinstance(one, int | np.integer) or isinstance(one, Recorded) and one.ndim == 0
        if not (one is None or is_place or isinstance(one, slice) and one.step is None):
            raise r.unrecordable(f"a part `x[{one!r}]`: take `ops.take` for places")
    return keys


def _is(value: object, number: int) -> bool:
    return isinstance(value, int) and value == number


def _sliced(size: Size, one: slice) -> Size:
    """The size of a slice; None if the graph alone knows it."""
    if isinstance(size, int) and not isinstance(one.start, Recorded) and not isinstance(one.stop, Recorded):
        return len(range(*one.indices(size)))
    return None


@operation
def _take(r: Recorder, x: object, indices: object, axis: int | None = None) -> Recorded:
    if axis is None:
        raise r.unrecordable("`ops.take` without an axis")
    x, indices = (each if isinstance(each, Recorded) else r.array(each) for each in (x, indices))
    old = r.sizes_of(x)
    axis %= len(old)
    sizes = [*old[:axis], *r.sizes_of(indices), *old[axis + 1 :]]
    return r.emit("Gather", x, indices, dtype=str(x.dtype), sizes=sizes, axis=axis)


@operation
def _take_along_axis(r: Recorder, x: object, indices: object, axis: int = -1) -> Recorded:
    x, indices = (each if isinstance(each, Recorded) else r.array(each) for each in (x, indices))
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
def _arange(r: Recorder, start: object, stop: object = None, step: object = 1, dtype: object = None) -> Recorded:
    """Integers are int64, so that no node needs a cast."""
    start, stop = (0, start) if stop is None else (start, stop)
    if _is(start, 0) and _is(step, 1):
        values = counted(r, stop, exclusive=1)
    else:
        bounds = [r.as_type(each, "int64") for each in (start, stop, step)]
        values = r.emit("Range", *bounds, dtype="int64", sizes=[None])
    return r.cast(values, dtype) if dtype is not None and str(dtype).startswith("float") else values


def counted(r: Recorder, size: object, **how: int) -> Recorded:
    """Numbers that count places (size,). Not by `Range`, which on a GPU reads its numbers on the host."""
    one = numpy_helper.from_array(np.ones(1, "int64"))
    ones = r.emit("ConstantOfShape", r.vector([size]), dtype="int64", sizes=[size], value=one)
    found = r.emit("CumSum", ones, np.array(0, "int32"), dtype="int64", sizes=[size], **how)
    r.positive.add(found.name)
    return found


@operation
def _full(r: Recorder, shape: Any, fill_value: Any, dtype: Any = None) -> Recorded:
    shape = [shape] if isinstance(shape, int | Recorded) else [*shape]
    number = r.array(fill_value, keras.backend.standardize_dtype(dtype))
    return r.emit("Expand", number, r.vector(shape), dtype=str(number.dtype), sizes=shape)


_OTHERS: dict[str, Callable[..., Any]] = {
    "shape": lambda r, x: tuple(r.size(x, axis) for axis in range(x.ndim)),
    "stack": lambda r, x, axis=0: r.concatenate([r.expand_dims(one, axis) for one in x], axis),
    "zeros": lambda r, shape, dtype=None: _full(r, shape, 0, dtype),
    "ones": lambda r, shape, dtype=None: _full(r, shape, 1, dtype),
    "zeros_like": lambda r, x, dtype=None: _full(r, r.shape(x), 0, dtype or x.dtype),
    "ones_like": lambda r, x, dtype=None: _full(r, r.shape(x), 1, dtype or x.dtype),
}
OPERATIONS |= _OTHERS
