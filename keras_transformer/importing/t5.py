"""Imports T5's models, v1.0 and v1.1 (Raffel et al. 2020, arXiv 1910.10683; Shazeer 2020, arXiv 2002.05202), and those
of the form v1.1 for many languages: mT5 (Xue et al. 2021, arXiv 2010.11934) and MADLAD-400 (Kudugunta et al. 2023,
arXiv 2309.04662).

They are the family's model with buckets of distances, RMS norms before the sub-layers, no factor on dot products and
embeddings, and no biases. v1.1 has a gated feed-forward network and mostly its own output matrix. v1.0 divides the
states before the tied output by √D: here the gains of the decoder's last norm are divided, which is the same.

Source and target have one vocabulary. The sentinels, `<extra_id_0>` and so on, are pieces of text. Rows of T5's matrix
for which the tokenizer has no piece are left out. Decoding starts with the pad id, so the row of our start id is a copy
of the pad's, or of whatever id it starts with. mT5 and MADLAD-400 have no sentinels. A source of MADLAD-400 begins with
the tag of the target language, such as `<2de>`, which is a piece of its SentencePiece model.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.importing.folder import (
    HARMLESS_OPTIONS,
    ModelFolder,
    Options,
    RequiredValues,
    completed,
    options_of,
    read_named,
    search_of,
    write_named,
)
from keras_transformer.importing.sentencepiece_rewrite import (
    MAX_MODEL_BYTES,
    ControlIds,
    Vocabulary,
    fixed_logits,
    joint_vocabulary,
    sentencepiece_model,
)
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.text_files import check_added, tokenizer_options
from keras_transformer.importing.weights import (
    Imported,
    Layout,
    Weight,
    Weights,
    are_same,
    block_weights,
    first_of,
    open_weights,
)
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config
from keras_transformer.text.tokenizer import SPACE

# The feed-forward network, its activation, and what Hugging Face calls it.
FEED_FORWARDS = {
    "relu": ("plain", "relu", "relu"),
    "gated-gelu": ("gated", "gelu_tanh", "gelu_new"),
    "gated-silu": ("gated", "silu", "silu"),
}
REQUIRED: RequiredValues = {
    "add_cross_attention": False, "cross_attention_hidden_size": None, "is_decoder": False, "is_encoder_decoder": True,
    "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip
# Options that act in training alone, or in a head that is no translator's.
WITHOUT_EFFECT = {"classifier_dropout", "initializer_factor", "output_past"}
MAX_SENTINELS = 10_000

# Arguments of our model, and what the architecture calls them.
NAMES = {
    "num_heads": "num_heads", "hidden_dim": "d_model", "key_dim": "d_kv", "intermediate_dim": "d_ff",
    "encoder_layers": "num_layers", "dropout": "dropout_rate", "norm": "layer_norm_epsilon",
}  # fmt: skip
SHARED, OUTPUT = "shared.weight", "lm_head.weight"
COPIES = ["encoder.embed_tokens.weight", "decoder.embed_tokens.weight"]
# Old files have it. Their encoder-decoder attention never had such a bias.
UNUSED = "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"
# What it calls the parts of an attention and of a feed-forward network, by what they are here.
ATTENTION = {"query": "q", "key": "k", "value": "v", "output": "o"}
PLAIN, GATED = {"in": "wi", "out": "wo"}, {"gate": "wi_0", "in": "wi_1", "out": "wo"}


def read(folder: ModelFolder, is_mt5: bool = False) -> Imported:
    """Reads a T5 model, MADLAD-400's among them, or an mT5.

    Raises:
        RequestError: a file is missing or damaged, or the model has an option or a tensor that is not known.
    """
    options = options_of(folder, "config.json", REQUIRED)
    options.take_start(folder)
    size = options.size("vocab_size")
    vocabulary, control = _vocabulary(folder, options, size)
    never = {*vocabulary.ids[: vocabulary.num_control_ids], *range(max(vocabulary.ids) + 1, size)} - {control.end}
    search = search_of(folder, options, control.end, never, {})
    file = open_weights(folder)
    ties = options.switch("tie_word_embeddings", True) or is_mt5  # the tensors tell whether an mT5 is tied
    is_scaled = options.switch("scale_decoder_outputs", ties) and not is_mt5
    is_tied = ties and (OUTPUT not in file.places or SHARED not in file.places or are_same(file, OUTPUT, SHARED))
    config = arguments(options, "gated-gelu" if is_mt5 else "relu")
    config |= {"vocabulary_size": len(vocabulary.ids), "tied_output": is_tied}
    config["num_control_ids"] = vocabulary.num_control_ids
    options.finish(HARMLESS_OPTIONS | WITHOUT_EFFECT)
    config = completed(options, config)
    return Imported(config, Weights(file, layout(file, config, vocabulary.ids, size, is_scaled)), (vocabulary,), search)


def _vocabulary(folder: ModelFolder, options: Options, size: int) -> tuple[Vocabulary, ControlIds]:
    tokenizer = tokenizer_options(folder)
    count = tokenizer.whole("extra_ids", MAX_SENTINELS, 100)
    start, pad = (
        options.whole(name, size - 1) if options.has(name) else None
        for name in ("decoder_start_token_id", "pad_token_id")
    )
    sentinels = [f"<extra_id_{number}>" for number in reversed(range(count))]
    is_alone = folder.has("tokenizer.json") and not folder.has("spiece.model")  # as transformers 5 writes folders
    name = "tokenizer.json" if is_alone else "spiece.model"
    content = folder.json(name) if is_alone else folder.read(name, MAX_MODEL_BYTES)
    try:
        model = sentencepiece_model(content, sentinels) if isinstance(content, dict) else content
        vocabulary, control = joint_vocabulary(model, size, sentinels, start, pad)
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{folder.path / name}: {error}; download it again") from error
    if pad not in (None, control.pad):
        raise options.refusal("pad_token_id", pad, f"{control.pad!r} alone")
    options.expect({"eos_token_id": control.end})
    known = {"<pad>", "<s>", "</s>", "<unk>", *sentinels}
    known |= {tag.removeprefix(SPACE) for tag in vocabulary.tokenizer.tags}
    check_added(folder, tokenizer, known, "the sentinels of T5 alone")
    return vocabulary, control


def arguments(options: Options, feed_forward: str = "relu") -> Config:
    """Returns the arguments of our model, but for those that the vocabulary and the weights tell.

    Args:
        options: those of config.json.
        feed_forward: the network where they name none.
    """
    kind, activation, name = options.choice("feed_forward_proj", FEED_FORWARDS, feed_forward)
    options.expect({"dense_act_fn": name, "is_gated_act": kind == "gated"})
    config = read_named(options, NAMES, "rms", dropout=0.1, norm=1e-6)
    return {
        **config,
        "decoder_layers": options.size("num_decoder_layers", config["encoder_layers"]),
        "attention_dropout": config["dropout"],
        "max_source_length": options.size("n_positions", 512) - 1,  # less the end id
        "positions": {
            "name": "buckets",
            "num_buckets": options.size("relative_attention_num_buckets", 32),
            "max_distance": options.size("relative_attention_max_distance", 128),
        },
        "score": "dot",
        "residual": "pre_norm",
        "feed_forward": kind,
        "activation": activation,
        "output_bias": True,
        "fixed_output_bias": True,  # T5 has no place for another
        "embedding_scale": 1.0,
    }


def t5_options(config: Config) -> Config:
    """Returns the options that `arguments` reads as this configuration, if T5 has a form of it."""
    positions, ours = config["positions"], (config["feed_forward"]["name"], config["activation"]["name"])
    # The one that is the same, or else one of the same kind.
    forms = sorted(FEED_FORWARDS, key=lambda name: (FEED_FORWARDS[name][:2] != ours, FEED_FORWARDS[name][0] != ours[0]))
    return {
        **write_named(config, NAMES),
        "num_decoder_layers": config["decoder_layers"],
        "n_positions": config["max_source_length"] + 1,
        "relative_attention_num_buckets": positions.get("num_buckets"),
        "relative_attention_max_distance": positions.get("max_distance"),
        "feed_forward_proj": forms[0],
        "tie_word_embeddings": config["tied_output"],
    }


def layout(file: TensorFile, config: Config, ids: list[int], size: int, is_scaled: bool) -> Layout:
    """Returns where the weights lie: under the names that the file has, or the usual ones if it has none.

    Args:
        file: the tensors.
        config: the complete arguments of our model.
        ids: for each of our ids, theirs.
        size: the rows of the matrices.
        is_scaled: whether the states before the output are divided by √D.
    """
    width, is_tied = config["hidden_dim"], config["tied_output"]
    embedding = first_of(file, [SHARED, *COPIES, *([OUTPUT] if is_tied else [])])
    gain = width**-0.5 if is_scaled else 1.0
    buckets = "layer.0.SelfAttention.relative_attention_bias.weight"
    table = [
        Weight("target_embedding.embeddings", embedding, "VD"),
        *([] if is_tied else [Weight("output_embedding.embeddings", OUTPUT, "VD")]),
        Weight("output_embedding.bias", "", "V", default=0.0, fixed=fixed_logits(ids)),
        Weight("positions.encoder_biases", f"encoder.block.0.{buckets}", "BN"),
        Weight("positions.decoder_biases", f"decoder.block.0.{buckets}", "BN"),
        Weight("encoder_stack.norm.scale", "encoder.final_layer_norm.weight", "D"),
        Weight("decoder_stack.norm.scale", "decoder.final_layer_norm.weight", "D", factor=gain),
        *_blocks(config),
    ]
    sizes = {
        "V": size, "D": width, **dict.fromkeys("HG", config["num_heads"] * config["key_dim"]), "N": config["num_heads"],
        "F": config["intermediate_dim"], "B": config["positions"]["num_buckets"],
    }  # fmt: skip
    return Layout(table, sizes, {"V": np.array(ids)}, {SHARED, *COPIES, OUTPUT, UNUSED})


def _blocks(config: Config) -> Iterator[Weight]:
    """Yields the weights of the blocks. Our biases, which T5 lacks, stay 0 as they are made."""
    kernels = PLAIN if config["feed_forward"]["name"] == "plain" else GATED
    parts = [
        ("self_attention", "SelfAttention", ATTENTION),
        ("cross_attention", "EncDecAttention", ATTENTION),
        ("feed_forward", "DenseReluDense", kernels),
    ]
    for stack, own, depth in zip(("encoder", "decoder"), (parts[::2], parts), model_spec.depths(config), strict=True):
        names = dict[str, str]()
        for place, (ours, theirs, modules) in enumerate(own):
            names |= {f"{ours}.{part}": f"{place}.{theirs}.{module}" for part, module in modules.items()}
            names[f"{ours}_residual.norm"] = f"{place}.layer_norm"
        for number in range(depth):
            block, layers = f"{stack}_stack.blocks.{number}", f"{stack}.block.{number}.layer"
            yield from block_weights(block, layers, names, has_biases=False)
