"""Trains on several machines, or in several processes of this one, with Ray Train; `--help` lists every flag.

It takes the flags of train.py. If a worker dies, all begin again from the newest checkpoint.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib
import io
import logging
import os
import signal
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from keras_transformer.core.errors import JobError, RequestError, Stopped, exit_status, say
from keras_transformer.core.extras import load_tensorflow
from keras_transformer.spec.custom_parts import import_flags, with_imports
from keras_transformer.training import flags
from keras_transformer.training.workers import WorkerLost
from own_ray import start_ray


class Launch(NamedTuple):
    """What the flags ask of Ray.

    Args:
        workers: how many processes train together.
        gpus: how many GPUs each of them has.
        retries: how often all may begin again.
        address: of a cluster; None for this machine.
        dashboard: whether Ray serves its page.
    """

    workers: int = 2
    gpus: int = 0
    retries: int = 3
    address: str | None = None
    dashboard: bool = False


def parser() -> argparse.ArgumentParser:
    """The flags of train.py, and those of `Launch`."""
    parser = flags.parser()
    parser.prog, parser.description = "train_on_ray.py", "Trains on several machines, with the workers of Ray Train."
    own, default = parser.add_argument_group("Ray"), Launch()
    own.add_argument(
        "--workers", type=_at_least(1), default=default.workers, metavar="N",
        help=f"processes that train together, as far as possible each on another machine (default: {default.workers})",
    )  # fmt: skip
    own.add_argument(
        "--gpus", type=_at_least(0), default=default.gpus, metavar="N",
        help=f"GPUs of each worker (default: {default.gpus}, it trains on the processor)",
    )  # fmt: skip
    own.add_argument(
        "--retries", type=_at_least(0), default=default.retries, metavar="N",
        help=f"how often all begin again from the newest checkpoint after one was lost (default: {default.retries})",
    )  # fmt: skip
    own.add_argument("--address", help="of a Ray cluster: auto or HOST:PORT (default: a Ray of its own, here)")
    own.add_argument("--dashboard", action="store_true", help="serve Ray's page, unless the cluster does")
    return parser


def _at_least(least: int) -> Any:
    def integer(text: str) -> int:
        if not text.isdigit() or int(text) < least:
            raise argparse.ArgumentTypeError(f"expected an integer of at least {least}; received {text!r}")
        return int(text)

    return integer


def train(launch: Launch, given: dict[str, Any]) -> None:
    """Trains a run, or goes on with one, on the workers of Ray Train.

    Args:
        launch: what to ask of Ray.
        given: flags by the names of their settings, as `keras_transformer.training.run.train` takes them.

    Raises:
        RequestError: a flag is wrong, or Ray is not there; nothing was written.
        JobError: training failed, or workers were lost more often than `launch.retries`.
        Stopped: SIGTERM came; the checkpoints are intact.
    """
    folder = _check(given)
    if folder is None:
        return
    before = _version(folder)
    with (
        start_ray(launch.address, num_cpus=launch.workers, dashboard=launch.dashboard),
        tempfile.TemporaryDirectory() as of_ray,
        _shown_lines() as lines,
    ):
        for retry in range(launch.retries + 1):
            # The driver decides it for all: the workers look into the folder one after another, and the first writes.
            if _version(folder) != before:
                given = {"resume": True, "out": str(folder)}
            try:
                _fit(launch, given, of_ray, lines)
                return
            except WorkerLost as error:
                lost = str(error)
            if retry < launch.retries:
                say(f"{lost}; all begin again from the newest checkpoint (retry {retry + 1} of {launch.retries})")
    raise JobError(f"{lost}, and no retry is left; the checkpoints are intact: go on with --resume --out {folder}")


def _check(given: dict[str, Any]) -> Path | None:
    """Refuses a wrong request before Ray starts.

    Returns:
        The run's folder, or None if the run is finished.
    """
    os.environ.pop("TF_CONFIG", None)  # of a launch by hand; Ray gives each worker its own
    load_tensorflow()
    from keras_transformer.training.request import open_run

    with contextlib.redirect_stderr(io.StringIO()) as lines:  # which worker 0 writes again
        run = open_run(given)
    if run is None:
        say(lines.getvalue().rstrip("\n"))
    return run.folder.path if run is not None else None


def _version(folder: Path) -> tuple[int, int] | None:
    """Which `config.json` is in a run's folder. A run that begins, or goes on, writes one."""
    try:
        about = (folder / "config.json").stat()
        return about.st_ino, about.st_mtime_ns
    except FileNotFoundError:
        return None


