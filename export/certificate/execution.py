"""Runs an artefact in a process of its own, on its device, and checks that it gives what it has to give."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from keras_transformer.checking.certificate_texts import QUICK_TEXTS
from keras_transformer.checking.signatures import IDS, Output, Signature
from keras_transformer.core.extras import missing
from keras_transformer.runs.export_folder import ALIGNED

from ..artefacts import Artefact, BrokenArtefact
from .expected import Expected
from .runner import Answers, Result, Task
from .tokenizers import reads_of

RUNNER = Path(__file__).with_name("runner.py")


def may_use_gpu(artefact: Artefact) -> bool:
    """Whether the artefact is meant for GPUs: int8 is for CPUs, and LiteRT's Python package runs on CPUs alone."""
    return artefact.precision != "int8" and artefact.format != "tflite"


def device_notes(artefact: Artefact, device: str, log: str) -> Iterator[str]:
    """Says what a reader must know about the device that an artefact ran on.

    Args:
        artefact: what ran; nothing is noted if it may not use a GPU.
        device: "CPU" or "GPU".
        log: what its runtime wrote to standard output and standard error.
    """
    is_float32 = artefact.precision == "float32"
    if not may_use_gpu(artefact):
        return
    if device == "GPU":
        if is_float32:
            yield "run on the GPU, with TF32 off"
    elif reason := why_no_gpu(log):
        yield f"run on the CPU, because the runtime could not use a GPU: {reason}"
    elif not is_float32:
        yield "run on the CPU, because the runtime found no GPU; this precision is meant for GPUs"


