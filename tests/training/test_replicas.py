"""Replicas, micro-batches, workers: however the batch is spread, the same is learnt."""

from __future__ import annotations

import json
import textwrap

import pytest

from keras_transformer.training import devices, replicas, workers
from tests.processes import run_python

# TensorFlow takes seconds to start, and to trace a model: the cases share a process, and what was trained alike.
PRELUDE = """
import functools, json, sys, traceback, warnings
import numpy as np
from keras_transformer.training import replicas

replicas.configure("cpu:2")
import keras
import tensorflow as tf
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.batches import Batch, shard
from keras_transformer.training.losses import SmoothedCrossEntropy
from keras_transformer.training.metrics import Perplexity, TokenAccuracy

def batches(seed=0, steps=5):
    draw = np.random.default_rng(seed)
    for _ in range(steps):
        rows, source, target = 12, int(draw.integers(3, 7)), int(draw.integers(3, 7))
        labels = draw.integers(3, 11, (rows, target)).astype("int32")
        for row, length in enumerate(draw.integers(1, target + 1, rows)):
            labels[row, length:] = 0
        source_ids = draw.integers(3, 11, (rows, source)).astype("int32")
        target_ids = np.concatenate([np.full((rows, 1), 2, "int32"), labels[:, :-1]], axis=1)
        real = (labels != 0).astype("float32")
        yield Batch({"source_ids": source_ids, "target_ids": target_ids}, labels, real / real.sum())

def signature_of(weighted):
    ids = tf.TensorSpec((None, None), tf.int32)
    signature = ({"source_ids": ids, "target_ids": ids}, ids, tf.TensorSpec((None, None), tf.float32))
    return signature if weighted else signature[:2]

def spread(strategy, weighted, data=batches):
    count = strategy.num_replicas_in_sync
    signature = signature_of(weighted)
    width = len(signature)
    parts = lambda: (tuple(shard(batch, index, count))[:width] for batch in data() for index in range(count))
    return strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_generator(parts, output_signature=signature)
    )

@functools.cache  # one for all: strategies give the collective operations of a process the same numbers
def strategy_of(num_replicas):
    devices = [f"/cpu:{number}" for number in range(num_replicas)]
    return tf.distribute.MirroredStrategy(devices) if num_replicas > 1 else tf.distribute.get_strategy()

@functools.cache
def trained(
    num_replicas=1, optimizer=None, micro_batches=1, jit_compile=False, dropout=0.0, weighted=True, loss=None,
    data=batches, **options
):
    keras.utils.set_random_seed(5)
    strategy = strategy_of(num_replicas)
    with strategy.scope():
        model = Transformer(11, 1, 2, 8, 12, dropout=dropout, **options)
        model.micro_batches = micro_batches
        model.compile(optimizer() if optimizer else replicas.Adam(1e-3), loss or SmoothedCrossEntropy(0.1),
                      weighted_metrics=[TokenAccuracy(), Perplexity()], jit_compile=jit_compile)
    history = model.fit(spread(strategy, weighted, data), steps_per_epoch=5, verbose=0, shuffle=False).history
    return [np.asarray(v) for v in model.trainable_variables], history

def assert_same(one, other, tolerance):
    (weights, history), (their_weights, their_history) = one, other
    for mine, theirs in zip(weights, their_weights):
        np.testing.assert_allclose(mine, theirs, atol=tolerance, rtol=0)
    for name, value in history.items():
        np.testing.assert_allclose(value, their_history[name], rtol=1e-5, err_msg=name)

def nodes(**options):
    model = Transformer(11, 1, 2, 8, 12, **options)
    model.micro_batches = 2
    model.compile(adam(), SmoothedCrossEntropy(0.1))
    model.build_for_training()
    step = tf.function(lambda *data: model.train_step(data)).get_concrete_function(*signature_of(True))
    graph = step.graph.as_graph_def()
    return [*graph.node, *(node for function in graph.library.function for node in function.node_def)]

sgd = lambda: keras.optimizers.SGD(0.1)
adam = lambda: replicas.Adam(1e-3)
clipped = lambda: replicas.Adam(1e-3, global_clipnorm=0.05)
"""

