"""`attention`: pictures of where the tokens of a text look."""

from __future__ import annotations

import json
import re

import keras
import numpy as np
import pytest

import keras_transformer
from keras_transformer.__main__ import main
from keras_transformer.commands import attention as command
from keras_transformer.plots import attention_picture, word_lines_picture

pytest_plugins = ["tests.tiny_run"]

TEXT = "a dog and a cat"


@pytest.fixture
def run(built_run, translator, monkeypatch, capfd):
    """`run(text, *options)` → exit status, standard error, and what was drawn. The model is in memory already."""
    drawn = []

    def spy(picture):
        def draw(*arguments):
            drawn.append(arguments)
            return picture(*arguments)

        return draw

    monkeypatch.setattr(keras_transformer, "load", lambda run: translator, raising=False)
    monkeypatch.setattr("keras_transformer.plots.attention_picture", spy(attention_picture), raising=False)
    monkeypatch.setattr("keras_transformer.plots.word_lines_picture", spy(word_lines_picture), raising=False)

    def run(text, *options):
        drawn.clear()
        status = main(["attention", str(built_run), text, *map(str, options)])
        return status, capfd.readouterr().err, list(drawn)

    return run


@pytest.mark.parametrize("suffix", ["png", "svg", "pdf"])
def test_a_picture_of_all_heads_is_written(run, translator, tmp_path, suffix):
    out = tmp_path / f"heads.{suffix}"
    status, err, [(found, layers, heads)] = run(TEXT, "--out", out)
    assert (status, err) == (0, f"wrote {out}\n")
    assert out.stat().st_size > 5_000 and [path.name for path in tmp_path.iterdir()] == [out.name]
    expected = {name: one.joined() for name, one in translator.attention(TEXT).items()}
    assert {name: one.queries for name, one in found.items()} == {name: one.queries for name, one in expected.items()}
    np.testing.assert_array_equal(found["cross"].scores, expected["cross"].scores)
    assert (layers, heads) == (None, None)


def test_a_page_has_the_text_for_its_title_and_pieces_to_switch_to(run, translator, tmp_path):
    out = tmp_path / "look.html"
    assert run("a dog </script> & a cat", "--attention", "cross", "--out", out)[:2] == (0, f"wrote {out}\n")
    page = out.read_text(encoding="utf-8")
    assert '<h1 dir="auto">a dog &lt;/script&gt; &amp; a cat</h1>' in page
    (data,) = re.findall(r'<script type="application/json" id="data">(.*?)</script>', page)
    (described,) = json.loads(data)
    expected = translator.attention("a dog </script> & a cat")["cross"]
    assert described["keys"]["pieces"] == [*expected.keys.labels]


def test_one_attention_some_heads_and_the_pieces_of_a_given_translation(run, translator, tmp_path):
    options = ["--target", "two dogs", "--attention", "cross", "--layers", 2, "--heads", 1, 2, "--pieces"]
    status, err, [(found, layers, heads)] = run(TEXT, "--out", tmp_path / "heads.png", *options)
    assert status == 0, err
    assert list(found) == ["cross"] and (layers, heads) == ([2], [1, 2])
    assert found["cross"].queries == translator.attention(TEXT, "two dogs")["cross"].queries


def test_lines_from_a_word_are_drawn_for_chosen_heads(run, translator, tmp_path):
    status, err, [(panels,)] = run(TEXT, "--word", "dog", "--layers", 2, "--out", tmp_path / "lines.png")
    assert status == 0, err
    assert [(one.query, one.layer, one.head) for one in panels] == [(1, 1, 0), (1, 1, 1)]
    assert panels[0].attention.queries == translator.attention(TEXT)["encoder"].queries.joined()


def test_a_word_of_the_translation_looks_in_the_decoder(run, tmp_path):
    options = ["--target", "two dogs run", "--word", "run", "--out", tmp_path / "lines.png"]
    status, err, [(panels,)] = run(TEXT, *options)
    assert status == 0, err
    assert panels[0].attention.queries.labels == ("<s>", "two", "dogs", "run")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--out", "nowhere/a.png"], "--out must be a file that ends in .html, .png, .svg or .pdf, in a folder"),
        (["--out", "a.jpeg"], "--out must be a file that ends in .html, .png, .svg or .pdf, in a folder"),
        (
            ["--out", "a.html", "--heads", "1"],
            "the page has all layers, heads and words to choose from: leave out --he",
        ),
        (["--out", "a.png", "--layers", "3"], "layers go from 1 to 2, and heads from 1 to 2; received: [3]"),
        (["--out", "a.png", "--word", "it", "--heads", "0"], "received: [0]"),
        (["--out", "a.png", "--word", "horse"], "expected one of the words"),
        (["--out", "a.png", "--attention", "self"], "--attention must be encoder or decoder or cross for this model"),
    ],
)
def test_a_wrong_request_is_one_line_and_writes_nothing(run, tmp_path, monkeypatch, options, message):
    monkeypatch.chdir(tmp_path)
    status, err, _ = run("it is a dog", *options)
    assert status == 2 and message in err and len(err.splitlines()) == 1
    assert not list(tmp_path.iterdir())


def test_a_blank_text_is_refused(run, tmp_path):
    assert run(" ", "--out", tmp_path / "a.png")[:2] == (2, "error: expected a text; received a blank one\n")


@pytest.mark.parametrize(
    ("kind", "loads", "text", "given"),
    [
        ("language-model", "load_generator", "a\tb", "a\tb"),
        ("encoder", "load_classifier", "a\tb", "a\tb"),
        ("sequence-encoder", "load_recommender", "a\tb c", ["a", "b c"]),
        ("image-classifier", "load_recognizer", "a.png", "a.png"),
    ],
)
def test_every_kind_of_run_is_asked_as_it_takes_its_input(kind, loads, text, given, monkeypatch):
    asked = []

    class Loaded:
        def attention(self, *arguments):
            asked.append(arguments)
            return {}

    monkeypatch.setattr(command, "read_config", lambda run: {"model": {"kind": kind}})
    monkeypatch.setattr(keras_transformer, loads, lambda run: Loaded(), raising=False)
    command.attentions_of("run", text, None)
    assert asked == [(given, None) if kind == "language-model" else (given,)]
    if kind != "language-model":
        with pytest.raises(keras_transformer.errors.RequestError, match="--target is for translators and language mod"):
            command.attentions_of("run", text, "b")


def test_a_run_is_read_from_the_disk(built_run, tmp_path):
    keras.utils.clear_session()
    assert main(["attention", str(built_run), TEXT, "--out", str(tmp_path / "heads.png")]) == 0
