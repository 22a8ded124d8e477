"""CTranslate2's models hold the run's weights, and the search around them gives the run's translations."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import ctranslate2
import keras
import numpy as np
import pytest

from export import ctranslate2 as exporting
from export.artefacts import Artefact, Decoding, TrainedRun, Unwritable
from export.certificate.contents import contents_of
from export.certificate.runtimes import CTranslate2Search
from export.ctranslate2 import export_ctranslate2, require_held
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.models import LanguageModel, Transformer
from keras_transformer.spec import model_spec
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.tokenizer import END, START, UNKNOWN
from tests.importing.theirs import write_marian
from tests.layer_check import randomize
from tests.tiny_text import lines

SOURCES, TARGETS = lines(5, 20), lines(6, 20)
# Every part and every argument that CTranslate2 can hold stands in one of these.
HELD: dict[str, dict[str, Any]] = {
    "the default": {},
    "pre-norm": {"residual": "pre_norm", "activation": "gelu", "positions": "learned:offset=2,separate=true"},
    "modern": {
        "positions": "rotary:base=100,interpolation=1.5", "norm": "rms:epsilon=0.01", "residual": "pre_norm",
        "feed_forward": "gated", "activation": "silu", "attention": "full:num_key_value_heads=2",
    },
    "T5": {
        "positions": "buckets:num_buckets=8,max_distance=6", "score": "dot", "norm": "rms", "residual": "pre_norm",
        "feed_forward": "gated:use_bias=true", "activation": "gelu_tanh", "tied_output": False, "embedding_scale": 1.0,
    },
    "BART": {
        "positions": "sinusoidal:offset=2,interpolation=1.5", "embedding_norm": True, "attention_bias": True,
        "output_bias": True, "norm": "layer:epsilon=0.01", "embedding_scale": 3.0,
    },
    "unlike sides": {
        "positions": "none", "source_vocabulary_size": 50, "encoder_layers": 1, "decoder_layers": 3, "key_dim": 6,
        "decoder_attention": "full:num_key_value_heads=1",
    },
}  # fmt: skip


def make_run(parts: dict[str, Any], source, target) -> TrainedRun:
    """A run of a small model with random weights; its parts are spelled as on a command line."""
    keras.utils.set_random_seed(3)
    slots = {name: option.slot for name, option in model_spec.ARGUMENTS.items()}
    config: dict[str, Any] = {"num_layers": 2, "num_heads": 4, "hidden_dim": 16, "intermediate_dim": 32}
    for name, value in parts.items():
        config[name] = model_spec.parse(value, slots[name], name) if isinstance(value, str) else value
    model = Transformer(target.vocabulary_size, max_source_length=40, **config)
    randomize(model)
    return TrainedRun(Translator(model, source, target))


def search_in(path: Path) -> CTranslate2Search:
    """The runner's search."""
    return CTranslate2Search(ctranslate2.Translator(str(path), intra_threads=1), path)


def found_by(run: TrainedRun, path: Path, text: list[str]) -> tuple[list[list[int]], np.ndarray]:
    """The ids and scores that the search gives for lines of text."""
    source, target = run.tokenizers
    found = search_in(path)([source.pieces(row) for row in source.encode(text)])
    ids = {piece: id for id, piece in enumerate(target.pieces(range(target.vocabulary_size)))}
    return [[ids[piece] for piece in row if piece] for row in found["target_pieces"]], found["score"]


@pytest.mark.parametrize("parts", HELD.values(), ids=HELD)
def test_it_gives_translations_the_probabilities_of_the_model(parts, tokenizer, other_tokenizer, tmp_path):
    run = make_run(parts, other_tokenizer if "source_vocabulary_size" in parts else tokenizer, tokenizer)
    (path,) = export_ctranslate2(run, tmp_path, Decoding(1, 0.8, max_length=15))
    source, target = run.tokenizers
    sources, targets = source.encode(SOURCES), target.encode(TARGETS)
    model = ctranslate2.Translator(str(path), intra_threads=1)
    found = model.score_batch([source.pieces(row) for row in sources], list(map(target.pieces, targets)))
    expected = run.pipeline.log_probs(sources, [[*row, END] for row in targets])  # type: ignore[attr-defined]
    assert [sum(one.log_probs) for one in found] == pytest.approx(list(expected), rel=1e-5, abs=1e-4)


def test_a_limit_holds_for_each_sentence_of_a_batch(translator, tmp_path):
    run = TrainedRun(translator)
    (path,) = export_ctranslate2(run, tmp_path, Decoding(2, 0.8))
    lengths, search = [1, 9, 30], search_in(path)
    search.search["options"]["suppress_sequences"] = [["</s>"], ["<s>"], ["<pad>"]]
    found = search([translator.source_tokenizer.pieces([9] * length) for length in lengths])["target_pieces"]
    assert [len([*filter(None, row)]) for row in found] == [length + 50 for length in lengths]


