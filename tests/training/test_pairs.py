"""Language models of pairs through the commands: trained, resumed, answering, scored; and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import load_generator
from keras_transformer.run_folder import load_model, read_config
from keras_transformer.text.tokenizer import Tokenizer
from tests.golden.stored import unpack
from tests.interrupted import interrupt
from tests.training.runs import assert_same_end, assert_weights_of, begun, column, trained

WORDS = ["ba", "do", "fi", "gu", "ka", "lo"]  # a source begins with one of them; the target is "the one is …"
SIZES = "--num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32 --devices cpu --residual pre_norm"
TASK = f"--task language-model {SIZES} --context-length 24 --token-budget 512 --warmup-steps 20 --average-last 1"
PAIRS = "--source source --target target --vocabulary-type bpe"
FLAGS = f"{TASK} {PAIRS} --learning-rate-factor 0.7"
LONG = "ba " * 60


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with pairs, and the run `whole`; `said` is what it said."""
    folder, draw = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    first = draw.choice(WORDS, 400).tolist()
    sources = [" ".join([word, *draw.choice([word, word, "x", "y"], draw.integers(3, 7))]) for word in first]
    targets = [f"the one is {word}" for word in first]
    sources[:4], targets[:4] = [LONG, "", "fi", "gu gu"], ["the one is ba", "nothing", " ", "gu " * 70]
    files: dict[str, list[str]] = {
        "source": sources, "target": targets, "short": targets[1:], "first": first, "blank": [""] * 400,
        "some": ["ba ba", "do"], "words": ["ba", "do"], "long": ["ba", "the one is " * 20],
    }  # fmt: skip
    for name, lines in files.items():
        (folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    more = "--steps 20 --checkpoint-every 18 --dropout 0.1 --attention compressed:width=4"
    (folder / "said").write_text(trained(folder, f"{FLAGS} {more} --out whole"), encoding="utf-8")
    return folder


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Path:
    """A run that has learned the same for longer; its context holds 40 tokens."""
    return unpack("answers", tmp_path_factory.mktemp("learned") / "run")


def test_a_run_says_that_it_answers_and_how_long(folder, run):
    whole = folder / "whole"
    config, tokenizer = read_config(whole), Tokenizer.load(whole / "tokenizer.model")
    longest = max(map(len, tokenizer.encode([f"the one is {word}" for word in WORDS])))
    assert config["answer_length"] == longest + 1
    assert config["parameters"] == load_model(whole).count_params()
    assert f"answers: up to {longest + 1} tokens" in run("info", whole)[1]
    validation = (whole / "validation.source").read_text().splitlines()
    assert set(validation) <= {*(folder / "source").read_text().splitlines()[-20:]} and 15 <= len(validation) <= 20
    first = (whole / "samples.txt").read_text().split("== step ")[-1].splitlines()[2:5]
    assert [line.split()[0] for line in first] == ["source", "reference", "answer"]
    assert (first[0].split()[1:], first[1].split()[1:]) == (
        validation[0].split(), (whole / "validation.target").read_text().splitlines()[0].split()
    )  # fmt: skip


def test_what_is_left_out_and_cut_is_counted(folder):
    said = (folder / "said").read_text()
    held_out = len((folder / "whole" / "validation.source").read_text().splitlines())
    told = f"files: {397 - held_out} pairs kept, {3 + held_out} left out of training: 2 empty on a side, 1 with too "
    assert f"{told}long a target, {held_out} held out for validation\n" in said
    assert "1 target(s) are too long; one may have 11 pieces: half of --context-length 24 without its end" in said
    assert "1 source(s) are cut to" in said and "--max-length 250" in said


def test_the_loss_is_that_of_the_targets(folder, run):
    whole = folder / "whole"
    last = read_config(whole)["weights"]["val_loss"]
    assert last == pytest.approx(column(whole, "val_loss")[-1], abs=1e-4)
    assert last < 0.8 * np.log(read_config(whole)["model"]["vocabulary_size"]), "better than guessing"
    files = [whole / f"validation.{side}" for side in ("source", "target")]
    sides = [file.read_text().splitlines() for file in files]
    scores = load_generator(whole).score_answers(*sides)
    num_tokens = sum(score.num_tokens for score in scores)
    assert -sum(score.log_prob for score in scores) / num_tokens == pytest.approx(last, rel=1e-4)
    status, out, err = run("score", whole, "--source", files[0], "--target", files[1])
    assert status == 0 and len(out.splitlines()) == len(sides[0]) and f"{num_tokens} tokens" in err


def test_a_resumed_run_ends_with_the_same_bits(folder):
    interrupt(str(folder / "whole"), str(folder / "begun"), 20)
    assert "resuming at step 18\n" in trained(folder, "--resume --out begun")
    assert_same_end(folder / "whole", folder / "begun", 20)


def test_sources_have_no_labels_in_micro_batches_either(folder):
    for name, more in {"one": "", "two": "--accumulate 2"}.items():
        trained(folder, f"{FLAGS} --steps 1 --dropout 0 --token-budget 12000 {more} --out {name}")
    for one, two in zip(*(load_model(folder / name).get_weights() for name in ("one", "two")), strict=True):
        np.testing.assert_allclose(two, one, atol=2e-4)


def test_generate_prints_the_answer_alone(learned, run, tmp_path):
    ((expected,), (of_long,)) = load_generator(learned).generate(["lo fi", LONG])
    assert expected.text.startswith("the one is ")
    assert run("generate", learned, "--prompt", "lo fi")[:2] == (0, f"{expected.text}\n")
    start = run("generate", learned, "--prompt", "lo fi", "--tokens", 5)[1].strip("\n")
    assert start != expected.text and expected.text.startswith(start)
    (tmp_path / "prompts").write_text(f"lo fi\n\n{LONG}\n")
    status, out, err = run("generate", learned, "--prompts", tmp_path / "prompts")
    found = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [one["prompt"] for one in found] == ["lo fi", "", LONG]
    assert (found[0]["text"], found[2]["text"]) == (expected.text, of_long.text)
    assert "1 prompt(s) are blank" in err
    assert "1 prompt(s) longer than the context, 40 tokens, beside an answer of" in err
    several = run("generate", learned, "--prompt", "lo fi", "--beams", 2, "--n-best", 2)[1].splitlines()
    assert len(set(several)) == 2
    drawn = run("generate", learned, "--prompt", "lo fi", "--temperature", 1e5, "--seed", 3)
    assert drawn[0] == 0 and drawn[1] != f"{expected.text}\n"
    status, out, err = run("generate", learned)
    assert (status, out) == (2, "") and "answers prompts; received none: give --prompt or --prompts" in err


def test_a_run_of_pairs_may_begin_with_one_of_text(folder, tmp_path):
    prose = unpack("language-model", tmp_path / "prose")
    assert "answer_length" not in read_config(prose)
    sides = "--source source --target first --valid-source some --valid-target words"
    made = begun(folder, f"--task language-model {sides} --init-from {prose} --steps 1 --devices cpu --out tuned")
    assert read_config(folder / "tuned")["answer_length"] == len("ba") + 1
    assert (folder / "tuned/tokenizer.model").read_bytes() == (prose / "tokenizer.model").read_bytes()
    assert (folder / "tuned/validation.target").read_text() == "ba\ndo\n"
    assert_weights_of(made.model, prose)


def test_texts_and_pairs_are_scored_each_in_its_way(folder, learned, run, tmp_path):
    status, _, err = run("score", learned, "--text", folder / "source")
    assert status == 2 and "answers texts: score pairs with it, by --source and --target" in err
    prose, some = unpack("language-model", tmp_path / "prose"), folder / "some"
    status, _, err = run("score", prose, "--source", some, "--target", folder / "words")
    assert status == 2 and "expected a model of pairs; this one continues a text" in err
    status, _, err = run("score", folder / "whole", "--source", some, "--target", folder / "long")
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
def test_wrong_requests_are_refused_and_nothing_is_written(folder, monkeypatch, refused, flags):
    monkeypatch.chdir(folder)
    assert REFUSED[flags] in refused(*TASK.split(), *flags.split())


def test_own_tokenizer(folder):
    """Any vocabulary has a separator."""
    Tokenizer.train(["ba do fi gu ka lo x y the one is nothing"] * 9, 24).save(folder / "own.model")
    made = begun(folder, f"{TASK} {PAIRS} --context-length 40 --tokenizer own.model --out own", with_model=False)
    assert made.data.tokenizer.model == (folder / "own.model").read_bytes()
    assert made.run.config["model"]["vocabulary_size"] == made.data.tokenizer.vocabulary_size
