"""Divides batches of the pairs of two files among two replicas on the processor, as `fit` does, and looks at them."""

import sys

from keras_transformer.training import devices

devices.configure("cpu:2")
import numpy as np  # noqa: E402
import tensorflow as tf  # noqa: E402

from keras_transformer.text.datasets import datasets_from_files  # noqa: E402
from keras_transformer.text.tokenizer import Tokenizer  # noqa: E402

source, target, model_file = sys.argv[1:]
mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])
both = datasets_from_files(source, target, Tokenizer.load(model_file), token_budget=256, strategy=mirrored)
for dataset in both:
    whole = [labels for _, labels, _ in dataset.as_numpy_iterator()]
    dataset.epochs.epoch = 0
    num_batches = 0
    for inputs, labels, weights in mirrored.experimental_distribute_dataset(dataset):
        for each in (inputs["source_ids"], inputs["target_ids"], labels, weights):
            one, other = mirrored.experimental_local_results(each)
            assert len(one) == len(other) > 0
        parts = np.concatenate([np.asarray(part) for part in mirrored.experimental_local_results(labels)])
        np.testing.assert_array_equal(parts, whole[num_batches])
        num_batches += 1
    assert num_batches == len(whole) > 0
