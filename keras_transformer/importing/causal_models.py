"""Imports GPT-2 and Llama, language models in Hugging Face's format.

GPT-2 (Radford et al. 2019) is the decoder alone, with pre-norm, gelu by its tangent form, learned positions, biases,
and a tied output.

Llama (Touvron et al. 2023, arXiv 2302.13971) is the decoder alone, with RMS norms before its sub-layers, rotary
positions, SwiGLU, grouped heads, and no biases. Llama 3.1 (Grattafiori et al. 2024, arXiv 2407.21783) stretches the
waves of its rotation.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import numpy as np

from keras_transformer.importing.folder import (
    ANY_OPTION,
    GUARDS,
    HARMLESS_OPTIONS,
    NEUTRAL_SEARCH,
    NO_OPTION,
    READ_SEARCH,
    SEARCH_WITHOUT_EFFECT,
    ModelFolder,
    Options,
    RequiredValues,
    asked_search,
    completed,
    options_of,
    read_named,
    write_named,
)
from keras_transformer.importing.sentencepiece_rewrite import NEVER
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.text_files import count_ids, end_of, text_vocabulary
from keras_transformer.importing.weights import (
    Imported,
    Layout,
    Weight,
    Weights,
    block_weights,
    first_of,
    norm_weights,
    open_weights,
)
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN

# How they draw, and what they pad with: a generator of ours is told how to search.
CAUSAL_WITHOUT_EFFECT = {
    *SEARCH_WITHOUT_EFFECT, *READ_SEARCH, "initializer_range", "pad_token_id", "is_encoder_decoder",
}  # fmt: skip
GPT2_REQUIRED: RequiredValues = {
    "add_cross_attention": False, "reorder_and_upcast_attn": False, "scale_attn_by_inverse_layer_idx": False,
    "scale_attn_weights": True, "tie_word_embeddings": True, "is_decoder": False, "pruned_heads": {},
}  # fmt: skip
GPT2_WITHOUT_EFFECT = {
    "embd_pdrop", "n_ctx", "summary_activation", "summary_first_dropout", "summary_proj_to_labels", "summary_type",
    "summary_use_proj", "tie_encoder_decoder", "cross_attention_hidden_size",
}  # fmt: skip
# Arguments of our model, and what the architecture calls them.
GPT2_NAMES = {
    "num_layers": "n_layer", "num_heads": "n_head", "hidden_dim": "n_embd", "context_length": "n_positions",
    "dropout": "resid_pdrop", "attention_dropout": "attn_pdrop", "activation": "activation_function",
    "norm": "layer_norm_epsilon",
}  # fmt: skip
PREFIX = "transformer."  # files of the model without its output lack it
GPT2_BLOCK = {  # by our paths, what it calls the parts of a block but queries, keys and values
    "self_attention.output": "attn.c_proj", "feed_forward.in": "mlp.c_fc", "feed_forward.out": "mlp.c_proj",
    "self_attention_residual.norm": "ln_1", "feed_forward_residual.norm": "ln_2",
}  # fmt: skip
LLAMA_REQUIRED: RequiredValues = {
    "attention_bias": False, "mlp_bias": False, "pretraining_tp": 1, "add_cross_attention": False, "is_decoder": False,
    "pruned_heads": {},
}  # fmt: skip
LLAMA_WITHOUT_EFFECT = {"tie_encoder_decoder", "cross_attention_hidden_size", "rope_interleaved"}
# Arguments of our model, and what the architecture calls them.
LLAMA_NAMES = {
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size", "context_length": "max_position_embeddings",
    "attention_dropout": "attention_dropout", "activation": "hidden_act", "norm": "rms_norm_eps",
}  # fmt: skip
BASE = 10_000.0  # the rotation's
ROTATIONS = ("default", "linear", "llama3")  # how its waves are stretched, see `RotaryPositions`
EMBEDDING, OUTPUT = "model.embed_tokens.weight", "lm_head.weight"
LLAMA_BLOCK = {
    "self_attention.query": "self_attn.q_proj", "self_attention.key": "self_attn.k_proj",
    "self_attention.value": "self_attn.v_proj", "self_attention.output": "self_attn.o_proj",
    "feed_forward.gate": "mlp.gate_proj", "feed_forward.in": "mlp.up_proj", "feed_forward.out": "mlp.down_proj",
    "self_attention_residual.norm": "input_layernorm", "feed_forward_residual.norm": "post_attention_layernorm",
}  # fmt: skip


def read_gpt2(folder: ModelFolder) -> Imported:
    """Reads a GPT-2 model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = options_of(folder, "config.json", GPT2_REQUIRED, has_many_ends=True)
    return language_model(folder, options, gpt2_arguments(options), GPT2_WITHOUT_EFFECT, gpt2_layout)


def gpt2_arguments(options: Options) -> Config:
    """Returns the arguments of our model that are GPT-2's own."""
    defaults: Config = {"dropout": 0.1, "attention_dropout": 0.1, "activation": "gelu_new", "norm": 1e-5}
    config = read_named(options, GPT2_NAMES, **defaults)
    width = options.size("n_inner", 4 * config["hidden_dim"])
    return {**config, "intermediate_dim": width, "positions": "learned", "attention_bias": True}


