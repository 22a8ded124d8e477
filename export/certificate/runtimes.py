"""Loads an artefact of each format with its own runtime, for `runner`. It imports nothing of this project.

For each format `prepare_…` takes the runner's task and imports the runtime; what it returns loads the artefact and
returns the fields of `runner.Loaded`.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import ctranslate2
    import onnxruntime

PAD, START, END = 0, 2, 3
NOWHERE = -1  # where the end looks
Run = Callable[[np.ndarray], dict[str, np.ndarray]]
Values = dict[str, "onnxruntime.OrtValue"]  # inputs or outputs of a graph, by name
CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
MOST = np.iinfo("int32").max
END_PIECE = "</s>"
Pieces = list[str]


def prepare_saved_model(task: dict[str, Any]) -> Callable[[], tuple]:
    """TensorFlow with the operators of tensorflow_text, as TensorFlow Serving has them."""
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(task["threads"])
    tf.config.threading.set_inter_op_parallelism_threads(task["threads"])
    tf.config.experimental.enable_tensor_float_32_execution(False)  # TF32 rounds float32 to 11 bits
    import tensorflow_text  # noqa: F401

    def load() -> tuple:
        loaded = tf.saved_model.load(*task["paths"])

        def answers_of(name: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
            def run(batch: np.ndarray) -> dict[str, np.ndarray]:
                # Looked up for each batch: a signature alone does not keep its variables alive.
                signature = loaded.signatures[name]
                return {key: value.numpy() for key, value in signature(**{task["input"]: constant(batch)}).items()}

            return run

        def constant(batch: np.ndarray) -> tf.Tensor:
            return tf.constant([*map(to_bytes, batch)], tf.string) if batch.dtype == object else tf.constant(batch)

        def read(texts: Sequence[str]) -> list[list[int]]:
            found = loaded.read(tf.constant([*map(to_bytes, texts)]))
            return [row.tolist() for row in np.split(found["ids"].numpy(), found["starts"].numpy()[1:-1])]

        names = sorted(loaded.signatures, key=lambda name: (name != "serving_default", name))
        device = "GPU" if tf.config.list_physical_devices("GPU") else "CPU"
        return {name: answers_of(name) for name in names}, device, device, read

    return load


def prepare_tflite(task: dict[str, Any]) -> Callable[[], tuple]:
    """LiteRT; for text with the operators of tensorflow_text."""
    from ai_edge_litert import interpreter as litert

    options: dict[str, Any] = {"num_threads": task["threads"]}
    kind = litert.Interpreter
    if task["takes"] == "text":
        from tensorflow_text.core.pybinds import tflite_registrar

        kind = litert.InterpreterWithCustomOps
        options["custom_op_registerers"] = tflite_registrar.SELECT_TFTEXT_OPS

    def load() -> tuple:
        interpreter = kind(model_path=task["paths"][0], **options)

        def answers_of(name: str) -> Callable[[np.ndarray], dict[str, np.ndarray]]:
            runner = interpreter.get_signature_runner(name)
            return lambda batch: runner(**{task["input"]: given(batch)})

        def given(batch: np.ndarray) -> np.ndarray:
            return np.array([*map(to_bytes, batch)], object) if batch.dtype == object else batch

        signatures = {name: answers_of(name) for name in interpreter.get_signature_list()}
        return signatures, "CPU", "CPU", reader if task["tokenizer"] else None

    def reader(texts: Sequence[str]) -> list[list[int]]:
        interpreter = kind(model_path=task["tokenizer"], **options)
        (given,), (ids, starts) = interpreter.get_input_details(), interpreter.get_output_details()
        interpreter.resize_tensor_input(given["index"], [len(texts)])
        interpreter.allocate_tensors()
        interpreter.set_tensor(given["index"], np.array([*map(to_bytes, texts)], object))
        interpreter.invoke()
        ids, starts = (interpreter.get_tensor(one["index"]) for one in (ids, starts))
        return [row.tolist() for row in np.split(ids, starts[1:-1])]

    return load


def to_bytes(text: str) -> bytes:
    """UTF-8; a byte that was none stands in the text as a surrogate."""
    return text.encode("utf-8", "surrogateescape")


def prepare_onnx(task: dict[str, Any]) -> Callable[[], tuple]:
    """ONNX Runtime; for text also onnxruntime-extensions."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = task["threads"]
    options.log_severity_level = 3
    if task["takes"] == "text":
        import onnxruntime_extensions

        options.register_custom_ops_library(onnxruntime_extensions.get_library_path())
    providers: list[str | tuple[str, dict[str, int]]] = [CPU]
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
        self.tells = [output.name for output in self.step.get_outputs() if output.name == "alignment"]

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
        places, looks = places | dict.fromkeys(self.tells, "cpu"), list[np.ndarray]()
        past = [on_device(nothing_yet(argument, len(ids)), self.device) for argument in self.pasts]
        for index in range(longest):
            inputs = {"token_ids": on_device(token_ids[:, None]), "index": on_device(np.array(index, "int32"))}
            inputs |= zip(names, past, strict=True)
            found = run_bound(self.step, binding, inputs, places)
            looks += [found.pop(name).numpy() for name in self.tells]
            logits, *past = found.values()
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
        ids, lengths = without_prompts(emitted, prompt_length)
        scores = log_prob / ((5 + lengths) / 6) ** self.task["length_penalty"]
        answers = {"target_ids" if self.encoders else "added_ids": ids, "score": scores.astype("float32")}
        return answers | self.alignments(ids, looks)

    def alignments(self, ids: np.ndarray, looks: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Where the model looked for each id but the end (B, T), by what each step told; nothing if none tells it."""
        ends = (ids == END) | (ids == PAD)
        return {
            name: np.where(ends, NOWHERE, np.concatenate(looks, axis=1)[:, : ids.shape[1]]).astype("int32")
            for name in self.tells
        }

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


def without_prompts(emitted: np.ndarray, prompt_length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Ids (B, L) → what stands behind the prompts (B, T), padded, and how much that is (B,)."""
    rows = [row[count:][row[count:] != PAD] for row, count in zip(emitted, prompt_length, strict=True)]
    lengths = np.array([*map(len, rows)])
    ids = np.full((len(rows), max([1, *lengths])), PAD, "int32")
    for row, some in zip(ids, rows, strict=True):
        row[: len(some)] = some
    return ids, lengths


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
    for name, value in inputs.items():
        binding.bind_ortvalue_input(name, value)
    # Each step has larger outputs than the step before. ONNX Runtime before 1.30 frees those of that step here, but
    # for those that are inputs of this one.
    binding.clear_binding_outputs()
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


def prepare_ctranslate2(task: dict[str, Any]) -> Callable[[], tuple]:
    """CTranslate2."""
    import ctranslate2

    def load() -> tuple:
        folder = Path(*task["paths"])
        on_gpu = task["gpu"] and ctranslate2.get_cuda_device_count() > 0
        options = {"device": "cuda" if on_gpu else "cpu", "inter_threads": 1, "intra_threads": task["threads"]}
        answers = CTranslate2Search(ctranslate2.Translator(str(folder), **options), folder)
        return {"": answers}, options["device"], "GPU" if on_gpu else "CPU"

    return load


class CTranslate2Search:
    """The search of the run that was exported, with CTranslate2: that of BUILD.md's program, for batches.

    Args:
        translator: the translator of the folder.
        folder: what the export wrote.
    """

    def __init__(self, translator: ctranslate2.Translator, folder: Path):
        self.translator = translator
        self.search = json.loads((folder / "metadata.json").read_text(encoding="utf-8"))["search"]

    def __call__(self, texts: Sequence[Pieces]) -> dict[str, np.ndarray]:
        """Pieces of texts → the pieces (B, T) of the best translations, with their end, then ""; and scores (B,)."""
        sources = [text[: self.search["max_source_length"]] for text in texts]  # CTranslate2 adds the end
        places = [place for place, source in enumerate(sources) if source]
        best = {place: [END_PIECE] for place in range(len(sources))}  # a blank line has an empty translation
        scores = np.zeros(len(sources), "float32")
        if places:
            best |= zip(places, self.translations([sources[place] for place in places]), strict=True)
            scores[places] = self.scores([sources[place] for place in places], [best[place] for place in places])
        rows = np.full((len(sources), max(map(len, best.values()), default=0)), "", object)
        for place, pieces in best.items():
            rows[place, : len(pieces)] = pieces
        return {"target_pieces": rows, "score": scores}

    def translations(self, sources: Sequence[Pieces]) -> list[Pieces]:
        """The best translations. CTranslate2 has one limit for a batch; where it was too long, a search follows."""
        limits = [self.limit(source) for source in sources]
        found = self.hypotheses(sources, max(limits))
        for place, limit in enumerate(limits):
            if max(map(len, found[place].hypotheses)) > limit:
                found[place] = self.hypotheses([sources[place]], limit)[0]
        return [self.best(result) for result in found]

    def limit(self, source: Pieces) -> int:
        """The most pieces of a translation, with its end."""
        most = min(len(source) + self.search["extra_length"], self.search["max_length"])
        factor = self.search.get("max_length_factor")
        return most if factor is None else min(most, ((len(source) + 1) * round(1000 * factor) + 999) // 1000)

    def hypotheses(self, sources: Sequence[Pieces], limit: int) -> list[Any]:
        """CTranslate2's results."""
        return self.translator.translate_batch(sources, max_decoding_length=limit, **self.search["options"])

    def best(self, result: Any) -> Pieces:
        """The best hypothesis by the run's length penalty; those that ended stand before those that were cut."""
        ranked = [
            (pieces[-1:] == [END_PIECE], self.penalised(pieces, log_prob), pieces)
            for pieces, log_prob in zip(result.hypotheses, result.scores, strict=True)
        ]
        return max(ranked, key=lambda one: one[:2])[2]

    def penalised(self, pieces: Pieces, log_prob: float) -> float:
        """The score of a translation with its end: log P / ((5 + |y|) / 6)^α."""
        return log_prob / ((5 + len(pieces)) / 6) ** self.search["length_penalty"]

    def scores(self, sources: Sequence[Pieces], translations: Sequence[Pieces]) -> list[float]:
        """Scores by all probabilities; those of the search leave out the ids that may not be emitted."""
        texts = [[piece for piece in pieces if piece != END_PIECE] for pieces in translations]
        results = self.translator.score_batch(sources, texts, max_input_length=0)  # it would cut translations too
        # CTranslate2 scores an end behind each; a translation that was cut has none.
        sums = [sum(one.log_probs[: len(pieces)]) for one, pieces in zip(results, translations, strict=True)]
        return [self.penalised(pieces, log_prob) for pieces, log_prob in zip(translations, sums, strict=True)]
