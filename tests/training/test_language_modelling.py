"""Language models through the commands: trained, resumed, fine-tuned, continued, scored; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.run_folder import load_model, read_config
from keras_transformer.training.settings import resolve
from tests.golden.stored import unpack
from tests.interrupted import interrupt
from tests.training.runs import assert_same_end, assert_weights_of, begun, column, trained

pytest_plugins = ["tests.tiny_run"]

LINES = [f"{one} and {other}: the {other} of {one}" for one in ("ba", "do", "fi", "gu") for other in ("ka", "lo", "mi")]
FLAGS = (
    "--task language-model --text text --vocabulary-type char --num-layers 1 --num-heads 2 --hidden-dim 16 "
    "--intermediate-dim 32 --context-length 24 --token-budget 96 --warmup-steps 10 --checkpoint-every 2 "
    "--average-last 1 --devices cpu"
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with a text, and the run `whole`; `said` is what it said."""
    folder = tmp_path_factory.mktemp("language-model")
    (folder / "text").write_text("".join(f"{line}\n" for line in LINES * 2), encoding="utf-8")
    (folder / "valid").write_text(f"{LINES[3]}\n", encoding="utf-8")
    (folder / "said").write_text(trained(folder, f"{FLAGS} --steps 4 --dropout 0.2 --out whole"))
    return folder


def test_a_run_has_what_a_run_has(folder):
    config = read_config(folder / "whole")
    assert config["model"]["kind"] == "language-model" and config["model"]["context_length"] == 24
    assert config["settings"]["task"] == "language-model" and "sampling" not in config["settings"]
    assert config["parameters"] == load_model(folder / "whole").count_params()
    assert config["model"]["vocabulary_size"] == len(set("".join(LINES))) + 5  # four control ids, and the line break
    names = ["validation.text", "samples.txt", "metrics.csv", "tokenizer.model", "model.keras"]
    assert all((folder / "whole" / name).is_file() for name in names)
    held_out = (folder / "whole" / "validation.text").read_text()
    assert (folder / "text").read_text().endswith(held_out) and len(held_out) > 0
    losses = column(folder / "whole", "val_loss")
    assert column(folder / "whole", "step") == [2, 4] and losses[1] < losses[0]
    assert config["weights"]["val_loss"] == pytest.approx(losses[1], abs=1e-4), "one checkpoint is its own mean"
    assert f"validation · loss {config['weights']['val_loss']:.4f}" in (folder / "said").read_text()


def test_a_resumed_run_ends_with_the_same_bits(folder):
    interrupt(str(folder / "whole"), str(folder / "begun"), 4)
    assert "resuming at step 2\n" in trained(folder, "--resume --out begun")
    assert_same_end(folder / "whole", folder / "begun", 4)


def test_own_validation_text(folder):
    begun(folder, f"{FLAGS} --valid-text valid --preset modern --out valid-run", with_model=False)
    assert (folder / "valid-run" / "validation.text").read_text() == f"{LINES[3]}\n"
    assert read_config(folder / "valid-run")["model"]["positions"]["name"] == "rotary"


def test_a_run_that_is_fine_tuned_begins_with_sizes_vocabulary_and_weights(folder):
    made = begun(folder, "--task language-model --text text --init-from whole --steps 2 --devices cpu --out tuned")
    whole, tuned = folder / "whole", folder / "tuned"
    assert read_config(tuned)["model"] == read_config(whole)["model"]
    assert (tuned / "tokenizer.model").read_bytes() == (whole / "tokenizer.model").read_bytes()
    assert_weights_of(made.model, whole)


