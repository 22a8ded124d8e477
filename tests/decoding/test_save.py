"""`Translator.save`: a model made and fitted in Python becomes a run that every command takes."""

from __future__ import annotations

import io
import json
import os
import re
import sys
import zipfile
from types import SimpleNamespace
from typing import Any

import h5py
import keras
import numpy as np
import pytest

import keras_transformer
import train
from keras_transformer.__main__ import main
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.models import model_config
from keras_transformer.models.transformer import Transformer
from keras_transformer.run_folder import RunFolder, read_config
from keras_transformer.text.corpora import read_lines
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.run import compiled_model, open_run
from tests.tiny_corpus import write_corpus
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]
pytestmark = pytest.mark.usefixtures("eager")

LINES = ["one two dogs", "to the sea", "", "seven hundred and two"]
SIZES: dict[str, Any] = {
    "num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24, "max_source_length": 40,
}  # fmt: skip
PARTS: dict[str, Any] = {"positions": {"name": "learned", "offset": 2}, "residual": "pre_norm"}
VALIDATION = (["one", "two dogs"], ["eins\u2028", "zwei\nHunde"])
OWN = {"config.json", "model.keras", "tokenizer.model"}  # of a run without validation text


class Bent(FeedForward):
    """A feed-forward network that no configuration tells of."""


class Other(Transformer):
    """A model that no configuration tells of."""


@pytest.fixture(scope="module")
def fitted(tokenizer) -> Translator:
    """A model with parts of several kinds, after a step of Keras's own `compile` and `fit`."""
    keras.utils.set_random_seed(5)
    more: dict[str, Any] = {"output_bias": True, "decoder_layers": 2, "tied_output": False}
    model = Transformer(tokenizer.vocabulary_size, **SIZES, **PARTS, **more)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0)
    model.compile("adam", loss, run_eagerly=True)
    labels = keras.utils.pad_sequences([[*row, 3] for row in tokenizer.encode(lines(3, 16))], padding="post")
    target_ids = np.pad(labels[:, :-1], [(0, 0), (1, 0)], constant_values=2)
    model.fit({"source_ids": labels, "target_ids": target_ids}, labels, batch_size=16, verbose=0)
    return Translator(model, tokenizer)


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "mine"
    fitted.save(folder, languages=("en", "de"), validation=VALIDATION)
    return folder


def names_in(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def assert_same_weights(one: Transformer, other: Transformer) -> None:
    for mine, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine.astype("float32"), theirs)


def test_what_is_loaded_is_what_was_saved(fitted, saved):
    again = keras_transformer.load(saved)
    assert_same_weights(fitted.model, again.model)
    assert model_config(again.model) == model_config(fitted.model)
    ours, theirs = (each.n_best(LINES, n_best=3, max_length=4) for each in (fitted, again))
    assert ours == theirs and len(ours[0]) == 3
    assert keras.saving.load_model(saved / "model.keras").arguments() == fitted.model.arguments()


def test_a_run_that_was_saved_says_what_it_is_and_keeps_no_optimizer(fitted, saved):
    assert names_in(saved) == {*OWN, "validation.source", "validation.target"}
    written = json.loads((saved / "config.json").read_text())
    assert written == read_config(saved)
    assert written["model"] == model_config(fitted.model)
    assert written["corpus"] == {"name": "mine", "source_language": "en", "target_language": "de"}
    assert written["parameters"] == fitted.model.count_params() and written["settings"] == {}
    assert written["versions"]["keras-transformer"] == keras_transformer.__version__
    texts = [(saved / f"validation.{side}").read_bytes().decode() for side in ("source", "target")]
    assert texts == ["one\ntwo dogs\n", "eins\u2028\nzwei Hunde\n"], "each sentence is a line"
    assert list(read_lines(saved / "validation.target")) == ["eins\u2028", "zwei Hunde"]
    with (
        zipfile.ZipFile(saved / "model.keras") as archive,
        h5py.File(io.BytesIO(archive.read("model.weights.h5"))) as file,
    ):
        sizes: list[int] = []
        file.visititems(lambda name, item: sizes.append(item.size) if isinstance(item, h5py.Dataset) else None)
    assert sum(sizes) == fitted.model.count_params(), "Adam's moments are twice as many numbers"


