"""`python -m export RUN` writes a trained run as translators that need none of our code, and a certificate."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import JobError, RequestError, command_line, exit_status, load_tensorflow, say
from keras_transformer.export_folder import PRECISIONS
from keras_transformer.files import check_writable, write_folder_whole
from keras_transformer.own_parts import FLAG, HELP, with_imports

if TYPE_CHECKING:
    from .artefacts import Decoding, TrainedRun
    from .certificate import Certificate

# Keras and TensorFlow take seconds to import, so functions import them and `--help` does not wait.
FORMATS = ("saved_model", "onnx", "tflite", "ctranslate2")
DEFAULT_FORMATS = FORMATS[:3]
DEFAULT_PRECISIONS = ("float32",)
# The packages that a format needs besides TensorFlow, to be written and certified.
PACKAGES = {
    "saved_model": ("tensorflow_text",),
    "onnx": ("onnx", "onnxruntime", "onnxruntime_extensions"),
    "tflite": ("tensorflow_text", "ai_edge_litert"),
    "ctranslate2": ("ctranslate2",),
}
# (format, precision) that builds the model again from its configuration.
REMADE = {("saved_model", "float16"), ("tflite", "int8")}
DESCRIPTION = (
    "Exports a trained run as SavedModel, ONNX and TFLite, and a translator for CTranslate2 too if you ask; certifies "
    "that each answers as the model does."
)
# The options that --verify does not take, with their defaults.
EXPORT_ALONE = {
    "format": DEFAULT_FORMATS, "precision": DEFAULT_PRECISIONS, "out": None, "overwrite": False, "beams": None,
    "length_penalty": None, "max_length": None, "n_best": None,
}  # fmt: skip
# What an export folder may hold.
NAMES = {
    "saved_model", "saved_model-float16", "onnx", "tflite", "ctranslate2", "ctranslate2-float16", "ctranslate2-int8",
    "items.txt", "tokenizer.model", "tokenizer.source.model", "tokenizer.target.model",
    "certificate.json", "CERTIFICATE.md",
}  # fmt: skip


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the command; returns its exit status."""
    return exit_status(lambda: run(make_parser().parse_args(with_imports(argv))), argv)


def run(arguments: argparse.Namespace) -> None:
    """Exports, or verifies an export that is there."""
    if arguments.verify is not None:
        verify_folder(arguments)
    elif arguments.run is not None:
        export(arguments)
    else:
        raise RequestError("expected a run folder to export, or --verify with an export folder; received neither")


def export(arguments: argparse.Namespace) -> None:
    """Exports a run folder and certifies the artefacts. Every wrong request is refused before anything is written."""
    folder = Path(arguments.out or Path("exported") / Path(arguments.run).resolve().name)
    check_place(folder, arguments.overwrite)
    load_tensorflow()
    from .artefacts import open_run
    from .certificate import artefacts_in, certify, check_text, write_certificate

    run = open_run(arguments.run)
    decoding = run.decoding(
        arguments.n_best,
        num_beams=arguments.beams,
        length_penalty=arguments.length_penalty,
        max_length=arguments.max_length,
    )
    plan = planned(arguments.format, arguments.precision)
    check_parts(run.model, plan)
    sentences, references = text_to_certify_on(arguments, run)
    check_text(sentences, references, arguments.precision if run.signature.has_references else [])
    with write_folder_whole(folder) as aside:
        write_artefacts(run, aside, decoding, plan)
        certificate = certify(run, aside, artefacts_in(aside), decoding, sentences, references)
        write_certificate(certificate, aside)
    print((folder / "CERTIFICATE.md").read_text(encoding="utf-8"), end="")
    say(f"wrote {folder}")
    refuse_unless_it_holds(certificate, folder / "CERTIFICATE.md")


def refuse_unless_it_holds(certificate: Certificate, where: str | Path) -> None:
    """Raises JobError, which names where the reasons stand, unless every artefact holds."""
    if not certificate.holds:
        raise JobError(f"not every artefact answers as the model does: see {where}")


def verify_folder(arguments: argparse.Namespace) -> None:
    """Certifies an export folder again, and writes nothing: by the run, or by what its certificate keeps."""
    for name, default in EXPORT_ALONE.items():
        if getattr(arguments, name) is not default:
            raise RequestError(f"--verify takes an export as it is, and no --{name.replace('_', '-')}: leave it out")
    load_tensorflow()
    from .artefacts import open_run
    from .certificate import artefacts_in, certify, check_text, markdown, verify, with_missing
    from .certificate.comparison import KeptCertificate

    folder = Path(arguments.verify)
    kept, artefacts = KeptCertificate(folder), artefacts_in(folder)
    if arguments.run is None:
        if arguments.sentences:
            raise RequestError("--sentences needs the run, whose model answers them: give the run too")
        certificate = verify(folder)
    else:
        run = open_run(arguments.run)
        if run.signature is not kept.signature:
            raise RequestError(f"{folder} is an export of another kind of model than {arguments.run}: give its own run")
        sentences, references = text_to_certify_on(arguments, run)
        precisions = {artefact.precision for artefact in artefacts} if run.signature.has_references else {}
        check_text(sentences, references, precisions)
        certificate = certify(run, folder, artefacts, kept.decoding, sentences, references)
    certificate = with_missing(certificate, folder)
    print(markdown(certificate), end="")
    refuse_unless_it_holds(certificate, "the report")


