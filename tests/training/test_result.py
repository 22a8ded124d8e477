"""What a run ends with: which weights `model.keras` gets, and which BLEU is said of it."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer.bleu import bleu
from keras_transformer.training import checkpoints, result
from keras_transformer.training.callbacks import Progress
from keras_transformer.training.settings import Settings
from keras_transformer.training.tasks import TASKS

REFERENCES = ["the cat sat on the mat today", "a dog ran along the beach"]
TRANSLATIONS = ["the cat sat on", "a dog ran along the long beach today"]


class Translator:
    """Gives the same translations of any sentences."""

    def __init__(self, model: Any, source: Any, target: Any):
        self.model = model

    def translate(self, lines: list[str], num_beams: int) -> list[str]:
        assert num_beams == 1, "as while training"
        return TRANSLATIONS[: len(lines)]


@pytest.fixture
def write(monkeypatch):
    """`write(settings, progress)` ends a run and returns the weights that were written, and what is said of them."""
    written: list[tuple] = []
    monkeypatch.setattr("keras_transformer.decoding.translator.Translator", Translator)
    monkeypatch.setattr(result, "make_model", lambda config: SimpleNamespace(weights=None))
    monkeypatch.setattr(result, "set_weights", lambda model, weights: setattr(model, "weights", weights))
    monkeypatch.setattr(result, "present_weights", lambda model: "the moving average")
    monkeypatch.setattr(result, "write_model", lambda folder, config, model, origin: written.append((model, origin)))

    def write(settings: Settings, progress: Progress) -> tuple[Any, dict[str, Any]]:
        kept = SimpleNamespace(to_average=lambda end: [end], mean=lambda steps, model: f"the mean of {steps}")
        text = SimpleNamespace(
            tokenizers=(None, None),
            bleu_sentences=lambda count: (["source"] * min(count, 2), REFERENCES[:count]),
        )
        run = SimpleNamespace(
            settings=settings,
            folder=SimpleNamespace(model="model.keras"),
            config={"model": {}},
            task=TASKS["translation"],
        )
        result.write_result(run, text, None, progress, kept)  # type: ignore[arg-type]
        model, origin = written[-1]
        return model.weights, origin

    return write


def test_bleu_is_that_of_the_translations_against_the_references(write, capsys):
    _, origin = write(Settings(), Progress(step=7))
    assert origin["val_bleu"] == bleu(TRANSLATIONS, REFERENCES)
    assert abs(origin["val_bleu"] - bleu(REFERENCES, TRANSLATIONS)) > 1
    assert capsys.readouterr().err == f"wrote model.keras · validation · bleu {origin['val_bleu']:.2f}\n"
    _, origin = write(Settings(bleu_sentences=1), Progress(step=7))
    assert origin["val_bleu"] == bleu(TRANSLATIONS[:1], REFERENCES[:1])
    _, origin = write(Settings(bleu_sentences=0), Progress(step=7))
    assert "val_bleu" not in origin


@pytest.mark.parametrize(
    ("settings", "best_step", "weights", "kind"),
    [
        ({}, 5, "the mean of [None]", "mean"),
        ({"patience": 2}, 5, "the mean of [5]", "mean"),
        ({"patience": 2}, 0, "the mean of [None]", "mean"),
        ({"ema": 0.9}, 5, "the moving average", "moving average"),
        ({"ema": 0.9, "patience": 2}, 5, "the moving average", "moving average"),
    ],
)
def test_weights_end_at_the_best_step_of_a_run_that_may_stop_early(write, settings, best_step, weights, kind):
    found, origin = write(Settings(**settings, steps=9), Progress(step=7, best_step=best_step))
    assert (found, origin["kind"]) == (weights, kind)
    assert (origin["at_step"], origin["asked_steps"]) == (7, 9)


def test_the_present_weights_are_the_moving_average_where_there_is_one():
    def model_of(optimizer: Any) -> Any:
        return SimpleNamespace(optimizer=optimizer, trainable_variables=[np.array([1.0])])

    averages = {"_model_variables_moving_average": [np.array([2.0])]}
    plain, averaging = SimpleNamespace(use_ema=False), SimpleNamespace(use_ema=True, **averages)
    assert checkpoints.present_weights(model_of(plain)) == [1.0]
    assert checkpoints.present_weights(model_of(averaging)) == [2.0]
    assert checkpoints.present_weights(model_of(SimpleNamespace(inner_optimizer=averaging))) == [2.0], "in float16"
