"""Tiny BERT and ViT models in Hugging Face's format, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.importing.marian_folder import safetensors
from tests.importing.numpy_marian import Arrays

SIZE, WIDTH, INNER, CONTEXT, LAYERS, SEGMENTS = 30, 8, 12, 10, 2, 2
IMAGE, PATCH, CHANNELS = 6, 2, 3
SPECIAL = {"[PAD]": 0, "[UNK]": 20, "[CLS]": 21, "[SEP]": 22, "[MASK]": 23}
LABELS = {"0": "crane", "1": "dog", "2": "crane"}
COMMON: dict[str, Any] = {
    "hidden_size": WIDTH, "intermediate_size": INNER, "num_hidden_layers": LAYERS, "num_attention_heads": 2,
    "hidden_act": "gelu", "layer_norm_eps": 1e-12, "hidden_dropout_prob": 0.1, "attention_probs_dropout_prob": 0.1,
    "initializer_range": 0.02, "id2label": LABELS, "label2id": {"crane": 2, "dog": 1},
}  # fmt: skip
BERT: dict[str, Any] = {
    **COMMON, "model_type": "bert", "vocab_size": SIZE, "max_position_embeddings": CONTEXT, "pad_token_id": 0,
    "type_vocab_size": SEGMENTS, "position_embedding_type": "absolute", "use_cache": True, "classifier_dropout": None,
}  # fmt: skip
VIT: dict[str, Any] = {
    **COMMON, "model_type": "vit", "image_size": IMAGE, "patch_size": PATCH, "num_channels": CHANNELS, "qkv_bias": True,
    "encoder_stride": 16,
}  # fmt: skip
PROCESSOR: dict[str, Any] = {
    "do_normalize": True, "do_resize": True, "do_rescale": True, "rescale_factor": 0.00392156862745098, "resample": 2,
    "image_mean": [0.5, 0.4, 0.3], "image_std": [0.5, 0.5, 0.5], "size": {"height": IMAGE, "width": IMAGE},
    "image_processor_type": "ViTImageProcessor",
}  # fmt: skip
HEADS: dict[str, dict[str, tuple[int, ...]]] = {
    "labels": {
        "bert.pooler.dense.weight": (WIDTH, WIDTH), "bert.pooler.dense.bias": (WIDTH,),
        "classifier.weight": (3, WIDTH), "classifier.bias": (3,),
    },
    "tokens": {
        "cls.predictions.transform.dense.weight": (WIDTH, WIDTH), "cls.predictions.transform.dense.bias": (WIDTH,),
        "cls.predictions.transform.LayerNorm.gamma": (WIDTH,), "cls.predictions.transform.LayerNorm.beta": (WIDTH,),
        "cls.predictions.bias": (SIZE,), "cls.seq_relationship.weight": (2, WIDTH), "cls.seq_relationship.bias": (2,),
    },
    "none": {"bert.pooler.dense.weight": (WIDTH, WIDTH), "bert.pooler.dense.bias": (WIDTH,)},
}  # fmt: skip


def blocks(prefix: str, heads: str, norms: tuple[str, str]) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of the blocks."""
    products = {
        **{f"attention.{heads}.{name}": (WIDTH, WIDTH) for name in ("query", "key", "value")},
        "attention.output.dense": (WIDTH, WIDTH), "intermediate.dense": (INNER, WIDTH), "output.dense": (WIDTH, INNER),
    }  # fmt: skip
    found: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        for name, shape in products.items():
            found |= {f"{prefix}.{layer}.{name}.weight": shape, f"{prefix}.{layer}.{name}.bias": shape[:1]}
        for name in norms:
            found |= {f"{prefix}.{layer}.{name}.{part}": (WIDTH,) for part in ("weight", "bias")}
    return found


def shapes(head: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors of a BERT by their names; for "images" of a ViT."""
    if head == "images":
        return {
            "vit.embeddings.cls_token": (1, 1, WIDTH), "vit.embeddings.position_embeddings": (1, 10, WIDTH),
            "vit.embeddings.patch_embeddings.projection.weight": (WIDTH, CHANNELS, PATCH, PATCH),
            "vit.embeddings.patch_embeddings.projection.bias": (WIDTH,),
            **blocks("vit.encoder.layer", "attention", ("layernorm_before", "layernorm_after")),
            "vit.layernorm.weight": (WIDTH,), "vit.layernorm.bias": (WIDTH,), "classifier.weight": (3, WIDTH),
            "classifier.bias": (3,),
        }  # fmt: skip
    return {
        "bert.embeddings.word_embeddings.weight": (SIZE, WIDTH),
        "bert.embeddings.position_embeddings.weight": (CONTEXT, WIDTH),
        "bert.embeddings.token_type_embeddings.weight": (SEGMENTS, WIDTH),
        "bert.embeddings.LayerNorm.weight": (WIDTH,), "bert.embeddings.LayerNorm.bias": (WIDTH,),
        **blocks("bert.encoder.layer", "self", ("attention.output.LayerNorm", "output.LayerNorm")),
        **HEADS[head],
    }  # fmt: skip


def tensors(head: str, seed: int = 3) -> Arrays:
    """Random weights by their names."""
    draws = np.random.default_rng(seed)
    return {name: draws.normal(0, 0.5, shape).astype("float32") for name, shape in shapes(head).items()}


def write_encoder(folder: Path, head: str, arrays: Arrays | None = None, **changes: Any) -> Path:
    """Writes the folder of a BERT with labels, tokens or no head, or for "images" of a ViT.

    `changes` are options of config.json, or of the processor if it has them.
    """
    folder.mkdir(parents=True, exist_ok=True)
    of_processor = {name: changes.pop(name) for name in [*changes] if name in PROCESSOR or name == "do_center_crop"}
    config = {**(VIT if head == "images" else BERT), **changes}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if head == "images":
        (folder / "preprocessor_config.json").write_text(json.dumps({**PROCESSOR, **of_processor}), encoding="utf-8")
    else:
        words = {place: token for token, place in SPECIAL.items()}
        lines = [words.get(place, f"word{place}") for place in range(SIZE)]
        (folder / "vocab.txt").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(tensors(head) if arrays is None else arrays))
    return folder
