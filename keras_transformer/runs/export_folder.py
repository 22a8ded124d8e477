"""The folder of an export: its graphs, and how far an artefact may be from the model that it was made of.

The certificate holds artefacts to these bounds, and so does the check that a graph makes of itself where it is loaded.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from io import BytesIO
from pathlib import Path
from typing import IO, NamedTuple

from keras_transformer.core.errors import RequestError, command_line
from keras_transformer.core.folders import found

NEAR_TIE = 1e-4  # in log-probability: a search in float32 may choose either of two hypotheses that are so near
LEAST_BLEU = 5.0  # the model's: below that, BLEU tells nothing of a low precision
PRECISIONS = ("float32", "float16", "int8")
RECORDER, TF2ONNX = CONVERTERS = "recorder", "tf2onnx"  # what makes ONNX graphs; the first by default
PAGE = "docs/recipients.md"
ENGINES = ("auto", "onnx", "keras")  # what answers
PROVIDERS = ("auto", "cpu", "cuda")  # what ONNX Runtime computes on
ALIGNED = "translate_aligned"  # the graph of a translator that tells alignments too
ONNX = "onnx"  # the folder of an export's graphs, with all that answering with them takes
TRITON = "triton"  # that of a model repository of the same graphs
CERTIFICATE = "certificate.json"
# It rises with any change of the graphs that are written of a model: runs keep graphs under this number.
GRAPH_FORMAT = 3
MAX_METADATA = 2**20  # bytes
GRAPHS = (".onnx", ".tflite")  # suffixes
# A small export that comes with this package, of a translator of English number words to German; and where it lies.
DEMO, OF_DEMO = "demo", Path(__file__).resolve().parents[1] / "demo" / ONNX
WITH_SEARCH = ("translate", ALIGNED, "generate")  # the names of graphs with a search inside
# By which an export, or a part of it, is known.
MARKS = (CERTIFICATE, ONNX, "*.onnx", "tflite", "*.tflite", "saved_model*", "ctranslate2*", "model.bin")


class Bounds(NamedTuple):
    """What an artefact of a precision may differ by.

    Args:
        log_prob: between its log P of its own tokens and the model's, in nats a token, for each text.
        mean_log_prob: the same for all texts of a trial together, with its sign, less two standard errors: a wrong
            length penalty errs always one way.
        probability: the probability of a label, a token or an item.
        vector: the length of the difference of two vectors, in lengths of the model's.
        identical: the least share of answers with the model's own tokens or label; of fewer than 100 all but one.
        choice: by how much the model may find another answer worse than its own, in score or probability; in low
            precision a text counts at most so much in the mean.
        mean_choice: the same on average over the texts of a trial, less two standard errors.
        bleu: the loss of BLEU, or half the width of its 95 % paired-bootstrap interval where that is larger.
    """

    log_prob: float
    mean_log_prob: float
    probability: float
    vector: float
    identical: float
    choice: float
    mean_choice: float
    bleu: float


BOUNDS = {
    "float32": Bounds(1e-4, 1e-4, 1e-3, 1e-3, 0.99, 1e-3, 1e-3, 0.0),
    "float16": Bounds(0.05, 0.002, 0.05, 0.05, 0.0, 0.5, 0.02, 0.5),
    "int8": Bounds(0.3, 0.02, 0.3, 0.3, 0.0, 0.5, 0.05, 0.5),
}


class Graphs(NamedTuple):
    """The ONNX files of a model: a translator with its search inside, and the two halves of the model, which have no
    search. The translator may be missing, or both halves.

    A language model has a step alone, and a model that does not search one graph, of its outputs. The translator that
    also tells alignments is a graph of its own, so that the other one pays nothing for them.
    """

    translate: Path | None
    encoder: Path | None
    step: Path | None
    outputs: Path | None = None
    translate_aligned: Path | None = None

    @classmethod
    def in_folder(cls, folder: Path, precision: str) -> Graphs | None:
        """The graphs of a precision; None if the folder has none."""
        paths = (folder / file_name(name, precision) for name in cls._fields[:3])
        translate, encoder, step = (path if path.is_file() else None for path in paths)
        if translate or encoder:
            aligned = folder / file_name(ALIGNED, precision)
            has_halves, is_told = encoder and step, translate and aligned.is_file()
            searching = cls(translate, None, None, translate_aligned=aligned if is_told else None)
            found = searching._replace(encoder=encoder, step=step) if has_halves else searching
            return found if translate or step else None
        own = [path for path in sorted(folder.glob("*.onnx")) if path.name == file_name(stem_of(path), precision)]
        outputs = [path for path in own if stem_of(path) not in WITH_SEARCH and not stem_of(path).endswith("_text")]
        return cls(None, None, step, *([] if step else outputs[:1])) if step or outputs else None

    @property
    def main(self) -> Path:
        """The file that stands for all of them in messages."""
        path = self.translate or self.translate_aligned or self.step or self.outputs
        assert path is not None
        return path

    @property
    def probes(self) -> Path:
        """The file with the probes of these graphs: an export's certificate, or beside a graph that a run keeps."""
        folder = self.main.parent
        if (folder / CERTIFICATE).is_file():
            return folder / CERTIFICATE
        # Exports of versions before 0.3 have it beside the folder.
        return folder.with_name(CERTIFICATE) if folder.name == ONNX else self.main.with_suffix(".json")

    def present(self) -> Iterator[tuple[str, Path]]:
        """The name and the path of each graph that is not missing."""
        yield from ((name, path) for name, path in self._asdict().items() if path)

    def num_bytes(self) -> int:
        """The size of the largest file, with the weights that are in a file beside it."""
        paths = [path for _, graph in self.present() for path in (graph, graph.with_name(f"{graph.name}.data"))]
        return max(path.stat().st_size for path in paths if path.is_file())

    def are_there(self) -> bool:
        """Whether all graphs are there, and their probes."""
        return all(path.is_file() for path in (self.probes, *dict(self.present()).values()))


