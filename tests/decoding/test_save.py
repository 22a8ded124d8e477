"""`Translator.save`: a model made and fitted in Python becomes a run; nothing that is not a run is replaced."""

import json
import shutil
from typing import Any
from unittest.mock import Mock

import keras
import numpy as np
import pytest

import keras_transformer
import train
from keras_transformer.__main__ import main
from keras_transformer.core import folders
from keras_transformer.core.errors import RequestError
from keras_transformer.models import model_config
from keras_transformer.models.transformer import Transformer
from keras_transformer.runs import run_folder
from keras_transformer.runs.run_folder import RunFolder, read_config
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.learning import compiled_model
from keras_transformer.training.request import learning_rate, open_run
from tests.tiny_corpus import write_corpus
from tests.tiny_text import lines

pytestmark = pytest.mark.usefixtures("eager")

SIZES: dict[str, Any] = {
    "num_layers": 1, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24, "max_source_length": 40,
}  # fmt: skip
PARTS: dict[str, Any] = {"positions": {"name": "learned", "offset": 2}, "residual": "pre_norm"}
VALIDATION = (["one", "two dogs"], ["eins\u2028", "zwei\nHunde"])
OWN = {"config.json", "model.keras", "tokenizer.model"}  # of a run without validation text


@pytest.fixture(scope="module")
def fitted(tokenizer) -> Translator:
    """A model with parts of several kinds, with an optimizer and a loss."""
    model = Transformer(tokenizer.vocabulary_size, **SIZES, **PARTS, decoder_layers=2, tied_output=False)
    model.compile("adam", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    return Translator(model, tokenizer)


@pytest.fixture(scope="module")
def saved(fitted, tmp_path_factory):
    folder = tmp_path_factory.mktemp("saved") / "mine"
    fitted.save(folder, languages=("en", "de"), validation=VALIDATION)
    return folder


def names_in(folder) -> set[str]:
    return {path.name for path in folder.iterdir()}


def have_same_weights(one: Transformer, other: Transformer) -> bool:
    return all(map(np.array_equal, (each.astype("float32") for each in one.get_weights()), other.get_weights()))


def test_what_is_loaded_is_what_was_saved_without_an_optimizer(fitted, saved, capsys):
    again = keras_transformer.load(saved, engine="keras")
    assert have_same_weights(fitted.model, again.model)
    ours, theirs = (each.n_best(["one two dogs", "to the sea", ""], n_best=3, max_length=4) for each in (fitted, again))
    assert ours == theirs and len(ours[0]) == 3
    loaded = keras.saving.load_model(saved / "model.keras")
    assert loaded.arguments() == fitted.model.arguments() and not hasattr(loaded, "optimizer")
    assert names_in(saved) == {*OWN, "validation.source", "validation.target"}
    written = json.loads((saved / "config.json").read_text())
    assert written["model"] == model_config(again.model) == model_config(fitted.model)
    assert written["corpus"] == {"name": "mine", "source_language": "en", "target_language": "de"}
    assert written["parameters"] == fitted.model.count_params() and written["settings"] == {}
    assert written["versions"]["keras-transformer"] == keras_transformer.__version__
    texts = [(saved / f"validation.{side}").read_bytes().decode() for side in ("source", "target")]
    assert texts == ["one\ntwo dogs\n", "eins\u2028\nzwei Hunde\n"], "each sentence is a line"
    assert main(["info", str(saved)]) == 0
    out, err = capsys.readouterr()
    assert err == "" and "settings:" not in out and 'target_language: "de"' in out


def test_training_begins_with_it_and_does_not_resume_it(fitted, saved, tmp_path, capsys):
    """How it was trained is not known, and the rates of presets are for models that begin anew: its rate is small."""
    source, target = write_corpus(tmp_path, 60)
    given = {"init_from": str(saved), "source": str(source), "target": str(target), "out": str(tmp_path / "run")}
    for flags, warmup in (({"steps": 50}, 5), ({"steps": 9, "warmup_steps": 20, "dropout": 0.2}, 20)):
        run = open_run({**given, **flags})
        assert run is not None and run.settings.warmup_steps == warmup
        dropout = flags.get("dropout", read_config(saved).model["dropout"])
        assert run.config.model == {**model_config(fitted.model), "dropout": dropout}
        assert run.config.settings["positions"] == "learned:offset=2" and run.config.settings["dropout"] == dropout
        assert f"fine-tuning {saved}: {flags['steps']} steps with a warm-up of {warmup}" in capsys.readouterr().err
        assert learning_rate(run.settings, warmup) == pytest.approx(5e-5, rel=0.01)
    assert run is not None and have_same_weights(fitted.model, compiled_model(run))
    assert train.main(["--resume", "--out", str(saved)]) == 2
    assert "--resume: this run was imported or saved from Python: fine-tune it with" in capsys.readouterr().err


def test_a_model_of_any_type_is_saved_in_float32_and_what_acts_in_training_alone_may_be_changed(tokenizer, tmp_path):
    for dtype in ("mixed_bfloat16", "float16"):
        model = Transformer(tokenizer.vocabulary_size, **SIZES, dtype=dtype)
        model.embedding_dropout.rate = 0.5
        model.trainable = False
        arrays: Any = (np.array(["one"]), np.array(["eins"]))
        Translator(model, tokenizer).save(tmp_path / dtype, validation=arrays)
        loaded = keras_transformer.load(tmp_path / dtype, engine="keras").model
        assert {weight.dtype for weight in loaded.trainable_weights} == {"float32"}
        assert have_same_weights(model, loaded)
        assert (tmp_path / dtype / "validation.target").read_text() == "eins\n", "arrays are lists too"


def test_two_vocabularies_are_kept_apart(tokenizer, other_tokenizer, tmp_path):
    """Two of pieces, or one with two normalizations."""
    for target in (other_tokenizer, tokenizer.normalized_by("nfc")):
        size = target.vocabulary_size
        of_source: dict[str, Any] = {"source_vocabulary_size": 64} if size != 64 else {}
        model = Transformer(size, **SIZES, **of_source)
        Translator(model, tokenizer, target).save(tmp_path / str(size))
        again = keras_transformer.load(tmp_path / str(size), engine="keras")
        assert again.source_tokenizer.model == tokenizer.model != target.model == again.target_tokenizer.model
        assert have_same_weights(model, again.model)


def test_a_run_is_replaced_whole_where_that_is_asked_for(fitted, translator, tmp_path):
    run = RunFolder(tmp_path / "run")
    run.path.mkdir()  # empty, it is as good as new
    fitted.save(run.path, validation=VALIDATION)
    for part in (run.checkpoints, run.tensorboard):
        part.mkdir()
    (run.path / ".123-model.keras").touch()  # of a process that was killed
    (run.path / "letter").write_text("dear ...")
    with pytest.raises(RequestError, match=f"expected a run and nothing else; {run.path} holds letter: move it away"):
        translator.save(run.path, overwrite=True)
    again = keras_transformer.load(run.path, engine="keras")
    assert have_same_weights(fitted.model, again.model) and run.checkpoints.is_dir()
    (run.path / "letter").unlink()
    (run.path / folders.REPLACED).mkdir()  # of a training that was killed
    (run.path / "config.json").rename(run.path / folders.REPLACED / "config.json")
    with folders.locked(run.path), pytest.raises(RequestError, match=f"^{run.path} is being written by process .* on "):
        translator.save(run.path, overwrite=True)
    translator.save(run.path, overwrite=True)
    assert names_in(run.path) == OWN and names_in(tmp_path) == {"run"}
    assert have_same_weights(translator.model, keras_transformer.load(run.path, engine="keras").model)


def test_a_run_that_appears_while_another_is_written_stays_and_one_that_fails_leaves_what_was_there(
    translator, built_run, tmp_path, monkeypatch
):
    """Imports write in the same way; what a process leaves that is killed is in `test_files.py`."""
    run, old = tmp_path / "run", names_in(built_run)
    monkeypatch.setattr(run_folder, "save_model", lambda *_: shutil.copytree(built_run, run))
    with pytest.raises(RequestError, match="^expected a new or empty folder, or a run and `overwrite=True`"):
        translator.save(run)
    monkeypatch.setattr(run_folder, "save_model", Mock(side_effect=OSError("full")))
    with pytest.raises(OSError, match="^full$"):
        translator.save(run, overwrite=True)
    assert names_in(run) == old and names_in(tmp_path) == {"run"}


def test_what_may_not_be_replaced_is_left_alone(translator, built_run, tmp_path, monkeypatch):
    """A stranger's folder, and that in which the process works."""
    run, empty = tmp_path / "run", tmp_path / "empty"
    empty.mkdir()
    (tmp_path / "letter").write_text("dear ...")
    for path, overwrite in ((built_run, False), (tmp_path, True), (tmp_path / "letter", True)):
        with pytest.raises(RequestError, match=r"^expected a new or empty folder, or a run and `overwrite=True` \("):
            translator.save(path, overwrite=overwrite)
    shutil.copytree(built_run, run)
    (run / "checkpoints").mkdir()
    for works_in, folder in ((run, "."), (run / "checkpoints", run), (empty, ".")):
        monkeypatch.chdir(works_in)
        with pytest.raises(RequestError, match="expected a folder that can be replaced; .* this process works$"):
            translator.save(folder, overwrite=True)
    assert names_in(tmp_path) == {"run", "empty", "letter"} and names_in(run) == {*names_in(built_run), "checkpoints"}
    assert not names_in(empty)


def test_a_model_that_its_configuration_does_not_tell_of_is_refused(tokenizer, tmp_path):
    """What is compared is in `export/test_signatures.py`."""
    model = Transformer(tokenizer.vocabulary_size, **SIZES, **PARTS)
    model.positions.offset = 5
    told = "a model that its configuration describes, with 2 at model.positions.offset; received 5 there: register"
    with pytest.raises(RequestError, match=told):
        Translator(model, tokenizer).save(tmp_path / "run")
    assert not list(tmp_path.iterdir())


def test_what_does_not_fit_is_refused_before_anything_is_written(fitted, tokenizer, other_tokenizer, tmp_path):
    model = Transformer(tokenizer.vocabulary_size, **SIZES)
    as_large = Tokenizer.train(lines(9), tokenizer.vocabulary_size)
    refused: list[tuple[str, Translator, dict[str, Any]]] = [
        ("received 1 sentences and 2 translations", fitted, {"validation": (["one"], ["eins", "zwei"])}),
        ("received 0 sentences and 0 translations", fitted, {"validation": ([], [])}),
        *(("expected two languages, such as", fitted, {"languages": wrong}) for wrong in ("en-de", ("en",))),
        ("^expected a vocabulary of 64 pieces; received 50$", Translator(model, other_tokenizer), {}),
        ("^expected one vocabulary, for the model has one matrix for both; received two$",
         Translator(model, tokenizer, as_large), {}),
    ]  # fmt: skip
    for message, translator, options in refused:
        with pytest.raises(RequestError, match=message):
            translator.save(tmp_path / "run", **options)
        assert not list(tmp_path.iterdir())
