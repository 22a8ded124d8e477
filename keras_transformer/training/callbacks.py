"""Follows training from within `fit`: callbacks count, check, score, save, tell and interrupt."""

from __future__ import annotations

import math
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from types import FrameType
from typing import Any, TypeAlias

import keras
import numpy as np
from tqdm import tqdm

from keras_transformer.core.errors import JobError, Stopped, say
from keras_transformer.text.bleu import bleu as count_bleu
from keras_transformer.text.feeding import Place, Plan
from keras_transformer.training.checkpoints import Checkpoints
from keras_transformer.training.workers import num_workers

NUM_SAMPLES = 5
LINE_SECONDS = 15.0  # between two lines, if standard error is no terminal
REDRAW_SECONDS = 0.2  # between two drawings of the bar
BAR = "{bar} {desc}"  # for tqdm
DIGITS = {"val_loss": 2, "val_bleu": 2, "val_ndcg": 4}  # decimals of validation's figures
STEPS_BETWEEN_LOOKS = 10  # at the loss: reading it waits for the device
Logs: TypeAlias = dict[str, float] | None  # as Keras gives them to callbacks


@dataclass
class Progress:
    """Counts how far a run is. A checkpoint keeps it beside the arrays."""

    step: int = 0
    epoch: int = 0  # the epoch of the data, where the next batch is
    batch: int = 0  # the next batch's number in that epoch
    best_score: float = -math.inf  # of the rounds so far, by the task's score
    best_step: int = 0
    validations_without_better: int = 0
    seconds: float = 0.0
    tokens: int = 0  # labels seen

    @property
    def place(self) -> Place:
        """Returns the place of the next batch in the data."""
        return Place(self.epoch, self.batch)


class ProgressCounter(keras.callbacks.Callback):
    """Counts each step in `progress`. It is the first callback, because the others read `progress`."""

    def __init__(self, progress: Progress, plan: Plan):
        super().__init__()
        self.progress = progress
        self.plan = plan

    def on_train_begin(self, logs: Logs = None) -> None:
        self._last = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        progress, now = self.progress, time.monotonic()
        progress.step += 1
        progress.tokens += self.plan.num_tokens(progress.place)
        progress.epoch, progress.batch = self.plan.place_after(progress.place)
        progress.seconds += now - self._last
        self._last = now


class StopOnNaN(keras.callbacks.Callback):
    """Ends training soon after the loss became NaN or infinite, and before anything is written.

    The logs hold the mean loss of the round so far, which stays NaN. So it is enough to look at some steps.
    """

    def __init__(self, progress: Progress):
        super().__init__()
        self.progress = progress

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        if self.progress.step % STEPS_BETWEEN_LOOKS == 0:
            self.check(logs)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        self.check(logs)

    def check(self, logs: Logs) -> None:
        """Raises JobError if the loss is NaN or infinite, or at the end of a round that of the validation."""
        losses = (float((logs or {}).get(name, 0.0)) for name in ("loss", "val_loss"))
        if not all(math.isfinite(loss) for loss in losses):
            self._end()

    def check_weights(self, logs: Logs) -> None:
        """Raises as `check` does, and for the weights too: the loss of a step tells nothing of its update."""
        self.check(logs)
        if not all(np.isfinite(np.asarray(variable)).all() for variable in self.model.trainable_variables):
            self._end()

    def _end(self) -> None:
        raise JobError(
            f"the loss became NaN or infinite by step {self.progress.step}; no checkpoint holds such weights: start "
            "another run with --out and a lower --learning-rate-factor, a longer --warmup-steps or --clip-norm 1"
        )


class RestoreMetrics(keras.callbacks.Callback):
    """Restores metric counters when a run resumes mid-round, because `fit` resets them."""

    def __init__(self, values: Sequence[np.ndarray]):
        super().__init__()
        self.values: Sequence[np.ndarray] = values

    def on_epoch_begin(self, epoch: int, logs: Logs = None) -> None:
        for variable, value in zip(self.model.metrics_variables, self.values, strict=False):
            variable.assign(value)
        self.values = ()


