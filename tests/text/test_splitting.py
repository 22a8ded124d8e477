"""Where long text is split, and how its translations are joined."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest

from keras_transformer.text.splitting import divided, joined


def words(texts: Sequence[str]) -> list[int]:
    return [len(text.split()) for text in texts]


def characters(texts: Sequence[str]) -> list[int]:
    return list(map(len, texts))


def sentences(text: str) -> list[str]:
    """The sentences that are found in a text that is not split within them."""
    return [part.strip() for part in divided(text, 1, lambda texts: [2 if one == text else 1 for one in texts])]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("One dog. Two dogs! Three?", ["One dog.", "Two dogs!", "Three?"]),
        ('He said "No." Then he left. (Really?!) Yes…', ['He said "No."', "Then he left.", "(Really?!)", "Yes…"]),
        ("„Nein.“ Er ging. »Gut!« Ja.", ["„Nein.“", "Er ging.", "»Gut!«", "Ja."]),
        ("It is 3.5 km. See www.a.org. Done", ["It is 3.5 km.", "See www.a.org.", "Done"]),
        ("Am 3. Mai kam J. Smith, d. h. z. B. er. Ende", ["Am 3. Mai kam J. Smith, d. h. z. B. er.", "Ende"]),
        ("In 2016. Then. Am 23. Mai", ["In 2016.", "Then.", "Am 23. Mai"]),
        ("“What?” he asked. Nothing", ["“What?” he asked.", "Nothing"]),
        ("他说。“你好！”我走了？？是", ["他说。", "“你好！”", "我走了？？", "是"]),
        ("今日は３．５度。「はい。」終わり", ["今日は３．５度。", "「はい。」", "終わり"]),
        ("كيف؟ جيد. نعم", ["كيف؟", "جيد.", "نعم"]),
        ("वह गया। राम आया॥ अंत", ["वह गया।", "राम आया॥", "अंत"]),
        ("ሰላም።እንዴት።", ["ሰላም።", "እንዴት።"]),
    ],
)
def test_the_ends_of_sentences(text, expected):
    assert sentences(text) == expected


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
    assert divided("aaaaaa bb cc", 5, characters) == ["aaaaaa ", "bb cc"], "one word is too long"
    assert divided("一二三，四五六、七八九", 4, characters) == ["一二三，", "四五六、", "七八九"]
    assert divided("1,000,000 3:45", 9, characters) == ["1,000,000 ", "3:45"], "within a number nothing is split"


def test_the_parts_are_the_text_and_fit():
    draw = random.Random(0)
    for _ in range(200):
        some = ["ab", "c", "Dr", "3", "dog", "。", "猫", ". ", ", ", "! ", " ", "  ", "\t", "“", "”", "\u2028"]
        text = "".join(draw.choices(some, k=draw.randint(0, 60)))
        most = draw.randint(3, 20)
        parts = divided(text, most, characters)
        assert "".join(parts) == text
        assert all(len(part) <= most or not part.strip().count(" ") for part in parts)
        if len(text) <= most:
            assert parts == [text]


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (["One.", "Two."], "One. Two."),
        (["你好。", "再见！", "OK"], "你好。再见！OK"),
        (["はい", "そうです。", "終"], "はいそうです。終"),
        (["안녕하세요", "네."], "안녕하세요 네."),
        (["", "one", "", "two", ""], "one two"),
        ([], ""),
    ],
)
def test_joined_with_a_space_but_for_chinese_and_japanese(texts, expected):
    assert joined(texts) == expected
