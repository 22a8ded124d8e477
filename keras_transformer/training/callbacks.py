"""What happens around the steps of `fit`: place in the data, progress, BLEU, records, checkpoints, interruptions."""

from __future__ import annotations

import csv
import errno
import io
import math
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import Any

import keras
import numpy as np

from keras_transformer.bleu import bleu as count_bleu
from keras_transformer.errors import JobError, Stopped, say
from keras_transformer.files import write_text, write_whole
from keras_transformer.run_folder import RunFolder
from keras_transformer.text.batches import BatchPlan, Place
from keras_transformer.training.checkpoints import Checkpoints

LINE_SECONDS = 15.0  # between two lines of progress where there is no terminal to rewrite one in
NUM_SAMPLES = 5
STEPS_BETWEEN_LOOKS = 10  # at the loss, whether it is a number


@dataclass
class Progress:
    """How far a run is: what a checkpoint remembers beside arrays."""

    step: int = 0
    epoch: int = 0  # of the data
    batch: int = 0  # the next one's place in that epoch
    best_bleu: float = -1.0
    best_step: int = 0
    validations_without_better: int = 0
    seconds: float = 0.0
    tokens: int = 0  # target tokens seen

    @property
    def place(self) -> Place:
        """The next batch's place in the data."""
        return Place(self.epoch, self.batch)

    def as_dict(self) -> dict[str, Any]:
        """For a checkpoint."""
        return asdict(self)


class Follow(keras.callbacks.Callback):
    """Keeps `progress` at the step just made; the first callback of all, for the others read it."""

    def __init__(self, progress: Progress, plan: BatchPlan):
        super().__init__()
        self.progress = progress
        self.plan = plan

    def on_train_begin(self, logs: dict | None = None) -> None:
        self._last = time.monotonic()

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        progress, now = self.progress, time.monotonic()
        progress.step += 1
        progress.tokens += self.plan.num_tokens(progress.place)
        progress.epoch, progress.batch = self.plan.place_after(progress.place)
        progress.seconds += now - self._last
        self._last = now


class StopOnNaN(keras.callbacks.Callback):
    """Ends the job soon after the loss is no number any more, and before anything is written.

    The loss in the logs is the mean of the round so far, so what was no number once is seen later too. To look at the
    loss is to wait for the device: so not at every step.
    """

    def __init__(self, progress: Progress):
        super().__init__()
        self.progress = progress

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self.progress.step % STEPS_BETWEEN_LOOKS == 0:
            self.check(logs)

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.check(logs)

    def check(self, logs: dict | None) -> None:
        """Raises JobError if the loss is no number."""
        if not math.isfinite(float((logs or {}).get("loss", 0.0))):
            raise JobError(
                f"the loss is no longer a number at step {self.progress.step}; the last checkpoint is intact: "
                "start again with a lower --learning-rate-factor, a longer --warmup-steps or --clip-norm 1"
            )


class RestoreMetrics(keras.callbacks.Callback):
    """Gives the metrics of a run that goes on within a round back what they had counted; `fit` begins by resetting
    them."""

    def __init__(self, values: Sequence[np.ndarray]):
        super().__init__()
        self.values: Sequence[np.ndarray] = values

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        for variable, value in zip(self.model.metrics_variables, self.values, strict=False):
            variable.assign(value)
        self.values = ()


