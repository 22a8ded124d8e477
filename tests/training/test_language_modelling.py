"""Language models through the commands: trained, resumed, fine-tuned, continued, scored; and what is refused."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from keras_transformer.run_folder import load_model, read_config
from keras_transformer.training.settings import resolve
from tests.training.test_family_runs import same_arrays

pytest_plugins = ["tests.tiny_run"]

ROOT = Path(__file__).resolve().parent.parent.parent
LINES = [f"{one} and {other}: the {other} of {one}" for one in ("ba", "do", "fi", "gu") for other in ("ka", "lo", "mi")]
FLAGS = (
    "--task language-model --text text --vocabulary-type char --num-layers 1 --num-heads 2 --hidden-dim 16 "
    "--intermediate-dim 32 --context-length 24 --token-budget 96 --warmup-steps 10 --checkpoint-every 2 "
    "--average-last 1 --dropout 0.2 --devices cpu"
)
RUNS = [
    f"{FLAGS} --steps 4 --out whole",
    "--resume --out begun --steps 4",
    f"{FLAGS} --steps 4 --accumulate 2 --dropout 0 --out two",
    f"{FLAGS} --steps 4 --dropout 0 --out one",
    f"{FLAGS} --steps 2 --valid-text valid --preset modern --patience 1 --out valid-run",
    "--task language-model --text text --init-from whole --steps 2 --checkpoint-every 1 --devices cpu --out tuned",
]
# TensorFlow takes seconds to start: the runs share a process. The run that is resumed was killed after two steps.
SCRIPT = """
import json, shutil, sys
from pathlib import Path
import train
from keras_transformer.training import records
records.Records._write_curves = lambda self: None

statuses = []
for flags in json.loads(sys.argv[1]):
    if "--resume" in flags:
        shutil.copytree("whole", "begun")
        for path in Path("begun/checkpoints").glob("*4.*.npz"):
            path.unlink()
        Path("begun/model.keras").unlink()
        config = json.loads(Path("begun/config.json").read_text())
        del config["weights"]
        Path("begun/config.json").write_text(json.dumps(config))
    statuses.append(train.main(flags.split()))
