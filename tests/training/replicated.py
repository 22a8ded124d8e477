"""`python -m tests.training.replicated CASE…`: what training with two replicas on the processor must fulfil.

`test_replicas.py` runs it. Replicas must be made before TensorFlow's first operation, so they have a process of their
own. A case is a function of this module; it takes no arguments and raises if what its first line says does not hold.
"""

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from keras_transformer import optimizers
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity, TokenAccuracy
from keras_transformer.models import LanguageModel
from keras_transformer.text.feeding import Batch, shard
from keras_transformer.training import devices
from keras_transformer.training.checkpoints import unchanged

Trained = tuple[list[np.ndarray], dict[str, list[float]]]  # the weights, and what `fit` told
STEPS = 2
mean_loss = functools.partial(keras.losses.SparseCategoricalCrossentropy, from_logits=True)


def batches(rows: int = 12, length: int = 0) -> Iterator[Batch]:
    """Batches of rows of unlike lengths; of all batches the same length if it is given."""
    draw = np.random.default_rng(0)
    for _ in range(STEPS):
        most = length or int(draw.integers(4, 7))
        labels = draw.integers(3, 11, (rows, most)).astype("int32")
        for row, real in enumerate(draw.integers(1, most + 1, rows)):
            labels[row, real:] = 0
        ids = np.concatenate([np.full((rows, 1), 2, "int32"), labels[:, :-1]], axis=1)
        is_real = (labels != 0).astype("float32")
        yield Batch({"ids": ids}, labels, is_real)


of_one_shape = functools.partial(batches, length=5)


def adam() -> Any:
    return optimizers.Adam(1e-3)


def sgd(rate: float = 0.1) -> Any:
    return keras.optimizers.SGD(rate)


@functools.cache  # one for all: strategies give the collective operations of a process the same numbers
def strategy_of(num_replicas: int) -> Any:
    names = [f"/cpu:{number}" for number in range(num_replicas)]
    return tf.distribute.MirroredStrategy(names) if num_replicas > 1 else tf.distribute.get_strategy()


def model_of(**options: Any) -> LanguageModel:
    keras.utils.set_random_seed(5)
    sizes: dict[str, Any] = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12}
    return LanguageModel(11, 8, **{**sizes, "dropout": 0.0, **options})


def spread(strategy: Any, data: Callable[[], Iterator[Batch]], weighted: bool) -> Any:
    """The batches, each cut into as many parts as there are replicas."""
    count, ids = strategy.num_replicas_in_sync, tf.TensorSpec((None, None), tf.int32)
    signature = ({"ids": ids}, ids, tf.TensorSpec((None, None), tf.float32))[: 3 if weighted else 2]

    def parts() -> Iterator[tuple]:
        return (tuple(shard(batch, one, count))[: len(signature)] for batch in data() for one in range(count))

    return strategy.distribute_datasets_from_function(
        lambda _: tf.data.Dataset.from_generator(parts, output_signature=signature)
    )


def train(
    num_replicas: int = 1,
    optimizer: Callable[[], Any] = sgd,
    loss: Any = None,
    micro_batches: int = 1,
    weighted: bool = True,
    with_graph: bool = False,
    jit_compile: bool = False,
    data: Callable[[], Iterator[Batch]] = batches,
    regularizer: Any = None,
    **options: Any,
) -> Trained:
    """A new model after two steps."""
    strategy = strategy_of(num_replicas)
    with strategy.scope():
        model = model_of(**options)
        model.micro_batches = micro_batches
        for variable in model.trainable_variables:
            variable.regularizer = regularizer
        metrics = [TokenAccuracy(), Perplexity()]
        loss = loss or SmoothedCrossEntropy(0.1)
        model.compile(optimizer(), loss, weighted_metrics=metrics, jit_compile=jit_compile)
        model.run_eagerly = not (with_graph or jit_compile)  # a graph takes longer to trace than two steps
    found = model.fit(spread(strategy, data, weighted), steps_per_epoch=STEPS, verbose=0, shuffle=False)
    told = model.evaluate(spread(strategy, data, weighted), steps=STEPS, verbose=0, return_dict=True)
    history = {**found.history, **{f"evaluated {name}": [value] for name, value in told.items()}}
    return [np.asarray(variable) for variable in model.trainable_variables], history


def assert_same(found: Trained, expected: Trained, tolerance: float = 1e-6) -> None:
    for mine, theirs in zip(found[0], expected[0], strict=True):
        np.testing.assert_allclose(mine, theirs, atol=tolerance, rtol=0)
    for name, value in found[1].items():
        np.testing.assert_allclose(value, expected[1][name], rtol=1e-5, err_msg=name)


def two_learn_what_one_learns() -> None:
    """With micro-batches on each, Adam, and a gradient of the whole batch that is clipped."""
    clipped = functools.partial(optimizers.Adam, 1e-3, global_clipnorm=0.05)
    assert_same(train(2, clipped, micro_batches=2, with_graph=True), train(1, clipped), 1e-4)


