"""What BERT and ViT have in common in Hugging Face's format: options, labels, and the names of a block's tensors."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from keras_transformer.importing.folder import Options
from keras_transformer.importing.weights import TRANSPOSED, Weight

# Options with the one value that the architectures have.
ENCODER_FIXED: dict[str, Any] = {
    "add_cross_attention": False, "is_decoder": False, "is_encoder_decoder": False, "pruned_heads": {},
    "tie_encoder_decoder": False,
}  # fmt: skip
ENCODER_WITHOUT_EFFECT = {"classifier_dropout", "cross_attention_hidden_size", "initializer_range"}
MAX_LABELS = 1_000_000
DEFAULT_LABELS = {"0": "LABEL_0", "1": "LABEL_1"}  # of a configuration that names none
PARTS = ("query", "key", "value")
# The other products of a block: our kernel and bias, the name of theirs, its axes.
PRODUCTS = [
    ("self_attention.output_kernel", "self_attention.output_bias", "attention.output.dense", "DH"),
    ("feed_forward.kernel_in", "feed_forward.bias_in", "intermediate.dense", "FD"),
    ("feed_forward.kernel_out", "feed_forward.bias_out", "output.dense", "DF"),
]


def encoder_config(options: Options) -> dict[str, Any]:
    """The arguments of our model that the architectures have in common."""
    return {
        "num_layers": options.size("num_hidden_layers"),
        "num_heads": options.size("num_attention_heads"),
        "hidden_dim": options.size("hidden_size"),
        "intermediate_dim": options.size("intermediate_size"),
        "dropout": options.number("hidden_dropout_prob", 0.0),
        "attention_dropout": options.number("attention_probs_dropout_prob", 0.0),
        "activation": options.activation("hidden_act", "gelu"),
        "norm": {"name": "layer", "epsilon": options.number("layer_norm_eps", 1e-12)},
        "positions": "learned",
        "attention_bias": True,
    }


def labels_of(options: Options) -> list[str]:
    """The labels in the order of the logits. Of equal names the later ones get their number too.

    Raises:
        RequestError: they are not numbered from 0, or are no texts.
    """
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


def encoder_block(ours: str, theirs: str, attention: str, has_biases: bool = True) -> Iterator[Weight]:
    """The weights of a block but its norms. H is the width of all heads, of which no order changes.

    Args:
        ours, theirs: the names of the block.
        attention: what theirs calls the heads.
        has_biases: whether queries, keys and values have biases.
    """
    for name in PARTS:
        projection = f"{theirs}.attention.{attention}.{name}"
        yield Weight(f"{ours}.self_attention.{name}_kernel", f"{projection}.weight", "HD", order=TRANSPOSED)
        default = None if has_biases else 0.0
        yield Weight(f"{ours}.self_attention.{name}_bias", f"{projection}.bias", "H", default=default)
    for kernel, bias, name, axes in PRODUCTS:
        yield Weight(f"{ours}.{kernel}", f"{theirs}.{name}.weight", axes, order=TRANSPOSED)
        yield Weight(f"{ours}.{bias}", f"{theirs}.{name}.bias", axes[0])
