"""The presets are the paper's table 3, copied by hand from the paper; the others differ from them as they say."""

from __future__ import annotations

import pytest

from keras_transformer.models import count_parameters
from keras_transformer.models.presets import PRESETS
from keras_transformer.training.settings import Settings

NAMES = (
    "num_layers",
    "hidden_dim",
    "intermediate_dim",
    "num_heads",
    "dropout",
    "label_smoothing",
    "steps",
    "token_budget",
)
# N, d_model, d_ff, h, P_drop, ε_ls and train steps (table 3), tokens a batch (5.1).
TABLE_3 = {
    "base": (6, 512, 2048, 8, 0.1, 0.1, 100_000, 25_000),
    "big": (6, 1024, 4096, 16, 0.3, 0.1, 300_000, 25_000),
}


@pytest.mark.parametrize("name", TABLE_3)
def test_the_papers_models_and_how_they_were_trained(name):
    settings = Settings(**PRESETS[name])
    assert TABLE_3[name] == tuple(getattr(settings, each) for each in NAMES)
    assert settings.vocabulary_size == 37_000 and settings.warmup_steps == 4_000
    assert (settings.residual, settings.positions, settings.tied_output) == ("post_norm", "sinusoidal", True)


def test_tiny_is_smaller_and_modern_has_other_parts_and_about_as_many_parameters():
    assert Settings(**PRESETS["tiny"]).hidden_dim < 512 and PRESETS["tiny"].keys() == PRESETS["big"].keys()
    tiny, modern = (Settings(**PRESETS[name]).model_arguments() for name in ("tiny", "modern"))
    assert {name for name in tiny if tiny[name] != modern[name]} == {"positions", "residual", "norm"}
    size = {"vocabulary_size": 8_000, "source_vocabulary_size": None, "num_control_ids": 4}
    assert count_parameters({**modern, **size}) == pytest.approx(count_parameters({**tiny, **size}), rel=0.01)
