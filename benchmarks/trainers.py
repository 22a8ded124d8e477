"""Training side by side: our `model.fit`, PyTorch's `nn.Transformer`, KerasHub's blocks, and the matrix products alone.

All start from the same weights, and have dropout in the same places, the same loss and the same optimiser, each as its
library has them; the batch is one without padding, so that no one's masks matter. Each function below is for a process
of its own; it returns what trains for some steps. The first call trains nothing, and returns the loss of the batch
without dropout.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from itertools import repeat
from typing import Any, NamedTuple

import numpy as np

from benchmarks.contest import in_process
from benchmarks.devices import settle_keras, settle_torch

Train = Callable[[], Any]

LABEL_SMOOTHING = 0.1
DROPOUT = 0.1
ADAM = {"learning_rate": 1e-4, "beta_1": 0.9, "beta_2": 0.98, "epsilon": 1e-9}
EPSILON = 1e-6  # of the norms


class Cell(NamedTuple):
    """One way to train.

    Args:
        sizes: arguments of `Transformer`.
        batch_size, length: of the batch, B sentences of T tokens on both sides.
        precision: float32 or bfloat16 (mixed: weights, softmax, norms and loss in float32).
        num_threads: of the processor, for TensorFlow and PyTorch.
        num_steps: in one turn.
        device: cpu or cuda.
    """

    sizes: dict[str, int]
    batch_size: int
    length: int
    precision: str
    num_threads: int
    num_steps: int
    device: str = "cpu"


def batch_of(cell: Cell) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Source ids, target ids and labels (B, T) at random."""
    shape = (3, cell.batch_size, cell.length)
    return tuple(np.random.default_rng(1).integers(4, cell.sizes["vocabulary_size"], shape).astype("int32"))  # type: ignore[return-value]


def after_the_loss(loss: Callable[[], float], train: Callable[[], None]) -> Train:
    """The first call says the loss, the others train."""
    calls: Iterator[Callable[[], Any]] = iter([loss])
    return lambda: next(calls, train)()


def our_model(cell: Cell) -> Any:
    """The `Transformer` from whose weights all start."""
    import keras

    from keras_transformer.models.transformer import Transformer

    keras.utils.set_random_seed(1)
    dtype = "mixed_bfloat16" if cell.precision == "bfloat16" else "float32"
    return Transformer(**cell.sizes, dropout=DROPOUT, dtype=dtype)


def start_ours(cell: Cell) -> Train:
    """`Transformer.fit`."""
    settle_keras(cell.device, cell.num_threads)
    from keras_transformer.training.losses import SmoothedCrossEntropy
    from keras_transformer.training.optimizers import Adam

    return fit(our_model(cell), cell, Adam(**ADAM), SmoothedCrossEntropy(LABEL_SMOOTHING))


def fit(model: Any, cell: Cell, optimizer: Any, loss: Any) -> Train:
    """Compiles a Keras model and has it fit the batch again and again."""
    source_ids, target_ids, labels = batch_of(cell)
    inputs = {"source_ids": source_ids, "target_ids": target_ids}
    model.compile(optimizer=optimizer, loss=loss)
    return after_the_loss(
        lambda: float(model.evaluate(inputs, labels, batch_size=len(labels), verbose=0)),
        lambda: model.fit(endless((inputs, labels)), steps_per_epoch=cell.num_steps, verbose=0, shuffle=False),
    )


def endless(batch: tuple) -> Any:
    """The batch again and again, as Keras's backend takes it fastest."""
    import keras

    if keras.config.backend() != "tensorflow":
        return (batch for _ in repeat(None))
    import tensorflow as tf

    options = tf.data.Options()
    options.autotune.enabled = False  # at the end of a turn its tuner may sleep on for as long as the turn took
    return tf.data.Dataset.from_tensors(batch).repeat().with_options(options)


