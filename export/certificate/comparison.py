"""Certifies the artefacts of an export folder."""

from __future__ import annotations

import os
import platform
import tempfile
import zipfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.bleu import bleu_signature
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.parallel import num_cores
from keras_transformer.decoding.probes import NUM_PROBES, as_json, chosen_probes, device_name
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.decoding.recommender import Recommender
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError, say
from keras_transformer.run_folder import RunFolder, read_config
from keras_transformer.text.corpora import read_lines
from keras_transformer.text.items import Items

from ..artefacts import LOOPED, Artefact, BrokenArtefact, artefacts_in
from ..forms import Filling, Recognition, Recommending, Translation, form_of
from ..probes import Texts, history_probes, image_probes, long_texts, odd_texts
from ..signatures import Decoding, TrainedRun
from .arrays import expected_images, expected_items, expected_labels, expected_pieces
from .contents import check_metadata, contents_of
from .device import device_notes
from .execution import QUICK_TEXTS, run_artefact, task_of
from .expected import Expected
from .judgement import judge
from .records import Certificate, Entry, Machine
from .rules import rule_of
from .searches import ExpectedContinuations, ExpectedTranslations
from .stored import KeptCertificate, stored
from .tokenizers import check_vocabularies, cut_tokenizer

MAX_NUMBERS = 5_000_000  # of the images that an artefact is certified on
SEED = 1  # of made histories


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
    form = form_of(run)
    check_text(sentences, references, precisions if form is Translation else [])
    count = QUICK_TEXTS if precisions <= {"float32"} else len(sentences)
    texts = texts_of(run, sentences[:count])
    searches = dict.fromkeys(artefact.search(decoding) for artefact in artefacts)
    expected = {search: expected_of(run, search, texts, references) for search in searches}
    about = {name: text for name, text in run.metadata(decoding, "float32").items() if name != "precision"}
    return replace(
        compared(expected, decoding, Path(folder), artefacts, threads, about),
        kind=form.kind,
        bleu_signature="" if references is None else bleu_signature(),
        stored=stored([*expected.values()]),
        probes=probes_of(run, expected.get(decoding), decoding),
    )


def probes_of(run: TrainedRun, expected: Expected | None, decoding: Decoding) -> list[dict[str, Any]]:
    """By what ONNX graphs of a translator check themselves where they run; other models are not loaded from exports."""
    if not isinstance(expected, ExpectedTranslations) or not isinstance(run.pipeline, Translator):
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
    return replace(certificate, kind=kept.form.kind, against="stored")


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
    lengths = draws.integers(0, context_length + 5, QUICK_TEXTS)
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
    return list(images[: max(1, min(QUICK_TEXTS, MAX_NUMBERS // images[0].size))])


def prompts_of(path: Path, has_labels: bool) -> list[str]:
    """The first lines of a run's validation text that are not blank, without their labels."""
    if not path.is_file():
        raise RequestError(f"{path.parent} has no validation text: give some lines by --sentences")
    lines = (line.partition("\t")[2] if has_labels else line for line in read_lines(path))
    return list(islice((line for line in lines if line.strip()), QUICK_TEXTS))


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


def texts_of(run: TrainedRun, given: Sequence[Any]) -> Texts:
    """The texts to certify on: the probes that every run of this kind gets, and those that are given."""
    if isinstance(run.pipeline, Recognizer):
        return Texts([], image_probes(run.model.image_shape), given)
    if isinstance(run.pipeline, Recommender):
        return Texts([], history_probes(run.pipeline.items.names, run.model.context_length - 1), given)
    tokenizer = run.tokenizers[0]
    given = without_ambiguous(run, given)
    most = run.model.max_source_length if isinstance(run.pipeline, Translator) else run.model.context_length - 2
    line = next((line for line in given if line.strip()), "")
    return Texts(long_texts(line, most, lambda text: len(tokenizer.encode([text])[0])), odd_texts(tokenizer), given)


def expected_of(run: TrainedRun, decoding: Decoding, texts: Texts, references: Sequence[str] | None) -> Expected:
    """What a run's model gives, if it searches so."""
    form, pipeline = form_of(run), run.pipeline
    if isinstance(pipeline, Translator):
        return ExpectedTranslations(form, pipeline, decoding, texts, references)
    if isinstance(pipeline, Generator):
        return ExpectedContinuations(form, pipeline, decoding, texts)
    if isinstance(pipeline, Recognizer):
        return expected_images(form, pipeline, texts)
    if isinstance(pipeline, Recommender):
        return expected_items(form, pipeline, texts)
    return (expected_pieces if form is Filling else expected_labels)(form, pipeline, texts)


def without_ambiguous(run: TrainedRun, sentences: Sequence[str]) -> list[str]:
    """The sentences, without those that a runtime's SentencePiece may read in other pieces. A message counts these.

    Those of a translator are all kept, because its references belong to them.
    """
    if isinstance(run.pipeline, Translator):
        return list(sentences)
    tokenizer = run.tokenizers[0]
    kept = [sentence for sentence in sentences if not tokenizer.is_ambiguous(sentence)]
    if num_left := len(sentences) - len(kept):
        say(f"{num_left} text(s) can be read in other pieces as well, so they are not certified on")
    return kept or list(sentences)


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
        verified="translations" if expected.form is Translation else "answers",
    )


def broken_entry(entry: Entry, broken: BrokenArtefact) -> Entry:
    """The entry of an artefact that did not run. A float16 ONNX graph holds if it is valid and only lacks a GPU."""
    entry = replace(entry, reason=str(broken))
    lacks_operators = broken.had_no_gpu and "NOT_IMPLEMENTED" in entry.reason
    if entry.format == "onnx" and entry.precision == "float16" and lacks_operators:
        rule = "the graph alone, which is valid: the runtime here has no GPU, and on the CPU it lacks operators in half"
        return replace(entry, holds=True, held_against=rule, verified="graph")
    return entry
