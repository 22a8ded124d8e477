"""Translates large files on Ray Data with an export: `python examples/bulk_translate.py INPUT --export E --out OUT`.

Stopped at any moment, even by SIGKILL, the same command goes on: whole shards stay, and the others are made.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

import bulk_inputs
import bulk_shards
import bulk_translator
from bulk_inputs import find_inputs, scan_all
from bulk_shards import FORMATS, GOES_ON, ROWS_PER_SHARD, Job, Outcome, Shard, alone
from bulk_translator import BulkTranslator
from keras_transformer.core.errors import JobError, RequestError, exit_status, require_positive, say, warn
from keras_transformer.runs.export_folder import PRECISIONS
from own_ray import start_ray

MOST_BLOCKS = 10_000  # a block has one shard, or in larger jobs some
SECONDS = 10  # between two lines of progress


class Worker:
    """An actor of Ray Data that finishes one shard after the other.

    Args:
        job: what to do.
    """

    def __init__(self, job: Job):
        self.job = job

    def __call__(self, batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Finishes one shard.

        Args:
            batch: the fields of one `Shard`, each (1,).

        Returns:
            The fields of its `Outcome`, and `problem` in words, which is empty if there is none, each (1,).
        """
        shard = Shard(**{name: values.tolist()[0] for name, values in batch.items()})
        outcome, problem = Outcome(0, 0, False), ""
        try:
            outcome = self.job.finish(shard)
        except (JobError, RequestError) as error:
            problem = f"{self.job.path(shard).name}: {error}"
        except OSError as error:
            problem = f"{self.job.path(shard).name}: {error}; {GOES_ON}"
        return {name: np.array([value]) for name, value in [*outcome._asdict().items(), ("problem", problem)]}


def workers_that_fit(num_threads: int) -> int:
    """How many workers the Ray that is started has processors for.

    Raises:
        RequestError: not for one. Ray would wait for a larger machine.
    """
    import ray

    num_cpus = int(ray.cluster_resources().get("CPU", 0))
    if num_cpus < num_threads:
        raise RequestError(
            f"--threads {num_threads}: Ray has {num_cpus} processors; give fewer threads, or --workers too"
        )
    return num_cpus // num_threads


def run_on_ray(job: Job, shards: Sequence[Shard], num_workers: int, num_threads: int) -> Iterator[Outcome]:
    """Finishes all shards on the Ray that is started.

    Args:
        job: what to do.
        shards: of the job.
        num_workers: how many actors.
        num_threads: of the processor, for each actor.

    Yields:
        What became of the shards, in the order in which they are finished.

    Raises:
        JobError: a shard could not be finished.
    """
    import ray

    set_up_ray_data()
    rows = [shard._asdict() for shard in shards]
    results = ray.data.from_items(rows, override_num_blocks=min(len(rows), MOST_BLOCKS)).map_batches(
        Worker,
        fn_constructor_args=[job],
        batch_size=1,
        compute=ray.data.ActorPoolStrategy(size=min(num_workers, len(rows)), max_tasks_in_flight_per_actor=1),
        num_cpus=num_threads,
    )
    try:
        for row in results.iter_rows():
            if problem := row.pop("problem"):
                raise JobError(problem)
            yield Outcome(**row)
    except ray.exceptions.RayError as error:
        reason = str(error).strip().splitlines()[-1]
        raise JobError(f"Ray gave up: {reason}; {GOES_ON}") from error


def set_up_ray_data() -> None:
    """Sends the code of these modules to workers on other machines, which have no such files; and no progress bars."""
    import ray.data

    for module in (bulk_inputs, bulk_shards, bulk_translator):
        ray.cloudpickle.register_pickle_by_value(module)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    logging.getLogger("ray.data").setLevel(logging.ERROR)


def tell(outcomes: Iterator[Outcome], num_rows: int) -> None:
    """Tells how far the job is, and what came of it."""
    start = shown = time.monotonic()
    done = new = failed = 0
    for outcome in outcomes:
        done += outcome.num_rows
        new += outcome.num_rows * outcome.is_new
        failed += outcome.num_failed
        if (now := time.monotonic()) - shown >= SECONDS:
            shown = now
            say(f"{done:,} of {num_rows:,} rows · {new / (now - start):,.0f} a second")
    seconds = time.monotonic() - start
    say(f"{done:,} rows: {new:,} translated now in {seconds:.1f} s, {done - new:,} found in whole shards")
    if failed:
        warn(f"{failed:,} row(s) failed: they have no translation, and `error` tells why")


def bulk_translate(arguments: argparse.Namespace) -> None:
    """Translates the inputs of the command line."""
    translator = BulkTranslator(
        str(Path(arguments.export).absolute()),
        arguments.column,
        arguments.precision,
        arguments.threads,
        arguments.batch_size,
    )
    job = Job(translator, Path(arguments.out).absolute(), arguments.format, arguments.shard_rows)
    paths = find_inputs(arguments.inputs)
    translator.load()  # what is wrong with the export is told before anything is written
    inputs = scan_all(paths, arguments.column, arguments.shard_rows)
    # Ray Data restarts dead workers, and Ray logs an "error" that warns of it at every start.
    os.environ.setdefault("RAY_BACKEND_LOG_LEVEL", "fatal")
    with alone(job.out):
        shards = job.begin(inputs)
        num_cpus = arguments.workers and arguments.workers * arguments.threads
        with start_ray(arguments.address, num_cpus=num_cpus, dashboard=arguments.dashboard):
            num_workers = arguments.workers or workers_that_fit(arguments.threads)
            outcomes = run_on_ray(job, shards, num_workers, arguments.threads)
            tell(outcomes, sum(shard.num_rows for shard in shards))
        job.end()


def parser() -> argparse.ArgumentParser:
    """The command line."""
    made = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = made.add_argument
    add("inputs", nargs="+", metavar="INPUT", help="Parquet, JSON lines (.jsonl), or text; or a folder of such files")
    add("--export", required=True, metavar="FOLDER", help="a folder that `python -m export` wrote")
    add("--out", required=True, metavar="FOLDER", help="where to write the shards; the same folder to go on")
    add("--column", default="text", metavar="NAME", help="of Parquet and JSON lines: what to translate (default: text)")
    add("--format", choices=FORMATS, default="parquet", help="of the shards (default: parquet)")
    add("--precision", choices=PRECISIONS, help="of the export (default: float32, if it is there)")
    add("--workers", type=size, metavar="N", help="processes that translate (default: as many as processors allow)")
    add("--threads", type=size, default=1, metavar="N", help="of each worker (default: 1)")
    add("--batch-size", type=size, default=64, metavar="N", help="lines translated at once (default: 64)")
    shard_rows = f"rows in each shard (default: {ROWS_PER_SHARD:,}); a worker that is killed loses at most one shard"
    add("--shard-rows", type=size, default=ROWS_PER_SHARD, metavar="N", help=shard_rows)
    add("--address", help="of a Ray cluster, `auto` or HOST:PORT (default: a Ray of its own on this machine)")
    add("--dashboard", action="store_true", help="serve Ray's dashboard on this machine")
    return made


def size(text: str) -> int:
    """A positive number of the command line."""
    try:
        require_positive(size=int(text))
    except ValueError:
        raise argparse.ArgumentTypeError(f"must be a whole number from 1; received: {text}") from None
    return int(text)


if __name__ == "__main__":
    given = parser().parse_args()
    sys.exit(exit_status(lambda: bulk_translate(given)))
