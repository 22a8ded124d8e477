"""A pytest plugin: fixtures of a small run with random weights, enough to translate with."""

import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import pytest

from keras_transformer.models import model_config
from keras_transformer.runs import run_folder as runs
from keras_transformer.text.tokenizer import Tokenizer
from tests.tiny_text import lines

OWN: dict[str, Any] = {"num_beams": 2, "length_penalty": 0.6, "max_length": 5}


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    return Tokenizer.train(lines(0), 64)


@pytest.fixture(scope="session")
def other_tokenizer() -> Tokenizer:
    return Tokenizer.train(lines(1), 50)


@pytest.fixture(scope="session")
def tiny_model(tokenizer):
    import keras

    from keras_transformer.models.transformer import Transformer

    keras.utils.set_random_seed(3)
    model = Transformer(tokenizer.vocabulary_size, 2, 2, 16, 32, dropout=0.1, max_source_length=40)
    # Untrained, it would find everything about equally likely, and rounding would choose.
    for variable in model.trainable_variables:
        if variable.shape == (tokenizer.vocabulary_size, 16):
            variable.assign(4 * variable)
    return model


@pytest.fixture(scope="session")
def translator(tiny_model, tokenizer):
    from keras_transformer.tasks.translation.pipeline import Translator

    return Translator(tiny_model, tokenizer)


@pytest.fixture
def keras_is_used(monkeypatch, translator) -> Mock:
    """A `Mock` that is called for Keras, whose model is in memory already."""
    from keras_transformer.tasks.translation import loading

    monkeypatch.setattr(loading, "keras_decoder", opened := Mock(return_value=translator.decoder))
    return opened


@pytest.fixture(scope="session")
def built_run(tmp_path_factory, tiny_model, tokenizer) -> Path:
    run = runs.RunFolder(tmp_path_factory.mktemp("runs") / "tiny")
    run.path.mkdir()
    tokenizer.save(run.path / "tokenizer.model")
    runs.write_config(run, runs.RunConfig(model_config(tiny_model), {"seed": 1}, versions={"keras": "3"}))
    runs.save_model(run, tiny_model)
    return run.path


@pytest.fixture(scope="session")
def kept(built_run, tmp_path_factory) -> Path:
    """A run with a search of its own, whose graph it keeps."""
    from keras_transformer.tasks.translation.loading import load
    from tests.graphs import search_eagerly

    run = Path(shutil.copytree(built_run, tmp_path_factory.mktemp("kept") / "run"))
    runs.write_config(runs.RunFolder(run), replace(runs.read_config(run), search=OWN))
    with pytest.MonkeyPatch.context() as patch:
        search_eagerly(patch)
        load(run)
    return run


@pytest.fixture
def kept_run(kept, tmp_path) -> Path:
    """A copy of it that a test may damage."""
    return Path(shutil.copytree(kept, tmp_path / "kept"))


@pytest.fixture
def run_folder(built_run, tmp_path) -> Path:
    """A copy that a test may damage."""
    return Path(shutil.copytree(built_run, tmp_path / "run"))


@pytest.fixture
def eager(monkeypatch) -> None:
    """Translators compute step by step: a few steps take less time than to compile them."""
    from tests.graphs import search_eagerly

    search_eagerly(monkeypatch)
