"""The certificate refuses artefacts with planted faults, of every format and kind of model, each for its reason."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from math import inf, nan
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

from export.__main__ import write_artefacts
from export.artefacts import Artefact, BrokenArtefact
from export.certificate import Entry, artefacts_in, certify, comparison, runner
from export.certificate.execution import Execution
from export.forms import Continuation, Recommending, Translation
from export.signatures import Decoding, TrainedRun
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.translator import Translator
from keras_transformer.models import LanguageModel, Transformer
from keras_transformer.text.items import Items
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN, Tokenizer
from tests.export import planted
from tests.export.planted import Export, Plant, alters, by, in_bytes, in_json, traced, with_, written_by
from tests.export.test_forms import HISTORIES, SIZES, classifier_of, images, recognizer_of, recommender_of
from tests.tiny_text import lines

FLOAT32, FLOAT16, INT8 = (("onnx", precision) for precision in ("float32", "float16", "int8"))
SAVED_MODEL, TFLITE, CTRANSLATE2 = ((format, "float32") for format in ("saved_model", "tflite", "ctranslate2"))
# What is exported of each kind. TensorFlow's formats take seconds.
PLANS = {
    "translator": [FLOAT32, FLOAT16, INT8, SAVED_MODEL, TFLITE, CTRANSLATE2],
    "overflowing": [FLOAT16],
    "language model": [FLOAT32, INT8, SAVED_MODEL, TFLITE],
    "pairs": [FLOAT32, SAVED_MODEL],
    "classifier": [FLOAT32, INT8, SAVED_MODEL, TFLITE],
    "masked tokens": [FLOAT32, FLOAT16, SAVED_MODEL],
    "images": [FLOAT32, SAVED_MODEL, TFLITE],
    "recommender": [FLOAT32, SAVED_MODEL, TFLITE],
}
ONE_LAYER: dict[str, Any] = {**SIZES, "num_layers": 1}
SEARCHES = dict.fromkeys(["translator", "overflowing"], Decoding(3, 0.8, 5))
SEARCHES |= {"language model": Decoding(2, 0.6, 5), "pairs": Decoding(2, 0.6, 4)}
# Runs tasks in a process without TensorFlow, in which onnxruntime-extensions may crash.
SERVER = """
import json, runpy, sys
run = runpy.run_path(sys.argv[1])["run"]
for line in sys.stdin:
    try:
        print(json.dumps([run(json.loads(line)), ""]), flush=True)
    except Exception as error:
        print(json.dumps([None, f"{type(error).__name__}: {error}"]), flush=True)
"""


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
    model = planted.redrawn(39)(Transformer(60, max_source_length=12, output_bias=True, **ONE_LAYER))
    bias = np.zeros(60)
    bias[[PAD, UNKNOWN, START, END]] = -30, -30, -30, 3
    model.output_embedding.bias.assign(bias)
    return Translator(planted.scaled("kernel_out", factor)(model), vocabulary())


def generator(answer_length: int | None = None, **options: Any) -> Generator:
    """A language model, of pairs if its answers have a length."""
    model = planted.redrawn(5)(LanguageModel(60, 20, **ONE_LAYER))
    return Generator(model, vocabulary(**options), answer_length)


MAKERS: dict[str, Callable[[], Any]] = {
    "translator": translator,
    "overflowing": lambda: translator(factor=1e5),
    "language model": lambda: generator(keeps_text=True),
    "pairs": lambda: generator(answer_length=4),
    "classifier": lambda: classifier_of(vocabulary(has_mask=True), num_layers=1),
    "masked tokens": lambda: classifier_of(vocabulary(has_mask=True), [], num_layers=1),
    "images": lambda: recognizer_of("patches"),
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
    """Runs artefacts in this process, and ONNX's graphs of text in one other process."""
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

    command = [sys.executable, "-P", "-c", SERVER, runner.__file__]
    server = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with server, pytest.MonkeyPatch.context() as patch:
        for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
            patch.setattr(tf.config.threading, name, lambda count: None)
        patch.setattr(comparison, "run_artefact", run)
        yield
        server.communicate()  # ends what it reads


def entries_of(export: Export, artefacts: list[Artefact]) -> tuple[Entry, ...]:
    """What the certificate says of artefacts."""
    run, decoding, inputs, folder = export
    references = inputs if isinstance(run.pipeline, Translator) else None
    return certify(run, folder, artefacts, decoding, inputs, references).entries


def hypotheses(*places: int) -> Callable[[Any, dict], dict]:
    """These hypotheses in this order."""
    return lambda _, outputs: {name: ops.take(rows, places, axis=1) for name, rows in outputs.items()}


