"""Loss and metrics are means over labels: by `fit`, by `evaluate`, by NumPy, and in a step of one's own."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.models import Encoder, LanguageModel

BACKEND = keras.config.backend()
EAGERLY = {"run_eagerly": BACKEND == "tensorflow"}  # a graph takes longer to trace than some steps
SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12, "dropout": 0.0}
DRAW = np.random.default_rng(3)
IDS = {"ids": DRAW.integers(4, 11, (7, 5)).astype("int32")}
CLASSES = np.array([0, 2, 1, 2, 2, 0, 1], "int32")
TOKENS = DRAW.integers(1, 11, (7, 5)).astype("int32")
TOKENS[2, 3:], TOKENS[5, 1:], TOKENS[6] = 0, 0, 0  # a row of padding alone, too
OF_ROWS, OF_TOKENS = (DRAW.uniform(0.1, 3, shape).astype("float32") for shape in ((7,), (7, 5)))

OURS = SmoothedCrossEntropy(0.0)
MEAN = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
WITHOUT_0 = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
ONE_HOT = keras.losses.CategoricalCrossentropy(from_logits=True)


def by_function(labels: Any, logits: Any) -> Any:
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def made(labels: np.ndarray, model_class: Any = None, **arguments: Any) -> Any:
    """A model for labels of rows or of tokens."""
    keras.utils.set_random_seed(1)
    if labels.ndim == 1 or labels.shape[1] == 1:
        return (model_class or Encoder)(11, num_labels=3, **SIZES, **arguments)
    return (model_class or LanguageModel)(11, **{**SIZES, **arguments})


def by_numpy(model: Any, labels: np.ndarray, weights: np.ndarray) -> dict[str, float]:
    """Loss and metrics over all labels at once, in float64."""
    logits = ops.convert_to_numpy(model(IDS)).astype("float64")
    log_p = logits - np.log(np.exp(logits).sum(-1, keepdims=True))
    losses = -np.take_along_axis(log_p, labels[..., None], -1)[..., 0]
    loss = np.average(losses, weights=weights)
    real = weights * ((labels != 0) | (labels.ndim == 1))
    accuracy = np.average(logits.argmax(-1) == labels, weights=real)
    return {"loss": loss, "accuracy": accuracy, "perplexity": np.exp(np.average(losses, weights=real))}


# The loss, the labels, the weights that are given, and the weight that each label then has.
CASES: dict[str, tuple] = {
    "ours, of tokens": (OURS, TOKENS, None, TOKENS != 0),
    "ours, weights of 1": (OURS, TOKENS, np.ones((7, 5)), TOKENS != 0),
    "ours, weights of tokens": (OURS, TOKENS, OF_TOKENS, OF_TOKENS * (TOKENS != 0)),
    "ours, weights of rows": (OURS, TOKENS, OF_ROWS, OF_ROWS[:, None] * (TOKENS != 0)),
    "ours, of rows": (OURS, CLASSES, None, np.ones(7)),
    "ours, weighted rows": (OURS, CLASSES, OF_ROWS, OF_ROWS),
    "mean of rows": (MEAN, CLASSES, None, np.ones(7)),
    "mean of weighted rows": (MEAN, CLASSES, 1e-3 * OF_ROWS, OF_ROWS),
    "mean of tokens": (MEAN, TOKENS, None, np.ones((7, 5))),
    "mean of tokens, weights of rows": (MEAN, TOKENS, OF_ROWS, OF_ROWS[:, None] * np.ones((7, 5))),
    "without class 0": (WITHOUT_0, TOKENS, None, TOKENS != 0),
    "a column": (OURS, CLASSES[:, None], OF_ROWS[:, None], OF_ROWS),
    "one-hot": (ONE_HOT, CLASSES, OF_ROWS, OF_ROWS),
    "one-hot tokens": (ONE_HOT, TOKENS, OF_TOKENS, OF_TOKENS),
    "a function": ([by_function], TOKENS, None, np.ones((7, 5))),
}


@pytest.mark.parametrize("case", CASES)
def test_fit_evaluate_and_numpy_tell_the_same_for_batches_of_all_sizes(case):
    loss, labels, given, weights = CASES[case]
    model = made(labels)
    expected = by_numpy(model, labels.reshape(weights.shape), weights)
    metrics = [TokenAccuracy(), Perplexity()] if loss is not ONE_HOT else []
    told = {"metrics" if given is None else "weighted_metrics": metrics}
    targets = keras.utils.to_categorical(labels, 3 if labels.ndim == 1 else 11) if loss is ONE_HOT else labels
    model.compile(keras.optimizers.SGD(0.0), loss, **told, **EAGERLY)
    for batch_size in (2, 3, 7):
        options = {"batch_size": batch_size, "sample_weight": given, "verbose": 0}
        fitted = model.fit(IDS, targets, shuffle=False, **options).history
        found = model.evaluate(IDS, targets, return_dict=True, **options)
        for name, value in found.items():
            assert (value, fitted[name][0]) == (pytest.approx(expected[name], rel=1e-5),) * 2, (name, batch_size)
    assert {"accuracy", "perplexity"} <= found.keys() or loss is ONE_HOT


@pytest.mark.parametrize("loss", [OURS, MEAN])
def test_weights_of_classes_are_told_too_and_only_where_rows_have_labels_is_a_class(loss):
    model = made(CLASSES)
    model.compile(keras.optimizers.SGD(0.0), loss, weighted_metrics=[TokenAccuracy(), Perplexity()], **EAGERLY)
    by_class = {0: 3.0, 1: 1.0, 2: 0.5}
    fitted = model.fit(IDS, CLASSES, batch_size=3, class_weight=by_class, verbose=0).history
    expected = by_numpy(model, CLASSES, np.array([by_class[one] for one in CLASSES]))
    assert {name: value[0] for name, value in fitted.items()} == pytest.approx(expected, rel=1e-5)
    of_tokens = made(TOKENS)
    of_tokens.compile("sgd", loss)
    with pytest.raises(ValueError, match=r"^`class_weight` must be left out.*Received: class_weight=\{4: 2.0\}"):
        of_tokens.fit(IDS, TOKENS, class_weight={4: 2.0})


def gradient_of_a_step(model: Any, loss: Any, labels: np.ndarray, weights: Any = None) -> list[np.ndarray]:
    model.compile(keras.optimizers.SGD(1.0), loss, **EAGERLY)
    before = [ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    model.fit(IDS, labels, batch_size=7, sample_weight=weights, verbose=0)
    return [old - ops.convert_to_numpy(new) for old, new in zip(before, model.trainable_variables, strict=True)]


def assert_same(found: list[np.ndarray], expected: list[np.ndarray]) -> None:
    assert len(found) == len(expected) and max(np.abs(one).max() for one in expected) > 1e-3
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, atol=1e-6)


def regularized(micro_batches: int = 1) -> Any:
    model = made(TOKENS)
    model.micro_batches = micro_batches
    for variable in model.trainable_variables:
        variable.regularizer = keras.regularizers.L2(0.01)
    return model


def test_what_is_added_to_the_loss_counts_once_in_figure_and_gradient():
    plain, model = made(TOKENS), regularized()
    expected = by_numpy(plain, TOKENS, TOKENS != 0)["loss"] + float(ops.sum(model.losses))
    model.compile(keras.optimizers.SGD(0.0), OURS, **EAGERLY)
    for batch_size in (2, 7):
        options = {"batch_size": batch_size, "verbose": 0}
        told = model.fit(IDS, TOKENS, **options).history["loss"][0], model.evaluate(IDS, TOKENS, **options)
        assert told == pytest.approx((expected, expected), rel=1e-5)
    without_labels = regularized()
    without_labels.compile(keras.optimizers.SGD(0.0), **EAGERLY)
    alone = without_labels.fit(IDS, batch_size=2, verbose=0).history["loss"][0]
    assert alone == pytest.approx(float(ops.sum(model.losses)), rel=1e-5)
    of_labels = gradient_of_a_step(plain, OURS, TOKENS)
    weights = [ops.convert_to_numpy(variable) for variable in model.trainable_variables]
    both = [slope + 0.02 * weight for slope, weight in zip(of_labels, weights, strict=True)]
    for micro_batches in (1, 3) if BACKEND == "tensorflow" else (1,):
        assert_same(gradient_of_a_step(regularized(micro_batches), OURS, TOKENS), both)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="micro-batches are TensorFlow's alone")
@pytest.mark.parametrize(
    "case", ["ours, weights of tokens", "mean of tokens", "without class 0", "one-hot", "a function"]
)
def test_micro_batches_and_several_steps_an_execution_change_nothing(case):
    loss, labels, given, weights = CASES[case]
    targets = keras.utils.to_categorical(labels, 3) if loss is ONE_HOT else labels
    model = made(labels)
    expected = by_numpy(model, labels, weights)["loss"]
    once = gradient_of_a_step(made(labels), loss, targets, given)
    model.micro_batches = 3
    model.compile(keras.optimizers.SGD(0.0), loss, steps_per_execution=2)
    options = {"batch_size": 3, "sample_weight": given, "verbose": 0}
    told = model.fit(IDS, targets, **options).history["loss"][0], model.evaluate(IDS, targets, **options)
    assert told == pytest.approx((expected, expected), rel=1e-5)
    assert_same(gradient_of_a_step(model, loss, targets, given), once)


@pytest.mark.skipif(BACKEND != "tensorflow", reason="micro-batches are TensorFlow's alone")
@pytest.mark.parametrize("micro_batches", [1, 3])
def test_training_is_with_dropout_and_validation_without(micro_batches):
    losses = []
    for dropout in (0.0, 0.5):
        model = made(TOKENS, dropout=dropout)
        model.micro_batches = micro_batches
        model.compile(keras.optimizers.SGD(0.0), OURS, run_eagerly=micro_batches == 1)
        losses.append([float(model.train_on_batch(IDS, TOKENS)) for _ in range(2)])
        expected = pytest.approx(by_numpy(model, TOKENS, TOKENS != 0)["loss"], rel=1e-5)
        assert model.evaluate(IDS, TOKENS, batch_size=7, verbose=0) == expected
        assert dropout or losses[0] == [expected] * 2
    assert abs(losses[1][0] - losses[1][1]) > 1e-4, "another draw at every step"


@pytest.mark.skipif(BACKEND != "tensorflow", reason="strategies are TensorFlow's alone")
def test_one_hot_labels_train_under_a_strategy_too():
    import tensorflow as tf

    with tf.distribute.OneDeviceStrategy("cpu").scope():
        model = made(CLASSES)
    found = gradient_of_a_step(model, ONE_HOT, keras.utils.to_categorical(CLASSES, 3))
    assert_same(found, gradient_of_a_step(made(CLASSES), MEAN, CLASSES))


@pytest.mark.parametrize("labels", [CLASSES, TOKENS], ids=["rows", "tokens"])
def test_a_sum_goes_as_far_as_its_labels_are_many(labels):
    for mean, total in (
        (OURS, SmoothedCrossEntropy(0.0, reduction="sum")),
        (MEAN, keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")),
    ):
        number = labels.size if mean is MEAN or labels.ndim == 1 else np.count_nonzero(labels)
        once = gradient_of_a_step(made(labels), mean, labels)
        for micro_batches in (1, 3) if BACKEND == "tensorflow" else (1,):
            model = made(labels)
            model.micro_batches = micro_batches
            found = gradient_of_a_step(model, total, labels)
            assert_same([slope / number for slope in found], once)


class OnTensorFlow:
    """The step of Keras's guide "Customizing what happens in `fit()`", for TensorFlow."""

    def train_step(self: Any, data: Any) -> Any:
        import tensorflow as tf

        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True), sample_weight=weights)
        slopes = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(slopes, self.trainable_variables)
        return {"loss": loss}


