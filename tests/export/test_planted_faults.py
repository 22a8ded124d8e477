"""Every artefact of every kind of model holds, again by what its certificate keeps; with a planted fault it is refused.

What a judgement says of answers alone is in test_judgement.py; here are faults of real files, of every format and kind.
"""

import re
import shutil
from collections.abc import Callable, Iterator
from copy import copy
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import onnx
import pytest
import tensorflow as tf

from export.artefacts import Artefact, BrokenArtefact, Decoding, TrainedRun, artefacts_in
from export.certificate import comparison, execution, runner
from export.certificate.comparison import KeptCertificate, certify, verify
from export.certificate.report import write_certificate
from export.exporting import write_artefacts
from keras_transformer.checking.certificate_texts import Texts
from keras_transformer.models import LanguageModel, Transformer, make_model, model_config
from keras_transformer.runs.export_folder import ALIGNED
from keras_transformer.tasks.classification.pipeline import Classifier
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.tasks.next_item.corpus import Items
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN, Tokenizer, parse_model
from tests.export import test_forms as forms
from tests.export.sessions import keep_threads
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
    return Translator(twin(factor, "kernel_out")(model), vocabulary())


def generator(answer_length: int | None = None, **options: Any) -> Generator:
    """A language model, of pairs if its answers have a length."""
    return Generator(forms.sharpened(LanguageModel(60, 20, **ONE_LAYER)), vocabulary(**options), answer_length)


def classifier(labels: list[str]) -> Classifier:
    """A classifier, or without labels a model that fills masks."""
    return forms.classifier_of(vocabulary(has_mask=True), labels, num_layers=1)


# Of each kind a pipeline, and what is exported of it. TensorFlow's formats take seconds; those of a translator are in
# test_certificate.py.
KINDS: dict[str, tuple[Callable[[], Any], list[tuple[str, str]]]] = {
    "translator": (translator, [FLOAT32, INT8, CTRANSLATE2]),
    "overflowing": (lambda: translator(factor=1e5), [FLOAT16]),
    "language model": (lambda: generator(keeps_text=True), [FLOAT32, SAVED_MODEL]),
    "pairs": (lambda: generator(answer_length=4), [FLOAT32, TFLITE]),
    "classifier": (lambda: classifier(forms.LABELS), [FLOAT32, INT8, SAVED_MODEL, TFLITE]),
    "masked tokens": (lambda: classifier([]), [FLOAT32, FLOAT16, TFLITE]),
    "images": (lambda: forms.recognizer_of("attentive"), [FLOAT32, TFLITE]),
    "recommender": (forms.recommender_of, [FLOAT32, SAVED_MODEL]),
}


class Export(NamedTuple):
    """A run, how its artefacts search, what they are certified on, and where they are."""

    run: TrainedRun
    decoding: Decoding
    inputs: list[Any]
    folder: Path


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


@pytest.fixture(scope="module", autouse=True)
def runs_here() -> Iterator[None]:
    """Runs artefacts in this process, but for ONNX's graphs of text, which crash here; asks each model once."""
    run_apart, expected_of = comparison.run_artefact, comparison.expected_of
    known: dict[Any, Any] = {}

    def run(artefact: Artefact, task: Any) -> tuple[Any, str]:
        if (artefact.format, artefact.interface) == ("onnx", "text"):
            return run_apart(artefact, task)
        try:
            return runner.run(task), ""
        except Exception as raised:  # as the certificate's own process reports it
            raise BrokenArtefact(f"{type(raised).__name__}: {raised}") from raised

    def expected_once(run: TrainedRun, decoding: Decoding, texts: Any, references: Any) -> Any:
        key = id(run), decoding
        if key not in known:
            known[key] = run, expected_of(run, decoding, texts, references)  # the run is kept, for its id
        return known[key][1]

    with pytest.MonkeyPatch.context() as patch:
        keep_threads(patch)
        patch.setattr(comparison, "run_artefact", run)
        patch.setattr(comparison, "expected_of", expected_once)
        yield


def certificate_of(export: Export, artefacts: list[Artefact]) -> Any:
    """What the certificate says of artefacts."""
    run, decoding, inputs, folder = export
    references = inputs if isinstance(run.pipeline, Translator) else None
    return certify(run, folder, artefacts, decoding, inputs, references)