def test_commands_take_it(fitted, saved, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("".join(f"{x}\n" for x in LINES).encode())))
    search = ["--beams", "1", "--max-length", "6", "--engine", "keras"]
    assert main(["translate", str(saved), *search]) == 0
    out, err = capfdbinary.readouterr()
    assert (out.decode().split("\n")[:-1], err) == (fitted.translate(LINES, num_beams=1, max_length=6), b"")
    assert main(["info", str(saved)]) == 0
    out, err = capfdbinary.readouterr()
    assert (err, b"settings:" in out) == (b"", False)
    assert f"parameters: {fitted.model.count_params():,}\n" in out.decode() and b'target_language: "de"' in out
    (tmp_path / "text").write_text("one\n")
    files = [f"--{side}={tmp_path / 'text'}" for side in ("source", "reference")]
    assert main(["evaluate", str(saved), *files, *search]) == 0
    out, err = capfdbinary.readouterr()
    assert err == b"" and json.loads(out)["sentences"] == 1


def test_training_begins_with_it_and_does_not_resume_it(fitted, saved, tmp_path, capsys):
    source, target = write_corpus(tmp_path, 60)
    given = {"init_from": str(saved), "source": str(source), "target": str(target), "out": str(tmp_path / "run")}
    run = open_run({**given, "steps": 3, "dropout": 0.2})
    assert run is not None
    assert run.config["model"] == {**model_config(fitted.model), "dropout": 0.2}
    assert run.config["settings"]["positions"] == "learned:offset=2"
    assert_same_weights(fitted.model, compiled_model(run))
    said = capsys.readouterr().err
    assert said.count("\n") <= 2 and f"fine-tuning {saved}: 3 steps" in said
    with pytest.raises(RequestError, match="--init-from: that run has --residual pre_norm; received: post_norm"):
        open_run({**given, "residual": "post_norm"})
    assert main(["average", str(saved), "--last", "1"]) == 2
    capsys.readouterr()
    before = {path: path.read_bytes() for path in saved.iterdir() if path.is_file()}
    assert train.main(["--resume", "--out", str(saved)]) == 2
    message = "error: --resume: this run was imported or saved from Python: fine-tune it with --init-from\n"
    assert capsys.readouterr().err == message
    assert {path: path.read_bytes() for path in saved.iterdir() if path.is_file()} == before


@pytest.mark.parametrize(("flags", "warmup"), [({"steps": 50}, 5), ({"steps": 9, "warmup_steps": 20}, 20)])
def test_fine_tuning_it_has_a_small_learning_rate(saved, tmp_path, capsys, flags, warmup):
    """How it was trained is not known, and the rates of presets are for models that begin anew."""
    source, target = write_corpus(tmp_path, 60)
    given = {"init_from": str(saved), "source": str(source), "target": str(target), "out": str(tmp_path / "run")}
    run = open_run({**given, **flags})
    assert run is not None and run.settings.warmup_steps == warmup
    assert run.settings.learning_rate(warmup) == pytest.approx(5e-5, rel=0.01)
    assert run.settings.dropout == read_config(saved)["model"]["dropout"]
    highest = run.settings.learning_rate(min(warmup, run.settings.steps))
    assert f"with a warm-up of {warmup}, up to a learning rate of {highest:.2g} (" in capsys.readouterr().err