def test_generate(folder, run, tmp_path):
    whole = folder / "whole"
    drawn = run("generate", whole, "--prompt", "ba and", "--tokens", 30, "--seed", 3)
    assert drawn[0] == 0 and drawn[1].startswith("ba and") and 30 < len(drawn[1].strip("\n")) <= 36
    assert drawn == run("generate", whole, "--prompt", "ba and", "--tokens", 30, "--seed", 3)
    assert drawn != run("generate", whole, "--prompt", "ba and", "--tokens", 30, "--seed", 4)
    (tmp_path / "prompts").write_text("ba\n\nfi\n")
    asked = ("--prompts", tmp_path / "prompts", "--tokens", 5, "--beams", 2, "--n-best", 2)
    status, out, _ = run("generate", whole, *asked)
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [line["prompt"] for line in lines] == ["ba", "ba", "", "", "fi", "fi"]


def test_score_agrees_with_the_run_and_info_tells_it(folder, run):
    whole = folder / "whole"
    status, out, _ = run("score", whole, "--text", whole / "validation.text")
    found = json.loads(out)
    assert status == 0 and found["nats_per_token"] == pytest.approx(read_config(whole)["weights"]["val_loss"], rel=1e-5)
    assert found["characters"] == found["tokens"] == len((whole / "validation.text").read_text())
    assert found["bits_per_character"] == pytest.approx(found["nats_per_token"] / np.log(2))
    status, out, _ = run("info", whole)
    assert status == 0 and 'kind: "language-model"' in out and "val_loss" in out


def test_models_of_another_kind_are_refused_by_name(run, built_run, tmp_path):
    model = unpack("language-model", tmp_path / "run")
    (tmp_path / "lines").write_text("ba\n")
    files = ("--source", tmp_path / "lines", "--reference", tmp_path / "lines")
    words: tuple[object, ...]
    message = f"{model}: expected a model of the kind translator; received language-model, which `generate` takes"
    for words in (("translate", model), ("evaluate", model, *files)):
        status, out, err = run(*words)
        assert (status, out) == (2, "") and message in err
    message = "expected a model of the kind language-model; received translator, which `translate`"
    for words in (("generate", built_run), ("score", built_run, "--text", tmp_path / "lines")):
        status, _, err = run(*words)
        assert status == 2 and message in err


REFUSED = {
    "--task language-model --sampling 0.5": "--sampling belongs to --task translation; received --task language",
    "--task classification --source a --target b": "--source belongs to --task translation or language-model; received",
    "--text a": "--text belongs to --task language-model or masked-tokens or classification; received",
    "--task language-model --encoder-layers 2": "--encoder-layers belongs to --task translation",
    "--task language-model --valid-text a": "--valid-text needs --text; received none",
    "--task language-model --text a --dataset pydoc-topics": "--text is your own text, and --dataset belongs to",
    "--task language-model --dataset numbers:en-de": "a text is one of pydoc-topics, or your own with --text",
    "--vocabulary-type char": "--vocabulary-type char is for tasks of one language",
    "--task language-model --context-length 1": "--context-length must be an integer from 2",
    "--task language-model --text text --context-length 9000 --token-budget 9000": "expected a text of at least 9000",
    "--task language-model --text missing": "no such file: missing",
    "--task translation --init-from whole": "--init-from: that run holds a language-model; received --task translation",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_wrong_requests_are_refused_and_nothing_is_written(folder, monkeypatch, refused, flags):
    monkeypatch.chdir(folder)
    assert REFUSED[flags] in refused(*flags.split())


def test_a_vocabulary_without_line_breaks_is_refused(folder, monkeypatch, refused, tokenizer, tmp_path):
    monkeypatch.chdir(folder)
    tokenizer.save(tmp_path / "own.model")
    told = "expected a vocabulary with a piece for line breaks"
    assert told in refused(*FLAGS.split(), "--tokenizer", tmp_path / "own.model")


def test_the_recipe_of_the_named_text_and_the_default_of_the_task():
    settings = resolve({"task": "language-model"}, {})
    assert settings.dataset == "pydoc-topics" and settings.label_smoothing == 0.0
    assert str(settings.folder) == "runs/pydoc-topics-tiny"
    assert resolve({"task": "language-model", "label_smoothing": 0.2}, {}).label_smoothing == 0.2