CASES = {
    "two replicas learn what one learns": """
        assert_same(trained(1, sgd), trained(2, sgd), 1e-6)
        assert_same(trained(1, adam), trained(2, adam), 1e-4)
    """,
    "batches without weights learn the mean over their real tokens": """
        assert_same(trained(1, sgd), trained(1, sgd, weighted=False), 1e-6)
        assert_same(trained(1, sgd), trained(2, sgd, weighted=False), 1e-6)
        assert_same(trained(1, sgd), trained(1, sgd, weighted=False, micro_batches=5), 1e-6)
    """,
    "the ponder cost is the mean over all tokens of the batch": """
        one_shape = list(batches(steps=1)) * 5
        again = functools.partial(trained.__wrapped__, optimizer=sgd, encoder_layers=2, data=lambda: one_shape)
        def costing(cost):
            return {"name": "universal", "ponder_cost": cost}
        once, free = again(stack=costing(0.5)), again(stack=costing(0.0))
        assert max(np.abs(mine - theirs).max() for mine, theirs in zip(once[0], free[0])) > 1e-3
        np.testing.assert_allclose(once[1]["loss"], free[1]["loss"], 0.02, err_msg="that of the labels alone")
        compiled = dict(num_replicas=2, jit_compile=True)
        for spread_out in dict(micro_batches=3), dict(num_replicas=2, micro_batches=2), compiled:
            assert_same(once, again(stack=costing(0.5), **spread_out), 1e-6)
    """,
    "any loss of Keras learns from weighted batches what their weighted sum teaches": """
        expected = trained(1, sgd, loss=SmoothedCrossEntropy(0.0))
        cross_entropy = keras.losses.SparseCategoricalCrossentropy
        assert_same(trained(2, sgd, loss=cross_entropy(from_logits=True, ignore_class=0)), expected, 1e-6)
        of_function = lambda labels, logits: keras.losses.sparse_categorical_crossentropy(labels, logits, True)
        assert_same(trained.__wrapped__(2, sgd, micro_batches=3, loss=[of_function]), expected, 1e-6)
        weights, history = trained(2, sgd, loss=of_function, dtype="mixed_bfloat16")
        np.testing.assert_allclose(history["loss"], expected[1]["loss"], rtol=0.02)
        for refused in {"loss": [of_function] * 2}, {"loss": of_function, "loss_weights": 2.0}:
            try:
                Transformer(11, 1, 2, 8, 12).compile(sgd(), **refused)
            except ValueError as error:
                assert "Received: loss" in str(error)
            else:
                raise AssertionError(refused)
    """,
    "weights that do not sum to 1 are a mean's own, and a sum's as they are": """
        def tripled():
            return (batch._replace(weights=3 * batch.weights) for batch in batches())
        cross_entropy = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        expected = trained(1, sgd, loss=cross_entropy), trained(1, lambda: keras.optimizers.SGD(0.3))
        assert_same(trained(2, sgd, loss=cross_entropy, data=tripled), expected[0], 1e-6)
        for loss in SmoothedCrossEntropy(0.1), [SmoothedCrossEntropy(0.1)]:
            for mine, theirs in zip(trained.__wrapped__(1, sgd, loss=loss, data=tripled)[0], expected[1][0]):
                np.testing.assert_allclose(mine, theirs, atol=1e-6, rtol=0)
    """,
    "validation with a loss of Keras is the mean over all real tokens": """
        losses = []
        for loss in SmoothedCrossEntropy(0.0), keras.losses.SparseCategoricalCrossentropy(from_logits=True):
            keras.utils.set_random_seed(5)
            model = Transformer(11, 1, 2, 8, 12)
            model.compile(adam(), loss)
            ones = [batch._replace(weights=(batch.weights > 0).astype("float32")) for batch in batches()]
            data = tf.data.Dataset.from_generator(lambda: map(tuple, ones), output_signature=signature_of(True))
            losses.append(model.evaluate(data, verbose=0))
        np.testing.assert_allclose(*losses, rtol=1e-6)
    """,
    "in float16 a step that overflows on any replica is taken by none": """
        def two_overflow():
            for step, batch in enumerate(batches()):
                weights = batch.weights.copy()
                if step < 2:
                    weights[step::2] *= 1e30  # every second row: in each of the two steps those of another replica
                yield batch._replace(weights=weights)
        made = []
        weights, history = trained(2, lambda: made.append(adam()) or made[0], dtype="mixed_float16", data=two_overflow)
        assert all(np.isfinite(weight).all() for weight in weights)
        assert np.asarray(made[0].iterations) == 3
    """,
    "nothing of a training step is a scatter": """
        for dtype in "float32", "mixed_bfloat16":
            model = Transformer(11, 1, 2, 8, 12, positions="learned", dtype=dtype)
            model.compile(adam(), SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy(), Perplexity()])
            model.build_for_training()
            step = tf.function(lambda *data: model.train_step(data)).get_concrete_function(*signature_of(True))
            graph = step.graph.as_graph_def()
            nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
            operators = {node.op for node in nodes}
            assert "ResourceApplyAdam" in operators
            assert not [name for name in operators if "scatter" in name.lower()], operators
    """,
    "the load-balancing loss is of the shares and probabilities of the batch": """
        again = functools.partial(trained.__wrapped__, optimizer=sgd)
        def balancing(alpha):
            return {"name": "experts", "num_experts": 4, "alpha": alpha}
        once, free = again(feed_forward=balancing(0.5)), again(feed_forward=balancing(0.0))
        assert max(np.abs(mine - theirs).max() for mine, theirs in zip(once[0], free[0])) > 1e-3
        for spread_out in dict(micro_batches=3), dict(num_replicas=2), dict(num_replicas=2, micro_batches=2):
            assert_same(once, again(feed_forward=balancing(0.5), **spread_out), 1e-6)
        keras.utils.set_random_seed(5)
        model = Transformer(11, 1, 2, 8, 12, dropout=0.0, feed_forward=balancing(0.5))
        model.compile(sgd(), SmoothedCrossEntropy(0.1))
        batch = next(batches())
        assert model.evaluate(*batch[:2], batch_size=12, verbose=0) == model.train_on_batch(*batch), "of labels alone"
        assert not model.losses
    """,
    "a model without auxiliary losses counts nothing": """
        loops = [sum(node.op in ("While", "StatelessWhile") for node in nodes(stack=stack))
                 for stack in ("layers", {"name": "universal", "adaptive": False}, "universal")]
        assert loops == [1, 1, 2], loops
    """,
    "metrics look at the whole of the first step after a reset": """
        histories = []
        for micro_batches in 1, 3:
            keras.utils.set_random_seed(5)
            model = Transformer(11, 1, 2, 8, 12, dropout=0.0)
            model.micro_batches, model.metrics_every = micro_batches, 10
            model.compile(keras.optimizers.SGD(0.0), SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy()])
            for _ in range(2):
                history = model.fit(spread(tf.distribute.get_strategy(), True), steps_per_epoch=2, verbose=0).history
                histories.append(history["accuracy"])
        np.testing.assert_allclose(histories, [histories[0]] * 4, rtol=1e-6)
    """,
    "k micro-batches are one batch": """
        assert_same(trained(1, sgd), trained(1, sgd, micro_batches=3), 1e-6)
        assert_same(trained(1, adam), trained(2, adam, micro_batches=2), 1e-4)
        try:
            trained(1, sgd, micro_batches=3, weighted=False, loss=keras.losses.SparseCategoricalCrossentropy())
        except ValueError as error:
            assert "give weights, or a loss whose reduction is 'sum'. Received: micro_batches=3" in str(error)
        else:
            raise AssertionError("the mean of the parts' means is not the mean")
    """,
    "Adam in one kernel is that of Keras, weight decay too": """
        kept = dict(beta_1=0.9, beta_2=0.98, epsilon=1e-9, weight_decay=0.1)
        schedule = keras.optimizers.schedules.ExponentialDecay(0.01, 2, 0.5)
        theirs = trained(1, lambda: keras.optimizers.Adam(schedule, **kept))
        for replicas_ in 1, 2:
            assert_same(trained(replicas_, lambda: replicas.Adam(schedule, **kept)), theirs, 1e-5)
    """,
    "the whole batch's gradient is clipped": """
        once = trained(1, lambda: keras.optimizers.SGD(1.0, global_clipnorm=0.05))
        assert_same(trained(1, clipped), trained(2, clipped), 1e-4)
        keras.utils.set_random_seed(5)
        start = Transformer(11, 1, 2, 8, 12, dropout=0.0).trainable_variables
        moved = sum(np.square(a - np.asarray(b)).sum() for a, b in zip(once[0], start, strict=True)) ** 0.5
        assert moved <= 5 * 0.05 + 1e-6
    """,
    "compiled by XLA it learns the same, on two replicas and with dropout too": """
        one_shape = list(batches(steps=1)) * 5
        data = lambda: one_shape
        assert_same(trained(1, sgd, data=data), trained(2, sgd, jit_compile=True, data=data), 1e-6)
        weights, history = trained(2, adam, jit_compile=True, dropout=0.3, data=data)
        assert np.isfinite(history["loss"]).all()
    """,
    "a compiled model is saved and loaded as it was": """
        import tempfile
        model = Transformer(11, 1, 2, 8, 12, dropout=0.0)
        model.compile(adam(), SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy()])
        batch = next(batches())
        with tempfile.TemporaryDirectory() as folder, warnings.catch_warnings():
            warnings.simplefilter("error", UserWarning)
            model.train_on_batch(*batch)
            model.save(folder + "/model.keras")
            loaded = keras.saving.load_model(folder + "/model.keras")
        one, other = (each.train_on_batch(*batch, return_dict=True) for each in (model, loaded))
        assert one == other
        assert loaded.loss.label_smoothing == 0.1
    """,
    "dropout on two replicas repeats exactly": """
        again = trained.__wrapped__
        one, other = again(2, adam, dropout=0.3), again(2, adam, dropout=0.3)
        assert_same(one, other, 0)
        assert one[1] == other[1]
    """,
}


