"""train.py learns: a text that it must translate, and what the flags of a run leave in its folder."""

import random
import re
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer.errors import JobError
from keras_transformer.run_folder import load_model, read_config
from keras_transformer.training import timing
from keras_transformer.training.callbacks import Progress
from keras_transformer.training.learning import _feeding_errors, _metrics_so_far
from tests.tiny_corpus import tiny_flags
from tests.training.runs import arrays, column, trained

# Each word has one translation, so a model that looks at the right word translates everything right.
DICTIONARY = {"ba": "Ha", "do": "Le", "fi": "Si", "gu": "Vo", "ka": "Zu", "lo": "Wa", "mi": "Te"}
LEARNING = (
    "--source train.source --target train.target --valid-source valid.source --valid-target valid.target "
    "--preset tiny --num-layers 1 --num-heads 2 --hidden-dim 32 --intermediate-dim 64 --residual pre_norm "
    "--positions learned --vocabulary-size 38 --token-budget 512 --warmup-steps 50 --steps 200 --checkpoint-every 100 "
    "--average-last 1 --bleu-sentences 20 --dropout 0 --devices cpu"
)
AVERAGING = "--steps 3 --checkpoint-every 1 --average-last 3 --ema 0.5 --dropout 0.3"
COMPARING = "--steps 5 --checkpoint-every 1 --warmup-steps 2 --learning-rate-factor 4"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return tmp_path_factory.mktemp("learning")


@pytest.fixture(scope="module")
def learned(folder) -> Path:
    for name, count in {"train": 800, "valid": 30}.items():
        draw = random.Random(name)
        lines = [draw.choices(list(DICTIONARY), k=draw.randint(1, 4)) for _ in range(count)]
        sides: dict[str, Callable[[str], str]] = {"source": str, "target": DICTIONARY.__getitem__}
        for side, of in sides.items():
            (folder / f"{name}.{side}").write_text("".join(" ".join(map(of, words)) + "\n" for words in lines))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(timing, "SHORTEST", 1000)  # such a run is not timed
        trained(folder, f"{LEARNING} --out learned", with_graph=True)
    return folder / "learned"


@pytest.fixture(scope="module")
def tiny(folder) -> list[str]:
    return tiny_flags(folder, Path("unused"))


def test_an_error_of_the_machine_is_told_in_one_line():
    """In the feeding thread, of which TensorFlow tells as of its own; and only a file with a name was not written."""
    import tensorflow as tf

    told = re.escape("the batches stopped coming: [Errno 2] gone: 'cache/train'; the checkpoints are intact")
    kinds = {"OSError": JobError, "FileNotFoundError": JobError, "PermissionError": JobError, "MemoryError": JobError}
    for kind, raised in {**kinds, "IndexError": tf.errors.UnknownError}.items():
        message = f"{kind}: [Errno 2] gone: 'cache/train'\nTraceback (most recent call last):\n"
        with pytest.raises(raised, match=f"^{told}$" if raised is JobError else "IndexError"), _feeding_errors():
            raise tf.errors.UnknownError(None, None, message)
    with pytest.raises(JobError, match=r"^cannot write curves.png \(full\); the checkpoints"), _feeding_errors():
        raise OSError(28, "full", "curves.png")
    with pytest.raises(JobError, match=r"^a file failed \(broken\); the checkpoints are intact$"), _feeding_errors():
        raise OSError(5, "broken")


def test_a_run_learns_to_translate(learned):
    """With a learning rate of 0, shifted labels, or a mask that hides or shows the wrong things, BLEU stays near 0."""
    assert column(learned, "step") == [100, 200]
    weights = read_config(learned)["weights"]
    assert (weights["at_step"], weights["steps"]) == (200, [200]) and weights["val_bleu"] > 90
    assert column(learned, "val_bleu")[-1] > 90 and column(learned, "val_accuracy")[-1] > 0.95
    perplexity = column(learned, "perplexity")
    assert perplexity[0] > 1.5 * perplexity[-1] and perplexity[-1] < 1.3


def test_without_a_number_the_best_of_the_last_the_best_and_the_mean_is_kept(folder, tiny):
    """By the validation loss, which `fit` measured too, of the checkpoints."""
    place = tiny.index("--average-last")
    said = trained(folder, " ".join([*tiny[:place], *tiny[place + 2 :], COMPARING, "--out compared"]))
    run = folder / "compared"
    figures = re.search(r"^validation compares (.*): taking the (.*)$", said, re.MULTILINE)
    assert figures is not None, said
    losses = {name: float(loss) for name, loss in re.findall(r"(?:; )?([^;]*?): loss ([\d.]+)", figures[1])}
    measured = dict(zip(column(run, "step"), column(run, "val_loss"), strict=True))
    best_step = int(min(measured, key=measured.__getitem__))
    expected = {"last checkpoint, step 5": measured[5]}
    expected |= {f"best checkpoint, step {best_step}": measured[best_step]} if best_step != 5 else {}
    assert len(losses) == len(expected) + 1 and "mean of steps 4, 5" in losses
    for name, loss in expected.items():
        assert losses[name] == pytest.approx(loss, abs=2e-4), name
    assert losses[figures[2]] == min(losses.values())
    weights: dict[str, Any] = read_config(run)["weights"]
    assert weights["kind"] in figures[2] and weights["steps"] == [int(step) for step in re.findall(r"\d+", figures[2])]
    kept = [arrays(run, step).values() for step in weights["steps"]]
    for variable, each in zip(load_model(run).trainable_variables, zip(*kept, strict=True), strict=True):
        np.testing.assert_allclose(np.asarray(variable), np.mean(each, axis=0), rtol=0, atol=1e-6)


def test_with_ema_the_model_is_the_moving_average_and_another_seed_is_another_run(folder, tiny):
    """And --overwrite removes the run that was there."""
    run = folder / "averaged"
    trained(folder, " ".join([*tiny, AVERAGING, "--out averaged"]))
    mean = first = [*arrays(run, 1).values()]  # Keras begins with the weights after the first step
    for step in (2, 3):
        mean = [0.5 * old + 0.5 * new for old, new in zip(mean, arrays(run, step).values(), strict=True)]
    written = [np.asarray(variable) for variable in load_model(run).trainable_variables]
    for mine, expected in zip(written, mean, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-6)
    assert read_config(run)["weights"]["kind"] == "moving average"
    last = arrays(run, 3).values()
    assert max(np.abs(mine - other).max() for mine, other in zip(written, last, strict=True)) > 1e-3
    trained(folder, " ".join([*tiny, "--steps 1 --seed 2 --out averaged --overwrite"]))
    assert read_config(run)["weights"]["asked_steps"] == 1 and read_config(run)["settings"]["seed"] == 2
    kept = {path.name for path in (run / "checkpoints").iterdir()}
    assert kept == {"00000001.weights.npz", "00000001.state.npz"} and column(run, "step") == [1]
    other = arrays(run, 1).values()
    assert all(np.abs(mine - theirs).max() > 0.05 for mine, theirs in zip(first, other, strict=True) if mine.ndim > 1)


def test_metrics_are_kept_of_a_round_that_goes_on_alone():
    model: Any = SimpleNamespace(metrics_variables=[np.float32(3)])
    progress = [Progress(step=step) for step in (4, 5, 6)]
    assert [_metrics_so_far(model, one, 2) for one in progress] == [[], [3], []]
