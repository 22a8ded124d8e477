"""T5's models, v1.0 and v1.1 (Raffel et al. 2020, arXiv 1910.10683; Shazeer 2020, arXiv 2002.05202).

They are the family's model with buckets of distances, RMS norms before the sub-layers, no factor on dot products and
embeddings, and no biases. v1.1 has a gated feed-forward network and mostly its own output matrix. v1.0 divides the
states before the tied output by √D: here the gains of the decoder's last norm are divided, which is the same.

Source and target have one vocabulary. The sentinels, `<extra_id_0>` and so on, are pieces of text. Ids for which the
tokenizer has no piece fill T5's matrix up: they are control ids here, which no translation holds. Decoding starts with
the pad id, so the row of our start id is a copy of the pad's.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.importing.folder import INERT, ModelFolder, Options, search_of
from keras_transformer.importing.pieces import MAX_MODEL_BYTES, ControlIds, Vocabulary, fixed_logits, joint_vocabulary
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.weights import TRANSPOSED, Imported, Weight, Weights, are_same, first_of, open_weights
from keras_transformer.options import Config

# The feed-forward network, its activation, and what Hugging Face calls it.
FEED_FORWARDS = {
    "relu": ("plain", "relu", "relu"),
    "gated-gelu": ("gated", "gelu_tanh", "gelu_new"),
    "gated-silu": ("gated", "silu", "silu"),
}
# Options with the one value that the architecture has.
FIXED: Config = {
    "add_cross_attention": False, "cross_attention_hidden_size": None, "is_decoder": False, "is_encoder_decoder": True,
    "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip
# Options that act in training alone, or in a head that is no translator's.
WITHOUT_EFFECT = {"classifier_dropout", "initializer_factor", "output_past"}
MAX_SENTINELS = 10_000
SPECIAL = ("additional_special_tokens", "extra_special_tokens")  # lists in a tokenizer's configuration, old and new

SHARED, OUTPUT = "shared.weight", "lm_head.weight"
COPIES = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
# Old files have it. Their encoder-decoder attention never had such a bias.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
PROJECTIONS = {"query": "q", "key": "k", "value": "v"}
PLAIN, GATED = {"kernel_in": "wi"}, {"kernel_gate": "wi_0", "kernel_in": "wi_1"}


def read(folder: ModelFolder) -> Imported:
    """Reads a T5 model.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = Options(folder.json("config.json"), str(folder.path / "config.json"))
    options.expect(FIXED)
    vocabulary, control = _vocabulary(folder, options)
    never = {*vocabulary.ids[: vocabulary.num_control_ids]} - {control.end}
    search = search_of(folder, options, control.end, never, {})
    file = open_weights(folder)
    ties = options.switch("tie_word_embeddings", True)
    is_scaled = options.switch("scale_decoder_outputs", ties)
    is_tied = ties and (OUTPUT not in file.places or SHARED not in file.places or are_same(file, OUTPUT, SHARED))
    config = _config(options) | {"vocabulary_size": len(vocabulary.ids), "tied_output": is_tied}
    config["num_control_ids"] = vocabulary.num_control_ids
    options.finish(INERT | WITHOUT_EFFECT)
    try:
        config = family.complete(config)
    except ValueError as error:
        raise RequestError(f"{options.where}: {error}") from error
    return Imported(config, _weights(file, config, vocabulary, is_scaled), (vocabulary,), search)


def _vocabulary(folder: ModelFolder, options: Options) -> tuple[Vocabulary, ControlIds]:
    size = options.size("vocab_size")
    content, tokenizer = folder.read("spiece.model", MAX_MODEL_BYTES), _tokenizer_options(folder)
    count = tokenizer.whole("extra_ids", MAX_SENTINELS, 100)
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(count))]
    try:
        vocabulary, control = joint_vocabulary(content, size, sentinels)
    except ValueError as error:
        raise RequestError(f"{folder.path / 'spiece.model'}: {error}; download it again") from error
    options.expect({"pad_token_id": control.pad, "eos_token_id": control.end, "decoder_start_token_id": control.start})
    _check_added(folder, tokenizer, {"<pad>", "</s>", "<unk>", *sentinels})
    return vocabulary, control


def _tokenizer_options(folder: ModelFolder) -> Options:
    name = "tokenizer_config.json"
    return Options(folder.json(name) if folder.has(name) else {}, str(folder.path / name))


def _check_added(folder: ModelFolder, tokenizer: Options, known: set[str]) -> None:
    """Raises RequestError if the tokenizer has pieces that were added later, which `spiece.model` does not know."""
    tokenizer.expect({"sp_model_kwargs": {}})
    added = {name: tokenizer.pop(name) for name in ("added_tokens_decoder", *SPECIAL)}
    if folder.has("added_tokens.json"):
        added["added_tokens.json"] = [*folder.json("added_tokens.json")]
    for name, entries in added.items():
        entries = [*entries.values()] if isinstance(entries, dict) else entries
        for entry in entries if isinstance(entries, list) else [] if entries is None else [entries]:
            text = entry.get("content") if isinstance(entry, dict) else entry
            if text not in [*known]:
                raise tokenizer.refusal(name, text, "the sentinels of T5 alone")


