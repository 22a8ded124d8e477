"""The operations of a search: those of Keras, or those of NumPy inside `without_keras()`.

A search over a graph in ONNX Runtime needs no Keras, and importing Keras takes longer than most translations.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

_uses_numpy: ContextVar[bool] = ContextVar("uses_numpy", default=False)


@contextmanager
def without_keras() -> Iterator[None]:
    """Within, `ops` computes on NumPy arrays and does not import Keras."""
    token = _uses_numpy.set(True)
    try:
        yield
    finally:
        _uses_numpy.reset(token)


def integers() -> str:
    """The type of the integers in a loop: on a GPU TensorFlow computes int32, as it does shapes, on the processor."""
    if _uses_numpy.get():
        return "int64"
    import keras

    return "int64" if keras.config.backend() == "tensorflow" else "int32"


class _NumpyOps:
    """What `keras.ops` has and NumPy has not, or has in another form."""

    @staticmethod
    def cast(values: Any, dtype: str) -> np.ndarray:
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
        places = np.argpartition(-values, k - 1, axis=-1)[..., :k]
        order = np.lexsort((places, -np.take_along_axis(values, places, axis=-1)), axis=-1)
        places = np.take_along_axis(places, order, axis=-1)
        return np.take_along_axis(values, places, axis=-1), places

    @staticmethod
    def while_loop(goes_on: Callable[..., Any], body: Callable[..., tuple], state: tuple) -> tuple:
        while goes_on(*state):
            state = body(*state)
        return state

    @staticmethod
    def map_structure(function: Callable[[Any], Any], values: Sequence[Any]) -> list[Any]:
        """Of flat lists alone."""
        return [function(value) for value in values]


class _Ops:
    """`keras.ops` and `keras.tree.map_structure`, or their twins on NumPy arrays."""

    def __getattr__(self, name: str) -> Any:
        if _uses_numpy.get():
            return getattr(_NumpyOps, name, None) or getattr(np, name)
        import keras

        return keras.tree.map_structure if name == "map_structure" else getattr(keras.ops, name)


ops: Any = _Ops()
