"""Every artefact of every kind of model holds, again by what its certificate keeps; with a planted fault it is refused.

What a judgement says of answers alone is in test_judgement.py; here are faults of real files, of every format and kind.
"""

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
from keras_transformer.decoding.classifier import Classifier
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.translator import Translator
from keras_transformer.models import LanguageModel, Transformer
from keras_transformer.text.items import Items
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN, Tokenizer
from tests.export import planted as plants
from tests.export import test_forms as forms
from tests.export.conftest import ROOT
from tests.export.planted import Export, Plant
from tests.tiny_text import lines

FLOAT32, FLOAT16, INT8 = (("onnx", precision) for precision in ("float32", "float16", "int8"))
SAVED_MODEL, TFLITE, CTRANSLATE2 = ((format, "float32") for format in ("saved_model", "tflite", "ctranslate2"))
ONE_LAYER: dict[str, Any] = {**forms.SIZES, "num_layers": 1}
SEARCHES = {"translator": Decoding(3, 0.8, 5), "language model": Decoding(2, 0.6, 5), "pairs": Decoding(2, 0.6, 4)}


def texts(seed: int, count: int) -> list[str]:
    """Sentences with characters beyond ASCII."""
    return [line.replace("green", "grün").replace("three", "größer") for line in lines(seed, count)]


TEXTS = [*texts(4, 6), "", "the quick brown " * 4]


@cache
def vocabulary(**options: Any) -> Tokenizer:
    """60 pieces."""
    return Tokenizer.train(texts(0, 300), 60, **options)


def translator(factor: float = 1.0) -> Translator:
    """A translator that ends some translations itself; a large factor makes states that half precision cannot hold."""
    model = forms.sharpened(Transformer(60, max_source_length=12, output_bias=True, **ONE_LAYER), 39)
    bias = np.zeros(60)
    bias[[PAD, UNKNOWN, START, END]] = -30, -30, -30, 3
    model.output_embedding.bias.assign(bias)
    return Translator(plants.twin(factor, "kernel_out")(model), vocabulary())


def generator(answer_length: int | None = None, **options: Any) -> Generator:
    """A language model, of pairs if its answers have a length."""
    return Generator(forms.sharpened(LanguageModel(60, 20, **ONE_LAYER)), vocabulary(**options), answer_length)


def classifier(labels: list[str]) -> Classifier:
    """A classifier, or without labels a model that fills masks."""
    return forms.classifier_of(vocabulary(has_mask=True), labels, num_layers=1)


# Of each kind a pipeline, and what is exported of it. TensorFlow's formats take seconds; those of a translator are in
# test_certificate.py.
KINDS: dict[str, tuple[Callable[[], Any], list[tuple[str, str]]]] = {
    "translator": (translator, [FLOAT32, FLOAT16, INT8, CTRANSLATE2]),
    "overflowing": (lambda: translator(factor=1e5), [FLOAT16]),
    "language model": (lambda: generator(keeps_text=True), [FLOAT32, SAVED_MODEL]),
    "pairs": (lambda: generator(answer_length=4), [FLOAT32, TFLITE]),
    "classifier": (lambda: classifier(forms.LABELS), [FLOAT32, INT8, SAVED_MODEL, TFLITE]),
    "masked tokens": (lambda: classifier([]), [FLOAT32, FLOAT16, TFLITE]),
    "images": (lambda: forms.recognizer_of("attentive"), [FLOAT32, TFLITE]),
    "recommender": (forms.recommender_of, [FLOAT32, SAVED_MODEL]),
}


@pytest.fixture(scope="module")
def export_of(tmp_path_factory) -> Callable[[str], Export]:
    """`export_of(kind)` is a small run and what was exported of it, once."""

    @cache
    def export_of(kind: str) -> Export:
        keras.utils.set_random_seed(3)
        make, plan = KINDS[kind]
        run, folder = TrainedRun(make()), tmp_path_factory.mktemp("exported")
        decoding = SEARCHES.get("translator" if kind == "overflowing" else kind) or run.decoding()
        write_artefacts(run, folder, decoding, plan)
        inputs = {"images": list(forms.images(5)), "recommender": forms.HISTORIES}.get(kind, TEXTS)
        return Export(run, decoding, inputs, folder)

    return export_of


@pytest.fixture(autouse=True)
def seed() -> None:
    """Seeds nothing: a seed makes TensorFlow prepare every compiled function again, for each fault."""


