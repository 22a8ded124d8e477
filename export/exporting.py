"""What `export` does: it writes the artefacts of a run, and certifies them; or certifies an export that is there."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from importlib import import_module
from pathlib import Path

from keras_transformer.commands.parser import guards_of
from keras_transformer.core.errors import JobError, OutputClosed, RequestError, print_result, say, warn
from keras_transformer.core.extras import required
from keras_transformer.core.folders import whole_folder
from keras_transformer.runs.export_folder import CERTIFICATE, ONNX, RECORDER, TF2ONNX, TRITON
from keras_transformer.runs.run_folder import RunFolder, resume_command
from keras_transformer.text.lines import read_lines

from .artefacts import Decoding, TrainedRun, artefacts_in, between, open_run, require_own_parts, require_precision
from .certificate.comparison import certify, check_text, kept_at, validation_text
from .certificate.comparison import verify as verified
from .certificate.expected import Input
from .certificate.report import Certificate, markdown, write_certificate
from .ctranslate2 import require_held
from .hub import require_form
from .hub_forms import FORMAT
from .tflite import require_size
from .triton import require_translator, write_repository

# The packages that a format needs besides TensorFlow, to be written and certified.
PACKAGES = {
    "saved_model": ("tensorflow_text",),
    "onnx": ("onnx", "onnxruntime", "onnxruntime_extensions"),
    "tflite": ("tensorflow_text", "ai_edge_litert"),
    "ctranslate2": ("ctranslate2",),
    "huggingface": (),
}
# The modules that write formats, where their names differ.
WRITERS = {"huggingface": "hub"}
# (what writes it, precision): builds the model again from its configuration.
REMADE = {("saved_model", "float16"), (TF2ONNX, "float16"), ("tflite", "int8")}


def export(arguments: argparse.Namespace, folder: Path, check_place: Callable[[Path, bool], None]) -> None:
    """Exports a run into a folder and certifies the artefacts. What is wrong is refused before anything is written.

    Args:
        arguments: the command's.
        folder: where to write. Artefacts that do not hold go to a folder beside, unless the user forces them.
        check_place: raises RequestError unless an export may be written to a folder, or an old one replaced.

    Raises:
        RequestError: the run, an option or the folder is wrong.
        JobError: not every artefact holds.
    """
    plan = planned(arguments.format, arguments.precision, converter := arguments.converter or RECORDER)
    run = between(open_run(arguments.run), arguments.source_language, arguments.target_language)
    if run.unfinished:
        warn(f"the run is unfinished, at {run.unfinished}: `{resume_command(RunFolder(arguments.run))}` goes on")
    search = {"length_penalty": arguments.length_penalty, "max_length": arguments.max_length, **guards_of(arguments)}
    decoding = run.decoding(arguments.n_best, num_beams=arguments.beams, **search)
    check_parts(run, plan, converter)
    check_vocabulary(run, plan)
    if TRITON in arguments.format:
        require_translator(run.signature, arguments.format)
    place = partial(whole_folder, folder, partial(check_place, folder, arguments.overwrite))
    if {format for format, _ in plan} <= {*WRITERS}:  # what transformers runs has shown that it is the model
        with place() as aside:
            write_artefacts(run, aside, decoding, plan)
        say(f"wrote {folder}")
        return
    sentences, references = text_to_certify_on(arguments, run)
    check_text(sentences, references, arguments.precision if run.signature.has_references else [])
    with place() as aside:
        write_artefacts(run, aside, decoding, plan, converter)
        certificate = certify(run, aside, artefacts_in(aside), decoding, sentences, references)
        complete(aside, certificate, TRITON in arguments.format)
        if not (certificate.holds or arguments.force_publish):
            refused = folder.with_name(f"{folder.name}.refused")
            with whole_folder(refused, partial(check_place, refused, True)) as kept:
                aside.rename(kept)
            tell(certificate, refused, f"; {folder} is as it was: --force-publish writes there all the same")
    tell(certificate, folder)


def complete(folder: Path, certificate: Certificate, with_triton: bool) -> None:
    """Adds the certificate to an export's artefacts, and a model repository for Triton if it is asked for."""
    write_certificate(certificate, folder)
    if (folder / ONNX).is_dir():
        shutil.copy(folder / CERTIFICATE, folder / ONNX)  # what answers takes this folder alone
    if with_triton:
        write_repository(folder)


def tell(certificate: Certificate, folder: Path | None, mend: str = "") -> None:
    """Prints a certificate, and where it was written.

    Args:
        certificate: what was found.
        folder: where it was written; None if nothing was.
        mend: what the error says behind the place of the reasons.

    Raises:
        JobError: not every artefact holds; the message names where the reasons stand.
    """
    show(markdown(certificate))
    if folder:
        say(f"wrote {folder}")
    if not certificate.holds:
        where = folder / "CERTIFICATE.md" if folder else "the report"
        raise JobError(f"not every artefact answers as the model does: see {where}{mend}")