def start_keras_hub(cell: Cell) -> Train:
    """KerasHub's `TransformerEncoder` and `TransformerDecoder`, on the same backend as ours.

    Loss and optimiser are Keras's, as the others have those of their own library: the loss with label smoothing takes
    one-hot labels.
    """
    settle_keras(cell.device, cell.num_threads)
    import keras
    import keras_hub
    from keras import layers

    weights = our_weights(cell)
    if cell.precision == "bfloat16":
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    vocabulary_size, hidden_dim = weights["embeddings"].shape
    num_heads, num_layers = cell.sizes["num_heads"], cell.sizes["num_layers"]
    how = {"intermediate_dim": cell.sizes["intermediate_dim"], "num_heads": num_heads, "dropout": DROPOUT,
           "layer_norm_epsilon": EPSILON}  # fmt: skip
    embedding = keras_hub.layers.ReversibleEmbedding(vocabulary_size, hidden_dim)
    positions = weights["positions"][None, : cell.length]

    def embed(ids: Any) -> Any:
        return layers.Dropout(DROPOUT)(embedding(ids) * math.sqrt(hidden_dim) + positions)

    source, target = (keras.Input((cell.length,), dtype="int32", name=f"{side}_ids") for side in ("source", "target"))
    memory, x = embed(source), embed(target)
    encoder = [keras_hub.layers.TransformerEncoder(**how) for _ in range(num_layers)]
    decoder = [keras_hub.layers.TransformerDecoder(**how) for _ in range(num_layers)]
    for block in encoder:
        memory = block(memory)
    for block in decoder:
        x = block(x, memory)
    model = keras.Model({"source_ids": source, "target_ids": target}, embedding(x, reverse=True))
    embedding.embeddings.assign(weights["embeddings"])
    for name, blocks in (("encoder", encoder), ("decoder", decoder)):
        for number, block in enumerate(blocks):
            attentions = {"self": (block._self_attention_layer, block._self_attention_layer_norm)}
            if name == "decoder":
                attentions["cross"] = block._cross_attention_layer, block._cross_attention_layer_norm
            for kind, (attention, norm) in attentions.items():
                attention._dropout_layer.rate = attention._dropout = 0.0  # ours has none on the scores
                for part in ("query", "key", "value", "output"):
                    dense = getattr(attention, f"_{part}_dense")
                    dense.kernel.assign(weights[f"{name}/{number}/{kind}/{part}"].reshape(dense.kernel.shape))
                assign_norm(norm, weights, f"{name}/{number}/{kind}_attention")
            for part, dense in (
                ("in", block._feedforward_intermediate_dense),
                ("out", block._feedforward_output_dense),
            ):
                dense.kernel.assign(weights[f"{name}/{number}/kernel_{part}"])
                dense.bias.assign(weights[f"{name}/{number}/bias_{part}"])
            assign_norm(block._feedforward_layer_norm, weights, f"{name}/{number}/feed_forward")
    return fit(model, cell, keras.optimizers.Adam(**ADAM), keras_loss)


def keras_loss(labels: Any, logits: Any) -> Any:
    """Keras's label-smoothed cross-entropy, which takes one-hot labels: (..., V) → (...)."""
    import keras

    one_hot = keras.ops.one_hot(labels, logits.shape[-1])
    return keras.losses.categorical_crossentropy(one_hot, logits, from_logits=True, label_smoothing=LABEL_SMOOTHING)


def assign_norm(norm: Any, weights: dict[str, np.ndarray], name: str) -> None:
    """Gives a Keras layer normalisation its weights."""
    norm.gamma.assign(weights[f"{name}/gamma"])
    norm.beta.assign(weights[f"{name}/beta"])


def start_torch(cell: Cell, compiled: bool) -> Train:
    """PyTorch's `nn.Transformer`, eager or compiled."""
    settle_torch(cell.device, cell.num_threads)
    import torch
    from torch.nn.functional import cross_entropy, dropout

    weights = {name: torch.from_numpy(array.copy()) for name, array in in_process(our_weights, cell).items()}
    transformer = torch_transformer(cell, weights).to(cell.device)
    table = torch.nn.Parameter(weights["embeddings"].to(cell.device))
    positions = weights["positions"][: cell.length].to(cell.device)
    mask = torch.nn.Transformer.generate_square_subsequent_mask(cell.length, device=cell.device)
    scale = math.sqrt(table.shape[1])

    def loss_of(source_ids: Any, target_ids: Any, labels: Any) -> Any:
        def embed(ids: Any) -> Any:
            return dropout(torch.nn.functional.embedding(ids, table) * scale + positions, DROPOUT, transformer.training)

        with torch.autocast(cell.device, torch.bfloat16, enabled=cell.precision == "bfloat16"):
            states = transformer(embed(source_ids), embed(target_ids), tgt_mask=mask, tgt_is_causal=True)
            logits = (states @ table.T).float().flatten(0, 1)
        return cross_entropy(logits, labels.flatten(), label_smoothing=LABEL_SMOOTHING)

    parameters = [table, *transformer.parameters()]
    betas = ADAM["beta_1"], ADAM["beta_2"]
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

    one_step = torch.compile(step) if compiled else step

    def train() -> None:
        for _ in repeat(None, cell.num_steps):
            value = one_step()
        float(value.detach())  # a GPU works behind our back: wait for it

    return after_the_loss(loss, train)


