"""The settings that suit named images. They stand by themselves, because `train.py --help` prints them."""

from __future__ import annotations

from typing import Any

DIGITS_RECIPE: dict[str, Any] = {
    "image_size": 8,
    "patch_size": 2,
    "channels": 1,
    "num_layers": 4,
    "hidden_dim": 64,
    "intermediate_dim": 128,
    "num_heads": 4,
    "dropout": 0.1,
    "token_budget": 2_176,  # 128 images
    "steps": 1_000,
    "warmup_steps": 100,
    "checkpoint_every": 100,
    "average_last": 4,
}
RECIPES = {"digits": DIGITS_RECIPE}
