"""A run learns; stopped, killed or extended it ends as one that nobody disturbed, and what it leaves can be used."""

import json
import os
import random
import re
import shlex
import shutil
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer.core.errors import JobError
from keras_transformer.runs.run_folder import load_model, read_config
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.training import timing
from keras_transformer.training.callbacks import ProgressCounter
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.learning import _feeding_errors, rounds_until
from tests.answers import printed
from tests.interrupted import interrupt
from tests.processes import run_python
from tests.tiny_corpus import tiny_flags
from tests.training.runs import arrays, assert_same_end, assert_same_model, at_step, begun, column, rows, trained

# Each word has one translation, so a model that looks at the right word translates everything right.
DICTIONARY = {"ba": "Ha", "do": "Le", "fi": "Si", "gu": "Vo", "ka": "Zu", "lo": "Wa", "mi": "Te"}
LEARNING = (
    "--source train.source --target train.target --valid-source valid.source --valid-target valid.target "
    "--preset tiny --num-layers 1 --num-heads 2 --hidden-dim 32 --intermediate-dim 64 --residual pre_norm "
    "--positions learned --vocabulary-size 38 --token-budget 512 --warmup-steps 50 --steps 200 --checkpoint-every 100 "
    "--average-last 1 --bleu-sentences 20 --dropout 0 --devices cpu"
)
OPTIONS = "--steps 6 --checkpoint-every 3 --dropout 0.2 --sampling 0.3 --bleu-sentences 2"


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Iterator[Path]:
    with pytest.MonkeyPatch.context() as patch:
        # Gives sentences back as they are: which translations a run shows is another test's.
        stand_in = SimpleNamespace(translate=lambda lines, **options: lines)
        patch.setattr("keras_transformer.tasks.translation.pipeline.Translator", lambda *made, **named: stand_in)
        yield tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def tiny(folder) -> str:
    """Flags of a tiny run; the text lies in the folder."""
    return " ".join(tiny_flags(folder, Path("unused")))


@pytest.fixture(scope="module")
def learned(folder) -> Path:
    for name, count in {"train": 800, "valid": 30}.items():
        draw = random.Random(name)
        lines = [" ".join(draw.choices(list(DICTIONARY), k=draw.randint(1, 4))) + "\n" for _ in range(count)]
        (folder / f"{name}.source").write_text("".join(lines))
        (folder / f"{name}.target").write_text(re.sub(r"\w+", lambda word: DICTIONARY[word[0]], "".join(lines)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_transformer.tasks.translation.pipeline.Translator", Translator)
        patch.setattr(timing, "SHORTEST", 1000)  # such a run is not timed
        trained(folder, f"{LEARNING} --out learned", with_graph=True)
    return folder / "learned"


def test_a_run_learns_to_translate(learned):
    """With a learning rate of 0, shifted labels, or a mask that hides or shows the wrong things, BLEU stays near 0."""
    assert column(learned, "step") == [100, 200]
    weights: Any = read_config(learned).weights
    assert (weights["at_step"], weights["steps"]) == (200, [200]) and weights["val_bleu"] > 90
    assert column(learned, "val_bleu")[-1] > 90 and column(learned, "val_accuracy")[-1] > 0.95
    perplexity = column(learned, "perplexity")
    assert perplexity[0] > 1.5 * perplexity[-1] and perplexity[-1] < 1.3


@pytest.fixture(scope="module")
def straight(folder, tiny) -> str:
    """What is said of a run that nobody disturbed, in the folder `straight`."""
    return trained(folder, f"{tiny} {OPTIONS} --out straight")


@pytest.mark.long
def test_stopped_by_signals_and_resumed_ends_with_the_same_bits(folder, tiny, straight):
    """In the last step of a round, and in a round. Until then it has the best weights that validation saw."""
    run, flags = folder / "a stop", f"{tiny} {OPTIONS}"
    handlers = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)]
    for step, number in (3, signal.SIGINT), (5, signal.SIGTERM):

        def stop(_: ProgressCounter, number: int = number) -> None:
            os.kill(os.getpid(), number)

        with at_step(step, stop):
            said = trained(folder, f"{flags} --out 'a stop'", status=128 + number)
        assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)] == handlers, "as before"
        assert re.search(r"^stopped and saved; go on with: .*train --resume --out 'a stop'$", said, re.MULTILINE)
        assert ("resuming at step 3\n" in said) == (step == 5)
        for mine, saved in zip(load_model(run).get_weights(), arrays(run, 3).values(), strict=True):
            np.testing.assert_array_equal(mine, saved)
        assert "\nmodel.keras: there; the run is unfinished: `" in printed("info", run)
        flags = "--resume"
    assert "resuming at step 5\n" in trained(folder, "--resume --out 'a stop'")
    opened = [path.resolve().name for path in Path("/proc/self/fd").iterdir()]
    assert not [name for name in opened if "tfevents" in name], "neither the runs that were stopped nor the others"
    assert not [thread for thread in threading.enumerate() if "tensorboard" in type(thread).__module__]
    assert_same_end(folder / "straight", run, 6)
    assert (folder / "straight/samples.txt").read_text() == (run / "samples.txt").read_text()
    assert read_config(run).weights["steps"] == [3, 6], "not of step 5, after which it was stopped"


