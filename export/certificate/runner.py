"""Runs one artefact as its users do: a script for a process of its own, which imports nothing of this project.

`python runner.py TASK RESULT` reads a `Task` and writes a `Result`, both as JSON. In place of the result it writes
{"missing": module} if a module is not installed, and {"error": one line, "cuda": `has_cuda()`} if the artefact fails.
"""

from __future__ import annotations

import contextlib
import functools
import json
import runpy
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

import numpy as np

if TYPE_CHECKING:
    import onnxruntime

PAD, START, END = 0, 2, 3
WATCHED = ("keras_transformer", "export", "keras", "tensorflow", "tensorflow_text", "onnxruntime_extensions")
ONNX_RUNTIME = ("onnxruntime", "onnxruntime-gpu", "onnxruntime-extensions")
PACKAGES = ("tensorflow", "tensorflow-text", *ONNX_RUNTIME, "ai-edge-litert", "ctranslate2", "numpy")
Sentences = Sequence[Any]  # texts, or rows of ids
Batch = Any  # strings (B,), or ids (B, S) int32
MakeBatch = Callable[[Sentences], Batch]
Run = Callable[[Batch], dict[str, np.ndarray]]  # the outputs by name, each (B, ...)
Values = dict[str, "onnxruntime.OrtValue"]  # inputs or outputs of a graph, by name
Load = Callable[[], "Loaded"]


class Task(TypedDict):
    """What the runner is asked to do."""

    paths: list[str]  # one, or the two halves of a translator
    format: str  # "saved_model", "onnx", "tflite" or "ctranslate2"
    takes: str  # "text", "ids", "halves" or "pieces"
    signature: str  # of a SavedModel or a TFLite file
    outputs: list[str]  # which outputs are asked for
    gpu: bool  # whether the runtime may use a GPU
    threads: int
    sentences: Sentences
    batch_size: int
    num_probes: int  # so many sentences also run alone and padded
    probe_seconds: float  # after this time no further probe starts
    pad_columns: int  # how many columns of padding a probe of ids gets
    max_length: int | None  # of the search around two halves, as are
    length_penalty: float
    num_control_ids: int  # the first ids, of which the end alone is emitted


class Answers(TypedDict):
    """The answers to some batches."""

    outputs: dict[str, list[Any]]  # for each output and text: a string, ids without padding, or numbers
    seconds: list[float]  # of each batch


class Result(TypedDict):
    """What the runner saw."""

    batched: Answers
    alone: Answers
    padded: Answers
    load_seconds: float
    peak_bytes: int
    versions: dict[str, str]
    device: str  # "CPU" or "GPU"
    modules: list[str]  # those of `WATCHED` that were imported


class Loaded(NamedTuple):
    """An artefact that answers, and the device that it runs on."""

    run: Run
    device: str


def main(task_path: str, result_path: str) -> None:
    """Runs the task and writes the result, or the error."""
    task = json.loads(Path(task_path).read_text(encoding="utf-8"))
    result: object
    try:
        result = run(task)
    except ModuleNotFoundError as error:
        result = {"missing": error.name}
    except Exception as error:  # a runtime may raise anything: the certificate reports it
        line = f"{type(error).__name__}: {error}".partition("\n")[0]
        result = {"error": " ".join(line.split())[:500], "cuda": task["format"] == "onnx" and has_cuda()}
    Path(result_path).write_text(json.dumps(result), encoding="utf-8")


def run(task: Task) -> Result:
    """Loads the artefact and runs it on the sentences in batches, alone and padded."""
    prepare = {"saved_model": prepare_saved_model, "onnx": prepare_onnx, "tflite": prepare_tflite}
    script = Path(__file__).with_name(f"{task['format']}_runner.py")  # of a format with a script of its own
    load = (prepare.get(task["format"]) or runpy.run_path(str(script))["prepare"])(task)  # the import does not count
    start = time.perf_counter()
    answers, device = load()
    load_seconds = time.perf_counter() - start
    sentences, size = task["sentences"], task["batch_size"]
    probes = [[sentence] for sentence in sentences[: task["num_probes"]]]
    answers(batch_of(sentences[:size]))  # to warm up
    return {
        "batched": answer(answers, [sentences[first : first + size] for first in range(0, len(sentences), size)]),
        "alone": answer(answers, probes, task["probe_seconds"]),
        "padded": answer(answers, probes, task["probe_seconds"], padding(task)),
        "load_seconds": load_seconds,
        "peak_bytes": peak_bytes(),
        "versions": dict(versions()),
        "device": device,
        "modules": [name for name in WATCHED if name in sys.modules],
    }


