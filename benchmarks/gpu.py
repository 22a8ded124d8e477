"""Checks in eight minutes whether all is right on a GPU, and how fast; each part prints what it found when it ends.

    python -m benchmarks.gpu
    python -m benchmarks.gpu --parts correct profile --back-ends jax
    python -m benchmarks.gpu --device cpu --small          # tries the script

* `correct`: ONNX graphs of a random model, float32, float16 and int8, 1 and 4 beams, on ONNX Runtime's CUDA provider,
  and Keras's search on each back end, beside the same on the processor: the share of sentences with the same ids, and
  the largest difference of their scores. SavedModel too, where tensorflow-text is.
* `repeat`: two runs of one seed and one that was stopped and resumed, on each back end: by how much weights differ.
* `train`: a step of the base and the big model on each back end (TensorFlow with XLA too), matrix products beside.
* `files`: `train.py` from a corpus: target tokens a second.
* `decode`: our ONNX graph beside CTranslate2.
* `profile`: the twenty kernels that take most of a step, on each back end, and the peak of the GPU's memory.

Each command runs in a process of its own. One that fails, or for which no time is left, is told, and the exit status is
then 1. It needs the extras `export`, `bench` and `jax`, or requirements-gpu.txt, or the part that the parts need.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.contest import at_least_one, print_head, print_row
from benchmarks.devices import onnx_session, peak_of_gpu
from benchmarks.sentences import padded
from benchmarks.train import SHAPES
from benchmarks.trainers import Cell, start_ours
from keras_transformer.core.errors import JobError, exit_status

ROOT = Path(__file__).resolve().parent.parent
MODEL = {"vocabulary_size": 2000, "num_layers": 6, "num_heads": 8, "hidden_dim": 256, "intermediate_dim": 512}
SMALL_MODEL = {"vocabulary_size": 300, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 32}
NUM_STEPS = 20  # of a search
MOST_KERNELS = 20
TRAIN = ["--dataset", "numbers:en-de", "--checkpoint-every", "30", "--bleu-sentences", "0", "--average-last", "1"]
Command = tuple[str, list[str], dict[str, str]]  # its title, its words after python, its environment


def main(arguments: list[str] | None = None) -> None:
    """Runs the parts.

    Raises:
        JobError: a command failed, or had no time.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=list(PARTS))
    parser.add_argument("--back-ends", nargs="+", choices=("tensorflow", "jax"), default=["tensorflow", "jax"])
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cuda")
    parser.add_argument("--small", action="store_true", help="models of a few hundred weights")
    parser.add_argument("--seconds", type=at_least_one, default=480, help="for all parts (default: %(default)s)")
    parser.add_argument("--inside", choices=INSIDE, help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.inside:
        INSIDE[options.inside](options)
        return
    end, failed = time.monotonic() + options.seconds, 0
    for part in options.parts:
        for command in PARTS[part](options):
            failed += not ran(command, end - time.monotonic())
    if failed:
        raise JobError(f"{failed} command(s) failed, or had no time")


def ran(command: Command, seconds: float) -> bool:
    """Runs a command, prints what it printed, and returns whether it ended well."""
    title, words, environment = command
    print(f"\n## {title}\n", flush=True)
    begin = time.monotonic()
    try:
        done = subprocess.run(
            [sys.executable, *words], cwd=ROOT, env={**os.environ, **environment}, capture_output=True, text=True,
            timeout=max(seconds, 0.1), check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        print("no time was left")
        return False
    print(done.stdout.strip() or done.stderr.strip()[-500:])
    print(f"\n{time.monotonic() - begin:.0f} s" + (f", failed: {done.stderr[-1500:]}" if done.returncode else ""))
    return not done.returncode


def inside(part: str, options: argparse.Namespace) -> Iterator[Command]:
    """Yields a command for each back end that calls a function of this module."""
    for back_end in options.back_ends:
        words = ["-m", "benchmarks.gpu", "--inside", part, "--device", options.device, *["--small"] * options.small]
        yield f"{part}, {back_end}", words, {"KERAS_BACKEND": back_end}


def training(options: argparse.Namespace) -> Iterator[Command]:
    """Yields `benchmarks.train` for each back end."""
    usual = ["--precision", "bfloat16", "--threads", "1", "--rounds", "3", "--device", options.device]
    for back_end in options.back_ends:
        for shape in ["small"] if options.small else ["paper", "big"]:
            against = ["products", *(["xla"] if back_end == "tensorflow" else [])]
            words = ["-m", "benchmarks.train", "--shape", shape, *usual, "--against", *against]
            yield f"train, {back_end}, {shape}", words, {"KERAS_BACKEND": back_end}


def from_files(options: argparse.Namespace) -> Iterator[Command]:
    """Yields `train.py` for each back end."""
    sizes = ["--preset", "tiny", "--steps", "20"] if options.small else ["--preset", "base", "--steps", "300"]
    precision = [] if options.device == "cpu" else ["--mixed-precision", "bfloat16"]
    for back_end in options.back_ends:
        with tempfile.TemporaryDirectory() as folder:
            words = ["train.py", *TRAIN, *sizes, *precision, "--out", f"{folder}/run", *devices_of(options)]
            if options.small:
                words += ["--token-budget", "400", "--static-shapes", "2"]
            yield f"train.py, {back_end}", words, {"KERAS_BACKEND": back_end}


def decoding(options: argparse.Namespace) -> Iterator[Command]:
    """Yields `benchmarks.decode` beside CTranslate2."""
    cells = ["--sizes", "small", "--beams", "2", "--batch", "2", "--batches", "1"] if options.small else [
        "--beams", "1", "4", "--batch", "1", "8", "32", "128"]  # fmt: skip
    precisions = ["float32"] if options.device == "cpu" else ["float32", "float16"]
    words = ["-m", "benchmarks.decode", "--against", "ctranslate2", "--threads", "1", "--rounds", "3", *cells]
    yield "decode", [*words, "--precision", *precisions, "--device", options.device], {}


def devices_of(options: argparse.Namespace) -> list[str]:
    """Returns the flag of train.py for a device."""
    return ["--devices", "cpu" if options.device == "cpu" else "0"]


def correct(options: argparse.Namespace) -> None:
    """Compares searches on the device with those on the processor; prints a table."""
    from benchmarks.prepare import random_run
    from export.artefacts import Decoding
    from export.onnx.export import translate_model
    from export.onnx.graph import write_model
    from keras_transformer.decoding.keras_decoder import KerasDecoder
    from keras_transformer.spec.search_options import SearchOptions
    from keras_transformer.text.sentences import Arrays

    run = random_run(SMALL_MODEL if options.small else MODEL)
    draw = np.random.default_rng(1)
    ids = padded([draw.integers(4, run.model.vocabulary_size, draw.integers(3, 30)).tolist() for _ in range(64)])
    print_head(["search", "beams", "the same ids", "largest difference of scores"])
    with tempfile.TemporaryDirectory() as folder:
        for beams in (1, 4):
            expected: Any = None
            for precision in ("float32", "float16", "int8"):
                path = Path(folder) / f"{precision}-{beams}.onnx"
                write_model(path, translate_model(run, Decoding(beams, 0.0, NUM_STEPS, n_best=1), precision), {})
                found = [
                    onnx_session(path, device, 1).run(None, {"source_ids": ids}) for device in ("cpu", options.device)
                ]
                expected = expected or found[0]
                print_row([f"ONNX, {precision}", beams, *compared(*found)])
            limits = np.full(len(ids), NUM_STEPS, "int32")
            arrays = Arrays(ids, limits, np.zeros((len(ids), NUM_STEPS), "int32"))
            searched = KerasDecoder(run.model).search(arrays, SearchOptions(num_beams=beams, length_penalty=0.0))
            print_row([f"Keras, {os.environ.get('KERAS_BACKEND')}", beams, *compared(expected, searched)])


def compared(expected: Any, found: Any) -> list[str]:
    """Returns the share of sentences with the same ids, and the largest difference of the scores of these."""
    (ids, scores), (other_ids, others) = ([np.asarray(each) for each in tuple(one)[:2]] for one in (expected, found))
    ids, other_ids = (array.reshape(len(array), -1) for array in (ids, other_ids))
    width = min(ids.shape[1], other_ids.shape[1])
    same = (ids[:, :width] == other_ids[:, :width]).all(axis=1)
    scores, others = (np.asarray(array, "float32").reshape(len(array), -1)[:, 0] for array in (scores, others))
    return [f"{same.mean():.0%}", f"{np.abs(scores - others)[same].max(initial=0):.2g}"]


def repeat(options: argparse.Namespace) -> None:
    """Trains twice, and once in two parts; prints by how much the weights differ."""
    with tempfile.TemporaryDirectory() as folder:
        words = [*TRAIN, "--preset", "tiny", "--token-budget", "400", "--static-shapes", "2", *devices_of(options)]
        for name, steps, more in (("one", 60, []), ("two", 60, []), ("part", 30, []), ("part", 60, ["--resume"])):
            flags = [*words, *more, "--steps", str(steps), "--warmup-steps", "10", "--out", f"{folder}/{name}"]
            subprocess.run([sys.executable, "train.py", *flags], cwd=ROOT, check=True, capture_output=True)
        with last_weights(f"{folder}/one") as one:
            for name, told in (("two", "again from the same seed"), ("part", "stopped and resumed")):
                with last_weights(f"{folder}/{name}") as other:
                    most = max(float(np.abs(one[each] - other[each]).max()) for each in one if each != "format")
                    print(f"{told}: weights differ by {most:.2g}")


@contextmanager
def last_weights(run: str) -> Iterator[Any]:
    """Opens the weights of a run's last checkpoint."""
    with np.load(f"{run}/checkpoints/00000060.weights.npz", allow_pickle=False) as file:
        yield file


def profile(options: argparse.Namespace) -> None:
    """Prints a step's kernels, those that take most of its time first."""
    back_end = os.environ.get("KERAS_BACKEND", "tensorflow")
    sizes, rows, length, _ = SHAPES["small" if options.small else "paper"]
    steps = 2 if options.device == "cpu" else 10
    work = start_ours(Cell(sizes, rows, length, "bfloat16", 1, steps, options.device))
    work()
    work()
    begin = time.perf_counter()
    work()
    seconds = (time.perf_counter() - begin) / steps
    kernels, counts = kernels_of(work, back_end, options.device)
    total = sum(kernels.values())
    print(f"{1e3 * seconds:.1f} ms a step; {sum(counts.values()) / steps:,.0f} operations or kernels, "
          f"{1e3 * total / steps:.1f} ms")  # fmt: skip
    print_head(["share", "ms each", "a step", "kernel"])
    for name, spent in sorted(kernels.items(), key=lambda kernel: -kernel[1])[:MOST_KERNELS]:
        row = [f"{spent / total:.1%}", f"{1e3 * spent / counts[name]:.3f}", f"{counts[name] / steps:.0f}", name[:90]]
        print_row(row)
    if options.device == "cuda":
        print(f"\npeak of the GPU's memory: {peak_of_gpu(back_end):,.0f} MiB")


def kernels_of(work: Callable[[], Any], back_end: str, device: str) -> tuple[dict[str, float], dict[str, int]]:
    """Returns the seconds and the number of each kernel, or on a processor of each operation, while it works."""
    seconds: dict[str, float] = defaultdict(float)
    counts: dict[str, int] = defaultdict(int)
    with tempfile.TemporaryDirectory() as folder:
        if back_end == "jax":
            import jax

            with jax.profiler.trace(folder, create_perfetto_trace=True):
                work()
        else:
            import tensorflow as tf

            with tf.profiler.experimental.Profile(folder, tf.profiler.experimental.ProfilerOptions(3, 0, 1)):
                work()
        for name, spent in (events_of_jax if back_end == "jax" else events_of_tensorflow)(folder, device):
            seconds[name] += spent
            counts[name] += 1
    return seconds, counts


def events_of_jax(folder: str, device: str) -> Iterator[tuple[str, float]]:
    """Yields names and seconds of JAX's kernels."""
    (path,) = Path(folder).rglob("perfetto_trace.json.gz")
    with gzip.open(path, "rt", encoding="utf-8") as file:
        events = json.load(file)["traceEvents"]
    on_gpu = {event["pid"] for event in events if event.get("name") == "process_name" and "GPU" in str(event["args"])}
    for event in events:
        is_kernel = event.get("pid") in on_gpu if device == "cuda" else not str(event.get("name")).startswith("$")
        if event.get("ph") == "X" and is_kernel:
            yield event["name"], event["dur"] / 1e6


def events_of_tensorflow(folder: str, device: str) -> Iterator[tuple[str, float]]:
    """Yields names and seconds: kernels of a GPU's streams, or operations of the processor by their kinds."""
    from tensorflow.tsl.profiler.protobuf import xplane_pb2

    (path,) = Path(folder).rglob("*.xplane.pb")
    space = xplane_pb2.XSpace.FromString(path.read_bytes())
    for plane in space.planes:
        for line in plane.lines:
            for event in line.events:
                name = plane.event_metadata[event.metadata_id].name
                kind = name.rpartition(":")[2].partition("#")[0]
                if device == "cpu" and ":" in name and "::" not in name and kind.strip() == kind:
                    yield kind, event.duration_ps / 1e12
                elif device == "cuda" and "GPU" in plane.name and "Stream" in line.name:
                    yield name, event.duration_ps / 1e12


PARTS: dict[str, Callable[[argparse.Namespace], Iterator[Command]]] = {
    "correct": lambda options: inside("correct", options),
    "repeat": lambda options: inside("repeat", options),
    "train": training,
    "files": from_files,
    "decode": decoding,
    "profile": lambda options: inside("profile", options),
}
INSIDE = {"correct": correct, "repeat": repeat, "profile": profile}


if __name__ == "__main__":
    sys.exit(exit_status(main))
