"""R-Drop against its equations (Wu et al. 2021, arXiv 2106.14448), with a model whose two passes differ as wished."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops
from scipy.special import rel_entr, softmax

from keras_transformer.layers import auxiliary_losses
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.models import Transformer
from keras_transformer.models.training_step import ReplicatedFit
from tests.layer_check import random
from tests.models.variants import make_batch

ROWS, WIDTH, CLASSES = 6, 3, 5
X, LABELS = random(ROWS, WIDTH), np.array([1, 4, 2, 3, 3, 1], "int32")
WEIGHTS = np.array([0.3, 0.1, 0.2, 0.05, 0.25, 0.1], "float32")
KERNEL = 0.4 * random(WIDTH, CLASSES, seed=2)  # small, as Keras clips probabilities below 1e-7
ALPHA = 3.0


class Uneven(ReplicatedFit):
    """A linear model. Where rows come twice in training, the logits of the second half are three times as large."""

    def __init__(self):
        super().__init__()
        self.kernel = self.add_weight(shape=KERNEL.shape, initializer=lambda *_, **__: ops.convert_to_tensor(KERNEL))
        self.built = True

    def call(self, x, training=False):
        logits = ops.matmul(x, self.kernel)
        if not (training and self.r_drop):
            return logits
        one, other = ops.split(logits, 2)
        return ops.concatenate([one, 3.0 * other])

    def symbolic_batch(self):
        return (
            keras.KerasTensor((None, WIDTH)),
            keras.KerasTensor((None,), "int32"),
            keras.KerasTensor((None,), "float32"),
        )


def step(alpha: float, micro_batches: int = 1, **options) -> tuple[np.ndarray, float]:
    """The gradient of one step, and the loss that it shows."""
    model = Uneven()
    model.r_drop, model.micro_batches = alpha, micro_batches
    model.compile(keras.optimizers.SGD(1.0), SmoothedCrossEntropy(0.0), **options)
    loss = float(model.train_on_batch(X, LABELS, WEIGHTS))
    return KERNEL - ops.convert_to_numpy(model.kernel), loss


def expected(alpha: float) -> tuple[np.ndarray, float]:
    """The gradient of half of equation 4, by automatic differentiation of Keras's own functions; the labels' loss."""
    kernel = tf.Variable(KERNEL)
    with tf.GradientTape() as tape:
        passes = [tf.matmul(X, kernel), 3.0 * tf.matmul(X, kernel)]
        losses = [keras.losses.sparse_categorical_crossentropy(LABELS, logits, from_logits=True) for logits in passes]
        p, q = (tf.nn.softmax(logits) for logits in passes)
        divergence = (keras.losses.kl_divergence(p, q) + keras.losses.kl_divergence(q, p)) / 2
        of_labels = tf.reduce_sum(WEIGHTS * (losses[0] + losses[1])) / 2
        loss = of_labels + tf.reduce_sum(WEIGHTS * alpha * divergence) / 2
    return tape.gradient(loss, kernel).numpy(), float(of_labels)


@pytest.mark.parametrize("options", [{}, {"micro_batches": 4}, {"jit_compile": True}], ids=str)
def test_a_step_is_that_of_the_equations_and_shows_the_loss_of_the_labels(options):
    gradient, loss = expected(ALPHA)
    ours, shown = step(ALPHA, **options)
    np.testing.assert_allclose(ours, gradient, atol=1e-5)
    assert shown == pytest.approx(loss, rel=1e-5)
    assert np.abs(gradient - expected(0.0)[0]).max() > 0.1


def test_the_divergence_is_the_mean_of_both_directions_in_float32():
    logits = ops.cast(4 * random(4, 3, CLASSES), "bfloat16")
    weights = np.abs(random(2, 3))
    p, q = np.split(softmax(ops.convert_to_numpy(ops.cast(logits, "float32")).astype("float64"), -1), 2)
    both = (rel_entr(p, q) + rel_entr(q, p)).sum(-1) / 2
    found = auxiliary_losses.divergence(logits, np.concatenate([weights, weights]))
    assert float(found) == pytest.approx((weights * both).sum(), rel=1e-5)


def learned(alpha: float, dropout: float = 0.0, feed_forward: str | dict = "plain") -> list:
    """The losses of three steps of a translator, and its weights after them."""
    keras.utils.set_random_seed(3)
    model = Transformer(23, 1, 2, 8, 12, dropout=dropout, feed_forward=feed_forward)
    model.r_drop, model.micro_batches = alpha, 2
    model.compile(keras.optimizers.SGD(0.5), SmoothedCrossEntropy(0.1), run_eagerly=True)
    losses = [float(model.train_on_batch(*make_batch())) for _ in range(3)]
    return [*losses, *(ops.convert_to_numpy(weight) for weight in model.trainable_variables)]


@pytest.mark.parametrize("feed_forward", ["plain", {"name": "experts", "num_experts": 3, "alpha": 0.5}], ids=str)
def test_passes_that_agree_learn_as_one_pass(feed_forward):
    for one, other in zip(*(learned(alpha, feed_forward=feed_forward) for alpha in (0.0, 5.0)), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_dropout_treats_the_two_passes_unlike():
    one, other = (learned(alpha, dropout=0.5)[3] for alpha in (1e-9, 5.0))
    assert np.abs(one - other).max() > 1e-3
