"""Runs one artefact as its users do: a script for a process of its own, which imports nothing of this project.

`python runner.py TASK RESULT` reads a `Task` and writes a `Result`, both as JSON. In place of the result it writes
{"missing": module} if a module is not installed, and {"error": one line, "cuda": whether ONNX Runtime can put a value
on a GPU} if the artefact fails.

Each format has a function in the script runtimes.py beside this one.
"""

from __future__ import annotations

import contextlib
import json
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple, TypedDict

import numpy as np

PAD = 0
BATCH_SIZE = 32
PAD_COLUMNS = 16  # so many columns of padding ids get when they run padded
NUM_ALONE = 32  # so many texts, and the probes, also run alone and padded; texts only as long as it takes less than
ALONE_SECONDS = 5.0
NUM_FEW = 4  # so many texts, and the probes, are given to signatures besides the main one
WATCHED = ("keras_transformer", "export", "keras", "tensorflow", "tensorflow_text", "onnxruntime_extensions")
ONNX_RUNTIME = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-extensions")
PACKAGES = ("tensorflow", "tensorflow-text", *ONNX_RUNTIME, "ai-edge-litert", "ctranslate2", "numpy")
Texts = Sequence[Any]  # texts, rows of ids, rows of pieces, or images
Batch = Any  # strings (B,), ids (B, S) int32, images (B, S, S, channels) uint8, or rows of pieces
MakeBatch = Callable[[Texts], Batch]
Run = Callable[[Batch], dict[str, np.ndarray]]  # the outputs by name, each (B, ...)


class Task(TypedDict):
    """What the runner is asked to do."""

    paths: list[str]  # one, or the two halves of a translator
    format: str  # "saved_model", "onnx", "tflite" or "ctranslate2"
    takes: str  # "text", "ids", "halves", "step" or "pieces"
    input: str  # what its one input is called, unless it takes halves, a step or pieces
    gpu: bool  # whether the runtime may use a GPU
    threads: int
    texts: Texts
    num_long: int  # the first texts are long: they have a batch of their own, and run neither alone nor padded
    num_probes: int  # the texts behind these
    reads: list[tuple[str, list[int]]]  # texts, and the ids that the artefact's tokenizer has to make of them
    tokenizer: str | None  # a file that holds the artefact's tokenizer alone, where the format needs one
    max_length: int | None  # the limit of the search around two halves or a step
    length_penalty: float
    num_control_ids: int  # the first ids, of which the end alone is emitted
    context: int  # the most ids of a language model's step
    beginning: list[int]  # the ids with which each answer of a search begins
    has_start: bool  # whether a language model reads the start id before a prompt


class Answers(TypedDict):
    """The answers to some batches."""

    outputs: dict[str, list[Any]]  # for each output and text: a string, ids without padding, or numbers
    types: dict[str, str]  # for each output its type and its number of axes, such as "float32 2"
    shapes: dict[str, list[tuple[list[int], list[int]]]]  # for each output the shapes of each batch and of its answers
    seconds: list[float]  # the seconds of each batch


class Trials(TypedDict):
    """The answers of one signature: to texts in batches, alone and padded, and to an empty batch."""

    batched: Answers
    alone: Answers
    padded: Answers
    empty: Answers


class Result(TypedDict):
    """What the runner saw."""

    signatures: dict[str, Trials]  # the first is the main one
    load_seconds: float
    peak_bytes: int
    versions: dict[str, str]
    provider: str  # what ran the artefact, such as "CPUExecutionProvider"
    device: str  # "CPU" or "GPU"
    modules: list[str]  # those of `WATCHED` that were imported


class Loaded(NamedTuple):
    """An artefact that answers, the main signature first; and what it runs on."""

    signatures: dict[str, Run]
    provider: str
    device: str
    read: Callable[[list[str]], list[list[int]]] | None = None  # what the artefact's tokenizer makes of texts


class WrongTokenizer(Exception):
    """The artefact's tokenizer makes other ids of a text than SentencePiece."""


def main(task_path: str, result_path: str) -> None:
    """Runs the task and writes the result, or the error."""
    task = json.loads(Path(task_path).read_text(encoding="utf-8"))
    result: object
    try:
        result = run(task)
    except ModuleNotFoundError as error:
        result = {"missing": error.name}
    except WrongTokenizer as error:
        result = {"error": str(error), "cuda": False}
    except Exception as error:  # a runtime may raise anything: the certificate reports it
        line = f"{type(error).__name__}: {error}".partition("\n")[0]
        has_cuda = task["format"] == "onnx" and runtimes()["has_cuda"]()
        result = {"error": " ".join(line.split())[:500], "cuda": has_cuda}
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


def run(task: Task) -> Result:
    """Loads the artefact, compares its tokenizer, and runs each of its signatures."""
    load = runtimes()[f"prepare_{task['format']}"](task)  # the import does not count
    start = time.perf_counter()
    loaded = Loaded(*load())
    load_seconds = time.perf_counter() - start
    check_tokenizer(loaded, task["reads"])
    return {
        "signatures": {
            name: trials(answers, task, is_main=place == 0)
            for place, (name, answers) in enumerate(loaded.signatures.items())
        },
        "load_seconds": load_seconds,
        "peak_bytes": peak_bytes(),
        "versions": dict(versions()),
        "provider": loaded.provider,
        "device": loaded.device,
        "modules": [name for name in WATCHED if name in sys.modules],
    }