@pytest.fixture(scope="module", autouse=True)
def runs_here() -> Iterator[None]:
    """Runs artefacts in this process, and ONNX's graphs of text in one other process; asks each model once."""

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

    command = [sys.executable, "-P", str(ROOT / "tests/programs/run_tasks.py"), runner.__file__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with server, pytest.MonkeyPatch.context() as patch:
        plants.keep_threads(patch)
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
SCALED = {"a matrix × 1.3": (plants.of_another_run("model", plants.twin(1.3)), OTHER)}
PENALTY = {"another length penalty": (plants.of_another_search(length_penalty=2.0), SCORE)}
OTHER_PIECES = {"two pieces swapped": (plants.of_another_run("tokenizer", plants.other_pieces), TOKENIZER)}
OTHER_LABELS = {"labels in another order": (plants.of_another_run("labels", lambda them: them[1:] + them[:1]), OTHER)}
OTHER_ITEMS = plants.of_another_run("items", lambda items: Items(items.names[::-1]))
# By kind and file: what is planted, and a regular expression that finds the reason of the refusal.
FAULTS: dict[tuple[str, str], dict[str, tuple[Plant, str]]] = {
    ("translator", "onnx/translate.onnx"): {
        **SCALED,
        **PENALTY,
        "more beams": (plants.of_another_search(num_beams=1, n_best=1), OTHER),
        "another limit": (plants.of_another_search(max_length=3), OTHER),
        "sources not cut at 6": (plants.of_another_run("model", plants.twin(max_source_length=6)), OTHER),
        "another name of the input": (plants.renamed_input, r"(?i)input"),
        "metadata of another search": (plants.in_metadata("decoding", "{}"), "metadata"),
        "metadata of several sentences": (plants.in_metadata("sentences_per_line", "4"), "sentences_per_line '4'"),
        "metadata that promise to split": (plants.in_metadata("splits_text", "yes"), "splits_text 'yes'"),
    },
    ("overflowing", "onnx/translate-float16.onnx"): {"states overflow": (lambda export, _: export, FINITE)},
    ("translator", "onnx/translate-int8.onnx"): PENALTY,
    ("translator", "onnx/translate_text.onnx"): {
        "two pieces swapped": (plants.of_another_run("source_tokenizer", plants.other_pieces), TOKENIZER)
    },
    ("translator", "onnx/encoder.onnx"): SCALED,
    ("translator", "ctranslate2"): {
        "two pieces swapped": (
            plants.in_json("shared_vocabulary.json", lambda them: them.insert(4, them.pop(5))),
            TOKENIZER,
        ),
        **SCALED,
        "another length penalty": (plants.in_search(length_penalty=2), SCORE),
        "a shorter limit": (plants.in_search(max_length=3), OTHER),
        "sources cut at 6": (plants.in_search(max_source_length=6), OTHER),
        "one beam": (plants.in_search(beam_size=1, num_hypotheses=1), OTHER),
        "two beams": (plants.in_search(beam_size=2, num_hypotheses=2), "beams"),
        "no list of pieces": (
            plants.of_files(lambda _, path: (path / "shared_vocabulary.json").unlink()),
            "vocabulary",
        ),
        "no tokenizer": (plants.of_files(lambda _, path: (path / "tokenizer.model").unlink()), TOKENIZER),
        "another tokenizer": (plants.saves_tokenizer, TOKENIZER),
    },
    ("pairs", "onnx/generate.onnx"): {"another limit": (plants.of_another_search(max_length=2), OTHER)},
    ("pairs", "onnx/generate_text.onnx"): OTHER_PIECES,
    ("classifier", "onnx/classify-int8.onnx"): OTHER_LABELS,
    ("classifier", "onnx/classify_text.onnx"): OTHER_LABELS,
    ("classifier", "saved_model"): OTHER_PIECES,
    ("classifier", "tflite/classify_text.tflite"): OTHER_PIECES,
    ("masked tokens", "onnx/embed_text.onnx"): OTHER_PIECES,
    ("images", "onnx/classify.onnx"): OTHER_LABELS,
    ("recommender", "onnx/recommend.onnx"): {"items.txt in another order": (plants.other_items, TOKENIZER)},
    ("recommender", "saved_model"): {"items in another order": (OTHER_ITEMS, OTHER)},
}
CASES = [(*place, words) for place, faults in FAULTS.items() for words in faults]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "overflowing"])
def test_every_artefact_of_a_kind_holds_by_the_model_and_by_what_its_certificate_keeps(kind, export_of, tmp_path):
    export = export_of(kind)
    certificate = certificate_of(export, artefacts_in(export.folder))
    assert {(entry.format, entry.precision) for entry in certificate.entries} == {*KINDS[kind][1]}
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
    planted = plant(export, tmp_path / file)._replace(folder=tmp_path)
    artefacts = [replace(one, path=tmp_path / one.path.relative_to(folder)) for one in whole]
    entries = certificate_of(planted, artefacts).entries
    assert [entry.name for entry in entries if entry.holds] == [], "the certificate holds"
    assert [entry.reason for entry in entries if not re.search(reason, entry.reason)] == []
