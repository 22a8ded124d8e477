"""Characters that a vocabulary cannot read are counted and told of."""

from keras_transformer.decoding.unread import UnreadCharacters
from keras_transformer.text.tokenizer import Tokenizer
from tests.tiny_text import lines

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


def test_lines_are_counted_and_characters_shown_once_in_a_process(capsys) -> None:
    tokenizer, texts = tokenizer_of(), ["one ჩ two ჩ", "☃ and ჩ", "two", "日本語とか漢字", "", "\u00ad"]
    assert told(capsys, texts, tokenizer).startswith("warning: " + SAID.format(3, "'ჩ', '☃', '日', '本', '語'"))
    assert told(capsys, ["ჩ", "☃ two"], tokenizer) == ""
    assert "2 line(s)" in told(capsys, ["ჩ", "ж"], tokenizer)


def test_what_has_a_nearest_form_or_is_cleaned_is_read_and_bytes_read_everything(capsys) -> None:
    tokenizer = tokenizer_of()
    for text in [*READ, "\udce9"]:
        assert told(capsys, [text], tokenizer) == "", repr(text)
    assert told(capsys, ["one ჩ two ☃ 日本語"], tokenizer_of(byte_fallback=True)) == ""


def test_a_tag_is_read_though_its_signs_are_not(capsys) -> None:
    tokenizer = tokenizer_of(tags=["<2de>"])
    assert told(capsys, ["<2de> two"], tokenizer) == ""
    assert "'<', '2', '>'" in told(capsys, ["<2de> two", "<2>"], tokenizer)
