"""Certifies artefacts: with their run, or later by what the export has stored of it."""

from __future__ import annotations

import math
import os
import platform
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from importlib import metadata
from pathlib import Path

import numpy as np

from keras_transformer.checking.certificate_texts import QUICK_TEXTS, Texts, valid
from keras_transformer.checking.probes import NUM_PROBES, as_json, chosen_probes, device_name
from keras_transformer.checking.signatures import Ids, ReferenceAnswer, ReferenceSearch, Searching, Vocabularies
from keras_transformer.core.errors import RequestError, say
from keras_transformer.core.machine import num_cores
from keras_transformer.core.schema import Schema, having, list_of, object_of, parse_json, read_json, whole
from keras_transformer.core.task_registry import TASKS, task_named
from keras_transformer.runs.export_folder import CERTIFICATE, ONNX
from keras_transformer.runs.run_folder import RunFolder, read_config, read_tokenizers
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import DECODING, Decoding
from keras_transformer.text.bleu import bleu_signature
from keras_transformer.text.huggingface_tokenizer import load_tokenizer
from keras_transformer.text.tokenizer import Tokenizer

from ..artefacts import LOOPED, Artefact, BrokenArtefact, TrainedRun, artefacts_in, signature_of
from .arrays import ExpectedArrays, expected_arrays, restored
from .contents import check_metadata, contents_of
from .execution import device_notes, run_artefact, task_of
from .expected import Expected, Input
from .judgement import judge
from .report import Certificate, Entry, Machine, rule_of
from .searches import ExpectedSearch
from .tokenizers import check_vocabularies, cut_tokenizer

NUM_STORED = 8  # how many texts are kept beside the probes
CERTIFICATES, MAX_BYTES = (CERTIFICATE, f"{ONNX}/{CERTIFICATE}"), 2**26  # where they are, and the largest one
SIZES = ("vocabulary_size", "source_vocabulary_size", "num_control_ids", "context_length", "image_size", "channels")
SIZE, IDS = whole(0, 2**31 - 1), list_of(whole(0, 2**31 - 1))
SEARCHES = list_of(having(decoding=DECODING, texts=list_of(dict)), 1)
KEPT = object_of(
    {"kind": str, "run": object_of({"model": str}, others=str), "entries": list_of(having(name=str))},
    {"stored": having(num_probes=SIZE, searches=SEARCHES)},
    others=object,
)
# What is kept of a text.
HYPOTHESES = list_of(having(ids=IDS, text=str, score=float), 1)
SEARCHED = list_of(having(text=str, ids=IDS, read=IDS, limit=SIZE, hypotheses=HYPOTHESES))
TEXTS = Schema(
    "a text or texts", lambda value: {*map(type, value if isinstance(value, list) else [value or ""])} <= {str}
)
PAIRS = ([str, float], [int, float])  # a label or an id, and its probability
CHOICE = Schema("a choice and its probability", lambda value: isinstance(value, list) and [*map(type, value)] in PAIRS)
RANKINGS = list_of(having(choices=list_of(CHOICE, 1), others=float), 1)
RANKED = list_of(having(text=TEXTS, ids=IDS, rankings=RANKINGS, vector=list_of(float)))


def stored(expected: Sequence[Expected]) -> Config:
    """Returns what certificate.json keeps: of each search what the model gave for the probes and for some texts."""
    texts = expected[0].texts
    # What is no text, such as images, is not kept: its probes are made again.
    num_kept = 0 if isinstance(texts[0], np.ndarray) else min(NUM_STORED, len(texts) - texts.first_given)
    last = texts.first_given + num_kept
    places = range(texts.num_long, last)
    return {
        "num_probes": texts.num_probes,
        "searches": [{"decoding": one.decoding.as_dict(), "texts": one.stored(places)} for one in expected],
    }


class StoredSearch(ReferenceSearch):
    """What a certificate keeps of a model that searches, where the model is not there.

    Args:
        vocabularies: the vocabularies of the model.
        stored: what `ExpectedSearch.stored` gave.
        config: the model's configuration.
        beginning: the ids with which each answer begins.
    """

    has_model = False

    def __init__(self, vocabularies: Vocabularies, stored: Sequence[Config], config: Config, beginning: Sequence[int]):
        self.vocabularies, self._stored = vocabularies, stored
        self.beginning = beginning
        self.num_control_ids, self.context = config["num_control_ids"], config.get("context_length", 0)

    def hypotheses(self) -> list[list[ReferenceAnswer]]:
        return [
            [ReferenceAnswer(tuple(each["ids"]), each["text"], each["score"]) for each in one["hypotheses"]]
            for one in self._stored
        ]

    def pieces(self, place: int) -> list[int]:
        return self.vocabularies.read(valid(self._stored[place]["text"]))

    def given(self, place: int) -> list[int]:
        return self._stored[place]["ids"]

    def read(self, place: int) -> list[int]:
        return self._stored[place]["read"]

    def limit(self, place: int) -> int:
        return self._stored[place]["limit"]

    def log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        return [math.nan] * len(rows)

    def search_start(self, place: int) -> None:
        return None


