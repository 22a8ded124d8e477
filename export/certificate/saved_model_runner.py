"""Runs a SavedModel for `runner`, with TensorFlow. It imports nothing of this project."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np


def prepare(task: dict[str, Any]) -> Callable[[], tuple]:
    """TensorFlow with the operators of tensorflow_text, as TensorFlow Serving has them; see `runner`."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(task["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(task["threads"])
    tf.config.experimental.enable_tensor_float_32_execution(False)  # TF32 rounds float32 to 11 bits
    import tensorflow_text  # noqa: F401

    def load() -> tuple:
        loaded = tf.saved_model.load(*task["paths"])

        def answers_of(name: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
            def run(batch: np.ndarray) -> dict[str, np.ndarray]:
                # Looked up for each batch: a signature alone does not keep its variables alive.
                signature = loaded.signatures[name]
                return {key: value.numpy() for key, value in signature(**{task["input"]: constant(batch)}).items()}

            return run

        def constant(batch: np.ndarray) -> tf.Tensor:
            return tf.constant([*map(to_bytes, batch)], tf.string) if batch.dtype == object else tf.constant(batch)

        def read(texts: Sequence[str]) -> list[list[int]]:
            found = loaded.read(tf.constant([*map(to_bytes, texts)]))
            return [row.tolist() for row in np.split(found["ids"].numpy(), found["starts"].numpy()[1:-1])]

        names = sorted(loaded.signatures, key=lambda name: (name != "serving_default", name))
        device = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        return {name: answers_of(name) for name in names}, device, device, read

    return load


def to_bytes(text: str) -> bytes:
    """UTF-8; a byte that was none stands in the text as a surrogate."""
    return text.encode("utf-8", "surrogateescape")