def output(name: str, change: Callable[[Any, Any], Any]) -> Callable[[Any, dict], dict]:
    """One output is changed, by the input and the output."""
    return lambda given, outputs: {**outputs, name: change(given, outputs[name])}


def nan_if_padded(ids: Any, vector: Any) -> Any:
    """NaN where the last column was padding before a column was added."""
    return ops.where(ops.max(ids[:, -2:]) == PAD, nan, vector)


FINITE = r"is not finite"
SCORE = r"its scores? differs? from the model's log P|its scores differ by"
NUMBER = r"a probability differs|its vector differs"
OTHER = rf"texts differ|worse than|whole answer|twice|are named|known to|metadata|likeliest|its score differs|{NUMBER}"
TYPE = r"expected .* (to be|of shape)|expected the (outputs|signatures)|expected a row for each"
TOKENIZER = r"its tokenizer (reads|differs)|its folder"
SCALED = in_bytes("kernel_in", lambda matrix: 1.3 * matrix), OTHER
OTHER_PIECES = written_by(with_("tokenizer", planted.other_pieces)), TOKENIZER
OTHER_LABELS = written_by(with_("labels", lambda labels: labels[1:] + labels[:1])), OTHER
SHORTER_SOURCES = written_by(with_("model", planted.twin(max_source_length=6)))
# By kind and file: what is planted, and a regular expression that finds the reason of the refusal.
FAULTS: dict[tuple[str, str], dict[str, tuple[Plant, str]]] = {
    ("translator", "onnx/translate.onnx"): {
        "every score NaN": (alters("score", by("Add", nan)), FINITE),
        "scores NaN where padded": (alters("score", by("Add", nan), planted.padded), FINITE),
        "scores 7 where padded": (alters("score", planted.always(7.0), planted.padded), SCORE),
        "scores + 0.01 alone": (alters("score", by("Add", 0.01), planted.alone), SCORE),
        "scores inf in batches": (alters("score", by("Add", inf), planted.batched), FINITE),
        "scores -inf beside longer rows": (alters("score", by("Add", -inf), planted.shorter), FINITE),
        "pieces off by one": (alters("target_ids", planted.becomes(5, 59, by("Sub", np.int32(1)))), OTHER),
        "a piece behind the end": (alters("target_ids", planted.inserted(7, 99)), OTHER),
        "pad in the middle": (alters("target_ids", planted.inserted(PAD, 1)), OTHER),
        "no end": (alters("target_ids", planted.becomes(END, END, planted.always(np.int32(PAD)))), OTHER),
        "empty translations": (alters("target_ids", planted.inserted(END, 0)), OTHER),
        "another row's translation": (alters("target_ids", planted.reversed_rows), OTHER),
        "a control id": (alters("target_ids", planted.inserted(START, 0)), OTHER),
        "scores of float64": (planted.of_type("score", "float64"), TYPE),
        "ids of int64": (planted.of_type("target_ids", "int64"), TYPE),
        "scores (B, 1)": (planted.with_axis("score"), TYPE),
        "no scores": (planted.without("score"), TYPE),
        "a matrix × 1.3": SCALED,
        "rows of a matrix reversed": (in_bytes("kernel_in", lambda matrix: matrix[::-1]), OTHER),
        "another model's weights": (written_by(with_("model", planted.redrawn(8))), OTHER),
        "another length penalty": (written_by(length_penalty=2.0), SCORE),
        "one beam": (written_by(num_beams=1, n_best=1), OTHER),
        "a shorter limit": (written_by(max_length=3), OTHER),
        "sources cut at 6": (SHORTER_SOURCES, OTHER),
        "another name of the input": (planted.renamed_input, r"(?i)input"),
        "metadata of another search": (planted.in_metadata("decoding", "{}"), "metadata"),
        "metadata of several sentences": (planted.in_metadata("sentences_per_line", "4"), "sentences_per_line '4'"),
        "metadata that promise to split": (planted.in_metadata("splits_text", "yes"), "splits_text 'yes'"),
    },
    ("translator", "onnx/translate-float16.onnx"): {
        "scores NaN where padded": (alters("score", by("Add", nan), planted.padded), FINITE),
        "scores + 1": (alters("score", by("Add", 1.0)), SCORE),
        "a matrix inf": (in_bytes("kernel_in", lambda matrix: 1e6 * matrix, "float16"), FINITE),
    },
    ("overflowing", "onnx/translate-float16.onnx"): {"states overflow": (lambda export, path: None, FINITE)},
    ("translator", "onnx/translate-int8.onnx"): {
        "every score NaN": (alters("score", by("Add", nan)), FINITE),
        "every score 7": (alters("score", planted.always(7.0)), SCORE),
        "empty translations": (alters("target_ids", planted.inserted(END, 0)), OTHER),
    },
    ("translator", "onnx/translate_text.onnx"): {
        "two pieces swapped": (written_by(with_("source_tokenizer", planted.other_pieces)), TOKENIZER),
        "spaces lost": (alters("translation", planted.substituted(" ([a-l])", r"\1")), OTHER),
        "characters lost": (alters("translation", planted.substituted(r"[^\x00-\x7f]", "")), OTHER),
        "control characters misread": (planted.misread(r"[\x01\x7f]"), TOKENIZER),
        "scores NaN in batches": (alters("score", by("Add", nan), planted.batched), FINITE),
    },
    ("translator", "onnx/encoder.onnx"): {"limits of 3": (alters("limit", by("Min", np.int32(3))), OTHER)},
    ("translator", "onnx/step.onnx"): {"logits × 1.3": (alters("logits", by("Mul", 1.3)), SCORE)},
    ("translator", "saved_model"): {
        "serving_default wrong": (traced(Translation, "of_pieces", output("score", lambda _, one: one + 0.01)), SCORE),
    },
    ("translator", "tflite/translate.tflite"): {"a matrix × 1.3": SCALED},
    ("translator", "ctranslate2"): {
        "two pieces swapped": (in_json("shared_vocabulary.json", lambda them: them.insert(4, them.pop(5))), TOKENIZER),
        "rare pieces swapped": (in_json("shared_vocabulary.json", lambda them: them.insert(8, them.pop(9))), TOKENIZER),
        "a matrix × 1.3": SCALED,
        "another length penalty": (planted.in_search(length_penalty=2), SCORE),
        "a shorter limit": (planted.in_search(max_length=3), OTHER),
        "sources cut at 6": (planted.in_search(max_source_length=6), OTHER),
        "one beam": (planted.in_search(beam_size=1, num_hypotheses=1), OTHER),
        "two beams": (planted.in_search(beam_size=2, num_hypotheses=2), "beams"),
        "no list of pieces": (planted.without_file("shared_vocabulary.json"), "vocabulary"),
        "no tokenizer": (planted.without_file("tokenizer.model"), TOKENIZER),
        "another tokenizer": (planted.saves_tokenizer, TOKENIZER),
    },
    ("language model", "onnx/generate.onnx"): {
        "scores NaN where padded": (alters("score", by("Add", nan), planted.padded), FINITE),
        "another row's text": (alters("added_ids", planted.reversed_rows), OTHER),
    },
    ("language model", "onnx/generate-int8.onnx"): {"every score 7": (alters("score", planted.always(7.0)), SCORE)},
    ("language model", "onnx/generate_text.onnx"): {
        "the first space lost": (alters("continuation", planted.substituted("^ ", "")), OTHER),
    },
    ("language model", "onnx/step.onnx"): {
        "every logit NaN": (alters("logits", by("Add", nan)), FINITE),
        "logits × 1.3": (alters("logits", by("Mul", 1.3)), SCORE),
    },
    ("language model", "saved_model"): {
        "hypotheses in another order": (traced(Continuation, "n_best", hypotheses(1, 0)), OTHER),
        "the same hypothesis twice": (traced(Continuation, "n_best", hypotheses(0, 0)), OTHER),
        "scores of n_best -inf": (traced(Continuation, "n_best", output("scores", lambda _, some: some - inf)), FINITE),
    },
    ("language model", "tflite/generate.tflite"): {"a matrix × 1.3": SCALED},
    ("pairs", "onnx/generate.onnx"): {
        "a shorter limit": (written_by(max_length=2), OTHER),
        "scores -inf alone": (alters("score", by("Add", -inf), planted.alone), FINITE),
    },
    ("pairs", "onnx/generate_text.onnx"): {"two pieces swapped": OTHER_PIECES},
    ("classifier", "onnx/classify.onnx"): {
        "outputs swapped": (planted.swapped("probabilities", "vector"), TYPE),
        "probabilities in another order": (alters("probabilities", planted.rolled), NUMBER),
        "probabilities + 0.01": (alters("probabilities", by("Add", 0.01)), NUMBER),
        "vectors NaN where padded": (alters("vector", by("Add", nan), planted.padded), FINITE),
        "vectors × 1.5 beside longer rows": (alters("vector", by("Mul", 1.5), planted.shorter), NUMBER),
        "vectors of float64": (planted.of_type("vector", "float64"), TYPE),
        "no vectors": (planted.without("vector"), TYPE),
    },
    ("classifier", "onnx/classify-int8.onnx"): {
        "vectors NaN where padded": (alters("vector", by("Add", nan), planted.padded), FINITE),
        "vectors × 1.5": (alters("vector", by("Mul", 1.5)), NUMBER),
        "probabilities + 0.5": (alters("probabilities", by("Add", 0.5)), NUMBER),
        "labels in another order": OTHER_LABELS,
    },
    ("classifier", "onnx/classify_text.onnx"): {"labels in another order": OTHER_LABELS},
    ("classifier", "saved_model"): {
        "labels in another order": OTHER_LABELS,
        "two pieces swapped": OTHER_PIECES,
        "a matrix × 1.3": (written_by(with_("model", planted.scaled("kernel_in", 1.3))), OTHER),
    },
    ("classifier", "tflite/classify_text.tflite"): {"two pieces swapped": OTHER_PIECES},
    ("masked tokens", "onnx/fill.onnx"): {
        "pieces off by one": (alters("piece_ids", by("Sub", np.int32(1))), OTHER),
        "probabilities + 0.01": (alters("probabilities", by("Add", 0.01)), NUMBER),
        "pieces of int64": (planted.of_type("piece_ids", "int64"), TYPE),
    },
    ("masked tokens", "onnx/fill-float16.onnx"): {
        "every vector inf": (alters("vector", by("Add", inf)), FINITE),
        "pieces at fewer places": (alters("piece_ids", lambda g, ids: planted.columns(g, ids, 0, -1)), "places"),
    },
    ("masked tokens", "onnx/embed_text.onnx"): {
        "vectors × 1.5 in batches": (alters("vector", by("Mul", 1.5), planted.batched), NUMBER),
        "vectors NaN alone": (alters("vector", by("Add", nan), planted.alone), FINITE),
    },
    ("images", "onnx/classify.onnx"): {
        "probabilities NaN alone": (alters("probabilities", by("Add", nan), planted.alone), FINITE),
        "another row's vector": (alters("vector", planted.reversed_rows), NUMBER),
    },
    ("images", "tflite/classify.tflite"): {"a matrix × 1.3": SCALED},
    ("recommender", "onnx/recommend.onnx"): {
        "items in another order": (alters("item_ids", planted.rolled), OTHER),
        "items of int64": (planted.of_type("item_ids", "int64"), TYPE),
        "items.txt in another order": (planted.other_items, TOKENIZER),
        "vectors inf where padded": (alters("vector", by("Add", inf), planted.padded), FINITE),
    },
    ("recommender", "saved_model"): {
        "items in another order": (written_by(with_("items", lambda items: Items(items.names[::-1]))), OTHER),
    },
    ("recommender", "tflite/recommend.tflite"): {
        "vectors NaN where padded": (traced(Recommending, "of_ids", output("vector", nan_if_padded)), FINITE),
    },
}
CASES = [(*place, words) for place, faults in FAULTS.items() for words in faults]


