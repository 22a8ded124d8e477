"""Replicas, micro-batches and what a step is made of: however the batch is spread, the same is learned."""

import inspect
import os
import shlex
from functools import partial
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_transformer import optimizers
from keras_transformer.core import machine
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import TokenAccuracy
from keras_transformer.models import Transformer
from keras_transformer.training import devices
from tests.graphs import has_a_loop, is_compiled_by_xla, nodes_of_a_step
from tests.processes import run_python
from tests.training.replicated import LONG, QUICK, adam, assert_same, batches, mean_loss, model_of, sgd, train

BATCH, OTHER = batches()


@pytest.mark.parametrize(
    "cases", [pytest.param(QUICK, id="quick"), pytest.param(LONG, id="long", marks=pytest.mark.long)]
)
def test_two_replicas(cases, tmp_path):
    run_python("-m", "tests.training.replicated", *(case.__name__ for case in cases), folder=tmp_path)


def test_several_losses_are_refused():
    with pytest.raises(ValueError, match="Received: loss"):
        model_of().compile(sgd(), [mean_loss()] * 2)


OF_ADAM: list[dict[str, Any]] = [
    {"weight_decay": 0.1, "clipnorm": 0.1, "name": "mine"},
    {"gradient_accumulation_steps": 2, "global_clipnorm": 0.1},
    {"use_ema": True, "ema_overwrite_frequency": 1, "clipvalue": 0.01, "loss_scale_factor": 4.0},
    {"amsgrad": True},
]


@pytest.mark.parametrize("given", OF_ADAM, ids=lambda given: next(iter(given)))
def test_adam_in_one_kernel_is_that_of_keras(given):
    schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)
    kept = {"learning_rate": schedule, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9, **given}
    ours, theirs = (partial(adam, **kept) for adam in (optimizers.Adam, keras.optimizers.Adam))
    with_graph = "gradient_accumulation_steps" in given
    assert_same(train(1, ours, with_graph=with_graph), train(1, theirs, with_graph=with_graph), 1e-5)


def test_all_arguments_of_keras_adam_are_tried():
    named = inspect.signature(keras.optimizers.Adam).parameters.keys() - {"kwargs", "ema_momentum"}
    assert named == {"learning_rate", "beta_1", "beta_2", "epsilon"}.union(*OF_ADAM)
    papers = {"beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
    assert optimizers.Adam(0.1).get_config().items() >= papers.items(), "by default"


def test_metrics_look_at_the_whole_of_the_first_step_after_a_reset():
    found = []
    for micro_batches in 1, 3:
        model = model_of()
        model.micro_batches, model.metrics_every = micro_batches, 10
        model.compile(sgd(0.0), SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy()], run_eagerly=True)
        data = (tuple(batch) for _ in range(9) for batch in (BATCH, OTHER))
        found += model.fit(data, epochs=2, steps_per_epoch=2, verbose=0, shuffle=False).history["accuracy"]
    right = np.asarray(model(BATCH.inputs)).argmax(-1) == BATCH.labels
    np.testing.assert_allclose(found, [np.average(right, weights=BATCH.weights)] * 4, rtol=1e-6)


def test_an_auxiliary_loss_is_no_part_of_the_loss_that_is_told():
    model = model_of(feed_forward={"name": "experts", "num_experts": 4, "alpha": 0.5})
    model.compile(sgd(), SmoothedCrossEntropy(0.1), run_eagerly=True)
    told = model.evaluate(*BATCH[:2], batch_size=12, verbose=0)
    assert model.train_on_batch(*BATCH) == pytest.approx(told, rel=1e-6) and not model.losses


@pytest.mark.parametrize("micro_batches", [1, 3])
@pytest.mark.parametrize("jit_compile", [True, False, "auto"])
def test_a_step_has_a_loop_over_micro_batches_and_what_xla_compiles_where_they_are_asked_for(
    jit_compile, micro_batches
):
    model = Transformer(11, 1, 2, 8, 12)
    model.micro_batches = micro_batches
    model.compile(sgd(), SmoothedCrossEntropy(0.0), jit_compile=jit_compile)
    assert (has_a_loop(model), is_compiled_by_xla(model)) == (micro_batches > 1, jit_compile is True)
    model.compile(sgd(), SmoothedCrossEntropy(0.0))
    assert not is_compiled_by_xla(model), "compiled anew, without"