def why_no_gpu(log: str) -> str:
    """Finds the line in which ONNX Runtime says why it does not use CUDA, without its time; "" if there is none."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", log)  # without a terminal's colours
    failed = r"\[[EW]:onnxruntime:[^]]*\] (?=.*Failed to (?:load|create).*CUDA)|^EP Error "
    found = re.search(f"(?:{failed})(.*)", plain, re.MULTILINE | re.IGNORECASE)
    return " ".join(found[1].split())[:500] if found else ""


def task_of(artefact: Artefact, expected: Expected, threads: int, tokenizer: Path | None = None) -> Task:
    """Returns the runner's task.

    Args:
        artefact: what runs.
        expected: what the model gives for the texts.
        threads: for the runtime.
        tokenizer: a file with the artefact's tokenizer alone, see `tokenizers`.
    """
    texts, inputs, decoding = expected.texts, expected.inputs(artefact), expected.decoding
    if artefact.precision == "float32":
        inputs = inputs[: texts.first_given + QUICK_TEXTS]
    return {
        "paths": [str(path.resolve()) for path in artefact.paths],
        "format": artefact.format,
        "takes": artefact.interface,
        "input": "text" if artefact.interface == "text" and expected.signature.text_stem else expected.signature.takes,
        "gpu": may_use_gpu(artefact),
        "threads": threads,
        "texts": inputs,
        "num_long": texts.num_long,
        "num_probes": texts.num_probes,
        "reads": reads_of(artefact, expected, inputs),
        "tokenizer": str(tokenizer) if tokenizer else None,
        "max_length": decoding.max_length,
        "length_penalty": decoding.length_penalty,
        "num_control_ids": expected.num_control_ids,
        "context": expected.context,
        "has_start": expected.has_start,
        "beginning": [*expected.beginning],
    }


def run_artefact(artefact: Artefact, task: Task) -> tuple[Result, str]:
    """Runs the artefact in a process of its own; returns what the runner saw, and what the runtime wrote to standard
    output and standard error.

    Raises:
        BrokenArtefact: it raised an error, crashed or hung.
        RequestError: a package that runs it is not installed.
    """
    with tempfile.TemporaryDirectory() as folder:
        task_path, result_path = Path(folder, "task.json"), Path(folder, "result.json")
        task_path.write_text(json.dumps(task), encoding="utf-8")
        log = run_in_process([str(RUNNER), str(task_path), str(result_path)], folder, task)
        if not result_path.is_file():
            raise ended(0, log)
        result = json.loads(result_path.read_text(encoding="utf-8"))
    if "missing" in result:
        extra = "ctranslate2" if artefact.format == "ctranslate2" else "export"
        raise missing(result["missing"], extra, f"certifying {artefact.path.name}")
    if "error" in result:
        reason = "; ".join(filter(None, [result["error"], why_no_gpu(log)]))
        raise BrokenArtefact(reason, had_no_gpu=not result["cuda"])
    return result, log


def run_in_process(arguments: Sequence[str], folder: str, task: Task) -> str:
    """Runs Python with the arguments in the folder, and returns what it wrote to standard output and error.

    Raises:
        BrokenArtefact: the process failed, or took longer than such a task can take.
    """
    seconds = 300 + 10 * len(task["texts"])
    try:
        done = subprocess.run(
            [sys.executable, "-P", *arguments],
            cwd=folder,
            env=environment(task),
            timeout=seconds,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
    except subprocess.TimeoutExpired:
        raise BrokenArtefact(f"it was not done after {seconds} seconds") from None
    log = done.stdout.decode("utf-8", "replace")
    if done.returncode:
        raise ended(done.returncode, log)
    return log


def ended(status: int, log: str) -> BrokenArtefact:
    """The error of a process that ended without a result, with the last line that it wrote."""
    last_line = log.strip().split("\n")[-1]
    return BrokenArtefact(f"its process ended with exit status {status}: {last_line[:200]}")


def environment(task: Task) -> dict[str, str]:
    """The process's environment. Nothing leads Python to this project; GPUs are visible if the task may use them."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # The model is in the GPU's memory already: TensorFlow must not ask for all of that memory.
    device = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if task["gpu"] else {"CUDA_VISIBLE_DEVICES": "-1"}
    return clean | device | {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": str(task["threads"])}


def signatures_of(artefact: Artefact, signature: type[Signature]) -> list[str]:
    """The names of the signatures that an artefact has to have."""
    if artefact.format == "saved_model":
        return ["serving_default", *signature.names_of_signatures(bool(signature.text_stem))]
    has_more = artefact.format == "tflite" and artefact.interface == "ids"
    return [artefact.signature, *(signature.names_of_signatures(takes_text=False) if has_more else [])]


def check_outputs(expected: Expected, artefact: Artefact, result: Result) -> None:
    """Raises BrokenArtefact unless every signature gives what it has to give, and all numbers are finite."""
    names = signatures_of(artefact, expected.signature)
    if ALIGNED not in result["signatures"]:  # an older version wrote it, and it holds
        names = [name for name in names if name != ALIGNED]
    if sorted(result["signatures"]) != sorted(names):
        raise BrokenArtefact(f"expected the signatures {', '.join(names)}; it has {', '.join(result['signatures'])}")
    for signature, trials in result["signatures"].items():
        takes_text = artefact.interface == "text"
        outputs = expected.signature.outputs(signature, takes_text)
        if artefact.interface == "pieces":
            outputs = {"target_pieces": Output("text", "L"), "score": outputs["score"]}
        # Halves of older versions tell no alignments, and hold.
        if artefact.is_aligned or artefact.interface == "halves" and "alignment" in trials["batched"]["types"]:
            outputs = {**outputs, "alignment": IDS}
        for given, answers in trials.items():
            where = f"{signature} {given}".strip() if len(names) > 1 else given
            check_answers(expected, outputs, answers, where)  # type: ignore[arg-type]


def check_answers(expected: Expected, outputs: dict[str, Output], answers: Answers, where: str) -> None:
    """Raises BrokenArtefact unless the answers of a trial have these outputs, and all numbers are finite."""
    given = answers["types"]
    if {*given} != {*outputs}:
        raise BrokenArtefact(f"{where}: expected the outputs {', '.join(outputs)}; it gives {', '.join(given)}")
    for name, output in outputs.items():
        if given[name].startswith("float"):
            check_finite(name, answers["outputs"][name], where, allows_none="n" in output.axes)
    sizes = expected.sizes()
    for name, output in outputs.items():
        kind = f"{output.type} {1 + len(output.axes)}"
        if given[name] != kind:
            raise BrokenArtefact(f"{where}: expected {name} to be {in_words(kind)}; it is {in_words(given[name])}")
        for batch, found in answers["shapes"][name]:
            longest = max([1, *batch[1:2]])
            shape = [batch[0], *(min(longest, sizes["S"]) if axis == "S" else sizes.get(axis) for axis in output.axes)]
            if len(found) != len(shape) or any(size not in (None, one) for size, one in zip(shape, found, strict=True)):
                raise BrokenArtefact(f"{where}: expected {name} of shape {shape} for {batch}; it has {found}")


def check_finite(name: str, rows: Sequence[ArrayLike], where: str, allows_none: bool) -> None:
    """Raises BrokenArtefact unless all numbers are finite; -inf may be the score of a row without hypothesis."""
    for number, row in enumerate(rows, start=1):
        values = np.asarray(row, "float64")
        if not np.all(np.isfinite(values) | (allows_none & np.isneginf(values))) or (
            allows_none and values.size and not np.isfinite(values.flat[0])
        ):
            found = values[~np.isfinite(values)].flat[0]
            raise BrokenArtefact(f"{where}: {name} of text {number} is not finite: {found}")


def in_words(kind: str) -> str:
    """Says "float32 2" in words."""
    dtype, _, axes = kind.partition(" ")
    return f"{dtype} with {axes} ax{'i' if axes == '1' else 'e'}s"
