"""What a run ends with: which weights `model.keras` gets, and which figures are said of them."""

from types import SimpleNamespace
from typing import Any

import pytest

from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.run_folder import RunConfig
from keras_transformer.tasks.translation import training as translation
from keras_transformer.text.bleu import bleu
from keras_transformer.training import result
from keras_transformer.training.callbacks import Progress
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.task import training_of

REFERENCES = ["the cat sat on the mat today", "a dog ran along the beach"]
TRANSLATIONS = ["the cat sat on", "a dog ran along the long beach today"]

Settings: Any = TASKS["translation"].settings


@pytest.fixture
def write(monkeypatch):
    """`write(settings, progress)` ends a run and returns the weights that were written, and what is said of them."""
    written: list[tuple] = []
    translator = SimpleNamespace(translate=lambda lines, num_beams, split: TRANSLATIONS[: len(lines)])
    monkeypatch.setattr("keras_transformer.tasks.translation.training.Translator", lambda *made, **named: translator)
    monkeypatch.setattr(result, "make_model", lambda config: SimpleNamespace(weights=None))
    monkeypatch.setattr(result, "set_weights", lambda model, weights: setattr(model, "weights", weights))
    monkeypatch.setattr(result, "present_weights", lambda model: "the moving average")
    monkeypatch.setattr(result, "write_model", lambda folder, config, model, origin: written.append((model, origin)))

    def write(settings: Any, progress: Progress) -> tuple[Any, dict[str, Any]]:
        text: Any = SimpleNamespace(tokenizers=(None, None))
        text.bleu_sentences = lambda count: (["source"] * min(count, 2), REFERENCES[:count])
        kept: Any = SimpleNamespace(steps=lambda: [5, 6, 7], mean=lambda steps, model: f"the mean of {steps}")
        kept.to_average = lambda end: [step for step in (5, 6, 7) if step <= (end or 7)]
        folder = SimpleNamespace(model="model.keras")
        run: Any = SimpleNamespace(
            settings=settings, folder=folder, config=RunConfig({}, {}), task=training_of("translation")
        )
        trained: Any = SimpleNamespace(distribute_strategy=SimpleNamespace(num_replicas_in_sync=1))
        result.write_result(run, text, trained, progress, kept)
        model, origin = written[-1]
        return model.weights, origin

    return write


def test_bleu_is_that_of_the_translations_against_the_references(write, capsys):
    _, origin = write(Settings(average_last=2), Progress(step=7))
    assert origin["val_bleu"] == bleu(TRANSLATIONS, REFERENCES) != bleu(REFERENCES, TRANSLATIONS)
    assert capsys.readouterr().err == f"wrote model.keras · validation · bleu {origin['val_bleu']:.2f}\n"
    _, origin = write(Settings(average_last=2, bleu_sentences=1), Progress(step=7))
    assert origin["val_bleu"] == bleu(TRANSLATIONS[:1], REFERENCES[:1])
    assert "val_bleu" not in write(Settings(average_last=2, bleu_sentences=0), Progress(step=7))[1]


def test_weights_end_at_the_best_step_of_a_run_that_may_stop_early(write):
    for given, best_step, weights, kind in (
        ({}, 6, "the mean of [5, 6, 7]", "mean"),
        ({"patience": 2}, 6, "the mean of [5, 6]", "mean"),
        ({"patience": 2}, 0, "the mean of [5, 6, 7]", "mean"),
        ({"ema": 0.9, "patience": 2}, 5, "the moving average", "moving average"),
    ):
        settings = Settings(**given, steps=9, average_last=3)  # type: ignore[arg-type]
        found, origin = write(settings, Progress(step=7, best_step=best_step))
        assert (found, origin["kind"], origin["at_step"], origin["asked_steps"]) == (weights, kind, 7, 9)


KINDS = {
    "last": ("the mean of [7]", [7], "last checkpoint, step 7"),
    "best": ("the mean of [5]", [5], "best checkpoint, step 5"),
    "mean": ("the mean of [6, 7]", [6, 7], "mean of steps 6, 7"),
}


@pytest.mark.parametrize(
    ("bleu_sentences", "figures", "kind"),  # BLEU and loss
    [
        (9, {"last": (12.99, 2), "best": (11, 1), "mean": (9.99, 1)}, "last"),
        (9, {"last": (0, 2.5), "best": (0, 2.5), "mean": (0, 2)}, "mean"),
        (0, {"last": (0, 3), "best": (0, 2), "mean": (0, 4)}, "best"),
    ],
)
def test_the_candidate_that_validation_finds_best_is_taken(write, monkeypatch, capsys, bleu_sentences, figures, kind):
    of_weights = {KINDS[name][0]: found for name, found in figures.items()}
    bleu_of = (lambda model: {"val_bleu": of_weights[model.weights][0]}) if bleu_sentences else (lambda model: {})
    monkeypatch.setattr(translation.Training, "final_metrics", lambda self, run, data, model: bleu_of(model))
    monkeypatch.setattr(result, "_validation_loss", lambda run, data, model, count: of_weights[model.weights][1])
    weights, origin = write(Settings(bleu_sentences=bleu_sentences, steps=9), Progress(step=7, best_step=5))
    assert (weights, origin["steps"], origin["kind"]) == (*KINDS[kind][:2], kind)
    assert origin.get("val_bleu", 0) == figures[kind][0]
    compared, _ = capsys.readouterr().err.splitlines()
    told = f"bleu {figures['last'][0]:.2f} · " if bleu_sentences else ""
    assert compared.startswith(f"validation compares {KINDS['last'][2]}: {told}loss {figures['last'][1]:.4f}; ")
    assert compared.endswith(f": taking the {KINDS[kind][2]}")


@pytest.mark.parametrize(
    ("every", "steps", "best_step", "end", "expected"),
    [
        (500, [500, 600], 500, None, {"last": [600], "best": [500], "mean": [500, 600]}),
        (500, [500, 1000], 1000, None, {"last": [1000]}),
        (200, range(200, 2401, 200), 1200, None, {"last": [2400], "best": [1200], "mean": [2000, 2200, 2400]}),
        (10, range(10, 1001, 10), 1000, None, {"last": [1000], "mean": [960, 970, 980, 990, 1000]}),
        (10, [60, 70, 80, 90, 100], 80, 80, {"last": [100], "best": [80], "mean": [70, 80]}),
    ],
)
def test_candidates_are_the_last_the_best_and_the_mean_of_the_last_fifth(
    tmp_path, every, steps, best_step, end, expected
):
    for step in steps:
        (tmp_path / f"{step:08d}.weights.npz").touch()
    found = result.candidates(Checkpoints(tmp_path, result.MOST_AVERAGED, every), best_step, end)
    assert {each.kind: each.steps for each in found} == expected and len(found) == len(expected)
