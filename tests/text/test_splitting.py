"""Where sentences begin, in hard cases of ten languages, where long text is split, and how its parts are joined."""

import random
import time
from collections.abc import Sequence
from pathlib import Path

import pytest
import regex

from keras_transformer.text.splitting import divided, joined, sentences_in, usual_count

CHARACTERS = "".join(map(chr, range(0x110000)))
# 200 lines, 20 in each of ten languages, written before any library was tried: language, tab, text with ‖ where a
# sentence begins.
HARD = [line.split("\t", 1) for line in Path(__file__).with_name("hard_sentences.tsv").read_text("utf-8").splitlines()]


def is_right(language: str | None, marked: str) -> bool:
    return sentences_in(marked.replace("‖", ""), language) == marked.split("‖")


def test_hard_cases():
    assert len(HARD) == 200
    wrong = [marked for language, marked in HARD if not is_right(language, marked)]
    assert len(wrong) <= 12, wrong
    # Without a known language more of them are wrong.
    assert sum(is_right(unknown, marked) for unknown in ("", "xx") for _, marked in HARD) >= 2 * 165


def test_the_ends_of_sentences():
    for language, text, expected in (
        ("de", "„Nein.“ Er ging. »Gut!« Ja.", ["„Nein.“ ", "Er ging. ", "»Gut!« ", "Ja."]),
        ("en", "It is 3.5 km. See www.a.org. Done", ["It is 3.5 km. ", "See www.a.org. ", "Done"]),
        ("deu", "Am 3. Mai kam Dr. Smith, d. h. er. Ende", ["Am 3. Mai kam Dr. Smith, d. h. er. ", "Ende"]),
        ("de_DE", "Das ist z. B. gut. Ende", ["Das ist z. B. gut. ", "Ende"]),
        (None, "“What?” he asked. Nothing", ["“What?” he asked. ", "Nothing"]),
        ("ja", "今日は３．５度。「はい。」と言った。終わり", ["今日は３．５度。", "「はい。」と言った。", "終わり"]),
        ("hi", "वह गया। राम आया॥ अंत", ["वह गया। ", "राम आया॥ ", "अंत"]), ("am", "ሰላም።እንዴት።", ["ሰላም።", "እንዴት።"]),
        ("en", "One.\tTwo.\u00a0 Three!", ["One.\t", "Two.\u00a0 ", "Three!"]),
    ):  # fmt: skip
        assert sentences_in(text, language) == expected


def test_every_mark_that_ends_sentences_in_unicode_ends_them():
    marks = regex.findall(r"\p{Sentence_Terminal}", CHARACTERS)
    assert len(marks) > 150
    for mark in [*marks, *"།༎׃"]:  # Tibetan and Hebrew have marks that lack the property
        near = (one for one in CHARACTERS[max(0, ord(mark) - 96) : ord(mark) + 96] if one.isalpha())
        for word in ("Abc", "あいう", next(near, "अ") * 3):
            parts = [f"{word}{mark} ", word]
            expected = ["".join(parts)] if mark in "၊꧈᭞" else parts  # these three are commas as well
            assert sentences_in("".join(parts)) == expected, f"U+{ord(mark):04X} in {word}"


def test_marks_as_they_are_typed():
    for language, marked in (
        ("my", "သွား၊၊ ‖လာ၊ လာ။"), ("am", "ሰላም፡፡ ‖እንዴት፡፡"), ("zh", "你好吗?‖我很好!‖再见."),
        ("ja", "どこですか?‖ここです。"), ("zh", "今天很好.‖我们走吧."), ("zh", "乔治.布什来了。‖他走了。"),
        ("zh", "乔治.布什来了"), ("zh", "今天好累……‖我想睡觉。"), ("zh", "嗯……我想睡觉。"),
        (None, "Ես գնացի: ‖Նա եկավ:"), ("hy", "Ժամը 12:30 է, հետևյալը: խնձոր։ ‖Նա"),
        ("hi", "वह गया | ‖राम आया||‖अंत"), ("en", "DR. SMITH LEFT. ‖MR. X STAYED IN THE U.S.A. TODAY."),
        ("de", "DR. SCHMIDT KAM. ‖ER GING."), ("es", "Se mudó a EE. UU. con DR. PAZ. ‖Vino."),
        ("el", "Πού είσαι; ‖Εδώ! ‖Πού? ‖Εδώ."), (None, "Πού είσαι; ‖Εδώ."), (None, "Yes; No."),
        ("hu", "II. Rákóczi Ferenc volt. ‖Ő jött."), ("km", "ខ្ញុំទៅ។ ‖គាត់មក។"),
        ("bo", "བཀྲ་ཤིས། ། ‖ཁྱེད་རང་།"),
    ):  # fmt: skip
        assert is_right(language, marked), marked


def test_format_characters_hide_no_end_and_stay():
    for language, *parts in (
        ("he", "איפה אתה?", " ", "אני בבית."), ("ar", "أين أنت؟", " ", "أنا هنا."), ("en", "“Go!", "” ", "Now."),
        ("hi", "वह गया।", "", "अंत"), ("zh", "他说：「好。", "」", "下"),
    ):  # fmt: skip
        first, space, second = parts
        for mark in regex.findall(r"\p{Cf}", CHARACTERS):
            text = f"{first}{mark}{space}{mark}{second}{mark}"
            sentences = sentences_in(text, language)
            assert len(sentences) == 2 and "".join(sentences) == text, f"U+{ord(mark):04X}"
            assert not space.endswith(" ") or sentences[1] == f"{mark}{second}{mark}", "it opens the second"
            assert divided(f"ab,{mark} {mark}cd", 5, lengths) == [f"ab,{mark} ", f"{mark}cd"]


def test_the_sentences_of_any_characters_are_the_text():
    draw = random.Random(0)
    usual = "ab AB.!?…。！？「」“”()।؟\u200c\u2067\u00a0\t\n\r1२一か|:;፡"
    for number in range(2_000):
        chars = [*usual * 4, *(chr(draw.randrange(0x110000)) for _ in usual)]
        text = "".join(draw.choices(chars, k=draw.randrange(60)))
        sentences = sentences_in(text, ("en", "de", "zh", "hi", None)[number % 5])
        assert "".join(sentences) == text and (all(sentences) or not text)


UNITS = ["a. ", ". . ", "「a。", "U.S. ", "(a.) ", "1. ", "“ ", "AB. ", "क | ", "猫……", "。 ", "a\u200b. "]


@pytest.mark.parametrize("unit", UNITS)
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
        assert joined(texts, spaces) == expected
    one, three = "One sentence.", "One. Two. Three."
    assert usual_count([one, three, three]) == 3
    assert usual_count([one, one, three]) == usual_count([one, three]) == usual_count([]) == usual_count([""]) == 1
