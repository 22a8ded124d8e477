"""The artefacts of an export folder: their file names, and what each takes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from keras_transformer.tasks import TASKS

from .signatures import PRECISIONS, Decoding, stem

LOOPED = ("halves", "step")


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
        takes: "text", "ids" or "pieces"; "halves" for encoder and step, and "step" for a language model's, which the
            caller runs in a loop of its own.
        precision: "float32", "float16" or "int8".
    """

    path: Path
    format: str
    takes: str
    precision: str

    @property
    def paths(self) -> list[Path]:
        """The artefact's path; for the two halves, both paths."""
        step = self.path.with_name(self.path.name.replace("encoder", "step"))
        return [self.path, step] if self.takes == "halves" else [self.path]

    def search(self, decoding: Decoding) -> Decoding:
        """The search that runs: `decoding`, which is baked in; around halves and steps the runner searches greedily."""
        return replace(decoding, num_beams=1, n_best=1) if self.takes in LOOPED else decoding

    @property
    def signature(self) -> str:
        """The name of its one signature, or of its main one; "" where the format has none."""
        if self.format == "saved_model":
            return "serving_default"
        name = self.path.stem.removesuffix(f"-{self.precision}").removesuffix("_text")
        return name if self.format == "tflite" else ""

    @property
    def takes_bytes(self) -> bool:
        """Whether it takes text that may be no UTF-8. Python's ONNX Runtime takes strings."""
        return self.takes == "text" and self.format != "onnx"

    def name_in(self, folder: Path) -> str:
        """The artefact's path in the export folder; for the two halves, the step's file name too."""
        return " + ".join([self.path.relative_to(folder).as_posix(), *(path.name for path in self.paths[1:])])


def artefacts_in(folder: str | os.PathLike[str]) -> list[Artefact]:
    """The artefacts of an export folder, recognised by their file names."""
    candidates = [
        Artefact(Path(folder) / f"{stem(name, precision)}{suffix}", format, takes, precision)
        for name, suffix, format, takes in known_files()
        for precision in PRECISIONS
    ]
    found = [artefact for artefact in candidates if artefact.path.exists()]
    halved = {artefact.paths[-1] for artefact in found if artefact.takes == "halves"}
    return [artefact for artefact in found if artefact.takes != "step" or artefact.path not in halved]


def known_files() -> Iterator[tuple[str, str, str, str]]:
    """Of all artefacts that a task may have: path without precision and suffix, suffix, format, and what it takes."""
    signatures = [one for task in TASKS.values() for one in task.module("signature").SIGNATURES]
    yield "saved_model", "", "saved_model", "text"
    stems = [pair for one in signatures for pair in ((one.ids_stem, "ids"), (one.text_stem, "text")) if pair[0]]
    of_files = [*dict.fromkeys(stems)]
    yield from ((f"onnx/{name}", ".onnx", "onnx", takes) for name, takes in of_files)
    yield from (("onnx/encoder", ".onnx", "onnx", "halves"), ("onnx/step", ".onnx", "onnx", "step"))
    yield from ((f"tflite/{name}", ".tflite", "tflite", takes) for name, takes in of_files)
    yield "ctranslate2", "", "ctranslate2", "pieces"
