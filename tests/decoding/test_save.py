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
from keras_transformer.__main__ import main
from keras_transformer.decoding.translator import Translator
from keras_transformer.errors import RequestError
from keras_transformer.layers.feed_forward import FeedForward
from keras_transformer.models import model_config
from keras_transformer.models.transformer import Transformer
from keras_transformer.run_folder import RunFolder, read_config
from keras_transformer.text.corpora import read_lines
from keras_transformer.training.checkpoints import set_weights
from keras_transformer.training.run import compiled_model, open_run
from tests.tiny_corpus import write_corpus
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

LINES = ["one two dogs", "to the sea", "", "seven hundred and two"]
SIZES: dict[str, Any] = {
    "num_layers": 1,
    "num_heads": 2,
    "hidden_dim": 16,
    "intermediate_dim": 24,
    "max_source_length": 40,
}
VALIDATION = (["one", "two dogs"], ["eins\u2028", "zwei\nHunde"])


class Bent(FeedForward):
    """A feed-forward network that no configuration tells of."""


class Other(Transformer):
    """A model that no configuration tells of."""


def batches(tokenizer):
    """Sentences of the tiny text that are to be copied."""
    ids = [[*row, 3] for row in tokenizer.encode(lines(3, 16))]
    labels = keras.utils.pad_sequences(ids, padding="post")
    inputs = {"source_ids": labels, "target_ids": np.pad(labels[:, :-1], [(0, 0), (1, 0)], constant_values=2)}
    return inputs, labels


@pytest.fixture(scope="module")
def fitted(tokenizer) -> Translator:
    """A model with parts of several kinds, after a few steps of Keras's own `compile` and `fit`."""
    keras.utils.set_random_seed(5)
    parts: dict[str, Any] = {"positions": {"name": "learned", "offset": 2}, "residual": "pre_norm", "output_bias": True}
    model = Transformer(tokenizer.vocabulary_size, **SIZES, **parts, decoder_layers=2, tied_output=False)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=0))
    model.fit(*batches(tokenizer), epochs=2, batch_size=4, verbose=0)
    return Translator(model, tokenizer)


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "mine"
    fitted.save(folder, languages=("en", "de"), validation=VALIDATION)
    return folder


def assert_same_weights(one: Transformer, other: Transformer) -> None:
    for mine, theirs in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_array_equal(mine.astype("float32"), theirs)


def test_what_is_loaded_is_what_was_saved(fitted, saved):
    again = keras_transformer.load(saved)
    assert_same_weights(fitted.model, again.model)
    assert model_config(again.model) == model_config(fitted.model)
    ours, theirs = (each.n_best(LINES, n_best=3, max_length=12) for each in (fitted, again))
    assert ours == theirs and len(ours[0]) == 3
    assert keras.saving.load_model(saved / "model.keras").arguments() == fitted.model.arguments()


def test_a_run_that_was_saved_says_what_it_is(fitted, saved):
    assert {path.name for path in saved.iterdir()} == {
        "config.json", "model.keras", "tokenizer.model", "validation.source", "validation.target",
    }  # fmt: skip
    written = json.loads((saved / "config.json").read_text())
    assert written == read_config(saved)
    assert written["model"] == model_config(fitted.model)
    assert written["corpus"] == {"name": "mine", "source_language": "en", "target_language": "de"}
    assert written["parameters"] == fitted.model.count_params() and written["settings"] == {}
    assert written["versions"]["keras-transformer"] == keras_transformer.__version__
    texts = [(saved / f"validation.{side}").read_bytes().decode() for side in ("source", "target")]
    assert texts == ["one\ntwo dogs\n", "eins\u2028\nzwei Hunde\n"], "each sentence is a line"
    assert list(read_lines(saved / "validation.target")) == ["eins\u2028", "zwei Hunde"]


def test_commands_take_it(fitted, saved, tmp_path, monkeypatch, capfdbinary):
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO("".join(f"{x}\n" for x in LINES).encode())))
    assert main(["translate", str(saved), "--beams", "1", "--max-length", "12"]) == 0
    out, err = capfdbinary.readouterr()
    assert (out.decode().split("\n")[:-1], err) == (fitted.translate(LINES, num_beams=1, max_length=12), b"")
    assert main(["info", str(saved)]) == 0
    out, err = capfdbinary.readouterr()
    assert (err, b"settings:" in out) == (b"", False)
    assert f"parameters: {fitted.model.count_params():,}\n" in out.decode() and b'target_language: "de"' in out
    for side, text in (("source", "one\n"), ("reference", fitted.translate("one", num_beams=1) + "\n")):
        (tmp_path / side).write_text(text, encoding="utf-8")
    files = [f"--{side}={tmp_path / side}" for side in ("source", "reference")]
    assert main(["evaluate", str(saved), *files, "--beams", "1"]) == 0
    out, err = capfdbinary.readouterr()
    assert err == b"" and json.loads(out)["sentences"] == 1


