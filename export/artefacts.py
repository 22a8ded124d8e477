"""Opens the run that is exported, refuses what a format cannot write, and finds the artefacts of an export folder."""

from __future__ import annotations

import json
import os
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.checking.signatures import Searching, Signature, of_ids_alone
from keras_transformer.core.errors import RequestError
from keras_transformer.core.folders import whole_folder
from keras_transformer.core.task_registry import TASKS, task_named
from keras_transformer.core.version import __version__
from keras_transformer.decoding.pipelines import Pipeline, pipeline_of
from keras_transformer.models.model_factory import Difference, difference, make_model, model_config, parts_of
from keras_transformer.runs.export_folder import ALIGNED, RECORDER, TF2ONNX, file_name
from keras_transformer.runs.export_folder import PRECISIONS as PRECISIONS
from keras_transformer.runs.run_folder import RunFolder, read_config
from keras_transformer.spec.search_options import Decoding as Decoding
from keras_transformer.text.lines import plain
from keras_transformer.text.tokenizer import Tokenizer

from .word_pieces import reason_against_text

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel

# (format, precision): why the format cannot be written in the precision.
NO_SUCH_PRECISION = {
    ("saved_model", "int8"): "TensorFlow multiplies no int8 matrices outside TFLite; export onnx or tflite for it",
    **{
        ("huggingface", precision): "transformers casts the weights as it loads them"
        for precision in PRECISIONS
        if precision != "float32"
    },
}
LOOPED = ("halves", "step")


@dataclass(frozen=True)
class TrainedRun:
    """A model to export with its vocabularies, and where it comes from.

    Args:
        pipeline: the model (in float32) with its vocabularies.
        languages: such as "en-de"; "" if the run does not say.
        name: the corpus's name.
        unfinished: how far the training is, see `RunConfig.unfinished`; "" if it has come to its end.
    """

    pipeline: Pipeline
    languages: str = ""
    name: str = ""
    unfinished: str = ""

    @property
    def model(self) -> FamilyModel:
        """The model, in float32; of several runs an `Ensemble`."""
        return self.pipeline.exported_model

    @property
    def tokenizers(self) -> tuple[Tokenizer, ...]:
        """The vocabularies of what is read and of what is written; none without text."""
        return self.pipeline.tokenizers

    @property
    def signature(self) -> type[Signature]:
        """What its artefacts take and give."""
        return signature_of(self.pipeline.task, self.pipeline.about(), self.tokenizers)

    @property
    def reason_against_text(self) -> str:
        """Why no artefact takes text, of a run that does; "" if some take it."""
        signature = TASKS[self.pipeline.task].signature(self.pipeline.about())
        return reason_of(signature, self.tokenizers)

    def decoding(self, n_best: int | None = None, **given: float | None) -> Decoding:
        """Completes the options of a search by the model's own, where none are given, or None is.

        Raises:
            RequestError: a value is out of its range, or the model does not search.
        """
        return Decoding.of(self.pipeline, n_best, **given)

    def metadata(self, decoding: Decoding, precision: str) -> dict[str, str]:
        """Returns what an artefact says of itself. The same run and flags give the same metadata."""
        task, about = self.pipeline.task, self.pipeline.about()
        licenses = sorted({one.license for one in getattr(self.model, "models", [self.model]) if one.license})
        return {
            "producer": f"keras_transformer {__version__}",
            "corpus": self.name,
            "languages": self.languages,
            "precision": precision,
            **({"license": ", ".join(licenses)} if licenses else {}),
            **({"unfinished": self.unfinished} if self.unfinished else {}),
            **({} if self.pipeline.own_search is None else {"decoding": json.dumps(decoding.as_dict())}),
            **about,
            **({} if task == task_named(None, self.model.kind, about) else {"task": task}),
            "model": json.dumps(model_config(self.model), sort_keys=True),
        }


def signature_of(task: str, about: Mapping[str, str], tokenizers: Iterable[Tokenizer]) -> type[Signature]:
    """Returns what the artefacts of a run take and give: text too, if runtimes read it as the vocabularies do."""
    signature: Any = TASKS[task].signature(about)
    return of_ids_alone(signature) if reason_of(signature, tokenizers) else signature


def reason_of(signature: type[Signature], tokenizers: Iterable[Tokenizer]) -> str:
    """Says why no artefact of a signature takes the text of these vocabularies; "" if some take it."""
    for tokenizer in tokenizers:
        if reason := reason_against_text(tokenizer):
            return reason
        if issubclass(signature, Searching) and not tokenizer.is_sentencepiece:
            return "no operator joins WordPiece"
    return ""