def prepare_saved_model(task: Task) -> Load:
    """TensorFlow with the operators of tensorflow_text, as TensorFlow Serving has them."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(task["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(task["threads"])
    tf.config.experimental.enable_tensor_float_32_execution(False)  # TF32 rounds float32 to 11 bits
    import tensorflow_text  # noqa: F401

    def load() -> Loaded:
        loaded = tf.saved_model.load(*task["paths"])

        def run(batch: Batch) -> dict[str, np.ndarray]:
            # Looked up for each batch: a signature alone does not keep its variables alive.
            signature = loaded.signatures[task["signature"]]
            (name,) = signature.structured_input_signature[1]
            outputs = signature(**{name: tf.constant(batch)})
            return {name: outputs[name].numpy() for name in task["outputs"]}

        return Loaded(run, "GPU" if tf.config.list_physical_devices("GPU") else "CPU")

    return load


def prepare_onnx(task: Task) -> Load:
    """ONNX Runtime; for text also onnxruntime-extensions."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task["threads"]
    options.log_severity_level = 3
    if task["takes"] == "text":
        import onnxruntime_extensions

        options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    providers: list[Any] = ["CPUExecutionProvider"]
    if task["gpu"] and "CUDAExecutionProvider" in onnxruntime.get_available_providers():
        onnxruntime.preload_dlls()  # CUDA's libraries from pip, which the provider does not find by itself
        providers.insert(0, ("CUDAExecutionProvider", {"use_tf32": 0}))  # TF32 rounds float32 to 11 bits

    def load() -> Loaded:
        sessions = [onnxruntime.InferenceSession(path, options, providers=providers) for path in task["paths"]]
        # ONNX Runtime may fall back to the CPU; it writes the reason to standard error or standard output.
        on_gpu = all("CUDAExecutionProvider" in session.get_providers() for session in sessions)
        on_halves = functools.partial(greedy_search, device="cuda" if on_gpu else "cpu")
        make = on_halves if task["takes"] == "halves" else whole_graph
        return Loaded(make(task, *sessions), "GPU" if on_gpu else "CPU")

    return load


def whole_graph(task: Task, session: onnxruntime.InferenceSession) -> Run:
    """A graph that answers by itself: if it searches, it holds the search."""
    (name,) = [argument.name for argument in session.get_inputs()]
    return lambda batch: dict(zip(task["outputs"], session.run(task["outputs"], {name: batch}), strict=True))


def greedy_search(
    task: Task, encoder: onnxruntime.InferenceSession, step: onnxruntime.InferenceSession, device: str
) -> Run:
    """A translator from the two halves: a greedy loop, which keeps on the device whatever only the halves read."""
    past_inputs = [argument for argument in step.get_inputs() if argument.name.startswith("past_")]
    memory_names = [output.name for output in encoder.get_outputs() if output.name != "limit"]
    past_names = [argument.name for argument in past_inputs]
    encoded = {"limit": "cpu", **dict.fromkeys(memory_names, device)}
    stepped = {"logits": "cpu"} | {name.replace("past_", "present_"): device for name in past_names}

    def run(source_ids: Batch) -> dict[str, np.ndarray]:
        memory = run_bound(encoder, encoder.io_binding(), {"source_ids": on_device(source_ids)}, encoded)
        limits = np.minimum(memory.pop("limit").numpy(), task["max_length"] or np.iinfo("int32").max)
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
            token_ids, gained = likeliest(logits.numpy()[:, 0], task["num_control_ids"])
            ids[:, index] = np.where(done, ids[:, index], token_ids)
            log_prob += np.where(done, 0.0, gained)
            done |= (token_ids == END) | (index + 1 >= limits)
            if done.all():
                break
        lengths = np.sum(ids != PAD, axis=1)
        return {"target_ids": ids, "score": log_prob / ((5 + lengths) / 6) ** task["length_penalty"]}

    return run


def on_device(array: np.ndarray, device: str = "cpu") -> onnxruntime.OrtValue:
    """The array as a value of ONNX Runtime on "cpu" or "cuda"."""
    import onnxruntime

    return onnxruntime.OrtValue.ortvalue_from_numpy(array, device)


