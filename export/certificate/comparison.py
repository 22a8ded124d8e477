"""Certifies the artefacts of an export folder."""

from __future__ import annotations

import os
import platform
import zipfile
from collections.abc import Iterable, Sequence
from dataclasses import replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.bleu import bleu_signature
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.parallel import num_cores
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.decoding.recommender import Recommender
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError, say
from keras_transformer.run_folder import RunFolder, read_config
from keras_transformer.text.corpora import read_lines
from keras_transformer.text.items import Items

from ..artefacts import Artefact, BrokenArtefact
from ..forms import Form, Recognition, Recommending, Translation, form_of
from ..signatures import Decoding, TrainedRun
from .arrays import ArrayJudge, HistoryJudge, ImageJudge
from .contents import contents_of
from .continuations import ContinuationJudge
from .device import device_notes
from .execution import run_artefact, task_of
from .judgement import Judge
from .records import Certificate, Entry

MAX_NUMBERS = 5_000_000  # of the images that an artefact is certified on
SEED = 1  # of made histories
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
        decoding: the search that was baked into them, if the model searches.
        sentences: the text: its first 200 lines in float32, all of it in lower precisions.
        references: translations of the sentences, for BLEU; float32 does not need them.
        threads: for each runtime.

    Raises:
        RequestError: there are no artefacts, `check_text` refuses the sentences, or a runtime is not installed.
    """
    if not artefacts:
        raise RequestError(f"expected at least one artefact to certify; found none in {folder}")
    precisions = {artefact.precision for artefact in artefacts}
    form = form_of(run)
    check_text(sentences, references, precisions if form is Translation else [])
    count = QUICK_SENTENCES if precisions <= {"float32"} else len(sentences)
    searches = {artefact.search(decoding) for artefact in artefacts}
    judges = {search: judge_of(run, search, sentences[:count], references) for search in searches}
    about = run.metadata(decoding, "float32")
    return Certificate(
        kind=form.kind,
        entries=tuple(certified(judges[one.search(decoding)], Path(folder), one, threads, form) for one in artefacts),
        run={name: about[name] for name in about if name != "precision"},
        versions={name: metadata.version(name) for name in ("tensorflow", "keras", "sentencepiece", "sacrebleu")},
        machine={"system": platform.platform(), "processors": num_cores(), "threads": threads},
        bleu_signature="" if references is None else bleu_signature(),
    )


def validation_text(run: str | os.PathLike[str]) -> tuple[list[str], list[str] | None]:
    """The validation sentences of a run folder, and their references if it is one of a translator.

    Raises:
        RequestError: the run has none.
    """
    folder = RunFolder(run)
    config = read_config(folder)
    if config["model"]["kind"] == Recognition.kind:
        return images_of(folder), None
    if config["model"]["kind"] == Recommending.kind:
        return histories_of(folder, config["model"]["context_length"]), None
    if config["model"]["kind"] != Translation.kind:
        path = folder.valid_source if "answer_length" in config else folder.valid_text
        return prompts_of(path, has_labels=bool(config.get("labels"))), None
    if not (folder.valid_source.is_file() and folder.valid_target.is_file()):
        raise RequestError(f"{folder.path} has no validation sentences: give some by --sentences and --references")
    return list(read_lines(folder.valid_source)), list(read_lines(folder.valid_target))


def histories_of(folder: RunFolder, context_length: int) -> list[Any]:
    """Made histories of the run's items, of all lengths up to more than the context: a run keeps none of its users'."""
    names = Items.load(folder.items).names
    draws = np.random.default_rng(SEED)
    lengths = draws.integers(0, context_length + 5, QUICK_SENTENCES)
    return [[names[place] for place in draws.integers(0, len(names), length)] for length in lengths]


def images_of(folder: RunFolder) -> list[Any]:
    """The first validation images of a run, (S, S, channels) uint8 each.

    Raises:
        RequestError: there are none, or their file is damaged.
    """
    try:
        with np.load(folder.valid_images, allow_pickle=False) as arrays:
            images = arrays["images"]
    except FileNotFoundError:
        raise RequestError(
            f"{folder.path} has no validation images, on which an export is certified: import it with --valid-images"
        ) from None
    except (OSError, ValueError, KeyError, zipfile.BadZipFile) as error:
        raise RequestError(f"{folder.valid_images} is damaged: {str(error)[:200]}") from error
    shape = (config := read_config(folder)["model"])["image_size"], config["image_size"], config["channels"]
    if images.dtype != np.uint8 or images.shape[1:] != shape or not len(images):
        raise RequestError(f"{folder.valid_images}: expected images {shape} of uint8; received {images.shape}")
    return list(images[: max(1, min(QUICK_SENTENCES, MAX_NUMBERS // images[0].size))])


def prompts_of(path: Path, has_labels: bool) -> list[str]:
    """The first lines of a run's validation text that are not blank, without their labels."""
    if not path.is_file():
        raise RequestError(f"{path.parent} has no validation text: give some lines by --sentences")
    lines = (line.partition("\t")[2] if has_labels else line for line in read_lines(path))
    return list(islice((line for line in lines if line.strip()), QUICK_SENTENCES))


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


