"""Where sentences begin: hard cases in ten languages, any characters, and how long it takes."""

import random
import time
from pathlib import Path

import pytest

from keras_transformer.text.boundaries import sentences_in

# 200 lines, 20 in each of ten languages, written before any library was tried: language, tab, text with ‖ where a
# sentence begins.
HARD = [line.split("\t", 1) for line in Path(__file__).with_name("hard_sentences.tsv").read_text("utf-8").splitlines()]


def is_right(language: str, marked: str) -> bool:
    return sentences_in(marked.replace("‖", ""), language) == marked.split("‖")


def test_hard_cases():
    assert len(HARD) == 200
    wrong = [marked for language, marked in HARD if not is_right(language, marked)]
    assert len(wrong) <= 12, wrong
    # Without a known language more of them are wrong.
    assert sum(is_right(unknown, marked) for unknown in ("", "xx") for _, marked in HARD) >= 2 * 165


def test_the_ends_of_sentences():
    for language, text, expected in (
        ("en", 'He said "No." He left. (Really?!) Yes…', ['He said "No." ', "He left. ", "(Really?!) ", "Yes…"]),
        ("de", "„Nein.“ Er ging. »Gut!« Ja.", ["„Nein.“ ", "Er ging. ", "»Gut!« ", "Ja."]),
        ("en", "It is 3.5 km. See www.a.org. Done", ["It is 3.5 km. ", "See www.a.org. ", "Done"]),
        ("deu", "Am 3. Mai kam Dr. Smith, d. h. er. Ende", ["Am 3. Mai kam Dr. Smith, d. h. er. ", "Ende"]),
        ("de_DE", "Das ist z. B. gut. Ende", ["Das ist z. B. gut. ", "Ende"]),
        (None, "“What?” he asked. Nothing", ["“What?” he asked. ", "Nothing"]),
        (None, "no capitals. none at all. fine", ["no capitals. ", "none at all. ", "fine"]),
        ("zh", "他说你好。我走了？？是", ["他说你好。", "我走了？？", "是"]),
        ("ja", "今日は３．５度。「はい。」と言った。終わり", ["今日は３．５度。", "「はい。」と言った。", "終わり"]),
        ("ar", "كيف؟ جيد. نعم", ["كيف؟ ", "جيد. ", "نعم"]),
        ("hi", "वह गया। राम आया॥ अंत", ["वह गया। ", "राम आया॥ ", "अंत"]), ("am", "ሰላም።እንዴት።", ["ሰላም።", "እንዴት።"]),
        ("en", "One.\tTwo.\u00a0 Three!", ["One.\t", "Two.\u00a0 ", "Three!"]), ("en", "", [""]),
    ):  # fmt: skip
        assert sentences_in(text, language) == expected


def test_the_sentences_of_any_characters_are_the_text():
    draw = random.Random(0)
    usual = "ab AB.!?…。！？「」“”()।؟\u200c\u00a0\t\n\r1२一か"
    for number in range(2_000):
        size = draw.randrange(60)
        chars = (draw.choice(usual) if draw.random() < 0.8 else chr(draw.randrange(0x110000)) for _ in range(size))
        text = "".join(chars)
        sentences = sentences_in(text, ("en", "de", "zh", "hi", None)[number % 5])
        assert "".join(sentences) == text and (all(sentences) or not text)


@pytest.mark.parametrize("unit", ["a. ", ". . ", "A? ", "「a。", "U.S. ", "(a.) ", "1. ", "“ ", "一。", "… "])
def test_the_time_grows_with_the_length(unit):
    times = []
    for count in (1, 400, 3_200):  # the first reads the rules
        start = time.process_time()
        sentences_in(unit * count, "en")
        times.append(time.process_time() - start)
    assert times[2] < 0.2 + 20 * times[1], "eight times the length takes less than twenty times as long"


def test_lines_of_one_sentence_wait_for_no_rules(run_program):
    assert run_program("short_sentences").returncode == 0