def gpt2_options(config: Config) -> Config:
    """Returns the options that `gpt2_arguments` reads as this configuration, if GPT-2 has a form of it."""
    return {**write_named(config, GPT2_NAMES), "n_inner": config["intermediate_dim"], "embd_pdrop": config["dropout"]}


def gpt2_layout(file: TensorFile, config: Config, ids: list[int], size: int) -> Layout:
    """Returns where the weights lie: under the names that the file has, or the usual ones if it has none; the matrices
    have `size` rows."""
    prefix = "" if "wte.weight" in file.places else PREFIX
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
        "V": size, "D": width, "H": width, "T": 3 * width, "F": config["intermediate_dim"],
        "P": config["context_length"],
    }  # fmt: skip
    masks = {f"{layer}.attn.{name}" for layer in layers for name in ("bias", "masked_bias")}  # the masks of old files
    return Layout(table, sizes, {"V": np.array(ids)}, {*embeddings, *masks})


def _gpt2_block(ours: str, theirs: str) -> Iterator[Weight]:
    """Yields the weights of a block. T is the width of queries, keys and values side by side; kernels have inputs
    first."""
    for place, name in enumerate(("query", "key", "value")):
        part = (place, 3)
        yield Weight(f"{ours}.self_attention.{name}_kernel", f"{theirs}.attn.c_attn.weight", "DT", part=part)
        yield Weight(f"{ours}.self_attention.{name}_bias", f"{theirs}.attn.c_attn.bias", "T", part=part)
    yield from block_weights(ours, theirs, GPT2_BLOCK, order=())