def without_weights_the_mean_over_real_tokens_is_learned() -> None:
    """By micro-batches of two replicas, with our loss and with Keras's."""
    assert_same(train(2, micro_batches=3, weighted=False), train())
    of_keras = train(2, loss=mean_loss(ignore_class=0), micro_batches=3, weighted=False)
    assert_same(of_keras, train(loss=SmoothedCrossEntropy(0.0)))


def what_is_added_to_the_loss_counts_once() -> None:
    """On two replicas with micro-batches as on one."""
    once = train(regularizer=keras.regularizers.L2(0.01))
    assert_same(train(2, micro_batches=3, regularizer=keras.regularizers.L2(0.01)), once)
    assert np.all(np.array(once[1]["loss"]) > 1.02 * np.array(train()[1]["loss"]))


def in_float16_a_step_that_overflows_on_any_replica_is_taken_by_none() -> None:
    """In the first step the rows of the other replica overflow."""
    optimizers: list[Any] = []

    def one_overflows() -> Iterator[Batch]:
        for step, batch in enumerate(batches()):
            rows = np.arange(len(batch.weights)) % 2 == (1 if step == 0 else 2)
            yield batch._replace(weights=np.where(rows[:, None], 1e30, 0.01).astype("float32") * batch.weights)

    def remembered() -> Any:
        optimizers.append(adam())
        return optimizers[-1]

    loss = SmoothedCrossEntropy(0.1, reduction="sum")
    weights, _ = train(2, remembered, loss, dtype="mixed_float16", data=one_overflows)
    assert all(np.isfinite(weight).all() for weight in weights)
    assert np.asarray(optimizers[0].iterations) == STEPS - 1


def timed_steps_leave_nothing_and_are_repeated_exactly() -> None:
    """What two replicas changed is put back on both: weights, the seeds of dropout, optimizer and metrics."""
    strategy = strategy_of(2)
    with strategy.scope():
        model = model_of(dropout=0.3)
        model.compile(adam(), SmoothedCrossEntropy(0.1), weighted_metrics=[TokenAccuracy()], run_eagerly=True)
        model.build_for_training()
    everything = [*model.variables, *model.optimizer.variables, *model.metrics_variables]

    def values() -> list[np.ndarray]:
        return [np.asarray(value) for each in everything for value in strategy.experimental_local_results(each.value)]

    def fit() -> list[np.ndarray]:
        model.fit(spread(strategy, batches, True), steps_per_epoch=STEPS, verbose=0, shuffle=False)
        return values()

    before = values()
    with unchanged(model):
        after = fit()
    assert sum((one != new).any() for one, new in zip(before, after, strict=True)) > 20
    for one, other in zip([*before, *after], [*values(), *fit()], strict=True):
        np.testing.assert_array_equal(one, other)


def auxiliary_losses_are_those_of_the_whole_batch() -> None:
    """They change what is learned, not the loss that is told, and not with how the batch is spread; with XLA too."""
    again: Any = functools.partial(train, data=of_one_shape, num_layers=2)
    spreads: list[dict[str, Any]] = [{"micro_batches": 3}, {"num_replicas": 2, "micro_batches": 2}]
    for slot, name, cost in (("stack", "universal", "ponder_cost"), ("feed_forward", "experts", "alpha")):
        once, free = (again(**{slot: {"name": name, cost: value}}) for value in (0.5, 0.0))
        assert max(np.abs(mine - theirs).max() for mine, theirs in zip(once[0], free[0], strict=True)) > 1e-4
        np.testing.assert_allclose(once[1]["loss"], free[1]["loss"], 0.02, err_msg="that of the labels alone")
        for options in [*spreads, *([{"num_replicas": 2, "jit_compile": True}] if slot == "stack" else [])]:
            assert_same(again(**{slot: {"name": name, cost: 0.5}}, **options), once)


def compiled_by_xla_it_learns_the_same() -> None:
    """And with dropout what is finite."""
    assert_same(train(2, jit_compile=True, data=of_one_shape), train(data=of_one_shape))
    _, history = train(2, adam, jit_compile=True, dropout=0.3, data=of_one_shape)
    assert np.isfinite(history["loss"]).all()


QUICK = [
    two_learn_what_one_learns,
    without_weights_the_mean_over_real_tokens_is_learned,
    what_is_added_to_the_loss_counts_once,
    in_float16_a_step_that_overflows_on_any_replica_is_taken_by_none,
    timed_steps_leave_nothing_and_are_repeated_exactly,
]
LONG = [auxiliary_losses_are_those_of_the_whole_batch, compiled_by_xla_it_learns_the_same]


def main(names: list[str]) -> None:
    """Runs cases; the first that fails ends it, with a traceback that names it."""
    devices.configure("cpu:2", threads=1)
    threads = tf.config.threading
    assert (threads.get_intra_op_parallelism_threads(), threads.get_inter_op_parallelism_threads()) == (1, 1)
    for name in names:
        globals()[name]()


if __name__ == "__main__":
    main(sys.argv[1:])
