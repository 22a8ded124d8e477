"""Runs one artefact as its users do: a script for a process of its own, which imports nothing of this project.

`python runner.py JOB RESULT` reads a job (JSON) and writes a result (JSON). The job:

    paths (two of the halves of a translator, else one), format ("saved_model" | "onnx" | "tflite"), takes ("text" |
    "ids" | "halves"), gpu (may it be used), threads, sentences (texts, or rows of ids), batch_size, num_probes (so many
    sentences are run alone and padded as well), probe_seconds (after so long no more of them), pad_columns (how far ids
    are padded), max_length and length_penalty (of the search, where only halves are given)

The result: load_seconds, peak_bytes, versions, device, modules (which of `WATCHED` were imported), and the answers
"batched", "alone" and "padded", each with outputs, scores and seconds (of each batch). Or: error, one line. Or:
missing, a module that is not installed.
"""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np

PAD, UNKNOWN, START, END = 0, 1, 2, 3
WATCHED = ("keras_transformer", "export", "keras", "tensorflow", "tensorflow_text", "onnxruntime_extensions")
PACKAGES = (
    "tensorflow",
    "tensorflow-text",
    "onnxruntime",
    "onnxruntime-gpu",
    "onnxruntime-extensions",
    "ai-edge-litert",
    "numpy",
)
Job = dict[str, Any]
Batch = Any  # strings (B,), or ids (B, S) int32
Translate = Callable[[Batch], tuple[np.ndarray, np.ndarray]]  # strings (B,) or ids (B, L), and scores (B,)


def main(job_path: str, result_path: str) -> None:
    """Runs the job; what goes wrong stands in the result."""
    job = json.loads(Path(job_path).read_text(encoding="utf-8"))
    try:
        result = run(job)
    except ModuleNotFoundError as error:
        result = {"missing": error.name}
    except Exception as error:  # whatever a runtime may raise: the certificate tells it
        lines = str(error).split("\n")
        result = {"error": " ".join(f"{type(error).__name__}: {lines[0]}".split())[:500]}
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


def run(job: Job) -> dict[str, Any]:
    """Loads the artefact, then has it answer in batches, alone and padded."""
    prepare = {"saved_model": prepare_saved_model, "onnx": prepare_onnx, "tflite": prepare_tflite}[job["format"]]
    load = prepare(job)  # the runtime's import is not counted
    start = time.perf_counter()
    translate, device = load()
    load_seconds = time.perf_counter() - start
    sentences, size = job["sentences"], job["batch_size"]
    probes = sentences[: job["num_probes"]]
    translate(batch_of(sentences[:size]))  # to warm up
    answers = {
        "batched": answer(translate, [sentences[first : first + size] for first in range(0, len(sentences), size)]),
        "alone": answer(translate, [[sentence] for sentence in probes], job["probe_seconds"]),
        "padded": answer(translate, [[sentence] for sentence in probes], job["probe_seconds"], padding(job)),
    }
    return {
        **answers,
        "load_seconds": load_seconds,
        "peak_bytes": peak_bytes(),
        "versions": dict(versions()),
        "device": device,
        "modules": [name for name in WATCHED if name in sys.modules],
    }


def prepare_saved_model(job: Job) -> Callable[[], tuple[Translate, str]]:
    """TensorFlow with the operators of tensorflow_text: what TensorFlow Serving has."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(job["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(job["threads"])
    tf.config.experimental.enable_tensor_float_32_execution(False)  # TF32 rounds float32 to 11 bits
    import tensorflow_text  # noqa: F401

    def load() -> tuple[Translate, str]:
        loaded = tf.saved_model.load(*job["paths"])

        def translate(text: Batch) -> tuple[np.ndarray, np.ndarray]:
            # Asked for here each time: a signature alone does not keep the variables that it reads.
            outputs = loaded.signatures["serving_default"](text=tf.constant(text))
            return outputs["translation"].numpy(), outputs["score"].numpy()

        return translate, "GPU" if tf.config.list_physical_devices("GPU") else "CPU"

    return load


def prepare_onnx(job: Job) -> Callable[[], tuple[Translate, str]]:
    """ONNX Runtime; onnxruntime-extensions beside it for text alone."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = job["threads"]
    options.log_severity_level = 3
    if job["takes"] == "text":
        import onnxruntime_extensions

        options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    providers: list[Any] = ["CPUExecutionProvider"]
    if job["gpu"] and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        onnxruntime.preload_dlls()  # the CUDA libraries that pip installed: it does not look for them by itself
        providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": 0}))  # TF32 rounds float32 to 11 bits

    def load() -> tuple[Translate, str]:
        sessions = [onnxruntime.InferenceSession(path, options, providers=providers) for path in job["paths"]]
        # It may fall back to the CPU; why, it says on standard error, or standard output.
        on_gpu = all("CUDAExecutionProvider" in session.get_providers() for session in sessions)
        on_halves = functools.partial(greedy_search, device="cuda" if on_gpu else "cpu")
        make = on_halves if job["takes"] == "halves" else whole_search
        return make(job, *sessions), "GPU" if on_gpu else "CPU"

    return load


