"""A tiny BART model in Hugging Face's format, made by hand, and BART in NumPy, after its description."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from tests.importing import marian_folder
from tests.importing.marian_folder import HEADS, WIDTH, safetensors
from tests.importing.numpy_marian import Arrays, norm, stack_of

SIZE, POSITIONS = 50, 12


def configuration() -> dict[str, Any]:
    """The configuration of an old BART model, in small."""
    return {
        **marian_folder.configuration({"<pad>": 1}),
        "activation_function": "gelu", "add_final_layer_norm": False, "architectures": ["BartModel"],
        "bad_words_ids": None, "decoder_start_token_id": 2, "eos_token_id": 2, "extra_pos_embeddings": 2,
        "force_bos_token_to_be_generated": True, "forced_bos_token_id": 0, "forced_eos_token_id": 2,
        "max_position_embeddings": POSITIONS, "max_length": 9, "min_length": 5, "model_type": "bart",
        "no_repeat_ngram_size": 3, "normalize_embedding": True, "output_past": True, "scale_embedding": False,
        "static_position_embeddings": False, "vocab_size": SIZE,
    }  # fmt: skip


def tensors(seed: int = 3) -> Arrays:
    """Random weights by BART's names."""
    generator = np.random.default_rng(seed)
    arrays = marian_folder.tensors(SIZE)
    for stack in ("encoder", "decoder"):
        arrays[f"model.{stack}.embed_positions.weight"] = generator.normal(size=(POSITIONS + 2, WIDTH))
        arrays[f"model.{stack}.layernorm_embedding.weight"] = generator.normal(1, 0.3, WIDTH)
        arrays[f"model.{stack}.layernorm_embedding.bias"] = generator.normal(0, 0.3, WIDTH)
    arrays["final_logits_bias"] = generator.normal(0, 0.3, (1, SIZE))
    return {name: array.astype("float32") for name, array in arrays.items()}


def write_bart(folder: Path, **changes: Any) -> Path:
    """Writes the folder; `changes` are options of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps({**configuration(), **changes}), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(tensors()))
    return folder


def logits(arrays: Arrays, source: list[int], target: list[int]) -> np.ndarray:
    """The logits (T, V) after each id of a target that begins with the end id, for one source, in BART's ids."""
    memory = None
    for stack, ids in (("encoder", source), ("decoder", target)):
        x = arrays["model.shared.weight"][ids]
        x = x + arrays[f"model.{stack}.embed_positions.weight"][2 : 2 + len(ids)]
        x = norm(arrays, f"model.{stack}.layernorm_embedding", x)
        memory = stack_of(arrays, stack, HEADS, x, memory, _gelu)
    return memory @ arrays["model.shared.weight"].T + arrays["final_logits_bias"][0]


def _gelu(x: np.ndarray) -> np.ndarray:
    return x * (1 + np.vectorize(math.erf)(x / math.sqrt(2))) / 2