def test_killed_and_resumed_ends_with_the_same_bits(folder, tiny, straight):
    """In processes of its own, which nothing can tidy up after."""
    killed = ["killed", shlex.split(f"{tiny} {OPTIONS} --out killed"), "", 5, True]
    resumed = ["resumed", ["--resume", "--out", "killed"], "", 0, True]
    jobs = json.dumps([[killed], [resumed]])
    ended = json.loads(run_python("-m", "tests.training.worker", jobs, folder=folder).stdout)
    assert ended == [[-signal.SIGKILL], [0]] and "resuming at step 3\n" in (folder / "resumed.log").read_text()
    assert_same_end(folder / "straight", folder / "killed", 6, metrics=("step", "loss", "val_loss"))


def test_a_run_has_the_mean_of_its_last_checkpoints_and_says_how_it_was_trained(folder, straight):
    """Every round has metrics of its own steps: of a tenth of them, and of the first of each round."""
    run, kept = folder / "straight", [arrays(folder / "straight", step) for step in (3, 6)]
    for variable, name in zip(load_model(run).trainable_variables, kept[0], strict=True):
        np.testing.assert_allclose(np.asarray(variable), np.mean([each[name] for each in kept], axis=0), atol=1e-7)
    assert column(run, "step") == [3, 6] and min(column(run, "perplexity")) > 1.5
    assert all(0 < accuracy < 1 for accuracy in column(run, "accuracy"))
    config = read_config(run)
    assert config.settings.items() >= {"sampling": 0.3, "seed": 1}.items()
    assert (run / "samples.txt").read_text().count("translation ") == 2 * 2, "--bleu-sentences 2, in two rounds"
    bleu = config.weights.pop("val_bleu")
    assert config.weights == {"at_step": 6, "asked_steps": 6, "kind": "mean", "steps": [3, 6]}
    assert straight.splitlines()[-1] == f"wrote straight/model.keras · validation · bleu {bleu:.2f}"


def test_a_larger_step_count_extends_a_run_and_a_damaged_checkpoint_is_passed_over(folder, straight):
    shutil.copytree(folder / "straight", folder / "extended")
    state = folder / "extended/checkpoints/00000006.state.npz"
    state.write_bytes(state.read_bytes()[:1000])
    said = trained(folder, "--resume --out extended --steps 7")
    assert "00000006.state.npz is damaged" in said and "resuming at step 3" in said
    assert read_config(folder / "extended").weights["steps"] == [6, 7]
    for name, array in arrays(folder / "straight", 6).items():
        np.testing.assert_array_equal(array, arrays(folder / "extended", 6)[name])