def read_llama(folder: ModelFolder) -> Imported:
    """Reads a Llama model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = options_of(folder, "config.json", LLAMA_REQUIRED, has_many_ends=True)
    return language_model(folder, options, llama_arguments(options), LLAMA_WITHOUT_EFFECT, llama_layout)


def llama_arguments(options: Options) -> Config:
    """Returns the arguments of our model that are Llama's own."""
    defaults: Config = {"attention_dropout": 0.0, "activation": "silu", "norm": 1e-6}
    config = read_named(options, LLAMA_NAMES, "rms", **defaults)
    heads, width = config["num_heads"], config["hidden_dim"]
    return {
        **config,
        "attention": {"name": "full", "num_key_value_heads": options.size("num_key_value_heads", heads)},
        "key_dim": options.size("head_dim", width // max(heads, 1)),
        "dropout": 0.0,
        "feed_forward": "gated",
        "positions": _rotation(options),
        "tied_output": options.switch("tie_word_embeddings", False),
    }


def llama_options(config: Config) -> Config:
    """Returns the options that `llama_arguments` reads as this configuration, if Llama has a form of it."""
    return {
        **write_named(config, LLAMA_NAMES),
        "num_key_value_heads": config["attention"].get("num_key_value_heads"),
        "head_dim": config["key_dim"],
        **_rotation_options(config["positions"]),
        "tie_word_embeddings": config["tied_output"],
    }


def _rotation(options: Options) -> Config:
    """Reads the positions of our model. Newer files have the base of the rotation beside what stretches its waves."""
    name = "rope_scaling" if options.has("rope_scaling") else "rope_parameters"
    found = {each: options.pop(each) for each in ("rope_scaling", "rope_parameters")}
    parameters, base = found[name], options.number("rope_theta", BASE)
    if parameters is None:
        return {"name": "rotary", "base": base}
    if not isinstance(parameters, dict):
        raise options.refusal(name, parameters, "an object")
    inner = Options(parameters, f"{options.where}: {name}")
    inner.expect({"partial_rotary_factor": 1.0})
    old_kind = inner.pop("type", "default")
    kind = inner.choice("rope_type", dict(zip(ROTATIONS, ROTATIONS, strict=True)), old_kind)
    rotation: Config = {"name": "rotary", "base": inner.number("rope_theta", base)}
    if kind != "default":
        rotation["interpolation"] = inner.number("factor")
    if kind == "llama3":
        rotation |= {each: inner.number(each) for each in ("low_freq_factor", "high_freq_factor")}
        rotation["original_length"] = inner.size("original_max_position_embeddings")
    inner.finish(set(), ANY_OPTION)
    return rotation


def _rotation_options(positions: Config) -> Config:
    """Returns the options that `_rotation` reads as these positions, which older versions of transformers read too."""
    options = {"rope_theta": positions.get("base", BASE)}
    if positions.get("interpolation", 1.0) == 1.0:
        return options
    scaling = {"rope_type": "linear", "factor": positions["interpolation"]}
    if positions.get("original_length") is not None:
        scaling |= {name: positions[name] for name in ("low_freq_factor", "high_freq_factor")}
        scaling |= {"rope_type": "llama3", "original_max_position_embeddings": positions["original_length"]}
    return {**options, "rope_scaling": scaling}


def llama_layout(file: TensorFile, config: Config, ids: list[int], size: int) -> Layout:
    """Returns where the weights lie: under the names that the file has, or the usual ones if it has none; the matrices
    have `size` rows."""
    is_tied = config["tied_output"]
    embedding = first_of(file, [EMBEDDING, OUTPUT]) if is_tied else EMBEDDING
    layers = [f"model.layers.{number}" for number in range(config["num_layers"])]
    blocks = [
        block_weights(f"stack.blocks.{n}", layer, LLAMA_BLOCK, has_biases=False) for n, layer in enumerate(layers)
    ]
    table = [
        Weight("embedding.embeddings", embedding, "VD"),
        *([] if is_tied else [Weight("output_embedding.embeddings", OUTPUT, "VD")]),
        Weight("output_embedding.bias", "", "V", default=0.0, fixed=copies(ids)),
        Weight("stack.norm.scale", "model.norm.weight", "D"),
        *itertools.chain(*blocks),
    ]
    key_dim, groups = config["key_dim"], config["attention"]["num_key_value_heads"] or config["num_heads"]
    sizes = {
        "V": size, "D": config["hidden_dim"], "H": config["num_heads"] * key_dim, "G": groups * key_dim,
        "F": config["intermediate_dim"],
    }  # fmt: skip
    frequencies = {f"{layer}.self_attn.rotary_emb.inv_freq" for layer in layers}  # the frequencies of old files
    return Layout(table, sizes, {"V": np.array(ids)}, {EMBEDDING, OUTPUT, *frequencies})


def ids_of(folder: ModelFolder, options: Options, asked: Options, size: int) -> tuple[list[int], int | list[int]]:
    """Returns their id for each of ours, of which the matrices have `size`; and the ids of ours that end a text.
    `asked` are the options of the search. Pad and unknown, which they lack, are copies of the start.

    A model without a start id of its own begins texts with the id that ends them. The options of its search, where it
    has them, say what ends a text.
    """
    ends = _ends(options, size, size - 1)
    start = options.whole("bos_token_id", size - 1, ends[0])
    ends = _ends(asked, size, *ends)
    own = end_of(folder)  # which a chat has behind each turn
    end = own if own in ends else ends[0]
    count = max(count_ids(folder, size), start + 1, *(each + 1 for each in ends))
    ids = [start, start, start, end, *(id for id in range(count) if id not in (start, end))]
    others = [ids.index(each) for each in ends if each not in (start, end)]  # no search emits the start
    return ids, [END, *others] if others else END


def _ends(options: Options, size: int, *default: int) -> list[int]:
    """Returns the ids that end a text."""
    ends = options.pop("eos_token_id") if options.has("eos_token_id") else [*default]
    ends = ends if isinstance(ends, list) else [ends]
    if not ends or not all(type(id) is int and 0 <= id < size for id in ends):
        raise options.refusal("eos_token_id", ends, f"whole numbers from 0 to {size - 1:,}")
    return list(dict.fromkeys(ends))


def copies(ids: list[int]) -> dict[int, float]:
    """Returns the biases on the logits of our ids that are copies, so that they take no probability."""
    places = (PAD, UNKNOWN) if ids.count(ids[START]) == START + 1 else (PAD, UNKNOWN, START)
    return dict.fromkeys(places, NEVER)


def language_model(
    folder: ModelFolder,
    options: Options,
    config: Config,
    without_effect: set[str],
    layout: Callable[[TensorFile, Config, list[int], int], Layout],
) -> Imported:
    """Reads a language model.

    Args:
        folder, options: the model's folder, and what is left of the options in its config.json.
        config: the arguments of our model that the options tell.
        without_effect: options of this architecture that change nothing here.
        layout: where the weights lie, from file, configuration, ids and rows.

    Raises:
        RequestError: an option or a tensor is not known, missing or damaged.
    """
    size = options.size("vocab_size")
    asked = asked_search(folder, options, has_many_ends=True)
    ids, end_ids = ids_of(folder, options, asked, size)
    asked.pop("do_sample")  # as other options of drawing
    asked.tell_lost({**NEUTRAL_SEARCH, **GUARDS, "bad_words_ids": None, "forced_eos_token_id": None})
    asked.finish(HARMLESS_OPTIONS | CAUSAL_WITHOUT_EFFECT | {"decoder_start_token_id"}, NO_OPTION)
    options.finish(HARMLESS_OPTIONS | CAUSAL_WITHOUT_EFFECT | without_effect)
    config = completed(options, {**config, "vocabulary_size": len(ids), "end_ids": end_ids}, complete_language_model)
    file = open_weights(folder)
    weights = Weights(file, layout(file, config, ids, size))
    # After the file has shown that it has a row for each.
    vocabulary = text_vocabulary(folder, ids, has_ends=False)
    return Imported(config, weights, (vocabulary,))


def complete_language_model(config: Config) -> Config:
    """Completes a language model's configuration with what the architectures have in common. Raises ValueError as
    `model_spec.complete`."""
    # The bias keeps copies of rows from taking a probability; the architectures have no other.
    fixed = {"output_bias": True, "fixed_output_bias": True, "embedding_scale": 1.0, "residual": "pre_norm"}
    return {"kind": "language-model", **model_spec.complete({**config, **fixed}, "language-model")}