def check_place(folder: Path, overwrite: bool) -> None:
    """Raises RequestError unless the folder is empty or new, or holds an export that may be replaced."""
    if folder.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise RequestError(f"--out must name a folder of its own, which the export replaces; received: {folder}")
    for written in (folder, folder.resolve().parent):  # beside the old export, before the new one replaces it
        check_writable(written, "choose another folder with --out")
    names = {path.name for path in folder.iterdir()} if folder.exists() else set()
    if strangers := sorted(names - NAMES):
        raise RequestError(f"{folder} holds {strangers[0]}, which is not part of an export: choose another --out")
    if names and not overwrite:
        raise RequestError(f"{folder} holds an export already: replace it with --overwrite, or choose another --out")


def planned(formats: Sequence[str], precisions: Sequence[str]) -> list[tuple[str, str]]:
    """(format, precision) of what will be written; says which combinations do not exist and are left out.

    Raises:
        RequestError: a format has none of the precisions, or a package that it needs is not installed.
    """
    from .artefacts import import_optional, require_precision

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


def check_parts(model: Any, plan: Sequence[tuple[str, str]]) -> None:
    """Raises RequestError if a format of the plan cannot write a part of the model."""
    from .artefacts import require_own_parts

    for format, precision in plan:
        if format == "onnx":
            from .onnx.export import require_recordable

            require_recordable(model)
        elif format == "ctranslate2":
            from .ctranslate2 import require_held

            require_held(model, precision)
        elif (format, precision) in REMADE:
            require_own_parts(model, format, precision)


def text_to_certify_on(arguments: argparse.Namespace, run: TrainedRun) -> tuple[list[str], list[str] | None]:
    """Sentences and references: the given files, else the run's validation text."""
    from keras_transformer.text.corpora import read_lines

    from .certificate import validation_text

    task = run.pipeline.task
    if arguments.references and not arguments.sentences:
        raise RequestError("--references needs --sentences, whose translations they are: give both")
    if arguments.references and not run.signature.has_references:
        raise RequestError(f"--references are translations, and a run of --task {task} gives none: leave them out")
    if arguments.sentences and not run.tokenizers:
        raise RequestError(f"--sentences are texts, and a run of --task {task} takes none: leave them out")
    if not arguments.sentences:
        return validation_text(arguments.run)
    references = list(read_lines(Path(arguments.references))) if arguments.references else None
    return list(read_lines(Path(arguments.sentences))), references


def write_artefacts(run: TrainedRun, folder: Path, decoding: Decoding, plan: Sequence[tuple[str, str]]) -> None:
    """Writes every artefact of the plan, and the vocabularies."""
    for format, precision in plan:
        exporter = getattr(import_module(f".{format}", __package__), f"export_{format}")
        for path in exporter(run, folder, decoding, precision):
            say(f"{path.relative_to(folder)}: {num_bytes(path):,} bytes")
    run.pipeline.save_vocabularies(folder)


def num_bytes(path: Path) -> int:
    """The size of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())


def make_parser() -> argparse.ArgumentParser:
    """The command's own parser."""
    parser = argparse.ArgumentParser(prog=command_line("export"), description=DESCRIPTION, allow_abbrev=False)
    add_options(parser)
    parser.add_argument(FLAG, metavar="MODULE", help=HELP)
    return parser


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments and flags to a parser; `export` takes what it parsed."""
    parser.formatter_class = argparse.ArgumentDefaultsHelpFormatter
    parser.add_argument("run", metavar="RUN", nargs="?", help="a run folder that training wrote")
    parser.add_argument(
        "--verify",
        metavar="FOLDER",
        help="certify this export folder again, and write nothing: by RUN, or without RUN by the answers that its "
        "certificate keeps",
    )
    parser.add_argument(
        "--format",
        nargs="+",
        choices=FORMATS,
        default=DEFAULT_FORMATS,
        help="which formats to write; ctranslate2 takes translators",
    )
    parser.add_argument(
        "--precision", nargs="+", choices=PRECISIONS, default=DEFAULT_PRECISIONS, help="which precisions to write"
    )
    parser.add_argument("--out", help="the export folder; exported/<the run's name> by default")
    parser.add_argument("--overwrite", action="store_true", help="replace an export that is there")
    parser.add_argument("--beams", type=int, help="beam size; 1 is greedy search; the run's own by default, mostly 4")
    parser.add_argument(
        "--length-penalty", type=float, help="alpha of ((5 + length) / 6)^alpha; the run's own by default, mostly 0.6"
    )
    parser.add_argument(
        "--max-length",
        type=int,
        help="the most pieces to emit; source + 50 (of a language model the context) by default and at most",
    )
    parser.add_argument("--n-best", type=int, help="hypotheses in SavedModel's signature n_best; all beams by default")
    parser.add_argument("--sentences", help="a file of sentences to certify on; the run's validation text by default")
    parser.add_argument("--references", help="a file of their translations, for BLEU")


if __name__ == "__main__":
    sys.exit(main())
