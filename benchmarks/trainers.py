"""Starts the trainers that are compared: our `model.fit`, PyTorch's `nn.Transformer`, KerasHub's blocks, and products.

All start from the same weights and train on one batch without padding, so that masks make no difference. All have
dropout in the same places, and the loss and optimiser of their own library. Each `start_*` function runs in a process
of its own and returns a function that trains for some steps. The first call of that function trains nothing. It returns
the loss of the batch, without dropout.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from benchmarks.contest import in_process
from benchmarks.devices import configure_keras, configure_torch
from benchmarks.products import multiply_on_jax, multiply_on_tensorflow, products_of
from benchmarks.weights import Weights, arrays_of

if TYPE_CHECKING:
    import keras

    from keras_transformer.models.transformer import Transformer

Train = Callable[[], Any]

LABEL_SMOOTHING = 0.1
DROPOUT = 0.1
ADAM = {"learning_rate": 1e-4, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}


class Cell(NamedTuple):
    """Holds the settings of one row of the table.

    Args:
        sizes: arguments of `Transformer`.
        batch_size, length: of the batch, B sentences of T tokens on both sides.
        precision: float32 or bfloat16 (mixed: weights, softmax, norms and loss in float32).
        num_threads: of the processor, for TensorFlow and PyTorch.
        num_steps: in one turn.
        device: cpu or cuda.
    """

    sizes: dict[str, Any]
    batch_size: int
    length: int
    precision: str
    num_threads: int
    num_steps: int
    device: str = "cpu"


def batch_of(cell: Cell) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Draws source ids, target ids and labels, each (B, T)."""
    shape = (3, cell.batch_size, cell.length)
    ids = np.random.default_rng(1).integers(4, cell.sizes["vocabulary_size"], shape).astype("int32")
    source_ids, target_ids, labels = ids
    return source_ids, target_ids, labels


def after_the_loss(loss: Callable[[], float], train: Callable[[], Any]) -> Train:
    """Returns a function whose first call returns the loss; all later calls train."""
    calls: Iterator[Callable[[], Any]] = iter([loss])
    return lambda: next(calls, train)()


def our_model(cell: Cell) -> Transformer:
    """Makes the `Transformer` from whose weights all start."""
    import keras

    from keras_transformer.models.transformer import Transformer

    keras.utils.set_random_seed(1)
    dtype = "mixed_bfloat16" if cell.precision == "bfloat16" else "float32"
    return Transformer(**cell.sizes, dropout=DROPOUT, dtype=dtype)


def our_weights(cell: Cell) -> Weights:
    """Returns the weights of our model in float32."""
    return arrays_of(our_model(cell._replace(precision="float32")))


def start_ours(cell: Cell, compiled: bool = False) -> Train:
    """Starts `Transformer.fit`, on TensorFlow with XLA or without."""
    configure_keras(cell.device, cell.num_threads)
    from keras_transformer.losses import SmoothedCrossEntropy
    from keras_transformer.optimizers import Adam

    loss = SmoothedCrossEntropy(LABEL_SMOOTHING)
    return fit(our_model(cell), cell, Adam(**ADAM), loss, **({"jit_compile": True} if compiled else {}))


def start_without_kept_memory(cell: Cell) -> Train:
    """Starts ours where TensorFlow gives the memory of large tensors back to the system; see `machine.keep_memory`."""
    os.environ["TF_CPU_ALLOCATOR_USE_BFC"] = "false"
    return start_ours(cell)


def fit(model: keras.Model, cell: Cell, optimizer: Any, loss: Any, **ways: Any) -> Train:
    """Compiles a Keras model, and trains it by `fit` on the one batch."""
    source_ids, target_ids, labels = batch_of(cell)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    model.compile(optimizer=optimizer, loss=loss, **ways)
    return after_the_loss(
        lambda: float(model.evaluate(inputs, labels, batch_size=len(labels), verbose=0)),
        lambda: model.fit(endless((inputs, labels)), steps_per_epoch=cell.num_steps, verbose=0, shuffle=False),
    )


