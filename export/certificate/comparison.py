"""Certifies the artefacts of an export folder."""

from __future__ import annotations

import os
import platform
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path

from keras_transformer.bleu import bleu_signature
from keras_transformer.errors import RequestError, say
from keras_transformer.run_folder import RunFolder
from keras_transformer.text.corpora import read_lines

from ..artefacts import Artefact, BrokenArtefact
from ..signatures import Decoding, TrainedRun
from .contents import contents_of
from .device import device_notes
from .execution import run_artefact, task_of
from .judgement import Judge
from .records import Certificate, Entry
from .rules import RULES

QUICK_SENTENCES = 200  # enough to show that an artefact is the model; what a low precision costs takes all sentences


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
        decoding: the search that was baked into them.
        sentences: the text to translate: its first 200 lines in float32, all of it in lower precisions.
        references: translations of the sentences, for BLEU; float32 does not need them.
        threads: for each runtime.

    Raises:
        RequestError: there are no artefacts, `check_text` refuses the sentences, or a runtime is not installed.
    """
    if not artefacts:
        raise RequestError(f"expected at least one artefact to certify; found none in {folder}")
    precisions = {artefact.precision for artefact in artefacts}
    check_text(sentences, references, precisions)
    count = QUICK_SENTENCES if precisions <= {"float32"} else len(sentences)
    searches = {artefact.search(decoding) for artefact in artefacts}
    judges = {search: Judge(run.translator, search, sentences[:count], references) for search in searches}
    about = run.metadata(decoding, "float32")
    return Certificate(
        entries=tuple(certified(judges[one.search(decoding)], Path(folder), one, threads) for one in artefacts),
        run={name: about[name] for name in about if name != "precision"},
        versions={name: metadata.version(name) for name in ("tensorflow", "keras", "sentencepiece", "sacrebleu")},
        machine={"system": platform.platform(), "processors": os.cpu_count(), "threads": threads},
        bleu_signature="" if references is None else bleu_signature(),
    )


def validation_text(run: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """The validation sentences of a run folder, and their references.

    Raises:
        RequestError: the run has none.
    """
    folder = RunFolder(run)
    if not (folder.valid_source.is_file() and folder.valid_target.is_file()):
        raise RequestError(f"{folder.path} has no validation sentences: give some by --sentences and --references")
    return list(read_lines(folder.valid_source)), list(read_lines(folder.valid_target))


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


def certified(judge: Judge, folder: Path, artefact: Artefact, threads: int) -> Entry:
    """Runs one artefact and judges its translations."""
    name, rule = artefact.name_in(folder), RULES[artefact.precision]
    if artefact.takes == "halves":
        rule += "; compared with the model's greedy search"
    entry = Entry(name, artefact.format, artefact.takes, artefact.precision, False, rule)
    say(f"certifying {name}")
    try:
        entry = replace(entry, contents=contents_of(artefact))
        sentences = judge.sentences if artefact.takes == "text" else judge.source_ids
        count = QUICK_SENTENCES if artefact.precision == "float32" else len(sentences)
        num_control_ids = judge.translator.model.num_control_ids
        task = task_of(artefact, sentences[:count], judge.decoding, threads, num_control_ids)
        execution = run_artefact(artefact, task)
        judgement = judge.judge(artefact.precision, execution.result)
    except BrokenArtefact as broken:
        return broken_entry(entry, broken)
    return replace(
        entry,
        holds=judgement.holds,
        held_against="; ".join([rule, *device_notes(artefact, judgement.measured.device, execution.log)]),
        reason=judgement.reason,
        judgement=judgement,
        verified="translations",
    )


def broken_entry(entry: Entry, broken: BrokenArtefact) -> Entry:
    """The entry of an artefact that did not run. A float16 ONNX graph holds if it is valid and only lacks a GPU."""
    entry = replace(entry, reason=str(broken))
    lacks_operators = broken.had_no_gpu and "NOT_IMPLEMENTED" in entry.reason
    if entry.format == "onnx" and entry.precision == "float16" and lacks_operators:
        rule = "the graph alone, which is valid: the runtime here has no GPU, and on the CPU it lacks operators in half"
        return replace(entry, holds=True, held_against=rule, verified="graph")
    return entry