class KeptCertificate:
    """The certificate of an export folder, and what it keeps of the model.

    Args:
        folder: an export folder, perhaps a stranger's; of an export whose folder `onnx` alone was copied, the folder
            that holds it.

    Raises:
        RequestError: it has no certificate, or a damaged one.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self.path = next((folder / name for name in CERTIFICATES if (folder / name).is_file()), folder / CERTIFICATE)
        if not self.path.is_file():
            raise RequestError(
                f"expected an export, or a file of one; found no certificate.json at {folder}: copy it from where the "
                "export comes from, or export again"
            )
        with self._reading():
            self.content = read_json(self.path, KEPT, MAX_BYTES)
            self.about: dict[str, str] = self.content["run"]
            self.names = [entry["name"] for entry in self.content["entries"]]
            self.beginning = parse_json(self.about.get("beginning", "[]"), IDS)
            decoding = self.about.get("decoding")  # none of a model that does not search
            self.decoding = Decoding() if decoding is None else Decoding(**parse_json(decoding, DECODING))
            task = task_named(self.about.get("task"), self.content["kind"], self.about)
            options = model_spec.KINDS[self.content["kind"]].arguments
            sizes = {name: options[name].schema for name in SIZES if name in options}
            self.config = parse_json(self.about["model"], having(**sizes))
            foreign = RunFolder(self.path.parent).foreign_tokenizer
            self.signature = signature_of(task, self.about, [load_tokenizer(foreign)] if foreign.is_file() else [])

    @property
    def languages(self) -> tuple[str | None, str | None]:
        """Those between which an export of a model between many translates; None for other models."""
        if "source_tags" not in self.about:
            return None, None
        source, _, target = self.about.get("languages", "").partition("-")
        return source or None, target or None

    def expected(self) -> dict[Decoding, Expected]:
        """Returns what the model gave for the texts that the certificate keeps, by the search.

        Raises:
            RequestError: the certificate keeps none, or is damaged; or a vocabulary is missing.
        """
        if not self.content.get("stored"):
            raise RequestError(f"{self.path} keeps nothing of the model: give the run too, or export again")
        with self._reading():
            kept = self.content["stored"]
            found = {Decoding(**one["decoding"]): self._restored(kept["num_probes"], one) for one in kept["searches"]}
            if not all(len(one.texts) for one in found.values()):
                raise ValueError("it keeps no answers")
            return found

    def _restored(self, num_probes: int, kept: Config) -> Expected:
        signature, stored, folder = self.signature, kept["texts"], RunFolder(self.path.parent)
        (SEARCHED if issubclass(signature, Searching) else RANKED).checked(stored, "stored.searches.texts")
        given = signature.stored_texts(stored, self.config)
        tokenizers: tuple[Tokenizer, ...] = ()
        if signature.text_stem or folder.foreign_tokenizer.is_file():
            sizes = self.config.get("source_vocabulary_size"), self.config["vocabulary_size"]
            tokenizers = read_tokenizers(folder, *sizes)
        texts = Texts([], given[:num_probes], given[num_probes:])
        if issubclass(signature, Searching):
            model = StoredSearch(Vocabularies(signature, *tokenizers), stored, self.config, self.beginning)
            return ExpectedSearch(signature, texts, model, Decoding(**kept["decoding"]))
        first, context = (self.config.get(name, 0) for name in ("num_control_ids", "context_length"))
        names, tokenizer = signature.names_in(folder, self.about), next(iter(tokenizers), None)
        return ExpectedArrays(signature, texts, *restored(stored, given), names, first, tokenizer, context)

    @contextmanager
    def _reading(self) -> Iterator[None]:
        """Within it what is wrong with the content raises RequestError."""
        try:
            yield
        except RequestError:
            raise
        except ValueError as error:
            raise RequestError(f"{self.path} is damaged: {str(error)[:150]}; export again") from None


def certify(
    run: TrainedRun,
    folder: str | os.PathLike[str],
    artefacts: Sequence[Artefact],
    decoding: Decoding,
    sentences: Sequence[Input],
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


def probes_of(run: TrainedRun, expected: Expected | None, decoding: Decoding) -> list[Config]:
    """Returns the probes by which ONNX graphs check themselves: texts of a translator, made-up inputs of others."""
    if "encoder" not in run.signature.halves:
        return [run.signature(run.pipeline, run.model, decoding).probe().as_json()]
    if not isinstance(expected, ExpectedSearch):
        return []
    probes = expected.probes(range(expected.texts.first_given, len(expected.texts)))
    return as_json(probes if len(probes) == NUM_PROBES else chosen_probes(run.pipeline, [], decoding))


def verify(path: str | os.PathLike[str], threads: int = 1) -> Certificate:
    """Compares the artefacts of an export folder with what its certificate keeps of the model.

    Args:
        path: the folder, or an artefact or a folder in it, which is then all that is compared.
        threads: for each runtime.

    Raises:
        RequestError: there is no artefact or no certificate, or a damaged one, or a runtime is not installed.
    """
    kept, artefacts = kept_at(path)
    expected = kept.expected()
    if not {artefact.search(kept.decoding) for artefact in artefacts} <= expected.keys():
        raise RequestError(f"{kept.path} keeps no answers of the search of each artefact: give the run too")
    certificate = compared(expected, kept.decoding, kept.folder, artefacts, threads, kept.about)
    return replace(certificate, kind=kept.content["kind"], against="stored")


def kept_at(path: str | os.PathLike[str]) -> tuple[KeptCertificate, list[Artefact]]:
    """The certificate of the export that a path names or lies in, and those of its artefacts that the path holds. An
    artefact that is not there is told: whoever has a part of an export can verify it.

    Raises:
        RequestError: there is no artefact, or no certificate.
    """
    path = Path(path)
    folders = [one for one in (path, *path.parents[:2]) if any((one / name).is_file() for name in CERTIFICATES)]
    kept = KeptCertificate(next((one for one in folders if one.name != ONNX), path))
    there = {one.name_in(kept.folder): one for one in artefacts_in(kept.folder)}
    if "encoder" in kept.signature.halves:  # whose step says nothing without it
        there = {name: one for name, one in there.items() if one.interface != "step"}
    chosen = [one for one in there.values() if any(file.is_relative_to(path) for file in one.paths)]
    if not chosen:
        raise RequestError(f"expected an artefact at {path}; {kept.folder} has {', '.join(there) or 'none'}")
    if path == kept.folder and (absent := [name for name in kept.names if name not in there]):
        say(f"not checked, because not there: {', '.join(absent)}")
    return kept, chosen


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


def validation_text(run: str | os.PathLike[str]) -> tuple[list[Input], list[str] | None]:
    """Returns what the exports of a run folder are certified on, and references if it is one of a translator.

    Raises:
        RequestError: the run has none.
    """
    folder, config = RunFolder(run), read_config(run)
    return TASKS[config.task].signature(config.sections).validation(folder, config)


def check_text(sentences: Sequence[Input], references: Sequence[str] | None, precisions: Iterable[str]) -> None:
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
    """Asks a run's model for its answers, if it searches so."""
    if not issubclass(run.signature, Searching):
        return expected_arrays(run.signature, run.pipeline, texts)
    answers = run.signature.reference_search(run.pipeline, texts, decoding)
    return ExpectedSearch(run.signature, texts, answers, decoding, references)


