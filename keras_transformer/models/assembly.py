"""Makes a model's layers from its configuration."""

from __future__ import annotations

from typing import Any

from keras_transformer import family
from keras_transformer.layers.class_token import ClassToken
from keras_transformer.layers.embedding import TokenEmbedding
from keras_transformer.layers.layer import Dropout
from keras_transformer.layers.parts import make_part
from keras_transformer.lengths import longest

BLOCK_ARGUMENTS = (
    "num_heads",
    "intermediate_dim",
    "dropout",
    "attention_dropout",
    "attention",
    "score",
    "residual",
    "norm",
    "feed_forward",
    "activation",
    "attention_bias",
)


def make_layers(config: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """The layers of a model by their names in the model. They are not built.

    Args:
        config: complete, see `family.complete`.
        dtype: the layers' type or policy.
    """
    # Keras draws seeds and writes weights in this order.
    layers = _embeddings(config, dtype)
    layers |= _positions_and_dropout(config, dtype, longest(config["max_source_length"]))
    layers |= _stacks(config, dtype)
    for name in ("source_norm", "target_norm"):
        layers[name] = _embedding_norm(config, dtype)
    return layers | _own_output(config, dtype)


def make_layers_of_one_stack(config: dict[str, Any], dtype: Any, is_decoder: bool) -> dict[str, Any]:
    """The layers of a model of one stack that takes ids, by their names in the model. They are not built.

    Args:
        config: complete, see `family.complete`.
        dtype: the layers' type or policy.
        is_decoder: whether no position sees a later one.
    """
    embedding = _tied_embedding(config, dtype)
    layers = {"embedding": embedding, "output_embedding": embedding}
    layers |= _one_stack(config, dtype, config["context_length"], is_decoder)
    return layers | _own_output(config, dtype)


def make_layers_of_images(config: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """The layers of a model of one stack that takes images, by their names in the model. They are not built.

    Args:
        config: complete, see `family.complete`.
        dtype: the layers' type or policy.
    """
    sizes = {name: config[name] for name in ("patch_size", "channels", "hidden_dim")}
    layers = {"stem": make_part("stem", config["stem"], dtype, sizes), "class_token": ClassToken(dtype=dtype)}
    num_patches = (config["image_size"] // config["patch_size"]) ** 2
    return layers | _one_stack(config, dtype, num_patches + 1, is_decoder=False)


def _embeddings(config: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """The embeddings of target, source and output, which share one matrix unless the configuration separates them."""
    target = _tied_embedding(config, dtype)
    embeddings = {"target_embedding": target, "source_embedding": target, "output_embedding": target}
    if config["source_vocabulary_size"] is not None:
        embeddings["source_embedding"] = _embedding(config["source_vocabulary_size"], config, dtype)
    return embeddings


def _tied_embedding(config: dict[str, Any], dtype: Any) -> TokenEmbedding:
    """The embedding whose matrix is that of the output too, unless the output has its own."""
    return _embedding(config["vocabulary_size"], config, dtype, config["output_bias"] and config["tied_output"])


def _own_output(config: dict[str, Any], dtype: Any) -> dict[str, Any]:
    """The output's own matrix, if it has one."""
    if config["tied_output"]:
        return {}
    return {"output_embedding": _embedding(config["vocabulary_size"], config, dtype, config["output_bias"])}


def _embedding_norm(config: dict[str, Any], dtype: Any) -> Any:
    return make_part("norm", config["norm"], dtype, {}) if config["embedding_norm"] else None


def _embedding(size: int, config: dict[str, Any], dtype: Any, output_bias: bool = False) -> TokenEmbedding:
    return TokenEmbedding(size, config["hidden_dim"], config["embedding_scale"], output_bias, dtype=dtype)


def _positions_and_dropout(config: dict[str, Any], dtype: Any, max_length: int) -> dict[str, Any]:
    sizes = {
        "hidden_dim": config["hidden_dim"],
        "num_heads": config["num_heads"],
        "key_dim": family.key_dim(config),
        "max_length": max_length,
    }
    return {
        "positions": make_part("positions", config["positions"], dtype, sizes),
        "embedding_dropout": Dropout(config["dropout"], dtype=dtype),
    }


def _stacks(config: dict[str, Any], dtype: Any) -> dict[str, Any]:
    encoder_layers, decoder_layers = family.depths(config)
    encoder_block = _block(config)
    decoder_block = {**encoder_block, "attention": config["decoder_attention"] or config["attention"]}
    encoder = {"num_layers": encoder_layers, "block": encoder_block, "other_layers": decoder_layers}
    decoder = {"num_layers": decoder_layers, "block": decoder_block, "other_layers": encoder_layers, "is_decoder": True}
    return {
        "encoder_stack": make_part("stack", config["stack"], dtype, encoder),
        "decoder_stack": make_part("stack", config["stack"], dtype, decoder),
    }


def _one_stack(config: dict[str, Any], dtype: Any, max_length: int, is_decoder: bool) -> dict[str, Any]:
    """Positions, dropout, the only stack of a model, and the norm before it."""
    layers = _positions_and_dropout(config, dtype, max_length)
    stack = {"num_layers": config["num_layers"], "block": _block(config), "is_decoder": is_decoder, "has_memory": False}
    layers["stack"] = make_part("stack", config["stack"], dtype, stack)
    return {**layers, "norm": _embedding_norm(config, dtype)}


def _block(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a block."""
    return {name: config[name] for name in BLOCK_ARGUMENTS} | {"key_dim": family.key_dim(config)}
