"""What is shown and checked while a run trains."""

import itertools
import sys
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import numpy as np
import pytest

from keras_transformer.errors import JobError, Stopped
from keras_transformer.training import callbacks, progress_line
from keras_transformer.training.callbacks import Interrupt, Progress, StopOnNaN
from keras_transformer.training.progress_line import ProgressLine


def test_the_time_left_does_not_count_the_first_step_in_which_the_graph_is_traced(capsys, monkeypatch):
    """By a clock that comes to the time of a line with each step."""
    monkeypatch.setattr(progress_line.time, "monotonic", itertools.count(100, progress_line.LINE_SECONDS).__next__)
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
    stop = Interrupt(check.check_weights, lambda: saved.append(True), "again")
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
        told, _, drawn = capsys.readouterr().err.rpartition("\r\033[K")
        assert told.endswith("step 1/40 · loss 2.500 · validation · loss 2.25 · bleu 31.40\n")
        if columns == 120:
            assert drawn == 15 * "━" + 15 * "─" + " 20/40 · loss 2.000 · bleu 31.40"
        else:
            assert len(drawn) < columns and "─" not in drawn and drawn.lstrip("━ ").startswith("40/40 · loss 2.0")


def test_a_round_is_judged_by_its_loss_or_by_its_ndcg():
    for judge, better, worse in ((callbacks.Loss, 2.0, 3.0), (callbacks.Ndcg, 0.3, 0.2)):
        one = judge(progress := Progress(step=5))
        one.on_epoch_end(0, {judge.name: better})
        progress.step = 6
        one.on_epoch_end(0, {judge.name: worse})
        assert (progress.best_step, progress.validations_without_better) == (5, 1)
