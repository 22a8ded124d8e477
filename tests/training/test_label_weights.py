"""Which labels count in plain `compile` and `fit`, and how much: labels of rows and of tokens, weights of either."""

from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer.models import Encoder, ImageClassifier
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy
from tests.models.variants import make_batch, make_model

SIZES: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12, "dropout": 0.0}
CLASSES = (np.arange(48) % 3).astype("int32")  # as many of class 0 as of the others
IDS, LABELS, TOKENS = make_batch()
REAL = (TOKENS > 0).astype("float32")
ROWS = np.array([0.5, 2.0, 1.0], "float32")
EAGERLY = {"run_eagerly": keras.config.backend() == "tensorflow"}  # where a graph takes longer to trace than a step
OF_TOKENS = REAL * ROWS[:, None] / (REAL * ROWS[:, None]).sum()


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


def by_keras(model: keras.Model, inputs: Any, weights: np.ndarray | None = None) -> dict[str, float]:
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
    expected = by_keras(model, inputs, weights)
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


@pytest.mark.parametrize("loss", [SmoothedCrossEntropy(0.0), OF_KERAS])
def test_the_weight_of_a_row_is_that_of_each_of_its_real_labels(loss):
    assert_same(after_a_step(loss, IDS, LABELS, 7 * ROWS), after_a_step(loss, IDS, LABELS, OF_TOKENS))
    model = make_model("key_dim")
    model.compile("sgd", loss, weighted_metrics=[TokenAccuracy(), Perplexity()], **EAGERLY)
    by_row, by_token = (
        model.evaluate(IDS, LABELS, len(LABELS), sample_weight=weights, verbose=0, return_dict=True)
        for weights in (ROWS, OF_TOKENS)
    )
    assert by_row["accuracy"] == pytest.approx(by_token["accuracy"], abs=1e-6)
    assert by_row["perplexity"] == pytest.approx(by_token["perplexity"], rel=1e-5)


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
    for train in (model.fit, model.train_on_batch):
        with pytest.raises(ValueError, match=r"^`class_weight` must be left out.*Received: class_weight=\{4: 2.0\}"):
            train(IDS, LABELS, class_weight={4: 2.0})


def test_labels_of_rows_may_be_a_column():
    """Keras's losses take (B, 1), our own say what they expect."""
    of_keras = keras.losses.SparseCategoricalCrossentropy(from_logits=True, reduction="sum")
    weights = None if keras.config.backend() == "tensorflow" else np.full(48, 1.0, "float32")
    found = []
    for loss, labels in (of_keras, CLASSES[:, None]), (SmoothedCrossEntropy(0.0), CLASSES):
        model, inputs = of_images()
        model.compile(keras.optimizers.SGD(0.1), loss, **EAGERLY)
        model.train_on_batch(inputs, labels, weights)
        found.append([ops.convert_to_numpy(weight) for weight in model.weights])
    assert_same(*found)
    with pytest.raises(ValueError, match=r"^`y_true` must have one entry for each token of the logits: the shape"):
        TokenAccuracy().update_state(CLASSES[:, None], np.zeros((48, 3), "float32"))
