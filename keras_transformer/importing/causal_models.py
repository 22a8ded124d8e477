"""GPT-2 and Llama in Hugging Face's format: language models.

GPT-2 (Radford et al. 2019) is the decoder alone, with pre-norm, gelu by its tangent form, learned positions, biases,
and a tied output.

Llama (Touvron et al. 2023, arXiv 2302.13971) is the decoder alone, with RMS norms before its sub-layers, rotary
positions, SwiGLU, grouped heads, and no biases.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from keras_transformer.importing.folder import ModelFolder, Options
from keras_transformer.importing.layouts import PARTS, PROJECTIONS, copies, ids_of, language_model
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.weights import TRANSPOSED, Imported, Weight, Weights, first_of, norm_weights
from keras_transformer.options import Config

# Options with the one value that the architecture has.
GPT2_FIXED: Config = {
    "add_cross_attention": False, "reorder_and_upcast_attn": False, "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True, "tie_word_embeddings": True, "is_decoder": False, "pruned_heads": {},
}  # fmt: skip
GPT2_WITHOUT_EFFECT = {
    "embd_pdrop", "n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "tie_encoder_decoder", "cross_attention_hidden_size",
}  # fmt: skip
PREFIX = "transformer."  # files of the model without its output lack it
# Options with the one value that is read here.
LLAMA_FIXED: Config = {
    "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "rope_scaling": None, "add_cross_attention": False,
    "is_decoder": False, "pruned_heads": {},
}  # fmt: skip
LLAMA_WITHOUT_EFFECT = {"tie_encoder_decoder", "cross_attention_hidden_size", "rope_interleaved"}
BASE = 10_000.0  # the rotation's
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
KERNELS = {"kernel_gate": ("gate_proj", "FD"), "kernel_in": ("up_proj", "FD"), "kernel_out": ("down_proj", "DF")}


def read_gpt2(folder: ModelFolder) -> Imported:
    """Reads a GPT-2 model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = Options(folder.json("config.json"), str(folder.path / "config.json"))
    options.expect(GPT2_FIXED)
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
    return language_model(folder, options, config, ids, GPT2_WITHOUT_EFFECT, _gpt2_weights)


def _gpt2_weights(file: TensorFile, config: Config, ids: list[int]) -> Weights:
    """The tensors of the model, checked: all that it needs, and none that it does not know."""
    prefix = PREFIX if any(name.startswith(PREFIX) for name in file.places) else ""
    embeddings = [f"{prefix}wte.weight", "lm_head.weight"]
    layers = [f"{prefix}h.{number}" for number in range(config["num_layers"])]
    table = [
        Weight("embedding.embeddings", first_of(file, embeddings), "VD"),
        Weight("embedding.bias", "", "V", default=0.0, fixed=copies(ids)),
        Weight("positions.embeddings", f"{prefix}wpe.weight", "PD"),
        *norm_weights("stack.norm", f"{prefix}ln_f"),
        *(weight for number, layer in enumerate(layers) for weight in _gpt2_block(f"stack.blocks.{number}", layer)),
    ]
    width = config["hidden_dim"]
    sizes = {
        "V": len({*ids}), "D": width, "T": 3 * width, "F": config["intermediate_dim"], "P": config["context_length"],
    }  # fmt: skip
    masks = {f"{layer}.attn.{name}" for layer in layers for name in ("bias", "masked_bias")}  # the masks of old files
    return Weights(file, table, sizes, {"V": np.array(ids)}, {*embeddings, *masks})


def _gpt2_block(ours: str, theirs: str) -> Iterator[Weight]:
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


