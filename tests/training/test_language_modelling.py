"""Models of text, of pairs and of masked pieces: what is held out, how one continues, answers, fills and scores."""

import json
from pathlib import Path

import numpy as np
import pytest

from keras_transformer import load_classifier, load_generator
from keras_transformer.runs.run_folder import load_model, read_config
from keras_transformer.text.tokenizer import CONTROL_PIECES
from tests.golden.cases import WORDS, write_lines
from tests.golden.stored import unpack
from tests.training.runs import assert_weights_of, begun

LINES = [f"{one} and {other}: the {other} of {one}" for one in ("ba", "do", "fi", "gu") for other in ("ka", "lo", "mi")]
TEXT = "--task language-model --text text --vocabulary-type char --context-length 24 --token-budget 96 --devices cpu"
SIZES = "--num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32 --devices cpu"
TASK = f"--task language-model {SIZES} --context-length 24 --token-budget 512"
PAIRS = f"{TASK} --source source --target target --vocabulary-type bpe"
LONG = "ba " * 60


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder with a text of such lines, pairs, and three runs: `prose` of texts, `answering` of pairs, `filling`.

    A source begins with one of six words; the target is "the one is …". The context of `answering` holds 40 tokens.
    """
    folder, draw = tmp_path_factory.mktemp("texts"), np.random.default_rng(0)
    first = draw.choice(WORDS[:6], 400).tolist()
    sources = [" ".join([word, *draw.choice([word, word, "x", "y"], draw.integers(3, 7))]) for word in first]
    targets = [f"the one is {word}" for word in first]
    sources[:4], targets[:4] = [LONG, "", "fi", "gu gu"], ["the one is ba", "nothing", " ", "gu " * 70]
    files: dict[str, list[str]] = {
        "text": LINES * 2, "source": sources, "target": targets, "short": targets[1:], "first": first,
        "some": ["ba ba", "do"], "words": ["ba", "do"], "long": ["ba", "the one is " * 20], "blank": ["  ", " "],
        "prompts": ["lo fi", "", LONG], "odd": ["ba 日本"], "labelled": ["yes\tba", "no\tdo", "no\tfi"] * 30,
    }  # fmt: skip
    for name, lines in files.items():
        write_lines(folder / name, lines)
    for run, case in {"prose": "language-model", "answering": "answers", "filling": "masked-tokens"}.items():
        unpack(case, folder / run)
    return folder


def test_a_tenth_of_a_text_is_held_out_unless_another_is_named(folder):
    made = begun(folder, f"{TEXT} --out of-text", with_model=False)
    assert made.run.config.model.items() >= {"kind": "language-model", "context_length": 24}.items()
    assert made.run.config.model["vocabulary_size"] == len(set("".join(LINES))) + 5  # control ids, the line break
    held_out = (folder / "of-text/validation.text").read_text()
    assert held_out == "".join(f"{line}\n" for line in made.run.corpus.valid()) and 1 <= held_out.count("\n") <= 3
    made = begun(folder, f"{TEXT} --valid-text some --preset modern --out other", with_model=False)
    assert (folder / "other/validation.text").read_text() == "ba ba\ndo\n"
    assert made.run.config.model["positions"]["name"] == "rotary"


def test_generate_continues_prompts(folder, run):
    words = ("generate", "prose", "--prompt", "ba and", "--tokens", 8, "--temperature", 2, "--seed")
    drawn = run(*words, 3)
    assert drawn[0] == 0 and drawn[1].startswith("ba and") and len(drawn[1]) <= len("ba and") + 8 + 1
    assert drawn == run(*words, 3) != run(*words, 4)
    status, out, _ = run("generate", "prose", "--prompts", "prompts", "--tokens", 5, "--beams", 2, "--n-best", 2)
    lines = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [line["prompt"] for line in lines] == ["lo fi", "lo fi", "", "", LONG, LONG]


def test_score_agrees_with_the_run_and_info_tells_it(folder, run):
    status, out, _ = run("score", "prose", "--text", "prose/validation.text")
    found, weights = json.loads(out), read_config(folder / "prose").weights
    assert status == 0 and found["nats_per_token"] == pytest.approx(weights["val_loss"], rel=1e-4)
    assert found["characters"] == found["tokens"] == len((folder / "prose/validation.text").read_text())
    assert found["bits_per_character"] == pytest.approx(found["nats_per_token"] / np.log(2))
    odd = json.loads(run("score", "prose", "--text", "odd")[1])
    assert (odd["unread_characters"], odd["bits_per_character"], found["unread_characters"]) == (2, None, 0)
    status, out, _ = run("info", "prose")
    assert status == 0 and 'kind: "language-model"' in out and "val_loss" in out


def test_what_is_held_out_left_out_and_cut_is_counted_and_the_longest_answer_kept(folder):
    made = begun(folder, f"{PAIRS} --out of-pairs", with_model=False)
    held_out = Path("of-pairs/validation.source").read_text().splitlines()
    assert 15 <= len(held_out) <= 20 and {*held_out} <= {*Path("source").read_text().splitlines()}
    told = f"files: {397 - len(held_out)} pairs kept, {3 + len(held_out)} left out of training: 2 empty on a side, 1 "
    assert f"{told}with too long a target, {len(held_out)} held out for validation\n" in made.said
    limit = "11 pieces: half of --context-length 24 without its end, and --max-length 250"
    assert f"1 target(s) are too long; one may have {limit}" in made.said and "1 source(s) are cut to" in made.said
    longest = max(map(len, made.data.tokenizer.encode([f"the one is {word}" for word in WORDS[:6]])))
    assert read_config("of-pairs").answer_length == longest + 1


def test_generate_prints_the_answer_alone(folder, run):
    ((expected,), (of_long,)) = load_generator("answering").generate(["lo fi", LONG])
    words = ("generate", "answering", "--prompt", "lo fi")
    assert expected.text.startswith("the one is ") and run(*words)[:2] == (0, f"{expected.text}\n")
    status, out, err = run("generate", "answering", "--prompts", "prompts")
    found = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [one["prompt"] for one in found] == ["lo fi", "", LONG]
    assert (found[0]["text"], found[2]["text"]) == (expected.text, of_long.text)
    assert "1 prompt(s) are blank" in err
    assert len({*run(*words, "--beams", 2, "--n-best", 2)[1].splitlines()}) == 2
    assert run(*words, "--temperature", 1e5, "--seed", 3)[1] != f"{expected.text}\n"
    assert f"answers: up to {read_config('answering').answer_length} tokens" in run("info", "answering")[1]


def test_texts_and_pairs_are_scored_each_in_its_way(folder, run):
    files = [Path(f"answering/validation.{side}") for side in ("source", "target")]
    sides = [file.read_text().splitlines() for file in files]
    scores = load_generator("answering").score_answers(sides[0], sides[1])
    num_tokens = sum(score.num_tokens for score in scores)
    expected = read_config("answering").weights["val_loss"]
    assert -sum(score.log_prob for score in scores) / num_tokens == pytest.approx(expected, rel=1e-4)
    status, out, err = run("score", "answering", "--source", files[0], "--target", files[1])
    assert status == 0 and len(out.splitlines()) == len(sides[0]) and f"{num_tokens} tokens" in err


def test_a_run_of_pairs_may_begin_with_one_of_text_and_its_samples_are_answers(folder):
    sides = "--source source --target first --valid-source some --valid-target words"
    made = begun(folder, f"--task language-model {sides} --init-from prose --steps 1 --devices cpu --out tuned")
    assert read_config("prose").answer_length is None and read_config("tuned").answer_length == len("ba") + 1
    assert Path("tuned/tokenizer.model").read_bytes() == Path("prose/tokenizer.model").read_bytes()
    assert Path("tuned/validation.target").read_text() == "ba\ndo\n"
    assert_weights_of(made.model, Path("prose"))
    lines = made.data.sample(load_generator("answering"), 1).splitlines()
    assert lines[:2] == ["source      ba ba", "reference   ba"] and lines[2].startswith("answer      the one is ")


def test_it_fills_what_the_others_tell(folder):
    found = load_classifier("filling").fill([f"{word} {word} <mask> {word}" for word in WORDS[:6]], num_best=2)
    assert [best[0].label.strip("▁") for (best,) in found if best] == WORDS[:6]
    assert all(best[0].probability > best[1].probability > 0 for (best,) in found if best)
    config = read_config("filling").model
    assert (config["num_control_ids"], config["num_labels"]) == (5, None)


def test_fill_prints_an_object_for_each_line(folder, run):
    source = "ba <mask> fi <mask>\n\nno mask\n" + "<mask> " * 40 + "\n"
    status, out, _ = run("fill", "filling", "--n-best", 3, stdin=source)
    rows = [json.loads(line) for line in out.splitlines()]
    assert status == 0 and [len(row["fills"]) for row in rows] == [2, 0, 0, 40]
    assert [best is None for best in rows[3]["fills"]] == [False] * 14 + [True] * 26, "of a context of 16"
    [best, *_] = json.loads(run("fill", "filling", "--n-best", 99, stdin=source)[1].splitlines()[0])["fills"]
    assert len(best) == read_config("filling").model["vocabulary_size"] - 5 and not {*CONTROL_PIECES} & {*best}
    assert rows[0]["text"] == "ba <mask> fi <mask>" and all(len(best) == 3 for best in rows[0]["fills"])
    assert out == run("fill", "filling", "--n-best", 3, "--batch-size", 1, stdin=source)[1]


def test_a_classifier_begins_with_its_weights_and_vocabulary(folder):
    flags = "--task classification --text labelled --steps 1 --devices cpu --out labels --init-from filling"
    made, parent = begun(folder, flags), load_model("filling")
    assert read_config("labels").labels == ["no", "yes"]
    assert Path("labels/tokenizer.model").read_bytes() == Path("filling/tokenizer.model").read_bytes()
    for states in ("embed", "states"):
        one, other = (np.asarray(getattr(model, states)(np.array([[2, 6, 7, 8, 3]]))) for model in (parent, made.model))
        np.testing.assert_allclose(other, one, atol=1e-6)


REFUSED = {
    "--task language-model --sampling 0.5": "--sampling belongs to --task translation; received --task language",
    "--task language-model --dataset numbers:en-de": "a text is one of pydoc-topics, or your own with --text",
    "--vocabulary-type char": "--vocabulary-type char is for tasks of one language",
    f"{TEXT} --context-length 9000 --token-budget 9000": "expected a text of at least 9000",
    "--task translation --init-from prose --source text --target text": "that run holds a language-model; received",
    f"{TEXT} --tokenizer own.model": "expected a vocabulary with a piece for line breaks",
    f"{PAIRS} --text source": "--text is one text, and --source and --target are pairs of texts; received both",
    f"{TASK} --source source --target short": "source has 400 lines and short has 399",
    f"{PAIRS} --context-length 4": "no pair is left after cleaning",
    f"{PAIRS} --context-length 8 --max-length 1": "a target may have 1 pieces: half of --context-length 8 without its",
    "--task masked-tokens --text text --tokenizer own.model": "expected a vocabulary with a mask, as a run of --task",
    "--task masked-tokens --text text --vocabulary-size 25 --valid-text blank": "expected lines of text to train and ",
}
MISUSED = {
    "evaluate prose --source text --reference text": "is one of --task language-model, which `generate` takes",
    "score {translator} --text text": "--text is for --task language-model; received it for --task translation",
    "score answering --text source": "answers texts: score pairs with it, by --source and --target",
    "score prose --source some --target words": "expected a model of pairs; this one continues a text",
    "score answering --source some --target long": "1 target(s) do not fit in the context, 40 tokens, beside their",
    "generate answering": "answers prompts; received none: give --prompt or --prompts",
}


def test_what_is_refused(folder, refused, run, built_run, tokenizer):
    tokenizer.save(folder / "own.model")
    for flags, message in REFUSED.items():
        assert message in refused(*flags.split()), flags
    for words, message in MISUSED.items():
        status, out, err = run(*words.format(translator=built_run).split())
        assert (status, out) == (2, "") and message in err, words
