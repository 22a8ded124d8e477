"""The settings that suit named images. They stand by themselves, because `train.py --help` prints them."""

from __future__ import annotations

from typing import Any

# A small model with a convolution before its patches: 899 images are few. It was chosen on parts of the training half.
DIGITS_RECIPE: dict[str, Any] = {
    "image_size": 8,
    "patch_size": 4,
    "channels": 1,
    "stem": "attentive:filters=32",
    "random_shift": 1,
    "num_layers": 2,
    "hidden_dim": 64,
    "intermediate_dim": 128,
    "num_heads": 4,
    "dropout": 0.1,
    "token_budget": 640,  # 128 images
    "steps": 1_200,
    "label_smoothing": 0.1,
    "warmup_steps": 100,
    "learning_rate_factor": 0.3,
    "checkpoint_every": 100,
}
RECIPES = {"digits": DIGITS_RECIPE}
