"""`python -m export RUN` writes a trained run as translators that need none of our code, and a certificate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from keras_transformer.commands.parser import COUNT, FEW, CommandParser, add_guard_options, number_from
from keras_transformer.core.errors import RequestError, command_line, exit_status
from keras_transformer.core.extras import load_tensorflow
from keras_transformer.core.files import check_writable
from keras_transformer.core.folders import contents, found, locked
from keras_transformer.runs.export_folder import CONVERTERS, PRECISIONS, TRITON
from keras_transformer.spec.custom_parts import FLAG, HELP, with_imports

MEND = "choose another folder with --out"
FORMATS = ("saved_model", "onnx", "tflite", "ctranslate2", "huggingface")
DEFAULT_FORMATS = FORMATS[:3]
DEFAULT_PRECISIONS = ("float32",)
DESCRIPTION = (
    "Exports a trained run as SavedModel, ONNX and TFLite, and if you ask for CTranslate2 and Hugging Face's "
    "transformers too; certifies that each answers as the model does."
)
# The options that --verify takes with a run, and with nothing else.
TO_VERIFY_BY_RUN = {"sentences", "references", "source_language", "target_language"}
# What an export folder may hold.
NAMES = {
    "saved_model", "saved_model-float16", "onnx", "tflite", "ctranslate2", "ctranslate2-float16", "ctranslate2-int8",
    "huggingface", TRITON,
    "items.txt", "tokenizer.json", "tokenizer.model", "tokenizer.source.model", "tokenizer.target.model",
    "certificate.json", "CERTIFICATE.md",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return exit_status(lambda: run(make_parser().parse_args(with_imports(argv))), argv)


def run(arguments: argparse.Namespace) -> None:
    """Exports, or verifies an export that is there."""
    if arguments.verify is None and arguments.run is None:
        raise RequestError("expected a run folder to export, or --verify with an export folder; received neither")
    folder = found(arguments.out or Path("exported") / Path(arguments.run or "").resolve().name)
    if arguments.verify is None:
        with locked(folder, MEND):
            check_place(folder, arguments.overwrite)
    else:
        check_verifies_alone(arguments)
    load_tensorflow()
    from . import exporting  # Keras and TensorFlow take seconds to import, and `--help` does not wait

    if arguments.verify is None:
        exporting.export(arguments, folder, check_place)
    else:
        exporting.verify(arguments)


def check_verifies_alone(arguments: argparse.Namespace) -> None:
    """Raises RequestError if `--verify` was given an option that it does not use."""
    parser = argparse.ArgumentParser()
    add_options(parser)
    used = {"run", "verify", *(TO_VERIFY_BY_RUN if arguments.run else ())}
    for name, default in vars(parser.parse_args([])).items():
        if name not in used and getattr(arguments, name) is not default:
            mend = "give RUN too, whose model answers" if name in TO_VERIFY_BY_RUN else "leave it out"
            raise RequestError(f"--verify takes an export as it is, and no --{name.replace('_', '-')}: {mend}")


def check_place(folder: Path, overwrite: bool) -> None:
    """Raises RequestError unless the folder is empty or new, or holds an export that may be replaced."""
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise RequestError(f"--out must name a folder of its own, which the export replaces; received: {folder}")
    for written in (folder, folder.resolve().parent):  # beside the old export, before the new one replaces it
        check_writable(written, MEND)
    names = contents(folder)
    if strangers := sorted(names - NAMES):
        raise RequestError(f"{folder} holds {strangers[0]}, which is not part of an export: choose another --out")
    if names and not overwrite:
        raise RequestError(f"{folder} holds an export already: replace it with --overwrite, or choose another --out")


def make_parser() -> argparse.ArgumentParser:
    """The command's own parser."""
    parser = CommandParser(prog=command_line("export"), description=DESCRIPTION, allow_abbrev=False)
    add_options(parser)
    parser.add_argument(FLAG, metavar="MODULE", help=HELP)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments and flags to a parser; `export` takes what it parsed."""
    add = parser.add_argument
    add("run", metavar="RUN", nargs="?", help="a run folder that training wrote")
    verify = "certify this export, or one file of it, and write nothing: by RUN, or by what its certificate keeps"
    add("--verify", metavar="PATH", help=verify)
    formats = (
        "which formats to write; ctranslate2 and triton take translators; huggingface is a folder for transformers; "
        "triton a model repository of the ONNX graphs"
    )
    chosen = f"{formats} (default: {' '.join(DEFAULT_FORMATS)})"
    add("--format", nargs="+", choices=(*FORMATS, TRITON), default=DEFAULT_FORMATS, help=chosen)
    precisions = f"which precisions to write (default: {' '.join(DEFAULT_PRECISIONS)})"
    add("--precision", nargs="+", choices=PRECISIONS, default=DEFAULT_PRECISIONS, help=precisions)
    converter = "what makes the ONNX graphs: this package's own recorder (default), or tf2onnx from TensorFlow's graph"
    add("--converter", choices=CONVERTERS, help=converter)
    add("--out", help="the export folder; exported/<the run's name> by default")
    add("--overwrite", action="store_true", help="replace an export that is there")
    add("--force-publish", action="store_true", help="replace it even by one that does not hold")
    add("--beams", type=FEW, help="beam size; 1 is greedy search; the run's own by default, mostly 4")
    penalty = "alpha of ((5 + length) / 6)^alpha; the run's own by default, mostly 0.6"
    add("--length-penalty", type=number_from(-100, 100, float), help=penalty)
    longest = "the most pieces to emit; source + 50 (of a language model the context) by default and at most"
    add("--max-length", type=COUNT, help=longest)
    add_guard_options(parser)
    add("--n-best", type=COUNT, help="hypotheses in SavedModel's signature n_best; all beams by default")
    for side in ("source", "target"):
        add(f"--{side}-language", help=f"the {side}'s language, of a model between many languages")
    add("--sentences", metavar="FILE", help="a file of sentences to certify on; the run's validation text by default")
    add("--references", metavar="FILE", help="a file of their translations, for BLEU")


if __name__ == "__main__":
    sys.exit(main())
