"""The learning rate, by hand."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.training.schedules import InverseSquareRootDecay


def rates(schedule, *steps):
    return [float(schedule(ops.convert_to_tensor(step, "int32"))) for step in steps]


def test_by_hand():
    # 100^-0.5 · min(step^-0.5, step · 4^-1.5), and the step after `n` updates is n + 1.
    schedule = InverseSquareRootDecay(hidden_dim=100, warmup_steps=4)
    expected = [0.1 / 8, 0.1 * 2 / 8, 0.1 * 3 / 8, 0.1 / 2, 0.1 / 5**0.5, 0.1 / 4, 0.1 / 10]
    np.testing.assert_allclose(rates(schedule, 0, 1, 2, 3, 4, 15, 99), expected, rtol=1e-6)
    doubled = InverseSquareRootDecay(hidden_dim=100, warmup_steps=4, factor=2.0)
    np.testing.assert_allclose(rates(doubled, 0, 9, 50), 2 * np.array(rates(schedule, 0, 9, 50)), rtol=1e-6)


def test_config_round_trip():
    schedule = InverseSquareRootDecay(64, 10, 0.5)
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    assert isinstance(again, InverseSquareRootDecay)
    assert again.get_config() == schedule.get_config() == {"hidden_dim": 64, "warmup_steps": 10, "factor": 0.5}


def test_what_is_not_positive_is_refused():
    for one in ((0, 10, 1.0), (64, 0, 1.0), (64, 10, 0.0), (64, 10, -1.0)):
        received = "Received: hidden_dim={}, warmup_steps={}, factor={}".format(*one)
        message = f"`hidden_dim`, `warmup_steps` and `factor` must be positive. {received}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            InverseSquareRootDecay(*one)
