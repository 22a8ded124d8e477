"""Presets: sizes of the model with their training recipe (paper, table 3), as plain dictionaries of settings."""

from __future__ import annotations

from typing import Any

from keras_transformer.family import ARGUMENTS

SIZES = ("num_layers", "hidden_dim", "intermediate_dim", "num_heads", "dropout")

# Ours, for small corpora.
TINY: dict[str, Any] = {
    "num_layers": 4,
    "hidden_dim": 256,
    "intermediate_dim": 1024,
    "num_heads": 4,
    "dropout": 0.3,
    "label_smoothing": 0.1,
    "steps": 8_000,
    "token_budget": 4_096,
    "vocabulary_size": 8_000,
}
# `base` and `big` are the paper's, down to the 25,000 tokens a batch. `modern` is `tiny` with the parts that
# did best in benchmarks.family.
PRESETS: dict[str, dict[str, Any]] = {
    "tiny": TINY,
    "modern": {**TINY, "positions": "rotary", "residual": "pre_norm", "norm": "rms"},
    "base": {
        **{name: ARGUMENTS[name].default for name in SIZES},
        "label_smoothing": 0.1,
        "steps": 100_000,
        "token_budget": 25_000,
        "vocabulary_size": 37_000,
    },
    "big": {
        "num_layers": 6,
        "hidden_dim": 1024,
        "intermediate_dim": 4096,
        "num_heads": 16,
        "dropout": 0.3,
        "label_smoothing": 0.1,
        "steps": 300_000,
        "token_budget": 25_000,
        "vocabulary_size": 37_000,
    },
}