class Interrupt(keras.callbacks.Callback):
    """On SIGTERM or Ctrl-C finishes the step, saves a checkpoint and raises `Stopped`. A second signal ends at once.

    The first step may not have begun: then it is the one that is finished.

    The last step of a round is followed by the end of the round, which validates and saves. So this callback comes
    after `Save`.

    Args:
        check: called with the logs before the checkpoint is saved; it may raise.
        save: saves a checkpoint.
    """

    def __init__(self, check: Callable[[Logs], None], save: Callable[[], None]):
        super().__init__()
        self.check = check
        self.save = save
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def on_train_begin(self, logs: Logs = None) -> None:
        if threading.current_thread() is threading.main_thread() and not self._before:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        is_last = batch + 1 == self.params["steps"]
        if self.received is not None and not is_last:
            if keras.config.backend() == "jax":  # whose step keeps the weights to itself until a round ends
                self.model.jax_state_sync()
            self.check(logs)
            self.save()
            self._stop(self.received)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if self.received is not None:
            self._stop(self.received)

    def close(self) -> None:
        """Restores the signal handlers that were set before training."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _stop(self, number: int) -> None:
        self.close()
        raise Stopped(number, "stopped and saved")

    def _receive(self, number: int, frame: FrameType | None) -> None:
        if self.received is not None:
            raise Stopped(number, "stopped at once")
        is_bar = bool(sys.stderr and sys.stderr.isatty())  # in whose line the terminal has put ^C
        say("\n" * is_bar + "finishing the step, then saving")
        self.received = number


class BestTracker(keras.callbacks.Callback):
    """Tracks the best score of a round, of which more is better, and stops training early.

    Args:
        progress: keeps the best score and the validations since.
        patience: stops training after this many validations without a better score; 0 for never.
    """

    def __init__(self, progress: Progress, patience: int = 0):
        super().__init__()
        self.progress = progress
        self.patience = patience

    def update(self, score: float) -> None:
        """Compares the score of a round with the best before."""
        progress = self.progress
        progress.validations_without_better += 1
        if score > progress.best_score:
            progress.best_score, progress.best_step, progress.validations_without_better = score, progress.step, 0
        if self.patience and progress.validations_without_better >= self.patience:
            self.model.stop_training = True


class MetricMonitor(BestTracker):
    """Scores a round by a metric of the logs, of which more is better; by a loss, of which less is better, negated.

    Args:
        progress, patience: see `BestTracker`.
        name: what the logs call the metric.
        show: called with the step, at the end of a round.
    """

    def __init__(
        self,
        progress: Progress,
        patience: int = 0,
        name: str = "val_loss",
        show: Callable[[int], None] = lambda step: None,
    ):
        super().__init__(progress, patience)
        self.name = name
        self.show = show

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if logs and self.name in logs:
            self.update(float(logs[self.name]) * (-1 if self.name == "val_loss" else 1))
        self.show(self.progress.step)


class BleuMonitor(BestTracker):
    """Translates validation sentences at the end of a round: `val_bleu` in the logs, samples, early stopping.

    Args:
        progress: see `BestTracker`.
        translate: lines → translations, with the model's present weights.
        sources: the sentences to translate.
        references: their translations.
        patience: see `BestTracker`.
        show: called with the step and some sample translations.
    """

    def __init__(
        self,
        progress: Progress,
        translate: Callable[[Sequence[str]], list[str]],
        sources: Sequence[str],
        references: Sequence[str],
        patience: int = 0,
        show: Callable[[int, str], None] | None = None,
    ):
        super().__init__(progress, patience)
        self.translate = translate
        self.sources = sources
        self.references = references
        self.show = show

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        translations = self.translate(self.sources)
        bleu = count_bleu(translations, self.references)
        if logs is not None:
            logs["val_bleu"] = bleu
        self.update(bleu)
        if self.show:
            triples = zip(self.sources, self.references, translations, strict=True)
            lines = [f"source      {s}\nreference   {r}\ntranslation {t}\n" for s, r, t in triples]
            self.show(self.progress.step, "\n".join(lines[:NUM_SAMPLES]))


class Save(keras.callbacks.Callback):
    """Saves a checkpoint at the end of a round. It comes after `Records`, so that each checkpoint has its row.

    Args:
        checkpoints: where to save.
        progress: saved beside the arrays.
        then: called after each checkpoint.
    """

    def __init__(self, checkpoints: Checkpoints, progress: Progress, then: Callable[[], None] = lambda: None):
        super().__init__()
        self.checkpoints = checkpoints
        self.progress = progress
        self.then = then

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
        if num_workers() == 1:  # several workers reset their metrics together, and no checkpoint holds them
            self.model.reset_metrics()  # an extended run would go on from the validation's counts
        self.save()

    def save(self) -> None:
        """Saves a checkpoint now."""
        best_step = self.progress.best_step or None
        self.checkpoints.save(self.progress.step, self.model, asdict(self.progress), best_step)
        self.then()


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

    def on_train_batch_end(self, batch: int, logs: Logs = None) -> None:
        self._since = self._since or replace(self.progress)
        now = time.monotonic()
        if now - self._shown >= (LINE_SECONDS if self._bar is None else REDRAW_SECONDS):
            self._shown = now
            if self._bar is None:
                say(self._line(logs or {}))
            else:
                self._bar.n, self._bar.ncols = self.progress.step, shutil.get_terminal_size().columns - 1
                self._bar.set_description_str(self._line(logs or {}).removeprefix("step ") + self._last)

    def on_epoch_end(self, epoch: int, logs: Logs = None) -> None:
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
    """Formats a time as hours, minutes and seconds, such as 1:02:03."""
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