def whole_search(job: Job, session: Any) -> Translate:
    """The search is in the graph."""
    (name,) = [argument.name for argument in session.get_inputs()]
    outputs = ["translation" if job["takes"] == "text" else "target_ids", "score"]
    return lambda batch: tuple(session.run(outputs, {name: batch}))


def greedy_search(job: Job, encoder: Any, step: Any, device: str) -> Translate:
    """The shortest loop around the two halves of a translator; what only they read stays on the device."""
    past_inputs = [argument for argument in step.get_inputs() if argument.name.startswith("past_")]
    memory_names = [output.name for output in encoder.get_outputs() if output.name != "limit"]
    past_names = [argument.name for argument in past_inputs]
    encoded = {"limit": "cpu", **dict.fromkeys(memory_names, device)}
    stepped = {"logits": "cpu"} | {name.replace("past_", "present_"): device for name in past_names}

    def translate(source_ids: Batch) -> tuple[np.ndarray, np.ndarray]:
        memory = run_bound(encoder, encoder.io_binding(), {"source_ids": on_device(source_ids)}, encoded)
        limits = np.minimum(memory.pop("limit").numpy(), job["max_length"] or np.iinfo("int32").max)
        binding = step.io_binding()
        for name in memory_names:
            binding.bind_ortvalue_input(name, memory[name])
        past = [on_device(nothing_yet(argument, len(source_ids)), device) for argument in past_inputs]
        ids = np.full((len(limits), max(1, *limits)), PAD, "int32")  # (B, L)
        done, log_prob = limits == 0, np.zeros(len(limits))
        ids[done, 0] = END
        token_ids = np.full_like(limits, START)
        for index in range(max(limits)):
            inputs = {"token_ids": on_device(token_ids[:, None]), "index": on_device(np.array(index, "int32"))}
            inputs |= zip(past_names, past, strict=True)
            logits, *past = run_bound(step, binding, inputs, stepped).values()
            token_ids, gained = likeliest(logits.numpy()[:, 0])
            ids[:, index] = np.where(done, ids[:, index], token_ids)
            log_prob += np.where(done, 0.0, gained)
            done |= (token_ids == END) | (index + 1 >= limits)
            if done.all():
                break
        lengths = np.sum(ids != PAD, axis=1)
        return ids, log_prob / ((5 + lengths) / 6) ** job["length_penalty"]

    return translate


def on_device(array: np.ndarray, device: str = "cpu") -> Any:
    """The array as a value of ONNX Runtime's, on "cpu" or "cuda"."""
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy(array, device)


def run_bound(session: Any, binding: Any, inputs: dict[str, Any], outputs: dict[str, str]) -> dict[str, Any]:
    """Runs a session on values where they are, these and what is bound already; its outputs, on the devices named."""
    binding.clear_binding_outputs()  # a step gives larger ones than the step before
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    for name, device in outputs.items():
        binding.bind_output(name, device)
    session.run_with_iobinding(binding)
    return dict(zip(outputs, binding.get_outputs(), strict=True))


def nothing_yet(argument: Any, rows: int) -> np.ndarray:
    """The keys or values of no position: (rows, heads, 0, size)."""
    _, heads, _, size = argument.shape
    return np.zeros((rows, heads, 0, size), "float16" if "float16" in argument.type else "float32")


