"""Every artefact of every kind of model holds, again by what its certificate keeps; with a planted fault it is refused.

What a judgement says of answers alone is in test_judgement.py; here are faults of real files, of every format and kind.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from export.__main__ import write_artefacts
from export.artefacts import Artefact, BrokenArtefact
from export.certificate import artefacts_in, certify, comparison, runner, verify, write_certificate
from export.certificate.execution import Execution
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.translator import Translator
from keras_transformer.models import LanguageModel, Transformer
from keras_transformer.text.items import Items
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN, Tokenizer
from tests.export.planted import (
    Export,
    Plant,
    in_bytes,
    in_json,
    in_metadata,
    in_search,
    other_items,
    other_pieces,
    renamed_input,
    saves_tokenizer,
    twin,
    with_,
    without_file,
    written_by,
)
from tests.export.test_forms import HISTORIES, SIZES, classifier_of, images, recognizer_of, recommender_of
from tests.tiny_text import lines

PROGRAM = Path(__file__).resolve().parents[1] / "programs" / "run_tasks.py"
FLOAT32, FLOAT16, INT8 = (("onnx", precision) for precision in ("float32", "float16", "int8"))
SAVED_MODEL, TFLITE, CTRANSLATE2 = ((format, "float32") for format in ("saved_model", "tflite", "ctranslate2"))
# What is exported of each kind. TensorFlow's formats take seconds; those of a translator are in test_certificate.py.
PLANS = {
    "translator": [FLOAT32, FLOAT16, INT8, CTRANSLATE2],
    "overflowing": [FLOAT16],
    "language model": [FLOAT32, SAVED_MODEL],
    "pairs": [FLOAT32, TFLITE],
    "classifier": [FLOAT32, INT8, SAVED_MODEL, TFLITE],
    "masked tokens": [FLOAT32, FLOAT16, TFLITE],
    "images": [FLOAT32, SAVED_MODEL, TFLITE],
    "recommender": [FLOAT32, SAVED_MODEL, TFLITE],
}
FILES = {
    "translator": {"translate", "translate_text", "encoder", "step", "translate-float16", "translate-int8"},
    "language model": {"generate", "generate_text", "step"},
    "pairs": {"generate", "generate_text", "step"},
    "classifier": {"classify", "classify_text", "classify-int8"},
    "masked tokens": {"fill", "embed_text", "fill-float16"},
    "images": {"classify"},
    "recommender": {"recommend"},
}
ONE_LAYER: dict[str, Any] = {**SIZES, "num_layers": 1}
SEARCHES = dict.fromkeys(["translator", "overflowing"], Decoding(3, 0.8, 5))
SEARCHES |= {"language model": Decoding(2, 0.6, 5), "pairs": Decoding(2, 0.6, 4)}


def texts(seed: int, count: int) -> list[str]:
    """Sentences with characters beyond ASCII."""
    return [line.replace("green", "grün").replace("three", "größer") for line in lines(seed, count)]


TEXTS = [*texts(4, 6), "", "the quick brown " * 4]


@cache
def vocabulary(**options: Any) -> Tokenizer:
    """60 pieces."""
    return Tokenizer.train(texts(0, 300), 60, **options)


def redrawn(model: Any, seed: int) -> Any:
    """The model with other matrices."""
    draws = np.random.default_rng(seed)
    for weight in model.weights:
        if len(weight.shape) > 1:
            weight.assign(draws.normal(0, 0.5, weight.shape))
    return model


def translator(factor: float = 1.0) -> Translator:
    """A translator that ends some translations itself; a large factor makes states that half precision cannot hold."""
    model = redrawn(Transformer(60, max_source_length=12, output_bias=True, **ONE_LAYER), 39)
    bias = np.zeros(60)
    bias[[PAD, UNKNOWN, START, END]] = -30, -30, -30, 3
    model.output_embedding.bias.assign(bias)
    scaled = twin(lambda path, one: one * factor if path.endswith("kernel_out") else one)
    return Translator(scaled(model), vocabulary())


def generator(answer_length: int | None = None, **options: Any) -> Generator:
    """A language model, of pairs if its answers have a length."""
    model = redrawn(LanguageModel(60, 20, **ONE_LAYER), 5)
    return Generator(model, vocabulary(**options), answer_length)


MAKERS: dict[str, Callable[[], Any]] = {
    "translator": translator,
    "overflowing": lambda: translator(factor=1e5),
    "language model": lambda: generator(keeps_text=True),
    "pairs": lambda: generator(answer_length=4),
    "classifier": lambda: classifier_of(vocabulary(has_mask=True), num_layers=1),
    "masked tokens": lambda: classifier_of(vocabulary(has_mask=True), [], num_layers=1),
    "images": lambda: recognizer_of("attentive"),
    "recommender": recommender_of,
}


@pytest.fixture(scope="module")
def export_of(tmp_path_factory) -> Callable[[str], Export]:
    """`export_of(kind)` is a small run and what was exported of it, once."""

    @cache
    def export_of(kind: str) -> Export:
        keras.utils.set_random_seed(3)
        run, folder = TrainedRun(MAKERS[kind]()), tmp_path_factory.mktemp("exported")
        decoding = SEARCHES.get(kind) or run.decoding()
        write_artefacts(run, folder, decoding, PLANS[kind])
        return Export(run, decoding, {"images": list(images(5)), "recommender": HISTORIES}.get(kind, TEXTS), folder)

    return export_of


@pytest.fixture(autouse=True)
def seed() -> None:
    """Seeds nothing: a seed makes TensorFlow prepare every compiled function again, for each fault."""


@pytest.fixture(scope="module", autouse=True)
def runs_here() -> Iterator[None]:
    """Runs artefacts in this process, and ONNX's graphs of text in one other process; asks each model once."""
    import tensorflow as tf

    def run(artefact: Artefact, task: Any) -> Execution:
        try:
            if (artefact.format, artefact.takes) != ("onnx", "text"):
                return Execution(runner.run(task), "")
            assert server.stdin and server.stdout
            print(json.dumps(task), file=server.stdin, flush=True)
            result, error = json.loads(server.stdout.readline())
        except Exception as raised:  # as the certificate's own process reports it
            result, error = None, f"{type(raised).__name__}: {raised}"
        if error:
            raise BrokenArtefact(error)
        return Execution(result, "")

    known: dict[Any, Any] = {}
    expected_of = comparison.expected_of

    def expected_once(run: TrainedRun, decoding: Decoding, texts: Any, references: Any) -> Any:
        key = id(run), decoding
        if key not in known:
            known[key] = run, expected_of(run, decoding, texts, references)  # the run is kept, for its id
        return known[key][1]

    server = subprocess.Popen(
        [sys.executable, "-P", PROGRAM, runner.__file__], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with server, pytest.MonkeyPatch.context() as patch:
        for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
            patch.setattr(tf.config.threading, name, lambda count: None)
        patch.setattr(comparison, "run_artefact", run)
        patch.setattr(comparison, "expected_of", expected_once)
        yield
        server.communicate()  # ends what it reads


def certificate_of(export: Export, artefacts: list[Artefact]) -> Any:
    """What the certificate says of artefacts."""
    run, decoding, inputs, folder = export
    references = inputs if isinstance(run.pipeline, Translator) else None
    return certify(run, folder, artefacts, decoding, inputs, references)


FINITE = r"is not finite"
SCORE = r"its scores? differs? from the model's log P|its scores differ by"
NUMBER = r"a probability differs|its vector differs"
OTHER = rf"texts differ|worse than|whole answer|twice|are named|known to|metadata|likeliest|its score differs|{NUMBER}"
TOKENIZER = r"its tokenizer (reads|differs)|its folder"
SCALED = in_bytes("kernel_in", lambda matrix: 1.3 * matrix), OTHER
ENCODER_SCALED = in_bytes("kernel_in", lambda matrix: 1.3 * matrix, which=0), OTHER
OTHER_PIECES = written_by(with_("tokenizer", other_pieces)), TOKENIZER
OTHER_LABELS = written_by(with_("labels", lambda labels: labels[1:] + labels[:1])), OTHER
SHORTER_SOURCES = written_by(with_("model", twin(max_source_length=6)))
# By kind and file: what is planted, and a regular expression that finds the reason of the refusal.
FAULTS: dict[tuple[str, str], dict[str, tuple[Plant, str]]] = {
    ("translator", "onnx/translate.onnx"): {
        "a matrix × 1.3": SCALED,
        "another length penalty": (written_by(length_penalty=2.0), SCORE),
        "one beam": (written_by(num_beams=1, n_best=1), OTHER),
        "a shorter limit": (written_by(max_length=3), OTHER),
        "sources cut at 6": (SHORTER_SOURCES, OTHER),
        "another name of the input": (renamed_input, r"(?i)input"),
        "metadata of another search": (in_metadata("decoding", "{}"), "metadata"),
        "metadata of several sentences": (in_metadata("sentences_per_line", "4"), "sentences_per_line '4'"),
        "metadata that promise to split": (in_metadata("splits_text", "yes"), "splits_text 'yes'"),
    },
    ("translator", "onnx/translate-float16.onnx"): {
        "a matrix inf": (in_bytes("kernel_in", lambda matrix: 1e6 * matrix, "float16"), FINITE),
    },
    ("overflowing", "onnx/translate-float16.onnx"): {"states overflow": (lambda export, path: None, FINITE)},
    ("translator", "onnx/translate-int8.onnx"): {"another length penalty": (written_by(length_penalty=2.0), SCORE)},
    ("translator", "onnx/translate_text.onnx"): {
        "two pieces swapped": (written_by(with_("source_tokenizer", other_pieces)), TOKENIZER),
    },
    ("translator", "onnx/encoder.onnx"): {"a matrix × 1.3": ENCODER_SCALED},
    ("translator", "onnx/step.onnx"): {"a matrix × 1.3": SCALED},
    ("translator", "ctranslate2"): {
        "two pieces swapped": (in_json("shared_vocabulary.json", lambda them: them.insert(4, them.pop(5))), TOKENIZER),
        "a matrix × 1.3": SCALED,
        "another length penalty": (in_search(length_penalty=2), SCORE),
        "a shorter limit": (in_search(max_length=3), OTHER),
        "sources cut at 6": (in_search(max_source_length=6), OTHER),
        "one beam": (in_search(beam_size=1, num_hypotheses=1), OTHER),
        "two beams": (in_search(beam_size=2, num_hypotheses=2), "beams"),
        "no list of pieces": (without_file("shared_vocabulary.json"), "vocabulary"),
        "no tokenizer": (without_file("tokenizer.model"), TOKENIZER),
        "another tokenizer": (saves_tokenizer, TOKENIZER),
    },
    ("language model", "onnx/step.onnx"): {"a matrix × 1.3": SCALED},
    ("pairs", "onnx/generate.onnx"): {"a shorter limit": (written_by(max_length=2), OTHER)},
    ("pairs", "onnx/generate_text.onnx"): {"two pieces swapped": OTHER_PIECES},
    ("classifier", "onnx/classify-int8.onnx"): {"labels in another order": OTHER_LABELS},
    ("classifier", "onnx/classify_text.onnx"): {"labels in another order": OTHER_LABELS},
    ("classifier", "saved_model"): {"two pieces swapped": OTHER_PIECES},
    ("classifier", "tflite/classify_text.tflite"): {"two pieces swapped": OTHER_PIECES},
    ("masked tokens", "onnx/fill.onnx"): {"a matrix × 1.3": SCALED},
    ("masked tokens", "onnx/embed_text.onnx"): {"a matrix × 1.3": SCALED},
    ("images", "tflite/classify.tflite"): {"a matrix × 1.3": SCALED},
    ("recommender", "onnx/recommend.onnx"): {"items.txt in another order": (other_items, TOKENIZER)},
    ("recommender", "saved_model"): {
        "items in another order": (written_by(with_("items", lambda items: Items(items.names[::-1]))), OTHER),
    },
}
CASES = [(*place, words) for place, faults in FAULTS.items() for words in faults]


@pytest.mark.parametrize("kind", FILES)
def test_every_artefact_of_a_kind_holds_by_the_model_and_by_what_its_certificate_keeps(kind, export_of, tmp_path):
    export = export_of(kind)
    assert {*FILES[kind]} <= {path.stem for path in export.folder.glob("onnx/*")}
    certificate = certificate_of(export, artefacts_in(export.folder))
    assert {(entry.format, entry.precision) for entry in certificate.entries} == {*PLANS[kind]}
    assert [(entry.name, entry.reason) for entry in certificate.entries if not entry.holds] == []
    verified = "translations" if kind == "translator" else "answers"
    assert {entry.verified for entry in certificate.entries} == {verified}
    measured = [entry.judgement.measured for entry in certificate.entries if entry.judgement]
    assert {one.sentences for one in measured} <= {len(export.inputs), len(export.inputs) - 1}  # "" is ambiguous
    folder = Path(shutil.copytree(export.folder, tmp_path / "folder"))
    write_certificate(certificate, folder)
    for path in folder.glob("saved_model*"):
        shutil.rmtree(path)
    again = verify(folder)
    assert [(entry.name, entry.reason) for entry in again.entries if not entry.holds] == []
    assert (again.kind, again.against) == (export.run.model.kind, "stored")


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # a fault that is planted
@pytest.mark.parametrize(("kind", "file", "words"), CASES, ids=[": ".join(case) for case in CASES])
def test_the_certificate_refuses_it(kind, file, words, export_of, tmp_path):
    plant, reason = FAULTS[kind, file][words]
    export = export_of(kind)
    folder = export.folder
    whole = [artefact for artefact in artefacts_in(folder) if folder / file in artefact.paths]
    assert whole, "the certificate does not look at the file"
    for path in {path for artefact in whole for path in artefact.paths}:
        copied = tmp_path / path.relative_to(folder)
        copied.parent.mkdir(exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copied)
    plant(export, tmp_path / file)
    artefacts = [replace(one, path=tmp_path / one.path.relative_to(folder)) for one in whole]
    entries = certificate_of(export._replace(folder=tmp_path), artefacts).entries
    assert [entry.name for entry in entries if entry.holds] == [], "the certificate holds"
    assert [entry.reason for entry in entries if not re.search(reason, entry.reason)] == []