def open_run(run: str | os.PathLike[str], *others: str | os.PathLike[str]) -> TrainedRun:
    """Reads a run folder, or several that translate together. They may be a stranger's: nothing in them is executed.

    Raises:
        RequestError: there is no run, it has no model yet, or a file is damaged; the message names the file. Or several
            runs cannot translate together, see `load_ensemble`.
    """
    config = read_config(run)
    task = config.task
    held = pipeline_of(task)
    if others and not hasattr(held, "between"):
        raise RequestError(f"runs of --task {task} cannot answer together; received {1 + len(others)} runs")
    pipeline = TASKS[task].module("loading").load_ensemble([run, *others]) if others else held.load(run)
    said = (config.corpus.get("name"), config.corpus.get("source_language"), config.corpus.get("target_language"))
    name, *languages = (plain(one or "") for one in said)
    return TrainedRun(pipeline, "-".join(languages) if all(languages) else "", name, config.unfinished())


def between(run: TrainedRun, source_language: str | None, target_language: str | None) -> TrainedRun:
    """Sets the direction of a translator between many languages; None leaves a side as it is.

    Raises:
        RequestError: the model does not know a language, or needs one that nobody chose.
    """
    if not hasattr(run.pipeline, "between"):
        if source_language or target_language:
            raise RequestError(f"languages are a translator's; this run is one of --task {run.pipeline.task}")
        return run
    pipeline = run.pipeline.between(source_language, target_language)
    if not pipeline.direction.source:
        return run
    learned = pipeline.learned_text
    return replace(run, pipeline=pipeline, languages=f"{learned.source_language}-{learned.target_language}")


def stem(name: str, precision: str) -> str:
    """The name of an artefact's file or folder, without suffix."""
    return name if precision == "float32" else f"{name}-{precision}"


def replaced(path: Path, mark: str, what: str) -> AbstractContextManager[Path]:
    """Writes the folder of an artefact whole, in place of an older one, which holds the file `mark`.

    Raises:
        RequestError: the path holds something else than `what`.
    """
    if path.exists() and not (path / mark).is_file():
        raise RequestError(f"expected no file at {path}, or {what} to replace; received something else: remove it")
    return whole_folder(path)


def require_precision(format: str, precision: str, converter: str = RECORDER) -> None:
    """Raises RequestError unless the format can be written in the precision, ONNX by this converter."""
    if precision not in PRECISIONS:
        raise RequestError(f"expected a precision among {', '.join(PRECISIONS)}; received: {precision}")
    if reason := NO_SUCH_PRECISION.get((format, precision)):
        raise RequestError(f"{format} has no {precision}: {reason}")
    if (format, precision, converter) == ("onnx", "int8", TF2ONNX):
        raise RequestError("tf2onnx writes no int8: leave out --converter, or take float32 or float16")


def require_own_parts(model: FamilyModel, format: str, precision: str) -> None:
    """Raises RequestError unless the model is what its configuration makes.

    An exporter that builds the model again, in another precision, would lose a part that was put in by hand.
    """
    if found := difference(model):
        raise unwritable(format, precision, found)


def parts_without_writer(model: FamilyModel, writable: Collection[type]) -> Iterator[Difference]:
    """Yields the parts of a model that are of no writable type."""
    for path, part in parts_of(model, "model"):
        if type(part) not in writable:
            known = [each.__name__ for each in writable if isinstance(part, each)]
            expected = known[0] if known else "parts that it has"
            yield Difference(path, expected, type(part).__name__)


class Unwritable(RequestError):
    """A format cannot write a part of the model, or an option of a part."""


def unwritable(format: str, precision: str, found: Difference) -> Unwritable:
    """Returns the error that names the part."""
    return Unwritable(
        f"{format} in {precision} can write only {found.expected} at {found.path}; received a model with "
        f"{found.received} there: export saved_model in float32, or tflite in float32 or float16, which trace any "
        "model as it is"
    )


def model_of_precision(model: FamilyModel, precision: str) -> FamilyModel:
    """Returns the model itself for float32; for float16 a copy that computes in half, but for softmax and norms."""
    if precision == "float32":
        return model
    require_own_parts(model, "saved_model", precision)
    half = make_model(model_config(model), "float16")
    half.set_weights(model.get_weights())
    return half


