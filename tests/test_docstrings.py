"""Docstring examples do what they say: each is run, in a folder that holds the run that they load."""

import doctest
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_transformer
from keras_transformer.layers.positions import TokenEmbedding
from keras_transformer.text.sentences import padded
from keras_transformer.text.tokenizer import END, START, Tokenizer
from tests.processes import ROOT

MODULES = sorted(
    ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    for package in ("keras_transformer", "export")
    for path in (ROOT / package).rglob("*.py")
    if ">>>" in path.read_text(encoding="utf-8")
)
# What an example may use without importing it: what its reader has imported.
KNOWN = {"np": np, "keras": keras, "keras_transformer": keras_transformer, "TokenEmbedding": TokenEmbedding}
BY_HEART = {"twenty-one": "einundzwanzig", "two": "zwei", "twelve": "zwölf"}


def examples() -> Iterator[Any]:
    """(module, docstring with examples), each once: a name imported elsewhere is not a second one."""
    finder = doctest.DocTestFinder(exclude_empty=True)
    for name in MODULES:
        module = import_module(name)
        for test in finder.find(module, name, extraglobs=KNOWN):
            if test.examples:
                yield pytest.param(test, id=test.name)


def translator_of(pairs: dict[str, str]) -> Any:
    """A translator that knows these words, and no others."""
    keras.utils.set_random_seed(1)
    tokenizer = Tokenizer.train([*pairs, *pairs.values()], 26)
    sources, targets = tokenizer.encode(list(pairs)), tokenizer.encode(list(pairs.values()))
    labels = padded([[*row, END] for row in targets])
    inputs = {
        "source_ids": padded([[*row, END] for row in sources]),
        "target_ids": padded([[START, *row] for row in targets]),
    }
    model = keras_transformer.Transformer(tokenizer.vocabulary_size, 1, 2, 16, 32, dropout=0.0)
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(0.02), loss, run_eagerly=True)
    model.fit(inputs, labels, sample_weight=(labels != 0).astype("float32"), epochs=20, verbose=0)
    return keras_transformer.Translator(model, tokenizer)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the run that the examples load."""
    folder = tmp_path_factory.mktemp("examples")
    (folder / "runs").mkdir()
    translator_of(BY_HEART).save(folder / "runs" / "numbers-en-de-auto", languages=("en", "de"))
    return folder


@pytest.mark.parametrize("test", list(examples()))
def test_an_example_gives_what_it_says(test, folder, monkeypatch):
    monkeypatch.chdir(folder)
    said: list[str] = []
    doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=said.append)
    assert not said, "".join(said)


def test_there_are_examples_of_what_a_reader_begins_with():
    assert {"keras_transformer", "keras_transformer.models.transformer.Transformer"} <= {each.id for each in examples()}
