"""Gives a model's weights plain names, as arrays from which every peer's model is filled."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.core.errors import RequestError

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Transformer

Weights = dict[str, np.ndarray]

LAYER_NORM_EPSILON = 1e-6
# Peers can hold any sizes and rates. Positions are an array for them, however they were made.
FREE_ARGUMENTS = {
    "vocabulary_size", "num_layers", "encoder_layers", "decoder_layers", "num_heads", "hidden_dim", "intermediate_dim",
    "key_dim", "dropout", "attention_dropout", "max_source_length", "positions",
}  # fmt: skip
STACKS = {"encoder": ["self"], "decoder": ["self", "cross"]}  # the attentions in a block of each stack


def arrays_of(model: Transformer) -> Weights:
    """Returns the weights by names such as `encoder/0/self/query`. Kernels have the shape (in, out).

    Raises:
        RequestError: a peer cannot hold this model.
    """
    from keras import ops

    if differences := differences_from_the_paper(model):
        raise RequestError(
            "expected a model that all peers can hold: the paper's, of any size, with one embedding, stacks of the "
            f"same depth and key_dim = hidden_dim / num_heads; received {differences}"
        )
    arrays: dict[str, Any] = {
        "embeddings": model.target_embedding.embeddings,
        "positions": model.positions(ops.arange(model.max_source_length)),
        "num_heads": np.array(model.num_heads),
    }
    for stack, blocks in (("encoder", model.encoder_stack.blocks), ("decoder", model.decoder_stack.blocks)):
        for number, block in enumerate(blocks):
            arrays |= {f"{stack}/{number}/{name}": array for name, array in block_arrays(block, STACKS[stack]).items()}
    return {name: np.asarray(ops.convert_to_numpy(array)) for name, array in arrays.items()}


def block_arrays(block: Any, attentions: list[str]) -> dict[str, Any]:
    """Returns the weights of one encoder or decoder block, by names within the block."""
    arrays = {part: getattr(block.feed_forward, part) for part in ("kernel_in", "bias_in", "kernel_out", "bias_out")}
    for name in attentions:
        attention = getattr(block, f"{name}_attention")
        for part in ("query", "key", "value", "output"):
            arrays[f"{name}/{part}"] = getattr(attention, f"{part}_kernel")
    for name in (*(f"{name}_attention" for name in attentions), "feed_forward"):
        for part in ("gamma", "beta"):
            arrays[f"{name}/{part}"] = getattr(getattr(block, f"{name}_residual").norm, part)
    return arrays


def differences_from_the_paper(model: Transformer) -> dict[str, Any]:
    """Returns the arguments in which a model differs from the paper's, `FREE_ARGUMENTS` left out."""
    from keras_transformer.spec import model_spec

    arguments = model.arguments()
    usual = model_spec.complete({"vocabulary_size": model.vocabulary_size})
    compared = usual.keys() - FREE_ARGUMENTS
    differences = {name: arguments[name] for name in compared if arguments[name] != usual[name]}
    if model.encoder_layers != model.decoder_layers:
        differences |= {"encoder_layers": model.encoder_layers, "decoder_layers": model.decoder_layers}
    if model.key_dim * model.num_heads != model.hidden_dim:
        differences |= {name: getattr(model, name) for name in ("key_dim", "hidden_dim", "num_heads")}
    return dict(sorted(differences.items()))
