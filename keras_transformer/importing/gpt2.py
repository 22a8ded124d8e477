"""GPT-2's models (Radford et al. 2019) in Hugging Face's format: the decoder alone, with pre-norm, gelu by its tangent
form, learned positions, biases, and a tied output."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from keras_transformer.importing.folder import ModelFolder, Options
from keras_transformer.importing.layouts import copies, ids_of, language_model
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.weights import Imported, Weight, Weights, first_of, norm_weights
from keras_transformer.options import Config

# Options with the one value that the architecture has.
FIXED: Config = {
    "add_cross_attention": False, "reorder_and_upcast_attn": False, "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True, "tie_word_embeddings": True, "is_decoder": False, "pruned_heads": {},
}  # fmt: skip
WITHOUT_EFFECT = {
    "embd_pdrop", "n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "tie_encoder_decoder", "cross_attention_hidden_size",
}  # fmt: skip
PREFIX = "transformer."  # files of the model without its output lack it
PARTS = ("query", "key", "value")


def read(folder: ModelFolder) -> Imported:
    """Reads a GPT-2 model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = Options(folder.json("config.json"), str(folder.path / "config.json"))
    options.expect(FIXED)
    ids = ids_of(options, options.size("vocab_size"))
    width = options.size("n_embd")
    config = {
        "num_layers": options.size("n_layer"),
        "num_heads": options.size("n_head"),
        "hidden_dim": width,
        "intermediate_dim": options.size("n_inner", 4 * width),
        "context_length": options.size("n_positions"),
        "dropout": options.number("resid_pdrop", 0.1),
        "attention_dropout": options.number("attn_pdrop", 0.1),
        "activation": options.activation("activation_function", "gelu_new"),
        "norm": {"name": "layer", "epsilon": options.number("layer_norm_epsilon", 1e-5)},
        "positions": "learned",
        "attention_bias": True,
    }
    return language_model(folder, options, config, ids, WITHOUT_EFFECT, _weights)


def _weights(file: TensorFile, config: Config, ids: list[int]) -> Weights:
    """The tensors of the model, checked: all that it needs, and none that it does not know."""
    prefix = PREFIX if any(name.startswith(PREFIX) for name in file.places) else ""
    embeddings = [f"{prefix}wte.weight", "lm_head.weight"]
    layers = [f"{prefix}h.{number}" for number in range(config["num_layers"])]
    table = [
        Weight("embedding.embeddings", first_of(file, embeddings), "VD"),
        Weight("embedding.bias", "", "V", default=0.0, fixed=copies(ids)),
        Weight("positions.embeddings", f"{prefix}wpe.weight", "PD"),
        *norm_weights("stack.norm", f"{prefix}ln_f"),
        *(weight for number, layer in enumerate(layers) for weight in _block(f"stack.blocks.{number}", layer)),
    ]
    width = config["hidden_dim"]
    sizes = {
        "V": len({*ids}), "D": width, "T": 3 * width, "F": config["intermediate_dim"], "P": config["context_length"],
    }  # fmt: skip
    masks = {f"{layer}.attn.{name}" for layer in layers for name in ("bias", "masked_bias")}  # of old files
    return Weights(file, table, sizes, {"V": np.array(ids)}, {*embeddings, *masks})


def _block(ours: str, theirs: str) -> Iterator[Weight]:
    """The weights of a block. T is the width of queries, keys and values side by side; kernels have inputs first."""
    for place, name in enumerate(PARTS):
        part = (place, len(PARTS))
        yield Weight(f"{ours}.self_attention.{name}_kernel", f"{theirs}.attn.c_attn.weight", "DT", part=part)
        yield Weight(f"{ours}.self_attention.{name}_bias", f"{theirs}.attn.c_attn.bias", "T", part=part)
    yield Weight(f"{ours}.self_attention.output_kernel", f"{theirs}.attn.c_proj.weight", "DD")
    yield Weight(f"{ours}.self_attention.output_bias", f"{theirs}.attn.c_proj.bias", "D")
    yield Weight(f"{ours}.feed_forward.kernel_in", f"{theirs}.mlp.c_fc.weight", "DF")
    yield Weight(f"{ours}.feed_forward.bias_in", f"{theirs}.mlp.c_fc.bias", "F")
    yield Weight(f"{ours}.feed_forward.kernel_out", f"{theirs}.mlp.c_proj.weight", "FD")
    yield Weight(f"{ours}.feed_forward.bias_out", f"{theirs}.mlp.c_proj.bias", "D")
    yield from norm_weights(f"{ours}.self_attention_residual.norm", f"{theirs}.ln_1")
    yield from norm_weights(f"{ours}.feed_forward_residual.norm", f"{theirs}.ln_2")
