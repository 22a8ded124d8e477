"""Language models of pairs through the commands: trained, resumed, answering, scored; and what is refused."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import load_generator
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.run_folder import load_model, read_config
from keras_transformer.text.tokenizer import Tokenizer
from tests.training.test_family_runs import same_arrays
from tests.training.test_language_modelling import train_all

WORDS = ["ba", "do", "fi", "gu", "ka", "lo"]  # a source has one of them among other words; the target is "the one is …"
SIZES = "--num-layers 1 --num-heads 2 --hidden-dim 32 --intermediate-dim 64 --devices cpu --residual pre_norm"
TASK = f"--task language-model {SIZES} --context-length 24 --token-budget 512 --warmup-steps 20 --average-last 1"
PAIRS = "--source source --target target --vocabulary-type bpe"
FLAGS = f"{TASK} {PAIRS}"
RUNS = [
    f"{FLAGS} --steps 4 --checkpoint-every 2 --dropout 0.2 --attention compressed:width=4 --out whole",
    "--resume --out begun --steps 4",
    f"{FLAGS} --steps 2 --checkpoint-every 2 --dropout 0 --token-budget 12000 --out one",
    f"{FLAGS} --steps 2 --checkpoint-every 2 --dropout 0 --token-budget 12000 --accumulate 2 --out two",
    f"{FLAGS} --steps 200 --checkpoint-every 100 --dropout 0 --learning-rate-factor 2 --out learned",
    f"{TASK} --text source --vocabulary-type char --steps 1 --checkpoint-every 1 --out prose",
    "--task language-model --source source --target first --valid-source some --valid-target words --init-from prose "
    "--steps 1 --checkpoint-every 1 --devices cpu --out tuned",
]
LONG = "ba " * 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with the runs."""
    folder, draw = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    first = draw.choice(WORDS, 400).tolist()
    sources = [" ".join([word, *draw.choice([word, word, "x", "y"], draw.integers(3, 7))]) for word in first]
    targets = [f"the one is {word}" for word in first]
    sources[:4], targets[:4] = [LONG, "", "fi", "gu gu"], ["the one is ba", "nothing", " ", "gu " * 70]
    files: dict[str, list[str]] = {
        "source": sources, "target": targets, "short": targets[1:], "first": first, "blank": [""] * 400,
        "some": ["ba ba", "do"], "words": ["ba", "do"],
    }  # fmt: skip
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "said").write_text(train_all(folder, RUNS), encoding="utf-8")
    return folder


def rows(run: Path) -> list[dict[str, str]]:
    with (run / "metrics.csv").open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def test_a_run_says_that_it_answers_and_how_long(folder, run):
    config, tokenizer = read_config(folder / "learned"), Tokenizer.load(folder / "learned" / "tokenizer.model")
    longest = max(map(len, tokenizer.encode([f"the one is {word}" for word in WORDS])))
    assert config["answer_length"] == longest + 1
    assert config["parameters"] == load_model(folder / "learned").count_params()
    assert "answer_length" not in read_config(folder / "prose")
    assert f"answers: up to {longest + 1} tokens" in run("info", folder / "learned")[1]
    validation = (folder / "learned" / "validation.source").read_text().splitlines()
    assert set(validation) <= {*(folder / "source").read_text().splitlines()[-20:]} and 15 <= len(validation) <= 20
    first = (folder / "learned" / "samples.txt").read_text().split("== step ")[-1].splitlines()[2:5]
    assert [line.split()[0] for line in first] == ["source", "reference", "answer"]
    assert first[1].split()[1:] == first[2].split()[1:]


def test_what_is_left_out_and_cut_is_counted(folder):
    said = (folder / "said").read_text()
    held_out = len((folder / "learned" / "validation.source").read_text().splitlines())
    assert (
        f"files: {397 - held_out} pairs kept, {3 + held_out} left out of training: 2 empty on a side, 1 with too long "
        f"a target, {held_out} held out for validation\n" in said
    )
    assert "1 target(s) are too long; one may have 11 pieces: half of --context-length 24 without its end" in said
    assert "1 source(s) are cut to" in said and "--max-length 250" in said


def test_the_loss_is_that_of_the_targets(folder, run):
    learned = folder / "learned"
    last = read_config(learned)["weights"]["val_loss"]
    assert last == pytest.approx(float(rows(learned)[-1]["val_loss"]), abs=1e-4)
    assert float(rows(learned)[-1]["loss"]) > 2 * last, "nobody can tell a source's first word, nor how long it is"
    sides = [(learned / f"validation.{side}").read_text().splitlines() for side in ("source", "target")]
    scores = load_generator(learned).score_answers(*sides)
    num_tokens = sum(score.num_tokens for score in scores)
    assert -sum(score.log_prob for score in scores) / num_tokens == pytest.approx(last, rel=1e-4)
    status, out, err = run(
        "score", learned, "--source", learned / "validation.source", "--target", learned / "validation.target"
    )
    assert status == 0 and len(out.splitlines()) == len(sides[0]) and f"{num_tokens} tokens" in err


def test_a_resumed_run_ends_with_the_same_bits(folder):
    for part in ("weights", "state"):
        name = f"checkpoints/00000004.{part}.npz"
        assert same_arrays(folder / "whole" / name, folder / "begun" / name)


def test_micro_batches_change_nothing(folder):
    for one, two in zip(*(load_model(folder / name).get_weights() for name in ("one", "two")), strict=True):
        np.testing.assert_allclose(two, one, atol=2e-4)