def test_a_finished_run_says_so_and_a_damaged_model_is_written_again(folder, straight):
    shutil.copytree(folder / "straight", folder / "mended")
    assert trained(folder, "--resume --out mended") == "mended is finished (6 steps); a larger --steps extends it\n"
    model = folder / "mended/model.keras"
    model.write_bytes(model.read_bytes()[:-9])
    said = trained(folder, "--resume --out mended")
    assert "warning: mended/model.keras is damaged or not this run's" in said
    assert said.splitlines()[-1].startswith("wrote mended/model.keras")
    assert_same_model(folder / "straight", folder / "mended")
    model.write_bytes(b"no model")
    shutil.rmtree(folder / "mended/checkpoints")
    told = r"model.keras is damaged .*; there is no checkpoint to write it from: begin anew with --overwrite$"
    assert re.search(told, trained(folder, "--resume --out mended", status=2), re.MULTILINE)


def test_a_run_that_stopped_early_and_was_killed_before_its_model_was_written_ends_at_once_with_it(folder, tiny):
    run = folder / "early"
    flags = "--steps 40 --checkpoint-every 1 --patience 1 --bleu-sentences 2"
    said = [trained(folder, f"{tiny} {flags} --out early")]
    assert read_config(run).weights.items() >= {"at_step": 2, "asked_steps": 40, "steps": [1]}.items()
    ended = run.rename(folder / "ended")
    interrupt(str(ended), str(run), last_step=3)  # of step 3 there is no checkpoint
    said.append(trained(folder, "--resume --out early"))
    assert all("of step 1: stopped early" in each for each in said), said
    assert Checkpoints(run / "checkpoints").steps() == [1, 2] and read_config(run) == read_config(ended)
    assert_same_model(run, ended)
    told = "early is finished: it found no better BLEU and stopped early, at step 2\n"
    assert trained(folder, "--resume --out early") == told, "more steps would not extend it"


def test_weights_that_the_last_step_of_a_round_made_nan_are_neither_translated_with_nor_saved(folder, tiny):
    """The loss of a step is computed before its update, so only the validation tells."""

    def to_nan(follow: ProgressCounter) -> None:
        variable = follow.model.trainable_variables[0]
        variable.assign(np.full(variable.shape, np.nan))

    with at_step(2, to_nan):
        said = trained(folder, f"{tiny} --steps 3 --checkpoint-every 1 --bleu-sentences 2 --out nan", status=1)
    assert "the loss became NaN or infinite by step 2; no checkpoint holds such weights" in said.splitlines()[-1]
    assert Checkpoints(folder / "nan/checkpoints").whole_steps() == [1] and len(rows(folder / "nan")) == 1
    assert all(np.isfinite(array).all() for array in load_model(folder / "nan").get_weights()), "those of step 1"


def test_a_default_vocabulary_that_the_text_does_not_support_is_lowered(folder, tiny):
    small = tiny.replace("--vocabulary-size 32", "")
    said = begun(folder, f"{small} --separate-vocabularies --out lowered", with_model=False).said
    assert said.count("supports no vocabulary of 8,000 pieces: taking ") == 2
    assert read_config(folder / "lowered").model["vocabulary_size"] < 8000
    begun(folder, "--resume --out lowered", with_model=False)


REFUSED = {
    "--out straight": "straight holds a run already: go on with --resume, remove it with --overwrite",
    "--resume --seed 2 --out straight": "--resume: --seed was 1 when the run began; received: 2",
    "--valid-source blank --valid-target blank": "blank, blank: no pair is left after cleaning: 0 pairs kept, 30 left",
    "--token-budget 3": "the token budget must hold the longest sentence",
    "--out stranger": "stranger holds files that are not a run's",
    "--out other --overwrite": "other/config.json is damaged or not a run's",
}


