"""`attention`: pictures of where the tokens of a text look."""

import json
import re
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import keras_transformer
from keras_transformer import plots
from keras_transformer.__main__ import main
from keras_transformer.commands import runs as command
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.pipelines import pipeline_of
from keras_transformer.plots import attention_picture, word_lines_picture
from keras_transformer.runs.run_folder import RunConfig

TEXT = "a dog and a cat"


@pytest.fixture
def run(built_run, translator, monkeypatch, capfd):
    """`run(text, *options)` → exit status, standard error, and what was drawn. The model is in memory already.

    With `draws=False` the picture is a stand-in.
    """
    monkeypatch.setattr(keras_transformer, "load", lambda run: translator, raising=False)
    stand_in = SimpleNamespace(savefig=lambda path, dpi: path.write_bytes(b"a picture"))

    def run(text, *options, draws=True):
        pictures = [Mock(side_effect=each if draws else [stand_in]) for each in (attention_picture, word_lines_picture)]
        for name, picture in zip(("attention_picture", "word_lines_picture"), pictures, strict=True):
            monkeypatch.setattr(plots, name, picture, raising=False)
        status = main(["attention", str(built_run), text, *map(str, options)])
        return status, capfd.readouterr().err, [call.args for picture in pictures for call in picture.call_args_list]

    return run


def test_a_picture_of_all_heads_or_some_is_written(run, built_run, translator, tmp_path):
    for name in ("heads.png", "heads.svg"):
        out, only = tmp_path / name, ["--layers", 1, "--heads", 1] if name != "heads.png" else []
        status, err, [(found, *chosen)] = run(TEXT, "--target", "two dogs", "--out", out, *only)
        assert (status, err) == (0, f"wrote {out}\n") and out.stat().st_size > 5_000
        assert chosen == ([[1], [1]] if only else [None, None])
    expected = {name: one.joined() for name, one in translator.attention(TEXT, "two dogs").items()}
    assert {name: one.queries for name, one in found.items()} == {name: one.queries for name, one in expected.items()}
    np.testing.assert_array_equal(found["cross"].scores, expected["cross"].scores)
    options = ["--target", "two dogs", "--attention", "cross", "--layers", 2, "--heads", 1, 2, "--pieces"]
    status, err, [(found, layers, heads)] = run(TEXT, "--out", tmp_path / "a.png", *options, draws=False)
    assert (status, [*found], layers, heads) == (0, ["cross"], [2], [1, 2]), err
    assert found["cross"].queries == translator.attention(TEXT, "two dogs")["cross"].queries
    found = command.attentions_of(str(built_run), TEXT, "two dogs")  # read from the disk
    np.testing.assert_array_equal(found["cross"].scores, expected["cross"].scores)


def test_a_page_has_the_text_for_its_title_and_pieces_to_switch_to(run, translator, tmp_path):
    out = tmp_path / "look.html"
    options = ["--target", "two", "--attention", "cross", "--out", out]
    status, told, _ = run("a dog </script> & a cat", *options)
    assert status == 0 and "cannot read, such as '<', '/', '>', '&';" in told and told.endswith(f"wrote {out}\n")
    page = out.read_text(encoding="utf-8")
    assert '<h1 dir="auto">a dog &lt;/script&gt; &amp; a cat</h1>' in page
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    (described,) = json.loads(data)
    expected = translator.attention("a dog </script> & a cat", "two")["cross"]
    assert described["keys"]["pieces"] == [*expected.keys.labels]


def test_lines_from_a_word_are_drawn_for_chosen_heads(run, translator, tmp_path):
    status, err, [(panels,)] = run(TEXT, "--word", "dog", "--layers", 2, "--out", tmp_path / "a.png", draws=False)
    assert status == 0, err
    assert [(one.query, one.layer, one.head) for one in panels] == [(1, 1, 0), (1, 1, 1)]
    assert panels[0].attention.queries == translator.attention(TEXT)["encoder"].queries.joined()


def test_a_wrong_request_is_one_line_and_writes_nothing(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = "--out must be a file that ends in .html, .png, .svg or .pdf, in a folder"
    page = "the page has all layers, heads and words to choose from: leave out --heads"
    for flags, message in {
        "a.jpeg": out,
        "a.html --heads 1": page,
        "a.png --layers 3": "layers go from 1 to 2, and heads from 1 to 2; received: [3]",
        "a.png --attention self": "--attention must be encoder or decoder or cross for this",
    }.items():
        status, err, _ = run("it", "--out", *flags.split())
        assert status == 2 and message in err and len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_every_kind_of_run_is_asked_as_it_takes_its_input(monkeypatch):
    items = ["a", "b"]
    given = {"language-model": "a\tb", "classification": "a\tb", "next-item": items, "images": "a\tb"}
    for task, expected in given.items():
        held = pipeline_of(task)
        loaded: Any = object.__new__(held)
        loaded.labels, loaded.attention = ["x"], Mock(return_value={})
        config = RunConfig({"kind": TASKS[task].kind}, {"task": task})
        monkeypatch.setattr(command, "read_config", lambda run, config=config: config)
        monkeypatch.setattr(held, "load", lambda run, loaded=loaded: loaded)
        command.attentions_of("run", "a\tb", None)
        loaded.attention.assert_called_once_with(*((expected, None) if task == "language-model" else (expected,)))
        if task != "language-model":
            with pytest.raises(
                keras_transformer.core.errors.RequestError, match="--target is for models that write texts"
            ):
                command.attentions_of("run", "a\tb", "b")
