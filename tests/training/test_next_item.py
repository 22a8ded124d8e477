"""What comes next in histories, through the commands: trained, resumed, fine-tuned, used, measured; and refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import load_recommender
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import load_model, read_config
from keras_transformer.text.logs import read_log
from keras_transformer.training.settings import resolve
from tests.golden.stored import unpack
from tests.interrupted import interrupt
from tests.training.runs import assert_same_end, assert_weights_of, begun, column, trained

SMALL = "--num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32 --context-length 8 --token-budget 256"
FLAGS = f"--task next-item --log log {SMALL} --warmup-steps 5 --average-last 1 --devices cpu --residual pre_norm"


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
    """A folder with logs, the run `whole`, and `learned`, which has learned the same for longer.

    `said` is what `whole` said. In the other log an item is new, and another one is held out alone.
    """
    folder, draw = tmp_path_factory.mktemp("next-item"), np.random.default_rng(0)
    rows = rows_of(200, draw)
    new = ["eve\ta1\t1\n", "eve\tnew\t2\n", "eve\ta2\t3\n", "ida\ta1\t1\n", "ida\tlast\t2\n"]
    logs = {
        "log": ["user\titem\ttime\n", *draw.permutation(rows)],
        "other": rows_of(50, draw) + new,
        "single": ["a,b,1\n", "b,b,1\n"],
        "nan": ["a,b,1\n", "a,c,nan\n"],
        "strange": ["a,x,1\n", "a,y,2\n", "a,z,3\n"],
    }
    for name, lines in logs.items():
        (folder / name).write_text("".join(lines), encoding="utf-8")
    unpack("next-item", folder / "learned")
    more = "--dropout 0.1 --steps 8 --checkpoint-every 6 --learning-rate-factor 0.2"
    (folder / "said").write_text(trained(folder, f"{FLAGS} {more} --out whole"))
    shutil.copy(folder / "log", folder / "whole" / "log")
    return folder


@pytest.fixture
def here(monkeypatch, folder, run):
    """`here(input, *words)` → exit status, standard output, standard error of a command in the folder."""
    monkeypatch.chdir(folder)
    return lambda source, *words: run(*words, stdin=source)


def test_a_run_measures_how_often_it_is_right(folder):
    config, whole = read_config(folder / "whole"), folder / "whole"
    assert config["model"]["kind"] == "sequence-encoder" and config["model"]["vocabulary_size"] == 4 + 12
    assert config["settings"]["task"] == "next-item" and not {"text", "tokenizer"} & config["settings"].keys()
    assert config["parameters"] == load_model(whole).count_params()
    assert column(whole, "val_ndcg")[-1] == pytest.approx(config["weights"]["val_ndcg"], abs=1e-6)
    assert (
        column(whole, "val_recall")[-1] == pytest.approx(config["weights"]["val_recall"])
        and column(whole, "ndcg")[-1] > 0
    )
    assert column(whole, "val_loss")[1] < column(whole, "val_loss")[0]
    histories = read_log(folder / "log").histories
    parts = [path for path in whole.rglob("*") if path.is_file() and path.name != "log"]
    written = b"".join(path.read_bytes() for path in parts)
    assert not any("\t".join(history).encode() in written for history in histories), "it keeps no user's history"
    ranks = load_recommender(whole).ranks(histories, batch_size=7)
    assert np.mean(1 / np.log2(1 + ranks) * (ranks <= 10)) == pytest.approx(config["weights"]["val_ndcg"], abs=1e-6)
    assert np.mean(ranks <= 10) == pytest.approx(config["weights"]["val_recall"])


def test_a_run_tells_what_is_to_be_beaten(folder):
    said = (folder / "said").read_text()
    assert "to beat: popularity · validation · recall" in said and "to beat: what followed the last item" in said
    assert "files: " in said and " events of 200 users with 12 items, 200 held out for validation" in said


def test_a_resumed_run_ends_with_the_same_bits(folder):
    interrupt(str(folder / "whole"), str(folder / "begun"), 8)
    assert "resuming at step 6\n" in trained(folder, "--resume --out begun")
    assert_same_end(folder / "whole", folder / "begun", 8)
    assert (folder / "whole" / "items.txt").read_bytes() == (folder / "begun" / "items.txt").read_bytes()


def test_a_run_that_is_fine_tuned_begins_with_items_and_weights(folder):
    learned, tuned = folder / "learned", folder / "tuned"
    made = begun(folder, "--task next-item --log other --init-from learned --steps 2 --devices cpu --out tuned")
    assert read_config(tuned)["model"] == read_config(learned)["model"]
    assert (tuned / "items.txt").read_bytes() == (learned / "items.txt").read_bytes()
    assert_weights_of(made.model, learned)
    assert "warning: 1 event(s) are left out: the vocabulary does not hold their items" in made.said
    assert "warning: 1 held-out event(s) have items that are not trained on, and count as missed" in made.said


def test_a_smaller_vocabulary_holds_the_most_frequent_items(folder):
    begun(folder, f"{FLAGS} --preset modern --vocabulary-size 9 --out few", with_model=False)
    config = read_config(folder / "few")
    assert config["model"]["vocabulary_size"] == 9 and config["model"]["norm"]["name"] == "rms"
    names = (folder / "whole" / "items.txt").read_text().splitlines()
    assert (folder / "few" / "items.txt").read_text().splitlines() == names[:5]


def test_a_learned_run_knows_more_than_the_last_item_tells(folder):
    found = load_recommender(folder / "learned").recommend([["a0", "b4", "a1"], ["a5"], ["b1", "a2", "b2"]], count=1)
    assert [best[0].item for best in found][::2] == ["b5", "a3"], "the ring of the item before the last goes on"


def test_recommend_a_history_a_line_or_a_log(folder, here):
    status, out, err = here("a0\tb4\ta1\n\nnever\t a0 \tb4\ta1\n", "recommend", "learned", "--count", 3)
    rows = [json.loads(line)["items"] for line in out.splitlines()]
    assert status == 0 and [len(row) for row in rows] == [3, 3, 3]
    assert rows[0] == rows[2] and next(iter(rows[0])) == "b5"
    assert "warning: 1 event(s) of the histories are left out: the model does not know their items" in err
    assert all(list(row.values()) == sorted(row.values(), reverse=True) for row in rows)
    assert out == here("a0\tb4\ta1\n\nnever\ta0\tb4\ta1\n", "recommend", "learned", "--count", 3, "--batch-size", 1)[1]
    status, out, _ = here("", "recommend", "learned", "--log", "other", "--only-new", "--count", 99)
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


def test_embed_writes_vectors_of_histories_and_items(folder, here, tmp_path):
    files = {name: tmp_path / f"{name}.npy" for name in ("lines", "log", "items")}
    status, _, err = here("a0\tb4\n\n", "embed", "learned", "--out", files["lines"])
    assert status == 0 and err == f"wrote {files['lines']}: 2 vectors of 16 numbers\n"
    assert here("", "embed", "learned", "--log", "log", "--out", files["log"])[0] == 0
    assert here("", "embed", "learned", "--items", "--out", files["items"])[0] == 0
    lines, users, items = (np.load(file, allow_pickle=False) for file in files.values())
    assert lines.shape == (2, 16) and users.shape == (200, 16) and items.shape == (12, 16) and items.dtype == "float32"
    recommender = load_recommender(folder / "learned")
    np.testing.assert_allclose(lines, recommender.embed([["a0", "b4"], []]), atol=1e-6)
    found = recommender.recommend(read_log(folder / "log").histories, count=1)
    assert [best[0].item for best in found] == [recommender.items.names[best] for best in (users @ items.T).argmax(-1)]


def test_evaluate_tells_recall_and_ndcg_of_a_log(folder, here):
    status, out, _ = here("", "evaluate", "whole", "--log", "log")
    found, weights = json.loads(out), read_config(folder / "whole")["weights"]
    assert status == 0 and found["users"] == 200
    assert (found["recall@10"], found["ndcg@10"]) == pytest.approx((weights["val_recall"], weights["val_ndcg"]))
    assert found["recall@1"] == found["ndcg@1"] <= found["ndcg@5"] <= found["recall@5"] <= found["recall@20"]


MISUSED = {
    "evaluate learned --log single": "single: expected users with two events or more",
    "evaluate learned --log log --source log": "expected --source and --reference for a translator, or --log",
    "evaluate learned --source log": "expected --source and --reference for a translator, or --log",
    "evaluate learned": "expected --source and --reference for a translator, or --log",
    "embed learned --items --log log --out vectors.npy": "received both: give one",
    "translate learned": "received sequence-encoder, which `recommend` takes",
    "generate learned": "received sequence-encoder, which `recommend` takes",
    "classify learned": "received sequence-encoder, which `recommend` takes",
    "recommend learned --count 0": "must be a whole number from 1",
    "recommend learned --batch-size 0": "must be a whole number from 1",
    "recommend learned --log missing": "no such file: missing",
}


@pytest.mark.parametrize("words", MISUSED)
def test_what_is_refused(here, words):
    status, out, err = here("a\n", *words.split())
    assert (status, out) == (2, "") and MISUSED[words] in err


REFUSED = {
    "--task translation --log a": "--log belongs to --task next-item; received --task translation",
    "--text a": "--text belongs to --task language-model or masked-tokens or classification; received",
    "--tokenizer a": "--tokenizer belongs to --task translation or language-model or",
    "--log log --dataset series": "--log is your own log, and --dataset belongs to a named corpus",
    "--dataset numbers": "a log is one of series, or your own with --log; received: 'numbers'",
    "--log missing": "no such file: missing",
    "--log nan": "nan, line 2: expected a time, a number such as seconds since 1970; received 'nan'",
    "--log log --token-budget 7": "the token budget must hold the longest sentence, 8 tokens",
    "--log strange --init-from learned": "expected histories with items of the vocabulary; received",
    "--log whole/log --out whole": "--log must not lie in the folder of the new run",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_a_wrong_request_is_refused_and_nothing_is_written(folder, monkeypatch, refused, flags):
    monkeypatch.chdir(folder)
    sizes = [] if "--init-from" in flags else SMALL.split()
    assert REFUSED[flags] in refused("--task", "next-item", *sizes, *flags.split())


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