def test_training_begins_with_it_and_does_not_resume_it(fitted, saved, tmp_path, capsys):
    import train

    source, target = write_corpus(tmp_path, 60)
    given = {"init_from": str(saved), "source": str(source), "target": str(target), "out": str(tmp_path / "run")}
    run = open_run({**given, "steps": 3, "dropout": 0.2})
    assert run is not None
    assert run.config["model"] == {**model_config(fitted.model), "dropout": 0.2}
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


@pytest.mark.parametrize(
    ("flags", "warmup"),
    [({"steps": 50}, 5), ({"steps": 9, "warmup_steps": 20}, 20), ({"dataset": "numbers:en-de"}, 240)],
    ids=["steps", "a warm-up", "a recipe"],
)
def test_fine_tuning_it_has_a_small_learning_rate(saved, tmp_path, capsys, flags, warmup):
    """How it was trained is not known, and the rates of presets and recipes are for models that begin anew."""
    source, target = write_corpus(tmp_path, 60)
    text = {} if "dataset" in flags else {"source": str(source), "target": str(target)}
    run = open_run({"init_from": str(saved), **text, **flags, "out": str(tmp_path / "run")})
    assert run is not None and run.settings.warmup_steps == warmup
    assert run.settings.learning_rate(warmup) == pytest.approx(5e-5, rel=0.01)
    assert run.settings.dropout == (0.05 if "dataset" in flags else read_config(saved)["model"]["dropout"])
    highest = run.settings.learning_rate(min(warmup, run.settings.steps))
    assert f"with a warm-up of {warmup}, up to a learning rate of {highest:.2g} (" in capsys.readouterr().err


def test_a_run_that_was_saved_can_be_fine_tuned_to_its_end(saved, tmp_path, monkeypatch, capsys):
    import train
    from keras_transformer.training import devices

    # Devices and determinism are a process's own, and other tests run in this one.
    monkeypatch.setattr(devices, "configure", lambda *_: None)
    source, target = write_corpus(tmp_path, 60)
    flags = f"--init-from {saved} --source {source} --target {target} --out {tmp_path / 'run'} --steps 2"
    assert train.main([*flags.split(), "--devices", "cpu", "--bleu-sentences", "0", "--warmup-steps", "1"]) == 0
    config = read_config(tmp_path / "run")
    assert config["model"]["positions"] == {"name": "learned", "offset": 2, "separate": False}
    assert config["settings"]["positions"] == "learned:offset=2" and config["weights"]["at_step"] == 2
    assert (tmp_path / "run" / "tokenizer.model").read_bytes() == (saved / "tokenizer.model").read_bytes()
    assert keras_transformer.load(tmp_path / "run").model.decoder_layers == 2


@pytest.mark.parametrize("dtype", ["mixed_bfloat16", "float16", "bfloat16"])
def test_a_model_of_any_type_is_saved_in_float32(tokenizer, tmp_path, dtype):
    keras.utils.set_random_seed(5)
    model = Transformer(tokenizer.vocabulary_size, **SIZES, dtype=dtype)
    Translator(model, tokenizer).save(tmp_path / "run")
    loaded = keras_transformer.load(tmp_path / "run").model
    assert {weight.dtype for weight in loaded.trainable_weights} == {"float32"}
    assert_same_weights(model, loaded)


def test_two_vocabularies_are_kept_apart(tokenizer, other_tokenizer, tmp_path):
    sizes = (tokenizer.vocabulary_size, other_tokenizer.vocabulary_size)
    model = Transformer(sizes[1], **SIZES, source_vocabulary_size=sizes[0])
    Translator(model, tokenizer, other_tokenizer).save(tmp_path / "run")
    again = keras_transformer.load(tmp_path / "run")
    assert (again.source_tokenizer.model, again.target_tokenizer.model) == (tokenizer.model, other_tokenizer.model)
    assert_same_weights(model, again.model)