# Each case has its own names; what one raises is told of that case alone.
EPILOGUE = """
def outcome_of(code):
    try:
        exec(code, {{**globals()}})
    except Exception:
        return traceback.format_exc()
    return ""

print(json.dumps({{case: outcome_of(code) for case, code in {cases!r}.items()}}))
"""

LONG = {
    "the ponder cost is the mean over all tokens of the batch",
    "the load-balancing loss is of the shares and probabilities of the batch",
    "compiled by XLA it learns the same, on two replicas and with dropout too",
}


@pytest.fixture(scope="module")
def outcomes(request, tmp_path_factory) -> dict[str, str]:
    """What went wrong in each case that is tested; nothing, where it holds."""
    folder = tmp_path_factory.mktemp("cases")
    tested = {item.callspec.params["case"] for item in request.session.items if item.name.startswith("test_on_one")}
    cases = {case: textwrap.dedent(code) for case, code in CASES.items() if case in tested}
    return json.loads(run_python(folder, PRELUDE + EPILOGUE.format(cases=cases), "tensorflow", timeout=1800))


@pytest.mark.parametrize("case", [pytest.param(case, marks=[pytest.mark.long] * (case in LONG)) for case in CASES])
def test_on_one_machine(case, outcomes):
    assert not outcomes[case], outcomes[case]


