"""Graphs tell where they looked: in every search, as the Keras model does; and who does not ask pays nothing."""

import shutil
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import keras_transformer
from export.artefacts import Decoding, TrainedRun
from export.certificate.expected import Compared
from export.certificate.judgement import Trial, number_fault
from export.certificate.searches import ExpectedSearch
from export.onnx import export_onnx
from keras_transformer import ops
from keras_transformer.checking.certificate_texts import Texts
from keras_transformer.core.errors import RequestError
from keras_transformer.decoding.computations import Aligned
from keras_transformer.models.transformer import Ensemble, Transformer
from keras_transformer.runs.export_folder import ALIGNED, BOUNDS
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.tasks.translation.signature import Translated, Translation
from keras_transformer.text.tokenizer import END, PAD, START

SENTENCES = ["two dogs run to the sea", "seven hundred and two", "", "the sea", "one two three"]
SIZES: dict[str, Any] = {"num_layers": 3, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16, "dropout": 0.0}
SEARCHES = {
    "the baked search": {},
    "greedy": {"num_beams": 1},
    "a list": {"n_best": 3},
    "samples": {"sampling": True, "n_best": 2},
    "a limit": {"max_length": 3},
}


@pytest.fixture(scope="module")
def export(translator, tmp_path_factory) -> Path:
    folder, run = tmp_path_factory.mktemp("exports") / "aligned", TrainedRun(translator)
    export_onnx(run, folder, Decoding(num_beams=3))
    run.pipeline.save_vocabularies(folder)
    return folder


@pytest.fixture(scope="module")
def exported(export) -> Translator:
    return keras_transformer.load(export)


@pytest.mark.parametrize("search", SEARCHES)
def test_an_export_aligns_as_the_model_does(translator, exported, search):
    options = {"num_beams": 3, "alignments": True, **SEARCHES[search]}
    found, expected = (one.n_best(SENTENCES, **options) for one in (exported, translator))
    assert [[one.ids for one in some] for some in found] == [[one.ids for one in some] for some in expected]
    assert [[one.alignment for one in some] for some in found] == [[one.alignment for one in some] for some in expected]
    assert any(one.alignment for some in found for one in some) and not found[2][0].alignment


def test_prefixes_are_aligned_too(translator, exported):
    options: dict[str, Any] = {"num_beams": 3, "alignments": True}
    found, expected = (one.n_best(SENTENCES[:2], ["the", ""], **options) for one in (exported, translator))
    assert [best.alignment for best, *_ in found] == [best.alignment for best, *_ in expected]


def test_a_kept_graph_gives_lists_with_alignments(translator, tmp_path):
    from export.onnx.export import write_graph
    from keras_transformer.decoding.onnx_decoder import OnnxDecoder
    from keras_transformer.runs.export_folder import Graphs

    path = tmp_path / "graph.onnx"
    write_graph(TrainedRun(translator), path, ALIGNED, Decoding(3, n_best=2), "float32")
    kept = Translator(OnnxDecoder(Graphs(None, None, None, translate_aligned=path)), translator.source_tokenizer)
    options: dict[str, Any] = {"num_beams": 3, "n_best": 2, "alignments": True}
    found, expected = (one.n_best(SENTENCES, **options) for one in (kept, translator))
    assert [[one.alignment for one in some] for some in found] == [[one.alignment for one in some] for some in expected]


def test_who_does_not_ask_gets_a_graph_that_knows_nothing_of_it(export):
    """The graph of another export is the same but for its metadata, whatever layer aligns."""
    plain, aligned = (onnx.load(export / "onnx" / f"{name}.onnx") for name in ("translate", ALIGNED))
    assert [one.name for one in plain.graph.output] == ["target_ids", "score"]
    assert [one.name for one in aligned.graph.output] == ["target_ids", "score", "alignment"]
    assert {entry.key for entry in plain.metadata_props} == {entry.key for entry in aligned.metadata_props}
    told = {entry.key: entry.value for entry in aligned.metadata_props}["alignment"]
    assert told == '{"layer": 1, "heads": [0, 1]}'