def runtimes() -> dict[str, Any]:
    """What the script of the runtimes defines."""
    return runpy.run_path(str(Path(__file__).with_name("runtimes.py")))


def check_tokenizer(loaded: Loaded, reads: Sequence[tuple[str, list[int]]]) -> None:
    """Raises WrongTokenizer unless the artefact's tokenizer makes these ids of these texts."""
    if loaded.read is None or not reads:
        return
    for (text, expected), ids in zip(reads, loaded.read([text for text, _ in reads]), strict=True):
        if ids != expected:
            raise WrongTokenizer(f"its tokenizer reads {text!r} as {ids}, and the model's vocabulary as {expected}")


def trials(answers: Run, task: Task, is_main: bool) -> Trials:
    """Runs a signature in batches, alone, padded and on none; one that is not the main one on few texts."""
    long, texts, num_probes = task["texts"][: task["num_long"]], usual_texts(task), task["num_probes"]
    texts = texts if is_main else texts[: num_probes + NUM_FEW]
    batches = [texts[first : first + BATCH_SIZE] for first in range(0, len(texts), BATCH_SIZE)]
    alone = [[text] for text in texts[: num_probes + NUM_ALONE]]
    make = batch_maker(task)
    answers(make(batches[0]))  # to warm up
    return {
        "batched": answer(answers, [*[long] * (is_main and bool(long)), *batches], make),
        "alone": answer(answers, alone, make, num_probes, ALONE_SECONDS),
        "padded": answer(answers, alone, padding(task, make), num_probes, ALONE_SECONDS),
        "empty": answer(answers, [texts[:1]], lambda some: make(some)[:0]),
    }


def usual_texts(task: Task) -> Texts:
    """The texts without the long ones."""
    return task["texts"][task["num_long"] :]


def answer(
    run: Run, batches: Sequence[Texts], make: MakeBatch, at_least: int = 0, max_seconds: float = float("inf")
) -> Answers:
    """Answers the batches one by one; stops after `max_seconds`, but not before `at_least` batches."""
    answers: Answers = {"outputs": {}, "types": {}, "shapes": {}, "seconds": []}
    for texts in batches:
        batch = make(texts)
        start = time.perf_counter()
        outputs = run(batch)
        answers["seconds"].append(time.perf_counter() - start)
        if any(np.shape(rows)[:1] != (len(batch),) for rows in outputs.values()):
            shapes = ", ".join(f"{name} {np.shape(rows)}" for name, rows in outputs.items())
            raise ValueError(f"expected a row for each of {len(batch)} texts; received {shapes}")
        for name, rows in outputs.items():
            kind = f"{'text' if rows.dtype == object else rows.dtype} {rows.ndim}"
            if answers["types"].setdefault(name, kind) != kind:
                raise ValueError(f"expected {name} to be {answers['types'][name]} as before; received {kind}")
            given = [*batch.shape] if isinstance(batch, np.ndarray) else [len(batch)]
            answers["shapes"].setdefault(name, []).append((given, [*rows.shape]))
            answers["outputs"].setdefault(name, []).extend(plain(row) for row in rows[: len(texts)])
        if len(answers["seconds"]) >= at_least and sum(answers["seconds"]) > max_seconds:
            break
    return answers


def batch_maker(task: Task) -> MakeBatch:
    """A function that makes a batch of texts."""
    if task["takes"] == "pieces":
        return list
    if isinstance(task["texts"][0], str):
        return lambda texts: np.array(texts, object)
    if np.ndim(task["texts"][0]) == 3:
        return lambda texts: np.array(texts, "uint8")
    return batch_of_ids


def batch_of_ids(texts: Texts) -> np.ndarray:
    """Ids (B, S) int32, padded to the longest row."""
    ids = np.full((len(texts), max(map(len, texts))), PAD, "int32")
    for row, text in zip(ids, texts, strict=True):
        row[: len(text)] = text
    return ids


def padding(task: Task, make: MakeBatch) -> MakeBatch:
    """A function that makes a padded batch: ids get more columns; others get a neighbour, the longest usual text."""
    if make is batch_of_ids:
        return lambda texts: np.pad(make(texts), [(0, 0), (0, PAD_COLUMNS)], constant_values=PAD)
    longest = max(usual_texts(task), key=len)
    return lambda texts: make([*texts, longest])


def plain(row: Any) -> Any:
    """A text as a string, ids without the padding behind them, numbers, or texts."""
    if isinstance(row, str | bytes):
        return row.decode("utf-8", "replace") if isinstance(row, bytes) else row
    if row.dtype == object:
        return [plain(text) for text in row]
    is_ids = row.ndim == 1 and row.dtype.kind == "i"
    return np.trim_zeros(row, "b").tolist() if is_ids else row.tolist()


def peak_bytes() -> int:
    """The largest memory that this process has had so far."""
    with contextlib.suppress(OSError):
        # On Linux `ru_maxrss` includes the peak of the process that started this one.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def versions() -> Iterator[tuple[str, str]]:
    """The versions of Python and of the runtimes that were used."""
    yield "python", sys.version.split()[0]
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            if package.removesuffix("-gpu").replace("-", "_") in sys.modules:
                yield package, metadata.version(package)


if __name__ == "__main__":
    main(*sys.argv[1:])