def test_a_model_of_any_type_is_saved_in_float32(tokenizer, tmp_path):
    for dtype in ("mixed_bfloat16", "float16"):
        model = Transformer(tokenizer.vocabulary_size, **SIZES, dtype=dtype)
        Translator(model, tokenizer).save(tmp_path / dtype)
        loaded = keras_transformer.load(tmp_path / dtype).model
        assert {weight.dtype for weight in loaded.trainable_weights} == {"float32"}
        assert_same_weights(model, loaded)


def test_two_vocabularies_are_kept_apart(tokenizer, other_tokenizer, tmp_path):
    """Two of pieces, or one with two normalizations."""
    for target in (other_tokenizer, tokenizer.normalized_by("nfc")):
        size = target.vocabulary_size
        of_source: dict[str, Any] = {"source_vocabulary_size": 64} if size != 64 else {}
        model = Transformer(size, **SIZES, **of_source)
        Translator(model, tokenizer, target).save(tmp_path / str(size))
        again = keras_transformer.load(tmp_path / str(size))
        assert again.source_tokenizer.model == tokenizer.model != target.model == again.target_tokenizer.model
        assert_same_weights(model, again.model)


def test_a_run_is_replaced_whole_where_that_is_asked_for(fitted, saved, translator, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()  # empty, it is as good as new
    fitted.save(run.path, validation=VALIDATION)
    message = f"expected a new or empty folder, or a run and `overwrite=True` (--overwrite); {run.path} holds something"
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        translator.save(run.path)
    assert_same_weights(fitted.model, keras_transformer.load(run.path).model)
    translator.save(run.path, overwrite=True)
    assert names_in(run.path) == OWN
    assert_same_weights(translator.model, keras_transformer.load(run.path).model)
    assert names_in(tmp_path) == {"run"}


def test_a_strangers_folder_is_left_alone(fitted, translator, tmp_path):
    (tmp_path / "letter").write_text("dear ...")
    for path, overwrite in ((tmp_path, False), (tmp_path, True), (tmp_path / "letter", True)):
        with pytest.raises(RequestError, match=r"^expected a new or empty folder, or a run and `overwrite=True` \("):
            fitted.save(path, overwrite=overwrite)
    with pytest.raises(RequestError, match=f"not a folder: {re.escape(str(tmp_path / 'letter'))}"):
        fitted.save(tmp_path / "letter" / "run")
    assert names_in(tmp_path) == {"letter"}
    run = RunFolder(tmp_path / "run")
    translator.save(run.path)
    for part in (run.checkpoints, run.tensorboard):
        part.mkdir()
    (run.path / ".123-model.keras").touch()  # of a process that was killed
    (tmp_path / "letter").rename(run.path / "letter")
    message = f"expected a run and nothing else; {run.path} holds letter: move it away, or choose another folder"
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        translator.save(run.path, overwrite=True)
    assert (run.path / "letter").read_text() == "dear ..." and run.checkpoints.is_dir()
    (run.path / "letter").unlink()
    translator.save(run.path, overwrite=True)
    assert names_in(run.path) == OWN


def test_the_folder_in_which_the_process_works_is_not_replaced(translator, tmp_path, monkeypatch):
    run = tmp_path / "run"
    translator.save(run)
    (run / "checkpoints").mkdir()
    empty = tmp_path / "empty"
    empty.mkdir()
    for works_in, folder in ((run, "."), (run / "checkpoints", ".."), (run / "checkpoints", run), (empty, ".")):
        monkeypatch.chdir(works_in)
        with pytest.raises(RequestError, match="expected a folder that can be replaced; .* this process works$"):
            translator.save(folder, overwrite=True)
    assert (run / "checkpoints").is_dir() and keras_transformer.load(run)


def test_a_folder_without_permission_is_refused_in_words_of_python(translator, tmp_path, monkeypatch):
    folder, access = tmp_path / "above" / "run", os.access
    folder.mkdir(parents=True)
    for closed in (folder, folder.parent):
        monkeypatch.setattr(os, "access", lambda path, mode, closed=closed: path != closed and access(path, mode))
        message = f"no permission to write in {closed}; choose another folder"
        with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
            translator.save(folder)
        assert not any(folder.iterdir())


def another_block(model):
    block = model.decoder_blocks[1]
    block._tracker.unlock()  # as while it was made
    block.feed_forward = Bent(24)


BLOCKS = "model.encoder_stack.blocks"
CHANGES: list[tuple[Any, str, str, str]] = [
    (another_block, "FeedForward", "model.decoder_stack.blocks[1].feed_forward", "Bent"),
    (lambda model: setattr(model.encoder_blocks[0].self_attention, "score_config", "dot"),
     "{'name': 'scaled_dot'}", f"{BLOCKS}[0].self_attention.score", "dot"),
    (lambda model: setattr(model.positions, "offset", 5), "2", "model.positions.offset", "5"),
    (lambda model: setattr(model.encoder_norm, "epsilon", 0.5), "1e-06", "model.encoder_stack.norm.epsilon", "0.5"),
    (lambda model: model.encoder_stack.blocks.append(model.encoder_stack.blocks[0]),
     "nothing", f"{BLOCKS}[2]", "EncoderBlock"),
    (lambda model: setattr(model.decoder_stack, "norm", None), "LayerNorm", "model.decoder_stack.norm", "nothing"),
    (lambda model: setattr(model, "__class__", Other), "Transformer", "model", "Other"),
]  # fmt: skip


def test_a_model_that_its_configuration_does_not_tell_of_is_refused(tokenizer, tmp_path):
    for change, expected, path, received in CHANGES:
        model = Transformer(tokenizer.vocabulary_size, **{**SIZES, "num_layers": 2}, **PARTS)
        change(model)
        with pytest.raises(RequestError) as caught:
            Translator(model, tokenizer).save(tmp_path / "run")
        assert str(caught.value) == (
            f"expected a model that its configuration describes, with {expected} at {path}; received {received} there: "
            "add the part to `keras_transformer.family`, and make the model with its name"
        )
        assert not list(tmp_path.iterdir())


def test_what_acts_in_training_alone_may_have_been_changed(tokenizer, tmp_path):
    model = Transformer(tokenizer.vocabulary_size, **SIZES)
    model.embedding_dropout.rate = 0.5
    model.trainable = False
    arrays: Any = (np.array(["one"]), np.array(["eins"]))
    Translator(model, tokenizer).save(tmp_path / "run", validation=arrays)
    assert_same_weights(model, keras_transformer.load(tmp_path / "run").model)
    assert (tmp_path / "run" / "validation.target").read_text(encoding="utf-8") == "eins\n", "arrays are lists too"


def test_what_does_not_fit_is_refused_before_anything_is_written(fitted, tokenizer, other_tokenizer, tmp_path):
    model = Transformer(tokenizer.vocabulary_size, **SIZES)
    as_large = Tokenizer.train(lines(9), tokenizer.vocabulary_size)
    counts = "^expected a translation for each validation sentence; received {} translations$"
    languages = "expected two languages, such as"
    refused: list[tuple[str, Translator, dict[str, Any]]] = [
        (counts.format("1 sentences and 0"), fitted, {"validation": (["one"], [])}),
        (counts.format("1 sentences and 2"), fitted, {"validation": (["one"], ["eins", "zwei"])}),
        (counts.format("0 .* and 0"), fitted, {"validation": ([], [])}),
        *((languages, fitted, {"languages": wrong}) for wrong in ("en-de", ("en",), ("en", "de", "fr"))),
        ("^expected a vocabulary of 64 pieces; received 50$", Translator(model, other_tokenizer), {}),
        ("^expected one vocabulary, for the model has one matrix for both; received two$",
         Translator(model, tokenizer, as_large), {}),
    ]  # fmt: skip
    for message, translator, options in refused:
        with pytest.raises(RequestError, match=message):
            translator.save(tmp_path / "run", **options)
        assert not list(tmp_path.iterdir())
