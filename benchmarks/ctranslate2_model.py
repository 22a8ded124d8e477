"""Our weights in CTranslate2's format."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from ctranslate2.specs import TransformerSpec

from benchmarks.weights import LAYER_NORM_EPSILON, Weights


def write_ctranslate2(
    folder: Path, weights: Weights, num_layers: int, pieces: list[str], precision: str = "float32"
) -> None:
    """Writes the model. CTranslate2 can convert a model in float32 to other precisions when it loads it.

    Args:
        folder: where to write; must not exist.
        weights: of `weights.arrays_of`.
        num_layers: of each stack.
        pieces: the vocabulary, in the order of its ids.
        precision: of the file: "float32" or "int8".
    """
    spec = TransformerSpec.from_config(num_layers, int(weights["num_heads"]), pre_norm=False)
    fill_stack(spec.encoder, weights, "encoder")
    fill_stack(spec.decoder, weights, "decoder")
    spec.decoder.projection.weight = weights["embeddings"]
    spec.register_source_vocabulary(pieces)
    spec.register_target_vocabulary(pieces)
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.validate()
    if precision != "float32":
        spec.optimize(quantization=precision)
    folder.mkdir()
    spec.save(str(folder))


def fill_stack(stack: Any, weights: Weights, name: str) -> None:
    """Fills CTranslate2's encoder or decoder."""
    embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
    embeddings.weight, stack.position_encodings.encodings = weights["embeddings"], weights["positions"]
    for number, layer in enumerate(stack.layer):
        block = f"{name}/{number}"
        fill_attention(layer.self_attention, weights, f"{block}/self", [["query", "key", "value"], ["output"]])
        if name == "decoder":
            fill_attention(layer.attention, weights, f"{block}/cross", [["query"], ["key", "value"], ["output"]])
        fill_linear(layer.ffn.linear_0, weights, [f"{block}/kernel_in"], bias=f"{block}/bias_in")
        fill_linear(layer.ffn.linear_1, weights, [f"{block}/kernel_out"], bias=f"{block}/bias_out")
        fill_norm(layer.ffn.layer_norm, weights, f"{block}/feed_forward")


def fill_attention(attention: Any, weights: Weights, name: str, kernels: Sequence[Sequence[str]]) -> None:
    """Fills an attention and its norm. `kernels` lists the projections that each linear layer joins."""
    for linear, parts in zip(attention.linear, kernels, strict=True):
        fill_linear(linear, weights, [f"{name}/{part}" for part in parts])
    fill_norm(attention.layer_norm, weights, f"{name}_attention")


def fill_linear(linear: Any, weights: Weights, kernels: Sequence[str], bias: str | None = None) -> None:
    """Fills a linear layer, whose weight has the shape (out, in)."""
    linear.weight = np.concatenate([weights[kernel].T for kernel in kernels])
    if bias:
        linear.bias = weights[bias]


def fill_norm(norm: Any, weights: Weights, name: str) -> None:
    """Fills a layer normalisation."""
    norm.gamma, norm.beta = weights[f"{name}/gamma"], weights[f"{name}/beta"]