def certified(expected: Expected, folder: Path, artefact: Artefact, threads: int, about: dict[str, str]) -> Entry:
    """Runs one artefact and judges its answers."""
    name, rule = artefact.name_in(folder), rule_of(expected.unit, artefact.precision, expected.references is not None)
    if artefact.interface in LOOPED:
        rule += "; compared with the model's greedy search"
    if artefact.format == "ctranslate2":
        rule += "; CTranslate2's hypotheses are ranked by the model's length penalty, and scored by all probabilities"
    entry = Entry(name, artefact.format, artefact.interface, artefact.precision, False, rule)
    say(f"certifying {name}")
    try:
        entry = replace(entry, contents=contents_of(artefact))
        check_vocabularies(artefact, folder, expected)
        with tempfile.TemporaryDirectory() as place:
            task = task_of(artefact, expected, threads, cut_tokenizer(artefact, Path(place)))
            result, log = run_artefact(artefact, task)
        on_gpu = result["device"] == "GPU"
        judgement = judge(expected, artefact, result, device_name("CUDAExecutionProvider" if on_gpu else ""))
        if judgement.holds:
            check_metadata(artefact, about)
    except BrokenArtefact as broken:
        return broken_entry(entry, broken)
    return replace(
        entry,
        holds=judgement.holds,
        held_against="; ".join([rule, *device_notes(artefact, judgement.measured.device, log)]),
        reason=judgement.reason,
        judgement=judgement,
        verified=expected.signature.noun,
    )


def broken_entry(entry: Entry, broken: BrokenArtefact) -> Entry:
    """Returns the entry of an artefact that did not run. A float16 ONNX graph holds if it only lacks a GPU."""
    entry = replace(entry, reason=str(broken))
    lacks_operators = broken.had_no_gpu and "NOT_IMPLEMENTED" in entry.reason
    if entry.format == "onnx" and entry.precision == "float16" and lacks_operators:
        rule = "the graph alone, which is valid: the runtime here has no GPU, and on the CPU it lacks operators in half"
        return replace(entry, holds=True, held_against=rule, verified="graph")
    return entry