def _config(options: Options) -> Config:
    """The arguments of our model, but for those that the vocabulary and the weights tell."""
    kind, activation, name = options.choice("feed_forward_proj", FEED_FORWARDS, "relu")
    options.expect({"dense_act_fn": name, "is_gated_act": kind == "gated"})
    depth, rate = options.size("num_layers"), options.number("dropout_rate", 0.1)
    return {
        "num_heads": options.size("num_heads"),
        "hidden_dim": options.size("d_model"),
        "key_dim": options.size("d_kv"),
        "intermediate_dim": options.size("d_ff"),
        "encoder_layers": depth,
        "decoder_layers": options.size("num_decoder_layers", depth),
        "dropout": rate,
        "attention_dropout": rate,
        "max_source_length": options.size("n_positions", 512) - 1,  # less the end id
        "positions": {
            "name": "buckets",
            "num_buckets": options.size("relative_attention_num_buckets", 32),
            "max_distance": options.size("relative_attention_max_distance", 128),
        },
        "score": "dot",
        "residual": "pre_norm",
        "norm": {"name": "rms", "epsilon": options.number("layer_norm_epsilon", 1e-6)},
        "feed_forward": kind,
        "activation": activation,
        "output_bias": True,
        "embedding_scale": 1.0,
    }


def _weights(file: TensorFile, config: Config, vocabulary: Vocabulary, is_scaled: bool) -> Weights:
    """The tensors of the model, checked: all that it needs, and none that it does not know."""
    width, is_tied = config["hidden_dim"], config["tied_output"]
    embedding = first_of(file, [SHARED, *COPIES, *([OUTPUT] if is_tied else [])])
    gain = width**-0.5 if is_scaled else 1.0
    buckets = "layer.0.SelfAttention.relative_attention_bias.weight"
    table = [
        Weight("target_embedding.embeddings", embedding, "VD"),
        *([] if is_tied else [Weight("output_embedding.embeddings", OUTPUT, "VD")]),
        Weight("output_embedding.bias", "", "V", default=0.0, fixed=fixed_logits(vocabulary.ids)),
        Weight("positions.encoder_biases", f"encoder.block.0.{buckets}", "BN"),
        Weight("positions.decoder_biases", f"decoder.block.0.{buckets}", "BN"),
        Weight("encoder_stack.norm.scale", "encoder.final_layer_norm.weight", "D"),
        Weight("decoder_stack.norm.scale", "decoder.final_layer_norm.weight", "D", factor=gain),
        *_blocks(config),
    ]
    sizes = {
        "V": len({*vocabulary.ids}), "D": width, "H": config["num_heads"] * config["key_dim"], "N": config["num_heads"],
        "F": config["intermediate_dim"], "B": config["positions"]["num_buckets"],
    }  # fmt: skip
    orders = {"V": np.array(vocabulary.ids)}
    return Weights(file, table, sizes, orders, {SHARED, *COPIES, OUTPUT, UNUSED})


def _blocks(config: Config) -> Iterator[Weight]:
    """The weights of the blocks. H is the width of all heads. Our biases, which T5 lacks, stay 0 as they are made."""
    attentions = {"self_attention": "SelfAttention", "cross_attention": "EncDecAttention"}
    kernels = PLAIN if config["feed_forward"]["name"] == "plain" else GATED
    for stack, count, depth in zip(("encoder", "decoder"), (1, 2), family.depths(config), strict=True):
        for number in range(depth):
            block, layers = f"{stack}_stack.blocks.{number}", f"{stack}.block.{number}.layer"
            for place, (ours, theirs) in enumerate([*attentions.items()][:count]):
                for name, projection in PROJECTIONS.items():
                    kernel = f"{layers}.{place}.{theirs}.{projection}.weight"
                    yield Weight(f"{block}.{ours}.{name}_kernel", kernel, "HD", order=TRANSPOSED)
                kernel = f"{layers}.{place}.{theirs}.o.weight"
                yield Weight(f"{block}.{ours}.output_kernel", kernel, "DH", order=TRANSPOSED)
                yield Weight(f"{block}.{ours}_residual.norm.scale", f"{layers}.{place}.layer_norm.weight", "D")
            feed_forward, theirs = f"{block}.feed_forward", f"{layers}.{count}.DenseReluDense"
            for name, kernel in kernels.items():
                yield Weight(f"{feed_forward}.{name}", f"{theirs}.{kernel}.weight", "FD", order=TRANSPOSED)
            yield Weight(f"{feed_forward}.kernel_out", f"{theirs}.wo.weight", "DF", order=TRANSPOSED)
            yield Weight(f"{feed_forward}_residual.norm.scale", f"{layers}.{count}.layer_norm.weight", "D")