# Plants change the artefact at the path, a copy, or tell what else it is held against.
Plant = Callable[[Export, Path], Export | None]


def in_metadata(name: str, text: str) -> Plant:
    """An ONNX graph says something else of itself."""

    def plant(_: Export, path: Path) -> None:
        model = onnx.load(path)
        (entry,) = (one for one in model.metadata_props if one.key == name)
        entry.value = text
        onnx.save(model, path)

    return plant


def of_another_search(**decoding: Any) -> Plant:
    """The artefact is held against another search than its own."""
    return lambda export, _: export._replace(decoding=replace(export.decoding, **decoding))


def of_another_run(name: str, change: Callable[[Any], Any]) -> Plant:
    """The artefact is held against a run with other labels, another vocabulary, or of a translator another model."""

    def plant(export: Export, _: Path) -> Export:
        pipeline: Any = copy(export.run.pipeline)
        if name == "model":  # which a pipeline may have compiled
            pipeline = Translator(change(pipeline.model), pipeline.source_tokenizer, pipeline.target_tokenizer)
        else:
            setattr(pipeline, name, change(getattr(pipeline, name)))
        return export._replace(run=replace(export.run, pipeline=pipeline))

    return plant


def twin(factor: float = 1.0, suffix: str = "kernel_in", **config: Any) -> Callable[[Any], Any]:
    """Makes a model whose last matrix of this name is scaled, or one with another configuration."""

    def make(model: Any) -> Any:
        other = make_model({**model_config(model), **config})
        other.set_weights(model.get_weights())
        matrix = [one for one in other.weights if one.path.endswith(suffix)][-1]
        matrix.assign(factor * matrix)
        return other

    return make


def other_pieces(tokenizer: Tokenizer) -> Tokenizer:
    """A vocabulary in which some words have each other's places."""
    spec = parse_model(tokenizer.model)
    for one, other in zip(spec.pieces[8:16:2], spec.pieces[9:16:2], strict=True):
        one.piece, other.piece = other.piece, one.piece
    return Tokenizer(spec.SerializeToString())


def saves_tokenizer(export: Export, path: Path) -> None:
    """CTranslate2's folder has another vocabulary."""
    other_pieces(export.run.tokenizers[0]).save(path / "tokenizer.model")


def other_items(export: Export, path: Path) -> None:
    """There are other items beside what takes their ids."""
    Items(export.run.pipeline.names[::-1]).save(path.parent.parent / "items.txt")


