"""Runs an ONNX graph for `runner`, with ONNX Runtime. It imports nothing of this project."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import onnxruntime

PAD, START, END = 0, 2, 3
Run = Callable[[Any], dict[str, np.ndarray]]
Values = dict[str, "onnxruntime.OrtValue"]  # inputs or outputs of a graph, by name
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
MOST = np.iinfo("int32").max


def prepare(task: dict[str, Any]) -> Callable[[], tuple]:
    """ONNX Runtime; for text also onnxruntime-extensions. See `runner`."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task["threads"]
    options.log_severity_level = 3
    if task["takes"] == "text":
        import onnxruntime_extensions

        options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    providers: list[Any] = [CPU]
    if task["gpu"] and CUDA in onnxruntime.get_available_providers():
        onnxruntime.preload_dlls()  # CUDA's libraries from pip, which the provider does not find by itself
        providers.insert(0, (CUDA, {"use_tf32": 0}))  # TF32 rounds float32 to 11 bits

    def load() -> tuple:
        sessions = [onnxruntime.InferenceSession(path, options, providers=providers) for path in task["paths"]]
        # ONNX Runtime may fall back to the CPU; it writes the reason to standard error or standard output.
        on_gpu = all(session.get_providers()[0] == CUDA for session in sessions)
        if task["takes"] in ("halves", "step"):
            answers: Run = GreedySearch(task, sessions, "cuda" if on_gpu else "cpu")
        else:
            answers = whole_graph(sessions[0], task["input"])
        return {"": answers}, CUDA if on_gpu else CPU, "GPU" if on_gpu else "CPU", reader if task["tokenizer"] else None

    def reader(texts: Sequence[str]) -> list[list[int]]:
        session = onnxruntime.InferenceSession(task["tokenizer"], options, providers=[CPU])
        ids, starts = session.run(None, {"text": np.array(texts, object)})
        return [row.tolist() for row in np.split(ids, starts[1:-1])]

    return load


def whole_graph(session: onnxruntime.InferenceSession, name: str) -> Run:
    """A graph that answers by itself what its input of this name is given: if it searches, it holds the search."""
    names = [output.name for output in session.get_outputs()]
    return lambda batch: dict(zip(names, session.run(names, {name: batch}), strict=True))


class GreedySearch:
    """A greedy loop around a translator's two halves, or around a language model's step.

    Whatever only the graphs read stays on the device.

    Args:
        task: the runner's.
        sessions: the sessions of encoder and step, or of the step alone.
        device: "cpu" or "cuda".
    """

    def __init__(self, task: dict[str, Any], sessions: Sequence[onnxruntime.InferenceSession], device: str):
        *self.encoders, self.step = sessions
        self.task, self.device = task, device
        self.pasts = [argument for argument in self.step.get_inputs() if argument.name.startswith("past_")]

    def __call__(self, ids: np.ndarray) -> dict[str, np.ndarray]:
        """Ids (B, S) → the ids (B, T) that are emitted, with their end unless they were cut; and scores (B,)."""
        memory = self.memory(ids)
        read = ids[:, :0] if self.encoders else ids  # a language model reads first
        token_ids = np.full(len(ids), START, "int32")
        if not self.encoders and not self.task["has_start"]:
            token_ids, read = np.where(ids[:, 0] == PAD, START, ids[:, 0]), ids[:, 1:]
        prompt_length, limits = np.sum(read != PAD, axis=1), self.limits(read, memory)
        longest = max([1, *limits])
        emitted = np.full((len(limits), longest), PAD, "int32")  # with what was read before it
        done, log_prob = limits == 0, np.zeros(len(limits), "float32")
        emitted[done, 0] = END
        binding, names = self.step.io_binding(), [argument.name for argument in self.pasts]
        for name, value in memory.items():
            binding.bind_ortvalue_input(name, value)
        places = {"logits": "cpu"} | {name.replace("past_", "present_"): self.device for name in names}
        past = [on_device(nothing_yet(argument, len(ids)), self.device) for argument in self.pasts]
        for index in range(longest):
            inputs = {"token_ids": on_device(token_ids[:, None]), "index": on_device(np.array(index, "int32"))}
            inputs |= zip(names, past, strict=True)
            logits, *past = run_bound(self.step, binding, inputs, places).values()
            forced = self.task["beginning"][index : index + 1]
            token_ids, gained = likeliest(logits.numpy()[:, 0], self.task["num_control_ids"], forced)
            reads = index < prompt_length
            if reads.any():
                token_ids = np.where(reads, read[:, min(index, read.shape[1] - 1)], token_ids)
            emitted[:, index] = np.where(done, emitted[:, index], token_ids)
            log_prob += np.where(done | reads, np.float32(0), gained)
            done |= ~reads & (token_ids == END) | (index + 1 >= limits)
            if done.all():
                break
        rows = [row[count:][row[count:] != PAD] for row, count in zip(emitted, prompt_length, strict=True)]
        lengths = np.array([*map(len, rows)])
        ids = np.full((len(rows), max([1, *lengths])), PAD, "int32")
        for row, some in zip(ids, rows, strict=True):
            row[: len(some)] = some
        scores = log_prob / ((5 + lengths) / 6) ** self.task["length_penalty"]
        return {"target_ids" if self.encoders else "added_ids": ids, "score": scores.astype("float32")}

    def memory(self, source_ids: np.ndarray) -> Values:
        """What the encoder gives; nothing of a language model."""
        if not self.encoders:
            return {}
        (encoder,) = self.encoders
        places = {output.name: "cpu" if output.name == "limit" else self.device for output in encoder.get_outputs()}
        return run_bound(encoder, encoder.io_binding(), {"source_ids": on_device(source_ids)}, places)

    def limits(self, read: np.ndarray, memory: Values) -> np.ndarray:
        """(B,) int32 The most ids of each row, with those that are read; takes the encoder's limits from `memory`."""
        most = self.task["max_length"] or MOST
        if self.encoders:
            return np.minimum(memory.pop("limit").numpy(), most)
        prompt_length = np.sum(read != PAD, axis=1).astype("int64")
        return np.minimum(prompt_length + most, self.task["context"]).astype("int32")


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
    """The cache before the first step: (rows, heads, 0, size), or with zeros where no axis grows."""
    sizes = [size if isinstance(size, int) else 0 for size in argument.shape[1:]]
    return np.zeros((rows, *sizes), "float16" if "float16" in argument.type else "float32")


def likeliest(logits: np.ndarray, num_control_ids: int, forced: Sequence[int] = ()) -> tuple[np.ndarray, np.ndarray]:
    """Logits (B, V) → the likeliest ids that may be emitted (B,), and their log-probabilities (B,).

    Where an id is forced, no other may be emitted.
    """
    logits = logits - logits.max(axis=1, keepdims=True)
    log_probs = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    hidden = np.delete(np.arange(log_probs.shape[1]), forced) if forced else np.delete(np.arange(num_control_ids), END)
    log_probs[:, hidden] = -np.inf
    return log_probs.argmax(axis=1).astype("int32"), log_probs.max(axis=1)