def _fit(launch: Launch, given: dict[str, Any], of_ray: str, lines: Any) -> None:
    """Trains once.

    Args:
        launch: what to ask of Ray.
        given: flags by the names of their settings.
        of_ray: a folder for Ray Train. It stays empty, because checkpoints do not pass through Ray.
        lines: a queue for what worker 0 writes to standard error.

    Raises:
        WorkerLost: a worker died, or failed in a way that may not come again.
    """
    ray_train: Any = importlib.import_module("ray.train")
    tensorflow: Any = importlib.import_module("ray.train.tensorflow")
    gpus = {"resources_per_worker": {"CPU": 1, "GPU": launch.gpus}} if launch.gpus else {}
    trainer = tensorflow.TensorflowTrainer(
        _work,
        train_loop_config={"given": given, "folder": str(Path.cwd()), "lines": lines, "imports": import_flags()},
        scaling_config=ray_train.ScalingConfig(
            num_workers=launch.workers, use_gpu=launch.gpus > 0, placement_strategy="SPREAD", **gpus
        ),
        run_config=ray_train.RunConfig(
            storage_path=of_ray,
            failure_config=ray_train.FailureConfig(max_failures=0, max_preemption_failures=0),
            logging_config=ray_train.LoggingConfig(log_level="CRITICAL"),
        ),
    )
    try:
        with _sigterm_as_ctrl_c():
            trainer.fit()
    except ray_train.WorkerGroupError as error:
        raise _told(error.worker_failures) from error
    except ray_train.TrainingFailedError as error:
        raise JobError(f"Ray Train failed: {' '.join(str(error).split()):.500}") from error
    except SystemExit:  # so Ray Train ends after Ctrl-C
        raise KeyboardInterrupt from None


@contextlib.contextmanager
def _sigterm_as_ctrl_c() -> Iterator[None]:
    """Ends Ray Train at SIGTERM as at Ctrl-C, for which it has a handler. It swallows what another handler raises."""
    received = []

    def stop(number: int, frame: Any) -> None:
        received.append(number)
        at_ctrl_c = signal.getsignal(signal.SIGINT)
        if callable(at_ctrl_c):
            at_ctrl_c(signal.SIGINT, frame)

    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    except (SystemExit, KeyboardInterrupt, Stopped):
        if not received:
            raise
    finally:
        signal.signal(signal.SIGTERM, before)
    if received:
        raise Stopped(signal.SIGTERM, "stopped by SIGTERM; the checkpoints are intact: go on with --resume")


@contextlib.contextmanager
def _shown_lines() -> Iterator[Any]:
    """A queue whose lines appear on standard error. Ray's own way would also show what its services write."""
    from ray.util.queue import Queue

    lines = Queue(actor_options={"num_cpus": 0})

    def show() -> None:
        while (line := lines.get()) is not None:
            with contextlib.suppress(Stopped):
                say(line)

    shown = threading.Thread(target=show, daemon=True)
    shown.start()
    try:
        yield lines
    finally:  # a thread that asked a Ray that is down would end the process
        lines.put(None)
        shown.join()


class _Lines(io.TextIOBase):
    """A worker's standard error: its lines go into a queue."""

    def __init__(self, queue: Any):
        self._queue = queue
        self._begun = ""

    def write(self, text: str) -> int:
        *lines, self._begun = f"{self._begun}{text}".split("\n")
        for line in lines:
            self._queue.put(line)
        return len(text)


def _work(config: dict[str, Any]) -> None:
    """What each worker does. Ray calls it in the worker's process."""
    from ray import train as ray_train

    os.environ.pop("TF_USE_LEGACY_KERAS", None)  # Ray Train sets it
    logging.getLogger().setLevel(logging.WARNING)  # Ray Train has it log all, even what is printed
    is_chief = ray_train.get_context().get_world_rank() == 0
    sys.stderr = _Lines(config["lines"]) if is_chief else io.StringIO()
    if Path(config["folder"]).is_dir():
        os.chdir(config["folder"])  # so that a relative path in a flag is the driver's
    with_imports(config["imports"].split())
    from keras_transformer.training import run

    run.train(config["given"])


def _told(failures: dict[int, Exception]) -> Exception:
    """The error to raise for what the workers raised."""
    for failure in failures.values():
        if isinstance(failure, RequestError | JobError) and not isinstance(failure, WorkerLost):
            return failure  # it would come again
    for worker, failure in failures.items():
        if not isinstance(failure, WorkerLost):
            died = type(failure).__module__.startswith("ray.")
            what = "died" if died else f"failed ({type(failure).__name__}: {' '.join(str(failure).split()):.300})"
            return WorkerLost(f"worker {worker} {what}")
    return WorkerLost("a worker died")


def main(argv: list[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return exit_status(lambda: _run(argv), argv)


def _run(argv: list[str] | None) -> None:
    given = vars(parser().parse_args(with_imports(argv)))
    launch = Launch(**{name: given.pop(name) for name in Launch._fields})
    train(launch, given)


if __name__ == "__main__":
    sys.exit(main())
