"""What BART and Marian share in Hugging Face's format, what GPT-2 and Llama share, and what BERT's family and
ViT share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from keras_transformer.core.errors import RequestError
from keras_transformer.importing.folder import (
    ACTIVATIONS,
    INERT,
    NEUTRAL_SEARCH,
    NONE,
    READ_SEARCH,
    SEARCH_WITHOUT_EFFECT,
    ModelFolder,
    Options,
    asked_search,
)
from keras_transformer.importing.sentencepiece_rewrite import NEVER, count_ids
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.text_files import end_of, text_vocabulary
from keras_transformer.importing.weights import (
    TRANSPOSED,
    Imported,
    Layout,
    Weight,
    Weights,
    norm_weights,
    open_weights,
)
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN

# Options with the one value that the architectures have. Old files say them.
SEQ2SEQ_FIXED: Config = {
    "add_bias_logits": False, "add_cross_attention": False, "add_final_layer_norm": False,
    "cross_attention_hidden_size": None, "is_decoder": False, "is_encoder_decoder": True, "normalize_before": False,
    "pruned_heads": {}, "tie_encoder_decoder": False,
}  # fmt: skip
# Options that act in training alone, or repeat others.
SEQ2SEQ_WITHOUT_EFFECT = {
    "activation_dropout", "classif_dropout", "classifier_dropout", "decoder_layerdrop", "encoder_layerdrop",
    "extra_pos_embeddings", "num_hidden_layers",
}  # fmt: skip
BART_EPSILON = 1e-5  # PyTorch's, for layer normalization
# Arguments of our model, and what the architectures call them; for `norm`, what they call its ε.
BART_NAMES = {
    "num_heads": "encoder_attention_heads", "intermediate_dim": "encoder_ffn_dim", "hidden_dim": "d_model",
    "encoder_layers": "encoder_layers", "decoder_layers": "decoder_layers", "dropout": "dropout",
    "attention_dropout": "attention_dropout", "activation": "activation_function",
}  # fmt: skip
DECODER_NAMES = {"num_heads": "decoder_attention_heads", "intermediate_dim": "decoder_ffn_dim"}
ENCODER_NAMES = {
    "num_layers": "num_hidden_layers", "num_heads": "num_attention_heads", "hidden_dim": "hidden_size",
    "intermediate_dim": "intermediate_size", "dropout": "hidden_dropout_prob",
    "attention_dropout": "attention_probs_dropout_prob", "activation": "hidden_act", "norm": "layer_norm_eps",
}  # fmt: skip

ATTENTIONS = {"self_attention": "self_attn", "cross_attention": "encoder_attn"}  # ours, and theirs
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj"}
SHARED, OUTPUT = "model.shared.weight", "lm_head.weight"
SOURCE, TARGET = "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"
POSITIONS = ("model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight")
# How they draw, and what they pad with: a generator of ours is told how to search.
CAUSAL_WITHOUT_EFFECT = {
    *SEARCH_WITHOUT_EFFECT, *READ_SEARCH, "initializer_range", "pad_token_id", "is_encoder_decoder",
}  # fmt: skip
# Options with the one value that the architectures have.
ENCODER_FIXED: Config = {
    "add_cross_attention": False, "is_decoder": False, "is_encoder_decoder": False, "pruned_heads": {},
    "tie_encoder_decoder": False,
}  # fmt: skip
ENCODER_WITHOUT_EFFECT = {"classifier_dropout", "cross_attention_hidden_size", "initializer_range"}
MAX_LABELS = 1_000_000
DEFAULT_LABELS = {"0": "LABEL_0", "1": "LABEL_1"}  # for a configuration that names none
PARTS = ("query", "key", "value")
# What BERT and RoBERTa call the modules of a block, by what they are here.
ENCODER_BLOCK = {
    **{name: f"attention.self.{name}" for name in PARTS}, "output": "attention.output.dense",
    "attention_norm": "attention.output.LayerNorm", "in": "intermediate.dense", "out": "output.dense",
    "norm": "output.LayerNorm",
}  # fmt: skip
# The other products of a block: our kernel and bias, which module of theirs, its axes.
PRODUCTS = [
    ("self_attention.output_kernel", "self_attention.output_bias", "output", "DH"),
    ("feed_forward.kernel_in", "feed_forward.bias_in", "in", "FD"),
    ("feed_forward.kernel_out", "feed_forward.bias_out", "out", "DF"),
]


def read_named(options: Options, names: Mapping[str, str], norm_name: str = "layer", **defaults: Any) -> Config:
    """Arguments of our model, which an architecture has under these names. That of `norm` is the ε of a norm."""
    readers: dict[str, Callable[..., Any]] = {
        "activation": Options.activation, "norm": Options.number, "dropout": Options.number,
        "attention_dropout": Options.number,
    }  # fmt: skip
    config = {
        ours: readers.get(ours, Options.size)(options, theirs, defaults.get(ours)) for ours, theirs in names.items()
    }
    return config | ({"norm": {"name": norm_name, "epsilon": config["norm"]}} if "norm" in names else {})


def write_named(config: Config, names: Mapping[str, str]) -> Config:
    """The options that `read_named` reads as this configuration, which must be complete."""
    name = config["activation"]["name"]
    activation = next((theirs for theirs, ours in ACTIVATIONS.items() if ours == name), name)
    values = {**config, "activation": activation, "norm": config["norm"]["epsilon"]}
    return {theirs: values[ours] for ours, theirs in names.items()}


def bart_config(options: Options) -> Config:
    """The arguments of our model that the architectures have in common."""
    config = read_named(options, BART_NAMES, dropout=0.1, attention_dropout=0.0)
    for ours, theirs in DECODER_NAMES.items():
        if (received := options.size(theirs)) != config[ours]:
            raise options.refusal(theirs, received, f"{config[ours]}, as in the encoder")
    return {
        **config,
        "max_source_length": options.size("max_position_embeddings") - 1,  # less the end id
        "norm": {"name": "layer", "epsilon": BART_EPSILON},
        "attention_bias": True,
        "output_bias": True,
        "embedding_scale": None if options.switch("scale_embedding", False) else 1.0,
    }


def bart_options(config: Config) -> Config:
    """The options that `bart_config` reads as this configuration, if the architectures have a form of it."""
    return {
        **write_named(config, BART_NAMES),
        **write_named(config, DECODER_NAMES),
        "max_position_embeddings": config["max_source_length"] + 1,
        "scale_embedding": config["embedding_scale"] != 1,
    }


def bart_blocks(config: Config) -> Iterator[Weight]:
    """The weights of the blocks. H is the width of all heads, of which no order changes."""
    for stack, names, depth in zip(
        ("encoder", "decoder"), (["self_attention"], [*ATTENTIONS]), model_spec.depths(config), strict=True
    ):
        for number in range(depth):
            block, layer = f"{stack}_stack.blocks.{number}", f"model.{stack}.layers.{number}"
            for name in names:
                yield from _attention(f"{block}.{name}", f"{layer}.{ATTENTIONS[name]}")
            feed_forward = f"{block}.feed_forward"
            yield Weight(f"{feed_forward}.kernel_in", f"{layer}.fc1.weight", "FD", order=TRANSPOSED)
            yield Weight(f"{feed_forward}.bias_in", f"{layer}.fc1.bias", "F")
            yield Weight(f"{feed_forward}.kernel_out", f"{layer}.fc2.weight", "DF", order=TRANSPOSED)
            yield Weight(f"{feed_forward}.bias_out", f"{layer}.fc2.bias", "D")
            yield from norm_weights(f"{feed_forward}_residual.norm", f"{layer}.final_layer_norm")


def _attention(ours: str, theirs: str) -> Iterator[Weight]:
    for name, projection in PROJECTIONS.items():
        yield Weight(f"{ours}.{name}_kernel", f"{theirs}.{projection}.weight", "HD", order=TRANSPOSED)
        yield Weight(f"{ours}.{name}_bias", f"{theirs}.{projection}.bias", "H")
    yield Weight(f"{ours}.output_kernel", f"{theirs}.out_proj.weight", "DH", order=TRANSPOSED)
    yield Weight(f"{ours}.output_bias", f"{theirs}.out_proj.bias", "D")
    yield from norm_weights(f"{ours}_residual.norm", f"{theirs}_layer_norm")


def ids_of(folder: ModelFolder, options: Options, asked: Options, size: int) -> tuple[list[int], int | list[int]]:
    """For each of our ids, theirs, of which the matrices have `size`; and the ids of ours that end a text.
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
    """The ids that end a text."""
    ends = options.pop("eos_token_id") if options.has("eos_token_id") else [*default]
    ends = ends if isinstance(ends, list) else [ends]
    if not ends or not all(type(id) is int and 0 <= id < size for id in ends):
        raise options.refusal("eos_token_id", ends, f"whole numbers from 0 to {size - 1:,}")
    return list(dict.fromkeys(ends))


