"""The loss and its gradient against Keras's, what it refuses, low precision; and the learning rate."""

import re

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.losses import SmoothedCrossEntropy, smoothed_cross_entropy
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.schedules import InverseSquareRootDecay
from tests.layer_check import gradient, random

VOCABULARY = 11
LOGITS = 3 * random(2, 5, VOCABULARY)
LABELS = np.array([[4, 10, 3, 7, 3], [1, 9, 3, 0, 0]], "int32")
REAL = LABELS != 0


def by_keras(labels, logits, label_smoothing):
    """Each position's loss, from one-hot targets."""
    loss = keras.losses.CategoricalCrossentropy(from_logits=True, label_smoothing=label_smoothing, reduction="none")
    return loss(ops.one_hot(labels, VOCABULARY), logits)


@pytest.mark.parametrize("label_smoothing", [0.0, 0.7])
def test_it_equals_keras_and_its_gradient_autodiff(label_smoothing):
    labels = ops.convert_to_tensor(LABELS)
    found = smoothed_cross_entropy(labels, ops.convert_to_tensor(LOGITS), label_smoothing)
    expected = ops.convert_to_numpy(by_keras(LABELS, LOGITS, label_smoothing))
    np.testing.assert_allclose(ops.convert_to_numpy(found), expected, atol=1e-5)
    weights = ops.convert_to_tensor(random(*LABELS.shape, seed=3))  # other than 1, and some below 0

    def ours(logits):
        return ops.sum(weights * smoothed_cross_entropy(labels, logits, label_smoothing))

    def plain(logits):
        target = (1 - label_smoothing) * ops.one_hot(labels, VOCABULARY) + label_smoothing / VOCABULARY
        return ops.sum(weights * -ops.sum(target * ops.log_softmax(logits), axis=-1))

    np.testing.assert_allclose(gradient(ours, LOGITS), gradient(plain, LOGITS), atol=1e-6)


def test_padding_does_not_count():
    loss = SmoothedCrossEntropy(0.1)
    shouting = np.where(REAL[..., None], LOGITS, 1e3 * LOGITS)
    assert float(loss(LABELS, shouting)) == pytest.approx(float(loss(LABELS, LOGITS)), abs=1e-6)
    longer = np.pad(LABELS, ((0, 1), (0, 3))), np.pad(LOGITS, ((0, 1), (0, 3), (0, 0)))
    assert float(loss(*longer)) == pytest.approx(float(loss(LABELS, LOGITS)), abs=1e-6)
    slope = gradient(lambda logits: loss(LABELS, logits), LOGITS)
    assert not slope[~REAL].any() and slope[REAL].any(axis=-1).all()
    assert float(loss(np.zeros_like(LABELS), LOGITS)) == 0, "a batch of padding costs nothing"


def test_it_is_reduced_as_it_says_and_by_weights():
    given = np.abs(random(*LABELS.shape, seed=3))
    each = ops.convert_to_numpy(by_keras(LABELS, LOGITS, 0.1))
    for weights, real in ((None, REAL), (given, REAL * given)):
        expected = {"sum": (real * each).sum(), "mean": np.average(each, weights=real), "none": real * each}
        for reduction in (*expected, None, "sum_over_batch_size", "mean_with_sample_weight"):
            found = SmoothedCrossEntropy(0.1, reduction=reduction)(LABELS, LOGITS, weights)
            one = expected.get(str(reduction).lower(), expected["mean"])
            np.testing.assert_allclose(ops.convert_to_numpy(found), one, atol=1e-5, err_msg=str(reduction))


