"""What happens at the end of a round of training: BLEU and early stopping, records, checkpoints."""

import shutil
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import keras
import pytest

from keras_transformer.bleu import bleu
from keras_transformer.plots import curves
from keras_transformer.run_folder import RunFolder
from keras_transformer.text.batches import Place
from keras_transformer.training.callbacks import Bleu, Follow, Progress, Save
from keras_transformer.training.records import Records, read_rows

RIGHT = "the cat sat on the mat today"


def rounds_of(callback: keras.callbacks.Callback, *logs: dict[str, float], step: Any = None) -> Any:
    """Runs the ends of so many rounds of a model that has an optimizer and nothing else."""
    optimizer = SimpleNamespace(learning_rate=0.25)
    model = SimpleNamespace(optimizer=optimizer, stop_training=False, metrics_variables=[1.0])
    model.reset_metrics = lambda: setattr(model, "metrics_variables", [0.0])
    callback._model = model
    callback.on_train_begin()
    for number, log in enumerate(logs, start=1):
        if step is not None:
            step(number)
        callback.on_epoch_end(number, log)
    return model


def next_of(coming: Iterator[str], lines: list[str]) -> list[str]:
    return [next(coming)]


def test_training_stops_after_so_many_rounds_that_are_no_better():
    for answers, patience, stops in (
        (["", "the cat", RIGHT], 1, False),
        ([RIGHT, RIGHT], 1, True),
        ([RIGHT, RIGHT], 2, False),
        ([RIGHT, "the cat", RIGHT], 2, True),
        (["the cat sat on", "the cat", RIGHT], 2, False),
        ([RIGHT, RIGHT, RIGHT], 0, False),
    ):
        progress, coming = Progress(), iter(answers)
        callback = Bleu(progress, partial(next_of, coming), ["source"], [RIGHT], patience)
        logs: list[dict[str, float]] = [{} for _ in answers]
        step = partial(setattr, progress, "step")
        assert rounds_of(callback, *logs, step=step).stop_training is stops
        found = [log["val_bleu"] for log in logs]
        assert found == [bleu([answer], [RIGHT]) for answer in answers], "compared with the references"
        assert (progress.best_score, progress.best_step) == (max(found), 1 + found.index(max(found))), "the first"
    assert bleu(["the cat sat on"], [RIGHT]) != bleu([RIGHT], ["the cat sat on"])


def test_five_samples_are_shown_with_their_references():
    shown: list[tuple[int, str]] = []
    lines = [f"line {number}" for number in range(7)]
    callback = Bleu(Progress(step=3), lambda sources: [line.upper() for line in sources], lines, lines, 0,
                    lambda step, text: shown.append((step, text)))  # fmt: skip
    rounds_of(callback, {})
    ((step, text),) = shown
    assert step == 3 and text.count("translation LINE") == text.count("reference   line") == 5
    assert "source      line 0\nreference   line 0\ntranslation LINE 0\n" in text and "line 5" not in text


def test_progress_follows_the_steps_through_the_data():
    """Two batches an epoch, of 7 and 9 tokens."""
    progress, plan = Progress(), SimpleNamespace(num_tokens=lambda place: (7, 9)[place.batch])
    plan.place_after = lambda place: Place(place.epoch + place.batch, 1 - place.batch)
    follow = Follow(progress, plan)  # type: ignore[arg-type]
    follow.on_train_begin()
    for step, (epoch, batch, tokens) in enumerate([(0, 1, 7), (1, 0, 16), (1, 1, 23)], start=1):
        follow.on_train_batch_end(0)
        assert (progress.step, progress.epoch, progress.batch, progress.tokens) == (step, epoch, batch, tokens)
        assert progress.place == Place(epoch, batch)
    assert progress.seconds > 0


def test_records_are_cut_back_to_the_step_that_a_run_goes_on_from(tmp_path):
    run, progress = RunFolder(tmp_path), Progress()
    records = Records(run, progress)

    def step(number: int) -> None:
        progress.step, progress.tokens = 5 * number, 100 * number
        records.show(progress.step, f"sample of round {number}")

    rounds_of(records, {"loss": 3.0}, {"loss": 2.0, "val_bleu": 4.5}, {"loss": 1.0}, step=step)
    rows = read_rows(run)
    assert [(row["step"], row["loss"], row["tokens"]) for row in rows] == [(5, 3, 100), (10, 2, 200), (15, 1, 300)]
    assert {row["learning_rate"] for row in rows} == {0.25} and rows[1]["val_bleu"] == 4.5
    head = run.metrics.read_text().splitlines()[0]
    assert "val_perplexity" in head and "ndcg" not in head, "columns of ranking are for runs that rank"
    with run.metrics.open("a") as metrics, run.samples.open("a") as samples:  # a person edits them
        metrics.write("-inf,1\nnan,1\nfive,1\n,1\n")
        samples.write("== step \u00b2\n\na note\n== step " + 5000 * "1" + "\n\na note\n")
    again = Records(run, Progress(step=10))
    again.on_train_begin()
    assert [row["step"] for row in read_rows(run)] == [5, 10]
    assert run.samples.read_text().count("sample of round") == 2
    assert run.curves.stat().st_size > 1000 and any(run.tensorboard.iterdir())


def test_a_checkpoint_is_saved_with_the_progress_the_best_step_and_at_the_end_of_a_round_no_counts():
    """They would be those of the validation, and a run that is extended would go on counting from them."""
    saved: list[Any] = []
    checkpoints: Any = SimpleNamespace(save=lambda *given: saved.append((*given, given[1].metrics_variables)))
    progress = Progress(step=4)
    save = Save(checkpoints, progress, lambda: saved.append("then"))
    model = rounds_of(save, {})
    progress.best_step, model.metrics_variables = 3, [2.0]
    save.save()
    assert saved[1] == saved[3] == "then"
    assert [(step, best, counts) for step, _, _, best, counts in saved[::2]] == [(4, None, [0.0]), (4, 3, [2.0])]
    assert saved[2][1] is model and saved[2][2] == progress.as_dict()


def test_a_line_of_the_metrics_that_is_no_csv_costs_itself_alone(tmp_path, capsys):
    run = RunFolder(tmp_path)
    run.metrics.write_text(f"step,loss\n5,3\n7,{'9' * 200_000}\n10,2\nx,y\n15,1,more\n")
    assert [row["step"] for row in Records(run, Progress(step=20)).rows] == [5, 10, 15]
    assert capsys.readouterr().err.startswith(f"warning: {run.metrics}: the line after line 2 is left out (")


def test_a_record_that_cannot_be_written_is_named_and_no_part_of_it_is_left(tmp_path, monkeypatch):
    def full(path: Path, **options: Any) -> None:
        path.write_text("the beginning")
        raise OSError(28, "No space left on device")

    run = RunFolder(tmp_path)
    monkeypatch.setattr(curves, "learning_curves", lambda history: SimpleNamespace(savefig=full))
    with pytest.raises(OSError, match="No space left") as raised:
        rounds_of(Records(run, Progress(step=1)), {"loss": 3.0})
    assert raised.value.filename == str(run.curves)
    assert not [path for path in tmp_path.iterdir() if "curves" in path.name]
    shutil.rmtree(run.tensorboard)
    run.tensorboard.write_text("")
    with pytest.raises(OSError) as raised:
        rounds_of(Records(run, Progress()), {})
    assert raised.value.filename == str(run.tensorboard)