class Interrupt(keras.callbacks.Callback):
    """SIGTERM and Ctrl-C finish the step, save a checkpoint and raise `Stopped`; a second Ctrl-C ends at once.

    Args:
        check: called with the logs before a checkpoint is saved; it may raise.
        save: saves one.
        how_to_resume: the command.
    """

    def __init__(self, check: Callable[[dict | None], None], save: Callable[[], None], how_to_resume: str):
        super().__init__()
        self.check = check
        self.save = save
        self.how_to_resume = how_to_resume
        self.received: int | None = None
        self._before: dict[int, Any] = {}

    def on_train_begin(self, logs: dict | None = None) -> None:
        if threading.current_thread() is threading.main_thread() and not self._before:
            for number in (signal.SIGTERM, signal.SIGINT):
                self._before[number] = signal.signal(number, self._receive)

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        if self.received is not None:
            self.check(logs)
            self.save()
            self.restore_handlers()
            raise Stopped(self.received, f"stopped and saved; go on with: {self.how_to_resume}")

    def restore_handlers(self) -> None:
        """Puts the signal handlers back that were there before."""
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}

    def _receive(self, number: int, frame: Any) -> None:
        if self.received is not None:
            raise KeyboardInterrupt
        say("finishing the step, then saving")
        self.received = number


