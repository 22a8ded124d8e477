"""Where sentences begin, in hard cases of ten languages, where long text is split, and how its parts are joined."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import regex

from keras_transformer.text.splitting import divided, joined, sentences_in, usual_count

CHARACTERS = "".join(map(chr, range(0x110000)))


def rows(name: str) -> list[list[str]]:
    """The languages and texts of a file; a ‖ stands where a sentence begins."""
    return [line.split("\t", 1) for line in Path(__file__).with_name(name).read_text("utf-8").split("\n")[:-1]]


HARD = rows("hard_sentences.tsv")  # 20 in each of ten languages, written before any library was tried


def is_right(language: str, marked: str) -> bool:
    return sentences_in(marked.replace("‖", ""), language) == marked.split("‖")


def test_hard_cases():
    assert len(HARD) == 200
    wrong = [marked for language, marked in HARD if not is_right(language, marked)]
    assert len(wrong) <= 12, wrong
    # Without a known language more of them are wrong.
    assert sum(is_right(unknown, marked) for unknown in ("", "xx") for _, marked in HARD) >= 2 * 165


def test_the_ends_of_sentences():
    assert not [marked for language, marked in rows("ends_of_sentences.tsv") if not is_right(language, marked)]


def test_every_mark_that_ends_sentences_in_unicode_ends_them():
    marks = regex.findall(r"\p{Sentence_Terminal}", CHARACTERS)
    for mark in [*marks, *"།༎׃"]:  # Tibetan and Hebrew have marks that lack the property
        near = (one for one in CHARACTERS[max(0, ord(mark) - 96) : ord(mark) + 96] if one.isalpha())
        for word in ("Abc", "あいう", next(near, "अ") * 3):
            parts = [f"{word}{mark} ", word]
            is_comma = mark in "၊꧈᭞"
            assert sentences_in("".join(parts)) == (["".join(parts)] if is_comma else parts), f"U+{ord(mark):04X}"


def test_format_characters_hide_no_end_and_stay():
    draw, formats = random.Random(0), regex.findall(r"\p{Cf}", CHARACTERS)
    for language, marked in HARD:
        bare = regex.sub(r"\p{Cf}|‖", "", marked)
        text = "".join(char + draw.choice(formats) for char in bare)
        sentences = sentences_in(text, language)
        assert "".join(sentences) == text
        assert [regex.sub(r"\p{Cf}", "", one) for one in sentences] == sentences_in(bare, language)
    assert sentences_in("אתה?\u200f \u2067אני\u2069.") == ["אתה?\u200f ", "\u2067אני\u2069."], "it opens the second"
    assert divided("ab,\u200b \u200bcd", 5, lengths) == ["ab,\u200b ", "\u200bcd"]


def test_the_sentences_of_any_characters_are_the_text():
    draw = random.Random(0)
    usual = "ab AB.!?…。！？「」“”()।؟\u200c\u2067\u00a0\t\n\r1२一か|:;፡"
    for number in range(2_000):
        chars = [*usual * 4, *(chr(draw.randrange(0x110000)) for _ in usual)]
        text = "".join(draw.choices(chars, k=draw.randrange(60)))
        sentences = sentences_in(text, ("en", "de", "zh", "hi", None)[number % 5])
        assert "".join(sentences) == text and (all(sentences) or not text)


@pytest.mark.parametrize("unit", ["a. ", ". . ", "「a。", "U.S. ", "(a.) ", "1. ", "“ ", "AB. ", "猫……", "क|\u200b "])
def test_the_time_grows_with_the_length(unit):
    times = []
    for count in (1, 400, 3_200):  # the first reads the rules
        start = time.process_time()
        sentences_in(unit * count, "en")
        times.append(time.process_time() - start)
    assert times[2] < 0.2 + 20 * times[1], "eight times the length takes less than twenty times as long"


def lengths(texts: Sequence[str]) -> list[int]:
    return [*map(len, texts)]


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def test_sentences_stay_together_while_they_fit():
    text = "One two. Three four. Five six. Seven eight nine ten. Eleven."
    assert divided(text, 5, words) == ["One two. Three four. ", "Five six. ", "Seven eight nine ten. Eleven."]
    assert divided(text, 12, words) == [text]
    assert divided("", 5, words) == [""]


def test_a_long_sentence_is_split_after_commas_then_at_white_space_and_else_stays():
    text = "Before. One two three, four five, six. After."
    assert divided(text, 3, words) == ["Before. ", "One two three, ", "four five, six. ", "After."]
    text = "one two three four five, six"
    assert divided(text, 2, words) == ["one two ", "three four ", "five, ", "six"]
    assert divided("aaaaaa bb cc", 5, lengths) == ["aaaaaa ", "bb cc"], "one word is too long"
    assert divided("一二三，四五六、七八九", 4, lengths) == ["一二三，", "四五六、", "七八九"]
    assert divided("1,000,000 3:45", 9, lengths) == ["1,000,000 ", "3:45"], "within a number nothing is split"


def test_the_parts_are_the_text_and_fit():
    draw = random.Random(0)
    for _ in range(200):
        some = ["ab", "c", "Dr", "3", "dog", "。", "猫", ". ", ", ", "! ", " ", "  ", "\t", "“", "”", "\u2028"]
        text = "".join(draw.choices(some, k=draw.randint(0, 60)))
        most = draw.randint(3, 20)
        parts = divided(text, most, lengths)
        assert "".join(parts) == text
        assert all(len(part) <= most or not part.strip().count(" ") for part in parts)
        assert len(text) > most or parts == [text]


def test_joined_by_the_space_that_stood_there_or_as_the_language_writes():
    for texts, spaces, expected in (
        (["One.", "Two.", "Three."], ["", "  \t"], "One. Two.  \tThree."),
        (["你好。", "再见！", "OK"], [" ", ""], "你好。再见！OK"),
        (["你好。", "再见！", "OK"], ["\t", "\u3000"], "你好。\t再见！\u3000OK"),
        (["안녕하세요", "네."], [" "], "안녕하세요 네."),
        (["OK 你好。", "再见"], [" "], "OK 你好。再见"),
        (["", "one", "", "two", ""], [" "] * 4, "one two"),
    ):
        line, starts = joined(texts, spaces)
        assert line == expected
        assert all(line.startswith(text, start) for text, start in zip(texts, starts, strict=True))
    one, three = "One sentence.", "One. Two. Three."
    assert usual_count([one, three, three]) == 3
    assert usual_count([one, one, three]) == usual_count([one, three]) == usual_count([]) == usual_count([""]) == 1