def torch_transformer(cell: Cell, weights: dict[str, Any]) -> Any:
    """`nn.Transformer` with these weights, and dropout on the sub-layers' outputs alone."""
    import torch

    sizes = cell.sizes
    model = torch.nn.Transformer(
        sizes["hidden_dim"], sizes["num_heads"], sizes["num_layers"], sizes["num_layers"], sizes["intermediate_dim"],
        DROPOUT, layer_norm_eps=EPSILON, batch_first=True,
    )  # fmt: skip
    model.encoder.norm = model.decoder.norm = None  # it would close even a stack of post-norm blocks
    state = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    for name in ("encoder", "decoder"):
        for number, block in enumerate(getattr(model, name).layers):
            ours, theirs = f"{name}/{number}", f"{name}.layers.{number}"
            norms = {"self_attention": "norm1", "cross_attention": "norm2", "feed_forward": "norm3"}
            attentions = {"self": "self_attn", "cross": "multihead_attn"}
            if name == "encoder":
                norms, attentions = {"self_attention": "norm1", "feed_forward": "norm2"}, {"self": "self_attn"}
            for kind, place in attentions.items():
                kernels = [weights[f"{ours}/{kind}/{part}"].T for part in ("query", "key", "value")]
                state[f"{theirs}.{place}.in_proj_weight"] = torch.cat(kernels)
                state[f"{theirs}.{place}.out_proj.weight"] = weights[f"{ours}/{kind}/output"].T
                getattr(block, place).dropout = 0.0
            for kind, place in norms.items():
                state[f"{theirs}.{place}.weight"] = weights[f"{ours}/{kind}/gamma"]
                state[f"{theirs}.{place}.bias"] = weights[f"{ours}/{kind}/beta"]
            for part, place in (("in", "linear1"), ("out", "linear2")):
                state[f"{theirs}.{place}.weight"] = weights[f"{ours}/kernel_{part}"].T
                state[f"{theirs}.{place}.bias"] = weights[f"{ours}/bias_{part}"]
            block.dropout = torch.nn.Identity()  # that within the feed-forward layer
    model.load_state_dict(state)
    return model


def our_weights(cell: Cell) -> dict[str, np.ndarray]:
    """Of our model, by plain names, in float32."""
    from benchmarks.decoders import arrays_of

    return arrays_of(our_model(cell._replace(precision="float32")))


def start_products(cell: Cell) -> Train:
    """The matrix products of a step alone, forward and backward, by Keras's backend: what no one can do without."""
    backend = settle_keras(cell.device, cell.num_threads)
    step = (products_on_jax if backend == "jax" else products_on_tensorflow)(cell)

    def train() -> None:
        for _ in repeat(None, cell.num_steps):
            float(step())

    return after_the_loss(lambda: math.nan, train)


def products_on_tensorflow(cell: Cell) -> Callable[[], Any]:
    """All products in one graph."""
    import tensorflow as tf

    dtype = tf.bfloat16 if cell.precision == "bfloat16" else tf.float32
    operands = [[tf.random.normal(shape, dtype=dtype) for shape in shapes] for shapes in products_of(cell)]

    @tf.function
    def step() -> Any:
        corners = []
        for a, b in operands:
            product = tf.matmul(a, b)
            for result in (product, tf.matmul(product, b, transpose_b=True), tf.matmul(a, product, transpose_a=True)):
                corners.append(tf.reshape(result, [-1])[0])  # lest it be left out
        return tf.add_n(corners)

    return step


def products_on_jax(cell: Cell) -> Callable[[], Any]:
    """A program for each product: XLA works out whole what a program returns, and the next one waits for its sum."""
    import jax
    import jax.numpy as jnp

    draw = np.random.default_rng(1)
    operands = [
        [jnp.asarray(draw.normal(size=shape), cell.precision) for shape in shapes] for shapes in products_of(cell)
    ]

    @jax.jit
    def multiply(total: Any, a: Any, b: Any) -> tuple[Any, ...]:
        product = a @ b
        results = product, product @ jnp.swapaxes(b, -1, -2), jnp.swapaxes(a, -1, -2) @ product
        return total + sum(result.ravel()[0].astype("float32") for result in results), *results

    def step() -> Any:
        total = jnp.zeros(())
        for a, b in operands:
            total, *_ = multiply(total, a, b)
        return total

    return step


def operations_of(cell: Cell) -> int:
    """Multiplications and additions in the matrix products of a step, forward and backward."""
    return 3 * sum(2 * math.prod(a) * b[-1] for a, b in products_of(cell))


def products_of(cell: Cell) -> list[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The shapes of both operands of each product of the forward pass."""
    rows, hidden, inner = cell.batch_size * cell.length, cell.sizes["hidden_dim"], cell.sizes["intermediate_dim"]
    heads, layers = cell.batch_size * cell.sizes["num_heads"], cell.sizes["num_layers"]
    size = hidden // cell.sizes["num_heads"]
    attention = [
        *[((rows, hidden), (hidden, hidden))] * 4,
        ((heads, cell.length, size), (heads, size, cell.length)),
        ((heads, cell.length, cell.length), (heads, cell.length, size)),
    ]
    feed_forward = [((rows, hidden), (hidden, inner)), ((rows, inner), (inner, hidden))]
    blocks = [*attention, *feed_forward, *attention, *attention, *feed_forward] * layers
    return [*blocks, ((rows, hidden), (hidden, cell.sizes["vocabulary_size"]))]