@pytest.mark.parametrize("text", ["", "gpu", "cpu:0", "0,0", "-1", "cpu:2,3", "0,"])
def test_devices_that_are_none(text):
    with pytest.raises(ValueError, match="`devices` must be"):
        devices.parse_devices(text)


def test_devices():
    assert devices.parse_devices("auto") == ("auto", [])
    assert devices.parse_devices("cpu") == ("cpu", [0])
    assert devices.parse_devices("cpu:3") == ("cpu", [0, 1, 2])
    assert devices.parse_devices("2,0") == ("gpu", [2, 0])


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
    assert devices.describe_devices("auto").startswith(
        f"{said}Its CUDA libraries are not installed, or do not fit: pip"
    )
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "-1")
    assert devices.describe_devices("auto") == f"{said}CUDA_VISIBLE_DEVICES is '-1', which may hide them"
    assert devices.describe_devices("cpu") == "training on the processor"


def test_an_empty_cluster_is_none(monkeypatch):
    """TensorFlow's own reader, which several replicas ask, takes an empty `TF_CONFIG` for broken JSON."""
    import tensorflow as tf

    monkeypatch.setenv("TF_CONFIG", "")
    replicas.strategy("cpu")
    assert not tf.distribute.cluster_resolver.TFConfigClusterResolver().cluster_spec().jobs


def test_a_broken_cluster_is_named(monkeypatch):
    monkeypatch.setenv("TF_CONFIG", "{")
    with pytest.raises(ValueError, match="`TF_CONFIG` must name workers alone"):
        workers.num_workers()