def test_nothing_of_a_training_step_is_a_scatter():
    """TensorFlow's deterministic scatter copies the gradient from the GPU to the host and back."""
    model = Transformer(11, 1, 2, 8, 12, positions="learned", dtype="mixed_bfloat16")
    model.compile(adam(), SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy()])
    model.build_for_training()
    operators = [node.op for node in nodes_of_a_step(model)]
    assert operators.count("ResourceApplyAdam") > 9 and operators.count("Pow") == 2, "of each β, for all weights"
    assert not [name for name in operators if "scatter" in name.lower()]


def test_devices():
    for text in ("", "gpu", "cpu:0", "0,0", "-1"):
        with pytest.raises(ValueError, match="--devices must be"):
            devices.parse_devices(text)
    found = [devices.parse_devices(text) for text in ("auto", "cpu", "cpu:3", "2,0")]
    assert found == [("auto", []), ("cpu", [0]), ("cpu", [0, 1, 2]), ("gpu", [2, 0])]


def test_what_xla_compiles_is_kept_for_this_machine_and_the_users_own_flags_stay(monkeypatch, tmp_path):
    def flags(before="", gpu="NVIDIA One"):
        (tmp_path / "gpus" / "0").mkdir(parents=True, exist_ok=True)
        (tmp_path / "gpus" / "0" / "information").write_text(f"Model: {gpu}\nIRQ: 7\n")
        monkeypatch.setenv("TF_XLA_FLAGS", before)
        devices.keep_programs(tmp_path / "gpus")
        return os.environ["TF_XLA_FLAGS"]

    cache = tmp_path / "a 'cache' \"of\tmine\" \\"
    monkeypatch.setenv("XDG_CACHE_HOME", str(cache))
    one, other = flags(), flags(gpu="NVIDIA Other")
    assert one == flags() != other
    folder = Path(shlex.split(one)[0].removeprefix("--tf_xla_persistent_cache_directory="))  # as TensorFlow reads it
    assert folder.is_relative_to(cache) and folder.stat().st_mode & 0o777 == 0o700
    assert flags("/my/flags") == "/my/flags", "a file"
    own = "--tf_xla_persistent_cache_directory=/mine"
    assert flags(own) == own and flags("--tf_xla_auto_jit=2").startswith("--tf_xla_auto_jit=2 --tf_xla_persistent")
    monkeypatch.setenv("XDG_CACHE_HOME", "/dev/null")
    assert flags("--tf_xla_auto_jit=2") == "--tf_xla_auto_jit=2", "nothing can be kept there"


def test_what_a_run_trains_on_is_said_and_why_no_gpu(monkeypatch, tmp_path):
    (tmp_path / "0000:01:00.0").mkdir()
    assert [machine.gpus_of_the_driver(folder) for folder in (tmp_path, tmp_path / "none")] == [1, 0]
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert devices.describe_devices("cpu") == "training on the processor"
    assert devices.describe_devices("cpu:2") == "training on the processor, in 2 replicas"
    monkeypatch.setattr(devices, "gpus_of_the_driver", lambda: 2)
    said = "training on the processor: the NVIDIA driver has 2 GPU(s), but TensorFlow sees none. "
    assert devices.describe_devices("auto").startswith(f"{said}Its CUDA libraries are not installed, or do not fit: ")
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert devices.describe_devices("auto") == f"{said}CUDA_VISIBLE_DEVICES is '-1', which may hide them"


def test_an_empty_cluster_is_none(monkeypatch):
    """TensorFlow's own reader, which several replicas ask, takes an empty `TF_CONFIG` for broken JSON."""
    monkeypatch.setenv("TF_CONFIG", "")
    devices.strategy("cpu")
    assert not tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().jobs