def test_one_vocabulary_with_two_normalizations_is_kept_apart(tokenizer, tmp_path):
    target = tokenizer.normalized_by("nfc")
    assert target.model != tokenizer.model
    model = Transformer(tokenizer.vocabulary_size, **SIZES)
    Translator(model, tokenizer, target).save(tmp_path / "run")
    again = keras_transformer.load(tmp_path / "run")
    assert (again.source_tokenizer.model, again.target_tokenizer.model) == (tokenizer.model, target.model)


def test_a_run_is_replaced_whole_where_that_is_asked_for(fitted, saved, translator, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()  # empty, it is as good as new
    fitted.save(run.path, validation=VALIDATION)
    message = f"expected a new or empty folder, or a run and `overwrite=True` (--overwrite); {run.path} holds something"
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        translator.save(run.path)
    assert_same_weights(fitted.model, keras_transformer.load(run.path).model)
    translator.save(run.path, overwrite=True)
    assert {path.name for path in run.path.iterdir()} == {"config.json", "model.keras", "tokenizer.model"}
    assert_same_weights(translator.model, keras_transformer.load(run.path).model)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_strangers_folder_is_left_alone(fitted, tmp_path, overwrite):
    (tmp_path / "letter").write_text("dear ...")
    for path in (tmp_path, tmp_path / "letter"):
        with pytest.raises(RequestError, match=r"^expected a new or empty folder, or a run and `overwrite=True` \("):
            fitted.save(path, overwrite=overwrite)
    assert [path.name for path in tmp_path.iterdir()] == ["letter"]


def test_a_run_with_a_strangers_file_is_not_replaced(translator, tmp_path):
    run = RunFolder(tmp_path / "run")
    translator.save(run.path)
    for part in (run.checkpoints, run.tensorboard):
        part.mkdir()
    (run.path / ".123-model.keras").touch()  # of a process that was killed
    (run.path / "letter").write_text("dear ...")
    message = f"expected a run and nothing else; {run.path} holds letter: move it away, or choose another folder"
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        translator.save(run.path, overwrite=True)
    assert (run.path / "letter").read_text() == "dear ..." and run.checkpoints.is_dir()
    (run.path / "letter").unlink()
    translator.save(run.path, overwrite=True)
    assert {path.name for path in run.path.iterdir()} == {"config.json", "model.keras", "tokenizer.model"}


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


@pytest.mark.parametrize("is_refused", [False, True], ids=["the folder", "the one above"])
def test_a_folder_without_permission_is_refused_in_words_of_python(translator, tmp_path, monkeypatch, is_refused):
    folder = tmp_path / "above" / "run"
    folder.mkdir(parents=True)
    closed = folder.parent if is_refused else folder
    access = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: path != closed and access(path, mode))
    message = f"no permission to write in {closed}; choose another folder"
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        translator.save(folder)
    assert not any(folder.iterdir())


def another_block(model):
    block = model.decoder_blocks[1]
    block._tracker.unlock()  # as while it was made
    block.feed_forward = Bent(24)


def another_option(model):
    model.encoder_blocks[0].self_attention.score_config = "dot"


def another_offset(model):
    model.positions.offset = 5


def another_norm(model):
    model.encoder_norm.epsilon = 0.5


def one_block_more(model):
    model.encoder_stack.blocks.append(model.encoder_stack.blocks[0])


def no_norm(model):
    model.decoder_stack.norm = None