# Fewer rows than chunks; more, and no multiple.
@pytest.mark.parametrize(("dtype", "length"), [("bfloat16", 5), ("float16", 37)])
def test_low_precision_logits_are_worked_on_in_float32(dtype, length):
    labels = np.random.default_rng(4).integers(0, VOCABULARY, (2, length)).astype("int32")
    logits = 3 * random(2, length, VOCABULARY)
    rounded = ops.convert_to_numpy(ops.cast(ops.cast(logits, dtype), "float32"))
    loss = SmoothedCrossEntropy(0.1)

    def of_low_precision(logits):
        return loss(labels, ops.cast(logits, dtype))

    assert keras.backend.standardize_dtype(of_low_precision(logits).dtype) == "float32"
    assert float(of_low_precision(logits)) == pytest.approx(float(loss(labels, rounded)), abs=1e-6)
    expected = gradient(lambda logits: loss(labels, logits), rounded)
    # Only the finished gradient is rounded: in float16, whose smallest numbers are far apart, to one of these.
    np.testing.assert_allclose(gradient(of_low_precision, logits), expected, rtol=2**-8, atol=2**-24)


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="on TensorFlow alone in chunks")
def test_low_precision_logits_are_never_float32_all_at_once():
    import tensorflow as tf

    @tf.function(autograph=False)
    def of_logits(labels, logits):
        with tf.GradientTape() as tape:
            tape.watch(logits)
            loss = SmoothedCrossEntropy(0.1)(labels, logits)
        return tape.gradient(loss, logits)

    shape = 2, 64, VOCABULARY
    graph = of_logits.get_concrete_function(tf.TensorSpec(shape[:-1], "int32"), tf.TensorSpec(shape, "bfloat16")).graph
    outputs = (each for operation in graph.get_operations() for each in operation.outputs)
    large = [each for each in outputs if each.shape.num_elements() == np.prod(shape)]
    assert large and {each.dtype for each in large} == {tf.bfloat16}


def test_other_shapes_than_the_tokens_have_and_smoothing_out_of_range_are_refused():
    given = {"y_true": LABELS, "sample_weight": REAL.astype("float32")}
    for name, array in given.items():
        message = rf"^`{name}` must have one entry for each token of the logits: the shape \(2, 5\)"
        for shape in ((5, 2), (2, 5, 1)):
            if name == "y_true" and shape == (2, 5, 1):
                continue  # as Keras takes them, too
            with pytest.raises(ValueError, match=message):
                SmoothedCrossEntropy()(y_pred=LOGITS, **{**given, name: array.reshape(shape)})
    for smoothing in (-0.1, 1.0, float("nan")):
        message = f"^`label_smoothing` must be at least 0 and less than 1. Received: label_smoothing={smoothing}$"
        with pytest.raises(ValueError, match=message):
            SmoothedCrossEntropy(smoothing)
    with pytest.raises(ValueError, match="`reduction`.* Received: reduction=nonsense"):
        SmoothedCrossEntropy(reduction="nonsense")


def test_config_round_trip():
    for one in (SmoothedCrossEntropy(0.2, name="other"), TokenAccuracy(), Perplexity()):
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(one))
        assert type(again) is type(one) and again.get_config() == one.get_config()


def test_the_learning_rate_by_hand_also_after_a_config_round_trip():
    # 100^-0.5 · min(step^-0.5, step · 4^-1.5), and the step after `n` updates is n + 1.
    schedule = InverseSquareRootDecay(hidden_dim=100, warmup_steps=4, factor=2.0)
    expected = {0: 0.2 / 8, 1: 0.2 * 2 / 8, 3: 0.2 / 2, 4: 0.2 / 5**0.5, 99: 0.2 / 10}
    again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(schedule))
    for one in (schedule, again):
        rates = [float(one(ops.convert_to_tensor(step, "int32"))) for step in expected]
        np.testing.assert_allclose(rates, [*expected.values()], rtol=1e-6)


def test_a_learning_rate_of_what_is_not_positive_is_refused():
    for one in ((0, 10, 1.0), (64, 0, 1.0), (64, 10, 0.0), (64, 10, -1.0)):
        received = "Received: hidden_dim={}, warmup_steps={}, factor={}".format(*one)
        message = f"`hidden_dim`, `warmup_steps` and `factor` must be positive. {received}"
        with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
            InverseSquareRootDecay(*one)