def endless(batch: tuple) -> Any:
    """Repeats the batch without end, in the form that Keras's backend takes fastest."""
    import keras

    if keras.config.backend() != "tensorflow":
        return (batch for _ in repeat(None))
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False  # after a turn, its tuner may sleep for as long as the turn took
    return tf.data.Dataset.from_tensors(batch).repeat().with_options(options)


def start_keras_hub(cell: Cell) -> Train:
    """Starts KerasHub's `TransformerEncoder` and `TransformerDecoder`, on the same backend as ours.

    Loss and optimiser are Keras's, because every side uses those of its own library. Keras's loss with label smoothing
    takes one-hot labels.
    """
    configure_keras(cell.device, cell.num_threads)
    import keras

    from benchmarks.keras_hub_model import keras_hub_transformer

    weights = our_weights(cell)
    if cell.precision == "bfloat16":
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    model = keras_hub_transformer(cell.sizes, cell.length, weights, DROPOUT)
    return fit(model, cell, keras.optimizers.Adam(**ADAM), keras_loss)


def keras_loss(labels: Any, logits: Any) -> Any:
    """Computes Keras's label-smoothed cross-entropy, which takes one-hot labels: (..., V) → (...)."""
    import keras

    one_hot = keras.ops.one_hot(labels, logits.shape[-1])
    return keras.losses.categorical_crossentropy(one_hot, logits, from_logits=True, label_smoothing=LABEL_SMOOTHING)


def start_torch(cell: Cell, compiled: bool) -> Train:
    """Starts PyTorch's `nn.Transformer`, eager or compiled."""
    configure_torch(cell.device, cell.num_threads)
    import torch

    from benchmarks.torch_model import torch_loss, torch_transformer

    weights = {name: torch.from_numpy(array.copy()) for name, array in in_process(our_weights, cell).items()}
    transformer = torch_transformer(cell.sizes, weights, DROPOUT).to(cell.device)
    table = torch.nn.Parameter(weights["embeddings"].to(cell.device))
    positions = weights["positions"][: cell.length].to(cell.device)
    loss_of = torch_loss(transformer, table, positions, DROPOUT, LABEL_SMOOTHING, cell.precision == "bfloat16")
    betas = ADAM["beta_1"], ADAM["beta_2"]
    parameters = [table, *transformer.parameters()]
    optimizer = torch.optim.Adam(parameters, ADAM["learning_rate"], betas, ADAM["epsilon"], fused=True)
    batch = [torch.from_numpy(array).long().to(cell.device) for array in batch_of(cell)]

    def loss() -> float:
        transformer.eval()
        with torch.no_grad():
            value = float(loss_of(*batch))
        transformer.train()
        return value

    def step() -> Any:
        optimizer.zero_grad(set_to_none=True)
        value = loss_of(*batch)
        value.backward()
        optimizer.step()
        return value

    return after_the_loss(loss, waiting_for(torch.compile(step) if compiled else step, cell.num_steps))


def waiting_for(step: Callable[[], Any], num_steps: int) -> Callable[[], None]:
    """Returns a function that runs so many steps of PyTorch, and waits for a GPU to finish them."""

    def train() -> None:
        for _ in repeat(None, num_steps):
            value = step()
        float(value.detach())

    return train


def start_products(cell: Cell) -> Train:
    """Starts the matrix products of a step alone, on Keras's backend."""
    backend = configure_keras(cell.device, cell.num_threads)
    multiply = multiply_on_jax if backend == "jax" else multiply_on_tensorflow
    step = multiply(products_of(cell.sizes, cell.batch_size, cell.length), cell.precision)

    def train() -> None:
        for _ in repeat(None, cell.num_steps):
            float(step())

    return after_the_loss(lambda: math.nan, train)
