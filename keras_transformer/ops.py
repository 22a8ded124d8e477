"""Computes every operation of layers, models and search by one of several back ends.

`ops.matmul` is `keras.ops.matmul`, and so with every other name of `keras.ops`; `ops.map_structure` is Keras's too.
Within `on(back_end)` another back end has these names: `NUMPY` computes them on arrays and does not import Keras, and
an exporter's tracer writes them down as the nodes of a graph.

An `overridable` function has one plain meaning. A back end may compute it in another way with the same result: its
`overrides` are such functions, by their names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from functools import wraps
from inspect import unwrap
from typing import Any, ParamSpec, TypeAlias, TypeVar

import numpy as np

# A tensor of any Keras backend, or a symbolic one: these share no class.
Tensor: TypeAlias = Any
# None for Keras; or an object with the operations as its methods, and perhaps `overrides`, functions by their names.
BackEnd: TypeAlias = Any

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
_current: ContextVar[BackEnd] = ContextVar("back_end", default=None)  # None: Keras


@contextmanager
def on(back_end: BackEnd) -> Iterator[None]:
    """Lets a back end compute the operations within."""
    token = _current.set(back_end)
    try:
        yield
    finally:
        _current.reset(token)


def back_end() -> BackEnd:
    """Returns the back end that computes the operations now; None for Keras."""
    return _current.get()


def __getattr__(name: str) -> Any:
    if name.startswith("__"):  # Python asks modules for such names
        raise AttributeError(name)
    if (own := _current.get()) is not None:
        return getattr(own, name)
    import keras

    return keras.tree.map_structure if name == "map_structure" else getattr(keras.ops, name)


def overridable(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Marks a function that a back end may override with an equal one."""

    @wraps(function)
    def call(*arguments: Parameters.args, **named: Parameters.kwargs) -> Result:
        overrides = getattr(_current.get(), "overrides", {})
        return overrides.get(function.__name__, function)(*arguments, **named)

    return call


def plain(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Returns an overridable function that no back end overrides."""
    return unwrap(function)


@overridable
def product(x: Tensor, weight: Tensor, bias: Tensor | None = None, transposed: bool = False) -> Tensor:
    """Multiplies states by a weight: x W + b, (..., in) → (..., out), in the type of x.

    An export may quantise this weight. Call `matmul` where full precision matters.

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
    """Looks up rows of a table (V, D) of weights: ids (...) → (..., D). An export may quantise the table."""
    from keras import ops

    return ops.take(table, ids, axis=0)


@overridable
def by_position(function: Callable[[Tensor], Result], positions: Tensor) -> Result:
    """Returns `function(positions)`: a tensor (..., D) or several, of which a row depends on its position (...) alone.

    An export may keep a table of these rows.
    """
    return function(positions)


def keras_mask(x: Tensor) -> Tensor | None:
    """Returns the mask (B, T) that Keras attached to states (B, T, D), as `Embedding(mask_zero=True)` does, or None."""
    from keras.src.backend import get_keras_mask  # it has no public name

    return get_keras_mask(x)


def top_k(x: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Returns the k largest numbers along the last axis and their places, largest first; of equal numbers the first."""
    if (own := _current.get()) is not None:
        return own.top_k(x, k)
    from keras import config, ops

    if config.backend() != "torch":
        return ops.top_k(x, k)
    places = ops.argsort(-x, axis=-1)[..., :k]  # PyTorch's own takes any of equal numbers
    return ops.take_along_axis(x, places, axis=-1), places


def argmax(x: Tensor) -> Tensor:
    """Returns the places (...) of the largest numbers of x (..., n) along the last axis; of equal numbers the first."""
    if (own := _current.get()) is not None:
        return own.argmax(x, axis=-1)
    return top_k(x, 1)[1][..., 0]  # Keras's own takes operations that TFLite lacks


def contains(ids: Tensor, size: int | Tensor) -> Tensor:
    """Tells (B, K, V) which of the numbers below V = `size` are among ids (B, K, L)."""
    if (own := _current.get()) is not None:
        return own.contains(ids, size)
    from keras import ops

    batch_size, num_rows, length = ops.shape(ids)
    rows = ops.arange(batch_size * num_rows)[:, None] + ops.zeros((1, length), "int32")
    places = ops.stack([rows, ops.cast(ops.reshape(ids, (-1, length)), "int32")], axis=-1)  # (B · K, L, 2)
    counts = ops.scatter(
        ops.reshape(places, (-1, 2)),
        ops.ones((batch_size * num_rows * length,), "int32"),
        (batch_size * num_rows, size),
    )
    return ops.reshape(counts, (batch_size, num_rows, size)) > 0


def integers() -> str:
    """Returns the integer type for loops. TensorFlow computes int32, the type of shapes, on the processor."""
    if (own := _current.get()) is not None:
        return own.integers
    import keras

    return "int64" if keras.config.backend() == "tensorflow" else "int32"


class _Numpy:
    """Computes the operations with NumPy."""

    integers = "int64"

    def __getattr__(self, name: str) -> Any:
        return getattr(np, name)

    @staticmethod
    def cast(values: Tensor, dtype: str) -> np.ndarray:
        return np.asarray(values).astype(dtype)

    @staticmethod
    def where(condition: np.ndarray, values: Any, others: Any) -> np.ndarray:
        """Chooses as Keras does, where two Python floats give float32."""
        chosen = np.where(condition, values, others)
        return chosen.astype("float32") if chosen.dtype == np.float64 else chosen

    @staticmethod
    def log_softmax(logits: np.ndarray) -> np.ndarray:
        logits = logits - logits.max(axis=-1, keepdims=True)
        return logits - np.log(np.exp(logits).sum(axis=-1, keepdims=True))

    @staticmethod
    def top_k(values: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        """Returns the k largest as Keras does: among equal values the first ones."""
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
    def contains(ids: np.ndarray, size: int) -> np.ndarray:
        found = np.zeros((*ids.shape[:-1], size), bool)
        np.put_along_axis(found, ids, True, axis=-1)
        return found

    @staticmethod
    def while_loop(goes_on: Callable[..., bool], body: Callable[..., tuple], state: tuple) -> tuple:
        while goes_on(*state):
            state = body(*state)
        return state

    @staticmethod
    def map_structure(function: Callable[[Tensor], Result], values: Sequence[Tensor]) -> list[Result]:
        """Maps the values of a flat list."""
        return [function(value) for value in values]


NUMPY = _Numpy()
