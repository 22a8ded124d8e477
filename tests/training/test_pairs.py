"""Language models of pairs through the commands: what is left out of them, how one answers, and what is refused."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import load_generator
from keras_transformer.run_folder import read_config
from tests.golden.cases import write_lines
from tests.golden.stored import unpack
from tests.training.runs import assert_weights_of, begun

WORDS = ["ba", "do", "fi", "gu", "ka", "lo"]  # a source begins with one of them; the target is "the one is …"
SIZES = "--num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32 --devices cpu"
TASK = f"--task language-model {SIZES} --context-length 24 --token-budget 512"
PAIRS = "--source source --target target --vocabulary-type bpe"
LONG = "ba " * 60


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A folder with pairs, a run `learned`, whose context holds 40 tokens, and a run of texts, `prose`."""
    folder, draw = tmp_path_factory.mktemp("pairs"), np.random.default_rng(0)
    first = draw.choice(WORDS, 400).tolist()
    sources = [" ".join([word, *draw.choice([word, word, "x", "y"], draw.integers(3, 7))]) for word in first]
    targets = [f"the one is {word}" for word in first]
    sources[:4], targets[:4] = [LONG, "", "fi", "gu gu"], ["the one is ba", "nothing", " ", "gu " * 70]
    files: dict[str, list[str]] = {
        "source": sources, "target": targets, "short": targets[1:], "first": first, "some": ["ba ba", "do"],
        "words": ["ba", "do"], "long": ["ba", "the one is " * 20], "prompts": ["lo fi", "", LONG],
    }  # fmt: skip
    for name, lines in files.items():
        write_lines(folder / name, lines)
    unpack("answers", folder / "learned")
    unpack("language-model", folder / "prose")
    return folder


@pytest.fixture
def folder(texts, monkeypatch) -> Path:
    monkeypatch.chdir(texts)
    return texts


def test_what_is_held_out_left_out_and_cut_is_counted_and_the_longest_answer_kept(folder):
    made = begun(folder, f"{TASK} {PAIRS} --out run", with_model=False)
    held_out = Path("run/validation.source").read_text().splitlines()
    assert 15 <= len(held_out) <= 20 and {*held_out} <= {*Path("source").read_text().splitlines()[-20:]}
    told = f"files: {397 - len(held_out)} pairs kept, {3 + len(held_out)} left out of training: 2 empty on a side, 1 "
    assert f"{told}with too long a target, {len(held_out)} held out for validation\n" in made.said
    limit = "11 pieces: half of --context-length 24 without its end, and --max-length 250"
    assert f"1 target(s) are too long; one may have {limit}" in made.said and "1 source(s) are cut to" in made.said
    longest = max(map(len, made.data.tokenizer.encode([f"the one is {word}" for word in WORDS])))
    assert read_config("run")["answer_length"] == longest + 1


def test_generate_prints_the_answer_alone(folder, run):
    ((expected,), (of_long,)) = load_generator("learned").generate(["lo fi", LONG])
    words = ("generate", "learned", "--prompt", "lo fi")
    assert expected.text.startswith("the one is ") and run(*words)[:2] == (0, f"{expected.text}\n")
    status, out, err = run("generate", "learned", "--prompts", "prompts")
    found = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [one["prompt"] for one in found] == ["lo fi", "", LONG]
    assert (found[0]["text"], found[2]["text"]) == (expected.text, of_long.text)
    assert "1 prompt(s) are blank" in err
    assert "1 prompt(s) longer than the context, 40 tokens, beside an answer of" in err
    assert len({*run(*words, "--beams", 2, "--n-best", 2)[1].splitlines()}) == 2
    assert run(*words, "--temperature", 1e5, "--seed", 3)[1] != f"{expected.text}\n"
    status, out, err = run("generate", "learned")
    assert (status, out) == (2, "") and "answers prompts; received none: give --prompt or --prompts" in err
    assert f"answers: up to {read_config('learned')['answer_length']} tokens" in run("info", "learned")[1]


def test_texts_and_pairs_are_scored_each_in_its_way(folder, run):
    files = [Path(f"learned/validation.{side}") for side in ("source", "target")]
    sides = [file.read_text().splitlines() for file in files]
    scores = load_generator("learned").score_answers(sides[0], sides[1])
    num_tokens = sum(score.num_tokens for score in scores)
    expected = read_config("learned")["weights"]["val_loss"]
    assert -sum(score.log_prob for score in scores) / num_tokens == pytest.approx(expected, rel=1e-4)
    status, out, err = run("score", "learned", "--source", files[0], "--target", files[1])
    assert status == 0 and len(out.splitlines()) == len(sides[0]) and f"{num_tokens} tokens" in err
    for words, message in {
        "learned --text source": "answers texts: score pairs with it, by --source and --target",
        "prose --source some --target words": "expected a model of pairs; this one continues a text",
        "learned --source some --target long": "1 target(s) do not fit in the context, 40 tokens, beside their sources",
    }.items():
        status, _, err = run("score", *words.split())
        assert status == 2 and message in err, words


def test_a_run_of_pairs_may_begin_with_one_of_text_and_its_samples_are_answers(folder):
    sides = "--source source --target first --valid-source some --valid-target words"
    made = begun(folder, f"--task language-model {sides} --init-from prose --steps 1 --devices cpu --out tuned")
    assert "answer_length" not in read_config("prose") and read_config("tuned")["answer_length"] == len("ba") + 1
    assert Path("tuned/tokenizer.model").read_bytes() == Path("prose/tokenizer.model").read_bytes()
    assert Path("tuned/validation.target").read_text() == "ba\ndo\n"
    assert_weights_of(made.model, Path("prose"))
    lines = made.data.sample(load_generator("learned"), 1).splitlines()
    assert lines[:2] == ["source      ba ba", "reference   ba"] and lines[2].startswith("answer      the one is ")


REFUSED = {
    f"{PAIRS} --text source": "--text is one text, and --source and --target are pairs of texts; received both",
    "--source source --target short": "source has 400 lines and short has 399",
    f"{PAIRS} --context-length 4": "no pair is left after cleaning",
    f"{PAIRS} --context-length 8 --max-length 1": "a target may have 1 pieces: half of --context-length 8 without its",
    "--text source --max-length 5 --task masked-tokens": "--max-length belongs to --task translation or language-model",
}


def test_wrong_requests_are_refused_and_nothing_is_written(folder, refused):
    for flags, message in REFUSED.items():
        assert message in refused(*TASK.split(), *flags.split()), flags