@pytest.mark.parametrize(
    ("change", "expected", "path", "received"),
    [
        (another_block, "FeedForward", "model.decoder_stack.blocks[1].feed_forward", "Bent"),
        (another_option, "{'name': 'scaled_dot'}", "model.encoder_stack.blocks[0].self_attention.score", "dot"),
        (another_offset, "2", "model.positions.offset", "5"),
        (another_norm, "1e-06", "model.encoder_stack.norm.epsilon", "0.5"),
        (one_block_more, "nothing", "model.encoder_stack.blocks[1]", "EncoderBlock"),
        (no_norm, "LayerNorm", "model.decoder_stack.norm", "nothing"),
    ],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_a_model_that_its_configuration_does_not_tell_of_is_refused(
    tokenizer, tmp_path, change, expected, path, received
):
    parts: dict[str, Any] = {"positions": {"name": "learned", "offset": 2}, "residual": "pre_norm"}
    model = Transformer(tokenizer.vocabulary_size, **SIZES, **parts, decoder_layers=2)
    change(model)
    with pytest.raises(RequestError) as caught:
        Translator(model, tokenizer).save(tmp_path / "run")
    assert str(caught.value) == (
        f"expected a model that its configuration describes, with {expected} at {path}; received {received} there: "
        "add the part to `keras_transformer.family`, and make the model with its name"
    )
    assert not list(tmp_path.iterdir())


def test_a_subclass_of_the_model_is_refused(tokenizer, tmp_path):
    with pytest.raises(RequestError, match="describes, with Transformer at model; received Other there"):
        Translator(Other(tokenizer.vocabulary_size, **SIZES), tokenizer).save(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_what_acts_in_training_alone_may_have_been_changed(tokenizer, tmp_path):
    model = Transformer(tokenizer.vocabulary_size, **SIZES)
    model.embedding_dropout.rate = 0.5
    model.trainable = False
    Translator(model, tokenizer).save(tmp_path / "run")
    assert_same_weights(model, keras_transformer.load(tmp_path / "run").model)


@pytest.mark.parametrize(
    ("validation", "counts"),
    [
        ((["one"], []), "1 sentences and 0"),
        ((["one"], ["eins", "zwei"]), "1 sentences and 2"),
        (([], []), "0 .* and 0"),
    ],
)
def test_validation_text_without_a_translation_for_each_sentence_is_refused(fitted, tmp_path, validation, counts):
    message = f"^expected a translation for each validation sentence; received {counts} translations$"
    with pytest.raises(RequestError, match=message):
        fitted.save(tmp_path / "run", validation=validation)
    assert not list(tmp_path.iterdir())


def test_vocabularies_that_are_not_the_models_are_refused(tokenizer, other_tokenizer, tmp_path):
    from keras_transformer.text.tokenizer import Tokenizer

    model = Transformer(tokenizer.vocabulary_size, **SIZES)
    with pytest.raises(RequestError, match="^expected a vocabulary of 64 pieces; received 50$"):
        Translator(model, other_tokenizer).save(tmp_path / "run")
    as_large = Tokenizer.train(lines(9), tokenizer.vocabulary_size)
    message = "^expected one vocabulary, for the model has one matrix for both; received two$"
    with pytest.raises(RequestError, match=message):
        Translator(model, tokenizer, as_large).save(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_a_folder_in_which_nothing_can_be_written_is_refused_before_anything_is(fitted, tmp_path):
    (tmp_path / "file").write_text("mine")
    with pytest.raises(RequestError, match=f"not a folder: {re.escape(str(tmp_path / 'file'))}"):
        fitted.save(tmp_path / "file" / "run")
    assert (tmp_path / "file").read_text() == "mine"


def test_a_model_with_the_weights_of_another_place_is_told_apart(fitted, saved):
    """The weights are compared by place, not by shape alone: the oracle of the tests above."""
    other = keras_transformer.load(saved).model
    set_weights(other, [weight[::-1] for weight in other.get_weights()[: len(other.trainable_variables)]])
    with pytest.raises(AssertionError):
        assert_same_weights(fitted.model, other)


def test_the_optimizer_of_a_compiled_model_stays_out(fitted, tmp_path, monkeypatch):
    fitted.save(tmp_path / "run")
    count = fitted.model.count_params()
    with zipfile.ZipFile(tmp_path / "run" / "model.keras") as archive:
        weights = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(weights) as file:
        sizes = []
        file.visititems(lambda name, item: sizes.append(item.size) if isinstance(item, h5py.Dataset) else None)
    assert sum(sizes) == count, "Adam's moments are twice as many numbers: a large model's run would be refused"


@pytest.mark.parametrize("languages", ["en-de", ("en",), ("en", "de", "fr")])
def test_languages_are_two(fitted, tmp_path, languages):
    with pytest.raises(RequestError, match="expected two languages, such as"):
        fitted.save(tmp_path / "run", languages=languages)
    assert not list(tmp_path.iterdir())


def test_validation_text_may_be_an_array(fitted, tmp_path):
    fitted.save(tmp_path / "run", validation=(np.array(["one", "two"]), np.array(["eins", "zwei"])))
    assert (tmp_path / "run" / "validation.target").read_text(encoding="utf-8") == "eins\nzwei\n"