def test_it_answers_what_it_learned(folder):
    generator = load_generator(folder / "learned")
    found = generator.generate([f"{word} {word} {word}" for word in WORDS])
    assert [one.text for (one,) in found] == [f"the one is {word}" for word in WORDS]
    assert [one.text for (one,) in generator.generate([LONG, "do\ndo do"], options=SearchOptions(num_beams=1))] == [
        "the one is ba",
        "the one is do",
    ]


def test_generate_prints_the_answer_alone(folder, run, tmp_path):
    learned = folder / "learned"
    assert run("generate", learned, "--prompt", "gu gu gu")[:2] == (0, "the one is gu\n")
    assert run("generate", learned, "--prompt", "gu gu gu", "--tokens", 1)[1] == "the\n"
    (tmp_path / "prompts").write_text(f"fi fi fi\n\n{LONG}\n")
    status, out, err = run("generate", learned, "--prompts", tmp_path / "prompts")
    found = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [one["prompt"] for one in found] == ["fi fi fi", "", LONG]
    assert (found[0]["text"], found[2]["text"]) == ("the one is fi", "the one is ba")
    assert (
        "1 prompt(s) are blank" in err and "1 prompt(s) longer than the context, 24 tokens, beside an answer of" in err
    )
    several = run("generate", learned, "--prompt", "gu gu gu", "--beams", 2, "--n-best", 2)[1].splitlines()
    assert several[0] == "the one is gu" and len(set(several)) == 2
    assert run("generate", learned, "--prompt", "gu gu gu", "--temperature", 1e5, "--seed", 3)[1] != "the one is gu\n"
    status, out, err = run("generate", learned)
    assert (status, out) == (2, "") and "answers prompts; received none: give --prompt or --prompts" in err


def test_a_run_of_pairs_may_begin_with_one_of_text(folder):
    config = read_config(folder / "tuned")
    assert config["answer_length"] == len("ba") + 1
    assert (folder / "tuned" / "tokenizer.model").read_bytes() == (folder / "prose" / "tokenizer.model").read_bytes()
    assert (folder / "tuned" / "validation.target").read_text() == "ba\ndo\n"
    ((found,),) = load_generator(folder / "tuned").generate(["ba\nba"], options=SearchOptions(num_beams=1))
    assert "\n" not in found.text and len(found.ids) <= config["answer_length"]


def test_texts_and_pairs_are_scored_each_in_its_way(folder, run):
    status, _, err = run("score", folder / "learned", "--text", folder / "source")
    assert status == 2 and "answers texts: score pairs with it, by --source and --target" in err
    pairs = ("--source", folder / "some", "--target", folder / "words")
    status, _, err = run("score", folder / "prose", *pairs)
    assert status == 2 and "expected a model of pairs; this one continues a text" in err
    (folder / "long").write_text("ba\n" + "the one is " * 20 + "\n", encoding="utf-8")
    status, _, err = run("score", folder / "learned", "--source", folder / "some", "--target", folder / "long")
    assert status == 2 and "1 target(s) do not fit in the context, 24 tokens, beside their sources" in err


REFUSED = {
    "--source source": "--source and --target go together",
    f"{PAIRS} --text source": "--text is one text, and --source and --target are pairs of texts; received both",
    "--source source --target missing": "no such file: missing",
    "--source source --target short": "source has 400 lines and short has 399",
    "--source source --target target --dataset pydoc-topics": "--source is your own text, and --dataset belongs to",
    f"{PAIRS} --valid-source some": "validation takes a source and a target file; received one",
    f"{PAIRS} --context-length 4": "no pair is left after cleaning",
    f"{PAIRS} --context-length 8 --max-length 1": "a target may have 1 pieces: half of --context-length 8 without its",
    "--source blank --target blank": "no text to train a vocabulary from",
    f"{PAIRS} --token-budget 20": "the token budget must hold the longest sentence",
    f"{PAIRS} --separate-vocabularies": "--separate-vocabularies belongs to --task translation",
    f"{PAIRS} --bleu-sentences 5": "--bleu-sentences belongs to --task translation",
    "--text source --max-length 5 --task masked-tokens": "--max-length belongs to --task translation or language-model",
}


@pytest.mark.parametrize("flags", REFUSED)
def test_wrong_requests_are_refused_and_nothing_is_written(folder, monkeypatch, run, flags):
    monkeypatch.chdir(folder)
    status, _, err = run("train", *TASK.split(), *flags.split(), "--out", "refused")
    assert status == 2 and REFUSED[flags] in err
    assert not (folder / "refused").exists()


def test_own_tokenizer(folder, monkeypatch):
    """Any vocabulary has a separator."""
    from keras_transformer.training.language_modelling import prepare
    from keras_transformer.training.request import open_run

    monkeypatch.chdir(folder)
    Tokenizer.train(["ba do fi gu ka lo x y the one is nothing"] * 9, 24).save(folder / "own.model")
    given = {"task": "language-model", "source": "source", "target": "target", "tokenizer": "own.model", "out": "own"}
    opened = open_run({**given, "context_length": 40, "token_budget": 512})
    assert opened is not None
    opened.is_chief = False
    data = prepare(opened, folder / "cache", 1)
    assert data.tokenizer.model == (folder / "own.model").read_bytes()
    assert opened.config["model"]["vocabulary_size"] == data.tokenizer.vocabulary_size