def file_name(name: str, precision: str) -> str:
    """The file name of a graph."""
    return f"{name}.onnx" if precision == "float32" else f"{name}-{precision}.onnx"


def stem_of(path: Path) -> str:
    """The name of a graph without its precision."""
    name, _, precision = path.stem.rpartition("-")
    return name if precision in PRECISIONS else path.stem


def metadata_of(graph: Path) -> dict[str, str]:
    """Reads what an ONNX file says of itself, and nothing of its weights.

    The file is protobuf's (onnx.proto: field 14 of a model has its metadata; field 1 of an entry is its name, 2 its
    value). The package onnx, which knows this too, is not where graphs only answer.

    Raises:
        RequestError: the file is damaged.
    """
    try:
        with graph.open("rb") as file:
            entries = [dict(_fields(BytesIO(content))) for number, content in _fields(file, only=14) if number == 14]
        return {entry.get(1, b"").decode(): entry.get(2, b"").decode() for entry in entries}
    except ValueError as error:
        raise RequestError(f"{graph} is damaged, or no ONNX file: {error}") from None


def precision_of_graph(graph: Path) -> str:
    """Returns the precision that an exported graph tells. Raises RequestError if it tells none, or is damaged."""
    told = metadata_of(graph).get("precision")
    if told not in PRECISIONS:
        raise RequestError(f"{graph} is not a graph that an export has: its precision is {told!r:.40}")
    return told


def _fields(file: IO[bytes], only: int | None = None) -> Iterator[tuple[int, bytes]]:
    """Yields the number and the content of each text of a message; of one number alone, others are not read."""
    end = file.seek(0, os.SEEK_END)
    file.seek(0)
    while (key := _whole_number(file)) is not None:
        length = _whole_number(file)
        if key & 7 == 0 and length is not None:  # a number, which is not a text
            continue
        if key & 7 != 2 or length is None:
            raise ValueError("it has a field of another kind than a model's")
        if length > end - file.tell():
            raise ValueError("it is cut")
        if only not in (None, key >> 3):
            file.seek(length, os.SEEK_CUR)
        elif length > MAX_METADATA:
            raise ValueError(f"expected metadata of at most {MAX_METADATA:,} bytes; received {length:,}")
        else:
            yield key >> 3, file.read(length)


def _whole_number(file: IO[bytes]) -> int | None:
    """Reads a whole number of protobuf: seven bits a byte, the lowest first; None at the end of the file."""
    value = 0
    for place in range(10):
        if not (byte := file.read(1)):
            if place:
                raise ValueError("it is cut")
            return None
        value |= (byte[0] & 127) << 7 * place
        if byte[0] < 128:
            return value
    raise ValueError("it has a number that does not end")


class ExportFolder:
    """A folder that `python -m export` wrote, as far as ONNX Runtime reads it.

    Args:
        path: the folder, the folder of its graphs, or one graph, which chooses the precision. Vocabularies stand beside
            the graphs; in an export of a version before 0.3 beside the folder `onnx`. "demo" is the export that comes
            with this package, unless there is such a folder.
    """

    def __init__(self, path: str | os.PathLike[str]):
        path = found(path)
        if os.fspath(path) == DEMO and not path.exists():
            path = OF_DEMO
        self.graph = path.name if path.suffix in GRAPHS else ""
        self.path = path.parent if self.graph else path
        self.is_run = (self.path / "config.json").is_file()
        self.onnx = self.path / ONNX
        if not (self.is_run or self.onnx.is_dir()) and (self.path.name == ONNX or any(self.path.glob("*.onnx"))):
            self.onnx = self.path
            self.path = self.path.parent if self.path.name == ONNX else self.path

    @property
    def vocabularies(self) -> Path:
        """The folder with the vocabularies, or the items."""
        inside = any(self.onnx.glob("tokenizer*")) or (self.onnx / "items.txt").is_file()
        return self.onnx if inside else self.path

    def is_export(self) -> bool:
        """Whether something is there that an export has; a run is none."""
        return not self.is_run and any(any(self.path.glob(mark)) for mark in MARKS)

    def graphs(self, precision: str | None = None) -> Graphs:
        """The graphs of a precision, by default of the first in `PRECISIONS` that is there.

        Raises:
            RequestError: there are none.
        """
        there = {name: found for name in PRECISIONS if (found := Graphs.in_folder(self.onnx, name))}
        if self.graph:
            there = {name: one for name, one in there.items() if self.graph in [path.name for _, path in one.present()]}
        chosen = there.get(precision) if precision else next(iter(there.values()), None)
        if chosen is None:
            translate, encoder, step = (file_name(name, precision or "float32") for name in Graphs._fields[:3])
            received = self.graph or ", ".join(sorted(path.name for path in self.onnx.glob("*.onnx"))) or "no graph"
            raise RequestError(
                f"expected {translate}, or {encoder} and {step}, in {self.onnx}; received {received}: copy them from "
                f"where the export comes from, or write them with `{command_line('export')} RUN --format onnx "
                f"--precision {precision or 'float32'}`; {PAGE} says what runs other files"
            )
        return chosen