SCORE = r"its scores? differs? from the model's log P|its scores differ by"
NUMBER = r"a probability differs|its vector differs"
OTHER = rf"texts differ|worse than|whole answer|twice|are named|known to|metadata|likeliest|its score differs|{NUMBER}"
TOKENIZER = r"its tokenizer (reads|differs)|its folder"
SCALED = {"a matrix × 1.3": (of_another_run("model", twin(1.3)), OTHER)}
PENALTY = {"another length penalty": (of_another_search(length_penalty=2.0), SCORE)}
OTHER_PIECES = {"two pieces swapped": (of_another_run("tokenizer", other_pieces), TOKENIZER)}
OTHER_LABELS = {"labels in another order": (of_another_run("labels", lambda them: them[1:] + them[:1]), OTHER)}
OTHER_ITEMS = of_another_run("items", lambda items: Items(items.names[::-1]))
# By kind and file: what is planted, and a regular expression that finds the reason of the refusal.
FAULTS: dict[tuple[str, str], dict[str, tuple[Plant, str]]] = {
    ("translator", "onnx/translate.onnx"): {
        **SCALED,
        **PENALTY,
        "more beams": (of_another_search(num_beams=1, n_best=1), OTHER),
        "sources not cut at 6": (of_another_run("model", twin(max_source_length=6)), OTHER),
        "metadata of another search": (in_metadata("decoding", "{}"), "metadata"),
        "metadata that promise to split": (in_metadata("splits_text", "yes"), "splits_text 'yes'"),
    },
    ("overflowing", "onnx/translate-float16.onnx"): {"states overflow": (lambda *_: None, "is not finite")},
    ("translator", "onnx/translate-int8.onnx"): PENALTY,
    ("translator", "onnx/translate_text.onnx"): {
        "two pieces swapped": (of_another_run("source_tokenizer", other_pieces), TOKENIZER)
    },
    ("translator", "onnx/encoder.onnx"): SCALED,
    ("translator", "ctranslate2"): {
        **SCALED,
        **PENALTY,
        "a shorter limit": (of_another_search(max_length=3), OTHER),
        "more beams": (of_another_search(num_beams=1, n_best=1), OTHER),
        "another tokenizer": (saves_tokenizer, TOKENIZER),
    },
    ("pairs", "onnx/generate.onnx"): {"another limit": (of_another_search(max_length=2), OTHER)},
    ("pairs", "onnx/generate_text.onnx"): OTHER_PIECES,
    ("classifier", "onnx/classify-int8.onnx"): OTHER_LABELS,
    ("classifier", "onnx/classify_text.onnx"): OTHER_LABELS,
    ("classifier", "saved_model"): OTHER_PIECES,
    ("classifier", "tflite/classify_text.tflite"): OTHER_PIECES,
    ("masked tokens", "onnx/embed_text.onnx"): OTHER_PIECES,
    ("images", "onnx/classify.onnx"): OTHER_LABELS,
    ("recommender", "onnx/recommend.onnx"): {"items.txt in another order": (other_items, TOKENIZER)},
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
        assert callable(tf.saved_model.load(str(path)))
        shutil.rmtree(path)
    again = verify(folder)
    assert [(entry.name, entry.reason) for entry in again.entries if not entry.holds] == []
    assert (again.kind, again.against) == (export.run.model.kind, "stored")
    model = comparison.expected_of(export.run, export.decoding, Texts([], [], []), None)
    asked = [model, *KeptCertificate(folder).expected().values()]
    names, *kept = ({one.texts.name(place): one.source(place) for place in range(len(one.texts))} for one in asked)
    assert all(some.items() <= names.items() for some in kept), "both certificates call a text alike"


# Of what a file takes, batch and length: none, one and many; of no ids, of some, and of more than the model reads.
SHAPES = [(0, 0), (0, 7), (1, 0), (1, 1), (3, 2), (3, 7), (2, 50)]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "overflowing"])
def test_ids_and_images_of_any_shape_are_answered_and_pad_in_front_changes_nothing(kind, export_of):
    """But for callers' loops; the certificate itself gives an empty batch to every artefact."""
    export = export_of(kind)
    certificate_of(export, artefacts_in(export.folder)[:1])
    expected = comparison.expected_of(export.run, export.decoding, Texts([], [], []), None)
    signature, run = expected.signature, export.run
    item = signature(run.pipeline, run.model, export.decoding).item_shape()
    made = [one for one in artefacts_in(export.folder) if one.interface == "ids" or not signature.text_stem]
    assert made
    for artefact in made:
        load = runner.runtimes()[f"prepare_{artefact.format}"](execution.task_of(artefact, expected, 1))
        ask = next(iter(runner.Loaded(*load()).signatures.values()))
        outputs = signature.outputs(ALIGNED if artefact.is_aligned else "", artefact.interface == "text")
        for count, width in SHAPES:
            shape = (count, *(item or [width]))
            batch: Any = np.full(shape, 9, signature.input_type)
            answers = runner.answer(ask, [batch], np.asarray)
            execution.check_answers(expected, outputs, answers, f"{artefact.path.name} {shape}")
        if not item:
            behind = np.pad(runner.batch_of_ids(expected.inputs(artefact)[-5:]), [(0, 0), (0, 3)])
            in_front = np.array([np.roll(row, np.argmax(row[::-1] != PAD)) for row in behind])
            assert (in_front[:, 0] == PAD).all() and (in_front[:, -1] != PAD).any()
            found, others = ask(behind), ask(in_front)
            for name in [name for name, output in outputs.items() if output.type != "text"]:
                np.testing.assert_allclose(found[name], others[name], atol=1e-5)


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
    planted = (plant(export, tmp_path / file) or export)._replace(folder=tmp_path)
    artefacts = [replace(one, path=tmp_path / one.path.relative_to(folder)) for one in whole]
    entries = certificate_of(planted, artefacts).entries
    assert [entry.name for entry in entries if entry.holds] == [], "the certificate holds"
    assert [entry.reason for entry in entries if not re.search(reason, entry.reason)] == []