class BrokenArtefact(Exception):
    """An artefact cannot be read, does not run, or gives what no translator gives. The message is the reason.

    Args:
        reason: the message.
        had_no_gpu: whether ONNX Runtime had no GPU when it reported the error.
    """

    def __init__(self, reason: str, had_no_gpu: bool = False):
        super().__init__(reason)
        self.had_no_gpu = had_no_gpu


@dataclass(frozen=True)
class Artefact:
    """A model that an export wrote, with its search.

    Args:
        path: its file or folder; for the two halves, the encoder's file.
        format: "saved_model", "onnx", "tflite" or "ctranslate2".
        interface: what its caller gives: "text", "ids" or "pieces"; "halves" for encoder and step, and "step" for a
            language model's, which the caller runs in a loop of its own.
        precision: "float32", "float16" or "int8".
    """

    path: Path
    format: str
    interface: str
    precision: str

    @property
    def paths(self) -> list[Path]:
        """The artefact's path; for the two halves, both paths."""
        step = self.path.with_name(self.path.name.replace("encoder", "step"))
        return [self.path, step] if self.interface == "halves" else [self.path]

    def search(self, decoding: Decoding) -> Decoding:
        """The search that runs: `decoding`, which is baked in; around halves and steps the runner searches greedily,
        without guards."""
        if self.interface not in LOOPED:
            return decoding
        return Decoding(1, decoding.length_penalty, decoding.max_length)

    @property
    def signature(self) -> str:
        """The name of its one signature, or of its main one; "" where the format has none."""
        if self.format == "saved_model":
            return "serving_default"
        name = self.path.stem.removesuffix(f"-{self.precision}").removesuffix("_text")
        return name if self.format == "tflite" else ""

    @property
    def is_aligned(self) -> bool:
        """Whether it is the graph of a translator that tells alignments beside what the other graph gives."""
        return self.path.name == file_name(ALIGNED, self.precision)

    @property
    def takes_bytes(self) -> bool:
        """Whether it takes text that may be no UTF-8. Python's ONNX Runtime takes strings."""
        return self.interface == "text" and self.format != "onnx"

    def name_in(self, folder: Path) -> str:
        """The artefact's path in the export folder; for the two halves, the step's file name too."""
        return " + ".join([self.path.relative_to(folder).as_posix(), *(path.name for path in self.paths[1:])])


def artefacts_in(folder: str | os.PathLike[str]) -> list[Artefact]:
    """Finds the artefacts of an export folder that are there whole, by their file names."""
    candidates = [
        Artefact(Path(folder) / f"{stem(name, precision)}{suffix}", format, takes, precision)
        for name, suffix, format, takes in known_files()
        for precision in PRECISIONS
    ]
    is_foreign = RunFolder(folder).foreign_tokenizer.is_file()
    found = [
        replace(artefact, interface="ids") if is_foreign and lacks_text(artefact.path) else artefact
        for artefact in candidates
        if all(path.exists() for path in artefact.paths)
    ]
    halved = {artefact.paths[-1] for artefact in found if artefact.interface == "halves"}
    return [artefact for artefact in found if artefact.interface != "step" or artefact.path not in halved]


def lacks_text(path: Path) -> bool:
    """Tells whether a path is a SavedModel that takes ids, by the name of its input."""
    graph = path / "saved_model.pb"
    return graph.is_file() and b"serving_default_text" not in graph.read_bytes()


def known_files() -> Iterator[tuple[str, str, str, str]]:
    """Yields path without precision and suffix, suffix, format and interface of each artefact that a task may have."""
    signatures = [one for task in TASKS.values() for one in task.module("signature").SIGNATURES]
    yield "saved_model", "", "saved_model", "text"
    stems = [pair for one in signatures for pair in ((one.ids_stem, "ids"), (one.text_stem, "text")) if pair[0]]
    of_files, aligned = [*dict.fromkeys(stems)], [one.aligned_stem for one in signatures if one.aligned_stem]
    yield from ((f"onnx/{name}", ".onnx", "onnx", takes) for name, takes in of_files)
    yield from ((f"onnx/{name}", ".onnx", "onnx", "ids") for name in aligned)
    yield from (("onnx/encoder", ".onnx", "onnx", "halves"), ("onnx/step", ".onnx", "onnx", "step"))
    yield from ((f"tflite/{name}", ".tflite", "tflite", takes) for name, takes in of_files)
    yield "ctranslate2", "", "ctranslate2", "pieces"
