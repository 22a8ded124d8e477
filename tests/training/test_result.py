"""What a run ends with: which weights `model.keras` gets, and which figures are said of them."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer.bleu import bleu
from keras_transformer.run_folder import RunFolder, is_finished
from keras_transformer.training import checkpoints, result, translation
from keras_transformer.training.callbacks import Progress
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.settings import Settings
from keras_transformer.training.tasks import TASKS

REFERENCES = ["the cat sat on the mat today", "a dog ran along the beach"]
TRANSLATIONS = ["the cat sat on", "a dog ran along the long beach today"]


class Translator:
    """Gives the same translations of any sentences."""

    def __init__(self, model: Any, source: Any, target: Any):
        self.model = model

    def translate(self, lines: list[str], num_beams: int, split: str) -> list[str]:
        assert (num_beams, split) == (1, "off"), "as while training"
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
        kept = SimpleNamespace(
            steps=lambda: [5, 6, 7],
            to_average=lambda end: [step for step in (5, 6, 7) if step <= (end or 7)],
            mean=lambda steps, model: f"the mean of {steps}",
        )
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
        trained = SimpleNamespace(distribute_strategy=SimpleNamespace(num_replicas_in_sync=1))
        result.write_result(run, text, trained, progress, kept)  # type: ignore[arg-type]
        model, origin = written[-1]
        return model.weights, origin

    return write


def test_bleu_is_that_of_the_translations_against_the_references(write, capsys):
    _, origin = write(Settings(average_last=2), Progress(step=7))
    assert origin["val_bleu"] == bleu(TRANSLATIONS, REFERENCES)
    assert abs(origin["val_bleu"] - bleu(REFERENCES, TRANSLATIONS)) > 1
    assert capsys.readouterr().err == f"wrote model.keras · validation · bleu {origin['val_bleu']:.2f}\n"
    _, origin = write(Settings(average_last=2, bleu_sentences=1), Progress(step=7))
    assert origin["val_bleu"] == bleu(TRANSLATIONS[:1], REFERENCES[:1])
    _, origin = write(Settings(average_last=2, bleu_sentences=0), Progress(step=7))
    assert "val_bleu" not in origin


@pytest.mark.parametrize(
    ("settings", "best_step", "weights", "kind"),
    [
        ({}, 6, "the mean of [5, 6, 7]", "mean"),
        ({"patience": 2}, 6, "the mean of [5, 6]", "mean"),
        ({"patience": 2}, 0, "the mean of [5, 6, 7]", "mean"),
        ({"ema": 0.9}, 5, "the moving average", "moving average"),
        ({"ema": 0.9, "patience": 2}, 5, "the moving average", "moving average"),
    ],
)
def test_weights_end_at_the_best_step_of_a_run_that_may_stop_early(write, settings, best_step, weights, kind):
    found, origin = write(Settings(**settings, steps=9, average_last=3), Progress(step=7, best_step=best_step))
    assert (found, origin["kind"]) == (weights, kind)
    assert (origin["at_step"], origin["asked_steps"]) == (7, 9)


@pytest.mark.parametrize(
    ("best_step", "is_there", "kind"),
    [(7, True, "best so far"), (0, True, "last so far"), (5, True, None), (5, False, "last so far")],
)
def test_until_the_end_the_model_is_the_best_so_far(write, monkeypatch, tmp_path, best_step, is_there, kind):
    written: list[tuple] = []
    monkeypatch.setattr(result, "write_model", lambda folder, config, model, origin: written.append((model, origin)))
    folder, twin = RunFolder(tmp_path), SimpleNamespace()
    if is_there:
        folder.model.touch()
    run = SimpleNamespace(folder=folder, config={})
    result.write_so_far(run, twin, None, Progress(step=7, best_step=best_step))  # type: ignore[arg-type]
    assert written == ([(twin, {"kind": kind, "steps": [7]})] if kind else [])
    for _, origin in written:
        assert twin.weights == "the moving average", "what validation saw, with --ema"
        assert not is_finished({"weights": origin}, 7), "it may be killed after its last checkpoint"


KINDS = {"last": "the mean of [7]", "best": "the mean of [5]", "mean": "the mean of [6, 7]"}


@pytest.mark.parametrize(
    ("bleu_sentences", "figures", "kind"),
    [
        (9, {"last": (12.99, 2), "best": (11, 1), "mean": (9.99, 1)}, "last"),
        (9, {"last": (12.99, 2), "best": (13, 3), "mean": (9.99, 1)}, "best"),
        (9, {"last": (12.99, 2), "best": (11, 1), "mean": (14, 3)}, "mean"),
        (9, {"last": (0, 2.5), "best": (0, 2.5), "mean": (0, 2)}, "mean"),
        (0, {"last": (0, 3), "best": (0, 2), "mean": (0, 4)}, "best"),
    ],
)
def test_the_candidate_that_validation_finds_best_is_taken(write, monkeypatch, capsys, bleu_sentences, figures, kind):
    of_weights = {KINDS[name]: found for name, found in figures.items()}
    bleu_of = lambda run, data, model: {"val_bleu": of_weights[model.weights][0]} if bleu_sentences else {}  # noqa: E731
    monkeypatch.setattr(translation, "measured", bleu_of)
    monkeypatch.setattr(result, "_validation_loss", lambda run, data, model, count: of_weights[model.weights][1])
    weights, origin = write(Settings(bleu_sentences=bleu_sentences, steps=9), Progress(step=7, best_step=5))
    steps = {"last": [7], "best": [5], "mean": [6, 7]}[kind]
    assert (weights, origin["kind"], origin["steps"]) == (KINDS[kind], kind, steps)
    assert origin.get("val_bleu", 0) == figures[kind][0]
    compared, wrote = capsys.readouterr().err.splitlines()
    bleu_told = f"bleu {figures['last'][0]:.2f} · " if bleu_sentences else ""
    assert compared.startswith(
        f"validation compares last checkpoint, step 7: {bleu_told}loss {figures['last'][1]:.4f}; "
    )
    names = {"last": "last checkpoint, step 7", "best": "best checkpoint, step 5", "mean": "mean of steps 6, 7"}
    assert compared.endswith(f": taking the {names[kind]}") and wrote.startswith("wrote model.keras")


def test_a_candidate_alone_is_not_compared(write, monkeypatch, capsys):
    monkeypatch.setattr(result, "candidates", lambda *_: [result.Candidate("last", [7])])
    weights, origin = write(Settings(), Progress(step=7))
    assert (weights, origin["kind"], origin["steps"]) == ("the mean of [7]", "last", [7])
    assert capsys.readouterr().err.startswith("wrote model.keras · validation · bleu ")


@pytest.mark.parametrize(
    ("every", "steps", "best_step", "end", "expected"),
    [
        (500, [500, 600], 500, None, {"last": [600], "best": [500], "mean": [500, 600]}),
        (500, [500, 600], 600, None, {"last": [600], "mean": [500, 600]}),
        (500, [500], 0, None, {"last": [500]}),
        (500, [500, 1000], 1000, None, {"last": [1000]}),
        (200, [*range(200, 2401, 200)], 1200, None, {"last": [2400], "best": [1200], "mean": [2000, 2200, 2400]}),
        (10, [*range(10, 1001, 10)], 1000, None, {"last": [1000], "mean": [960, 970, 980, 990, 1000]}),
        (10, [70, 80, 83, 90], 90, None, {"last": [90], "mean": [80, 90]}),
        (10, [60, 70, 80, 90, 100], 80, 80, {"last": [100], "best": [80], "mean": [70, 80]}),
        (10, [80, 90, 100], 20, None, {"last": [100], "mean": [80, 90, 100]}),
    ],
)
def test_candidates_are_the_last_the_best_and_the_mean_of_the_last_fifth(
    tmp_path, every, steps, best_step, end, expected
):
    for step in steps:
        Path(tmp_path, f"{step:08d}.weights.npz").touch()
    found = result.candidates(Checkpoints(tmp_path, result.MOST_AVERAGED, every), best_step, end)
    assert {each.kind: each.steps for each in found} == expected and len(found) == len(expected)


def test_the_present_weights_are_the_moving_average_where_there_is_one():
    def model_of(optimizer: Any) -> Any:
        return SimpleNamespace(optimizer=optimizer, trainable_variables=[np.array([1.0])])

    averages = {"_model_variables_moving_average": [np.array([2.0])]}
    plain, averaging = SimpleNamespace(use_ema=False), SimpleNamespace(use_ema=True, **averages)
    assert checkpoints.present_weights(model_of(plain)) == [1.0]
    assert checkpoints.present_weights(model_of(averaging)) == [2.0]
    assert checkpoints.present_weights(model_of(SimpleNamespace(inner_optimizer=averaging))) == [2.0], "in float16"
