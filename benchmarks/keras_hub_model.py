"""Makes a translator of KerasHub's blocks with our weights."""

from __future__ import annotations

import math
from typing import Any

import keras
import keras_hub
from keras import layers

from benchmarks.weights import LAYER_NORM_EPSILON, Weights


def keras_hub_transformer(sizes: dict[str, int], length: int, weights: Weights, dropout_rate: float) -> keras.Model:
    """Makes a model of `TransformerEncoder` and `TransformerDecoder` blocks with these weights.

    Args:
        sizes: arguments of `Transformer`.
        length: T, of source and target.
        weights: of `weights.arrays_of`.
        dropout_rate: on the embeddings and on the outputs of the sub-layers.
    """
    vocabulary_size, hidden_dim = weights["embeddings"].shape
    options: dict[str, Any] = {
        "intermediate_dim": sizes["intermediate_dim"],
        "num_heads": sizes["num_heads"],
        "dropout": dropout_rate,
        "layer_norm_epsilon": LAYER_NORM_EPSILON,
    }
    embedding = keras_hub.layers.ReversibleEmbedding(vocabulary_size, hidden_dim)
    positions = weights["positions"][None, :length]

    def embed(ids: Any) -> Any:
        return layers.Dropout(dropout_rate)(embedding(ids) * math.sqrt(hidden_dim) + positions)

    source, target = (keras.Input((length,), dtype="int32", name=f"{side}_ids") for side in ("source", "target"))
    memory, states = embed(source), embed(target)
    encoder = [keras_hub.layers.TransformerEncoder(**options) for _ in range(sizes["num_layers"])]
    decoder = [keras_hub.layers.TransformerDecoder(**options) for _ in range(sizes["num_layers"])]
    for block in encoder:
        memory = block(memory)
    for block in decoder:
        states = block(states, memory)
    model = keras.Model({"source_ids": source, "target_ids": target}, embedding(states, reverse=True))
    embedding.embeddings.assign(weights["embeddings"])
    for stack, blocks in (("encoder", encoder), ("decoder", decoder)):
        for number, block in enumerate(blocks):
            assign_block(block, weights, f"{stack}/{number}")
    return model


def assign_block(block: Any, weights: Weights, name: str) -> None:
    """Assigns the weights of one of KerasHub's blocks, and removes dropout from its attention scores."""
    attentions = {"self": (block._self_attention_layer, block._self_attention_layer_norm)}
    if name.startswith("decoder"):
        attentions["cross"] = block._cross_attention_layer, block._cross_attention_layer_norm
    for kind, (attention, norm) in attentions.items():
        attention._dropout_layer.rate = attention._dropout = 0.0
        for part in ("query", "key", "value", "output"):
            dense = getattr(attention, f"_{part}_dense")
            dense.kernel.assign(weights[f"{name}/{kind}/{part}"].reshape(dense.kernel.shape))
        assign_norm(norm, weights, f"{name}/{kind}_attention")
    for part, dense in (("in", block._feedforward_intermediate_dense), ("out", block._feedforward_output_dense)):
        dense.kernel.assign(weights[f"{name}/kernel_{part}"])
        dense.bias.assign(weights[f"{name}/bias_{part}"])
    assign_norm(block._feedforward_layer_norm, weights, f"{name}/feed_forward")


def assign_norm(norm: Any, weights: Weights, name: str) -> None:
    """Assigns the weights of a layer normalisation."""
    norm.gamma.assign(weights[f"{name}/gamma"])
    norm.beta.assign(weights[f"{name}/beta"])