def copies(ids: list[int]) -> dict[int, float]:
    """The biases on the logits of our ids that are copies, so that they take no probability."""
    places = (PAD, UNKNOWN) if ids.count(ids[START]) == START + 1 else (PAD, UNKNOWN, START)
    return dict.fromkeys(places, NEVER)


def language_model(
    folder: ModelFolder,
    options: Options,
    config: Config,
    without_effect: set[str],
    layout: Callable[[TensorFile, Config, list[int], int], Layout],
) -> Imported:
    """What was read of a language model.

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
    asked.tell_lost({**NEUTRAL_SEARCH, "bad_words_ids": None, "forced_eos_token_id": None})
    asked.finish(INERT | CAUSAL_WITHOUT_EFFECT | {"decoder_start_token_id"}, NONE)
    options.finish(INERT | CAUSAL_WITHOUT_EFFECT | without_effect)
    config = completed(options, {**config, "vocabulary_size": len(ids), "end_ids": end_ids}, complete_language_model)
    file = open_weights(folder)
    weights = Weights(file, layout(file, config, ids, size))
    # After the file has shown that it has a row for each.
    vocabulary = text_vocabulary(folder, ids, has_ends=False)
    return Imported(config, weights, (vocabulary,))


def completed(options: Options, config: Config, complete: Callable[[Config], Config] = model_spec.complete) -> Config:
    """The complete arguments of our model. Raises RequestError, which names the file, if no model has these."""
    try:
        return complete(config)
    except ValueError as error:
        raise RequestError(f"{options.where}: {error}") from error


def complete_language_model(config: Config) -> Config:
    """A language model's configuration with what the architectures have in common. Raises ValueError as `complete`."""
    # The bias keeps copies of rows from taking a probability; the architectures have no other.
    fixed = {"output_bias": True, "fixed_output_bias": True, "embedding_scale": 1.0, "residual": "pre_norm"}
    return {"kind": "language-model", **model_spec.complete({**config, **fixed}, "language-model")}