def read_llama(folder: ModelFolder) -> Imported:
    """Reads a Llama model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = Options(folder.json("config.json"), str(folder.path / "config.json"))
    options.expect(LLAMA_FIXED)
    ids = ids_of(options, options.size("vocab_size"))
    heads, width = options.size("num_attention_heads"), options.size("hidden_size")
    config = {
        "num_layers": options.size("num_hidden_layers"),
        "num_heads": heads,
        "attention": {"name": "full", "num_key_value_heads": options.size("num_key_value_heads", heads)},
        "hidden_dim": width,
        "key_dim": options.size("head_dim", width // max(heads, 1)),
        "intermediate_dim": options.size("intermediate_size"),
        "context_length": options.size("max_position_embeddings"),
        "dropout": 0.0,
        "attention_dropout": options.number("attention_dropout", 0.0),
        "feed_forward": "gated",
        "activation": options.activation("hidden_act", "silu"),
        "norm": {"name": "rms", "epsilon": options.number("rms_norm_eps", 1e-6)},
        "positions": {"name": "rotary", "base": _base(options)},
        "tied_output": options.switch("tie_word_embeddings", False),
    }
    return language_model(folder, options, config, ids, LLAMA_WITHOUT_EFFECT, _llama_weights)


def _base(options: Options) -> float:
    """The base of the rotation, which newer files have among other parameters."""
    base = options.number("rope_theta", BASE)
    parameters = options.pop("rope_parameters")
    if parameters is None:
        return base
    if not isinstance(parameters, dict):
        raise options.refusal("rope_parameters", parameters, "an object")
    inner = Options(parameters, f"{options.where}: rope_parameters")
    inner.expect({"rope_type": "default", "type": "default", "partial_rotary_factor": 1.0})
    base = inner.number("rope_theta", base)
    inner.finish(set())
    return base


def _llama_weights(file: TensorFile, config: Config, ids: list[int]) -> Weights:
    """The tensors of the model, checked: all that it needs, and none that it does not know."""
    is_tied = config["tied_output"]
    embedding = first_of(file, [EMBEDDING, OUTPUT]) if is_tied else EMBEDDING
    layers = [f"model.layers.{number}" for number in range(config["num_layers"])]
    table = [
        Weight("embedding.embeddings", embedding, "VD"),
        *([] if is_tied else [Weight("output_embedding.embeddings", OUTPUT, "VD")]),
        Weight("output_embedding.bias", "", "V", default=0.0, fixed=copies(ids)),
        Weight("stack.norm.scale", "model.norm.weight", "D"),
        *(weight for number, layer in enumerate(layers) for weight in _llama_block(f"stack.blocks.{number}", layer)),
    ]
    size, groups = config["key_dim"], config["attention"]["num_key_value_heads"] or config["num_heads"]
    sizes = {
        "V": len({*ids}), "D": config["hidden_dim"], "H": config["num_heads"] * size, "G": groups * size,
        "F": config["intermediate_dim"],
    }  # fmt: skip
    frequencies = {f"{layer}.self_attn.rotary_emb.inv_freq" for layer in layers}  # the frequencies of old files
    return Weights(file, table, sizes, {"V": np.array(ids)}, {EMBEDDING, OUTPUT, *frequencies})


def _llama_block(ours: str, theirs: str) -> Iterator[Weight]:
    """The weights of a block. H is the width of all heads, G of those of keys and values."""
    for name, projection in PROJECTIONS.items():
        axes = "HD" if name == "query" else "GD"
        kernel = f"{theirs}.self_attn.{projection}.weight"
        yield Weight(f"{ours}.self_attention.{name}_kernel", kernel, axes, order=TRANSPOSED)
    yield Weight(f"{ours}.self_attention.output_kernel", f"{theirs}.self_attn.o_proj.weight", "DH", order=TRANSPOSED)
    for name, (kernel, axes) in KERNELS.items():
        yield Weight(f"{ours}.feed_forward.{name}", f"{theirs}.mlp.{kernel}.weight", axes, order=TRANSPOSED)
    yield Weight(f"{ours}.self_attention_residual.norm.scale", f"{theirs}.input_layernorm.weight", "D")
    yield Weight(f"{ours}.feed_forward_residual.norm.scale", f"{theirs}.post_attention_layernorm.weight", "D")
