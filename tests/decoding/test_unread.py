"""Characters that a vocabulary cannot read are counted and told of."""

from __future__ import annotations

from keras_transformer.decoding.unread import UnreadCharacters
from keras_transformer.text.tokenizer import Tokenizer
from tests.tiny_text import lines

pytest_plugins = ["tests.tiny_run"]

SAID = "{} line(s) hold characters that the vocabulary cannot read, such as {}; a vocabulary with --byte-fallback reads"
READ = ["two words", "\u2060\u200b", "one\u00a0two", "cafe\u0301", "ﬁve", "one\ttwo\x01\0\n", "▁ two", "t\u200dwo"]


def tokenizer_of(**options) -> Tokenizer:
    return Tokenizer.train([*lines(0), *["café"] * 20], 320 if options.get("byte_fallback") else 64, **options)


def told(capsys, texts: list[str], tokenizer: Tokenizer) -> str:
    unread = UnreadCharacters(tokenizer)
    unread.look(texts[:1])
    unread.look(texts[1:])
    unread.tell()
    return capsys.readouterr().err


def test_lines_are_counted_and_characters_shown_once(capsys) -> None:
    texts = ["one ჩ two ჩ", "☃ and ჩ", "two", "日本語とか漢字", "", "\u00ad"]
    said = told(capsys, texts, tokenizer_of())
    assert said.startswith("warning: " + SAID.format(3, "'ჩ', '☃', '日', '本', '語'"))


def test_what_has_a_nearest_form_or_is_cleaned_is_read_and_bytes_read_everything(capsys) -> None:
    tokenizer = tokenizer_of()
    for text in [*READ, "\udce9"]:
        assert told(capsys, [text], tokenizer) == "", repr(text)
    assert told(capsys, ["one ჩ two ☃ 日本語"], tokenizer_of(byte_fallback=True)) == ""


def test_a_tag_is_read_though_its_signs_are_not(capsys) -> None:
    tokenizer = tokenizer_of(tags=["<2de>"])
    assert told(capsys, ["<2de> two"], tokenizer) == ""
    assert "'<', '2', '>'" in told(capsys, ["<2de> two", "<2>"], tokenizer)


def test_a_character_is_told_of_once_in_a_process_behind_the_last_line(capsys, translator) -> None:
    translator.translate(["one ჩ", "two", "ჩ"], num_beams=1, max_length=3)
    assert capsys.readouterr().err.startswith("warning: " + SAID.format(2, "'ჩ'"))
    tokenizer = tokenizer_of()
    assert "'ჩ'" in told(capsys, ["ჩ"], tokenizer)
    assert told(capsys, ["ჩ", "ჩ two"], tokenizer) == ""
    assert "2 line(s)" in told(capsys, ["ჩ", "☃"], tokenizer)
