"""The loss against Keras's and PyTorch's, metrics, which labels count in `fit` and how much, the learning rate."""

import re
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.losses import SmoothedCrossEntropy, smoothed_cross_entropy
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.models import Encoder, ImageClassifier
from keras_transformer.schedules import InverseSquareRootDecay
from tests.gradients import gradient
from tests.layer_check import random
from tests.models.variants import make_batch, make_model

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


def test_without_weights_it_is_the_mean_over_real_tokens_and_padding_does_not_count():
    loss, each = SmoothedCrossEntropy(0.1), ops.convert_to_numpy(by_keras(LABELS, LOGITS, 0.1))
    assert float(loss(LABELS, LOGITS)) == pytest.approx(each[REAL].mean(), abs=1e-5)
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


@pytest.mark.skipif(keras.config.backend() != "torch", reason="beside PyTorch's own loss")
def test_it_and_its_gradient_equal_pytorch():
    import torch

    labels = torch.tensor(LABELS, dtype=torch.int64)
    ours, theirs = (torch.tensor(LOGITS, requires_grad=True) for _ in range(2))
    loss = SmoothedCrossEntropy(0.7)(labels, ours)
    cross_entropy = torch.nn.CrossEntropyLoss(ignore_index=0, label_smoothing=0.7)
    expected = cross_entropy(theirs.flatten(0, 1), labels.flatten())
    loss.backward()
    expected.backward()
    torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
    torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-6)


def by_numpy(metric, labels, logits):
    """What a metric is the mean of, for each position."""
    if isinstance(metric, TokenAccuracy):
        return logits.argmax(-1) == labels
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    return -np.take_along_axis(log_p, labels[..., None], -1)[..., 0]


@pytest.mark.parametrize("weighted", [False, True])
def test_metrics_equal_numpy_over_the_real_tokens_of_batches_of_different_widths(weighted):
    some_right = np.where(np.arange(5) % 2, LABELS, LOGITS.argmax(-1)) * REAL
    batches = [(some_right, LOGITS), (np.ones((3, 7), "int32"), 3 * random(3, 7, VOCABULARY, seed=1))]
    draw = np.random.default_rng(9)
    weights = [(labels != 0) * (draw.random(labels.shape) if weighted else 1.0) for labels, _ in batches]
    for metric, result in ((TokenAccuracy(), float), (Perplexity(), np.exp)):
        for batch, each in zip(batches, weights, strict=True):
            metric.update_state(*batch, each if weighted else None)
        total = sum((each * by_numpy(metric, *batch)).sum() for batch, each in zip(batches, weights, strict=True))
        assert float(metric.result()) == pytest.approx(result(total / sum(map(np.sum, weights))), rel=1e-5)
        metric.reset_state()
        metric.update_state(*batches[0])
        assert float(metric.result()) == pytest.approx(float(type(metric)()(*batches[0])))
    assert float(Perplexity()(LABELS, np.zeros_like(LOGITS))) == pytest.approx(VOCABULARY, rel=1e-5), "of a guess"


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


# Plain `compile` and `fit`: labels of rows and of tokens, weights of either.

SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12, "dropout": 0.0}
CLASSES = (np.arange(48) % 3).astype("int32")  # as many of class 0 as of the others
IDS, NEXT, _ = make_batch()
EAGERLY = {"run_eagerly": keras.config.backend() == "tensorflow"}  # where a graph takes longer to trace than a step


def of_texts() -> tuple[keras.Model, dict[str, np.ndarray]]:
    """An encoder, and texts of which the second id tells the class."""
    keras.utils.set_random_seed(1)
    ids = np.random.default_rng(1).integers(8, 12, (48, 5)).astype("int32")
    ids[:, 0], ids[:, 1] = 2, CLASSES + 4
    return Encoder(12, num_labels=3, residual="pre_norm", **SIZES), {"ids": ids}


def of_images() -> tuple[keras.Model, dict[str, np.ndarray]]:
    """A classifier of images, and images of which the brightness tells the class."""
    keras.utils.set_random_seed(1)
    noise = np.random.default_rng(1).integers(0, 40, (48, 4, 4, 1))
    images = (noise + 100 * CLASSES[:, None, None, None]).astype("uint8")
    return ImageClassifier(3, 4, 2, 1, **SIZES), {"images": images}


def of_classes_by_keras(model: keras.Model, inputs: Any, weights: np.ndarray | None) -> dict[str, float]:
    """Loss, accuracy and perplexity by Keras's own classes."""
    logits = ops.convert_to_numpy(model(inputs))
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="mean_with_sample_weight")
    accuracy = keras.metrics.SparseCategoricalAccuracy()
    accuracy.update_state(CLASSES, logits, weights)
    value = float(loss(CLASSES, logits, weights))
    return {"loss": value, "accuracy": float(accuracy.result()), "perplexity": float(np.exp(value))}


@pytest.mark.parametrize(("classifier", "weighted"), [(of_texts, True), (of_images, False)])
def test_every_class_of_rows_counts_and_is_learned(classifier, weighted):
    """0 too, which is padding where tokens have labels."""
    model, inputs = classifier()
    given = {"weighted_metrics" if weighted else "metrics": [TokenAccuracy(), Perplexity()]}
    model.compile(keras.optimizers.Adam(0.05), SmoothedCrossEntropy(0.0), **given, **EAGERLY)
    weights = (CLASSES + 1.0).astype("float32") if weighted else None
    expected = of_classes_by_keras(model, inputs, weights)
    found = model.evaluate(inputs, CLASSES, 48, sample_weight=weights, verbose=0, return_dict=True)
    assert found == pytest.approx(expected, rel=1e-4)
    model.fit(inputs, CLASSES, 48, epochs=30 if weighted else 15, sample_weight=weights, verbose=0)
    predicted = ops.convert_to_numpy(model(inputs)).argmax(-1)
    assert [(predicted[label == CLASSES] == label).mean() for label in range(3)] == [1, 1, 1]


def after_a_step(loss: Any, *data: Any, model: Any = None, **given: Any) -> list[np.ndarray]:
    """The weights of a model after a step of plain gradient descent."""
    model = model or make_model("key_dim")
    model.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=[TokenAccuracy(), Perplexity()], **EAGERLY)
    model.train_on_batch(*data, **given)
    return [ops.convert_to_numpy(weight) for weight in model.weights]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


OF_KERAS = keras.losses.SparseCategoricalCrossentropy(from_logits=True)


@pytest.mark.parametrize(("classifier", "loss"), [(of_texts, SmoothedCrossEntropy(0.0)), (of_images, OF_KERAS)])
def test_weights_of_classes_are_those_of_their_rows(classifier, loss):
    """A step is as long as without weights: they are divided by their sum. Only where rows have labels is a class."""

    def after(*weights: Any, **given: Any) -> list[np.ndarray]:
        model, inputs = classifier()
        return after_a_step(loss, inputs, CLASSES, *weights, model=model, **given)

    by_row = np.array([3.0, 1.0, 0.5], "float32")[CLASSES]
    assert_same(after(class_weight={0: 3.0, 1: 1.0, 2: 0.5}), after(by_row / by_row.sum()))
    assert_same(after(class_weight={0: 5.0, 1: 5.0, 2: 5.0}), after())
    model = make_model("key_dim")
    model.compile("sgd", loss)
    with pytest.raises(ValueError, match=r"^`class_weight` must be left out.*Received: class_weight=\{4: 2.0\}"):
        model.fit(IDS, NEXT, class_weight={4: 2.0})
