"""Trains on the pairs of two files, on one device and on two replicas, and compares the weights and the losses."""

import sys

from keras_transformer.training import replicas

replicas.configure("cpu:2")
import keras  # noqa: E402
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from keras_transformer.models.transformer import Transformer  # noqa: E402
from keras_transformer.text.datasets import datasets_from_files  # noqa: E402
from keras_transformer.text.tokenizer import Tokenizer  # noqa: E402
from keras_transformer.training.losses import SmoothedCrossEntropy  # noqa: E402
from keras_transformer.training.metrics import Perplexity  # noqa: E402

source, target, model_file = sys.argv[1:]
tokenizer = Tokenizer.load(model_file)
mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])


def trained(strategy: tf.distribute.Strategy, eagerly: bool) -> tuple[list[np.ndarray], dict[str, list[float]]]:
    """The weights and the history of an epoch."""
    keras.utils.set_random_seed(5)
    # The number of replicas divides the rows of a batch, so both take the batches that are made for two.
    train, valid = datasets_from_files(source, target, tokenizer, token_budget=1024, strategy=mirrored)
    with strategy.scope():
        model = Transformer(tokenizer.vocabulary_size, 1, 2, 8, 12, dropout=0.0)
        loss, metrics = SmoothedCrossEntropy(0.1), [Perplexity()]
        model.compile(keras.optimizers.SGD(0.1), loss, weighted_metrics=metrics, jit_compile=False, run_eagerly=eagerly)
    history = model.fit(train, validation_data=valid, epochs=1, verbose=0)
    assert history.params["steps"] > 1
    return [np.asarray(each) for each in model.trainable_variables], history.history


one, two = trained(tf.distribute.get_strategy(), True), trained(mirrored, False)
for mine, theirs in zip(one[0], two[0], strict=True):
    np.testing.assert_allclose(mine, theirs, atol=2e-5)
for name, values in one[1].items():
    np.testing.assert_allclose(values, two[1][name], rtol=1e-4, err_msg=name)