def verify(arguments: argparse.Namespace) -> None:
    """Certifies an export, or a part of it, and writes nothing: by the run, or by what its certificate keeps."""
    if arguments.run is None:
        certificate = verified(arguments.verify)
    else:
        kept, artefacts = kept_at(arguments.verify)
        source, target = kept.languages
        languages = arguments.source_language or source, arguments.target_language or target
        run = between(open_run(arguments.run), *languages)
        if run.signature is not kept.signature:
            raise RequestError(
                f"{kept.folder} is an export of another kind of model than {arguments.run}: give its own run"
            )
        sentences, references = text_to_certify_on(arguments, run)
        certificate = certify(run, kept.folder, artefacts, kept.decoding, sentences, references)
    tell(certificate, None)


def show(certificate: str) -> None:
    """Prints a certificate. Whether anybody reads it changes nothing of what the command does next."""
    with suppress(OutputClosed):
        print_result(certificate, end="")


def planned(formats: Sequence[str], precisions: Sequence[str], converter: str = RECORDER) -> list[tuple[str, str]]:
    """(format, precision) of what will be written; says which combinations do not exist and are left out.

    Raises:
        RequestError: a format has none of the precisions, or a package that it needs is not installed; or the converter
            makes none of the formats.
    """
    if converter == TF2ONNX:
        if "onnx" not in formats:
            raise RequestError("--converter tf2onnx makes ONNX graphs: add onnx to --format, or leave it out")
        required(TF2ONNX, TF2ONNX, "--converter tf2onnx")
    plan = []
    for format in dict.fromkeys(formats):
        if format == TRITON:  # it is made of what another format wrote
            continue
        for package in PACKAGES[format]:
            required(package, "ctranslate2" if format == "ctranslate2" else "export", "exporting")
        refusals = []
        for precision in dict.fromkeys(precisions):
            try:
                require_precision(format, precision, converter)
                plan.append((format, precision))
            except RequestError as error:
                refusals.append(str(error))
        if len(refusals) == len(set(precisions)):
            raise RequestError("; ".join(refusals))
        for refusal in refusals:
            say(f"left out: {refusal}")
    return plan


def check_parts(run: TrainedRun, plan: Sequence[tuple[str, str]], converter: str = RECORDER) -> None:
    """Raises RequestError if a format of the plan cannot write a part of the model."""
    model = run.model
    for format, precision in plan:
        writer = converter if format == "onnx" else format
        if writer == RECORDER:
            import_module(".onnx.export", __package__).require_traceable(model)
        elif format == "ctranslate2":
            require_held(model, precision)
        elif format == FORMAT:
            require_form(run)
        elif format == "tflite":
            require_size(model, precision, "a TFLite file")
        elif writer == TF2ONNX:
            require_size(model, precision, "a graph that tf2onnx takes")
        if (writer, precision) in REMADE:
            require_own_parts(model, format, precision)


def check_vocabulary(run: TrainedRun, plan: Sequence[tuple[str, str]]) -> None:
    """Raises RequestError if a format of the plan takes pieces of SentencePiece, and the run has others; tells what the
    other formats do without.
    """
    if "ctranslate2" in dict(plan) and "source_tags" in run.pipeline.about():
        raise RequestError("ctranslate2 makes no translation begin with the tag of its language: leave it out")
    if all(one.is_sentencepiece for one in run.tokenizers):
        return
    formats = {*dict(plan)}
    if "ctranslate2" in formats:
        raise RequestError("ctranslate2 takes SentencePiece's pieces; this run has another vocabulary: leave it out")
    if (reason := run.reason_against_text) and formats != {FORMAT}:
        say(f"left out: artefacts that take text: {reason}; tokenizer.json is written")


def text_to_certify_on(arguments: argparse.Namespace, run: TrainedRun) -> tuple[list[Input], list[str] | None]:
    """Sentences and references: the given files, else the run's validation text."""
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


def write_artefacts(
    run: TrainedRun, folder: Path, decoding: Decoding, plan: Sequence[tuple[str, str]], converter: str = RECORDER
) -> None:
    """Writes every artefact of the plan, and the vocabularies."""
    for format, precision in plan:
        exporter = getattr(import_module(f".{WRITERS.get(format, format)}", __package__), f"export_{format}")
        options = {"converter": converter} if format == "onnx" else {}
        for path in exporter(run, folder, decoding, precision, **options):
            say(f"{path.relative_to(folder)}: {num_bytes(path):,} bytes")
        if format == ONNX:
            run.pipeline.save_vocabularies(folder / ONNX)
    run.pipeline.save_vocabularies(folder)


def num_bytes(path: Path) -> int:
    """The size of a file, or of all files in a folder."""
    return sum(file.stat().st_size for file in [path, *path.rglob("*")] if file.is_file())
