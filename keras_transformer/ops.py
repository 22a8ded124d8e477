"""Every operation of layers, models and search, computed by one of several back ends.

`ops.matmul` is `keras.ops.matmul`, and so with every other name of `keras.ops`; `ops.map_structure` is Keras's too.
Within `on(back_end)` another back end has these names: `NUMPY` computes them on arrays and does not import Keras, and
an exporter's tracer writes them down as the nodes of a graph.

An `overridable` function has one plain meaning. A back end may do it in its own way: its `overrides` are such functions, by
their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from typing import Any, TypeAlias, TypeVar

import numpy as np

# A tensor of any Keras backend, or a symbolic one: these share no class.
Tensor: TypeAlias = Any


_current: ContextVar[Any] = ContextVar("back_end", default=None)  # None: Keras
Function = TypeVar("Function", bound=Callable[..., Any])


@contextmanager
def on(back_end: object) -> Iterator[None]:
    """Within, the back end has the operations."""
    token = _current.set(back_end)
    try:
        yield
    finally:
        _current.reset(token)


def back_end() -> Any:
    """The back end that has the operations; None for Keras."""
    return _current.get()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python asks modules for such names
        raise AttributeError(name)
    if (own := _current.get()) is not None:
        return getattr(own, name)
    import keras

    return keras.tree.map_structure if name == "map_structure" else getattr(keras.ops, name)


def overridable(function: Function) -> Function:
    """A function that a back end may do in its own way, with the same result."""

    @wraps(function)
    def call(*arguments: object, **named: object) -> Any:
        overrides = getattr(_current.get(), "overrides", {})
        return overrides.get(function.__name__, function)(*arguments, **named)

    return call  # type: ignore[return-value]


def plain(function: Function) -> Function:
    """An overridable function as no back end may replace it."""
    return function.__wrapped__  # type: ignore[attr-defined]


@overridable
def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False) -> Tensor:
    """x W + b, in the type of x: states (..., in) → (..., out).

    The exports in float16 and int8 keep W in their type. So what needs all bits of a weight takes `matmul`.

    Args:
        x: (..., in).
        weight: W (in, out).
        bias: b (out,); None for no bias.
        transposed: whether W is (out, in).
    """
    from keras import ops

    weight = ops.cast(weight, x.dtype)
    x = ops.matmul(x, ops.transpose(weight) if transposed else weight)
    return x if bias is None else x + ops.cast(bias, x.dtype)


@overridable
def embedding_lookup(table: Tensor, ids: Tensor) -> Tensor:
    """The rows of a table (V, D) of weights: ids (...) → (..., D). The exports keep the table in their type."""
    from keras import ops

    return ops.take(table, ids, axis=0)


@overridable
def by_position(function: Callable[[Tensor], object], positions: Tensor) -> Any:
    """`function(positions)`, a tensor (..., D) or several, which depend on each position (...) alone.

    An export may keep a table of what the function gives.
    """
    return function(positions)


def keras_mask(x: Tensor) -> Tensor | None:
    """The mask (B, T) that Keras attached to states (B, T, D), as after `Embedding(mask_zero=True)`; None for none."""
    from keras.src.backend import get_keras_mask  # it has no public name

    return get_keras_mask(x)


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """The k largest numbers along the last axis, the largest first, and their places. Of equal numbers the first."""
    if (own := _current.get()) is not None:
        return own.top_k(x, k)
    from keras import config, ops

    if config.backend() != "torch":
        return ops.top_k(x, k)
    places = ops.argsort(-x, axis=-1)[..., :k]  # PyTorch's own takes any of equal numbers
    return ops.take_along_axis(x, places, axis=-1), places


def integers() -> str:
    """The type of the integers in a loop: on a GPU TensorFlow computes int32, as it does shapes, on the processor."""
    if (own := _current.get()) is not None:
        return own.integers
    import keras

    return "int64" if keras.config.backend() == "tensorflow" else "int32"


class _Numpy:
    """The operations of NumPy, and what `keras.ops` has in another form."""

    integers = "int64"

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def cast(values: object, dtype: str) -> np.ndarray:
        return np.asarray(values).astype(dtype)

    @staticmethod
    def where(condition: np.ndarray, values: Any, others: Any) -> np.ndarray:
        """Two Python floats give float32, as in Keras."""
        chosen = np.where(condition, values, others)
        return chosen.astype("float32") if chosen.dtype == np.float64 else chosen

    @staticmethod
    def log_softmax(logits: np.ndarray) -> np.ndarray:
        logits = logits - logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    @staticmethod
    def top_k(values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """As in Keras: among equal values the first ones."""
        places = np.argpartition(-values, k - 1, axis=-1)[..., :k]
        least = np.take_along_axis(values, places, axis=-1).min(axis=-1, keepdims=True)
        if np.any(tied := np.count_nonzero(values >= least, axis=-1) > k):
            # `argpartition` takes any of those that tie at the k-th place. First are those above, then the ties.
            groups = 2 - (values > least)[tied].astype("uint8") - (values >= least)[tied]
            places[tied] = np.argsort(groups, axis=-1, kind="stable")[..., :k]
        order = np.lexsort((places, -np.take_along_axis(values, places, axis=-1)), axis=-1)
        places = np.take_along_axis(places, order, axis=-1)
        return np.take_along_axis(values, places, axis=-1), places

    @staticmethod
    def while_loop(goes_on: Callable[..., object], body: Callable[..., tuple], state: tuple) -> tuple:
        while goes_on(*state):
            state = body(*state)
        return state

    @staticmethod
    def map_structure(function: Callable[[Any], object], values: Sequence[object]) -> list[Any]:
        """Lists are flat here."""
        return [function(value) for value in values]


NUMPY = _Numpy()
