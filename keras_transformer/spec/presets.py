"""Defines the presets: settings of a model and its training by name, as plain data."""

from __future__ import annotations

from keras_transformer.spec.model_spec import ARGUMENTS
from keras_transformer.spec.options import Config

SIZES = ("num_layers", "hidden_dim", "intermediate_dim", "num_heads", "dropout")

# For small corpora; this preset is not the paper's.
TINY: Config = {
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
# The parts that did best in benchmarks.family.
MODERN_PARTS: Config = {"positions": "rotary", "residual": "pre_norm", "norm": "rms"}
# The paper's, down to the 25,000 tokens a batch.
BASE: Config = {
    **{name: ARGUMENTS[name].default for name in SIZES},
    "label_smoothing": 0.1,
    "steps": 100_000,
    "token_budget": 25_000,
    "vocabulary_size": 37_000,
}
BIG: Config = {**BASE, "hidden_dim": 1024, "intermediate_dim": 4096, "num_heads": 16, "dropout": 0.3, "steps": 300_000}
PRESETS: dict[str, Config] = {"tiny": TINY, "modern": {**TINY, **MODERN_PARTS}, "base": BASE, "big": BIG}

# Small models, long trained: 29,000 pairs are few (Wu et al. 2021, arXiv 2105.14462, found these sizes best for
# Multi30k).
MULTI30K_RECIPE: Config = {
    "num_layers": 4,
    "hidden_dim": 128,
    "intermediate_dim": 256,
    "num_heads": 4,
    "dropout": 0.2,
    "vocabulary_size": 6_000,
    "sampling": 0.5,
    "token_budget": 4_096,
    "steps": 6_750,
    "warmup_steps": 1_500,
    "learning_rate_factor": 1.8,
    "checkpoint_every": 250,
}
AUTO = "auto"  # the preset that takes one of these rows, by the number of training pairs
# Small models of modern parts: on 2,000 to 29,000 pairs they learned to translate in a fraction of the steps.
SMALL: Config = {**MULTI30K_RECIPE, **MODERN_PARTS, "warmup_steps": 1_000}
# The least number of pairs of each row, ascending. Rows above 29,000 pairs were not measured.
AUTO_ROWS: dict[int, Config] = {
    0: {
        **SMALL,
        "dropout": 0.3,
        "vocabulary_size": 2_000,
        "token_budget": 2_048,
        "steps": 2_000,
        "checkpoint_every": 200,
    },
    5_000: {**SMALL, "dropout": 0.3, "vocabulary_size": 4_000, "steps": 3_000},
    20_000: {**SMALL, "steps": 4_000},
    200_000: {**PRESETS["modern"], "dropout": 0.1, "vocabulary_size": 16_000, "token_budget": 8_192, "steps": 30_000},
    1_000_000: BASE,
}


def auto_row(num_pairs: int) -> int:
    """Returns the key of the row of `AUTO_ROWS` for a number of training pairs."""
    return max(least for least in AUTO_ROWS if least <= num_pairs)