class OnTorch:
    """That for PyTorch."""

    def train_step(self: Any, data: Any) -> Any:
        import torch

        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        self.zero_grad()
        loss = self.compute_loss(x=x, y=y, y_pred=self(x, training=True), sample_weight=weights)
        loss.backward()
        with torch.no_grad():
            slopes = [variable.value.grad for variable in self.trainable_weights]
            self.optimizer.apply(slopes, self.trainable_weights)
        return {"loss": loss}


class OnJax:
    """That for JAX."""

    def loss_and_updates(self: Any, trainable: Any, others: Any, x: Any, y: Any, weights: Any) -> Any:
        y_pred, others = self.stateless_call(trainable, others, x, training=True)
        return self.compute_loss(x, y, y_pred, weights), others

    def train_step(self: Any, state: Any, data: Any) -> Any:
        import jax

        trainable, others, of_optimizer, of_metrics = state
        of_step = jax.value_and_grad(self.loss_and_updates, has_aux=True)
        x, y, weights = keras.utils.unpack_x_y_sample_weight(data)
        (loss, others), slopes = of_step(trainable, others, x, y, weights)
        trainable, of_optimizer = self.optimizer.stateless_apply(of_optimizer, slopes, trainable)
        return {"loss": loss}, (trainable, others, of_optimizer, of_metrics)