def encoder_config(options: Options, names: Mapping[str, str] = ENCODER_NAMES, dropout: float = 0.0) -> Config:
    """The arguments of our model that the architectures have in common. `dropout` is what an option left out means."""
    defaults: Config = {"dropout": dropout, "attention_dropout": dropout, "activation": "gelu", "norm": 1e-12}
    return {**read_named(options, names, **defaults), "positions": "learned", "attention_bias": True}


def labels_of(options: Options) -> list[str]:
    """The labels in the order of the logits. Of equal names the later ones get their number too.

    Raises:
        RequestError: they are not numbered from 0, or are no texts, or a text or an image has several.
    """
    options.expect({"problem_type": "single_label_classification"})
    names = options.pop("id2label") or DEFAULT_LABELS
    options.pop("label2id")
    numbers = [str(number) for number in range(len(names))] if isinstance(names, dict | list) else []
    if not isinstance(names, dict) or not 2 <= len(names) <= MAX_LABELS or {*names} != {*numbers}:
        raise options.refusal("id2label", names, "labels by their numbers, from 0, at least two")
    labels: dict[str, None] = {}  # in order, and each once
    for number in numbers:
        if not isinstance(label := names[number], str):
            raise options.refusal("id2label", label, "texts")
        while label in labels:
            label = f"{label} ({number})"
        labels[label] = None
    return list(labels)


def encoder_block(ours: str, theirs: str, names: Mapping[str, str], has_biases: bool = True) -> Iterator[Weight]:
    """The weights of a block but its norms. H is the width of all heads, of which no order changes.

    Args:
        ours, theirs: the names of the block.
        names: what theirs calls its modules, see `ENCODER_BLOCK`.
        has_biases: whether queries, keys and values have biases.
    """
    for name in PARTS:
        projection = f"{theirs}.{names[name]}"
        yield Weight(f"{ours}.self_attention.{name}_kernel", f"{projection}.weight", "HD", order=TRANSPOSED)
        default = None if has_biases else 0.0
        yield Weight(f"{ours}.self_attention.{name}_bias", f"{projection}.bias", "H", default=default)
    for kernel, bias, name, axes in PRODUCTS:
        yield Weight(f"{ours}.{kernel}", f"{theirs}.{names[name]}.weight", axes, order=TRANSPOSED)
        yield Weight(f"{ours}.{bias}", f"{theirs}.{names[name]}.bias", axes[0])
