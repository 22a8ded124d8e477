"""`python -m export RUN`: a trained run becomes translators that need none of our code, and a certificate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.errors import JobError, RequestError, exit_status, load_tensorflow, say
from keras_transformer.files import check_writable, write_folder_whole

if TYPE_CHECKING:
    from export.signatures import Decoding, TrainedRun
    from keras_transformer.models.transformer import Transformer

# Keras and TensorFlow take seconds: `--help` does not wait for them.
FORMATS = ("saved_model", "onnx", "tflite")
PRECISIONS = ("float32", "float16", "int8")
# What writing and certifying a format takes, beside TensorFlow.
PACKAGES = {
    "saved_model": ("tensorflow_text",),
    "onnx": ("onnx", "onnxruntime", "onnxruntime_extensions"),
    "tflite": ("tensorflow_text", "ai_edge_litert"),
}
# What makes the model again from its configuration, in another precision.
REMADE = {("saved_model", "float16"), ("tflite", "int8")}
# What stands in an export folder; a tokenizer's name begins with "tokenizer".
CONTENTS = ("saved_model", "onnx", "tflite", "tokenizer", "certificate.json", "CERTIFICATE.md")


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    arguments = make_parser().parse_args(argv)
    return exit_status(lambda: export(arguments))


def export(arguments: argparse.Namespace) -> None:
    """From a run folder to an export folder. All that can be refused is refused before anything is written."""
    folder = Path(arguments.out or Path("exported") / Path(arguments.run).resolve().name)
    check_place(folder, arguments.overwrite)
    load_tensorflow()
    from export.certificate import artefacts_in, certify, check_text, write_certificate
    from export.signatures import Decoding, open_run

    decoding = Decoding(arguments.beams, arguments.length_penalty, arguments.max_length, arguments.n_best)
    run = open_run(arguments.run)
    plan = planned(arguments.format, arguments.precision)
    check_parts(run.model, plan)
    sentences, references = text_to_certify_on(arguments)
    check_text(sentences, references, arguments.precision)
    with write_folder_whole(folder) as aside:
        write_artefacts(run, aside, decoding, plan)
        certificate = certify(run, aside, artefacts_in(aside), decoding, sentences, references)
        write_certificate(certificate, aside)
    print((folder / "CERTIFICATE.md").read_text(encoding="utf-8"), end="")
    say(f"wrote {folder}")
    if not certificate.holds:
        raise JobError(f"not every artefact translates as the model does: see {folder / 'CERTIFICATE.md'}")


def check_place(folder: Path, overwrite: bool) -> None:
    """Raises RequestError unless the folder is free, or an export that may be replaced."""
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise RequestError(f"--out must be a folder of its own, which is replaced as a whole; received {folder}")
    check_writable(folder)
    check_writable(folder.resolve().parent)  # where a new export takes the place of an old one
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if strangers := sorted(name for name in names if not name.startswith(CONTENTS)):
        raise RequestError(f"{folder} holds something that is no export, {strangers[0]}: choose another --out")
    if names and not overwrite:
        raise RequestError(f"{folder} holds an export already: replace it with --overwrite, or choose another --out")


def planned(formats: Sequence[str], precisions: Sequence[str]) -> list[tuple[str, str]]:
    """(format, precision) of what will be written; what a format cannot do is told, and left out.

    Raises:
        RequestError: a format can do none of the precisions, or a package that it takes is not installed.
    """
    from export.signatures import import_optional, require_precision

    plan = []
    for format in dict.fromkeys(formats):
        for package in PACKAGES[format]:
            import_optional(package)
        refusals = []
        for precision in dict.fromkeys(precisions):
            try:
                require_precision(format, precision)
                plan.append((format, precision))
            except RequestError as error:
                refusals.append(str(error))
        if len(refusals) == len(set(precisions)):
            raise RequestError("; ".join(refusals))
        for refusal in refusals:
            say(f"left out: {refusal}")
    return plan


def check_parts(model: Transformer, plan: Sequence[tuple[str, str]]) -> None:
    """Raises RequestError where a format of the plan cannot write a part of the model."""
    from export.signatures import require_own_parts

    for format, precision in plan:
        if format == "onnx":
            from export.onnx_parts import require_writers

            require_writers(model, precision)
        elif (format, precision) in REMADE:
            require_own_parts(model, format, precision)


def text_to_certify_on(arguments: argparse.Namespace) -> tuple[list[str], list[str] | None]:
    """Sentences and references: those given, else the run's own."""
    from export.certificate import validation_text
    from keras_transformer.text.corpora import read_lines

    if arguments.references and not arguments.sentences:
        raise RequestError("--references are translations of --sentences: give both")
    if not arguments.sentences:
        return validation_text(arguments.run)
    references = list(read_lines(Path(arguments.references))) if arguments.references else None
    return list(read_lines(Path(arguments.sentences))), references


def write_artefacts(run: TrainedRun, folder: Path, decoding: Decoding, plan: Sequence[tuple[str, str]]) -> None:
    """Writes every artefact of the plan, and the vocabulary beside them."""
    for format, precision in plan:
        exporter = getattr(import_module(f"export.{format}"), f"export_{format}")
        for path in exporter(run, folder, decoding, precision):
            say(f"{path.relative_to(folder)}: {num_bytes(path):,} bytes")
    run.save_tokenizers(folder)


def num_bytes(path: Path) -> int:
    """Of a file, or of all files of a folder."""
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())


def make_parser() -> argparse.ArgumentParser:
    """The command line of `python -m export`."""
    parser = argparse.ArgumentParser(
        prog="python -m export",
        description="Exports a trained run as translators, text in and text out, and proves that they translate alike.",
    )
    add_options(parser)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's options."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("run", metavar="RUN", help="a run folder that train.py made")
    parser.add_argument("--format", nargs="+", choices=FORMATS, default=FORMATS, help="what to write")
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, default=["float32"], help="and in which precisions"
    )
    parser.add_argument("--out", help="where to; exported/<the run's name> by default")
    parser.add_argument("--overwrite", action="store_true", help="replace an export that is there")
    parser.add_argument("--beams", type=int, default=4, help="hypotheses that the search follows; 1 is greedy search")
    parser.add_argument("--length-penalty", type=float, default=0.6, help="alpha of ((5 + length) / 6)^alpha")
    parser.add_argument("--max-length", type=int, help="pieces at most, the end included; the source's + 50 by default")
    parser.add_argument("--n-best", type=int, help="hypotheses of SavedModel's signature n_best; all beams by default")
    parser.add_argument("--sentences", help="text to certify on; by default the run's validation text")
    parser.add_argument("--references", help="its translations, for BLEU")


if __name__ == "__main__":
    sys.exit(main())