GUIDE: Any = {"tensorflow": OnTensorFlow, "torch": OnTorch, "jax": OnJax}[BACKEND]


class OwnEncoder(GUIDE, Encoder):
    pass


class OwnLanguageModel(GUIDE, LanguageModel):
    pass


@pytest.mark.parametrize("case", ["ours, of tokens", "ours, weights of rows", "mean of rows", "mean of tokens"])
def test_a_step_of_ones_own_learns_what_fit_learns_and_weights_of_1_are_none(case):
    loss, labels, given, _ = CASES[case]
    own = OwnEncoder if labels.ndim == 1 else OwnLanguageModel
    expected = gradient_of_a_step(made(labels), loss, labels, given)
    assert_same(gradient_of_a_step(made(labels, own), loss, labels, given), expected)
    if given is None:
        ones = np.ones(labels.shape, "float32")
        assert_same(gradient_of_a_step(made(labels, own), loss, labels, ones), expected)
        assert_same(gradient_of_a_step(made(labels), loss, labels, 7 * ones[:, 0] if ones.ndim > 1 else ones), expected)


@pytest.mark.parametrize("label", [-1, -100, 11])
def test_labels_that_are_no_class_are_refused(label):
    labels = np.where(np.arange(35).reshape(7, 5) == 8, label, np.maximum(TOKENS, 1))
    logits = np.zeros((7, 5, 11), "float32")
    with pytest.raises(ValueError, match=rf"^labels must be at least 0 and less than 11.*Received: \[{label}\]$"):
        OURS(labels, logits)
    model = made(TOKENS)
    model.compile("sgd", OURS)
    if BACKEND == "jax":  # within what it compiles nothing can be raised
        assert np.isnan(model.evaluate(IDS, labels, verbose=0))
        return
    with pytest.raises(Exception, match="labels must be at least 0 and less than 11"):
        model.fit(IDS, labels, verbose=0)


def test_a_model_of_which_nothing_is_trainable_can_still_be_fitted_as_can_one_with_a_frozen_part():
    frozen = made(TOKENS)
    frozen.stack.trainable = False
    found = gradient_of_a_step(frozen, OURS, TOKENS)
    assert len(found) < len(made(TOKENS).trainable_variables) and np.abs(found[0]).max() > 1e-3
    if BACKEND == "tensorflow":
        frozen.trainable = False
        frozen.compile("sgd", OURS, weighted_metrics=[Perplexity()], **EAGERLY)
        assert np.isfinite(frozen.fit(IDS, TOKENS, verbose=0).history["perplexity"][0])