def test_what_is_refused_changes_nothing(folder, tiny, straight):
    for name, text in {"blank": "\n" * 30, "stranger/letter": "dear ...", "other/config.json": "{}"}.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(text)

    def contents() -> dict[str, bytes]:
        runs = [folder / name for name in ("straight", "stranger", "other", "nothing")]
        return {str(path): path.read_bytes() for run in runs for path in run.rglob("*") if path.is_file()}

    before = contents()
    for flags, message in REFUSED.items():
        given = flags if "--resume" in flags else f"{tiny} --out nothing {flags}"
        assert message in trained(folder, given, status=2).splitlines()[-1], flags
    assert contents() == before and not (folder / "nothing").exists()


def test_rounds_end_at_multiples_and_at_the_last_step():
    for step in (0, 3, 5, 10, 12):
        steps = [steps for steps, rounds in rounds_until(12, step, 5) for _ in range(rounds)]
        assert [*np.cumsum([step, *steps])[1:]] == [end for end in (5, 10, 12) if end > step]


def test_with_ema_the_model_is_the_moving_average_and_another_seed_is_another_run(folder, tiny):
    """And --overwrite removes the run that was there."""
    run = folder / "averaged"
    trained(folder, f"{tiny} --steps 3 --checkpoint-every 1 --average-last 3 --ema 0.5 --dropout 0.3 --out averaged")
    mean = first = [*arrays(run, 1).values()]  # Keras begins with the weights after the first step
    for step in (2, 3):
        mean = [0.5 * old + 0.5 * new for old, new in zip(mean, arrays(run, step).values(), strict=True)]
    written = [np.asarray(variable) for variable in load_model(run).trainable_variables]
    for mine, expected in zip(written, mean, strict=True):
        np.testing.assert_allclose(mine, expected, rtol=0, atol=1e-6)
    assert read_config(run).weights["kind"] == "moving average"
    trained(folder, f"{tiny} --steps 1 --seed 2 --out averaged --overwrite")
    assert len([*(run / "checkpoints").iterdir()]) == 2 and column(run, "step") == [1]
    other = arrays(run, 1).values()
    assert all(np.abs(mine - theirs).max() > 0.05 for mine, theirs in zip(first, other, strict=True) if mine.ndim > 1)


def test_an_error_of_the_machine_is_told_in_one_line():
    """In the feeding thread too, of which TensorFlow tells as of its own."""
    import tensorflow as tf

    told = re.escape("the batches stopped coming: [Errno 2] gone: 'cache/train'; the checkpoints are intact")
    for kind, raised in {"FileNotFoundError": JobError, "IndexError": tf.errors.UnknownError}.items():
        message = f"{kind}: [Errno 2] gone: 'cache/train'\nTraceback (most recent call last):\n"
        with pytest.raises(raised, match=f"^{told}$" if raised is JobError else "IndexError"), _feeding_errors():
            raise tf.errors.UnknownError(None, None, message)
    with pytest.raises(JobError, match=r"^cannot write curves.png \(full\); the checkpoints"), _feeding_errors():
        raise OSError(28, "full", "curves.png")


@pytest.mark.long
def test_xla_compiles_before_the_first_step_and_what_it_compiled_is_kept(tmp_path):
    shared = "--dataset numbers:en-de --token-budget 400 --xla --static-shapes 2 --warmup-steps 1 --bleu-sentences 0"
    kept = []
    for steps in ("1", "40"):
        own = ["--steps", steps, "--checkpoint-every", steps, "--out", steps]
        cache = str(tmp_path / "cache")
        run_python("-m", "train", *shared.split(), *own, folder=tmp_path, XDG_CACHE_HOME=cache)
        kept.append({path: path.stat().st_mtime_ns for path in tmp_path.glob("cache/keras_transformer/xla/*/*")})
    assert len(kept[0]) == 2, "a program for each shape, though there was one step"
    assert kept[1] == kept[0], "the second run compiles nothing"
