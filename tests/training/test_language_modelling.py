"""Language models through the commands: what is held out, how one continues and scores texts, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.run_folder import read_config
from tests.golden.stored import unpack
from tests.training.runs import begun

LINES = [f"{one} and {other}: the {other} of {one}" for one in ("ba", "do", "fi", "gu") for other in ("ka", "lo", "mi")]
FLAGS = "--task language-model --text text --vocabulary-type char --context-length 24 --token-budget 96 --devices cpu"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The present folder, with a text and a run of such lines."""
    (tmp_path / "text").write_text("".join(f"{line}\n" for line in LINES * 2), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    unpack("language-model", tmp_path / "learned")
    return tmp_path


def test_the_end_of_a_text_is_held_out_unless_another_is_named(folder):
    made = begun(folder, f"{FLAGS} --out run", with_model=False)
    assert made.run.config["model"].items() >= {"kind": "language-model", "context_length": 24}.items()
    assert made.run.config["model"]["vocabulary_size"] == len(set("".join(LINES))) + 5  # control ids, the line break
    held_out = (folder / "run/validation.text").read_text()
    assert len(held_out) > 0 and (folder / "text").read_text().endswith(held_out)
    (folder / "valid").write_text(f"{LINES[3]}\n")
    made = begun(folder, f"{FLAGS} --valid-text valid --preset modern --out other", with_model=False)
    assert (folder / "other/validation.text").read_text() == f"{LINES[3]}\n"
    assert made.run.config["model"]["positions"]["name"] == "rotary"


def test_generate(folder, run):
    words = ("generate", "learned", "--prompt", "ba and", "--tokens", 8, "--temperature", 2, "--seed")
    drawn = run(*words, 3)
    assert drawn[0] == 0 and drawn[1].startswith("ba and") and len(drawn[1]) <= len("ba and") + 8 + 1
    assert drawn == run(*words, 3) != run(*words, 4)
    (folder / "prompts").write_text("ba\n\nfi\n")
    status, out, _ = run("generate", "learned", "--prompts", "prompts", "--tokens", 5, "--beams", 2, "--n-best", 2)
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [line["prompt"] for line in lines] == ["ba", "ba", "", "", "fi", "fi"]


def test_score_agrees_with_the_run_and_info_tells_it(folder, run):
    status, out, _ = run("score", "learned", "--text", "learned/validation.text")
    found, weights = json.loads(out), read_config(folder / "learned")["weights"]
    assert status == 0 and found["nats_per_token"] == pytest.approx(weights["val_loss"], rel=1e-4)
    assert found["characters"] == found["tokens"] == len((folder / "learned/validation.text").read_text())
    assert found["bits_per_character"] == pytest.approx(found["nats_per_token"] / np.log(2))
    status, out, _ = run("info", "learned")
    assert status == 0 and 'kind: "language-model"' in out and "val_loss" in out


REFUSED = {
    "--task language-model --sampling 0.5": "--sampling belongs to --task translation; received --task language",
    "--task language-model --valid-text a": "--valid-text needs --text; received none",
    "--task language-model --dataset numbers:en-de": "a text is one of pydoc-topics, or your own with --text",
    "--vocabulary-type char": "--vocabulary-type char is for tasks of one language",
    f"{FLAGS} --context-length 9000 --token-budget 9000": "expected a text of at least 9000",
    "--task translation --init-from learned --source text --target text": "that run holds a language-model; received",
    f"{FLAGS} --tokenizer own.model": "expected a vocabulary with a piece for line breaks",
}


def test_wrong_requests_are_refused_and_nothing_is_written(folder, refused, run, built_run, tokenizer):
    tokenizer.save(folder / "own.model")
    for flags, message in REFUSED.items():
        assert message in refused(*flags.split()), flags
    received = "learned: expected a model of the kind translator; received language-model, which `generate` takes"
    assert received in run("evaluate", "learned", "--source", "text", "--reference", "text")[2]
    other = "expected a model of the kind language-model; received translator, which `translate`"
    assert other in run("score", built_run, "--text", "text")[2]