class Bleu(keras.callbacks.Callback):
    """Translates validation sentences greedily at the end of a round: `val_bleu`, samples, early stopping.

    Args:
        progress: best BLEU and patience are kept there.
        translate: lines → translations, with the model's present weights.
        sources, references: the sentences.
        patience: stop after so many rounds without a better BLEU; 0 for never.
        show: called with the step and a text of samples.
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
        super().__init__()
        self.progress = progress
        self.translate = translate
        self.sources = sources
        self.references = references
        self.patience = patience
        self.show = show

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        translations = self.translate(self.sources)
        bleu = count_bleu(translations, self.references)
        if logs is not None:
            logs["val_bleu"] = bleu
        progress = self.progress
        progress.validations_without_better += 1
        if bleu > progress.best_bleu:
            progress.best_bleu, progress.best_step, progress.validations_without_better = bleu, progress.step, 0
        if self.patience and progress.validations_without_better >= self.patience:
            self.model.stop_training = True
        if self.show:
            triples = zip(self.sources, self.references, translations, strict=True)
            lines = [f"source      {s}\nreference   {r}\ntranslation {t}\n" for s, r, t in triples]
            self.show(progress.step, "\n".join(lines[:NUM_SAMPLES]))


class Records(keras.callbacks.Callback):
    """metrics.csv, curves.png, samples.txt and TensorBoard, a row a round; cut back to the step that a run goes on
    from."""

    COLUMNS = (
        "step", "epoch", "loss", "perplexity", "accuracy", "val_loss", "val_perplexity", "val_accuracy", "val_bleu",
        "learning_rate", "tokens", "seconds",
    )  # fmt: skip

    def __init__(self, run: RunFolder, progress: Progress):
        super().__init__()
        self.run = run
        self.progress = progress
        self.rows = [row for row in read_metrics(run) if row["step"] <= progress.step]
        self.samples = [block for block in _read_samples(run) if block[0] <= progress.step]
        self._board: Any = None

    def on_train_begin(self, logs: dict | None = None) -> None:
        if self._board is None:
            self._begin()

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
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

    def _begin(self) -> None:
        """Writes the records of the steps before anew, and no others."""
        import shutil

        import tensorflow as tf

        shutil.rmtree(self.run.tensorboard, ignore_errors=True)
        with self._board_errors():
            self._board = tf.summary.create_file_writer(str(self.run.tensorboard))
        for row in self.rows:
            self._to_board(row)
        if self.run.metrics.exists():
            self._write_metrics()
        if self.run.samples.exists():
            self._write_samples()

    def _write_metrics(self) -> None:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.COLUMNS, lineterminator="\n", restval="")
        writer.writeheader()
        writer.writerows({name: f"{value:.10g}" for name, value in row.items()} for row in self.rows)
        write_text(self.run.metrics, text.getvalue())

    def _write_samples(self) -> None:
        write_text(self.run.samples, "".join(f"== step {step}\n\n{text}\n" for step, text in self.samples))

    def _write_curves(self) -> None:
        from keras_transformer.plots.curves import learning_curves

        columns = {name for row in self.rows for name in row}
        history = {name: [row.get(name, math.nan) for row in self.rows] for name in columns}
        with write_whole(self.run.curves) as aside:
            learning_curves(history).savefig(aside, dpi=120)

    def _to_board(self, row: dict[str, float]) -> None:
        import tensorflow as tf

        with self._board_errors(), self._board.as_default(step=int(row["step"])):
            for name, value in row.items():
                tf.summary.scalar(name, value)
            self._board.flush()

    @contextmanager
    def _board_errors(self) -> Iterator[None]:
        """What TensorFlow raises of a file is raised as what it is."""
        import tensorflow as tf

        try:
            yield
        except tf.errors.OpError as error:
            raise OSError(errno.EIO, error.message, str(self.run.tensorboard)) from error


class Save(keras.callbacks.Callback):
    """Saves a checkpoint at the end of a round; after `Records`, so that what is resumed from has its row."""

    def __init__(self, checkpoints: Checkpoints, progress: Progress):
        super().__init__()
        self.checkpoints = checkpoints
        self.progress = progress

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        self.save()

    def save(self) -> None:
        """Saves now."""
        best_step = self.progress.best_step or None
        self.checkpoints.save(self.progress.step, self.model, self.progress.as_dict(), best_step)


class ProgressLine(keras.callbacks.Callback):
    """Step, loss, target tokens per second and time left, on standard error: one line rewritten, or one now and
    then."""

    def __init__(self, progress: Progress, steps: int):
        super().__init__()
        self.progress = progress
        self.steps = steps
        self._terminal = sys.stderr.isatty()
        self._shown = 0.0
        # (step, tokens, seconds) from which speed is counted: after the first step, in which the graph is traced.
        self._since: tuple[int, int, float] | None = None

    def on_train_batch_end(self, batch: int, logs: dict | None = None) -> None:
        self._since = self._since or (self.progress.step, self.progress.tokens, self.progress.seconds)
        now = time.monotonic()
        if now - self._shown >= (0.2 if self._terminal else LINE_SECONDS):
            self._shown = now
            self._write(self._line(logs or {}), end="")

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        logs = logs or {}
        validation = "".join(
            f" · {name.removeprefix('val_')} {logs[name]:.2f}" for name in ("val_loss", "val_bleu") if name in logs
        )
        self._write(self._line(logs) + (f" · validation{validation}" if validation else ""), end="\n")

    def _line(self, logs: dict) -> str:
        progress, loss = self.progress, float(logs.get("loss", math.nan))
        line = f"step {progress.step}/{self.steps} · loss {loss:.3f}"
        step, tokens, seconds = self._since or (progress.step, 0, 0.0)
        if progress.step == step:
            return line
        passed = max(progress.seconds - seconds, 1e-9)
        left = (self.steps - progress.step) * passed / (progress.step - step)
        return f"{line} · {(progress.tokens - tokens) / passed:,.0f} tokens/s · {_clock(left)} left"

    def _write(self, line: str, end: str) -> None:
        if self._terminal:
            print(f"\r\033[K{line}", end=end, file=sys.stderr, flush=True)
        else:
            say(line)


def read_metrics(run: RunFolder) -> list[dict[str, float]]:
    """The rows of metrics.csv; a row that is no row (the file was edited) is passed over."""
    if not run.metrics.is_file():
        return []
    rows = []
    with run.metrics.open(encoding="utf-8", errors="replace", newline="") as file:
        for row in csv.DictReader(file):
            try:
                rows.append({name: float(value) for name, value in row.items() if name in Records.COLUMNS and value})
            except (TypeError, ValueError):
                continue
    return [row for row in rows if "step" in row]


def _read_samples(run: RunFolder) -> list[tuple[int, str]]:
    if not run.samples.is_file():
        return []
    blocks = run.samples.read_text(encoding="utf-8", errors="replace").split("== step ")[1:]
    heads = [block.partition("\n\n") for block in blocks]
    return [(int(step), text.removesuffix("\n")) for step, _, text in heads if step.strip().isdigit()]


def _clock(seconds: float) -> str:
    minutes, seconds = divmod(int(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{seconds:02d}"