def judge_of(
    run: TrainedRun, decoding: Decoding, sentences: Sequence[str], references: Sequence[str] | None
) -> Judge | ArrayJudge:
    """The judge of a run's artefacts that search so."""
    if isinstance(run.pipeline, Translator):
        return Judge(run.pipeline, decoding, sentences, references)
    if isinstance(run.pipeline, Recognizer):
        return ImageJudge(run.pipeline, sentences)
    if isinstance(run.pipeline, Recommender):
        return HistoryJudge(run.pipeline, sentences)
    sentences = without_ambiguous(run, sentences)
    if isinstance(run.pipeline, Generator):
        return ContinuationJudge(run.pipeline, decoding, sentences)
    return ArrayJudge(run.pipeline, sentences)


def without_ambiguous(run: TrainedRun, sentences: Sequence[str]) -> list[str]:
    """The sentences, without those that a runtime's SentencePiece may read in other pieces. A message counts these."""
    tokenizer = run.tokenizers[0]
    kept = [sentence for sentence in sentences if not tokenizer.is_ambiguous(sentence)]
    if num_left := len(sentences) - len(kept):
        say(f"{num_left} text(s) can be read in other pieces as well, so they are not certified on")
    return kept or list(sentences)


def certified(
    judge: Judge | ArrayJudge, folder: Path, artefact: Artefact, threads: int, form: type[Form] = Translation
) -> Entry:
    """Runs one artefact and judges its answers."""
    name, rule = artefact.name_in(folder), judge.rules[artefact.precision]
    if artefact.takes == "halves":
        rule += "; compared with the model's greedy search"
    if artefact.format == "ctranslate2":
        rule += "; CTranslate2's hypotheses are ranked by the model's length penalty, and scored by all probabilities"
    entry = Entry(name, artefact.format, artefact.takes, artefact.precision, False, rule)
    say(f"certifying {name}")
    try:
        entry = replace(entry, contents=contents_of(artefact))
        inputs = judge.inputs(artefact.takes)
        count = QUICK_SENTENCES if artefact.precision == "float32" else len(inputs)
        task = task_of(artefact, inputs[:count], judge.decoding, threads, judge.num_control_ids, form)
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
        verified="translations" if form is Translation else "answers",
    )


def broken_entry(entry: Entry, broken: BrokenArtefact) -> Entry:
    """The entry of an artefact that did not run. A float16 ONNX graph holds if it is valid and only lacks a GPU."""
    entry = replace(entry, reason=str(broken))
    lacks_operators = broken.had_no_gpu and "NOT_IMPLEMENTED" in entry.reason
    if entry.format == "onnx" and entry.precision == "float16" and lacks_operators:
        rule = "the graph alone, which is valid: the runtime here has no GPU, and on the CPU it lacks operators in half"
        return replace(entry, holds=True, held_against=rule, verified="graph")
    return entry
