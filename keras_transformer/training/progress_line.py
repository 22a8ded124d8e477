"""How far training is, for the person who waits for it."""

from __future__ import annotations

import math
import shutil
import sys
import time
from dataclasses import replace

import keras

from keras_transformer.errors import say
from keras_transformer.training.callbacks import Progress

LINE_SECONDS = 15.0  # between two lines, if standard error is no terminal
REDRAW_SECONDS = 0.2  # between two drawings of the bar
BAR_WIDTH = 30  # the most characters of the bar
DIGITS = {"val_loss": 2, "val_bleu": 2, "val_ndcg": 4}  # of what is told of a validation


class ProgressLine(keras.callbacks.Callback):
    """Tells step, loss, labels per second and time left on standard error.

    On a terminal a bar is redrawn, with the last validation; elsewhere a line is printed every `LINE_SECONDS`.

    Args:
        progress: how far the run is.
        steps: of the whole run.
        unit: what has a label.
    """

    def __init__(self, progress: Progress, steps: int, unit: str = "tokens"):
        super().__init__()
        self.progress = progress
        self.steps = steps
        self.unit = unit
        self._terminal = sys.stderr is not None and sys.stderr.isatty()
        self._shown = 0.0
        self._last = ""  # score of a validation
        # Where the measurement of speed begins: after the first step, which traces the graph.
        self._since: Progress | None = None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._since = self._since or replace(self.progress)
        now = time.monotonic()
        if now - self._shown >= (REDRAW_SECONDS if self._terminal else LINE_SECONDS):
            self._shown = now
            if self._terminal:
                self._draw(self._line(logs or {}).removeprefix("step ") + self._last)
            else:
                say(self._line(logs or {}))

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        logs = logs or {}
        told = [f" · {name.removeprefix('val_')} {logs[name]:.{DIGITS[name]}f}" for name in DIGITS if name in logs]
        self._last = told[-1].replace(" loss ", " validation ") if told else ""
        if self._terminal:
            print("\r\033[K", end="", file=sys.stderr)  # the line takes the place of the bar
        say(self._line(logs) + (" · validation" + "".join(told) if told else ""))

    def _line(self, logs: dict) -> str:
        progress, loss = self.progress, float(logs.get("loss", math.nan))
        line = f"step {progress.step}/{self.steps} · loss {loss:.3f}"
        since = self._since or progress
        if progress.step == since.step:
            return line
        passed = max(progress.seconds - since.seconds, 1e-9)
        left = (self.steps - progress.step) * passed / (progress.step - since.step)
        return f"{line} · {(progress.tokens - since.tokens) / passed:,.0f} {self.unit}/s · {clock(left)} left"

    def _draw(self, line: str) -> None:
        """Redraws the bar and the line, cut to the width of the terminal: a line that wraps cannot be redrawn."""
        columns = shutil.get_terminal_size().columns - 1
        width = min(BAR_WIDTH, columns - len(line) - 1)
        done = round(width * min(1.0, self.progress.step / self.steps))
        bar = f"{'━' * done}{'─' * (width - done)} " if width >= 5 else ""
        print(f"\r\033[K{(bar + line)[:columns]}", end="", file=sys.stderr, flush=True)


def clock(seconds: float) -> str:
    """A time as hours, minutes and seconds, such as 1:02:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