def test_an_export_of_an_older_version_says_what_to_do(export, tmp_path):
    old = Path(shutil.copytree(export, tmp_path / "old"))
    (old / "onnx" / f"{ALIGNED}.onnx").unlink()
    step = onnx.load(old / "onnx" / "step.onnx")
    assert step.graph.output.pop().name == "alignment"
    onnx.save(step, old / "onnx" / "step.onnx")
    translator = keras_transformer.load(old)
    assert translator.n_best(SENTENCES[:1], num_beams=2)
    with pytest.raises(RequestError, match="an older version wrote them: export the run again, or translate with the"):
        translator.n_best(SENTENCES[:1], alignments=True)


def test_a_step_looks_where_the_whole_pass_looks():
    """Of a model and of an ensemble, with sources of different lengths; the end of a source is never chosen."""
    models = [Transformer(20, **SIZES), Transformer(20, **{**SIZES, "num_layers": 2})]
    source_ids = np.array([[5, 6, 7, 8, END], [9, 4, END, PAD, PAD]])
    target_ids = np.array([[START, 11, 12, 13], [START, 14, 15, 16]])
    each: list[Transformer | Ensemble] = [*models, Ensemble(models)]
    for model in each:
        weights = ops.convert_to_numpy(model.alignment_weights({"source_ids": source_ids, "target_ids": target_ids}))
        cache = model.init_cache(model.encode(source_ids), source_ids, 1, 4)
        for index in range(4):
            token_ids = target_ids[:, index : index + 1]
            logits, again, places = model.aligned_step(token_ids, cache, index)
            np.testing.assert_allclose(*map(ops.convert_to_numpy, (logits, model.step(token_ids, cache, index)[0])))
            expected = [weights[0, index, :4].argmax(), weights[1, index, :2].argmax()]
            assert ops.convert_to_numpy(places)[:, 0].tolist() == expected
            cache = again


def test_ids_and_places_come_apart():
    model = Aligned(Transformer(20, **SIZES), "int64")
    ids = np.array([[5 + 20 * 3, END + 20 * 2, PAD], [7, 19 + 20 * 9, PAD]])
    with ops.on(ops.NUMPY):
        found, places = model.apart(ids)
    assert found.tolist() == [[5, END, PAD], [7, 19, PAD]] and places.tolist() == [[3, -1, -1], [0, 9, -1]]


def test_a_certificate_holds_alignments_to_the_model(translator):
    """One that is a position off is told, in each precision; near ties are not."""
    decoding = Decoding(3)
    texts = Texts([], [], SENTENCES)
    expected = ExpectedSearch(Translation, texts, Translated(translator, SENTENCES, decoding), decoding)
    hypotheses = translator.n_best(SENTENCES, num_beams=3, alignments=True)
    rows = [
        {"target_ids": [*best.ids], "score": best.score, "alignment": [*(at for at, _ in best.alignment), -1]}
        for best, *_ in hypotheses
    ]
    assert all(max(one.look_error) == 0 for one in expected.compare(range(len(rows)), rows))
    length = len(translator.source_tokenizer.encode(SENTENCES[:1])[0])
    rows[0]["alignment"] = [(at + 1) % length for at in rows[0]["alignment"][:-1]]
    first, *others = expected.compare(range(len(rows)), rows)
    assert first.look_error[0] > 0 and not any(max(one.look_error) for one in others)
    rows[0]["alignment"] = [length, *rows[0]["alignment"][1:]]
    assert expected.compare([0], rows[:1])[0].look_error[0] == np.inf, "the end of the source is no piece"
    wrong = Compared(0, "", True, 0.0, look_error=(0.5, 0.4))
    for precision in ("float32", "float16", "int8"):
        [fault] = number_fault(expected, BOUNDS[precision], Trial("alone", [wrong]), wrong)
        assert "less where its alignment leads" in fault
        small = wrong._replace(look_error=(1e-6, 1e-6))
        assert not [*number_fault(expected, BOUNDS[precision], Trial("alone", [small]), small)]
