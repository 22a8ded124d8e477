"""The presets are the paper's table 3, copied by hand from the paper; the others differ from them as they say."""

import random

import pytest

from keras_transformer import family
from keras_transformer.models import count_parameters
from keras_transformer.models.presets import PRESETS
from keras_transformer.training.settings import Settings
from tests.models.variants import SIZES

NAMES = ["num_layers", "hidden_dim", "intermediate_dim", "num_heads", "dropout", "label_smoothing", "steps"]
# N, d_model, d_ff, h, P_drop, ε_ls and train steps (table 3), tokens a batch (5.1), and parameters.
TABLE_3 = {
    "base": (6, 512, 2048, 8, 0.1, 0.1, 100_000, 25_000, 63_045_632),
    "big": (6, 1024, 4096, 16, 0.3, 0.1, 300_000, 25_000, 214_171_648),
}


def test_the_papers_models_and_how_they_were_trained():
    for name, row in TABLE_3.items():
        settings, sizes = Settings(**PRESETS[name]), {key: PRESETS[name][key] for key in SIZES}
        assert row == (*(getattr(settings, each) for each in (*NAMES, "token_budget")), count_parameters(sizes))
        assert settings.vocabulary_size == 37_000 and settings.warmup_steps == 4_000
        assert (settings.residual, settings.positions, settings.tied_output) == ("post_norm", "sinusoidal", True)
    default, state = family.complete({"vocabulary_size": 37_000, "attention_dropout": 0.5}), random.getstate()
    assert default.items() >= {key: PRESETS["base"][key] for key in SIZES}.items(), "base is the default"
    assert count_parameters(default) == TABLE_3["base"][-1]
    assert random.getstate() == state, "no seed is drawn, or the same seed would give other weights afterwards"


def test_tiny_is_smaller_and_modern_has_other_parts_and_about_as_many_parameters():
    assert Settings(**PRESETS["tiny"]).hidden_dim < 512 and PRESETS["tiny"].keys() == PRESETS["big"].keys()
    tiny, modern = (Settings(**PRESETS[name]).model_arguments() for name in ("tiny", "modern"))
    assert {name for name in tiny if tiny[name] != modern[name]} == {"positions", "residual", "norm"}
    size = {"vocabulary_size": 8_000, "source_vocabulary_size": None, "num_control_ids": 4}
    assert count_parameters({**modern, **size}) == pytest.approx(count_parameters({**tiny, **size}), rel=0.01)
