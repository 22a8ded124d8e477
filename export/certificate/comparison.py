"""Certifies the artefacts of an export folder."""

from __future__ import annotations

import os
import platform
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

from keras_transformer import tasks
from keras_transformer.bleu import bleu_signature
from keras_transformer.decoding.options import Decoding
from keras_transformer.decoding.parallel import num_cores
from keras_transformer.decoding.probes import NUM_PROBES, as_json, chosen_probes, device_name
from keras_transformer.decoding.signature import Searching
from keras_transformer.decoding.texts import QUICK_TEXTS, Texts
from keras_transformer.errors import RequestError, say
from keras_transformer.run_folder import RunFolder, read_config

from ..artefacts import LOOPED, Artefact, BrokenArtefact, artefacts_in
from ..signatures import TrainedRun
from .arrays import expected_arrays
from .contents import check_metadata, contents_of
from .device import device_notes
from .execution import run_artefact, task_of
from .expected import Expected
from .judgement import judge
from .records import Certificate, Entry, Machine
from .rules import rule_of
from .searches import ExpectedSearch
from .stored import KeptCertificate, stored
from .tokenizers import check_vocabularies, cut_tokenizer


def certify(
    run: TrainedRun,
    folder: str | os.PathLike[str],
    artefacts: Sequence[Artefact],
    decoding: Decoding,
    sentences: Sequence[str],
    references: Sequence[str] | None = None,
    threads: int = 1,
) -> Certificate:
    """Runs artefacts and compares them with the model that they were made of.

    Args:
        run: what was exported.
        folder: the export folder.
        artefacts: which of its artefacts to run; see `artefacts_in`.
        decoding: the search that was baked into them, if the model searches.
        sentences, references: the text and its translations: 200 lines in float32, all in lower precisions.
        threads: for each runtime.

    Raises:
        RequestError: there are no artefacts, `check_text` refuses the sentences, or a runtime is not installed.
    """
    if not artefacts:
        raise RequestError(f"expected at least one artefact to certify; found none in {folder}")
    precisions = {artefact.precision for artefact in artefacts}
    check_text(sentences, references, precisions if run.signature.has_references else [])
    count = QUICK_TEXTS if precisions <= {"float32"} else len(sentences)
    texts = run.signature.texts(run.pipeline, sentences[:count])
    searches = dict.fromkeys(artefact.search(decoding) for artefact in artefacts)
    expected = {search: expected_of(run, search, texts, references) for search in searches}
    about = {name: text for name, text in run.metadata(decoding, "float32").items() if name != "precision"}
    return replace(
        compared(expected, decoding, Path(folder), artefacts, threads, about),
        kind=run.model.kind,
        bleu_signature="" if references is None else bleu_signature(),
        stored=stored([*expected.values()]),
        probes=probes_of(run, expected.get(decoding), decoding),
    )


def probes_of(run: TrainedRun, expected: Expected | None, decoding: Decoding) -> list[dict[str, Any]]:
    """By what ONNX graphs of a translator check themselves where they run; other models are not loaded from exports."""
    if "encoder" not in run.signature.halves or not isinstance(expected, ExpectedSearch):
        return []
    probes = expected.probes(range(expected.texts.first_given, len(expected.texts)))
    return as_json(probes if len(probes) == NUM_PROBES else chosen_probes(run.pipeline, [], decoding))


def verify(folder: str | os.PathLike[str], threads: int = 1) -> Certificate:
    """Compares the artefacts of an export folder with what its certificate keeps of the model.

    Raises:
        RequestError: the folder has no certificate, or a damaged one, or a runtime is not installed.
    """
    folder = Path(folder)
    kept, artefacts = KeptCertificate(folder), artefacts_in(folder)
    expected = kept.expected()
    if not {artefact.search(kept.decoding) for artefact in artefacts} <= expected.keys():
        raise RequestError(f"{kept.path} keeps no answers of the search of each artefact: give the run too")
    certificate = compared(expected, kept.decoding, folder, artefacts, threads, kept.about)
    return replace(certificate, kind=kept.content["kind"], against="stored")


def with_missing(certificate: Certificate, folder: str | os.PathLike[str]) -> Certificate:
    """The certificate with an entry for each artefact that the folder's own certificate names and that is not there."""
    there = {entry.name for entry in certificate.entries}
    missing = [
        Entry(name, "", "", "", False, "nothing", "the certificate names it, and it is not there")
        for name in KeptCertificate(Path(folder)).names
        if name not in there
    ]
    return replace(certificate, entries=(*certificate.entries, *missing))