def test_hypotheses_are_ranked_by_the_models_own_length_penalty(exported):
    search = search_in(exported / "ctranslate2")
    hypotheses = [[*pieces, "</s>"] for pieces in ("a", "bbbbbb", "ccc")] + [list("cut")]
    # The second is worse by as much as α = 0.69 makes good: (12 / 7)^α = 1.45.
    for search.search["length_penalty"], best in ((0.0, "a"), (0.3, "a"), (1.0, "bbbbbb")):
        found = search.best(SimpleNamespace(hypotheses=hypotheses, scores=[-2.0, -2.9, -3.0, -0.1]))
        assert "".join(found[:-1]) == best
    assert search.best(SimpleNamespace(hypotheses=hypotheses[3:], scores=[-0.1])) == list("cut")


def test_a_search_emits_no_control_id_but_the_end_which_may_come_first(tokenizer, tmp_path):
    run = make_run({"output_bias": True, "num_control_ids": 6, "num_layers": 1}, tokenizer, tokenizer)
    run.model.output_embedding.bias.assign([20.0 if id < 6 and id != END else 0.0 for id in range(64)])
    (path,) = export_ctranslate2(run, tmp_path, Decoding(3, 0.8))
    ids = {id for row in found_by(run, path, SOURCES)[0] for id in row}
    assert ids and not ids & {UNKNOWN, START, 4, 5}
    run.model.output_embedding.bias.assign([30.0 if id == END else 0.0 for id in range(64)])
    (path,) = export_ctranslate2(run, tmp_path, Decoding(1))
    assert found_by(run, path, SOURCES)[0] == [[END]] * len(SOURCES)


def test_an_imported_marian_model_gives_the_same_translations(tmp_path):
    pipeline = Translator.imported(read_huggingface(write_marian(tmp_path / "marian")))
    run = TrainedRun(pipeline)
    (path,) = export_ctranslate2(run, tmp_path, run.decoding(num_beams=1))
    rows, scores = found_by(run, path, SOURCES[:6])
    expected = [one for (one,) in pipeline.n_best(SOURCES[:6], split="off", num_beams=1)]
    assert rows == [list(one.ids) for one in expected]
    assert scores == pytest.approx([one.score for one in expected], abs=1e-4)
    assert {file.name for file in path.iterdir()} >= {"shared_vocabulary.json", "tokenizer.source.model"}


def test_models_of_other_kinds_and_parts_that_were_put_in_by_hand_are_refused_by_their_names(tiny_model):
    with pytest.raises(Unwritable, match="with LanguageModel there"):
        require_held(LanguageModel(64, num_layers=1, num_heads=2, hidden_dim=16, intermediate_dim=32), "float32")
    twin = Transformer.from_config(tiny_model.get_config())
    require_held(twin, "float32")
    twin.encoder_stack.blocks[0].feed_forward_residual.norm.epsilon = 0.5
    with pytest.raises(Unwritable, match=r"encoder_stack\.blocks\[0\]\.feed_forward_residual\.norm\.epsilon"):
        require_held(twin, "float32")


def test_the_files_of_each_precision_appear_whole_or_not_at_all(translator, tmp_path, monkeypatch):
    run = TrainedRun(translator)
    paths = [export_ctranslate2(run, tmp_path, None, one)[0] for one in ("float32", "float16", "int8")]
    sizes = [(path / "model.bin").stat().st_size for path in paths]
    assert [path.name for path in paths] == ["ctranslate2", "ctranslate2-float16", "ctranslate2-int8"]
    assert sizes[0] > 1.5 * sizes[1] and sizes[1] > sizes[2]
    before = {file.name: file.read_bytes() for file in paths[0].iterdir()}

    def full(*_: object) -> None:
        raise OSError("No space left on device")

    monkeypatch.setattr(exporting, "search_of", full)  # the last of the files fails
    with pytest.raises(OSError, match="No space left"):
        export_ctranslate2(run, tmp_path, Decoding(2))
    assert {file.name: file.read_bytes() for file in paths[0].iterdir()} == before
    assert {one.name for one in tmp_path.iterdir()} == {path.name for path in paths}


def test_its_contents_are_told(translator, tmp_path):
    (path,) = export_ctranslate2(TrainedRun(translator), tmp_path, Decoding(2))
    found = contents_of(Artefact(path, "ctranslate2", "pieces", "float32"))
    assert found.opset == {"binary": 6, "TransformerSpec": 7} and not found.operators
    assert found.bytes == sum(file.stat().st_size for file in path.iterdir())
