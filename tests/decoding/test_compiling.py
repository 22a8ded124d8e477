"""Computations are compiled once each, and quietly; products of float32 keep all bits."""

from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.decoding.keras_decoder import CompiledComputations
from keras_transformer.text.sentences import in_few_shapes

TRACED: list[float] = []


@dataclass(frozen=True)
class Times:
    """An array times a number, and whether TensorFlow rounds products of float32 to TF32 on a GPU while it runs."""

    factor: float

    def run(self, model: Any, array: Any) -> tuple[Any, Any]:
        import tensorflow as tf

        TRACED.append(self.factor)
        rounds = tf.config.experimental.tensor_float_32_execution_enabled
        return array * self.factor, tf.py_function(lambda: rounds(), [], tf.bool)


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="the graphs are TensorFlow's")
def test_computations_are_compiled_once_each_without_a_warning_and_training_keeps_its_switch(caplog):
    import tensorflow as tf

    switch = tf.config.experimental
    before = switch.tensor_float_32_execution_enabled()
    computations = CompiledComputations(None)  # type: ignore[arg-type]
    for factor in [*range(8)] * 2:
        for size in (1, 3):
            found, rounds = computations.run(Times(float(factor)), np.ones((2, size), "float32"))
            np.testing.assert_array_equal(found, np.full((2, size), factor))
            assert not rounds and switch.tensor_float_32_execution_enabled() == before, "training may round"
    assert [float(factor) for factor in range(8)] == TRACED
    assert not caplog.records


@pytest.mark.parametrize(
    ("rows", "width", "shape"), [(1, 2, (1, 16)), (5, 17, (8, 32)), (8, 64, (8, 64)), (0, 0, (1, 16))]
)
def test_shapes_are_powers_of_two(rows, width, shape):
    found = in_few_shapes(ids := np.full((rows, width), 7, "int32"))
    assert found.shape == shape and found.dtype == "int32" and found.sum() == ids.sum()
    np.testing.assert_array_equal(found[:rows, :width], ids)
