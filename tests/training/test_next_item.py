"""What comes next in histories, through the commands: what a run keeps of a log and is asked, what is refused."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import load_recommender
from keras_transformer.core.errors import RequestError
from keras_transformer.runs.run_folder import read_config
from keras_transformer.tasks.next_item.corpus import read_log
from tests.golden.cases import write_log
from tests.golden.stored import unpack
from tests.training.runs import begun

SMALL = "--num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32 --context-length 8 --token-budget 256"
ITEMS = [f"{ring}{place}" for ring in "ab" for place in range(6)]


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder with logs and the run `learned` of one. In `other` an item is new, and another is held out alone."""
    folder = tmp_path_factory.mktemp("next-item")
    write_log(folder, random.Random(7))
    unpack("next-item", folder / "learned")
    shutil.copy(folder / "log", folder / "learned/log")
    rows = (folder / "log").read_text().splitlines()[:400]
    new = ["eve\ta1\t1", "eve\tnew\t2", "eve\ta2\t3", "ida\ta1\t1", "ida\tlast\t2"]
    texts = {"other": [*rows, *new], "single": ["a,b,1", "b,b,1"]}
    for name, lines in {**texts, "strange": ["a,x,1", "a,y,2", "a,z,3"]}.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    return folder


def test_a_run_keeps_no_history_and_a_smaller_vocabulary_the_most_frequent_items(folder):
    begun(folder, f"--task next-item --log log {SMALL} --preset modern --vocabulary-size 9 --out few", with_model=False)
    written = b"".join(path.read_bytes() for path in Path("few").rglob("*") if path.is_file())
    assert not any("\t".join(history).encode() in written for history in read_log("log").histories)
    assert read_config("few").model.items() >= {"vocabulary_size": 9, "context_length": 8}.items()
    assert Path("few/items.txt").read_text().splitlines() == Path("learned/items.txt").read_text().splitlines()[:5]


def test_a_run_that_is_fine_tuned_tells_of_items_that_it_does_not_know(folder):
    flags = "--task next-item --log other --init-from learned --steps 2 --devices cpu --out tuned"
    made = begun(folder, flags, with_model=False)
    assert Path("tuned/items.txt").read_bytes() == Path("learned/items.txt").read_bytes()
    assert "warning: 1 event(s) are left out: the vocabulary does not hold their items" in made.said
    assert "warning: 1 held-out event(s) have items that are not trained on, and count as missed" in made.said


def test_recommend_a_history_a_line_or_a_log(folder, run):
    lines, words = "a0\tb4\ta1\n\nnever\t a0 \tb4\ta1\n", ("recommend", "learned", "--count", 3)
    status, out, err = run(*words, stdin=lines)
    rows = [json.loads(line)["items"] for line in out.splitlines()]
    assert status == 0 and [len(row) for row in rows] == [3, 3, 3]
    assert rows[0] == rows[2] and next(iter(rows[0])) == "b5"
    assert out == run(*words, "--batch-size", 1, stdin=lines)[1]
    status, out, _ = run("recommend", "learned", "--log", "other", "--only-new", "--count", 99)
    rows, log = [json.loads(line) for line in out.splitlines()], read_log("other")
    assert status == 0 and [row["user"] for row in rows] == log.users
    for row, history in zip(rows, log.histories, strict=True):
        assert row["items"].keys() == {*ITEMS} - {*history}


def test_a_recommender(folder, tmp_path):
    recommender = load_recommender("learned")
    found = recommender.recommend([["a0", "b4", "a1"], ["b1", "a2", "b2"]], count=1)
    assert [best[0].item for best in found] == ["b5", "a3"], "the ring of the item before the last goes on"
    (all_items,) = recommender.recommend([["a0"]], count=99)
    assert len(all_items) == 12 and sum(one.probability for one in all_items) == pytest.approx(1, abs=1e-5)
    long = ["a0", "b0", "a1", "b1", "a2", "b2", "a3", "b3", "a4", "b4"]
    assert recommender.recommend([long]) == recommender.recommend([long[-7:]]) != recommender.recommend([long[-6:]])
    with pytest.raises(RequestError, match="expected histories of at least one item; received one of none"):
        recommender.ranks([["a0"], []])
    shutil.copytree("learned", tmp_path / "run")
    (tmp_path / "run/items.txt").write_text("a\nb\n")
    with pytest.raises(RequestError, match="items.txt has 2 items, but the model of .* has 12: one of them is another"):
        load_recommender(tmp_path / "run")


def test_embed_writes_vectors_of_histories_and_items(folder, run, tmp_path):
    vectors = {"lines": (), "log": ("--log", "log"), "items": ("--items",)}
    for name, flags in vectors.items():
        assert run("embed", "learned", *flags, "--out", tmp_path / f"{name}.npy", stdin="a0\tb4\n\n")[0] == 0
    lines, users, items = (np.load(tmp_path / f"{name}.npy", allow_pickle=False) for name in vectors)
    assert users.shape == (200, 16) and items.shape == (12, 16) and items.dtype == "float32"
    recommender = load_recommender("learned")
    np.testing.assert_allclose(lines, recommender.embed([["a0", "b4"], []]), atol=1e-6)
    found = recommender.recommend(read_log("log").histories, count=1)
    assert [best[0].item for best in found] == [recommender.items.names[best] for best in (users @ items.T).argmax(-1)]


def test_evaluate_tells_recall_and_ndcg_of_a_log(folder, run):
    status, out, _ = run("evaluate", "learned", "--log", "log")
    found, weights = json.loads(out), read_config("learned").weights
    assert status == 0 and found["users"] == 200
    assert (found["recall@10"], found["ndcg@10"]) == pytest.approx((weights["val_recall"], weights["val_ndcg"]))
    assert found["recall@1"] == found["ndcg@1"] <= found["ndcg@5"] <= found["recall@5"] <= found["recall@20"] == 1
    status, out, err = run("evaluate", "learned", "--log", "other")
    assert json.loads(out)["unknown"] == 1 and json.loads(out)["recall@20"] < 1
    assert "1 of 35 last event(s) have items that the model does not know, and count as missed" in err


MISUSED = {
    "evaluate learned --log single": "single: expected users with two events or more",
    "recommend learned --count 0": "must be a whole number from 1",
}
REFUSED = {
    "--dataset numbers": "a log is one of series, or your own with --log; received: 'numbers'",
    "--log strange --init-from learned": "expected histories with items of the vocabulary; received",
    "--log learned/log --out learned --overwrite": "--log must not lie in the folder of the new run",
}


def test_what_is_refused(folder, run, refused):
    for words, message in MISUSED.items():
        assert message in run(*words.split(), stdin="a\n")[2], words
    for words, message in REFUSED.items():
        assert message in refused("--task", "next-item", *words.split()), words
