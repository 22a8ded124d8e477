"""Models of masked pieces through the commands: filling masks, a classifier that begins with one, what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import Tokenizer, load_classifier
from keras_transformer.run_folder import load_model, read_config
from tests.golden.cases import WORDS
from tests.golden.stored import unpack
from tests.training.runs import begun


@pytest.fixture
def learned(tmp_path) -> Path:
    """A run that has learned lines of one word, several times."""
    return unpack("masked-tokens", tmp_path / "learned")


def test_it_fills_what_the_others_tell(learned):
    found = load_classifier(learned).fill([f"{word} {word} <mask> {word}" for word in WORDS[:6]], num_best=2)
    assert [best[0].label.strip("▁") for (best,) in found] == WORDS[:6]
    assert all(best[0].probability > best[1].probability > 0 for (best,) in found)
    config = read_config(learned)["model"]
    assert (config["num_control_ids"], config["num_labels"]) == (5, None)


def test_fill_prints_an_object_for_each_line(learned, run, tmp_path):
    source = "ba <mask> fi <mask>\n\nno mask\n" + "<mask> " * 40 + "\n"
    status, out, _ = run("fill", learned, "--n-best", 3, stdin=source)
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [len(row["fills"]) for row in rows] == [2, 0, 0, 14]
    assert rows[0]["text"] == "ba <mask> fi <mask>" and all(len(best) == 3 for best in rows[0]["fills"])
    assert out == run("fill", learned, "--n-best", 3, "--batch-size", 1, stdin=source)[1]
    assert run("fill", learned, "--n-best", 0, stdin=source)[0] == 2
    assert "this one has none: train with --task classification" in run("classify", learned, stdin=source)[2]
    classifier = unpack("classification", tmp_path / "run")
    assert "this one does not" in run("fill", classifier, stdin="<mask>\n")[2]


def test_a_classifier_begins_with_its_weights_and_vocabulary(learned, tmp_path):
    (tmp_path / "labelled").write_text("".join(f"{'yes' if word == 'ba' else 'no'}\t{word} do\n" for word in WORDS * 9))
    flags = "--task classification --text labelled --steps 1 --devices cpu --out tuned --init-from learned"
    made, parent = begun(tmp_path, flags), load_model(learned)
    assert read_config(tmp_path / "tuned")["labels"] == ["no", "yes"]
    assert (tmp_path / "tuned/tokenizer.model").read_bytes() == (learned / "tokenizer.model").read_bytes()
    for states in ("embed", "states"):
        one, other = (np.asarray(getattr(model, states)(np.array([[2, 6, 7, 8, 3]]))) for model in (parent, made.model))
        np.testing.assert_allclose(other, one, atol=1e-6)


def test_long_lines_are_cut_and_told(tmp_path):
    (tmp_path / "text").write_text("ba do fi gu\n" * 30)
    flags = "--task masked-tokens --text text --devices cpu --vocabulary-size 14 --out run --context-length"
    assert "line(s) have more pieces than --context-length 4 and are cut" in begun(tmp_path, f"{flags} 4", False).said
    assert "are cut" not in begun(tmp_path, f"{flags} 40 --overwrite", False).said


def test_a_vocabulary_without_a_mask_and_blank_text_are_refused(refused, tmp_path):
    Tokenizer.train(["ba do fi gu"] * 9, 14).save(tmp_path / "own.model")
    text, blank = (tmp_path / name for name in ("text", "blank"))
    text.write_text("ba do fi gu\n" * 9)
    blank.write_text("  \n \n")
    task = ("--task", "masked-tokens", "--text", text, "--vocabulary-size", 14)
    told = "expected a vocabulary with a mask, as a run of --task masked-tokens has"
    assert told in refused(*task, "--tokenizer", tmp_path / "own.model")
    assert "expected lines of text to train and to validate on" in refused(*task, "--valid-text", blank)