@pytest.mark.parametrize("kind", [kind for kind in PLANS if kind != "overflowing"])
def test_what_no_fault_was_planted_in_holds(kind, export_of):
    export = export_of(kind)
    entries = entries_of(export, artefacts_in(export.folder))
    assert {(entry.format, entry.precision) for entry in entries} == {*PLANS[kind]}
    assert [(entry.name, entry.reason) for entry in entries if not entry.holds] == []


@pytest.mark.filterwarnings("ignore:overflow encountered in cast")  # a fault that is planted
@pytest.mark.parametrize(("kind", "file", "words"), CASES, ids=[": ".join(case) for case in CASES])
def test_the_certificate_refuses_it(kind, file, words, export_of, tmp_path):
    plant, reason = FAULTS[kind, file][words]
    verdicts = verdicts_on(export_of(kind), file, plant, tmp_path)
    assert [entry.name for entry in verdicts if entry.holds] == [], "the certificate holds"
    assert [entry.reason for entry in verdicts if not re.search(reason, entry.reason)] == []


def verdicts_on(export: Export, file: str, plant: Plant, aside: Path) -> tuple[Entry, ...]:
    """What the certificate says of copies of the artefacts that this file belongs to, after the fault was planted."""
    folder = export.folder
    whole = [artefact for artefact in artefacts_in(folder) if folder / file in artefact.paths]
    assert whole, "the certificate does not look at the file"
    for path in {path for artefact in whole for path in artefact.paths}:
        copied = aside / path.relative_to(folder)
        copied.parent.mkdir(exist_ok=True)
        (shutil.copytree if path.is_dir() else shutil.copyfile)(path, copied)
    plant(export, aside / file)
    artefacts = [replace(one, path=aside / one.path.relative_to(folder)) for one in whole]
    return entries_of(export._replace(folder=aside), artefacts)


def test_faults_are_planted_in_all_formats_and_kinds():
    assert len(CASES) >= 40
    assert {kind for kind, _ in FAULTS} == {*PLANS}
    assert {file.partition("/")[0] for _, file in FAULTS} == {"onnx", "saved_model", "tflite", "ctranslate2"}
