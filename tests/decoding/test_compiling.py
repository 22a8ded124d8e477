"""Computations are compiled once each, and quietly; products of float32 keep all bits."""

from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.decoding.keras_decoder import CompiledComputations, full_float32

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
@pytest.mark.parametrize("wanted", [True, False])
def test_computations_are_compiled_once_each_without_a_warning_and_training_keeps_its_switch(wanted, caplog):
    """Of two threads that need all bits, the last one restores the switch."""
    import tensorflow as tf

    TRACED.clear()
    switch = tf.config.experimental
    before = switch.tensor_float_32_execution_enabled()
    switch.enable_tensor_float_32_execution(wanted)
    computations = CompiledComputations(None)  # type: ignore[arg-type]
    for factor in [*range(8)] * 2:
        for size, other in ((1, nullcontext()), (3, full_float32())):
            with other:
                found, rounds = computations.run(Times(float(factor)), np.ones((2, size), "float32"))
                assert switch.tensor_float_32_execution_enabled() == (wanted and size == 1)
            np.testing.assert_array_equal(found, np.full((2, size), factor))
            assert not rounds and switch.tensor_float_32_execution_enabled() == wanted, "training may round"
    assert [float(factor) for factor in range(8)] == TRACED
    assert not caplog.records
    switch.enable_tensor_float_32_execution(before)
