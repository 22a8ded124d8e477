"""What comes next in histories, through the commands: trained, resumed, fine-tuned, used, measured; and refused."""

from __future__ import annotations

import csv
import io
import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer import load_recommender
from keras_transformer.__main__ import main as command
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import load_model, read_config
from keras_transformer.text.logs import read_log
from keras_transformer.training.settings import resolve
from tests.training.test_family_runs import same_arrays
from tests.training.test_language_modelling import train_all

SMALL = "--num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32 --context-length 8 --token-budget 256"
FLAGS = f"--task next-item --log log {SMALL} --warmup-steps 20 --average-last 1 --devices cpu --residual pre_norm"
RUNS = [
    f"{FLAGS} --steps 4 --checkpoint-every 2 --dropout 0.2 --ema 0.9 --out whole",
    "--resume --out begun --steps 4",
    f"{FLAGS} --steps 300 --checkpoint-every 150 --dropout 0 --learning-rate-factor 0.6 --out learned",
    "--task next-item --log other --init-from learned --steps 2 --checkpoint-every 1 --devices cpu --out tuned",
    f"{FLAGS} --steps 2 --checkpoint-every 1 --preset modern --mixed-precision bfloat16 --vocabulary-size 9 "
    "--patience 1 --out few",
]


def rows_of(num_users: int, draw: np.random.Generator) -> list[str]:
    """Users take turns between two rings of items, so that the last item but one tells the next one."""
    rows = []
    for user in range(num_users):
        first, second = draw.integers(0, 6, 2)
        for time in range(draw.integers(6, 20)):
            item = f"a{(first + time // 2) % 6}" if time % 2 == 0 else f"b{(second + time // 2) % 6}"
            rows.append(f"user {user}\t{item}\t{time}\n")
    return rows


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the runs. In the other log an item is new, and another one is held out alone."""
    folder, draw = tmp_path_factory.mktemp("next-item"), np.random.default_rng(0)
    rows = rows_of(200, draw)
    (folder / "log").write_text("user\titem\ttime\n" + "".join(draw.permutation(rows)), encoding="utf-8")
    new = ["eve\ta1\t1\n", "eve\tnew\t2\n", "eve\ta2\t3\n", "ida\ta1\t1\n", "ida\tlast\t2\n"]
    (folder / "other").write_text("".join(rows_of(50, draw) + new), encoding="utf-8")
    (folder / "said").write_text(train_all(folder, RUNS))
    return folder


@pytest.fixture
def run(monkeypatch, capfd, folder):
    """`run(input, *words)` → exit status, standard output, standard error of a command in the folder."""
    monkeypatch.chdir(folder)

    def run(source: str, *words: Any) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(source.encode())))
        status = command([str(word) for word in words])
        return (status, *capfd.readouterr())

    return run


def test_a_run_learns_more_than_the_last_item_tells(folder):
    config, learned = read_config(folder / "learned"), folder / "learned"
    assert config["model"]["kind"] == "sequence-encoder" and config["model"]["vocabulary_size"] == 4 + 12
    assert config["settings"]["task"] == "next-item" and not {"text", "tokenizer"} & config["settings"].keys()
    assert config["parameters"] == load_model(learned).count_params()
    assert config["weights"]["val_recall"] == 1 and config["weights"]["val_ndcg"] > 0.9
    rows = list(csv.DictReader((learned / "metrics.csv").open()))
    assert float(rows[-1]["val_ndcg"]) == pytest.approx(config["weights"]["val_ndcg"], abs=1e-6)
    assert float(rows[-1]["val_recall"]) == 1 and float(rows[-1]["ndcg"]) > float(rows[0]["val_ndcg"]) / 2
    found = load_recommender(learned).recommend([["a0", "b4", "a1"], ["a5"], ["b1", "a2", "b2"]], count=1)
    assert [best[0].item for best in found][::2] == ["b5", "a3"], "the ring of the item before the last goes on"
    histories = read_log(folder / "log").histories
    written = b"".join(path.read_bytes() for path in learned.rglob("*") if path.is_file())
    assert not any("\t".join(history).encode() in written for history in histories), "it keeps no user's history"
    ranks = load_recommender(learned).ranks(histories, batch_size=7)
    assert np.mean(1 / np.log2(1 + ranks)) == pytest.approx(config["weights"]["val_ndcg"], abs=1e-6)


def test_a_run_tells_what_is_to_be_beaten(folder):
    said = (folder / "said").read_text()
    assert "to beat: popularity · validation · recall" in said and "to beat: what followed the last item" in said
    assert "files: " in said and " events of 200 users with 12 items, 200 held out for validation" in said


def test_a_resumed_run_ends_with_the_same_bits(folder):
    for part in ("weights", "state"):
        name = f"checkpoints/00000004.{part}.npz"
        assert same_arrays(folder / "whole" / name, folder / "begun" / name)
    assert (folder / "whole" / "items.txt").read_bytes() == (folder / "begun" / "items.txt").read_bytes()
    assert read_config(folder / "whole")["weights"]["kind"] == "moving average"


def test_a_run_that_is_fine_tuned_keeps_items_and_nearly_its_weights(folder):
    learned, tuned = folder / "learned", folder / "tuned"
    assert read_config(tuned)["model"] == read_config(learned)["model"]
    assert (tuned / "items.txt").read_bytes() == (learned / "items.txt").read_bytes()
    near = [
        np.abs(a - b).max() for a, b in zip(*(load_model(one).get_weights() for one in (learned, tuned)), strict=True)
    ]
    assert 0 < max(near) < 0.1
    said = (folder / "said").read_text()
    assert "warning: 1 event(s) are left out: the vocabulary does not hold their items" in said
    assert "warning: 1 held-out event(s) have items that are not trained on, and count as missed" in said


def test_a_smaller_vocabulary_holds_the_most_frequent_items(folder):
    config = read_config(folder / "few")
    assert config["model"]["vocabulary_size"] == 9 and config["model"]["norm"]["name"] == "rms"
    names = (folder / "learned" / "items.txt").read_text().splitlines()
    assert (folder / "few" / "items.txt").read_text().splitlines() == names[:5]


def test_recommend_a_history_a_line_or_a_log(folder, run):
    status, out, err = run("a0\tb4\ta1\n\nnever\t a0 \tb4\ta1\n", "recommend", "learned", "--count", 3)
    rows = [json.loads(line)["items"] for line in out.splitlines()]
    assert status == 0 and [len(row) for row in rows] == [3, 3, 3]
    assert rows[0] == rows[2] and next(iter(rows[0])) == "b5"
    assert "warning: 1 event(s) of the histories are left out: the model does not know their items" in err
    assert all(list(row.values()) == sorted(row.values(), reverse=True) for row in rows)
    assert out == run("a0\tb4\ta1\n\nnever\ta0\tb4\ta1\n", "recommend", "learned", "--count", 3, "--batch-size", 1)[1]
    status, out, _ = run("", "recommend", "learned", "--log", "other", "--only-new", "--count", 99)
    rows, log = [json.loads(line) for line in out.splitlines()], read_log(folder / "other")
    assert status == 0 and [row["user"] for row in rows] == log.users
    for row, history in zip(rows, log.histories, strict=True):
        known = {"a0", "a1", "a2", "a3", "a4", "a5", "b0", "b1", "b2", "b3", "b4", "b5"}
        assert row["items"].keys() == known - set(history)


def test_probabilities_are_of_items_alone(folder):
    (found,) = load_recommender(folder / "learned").recommend([["a0"]], count=99)
    assert len(found) == 12 and sum(one.probability for one in found) == pytest.approx(1, abs=1e-5)


def test_only_the_end_of_a_long_history_counts(folder):
    recommender = load_recommender(folder / "learned")
    long = ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4"]
    assert recommender.recommend([long]) == recommender.recommend([long[-7:]])
    assert recommender.recommend([long]) != recommender.recommend([long[-6:]])


def test_embed_writes_vectors_of_histories_and_items(folder, run, tmp_path):
    files = {name: tmp_path / f"{name}.npy" for name in ("lines", "log", "items")}
    status, _, err = run("a0\tb4\n\n", "embed", "learned", "--out", files["lines"])
    assert status == 0 and err == f"wrote {files['lines']}: 2 vectors of 16 numbers\n"
    assert run("", "embed", "learned", "--log", "log", "--out", files["log"])[0] == 0
    assert run("", "embed", "learned", "--items", "--out", files["items"])[0] == 0
    lines, users, items = (np.load(file, allow_pickle=False) for file in files.values())
    assert lines.shape == (2, 16) and users.shape == (200, 16) and items.shape == (12, 16) and items.dtype == "float32"
    recommender = load_recommender(folder / "learned")
    np.testing.assert_allclose(lines, recommender.embed([["a0", "b4"], []]), atol=1e-6)
    found = recommender.recommend(read_log(folder / "log").histories, count=1)
    assert [best[0].item for best in found] == [recommender.items.names[best] for best in (users @ items.T).argmax(-1)]
    status, _, err = run("", "embed", "learned", "--items", "--log", "log", "--out", files["log"])
    assert status == 2 and "received both: give one" in err


def test_evaluate_tells_recall_and_ndcg_of_a_log(folder, run):
    status, out, _ = run("", "evaluate", "learned", "--log", "log")
    found, weights = json.loads(out), read_config(folder / "learned")["weights"]
    assert status == 0 and found["users"] == 200
    assert (found["recall@10"], found["ndcg@10"]) == pytest.approx((weights["val_recall"], weights["val_ndcg"]))
    assert found["recall@1"] == found["ndcg@1"] <= found["ndcg@5"] <= found["recall@5"] <= found["recall@20"]
    (folder / "single").write_text("a,b,1\nb,b,1\n")
    for words, message in {
        ("--log", "single"): "single: expected users with two events or more",
        ("--log", "log", "--source", "log"): "expected --source and --reference for a translator, or --log",
        ("--source", "log"): "expected --source and --reference for a translator, or --log",
        (): "expected --source and --reference for a translator, or --log",
    }.items():
        status, out, err = run("", "evaluate", "learned", *words)
        assert (status, out) == (2, "") and message in err


def test_other_commands_refuse_it_by_name(run):
    for words in (("translate",), ("generate",), ("classify",)):
        status, _, err = run("a\n", *words, "whole")
        assert status == 2 and "received sequence-encoder, which `recommend` takes" in err
    for flag, value in {"--count": 0, "--batch-size": 0, "--log": "missing"}.items():
        status, out, err = run("a\n", "recommend", "whole", flag, value)
        assert (status, out) == (2, "") and ("must be a whole number from 1" in err or "no such file: missing" in err)


REFUSED = {
    "--log a": "--log belongs to --task next-item; received --task translation",
    "--task next-item --text a": "--text belongs to --task language-model or masked-tokens or classification; received",
    "--task next-item --tokenizer a": "--tokenizer belongs to --task translation or language-model or",
    "--task next-item --log log --dataset series": "--log is your own log, and --dataset belongs to a named corpus",
    "--task next-item --dataset numbers": "a log is one of series, or your own with --log; received: 'numbers'",
    "--task next-item --log missing": "no such file: missing",
    "--task next-item --log nan": "nan, line 2: expected a time, a number such as seconds since 1970; received 'nan'",
    "--task next-item --log log --token-budget 7": "the token budget must hold the longest sentence, 8 tokens",
    "--task next-item --log strange --init-from learned": "expected histories with items of the vocabulary; received",
    "--task next-item --log learned/log": "--log must not lie in the folder of the new run",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_a_wrong_request_is_refused_and_nothing_is_written(folder, run, flags):
    (folder / "nan").write_text("a,b,1\na,c,nan\n")
    (folder / "strange").write_text("a,x,1\na,y,2\na,z,3\n")
    out = "refused"
    if "learned/log" in flags:
        shutil.copytree(folder / "learned", folder / "copy", dirs_exist_ok=True)
        shutil.copy(folder / "log", folder / "copy" / "log")
        flags, out = flags.replace("learned/log", "copy/log"), "copy"
    small = "" if "--init-from" in flags else f"{SMALL.replace('--token-budget 256', '')}"
    status, _, err = run("", "train", *f"{small} {flags} --devices cpu --out {out}".split())
    assert status == 2 and REFUSED[" ".join(flags.replace("copy/log", "learned/log").split())] in err
    assert not (folder / "refused").exists()


def test_items_of_another_run_are_refused(folder, tmp_path):
    shutil.copytree(folder / "learned", tmp_path / "run")
    (tmp_path / "run" / "items.txt").write_text("a\nb\n")
    with pytest.raises(RequestError, match="items.txt has 2 items, but the model of .* has 12: one of them is another"):
        load_recommender(tmp_path / "run")


def test_a_history_of_nothing_has_no_rank(folder):
    with pytest.raises(RequestError, match="expected histories of at least one item; received one of none"):
        load_recommender(folder / "learned").ranks([["a0"], []])


def test_the_vocabulary_is_as_large_as_the_log_unless_a_flag_bounds_it():
    assert resolve({"task": "next-item", "preset": "modern"}, {}).vocabulary_size == 4_000_000
    settings = resolve({"task": "next-item"}, {})
    assert (settings.name, settings.label_smoothing) == ("series", 0.0)
    assert str(settings.folder) == "runs/series-tiny"
    assert str(resolve({"task": "next-item", "log": "a"}, {}).folder) == "runs/files-tiny"
