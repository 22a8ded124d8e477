"""A value of a graph that is being recorded, as layers, models and search see it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, Union

import keras

from .graph import ValueInfo

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
        sizes: of its axes.
        depth: of the graph that computes it: 0 for the model's, 1 for the body of a loop in it, and so on.
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

    def __array__(self, *_: Any, **__: Any) -> Any:
        raise self.recorder.unrecordable(
            "an operation that is not of `keras_transformer.ops`: import `ops` from keras_transformer, not from keras"
        )

    __hash__ = object.__hash__

    def __repr__(self) -> str:
        return f"Recorded({self._name}, {self.dtype}, {self.shape})"

    def __getitem__(self, key: Any) -> Recorded:
        return self.recorder.part(self, key)

    def __neg__(self) -> Recorded:
        return self.recorder.negative(self)

    def __invert__(self) -> Recorded:
        return self.recorder.logical_not(self)


def _operator(operation: str, is_reflected: bool = False) -> Callable[[Recorded, Any], Any]:
    def apply(self: Recorded, other: Any) -> Any:
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


def holds_recorded(nest: Any) -> bool:
    """Whether a recorded value is among the values of a nest."""
    return any(isinstance(value, Recorded) for value in keras.tree.flatten(nest))
