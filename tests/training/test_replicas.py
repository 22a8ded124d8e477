"""Replicas, micro-batches and what a step is made of: however the batch is spread, the same is learned."""

import warnings
from functools import partial
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer.training import devices, replicas, workers
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import TokenAccuracy
from tests.training.replicated import LONG, QUICK, adam, assert_same, batches, mean_loss, model_of, sgd, train
from tests.training.runs import run_module

BATCH, OTHER = batches()


@pytest.mark.parametrize(
    "cases", [pytest.param(QUICK, id="quick"), pytest.param(LONG, id="long", marks=pytest.mark.long)]
)
def test_two_replicas(cases, tmp_path):
    run_module(tmp_path, "tests.training.replicated", *(case.__name__ for case in cases))


def test_a_mean_of_the_means_of_parts_and_several_losses_are_refused():
    model = model_of()
    model.micro_batches = 3
    model.compile(sgd(), mean_loss(), run_eagerly=True)
    with pytest.raises(ValueError, match="give weights, or a loss whose reduction is 'sum'. Received: micro_batches=3"):
        model.train_on_batch(BATCH.inputs, BATCH.labels)
    refused: list[dict[str, Any]] = [{"loss": [mean_loss()] * 2}, {"loss": mean_loss(), "loss_weights": 2.0}]
    for several in refused:
        with pytest.raises(ValueError, match="Received: loss"):
            model_of().compile(sgd(), **several)


def test_adam_in_one_kernel_is_that_of_keras():
    kept = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9, "weight_decay": 0.1}
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)
    ours, theirs = (partial(adam, schedule, **kept) for adam in (replicas.Adam, keras.optimizers.Adam))
    assert_same(train(1, ours), train(1, theirs), 1e-5)


def test_a_clipped_gradient_is_as_long_as_asked():
    start = model_of().trainable_variables
    ends = (train(1, partial(keras.optimizers.SGD, 1.0, global_clipnorm=most))[0] for most in (None, 0.05))
    free, clipped = (sum(np.square(a - b).sum() for a, b in zip(end, start, strict=True)) ** 0.5 for end in ends)
    assert clipped <= 2 * 0.05 + 1e-6 < free


def test_validation_with_a_loss_of_keras_is_the_mean_over_all_real_tokens():
    found, data = [], [(batch.inputs, batch.labels, np.sign(batch.weights)) for batch in (BATCH, OTHER)]
    for loss in SmoothedCrossEntropy(0.0), mean_loss():
        model = model_of()
        model.compile(sgd(), loss, run_eagerly=True)
        found.append(model.evaluate((batch for batch in data), steps=2, verbose=0))
    total = 0.0
    for inputs, labels, is_real in data:
        each = keras.losses.sparse_categorical_crossentropy(labels, model(inputs), from_logits=True)
        total += (np.asarray(each) * is_real).sum()
    assert found == pytest.approx([total / sum(is_real.sum() for *_, is_real in data)] * 2, rel=1e-5)


def test_metrics_look_at_the_whole_of_the_first_step_after_a_reset():
    found = []
    for micro_batches in 1, 3:
        model = model_of()
        model.micro_batches, model.metrics_every = micro_batches, 10
        model.compile(sgd(0.0), SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy()], run_eagerly=True)
        data = (tuple(batch) for _ in range(9) for batch in (BATCH, OTHER))
        found += model.fit(data, epochs=2, steps_per_epoch=2, verbose=0, shuffle=False).history["accuracy"]
    right = np.asarray(model(BATCH.inputs)).argmax(-1) == BATCH.labels
    np.testing.assert_allclose(found, [(right * BATCH.weights).sum()] * 4, rtol=1e-6)


def test_an_auxiliary_loss_is_no_part_of_the_loss_that_is_told():
    model = model_of(feed_forward={"name": "experts", "num_experts": 4, "alpha": 0.5})
    model.compile(sgd(), SmoothedCrossEntropy(0.1), run_eagerly=True)
    told = model.evaluate(*BATCH[:2], batch_size=12, verbose=0)
    assert told == model.train_on_batch(*BATCH) and not model.losses


def test_a_compiled_model_is_saved_and_loaded_as_it_was(tmp_path):
    model = model_of()
    model.compile(adam(), SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy()], run_eagerly=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        model.train_on_batch(*BATCH)
        model.save(tmp_path / "model.keras")
        loaded: Any = keras.saving.load_model(tmp_path / "model.keras")
    one, other = (each.train_on_batch(*BATCH, return_dict=True) for each in (model, loaded))
    assert one == pytest.approx(other, rel=1e-6) and loaded.loss.label_smoothing == 0.1
    for mine, theirs in zip(loaded.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6, rtol=0)


def nodes(**options: Any) -> list[Any]:
    """The nodes of the graph of a step in two micro-batches."""
    model: Any = model_of(**options)
    model.micro_batches = 2
    model.compile(adam(), SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy()])
    model.build_for_training()
    ids = tf.TensorSpec((None, None), tf.int32)
    step = tf.function(lambda *data: model.train_step(data))
    graph = step.get_concrete_function({"ids": ids}, ids, tf.TensorSpec((None, None), tf.float32)).graph.as_graph_def()
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]


def test_nothing_of_a_training_step_is_a_scatter_and_without_auxiliary_losses_nothing_is_counted():
    options: list[dict[str, Any]] = [{"positions": "learned", "dtype": "mixed_bfloat16"}, {"stack": "universal"}]
    for each, num_loops in zip(options, (1, 2), strict=True):
        operators = [node.op for node in nodes(**each)]
        assert "ResourceApplyAdam" in operators and not [name for name in operators if "scatter" in name.lower()]
        assert sum(name in ("While", "StatelessWhile") for name in operators) == num_loops


def test_devices():
    for text in ("", "gpu", "cpu:0", "0,0", "-1", "cpu:2,3", "0,"):
        with pytest.raises(ValueError, match="`devices` must be"):
            devices.parse_devices(text)
    found = [devices.parse_devices(text) for text in ("auto", "cpu", "cpu:3", "2,0")]
    assert found == [("auto", []), ("cpu", [0]), ("cpu", [0, 1, 2]), ("gpu", [2, 0])]


def test_what_a_run_trains_on_is_said_and_why_no_gpu(monkeypatch, tmp_path):
    assert devices.gpus_of_the_driver(tmp_path / "none") == 0
    (tmp_path / "0000:01:00.0").mkdir()
    assert devices.gpus_of_the_driver(tmp_path) == 1
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.setattr(devices, "gpus_of_the_driver", lambda: 0)
    assert devices.describe_devices("auto") == devices.describe_devices("cpu") == "training on the processor"
    assert devices.describe_devices("cpu:2") == "training on the processor, in 2 replicas"
    monkeypatch.setattr(devices, "gpus_of_the_driver", lambda: 2)
    said = "training on the processor: the NVIDIA driver has 2 GPU(s), but TensorFlow sees none. "
    why = f"{said}Its CUDA libraries are not installed, or do not fit: pip"
    assert devices.describe_devices("auto").startswith(why)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert devices.describe_devices("auto") == f"{said}CUDA_VISIBLE_DEVICES is '-1', which may hide them"
    assert devices.describe_devices("cpu") == "training on the processor"


def test_an_empty_cluster_is_none(monkeypatch):
    """TensorFlow's own reader, which several replicas ask, takes an empty `TF_CONFIG` for broken JSON."""
    monkeypatch.setenv("TF_CONFIG", "")
    replicas.strategy("cpu")
    assert not tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().jobs
    assert workers.num_workers() == 1
