"""Runs one artefact in a process of its own, which knows nothing of this project."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from keras_transformer.decoding.texts import QUICK_TEXTS
from keras_transformer.errors import RequestError

from ..artefacts import Artefact, BrokenArtefact
from ..signatures import install_extra
from .device import may_use_gpu, why_no_gpu
from .expected import Expected
from .runner import Result, Task
from .tokenizers import reads_of

RUNNER = Path(__file__).with_name("runner.py")
BATCH_SIZE = 32
NUM_ALONE = 32  # so many texts also run alone and padded, unless that takes longer than
ALONE_SECONDS = 5.0
NUM_FEW = 4  # texts that signatures besides the main one get
PAD_COLUMNS = 16


class Execution(NamedTuple):
    """How an artefact ran: what the runner saw, and what the runtime wrote to standard output and standard error."""

    result: Result
    log: str


def task_of(artefact: Artefact, expected: Expected, threads: int, tokenizer: Path | None = None) -> Task:
    """The runner's task.

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
        "takes": artefact.takes,
        "input": "text" if artefact.takes == "text" and expected.signature.text_stem else expected.signature.takes,
        "gpu": may_use_gpu(artefact),
        "threads": threads,
        "texts": inputs,
        "num_alone": texts.num_probes + NUM_ALONE,
        "alone_seconds": ALONE_SECONDS,
        "num_first": texts.num_probes,
        "num_long": texts.num_long,
        "num_few": texts.num_probes + NUM_FEW,
        "batch_size": BATCH_SIZE,
        "pad_columns": PAD_COLUMNS,
        "reads": reads_of(artefact, expected, inputs),
        "tokenizer": str(tokenizer) if tokenizer else None,
        "max_length": decoding.max_length,
        "length_penalty": decoding.length_penalty,
        "num_control_ids": expected.num_control_ids,
        "context": expected.context,
    }


def run_artefact(artefact: Artefact, task: Task) -> Execution:
    """Runs the artefact in a process of its own.

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
        raise RequestError(
            f"certifying {artefact.path.name} needs the package of {result['missing']}, which is not installed: "
            f"{install_extra(result['missing'])}"
        )
    if "error" in result:
        reason = "; ".join(filter(None, [result["error"], why_no_gpu(log)]))
        raise BrokenArtefact(reason, had_no_gpu=not result["cuda"])
    return Execution(result, log)


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