def likeliest(logits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Of (B, V) the likeliest ids that may be emitted (B,), and their log-probabilities (B,)."""
    logits = logits - logits.max(axis=1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    log_probs[:, [PAD, UNKNOWN, START]] = -np.inf
    return log_probs.argmax(axis=1).astype("int32"), log_probs.max(axis=1)


def prepare_tflite(job: Job) -> Callable[[], tuple[Translate, str]]:
    """LiteRT alone for ids; for text with the operators of tensorflow_text."""
    from ai_edge_litert import interpreter as litert

    options = {"model_path": job["paths"][0], "num_threads": job["threads"]}
    if job["takes"] == "text":
        from tensorflow_text.core.pybinds import tflite_registrar

        options["custom_op_registerers"] = tflite_registrar.SELECT_TFTEXT_OPS

    def load() -> tuple[Translate, str]:
        kind = litert.InterpreterWithCustomOps if job["takes"] == "text" else litert.Interpreter
        runner = kind(**options).get_signature_runner("translate")
        (name,) = runner.get_input_details()
        best = "translation" if job["takes"] == "text" else "target_ids"

        def translate(batch: Batch) -> tuple[np.ndarray, np.ndarray]:
            outputs = runner(**{name: batch})
            return outputs[best], outputs["score"]

        return translate, "CPU"

    return load


def answer(
    translate: Translate, batches: Sequence[list], most_seconds: float = float("inf"), prepare: Callable | None = None
) -> dict[str, list]:
    """The answers to the batches, as far as the time goes."""
    answers: dict[str, list] = {"outputs": [], "scores": [], "seconds": []}
    for sentences in batches:
        batch = (prepare or batch_of)(sentences)
        start = time.perf_counter()
        outputs, scores = translate(batch)
        answers["seconds"].append(time.perf_counter() - start)
        if np.shape(outputs)[:1] != np.shape(batch)[:1] or np.shape(scores) != np.shape(batch)[:1]:
            shapes = f"outputs {np.shape(outputs)} and scores {np.shape(scores)}"
            raise ValueError(f"expected a row and a score for each of {len(batch)} sentences; received {shapes}")
        answers["outputs"] += [plain(row) for row in outputs[: len(sentences)]]
        answers["scores"] += [float(score) for score in scores[: len(sentences)]]
        if sum(answers["seconds"]) > most_seconds:
            break
    return answers


def batch_of(sentences: list) -> Batch:
    """Texts (B,), or ids (B, S) with pad where a row is shorter."""
    if isinstance(sentences[0], str):
        return np.array(sentences, object)
    ids = np.full((len(sentences), max(map(len, sentences))), PAD, "int32")
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids


def padding(job: Job) -> Callable[[list], Batch]:
    """What pads a batch: more columns for ids; for text the longest sentence as a neighbour."""
    if job["takes"] != "text":
        return lambda sentences: np.pad(batch_of(sentences), [(0, 0), (0, job["pad_columns"])], constant_values=PAD)
    longest = max(job["sentences"], key=len)
    return lambda sentences: batch_of([*sentences, longest])


def plain(row: Any) -> Any:
    """A text as a string; ids without the pad at their end."""
    if isinstance(row, bytes):
        return row.decode("utf-8", "replace")
    if isinstance(row, str):
        return row
    ids = [int(id) for id in row]
    while ids and ids[-1] == PAD:
        ids.pop()
    return ids


def peak_bytes() -> int:
    """The most memory that this process ever held."""
    with contextlib.suppress(OSError):
        # Linux hands `ru_maxrss` on from the process that started this one.
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith("VmHWM:"):
                return 1024 * int(line.split()[1])
    import resource

    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return peak if sys.platform == "darwin" else 1024 * peak


def versions() -> Iterator[tuple[str, str]]:
    """Python's version and those of the runtimes that were used."""
    yield "python", sys.version.split()[0]
    for package in PACKAGES:
        with contextlib.suppress(metadata.PackageNotFoundError):
            if package.removesuffix("-gpu").replace("-", "_") in sys.modules:
                yield package, metadata.version(package)


if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    main(*sys.argv[1:])