def has_cuda() -> bool:
    """Whether ONNX Runtime can put a value on a GPU."""
    with contextlib.suppress(Exception):  # its build is for the CPU alone, or it finds no driver, library or GPU
        return on_device(np.zeros(1, "float32"), "cuda") is not None
    return False


def run_bound(
    session: onnxruntime.InferenceSession, binding: onnxruntime.IOBinding, inputs: Values, outputs: dict[str, str]
) -> Values:
    """Runs a session without copying values between devices: on `inputs` and on what the binding holds already.

    `outputs` names each output's device.
    """
    binding.clear_binding_outputs()  # each step has larger outputs than the step before
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    for name, device in outputs.items():
        binding.bind_output(name, device)
    session.run_with_iobinding(binding)
    return dict(zip(outputs, binding.get_outputs(), strict=True))


def nothing_yet(argument: onnxruntime.NodeArg, rows: int) -> np.ndarray:
    """The keys or values before the first step: (rows, heads, 0, size)."""
    _, heads, _, size = argument.shape
    return np.zeros((rows, heads, 0, size), "float16" if "float16" in argument.type else "float32")


def likeliest(logits: np.ndarray, num_control_ids: int) -> tuple[np.ndarray, np.ndarray]:
    """Logits (B, V) → the likeliest ids that may be emitted (B,), and their log-probabilities (B,)."""
    logits = logits - logits.max(axis=1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    log_probs[:, np.delete(np.arange(num_control_ids), END)] = -np.inf
    return log_probs.argmax(axis=1).astype("int32"), log_probs.max(axis=1)


def prepare_tflite(task: Task) -> Load:
    """LiteRT; for text with the operators of tensorflow_text."""
    from ai_edge_litert import interpreter as litert

    options = {"model_path": task["paths"][0], "num_threads": task["threads"]}
    if task["takes"] == "text":
        from tensorflow_text.core.pybinds import tflite_registrar

        options["custom_op_registerers"] = tflite_registrar.SELECT_TFTEXT_OPS

    def load() -> Loaded:
        kind = litert.InterpreterWithCustomOps if task["takes"] == "text" else litert.Interpreter
        runner = kind(**options).get_signature_runner(task["signature"])
        (name,) = runner.get_input_details()
        return Loaded(lambda batch: runner(**{name: batch}), "CPU")

    return load


def answer(
    run: Run, batches: Sequence[Sentences], max_seconds: float = float("inf"), make: MakeBatch | None = None
) -> Answers:
    """Answers the batches one by one, and stops after `max_seconds`; `make` replaces `batch_of`."""
    answers: Answers = {"outputs": {}, "seconds": []}
    for sentences in batches:
        batch = (make or batch_of)(sentences)
        start = time.perf_counter()
        outputs = run(batch)
        answers["seconds"].append(time.perf_counter() - start)
        if any(np.shape(rows)[:1] != np.shape(batch)[:1] for rows in outputs.values()):
            shapes = ", ".join(f"{name} {np.shape(rows)}" for name, rows in outputs.items())
            raise ValueError(f"expected a row for each of {len(batch)} sentences; received {shapes}")
        for name, rows in outputs.items():
            answers["outputs"].setdefault(name, []).extend(plain(row) for row in rows[: len(sentences)])
        if sum(answers["seconds"]) > max_seconds:
            break
    return answers


def batch_of(sentences: Sentences) -> Batch:
    """Texts (B,), ids (B, S) padded to the longest row, or images (B, S, S, channels)."""
    if np.ndim(sentences[0]) != 1:
        return np.array(sentences, object if isinstance(sentences[0], str) else "uint8")
    ids = np.full((len(sentences), max(map(len, sentences))), PAD, "int32")
    for row, sentence in zip(ids, sentences, strict=True):
        row[: len(sentence)] = sentence
    return ids


def padding(task: Task) -> MakeBatch:
    """A function that makes a padded batch: ids get more columns, texts and images a neighbour, the longest text."""
    if task["takes"] != "text" and np.ndim(task["sentences"][0]) != 3:
        return lambda sentences: np.pad(batch_of(sentences), [(0, 0), (0, task["pad_columns"])], constant_values=PAD)
    longest = max(task["sentences"], key=len)
    return lambda sentences: batch_of([*sentences, longest])


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
