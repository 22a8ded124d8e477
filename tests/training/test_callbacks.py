"""What is shown, checked, judged and recorded while a run trains."""

import itertools
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock, Mock

import keras
import numpy as np
import pytest

from keras_transformer.core.errors import JobError, RequestError, Stopped
from keras_transformer.runs.run_folder import MAX_METRICS_BYTES, RunFolder
from keras_transformer.text.bleu import bleu
from keras_transformer.training import callbacks, records
from keras_transformer.training.callbacks import BleuMonitor, Interrupt, Progress, ProgressLine, StopOnNaN
from keras_transformer.training.records import MAX_SAMPLES_BYTES, Records, read_rows

RIGHT = "the cat sat on the mat today"


def test_the_time_left_does_not_count_the_first_step_in_which_the_graph_is_traced(capsys, monkeypatch):
    """By a clock that comes to the time of a line with each step."""
    monkeypatch.setattr(callbacks.time, "monotonic", itertools.count(100, callbacks.LINE_SECONDS).__next__)
    progress = Progress()
    line = ProgressLine(progress, 100)
    for seconds in [20.0, *[0.5] * 9]:
        progress.step, progress.tokens = progress.step + 1, progress.tokens + 1000
        progress.seconds += seconds
        line.on_train_batch_end(0, {"loss": 2.0})
    lines = capsys.readouterr().err.splitlines()
    assert lines[0] == "step 1/100 · loss 2.000"
    assert lines[1] == "step 2/100 · loss 2.000 · 2,000 tokens/s · 0:00:49 left"
    assert lines[-1] == "step 10/100 · loss 2.000 · 2,000 tokens/s · 0:00:45 left"


def test_the_loss_is_looked_at_every_tenth_step_and_at_the_end_of_a_round():
    """A look waits for the device."""
    progress, loss = Progress(), MagicMock(**{"__float__.return_value": 1.0})
    stop = StopOnNaN(progress)
    for progress.step in range(1, 32):
        stop.on_train_batch_end(0, {"loss": loss})
    assert loss.__float__.call_count == 3
    nan, told = float("nan"), "the loss became NaN or infinite by step 31; no checkpoint holds such"
    for logs in ({"loss": nan}, {"loss": 1.0, "val_loss": nan}):
        with pytest.raises(JobError, match=told):
            stop.on_epoch_end(0, logs)
    with pytest.raises(JobError, match=told):
        stop.check({"loss": float("inf")})


def test_a_stop_looks_at_loss_and_weights_before_it_saves():
    saved: list[bool] = []
    check = StopOnNaN(Progress(step=3))
    model: Any = SimpleNamespace(trainable_variables=[np.ones(2), np.array([1.0, np.nan])])
    check.set_model(model)
    check.check({"loss": 1.0})
    stop = Interrupt(check.check_weights, lambda: saved.append(True))
    stop.set_params({"steps": 5})
    stop.received = 15
    for loss in (float("nan"), 1.0):  # the update that follows may have made weights NaN
        with pytest.raises(JobError, match="became NaN or infinite by step 3"):
            stop.on_train_batch_end(0, {"loss": loss})
    assert not saved
    model.trainable_variables.pop()
    with pytest.raises(Stopped):
        stop.on_train_batch_end(0, {"loss": 1.0})
    assert saved


def test_a_terminal_shows_a_bar_with_the_last_validation_in_one_line(monkeypatch, capsys):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    for columns, step in ((120, 20), (45, 40)):
        monkeypatch.setenv("COLUMNS", str(columns))
        line = ProgressLine(progress := Progress(step=1, tokens=1000), 40)
        line.on_epoch_end(0, {"loss": 2.5, "val_loss": 2.25, "val_bleu": 31.4})
        progress.step, progress.tokens, progress.seconds = step, 1000 * step, float(step)
        line.on_train_batch_end(0, {"loss": 2.0})
        told, _, drawn = capsys.readouterr().err.rstrip("\r ").rpartition("\r")
        assert told.endswith("step 1/40 · loss 2.500 · validation · loss 2.25 · bleu 31.40\n")
        left = drawn.count("─")
        assert len(drawn) < columns and (left == 0 if step == 40 else left - drawn.count("━") in (0, 1))
        assert drawn.lstrip("━─ ").startswith(f"{step}/40 · loss 2.000 · ")
        assert columns < 120 or drawn.endswith("bleu 31.40") and drawn.count("━") > 30
        line.close()
        Interrupt(print, print)._receive(2, None)
        assert capsys.readouterr().err.endswith("\r\nfinishing the step, then saving\n"), "each in its own line"


def test_a_round_is_judged_by_its_loss_or_by_its_ndcg():
    for name, better, worse in (("val_loss", 2.0, 3.0), ("val_ndcg", 0.3, 0.2)):
        one = callbacks.MetricMonitor(progress := Progress(step=5), name=name)
        one.on_epoch_end(0, {name: better})
        progress.step = 6
        one.on_epoch_end(0, {name: worse})
        assert (progress.best_step, progress.validations_without_better) == (5, 1)


