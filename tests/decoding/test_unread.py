"""Characters that a vocabulary cannot read are counted and told of."""

from keras_transformer.text.tokenizer import Tokenizer, Unread
from tests.tiny_text import lines

READ = ["two words", "\u2060\u200b", "one\u00a0two", "cafe\u0301", "ﬁve", "one\ttwo\x01\0\n", "▁ two", "\udce9"]


def tokenizer_of(**options) -> Tokenizer:
    return Tokenizer.train([*lines(0), *["café"] * 20], 320 if options.get("byte_fallback") else 64, **options)


def told(capsys, texts: list[str], tokenizer: Tokenizer) -> str:
    unread = Unread(tokenizer)
    unread.look(texts[:1])
    unread.look(texts[1:])
    unread.tell()
    return capsys.readouterr().err


def test_lines_are_counted_and_characters_shown_once_in_a_process(capsys) -> None:
    tokenizer, texts = tokenizer_of(), ["one ჩ two ჩ", "☃ and ჩ", "two", "日本語とか漢字", "", "\u00ad"]
    said = "warning: 3 line(s) hold 11 character(s) that the vocabulary cannot read, such as 'ჩ', '☃', '日', "
    assert told(capsys, texts, tokenizer).startswith(said)
    assert told(capsys, ["ჩ", "☃ two"], tokenizer) == ""
    assert "2 line(s)" in told(capsys, ["ჩ", "ж"], tokenizer)


def test_what_has_a_nearest_form_or_is_cleaned_or_is_a_tag_is_read_and_bytes_read_everything(capsys) -> None:
    tokenizer = tokenizer_of(tags=["<2de>"])
    for text in [*READ, "<2de> two"]:
        assert told(capsys, [text], tokenizer) == "", repr(text)
    assert "'<', '2', '>'" in told(capsys, ["<2de> two", "<2>"], tokenizer), "its signs alone are not"
    assert told(capsys, ["one ჩ two ☃ 日本語"], tokenizer_of(byte_fallback=True)) == ""