def compared(
    expected: Mapping[Decoding, Expected],
    decoding: Decoding,
    folder: Path,
    artefacts: Sequence[Artefact],
    threads: int,
    about: dict[str, str],
) -> Certificate:
    """Runs artefacts and compares them with what is expected, by the search that each runs, and with the metadata."""
    entries = tuple(certified(expected[one.search(decoding)], folder, one, threads, about) for one in artefacts)
    versions = {name: metadata.version(name) for name in ("tensorflow", "keras", "sentencepiece", "sacrebleu")}
    machine: Machine = {"system": platform.platform(), "processors": num_cores(), "threads": threads}
    return Certificate(entries, run=about, versions=versions, machine=machine, bleu_signature="")


def validation_text(run: str | os.PathLike[str]) -> tuple[list[Any], list[str] | None]:
    """What the exports of a run folder are certified on, and references if it is one of a translator.

    Raises:
        RequestError: the run has none.
    """
    folder, config = RunFolder(run), read_config(run)
    return tasks.TASKS[tasks.task_of(config)].signature(config).validation(folder, config)


def check_text(sentences: Sequence[str], references: Sequence[str] | None, precisions: Iterable[str]) -> None:
    """Raises RequestError unless artefacts of these precisions can be certified on this text."""
    if not sentences:
        raise RequestError("expected at least one sentence to certify on; received none")
    if references is not None and len(references) != len(sentences):
        raise RequestError(
            f"expected a reference for each sentence; received {len(sentences)} sentences and "
            f"{len(references)} references: align them"
        )
    if references is None and (low := sorted({*precisions} - {"float32"})):
        raise RequestError(f"{' and '.join(low)} are held by BLEU, which needs references: give --references too")


def expected_of(run: TrainedRun, decoding: Decoding, texts: Texts, references: Sequence[str] | None) -> Expected:
    """What a run's model gives, if it searches so."""
    if not issubclass(run.signature, Searching):
        return expected_arrays(run.signature, run.pipeline, texts)
    answers = run.signature.searched(run.pipeline, texts, decoding)
    return ExpectedSearch(run.signature, texts, answers, decoding, references)


def certified(expected: Expected, folder: Path, artefact: Artefact, threads: int, about: dict[str, str]) -> Entry:
    """Runs one artefact and judges its answers."""
    name, rule = artefact.name_in(folder), rule_of(expected.unit, artefact.precision, expected.references is not None)
    if artefact.takes in LOOPED:
        rule += "; compared with the model's greedy search"
    if artefact.format == "ctranslate2":
        rule += "; CTranslate2's hypotheses are ranked by the model's length penalty, and scored by all probabilities"
    entry = Entry(name, artefact.format, artefact.takes, artefact.precision, False, rule)
    say(f"certifying {name}")
    try:
        entry = replace(entry, contents=contents_of(artefact))
        check_vocabularies(artefact, folder, expected)
        with tempfile.TemporaryDirectory() as place:
            task = task_of(artefact, expected, threads, cut_tokenizer(artefact, Path(place)))
            execution = run_artefact(artefact, task)
        result = execution.result
        on_gpu = result["device"] == "GPU"
        judgement = judge(expected, artefact, result, device_name("CUDAExecutionProvider" if on_gpu else ""))
        if judgement.holds:
            check_metadata(artefact, about)
    except BrokenArtefact as broken:
        return broken_entry(entry, broken)
    return replace(
        entry,
        holds=judgement.holds,
        held_against="; ".join([rule, *device_notes(artefact, judgement.measured.device, execution.log)]),
        reason=judgement.reason,
        judgement=judgement,
        verified=expected.signature.noun,
    )


def broken_entry(entry: Entry, broken: BrokenArtefact) -> Entry:
    """The entry of an artefact that did not run. A float16 ONNX graph holds if it is valid and only lacks a GPU."""
    entry = replace(entry, reason=str(broken))
    lacks_operators = broken.had_no_gpu and "NOT_IMPLEMENTED" in entry.reason
    if entry.format == "onnx" and entry.precision == "float16" and lacks_operators:
        rule = "the graph alone, which is valid: the runtime here has no GPU, and on the CPU it lacks operators in half"
        return replace(entry, holds=True, held_against=rule, verified="graph")
    return entry