def rounds_of(callback: keras.callbacks.Callback, *logs: dict[str, float], step: Any = None) -> Any:
    """Runs the ends of so many rounds of a model that has an optimizer and nothing else."""
    model = SimpleNamespace(optimizer=SimpleNamespace(learning_rate=0.25), stop_training=False)
    callback._model = model
    callback.on_train_begin()
    for number, log in enumerate(logs, start=1):
        if step is not None:
            step(number)
        callback.on_epoch_end(number, log)
    return model


def test_training_stops_after_so_many_rounds_that_are_no_better():
    for answers, patience, stops in (
        ([RIGHT, RIGHT], 1, True),
        ([RIGHT, RIGHT], 2, False),
        (["the cat sat on", "the cat", RIGHT], 2, False),
        ([RIGHT, RIGHT, RIGHT], 0, False),
    ):
        progress, translate = Progress(), Mock(side_effect=[[answer] for answer in answers])
        callback = BleuMonitor(progress, translate, ["source"], [RIGHT], patience)
        logs: list[dict[str, float]] = [{} for _ in answers]
        model = rounds_of(callback, *logs, step=lambda number, progress=progress: setattr(progress, "step", number))
        assert model.stop_training is stops
        found = [log["val_bleu"] for log in logs]
        assert found == [bleu([answer], [RIGHT]) for answer in answers], "compared with the references"
        assert (progress.best_score, progress.best_step) == (max(found), 1 + found.index(max(found))), "the first"


def test_records_are_cut_back_to_the_step_that_a_run_goes_on_from(tmp_path):
    run, progress = RunFolder(tmp_path), Progress()
    kept = Records(run, progress)

    def step(number: int) -> None:
        progress.step, progress.tokens = 5 * number, 100 * number
        kept.show(progress.step, f"sample of round {number}")

    rounds_of(kept, {"loss": 3.0}, {"loss": 2.0, "val_bleu": 4.5}, {"loss": 1.0}, step=step)
    rows = read_rows(run)
    assert [(row["step"], row["loss"], row["tokens"]) for row in rows] == [(5, 3, 100), (10, 2, 200), (15, 1, 300)]
    assert {row["learning_rate"] for row in rows} == {0.25} and rows[1]["val_bleu"] == 4.5
    with run.metrics.open("a") as metrics, run.samples.open("a") as samples:  # a person edits them
        metrics.write("-inf,1\nnan,1\nfive,1\n,1\n")
        samples.write("== step \u00b2\n\na note\n== step " + 5000 * "1" + "\n\na note\n")
    again = Records(run, Progress(step=10))
    again.on_train_begin()
    assert [row["step"] for row in read_rows(run)] == [5, 10]
    assert run.samples.read_text().count("sample of round") == 2
    assert run.curves.stat().st_size > 1000 and any(run.tensorboard.iterdir())


def test_a_line_of_the_metrics_that_is_no_csv_costs_itself_alone(tmp_path, capsys):
    run = RunFolder(tmp_path)
    run.metrics.write_text(f"step,loss\n5,3\n7,{'9' * 200_000}\n10,2\nx,y\n15,1,more\n")
    assert [row["step"] for row in Records(run, Progress(step=20)).rows] == [5, 10, 15]
    assert capsys.readouterr().err.startswith(f"warning: {run.metrics}: line 3 is left out (")
    run.metrics.write_text("step,loss\n5,3\n" + f"7,{'9' * 200_000}\n" * 3)
    assert [row["step"] for row in read_rows(run)] == [5] and capsys.readouterr().err.endswith("), and 2 more\n")
    run.metrics.write_text(f"{',' * 100_000}\n" + "1\n" * 100_000)  # 10^10 empty values
    assert read_rows(run) == []
    for path, most in ((run.metrics, MAX_METRICS_BYTES), (run.samples, MAX_SAMPLES_BYTES)):
        path.write_bytes(b"\n" * (most + 1))
        with pytest.raises(RequestError, match=f"{path.name} is damaged: it is larger than {most:,} bytes"):
            Records(run, Progress(step=20))
        path.unlink()


def test_a_record_that_cannot_be_written_is_named_and_no_part_of_it_is_left(tmp_path, monkeypatch):
    def full(path: Path, **options: Any) -> None:
        path.write_text("the beginning")
        raise OSError(28, "No space left on device")

    run = RunFolder(tmp_path)
    monkeypatch.setattr(records, "learning_curves", lambda history: SimpleNamespace(savefig=full))
    with pytest.raises(OSError, match="No space left") as raised:
        rounds_of(Records(run, Progress(step=1)), {"loss": 3.0})
    assert raised.value.filename == str(run.curves)
    assert not [path for path in tmp_path.iterdir() if "curves" in path.name]