print(json.dumps(statuses))
"""


def train_all(folder: Path, runs: list[str]) -> str:
    """Trains runs in a folder, each with its flags, in one process; returns what they said."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, json.dumps(runs)],
        capture_output=True, text=True, cwd=folder, env={**os.environ, "PYTHONPATH": str(ROOT)}, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and json.loads(done.stdout.splitlines()[-1]) == [0] * len(runs), done.stderr
    return done.stderr


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the runs."""
    folder = tmp_path_factory.mktemp("language-model")
    (folder / "text").write_text("".join(f"{line}\n" for line in LINES * 2), encoding="utf-8")
    (folder / "valid").write_text(f"{LINES[3]}\n", encoding="utf-8")
    (folder / "said").write_text(train_all(folder, RUNS))
    return folder


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def weights(run: Path) -> list[np.ndarray]:
    return load_model(run).get_weights()


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
    assert [row["step"] for row in rows(folder / "whole")] == ["2", "4"]
    loss = float(rows(folder / "whole")[-1]["val_loss"])
    assert config["weights"]["val_loss"] == pytest.approx(loss, abs=1e-4), "one checkpoint is its own mean"
    assert f"validation · loss {config['weights']['val_loss']:.4f}" in (folder / "said").read_text()


def test_a_resumed_run_ends_with_the_same_bits(folder):
    for part in ("weights", "state"):
        name = f"checkpoints/00000004.{part}.npz"
        assert same_arrays(folder / "whole" / name, folder / "begun" / name)


def test_micro_batches_change_nothing(folder):
    for one, two in zip(weights(folder / "one"), weights(folder / "two"), strict=True):
        np.testing.assert_allclose(two, one, atol=2e-4)
    assert rows(folder / "one")[-1]["tokens"] == rows(folder / "two")[-1]["tokens"]


def test_own_validation_text(folder):
    assert (folder / "valid-run" / "validation.text").read_text() == f"{LINES[3]}\n"
    assert read_config(folder / "valid-run")["model"]["positions"]["name"] == "rotary"


def test_a_run_that_is_fine_tuned_keeps_the_sizes_and_the_vocabulary(folder):
    whole, tuned = folder / "whole", folder / "tuned"
    assert read_config(tuned)["model"] == read_config(whole)["model"]
    assert (tuned / "tokenizer.model").read_bytes() == (whole / "tokenizer.model").read_bytes()
    near = [np.abs(a - b).max() for a, b in zip(weights(whole), weights(tuned), strict=True)]
    assert 0 < max(near) < 0.1


def test_generate(folder, run, tmp_path):
    whole = folder / "whole"
    drawn = run("generate", whole, "--prompt", "ba and", "--tokens", 40, "--seed", 3)
    assert drawn[0] == 0 and drawn[1].startswith("ba and") and 40 < len(drawn[1].strip("\n")) <= 46
    assert drawn == run("generate", whole, "--prompt", "ba and", "--tokens", 40, "--seed", 3)
    assert drawn != run("generate", whole, "--prompt", "ba and", "--tokens", 40, "--seed", 4)
    (tmp_path / "prompts").write_text("ba\n\nfi\n")
    status, out, _ = run(
        "generate", whole, "--prompts", tmp_path / "prompts", "--tokens", 5, "--beams", 2, "--n-best", 2
    )
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [line["prompt"] for line in lines] == ["ba", "ba", "", "", "fi", "fi"]
    assert run("generate", whole, "--tokens", 5, "--beams", 1)[0] == 0


def test_score_agrees_with_the_run(folder, run):
    whole = folder / "whole"
    status, out, _ = run("score", whole, "--text", whole / "validation.text")
    found = json.loads(out)
    assert status == 0 and found["nats_per_token"] == pytest.approx(read_config(whole)["weights"]["val_loss"], rel=1e-5)
    assert found["characters"] == found["tokens"] == len((whole / "validation.text").read_text())
    assert found["bits_per_character"] == pytest.approx(found["nats_per_token"] / np.log(2))


def test_info(folder, run):
    status, out, _ = run("info", folder / "whole")
    assert status == 0 and 'kind: "language-model"' in out and "val_loss" in out


def test_other_commands_refuse_it_by_name(folder, run, tmp_path):
    whole = folder / "whole"
    message = f"{whole}: expected a model of the kind translator; received language-model, which `generate` takes"
    (tmp_path / "lines").write_text("ba\n")
    files = ("--source", tmp_path / "lines", "--reference", tmp_path / "lines")
    for words in (("translate", whole), ("evaluate", whole, *files)):
        status, out, err = run(*words)
        assert (status, out) == (2, "") and message in err


def test_a_translator_is_refused_by_name(run, built_run, tmp_path):
    (tmp_path / "text").write_text("ba\n")
    for words in (("generate", built_run), ("score", built_run, "--text", tmp_path / "text")):
        status, _, err = run(*words)
        assert (
            status == 2 and "expected a model of the kind language-model; received translator, which `translate`" in err
        )


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
def test_wrong_requests_are_refused_and_nothing_is_written(folder, monkeypatch, run, flags):
    monkeypatch.chdir(folder)
    status, _, err = run("train", *flags.split(), "--out", "refused")
    assert status == 2 and REFUSED[flags] in err
    assert not (folder / "refused").exists()


def test_the_recipe_of_the_named_text_and_the_default_of_the_task():
    settings = resolve({"task": "language-model"}, {})
    assert settings.dataset == "pydoc-topics" and settings.label_smoothing == 0.0
    assert str(settings.folder) == "runs/pydoc-topics-tiny"
    assert resolve({"task": "language-model", "label_smoothing": 0.2}, {}).label_smoothing == 0.2


def test_a_vocabulary_without_line_breaks_is_refused(folder, monkeypatch, run, tokenizer, tmp_path):
    monkeypatch.chdir(folder)
    tokenizer.save(tmp_path / "own.model")
    flags = f"{FLAGS} --tokenizer {tmp_path / 'own.model'} --out refused"
    status, _, err = run("train", *flags.split())
    assert status == 2 and "expected a vocabulary with a piece for line breaks" in err
    assert not (folder / "refused").exists()
