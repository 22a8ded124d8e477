"""Where long text is split, and how its translations are joined."""

import random
from collections.abc import Sequence

from keras_transformer.text.splitting import divided, joined, usual_count


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
        if len(text) <= most:
            assert parts == [text]


def test_joined_by_the_space_that_stood_there_or_as_the_language_writes():
    for texts, spaces, expected in (
        (["One.", "Two."], [""], "One. Two."),
        (["One.", "Two.", "Three."], ["  ", "\t"], "One.  Two.\tThree."),
        (["你好。", "再见！", "OK"], [" ", ""], "你好。再见！OK"),
        (["你好。", "再见！", "OK"], ["\t", "\u3000"], "你好。\t再见！\u3000OK"),
        (["はい", "そうです。", "終"], ["", "  "], "はいそうです。  終"),
        (["안녕하세요", "네."], [" "], "안녕하세요 네."),
        (["", "one", "", "two", ""], [" "] * 4, "one two"),
        (["one"], [], "one"),
    ):
        assert joined(texts, spaces) == expected
    one, three = "One sentence.", "One. Two. Three."
    assert usual_count([one, three, three]) == 3
    assert usual_count([one, one, three]) == usual_count([one, three]) == usual_count([]) == usual_count([""]) == 1
