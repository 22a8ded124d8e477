"""The records of a run: metrics.csv, curves.png, samples.txt, TensorBoard, and the line on the terminal."""

from __future__ import annotations

import csv
import io
import math
import re
import shutil
import sys
import time
from dataclasses import replace
from typing import Any

import keras
import numpy as np
from tensorboard.summary import Writer
from tqdm import tqdm

from keras_transformer.core.errors import say
from keras_transformer.core.files import read_bounded, write_text, write_whole
from keras_transformer.plots.pictures import learning_curves
from keras_transformer.runs.run_folder import RunFolder, read_metrics
from keras_transformer.training.callbacks import Progress

LINE_SECONDS = 15.0  # between two lines, if standard error is no terminal
REDRAW_SECONDS = 0.2  # between two drawings of the bar
BAR = "{bar} {desc}"  # for tqdm
MAX_SAMPLES_BYTES = 32 * 2**20
DIGITS = {"val_loss": 2, "val_bleu": 2, "val_ndcg": 4}  # decimals of validation's figures


class Records(keras.callbacks.Callback):
    """Writes a row of metrics, the curves and TensorBoard's events at the end of each round.

    Rows and samples after the step from which the run goes on are dropped.
    """

    COLUMNS = (
        "step", "epoch", "loss", "perplexity", "accuracy", "val_loss", "val_perplexity", "val_accuracy", "val_bleu",
        "learning_rate", "tokens", "seconds", "recall", "ndcg", "val_recall", "val_ndcg",
    )  # fmt: skip
    OF_RANKING = COLUMNS[-4:]  # metrics.csv has these in runs that measure them

    def __init__(self, run: RunFolder, progress: Progress):
        super().__init__()
        self.run = run
        self.progress = progress
        self.rows = [row for row in read_rows(run) if row["step"] <= progress.step]
        self.samples = [block for block in _read_samples(run) if block[0] <= progress.step]
        self._board: Any = None

    def on_train_begin(self, logs: dict[str, float] | None = None) -> None:
        if self._board is None:
            self._begin()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        progress = self.progress
        rate = float(np.asarray(self.model.optimizer.learning_rate))
        known = {**(logs or {}), "step": progress.step, "epoch": progress.epoch, "learning_rate": rate,
                 "tokens": progress.tokens, "seconds": round(progress.seconds, 1)}  # fmt: skip
        row = {name: float(known[name]) for name in self.COLUMNS if name in known}
        self.rows.append(row)
        self._write_metrics()
        self._write_curves()
        self._to_board(row)

    def show(self, step: int, text: str) -> None:
        """Adds sample translations to samples.txt."""
        self.samples.append((step, text))
        self._write_samples()

    def close(self) -> None:
        """Closes TensorBoard's file, and ends the thread that writes it."""
        if self._board is not None:
            self._board.close()
            self._board = None

    def _begin(self) -> None:
        """Writes the records up to the present step anew."""
        shutil.rmtree(self.run.tensorboard, ignore_errors=True)
        self._board = Writer(str(self.run.tensorboard))
        for row in self.rows:
            self._to_board(row)
        if self.run.metrics.exists():
            self._write_metrics()
        if self.run.samples.exists():
            self._write_samples()

    def _write_metrics(self) -> None:
        text = io.StringIO()
        measured = {name for row in self.rows for name in row}
        columns = [name for name in self.COLUMNS if name in measured or name not in self.OF_RANKING]
        writer = csv.DictWriter(text, columns, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows({name: f"{value:.10g}" for name, value in row.items()} for row in self.rows)
        write_text(self.run.metrics, text.getvalue())

    def _write_samples(self) -> None:
        write_text(self.run.samples, "".join(f"== step {step}\n\n{text}\n" for step, text in self.samples))

    def _write_curves(self) -> None:
        columns = {name for row in self.rows for name in row}
        history = {name: [row.get(name, math.nan) for row in self.rows] for name in columns}
        with write_whole(self.run.curves) as aside:
            learning_curves(history).savefig(aside, dpi=120)

    def _to_board(self, row: dict[str, float]) -> None:
        for name, value in row.items():
            self._board.add_scalar(name, value, step=int(row["step"]))
        self._board.flush()


def read_rows(run: RunFolder) -> list[dict[str, float]]:
    """The rows of metrics.csv as numbers. A row with anything else is skipped, because users edit the file."""
    rows = []
    for row in read_metrics(run):
        try:
            rows.append({name: float(value) for name, value in row.items() if name in Records.COLUMNS and value})
        except ValueError:
            continue
    return [row for row in rows if row.get("step", -1) >= 0]


def _read_samples(run: RunFolder) -> list[tuple[int, str]]:
    if not run.samples.is_file():
        return []
    text = read_bounded(run.samples, MAX_SAMPLES_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")
    blocks = text.split("== step ")[1:]
    heads = [block.partition("\n\n") for block in blocks]
    return [(int(step), text.removesuffix("\n")) for step, _, text in heads if re.fullmatch(r"\s*\d{1,15}\s*", step)]


class ProgressLine(keras.callbacks.Callback):
    """Tells step, loss, labels per second and time left on standard error.

    On a terminal a bar is redrawn, with the last validation; elsewhere a line is printed every `LINE_SECONDS`.

    Args:
        progress: how far the run is.
        steps: the steps of the whole run.
        unit: what has a label.
    """

    def __init__(self, progress: Progress, steps: int, unit: str = "tokens"):
        super().__init__()
        self.progress = progress
        self.steps = steps
        self.unit = unit
        self._bar = self._made_bar() if sys.stderr is not None and sys.stderr.isatty() else None
        self._shown = 0.0
        self._last = ""  # score of a validation
        # Where the measurement of speed begins: after the first step, which traces the graph.
        self._since: Progress | None = None

    def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
        self._since = self._since or replace(self.progress)
        now = time.monotonic()
        if now - self._shown >= (LINE_SECONDS if self._bar is None else REDRAW_SECONDS):
            self._shown = now
            if self._bar is None:
                say(self._line(logs or {}))
            else:
                self._bar.n, self._bar.ncols = self.progress.step, shutil.get_terminal_size().columns - 1
                self._bar.set_description_str(self._line(logs or {}).removeprefix("step ") + self._last)

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        logs = logs or {}
        told = [f" · {name.removeprefix('val_')} {logs[name]:.{DIGITS[name]}f}" for name in DIGITS if name in logs]
        self._last = told[-1].replace(" loss ", " validation ") if told else ""
        if self._bar is not None:
            self._bar.clear()  # the line takes the place of the bar
        say(self._line(logs) + (" · validation" + "".join(told) if told else ""))

    def close(self) -> None:
        """Takes the bar away, so that what is said next has its line."""
        if self._bar is not None:
            self._bar.clear()

    def _line(self, logs: dict[str, float]) -> str:
        progress, loss = self.progress, float(logs.get("loss", math.nan))
        line = f"step {progress.step}/{self.steps} · loss {loss:.3f}"
        since = self._since or progress
        if progress.step == since.step:
            return line
        passed = max(progress.seconds - since.seconds, 1e-9)
        left = (self.steps - progress.step) * passed / (progress.step - since.step)
        return f"{line} · {(progress.tokens - since.tokens) / passed:,.0f} {self.unit}/s · {clock(left)} left"

    def _made_bar(self) -> tqdm:
        return tqdm(total=self.steps, bar_format=BAR, ascii="─━", position=0, leave=False, delay=REDRAW_SECONDS)


def clock(seconds: float) -> str:
    """A time as hours, minutes and seconds, such as 1:02:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
