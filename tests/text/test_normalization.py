"""Text comes back as it was: what people write in many scripts survives, and the rest is read in its nearest form."""

from __future__ import annotations

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.errors import RequestError
from keras_transformer.text.normalization import normalizer_of, split_normalization
from keras_transformer.text.tokenizer import SPACE, UNKNOWN, Tokenizer, VocabularyTooLarge
from tests.tiny_text import lines

# Spelled by code points where an editor or a reader would not see the difference.
TEXTS = {
    "Persian half-spaces": "او می\u200cخواهد کتاب\u200cها را به خانه\u200cای ببرد.",
    "Hindi joiners": "क्\u200dष और क्\u200cष अलग दिखते हैं; क\u093cलम और \u0958लम भी।",
    "Thai sara am": "น้ำใจงามตามคำของพ่อ",
    "Khmer word breaks": "ភាសា\u200bខ្មែរ\u200bពិរោះ",
    "Korean jamo": "ㅋㅋ 그래ㅠㅠ \u1112\u1161\u11ab글 한글",
    "French spaces": "«\u00a0Vraiment\u202f?\u00a0» Oui\u202f; 10\u202f000\u00a0€",
    "mathematics": "42 m², ½ x₂ + ¾ y³ ≤ 10⁻⁶ µm, ℝⁿ, ℓ",
    "typography": "“So… it’s ‘here’” – ‚dort‘ — „nie“ ™ © № ﬁne",
    "Arabic presentation forms": "ﷺ و ﻻ و ﺳﻼم وسلام",
    "Vietnamese": "Tiếng Việt: tie\u0302\u0301ng Vie\u0323\u0302t, đường phố",
    "Japanese widths": "Ｔｏｋｙｏ　２０２０　ﾊﾝｶｸ カタカナ ㌔ ①",
    "German soft hyphens": "Donau\u00addampf\u00adschiff",
    "emoji": "❤\ufe0f ❤ 👩\u200d👧 👍🏽",
    "Hebrew marks": "\u200fשלום\u200e (abc)",
    "replaced and private": "a\ufffdb \ue000",
}


def trained(texts, model_type: str = "unigram", **options) -> Tokenizer:
    text = [*texts] * 30 + lines(0)
    try:
        return Tokenizer.train(text, 2_000, model_type, **options)
    except VocabularyTooLarge as error:
        return Tokenizer.train(text, error.most, model_type, **options)


def came_back(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode([text]))[0]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def lossless(request) -> Tokenizer:
    return trained(TEXTS.values(), model_type=request.param)


@pytest.fixture(scope="module")
def latin() -> Tokenizer:
    letters = "abcdefghijklmnopqrstuvwxyzé"
    return trained([f"{letters} {letters.upper()} 0123456789 .,!?()/'\"-"])


@pytest.mark.parametrize("name", TEXTS)
def test_what_training_text_holds_comes_back_exactly(lossless, name) -> None:
    assert came_back(lossless, TEXTS[name]) == TEXTS[name]


@given(st.data())
def test_any_text_in_the_alphabet_is_kept(lossless, data) -> None:
    text = data.draw(st.text(st.sampled_from(sorted(lossless.alphabet))))
    assert lossless.normalize(text).replace(SPACE, " ").strip(" ") == " ".join(filter(None, text.split(" ")))


NEAREST = {
    "a\u00a0b\u202fc\u3000d": "a b c d",
    "wait…": "wait...",
    "½ of 3²": "1/2 of 32",
    "™ ﬁne ①": "TM fine 1",
    "Ｔｏｋｙｏ": "Tokyo",
    "soft\u00adly, word\u200bbreak, join\u200cer\u200d": "softly, wordbreak, joiner",
    "“it’s” – „so“ — «no»": '"it\'s" - "so" - "no"',
    "e\u0301": "é",
    "marks\u200e\u200f\ufe0f": "marks",
}


@pytest.mark.parametrize("text", NEAREST)
def test_what_the_vocabulary_cannot_write_is_read_in_its_nearest_form(latin, text) -> None:
    assert came_back(latin, text) == NEAREST[text]
    assert UNKNOWN not in latin.encode([text])[0]


def test_a_letter_that_is_written_in_parts_alone_is_read_in_parts() -> None:
    in_parts = trained(["e\u0302\u0301 a\u0323 \u1112\u1161\u11ab"])
    assert came_back(in_parts, "ế ạ 한") == "e\u0302\u0301 a\u0323 \u1112\u1161\u11ab"


def test_what_is_visible_does_not_vanish(latin) -> None:
    assert UNKNOWN in latin.encode(["\u06dd"])[0]


@pytest.mark.parametrize("name", ["lossless", "identity", "nfc", "nfkc"])
def test_control_characters_and_line_breaks_are_cleaned(name) -> None:
    tokenizer = trained(["a\tb\x01c \u2028d\u2029 e\x85f\ufeff ▁g"], normalization=name)
    assert came_back(tokenizer, "a\tb\x01c\u2028d\u2029e\x85f\ufeffg\x9f▁h\x7f") == "a bc d e fg h"
    assert not [char for char in tokenizer.alphabet if unicodedata.category(char) in ("Cc", "Zl", "Zp")]


def test_identity_keeps_what_has_another_form() -> None:
    text = "ﬁ e\u0301 é \u00a0½"
    identity = normalizer_of("identity")
    assert identity.normalize(text) == f"{SPACE}ﬁ{SPACE}e\u0301{SPACE}é{SPACE}\u00a0½"


STARTERS = [char for char in map(chr, range(0x20, 0x30000)) if unicodedata.normalize("NFD", char) != char]


@given(st.lists(st.sampled_from([*STARTERS, *"abeo한ㅋ가字\u1100"])), st.sampled_from(["NFC", "NFD"]))
def test_nfc_is_unicode_s(nfc, chars, form) -> None:
    # With a letter between, because rules do not bring the marks of several characters into order.
    text = "x".join(unicodedata.normalize(form, char) for char in chars)
    assert nfc.normalize(text)[1:] == unicodedata.normalize("NFC", text)


def test_nfc_composes_marks_in_any_order(nfc) -> None:
    for spelled in ("e\u0302\u0323", "e\u0323\u0302", "ê\u0323", "ẹ\u0302", "ệ"):
        assert nfc.normalize(spelled) == f"{SPACE}ệ"


@pytest.fixture(scope="module")
def nfc():
    return normalizer_of("nfc")


def test_rules_of_a_file(tmp_path) -> None:
    path = tmp_path / "rules.tsv"
    path.write_text("DF\t73 73\n", "utf-8")  # ß
    tokenizer = trained(["Straße Strasse"], normalization=str(path))
    assert came_back(tokenizer, "Straße") == "Strasse"
    assert str(tmp_path).encode() not in tokenizer.model, "a vocabulary names no path of the machine"


def test_a_normalization_that_does_not_exist_is_named(tmp_path) -> None:
    assert split_normalization("nfkc,lossless") == ("nfkc", "lossless")
    assert split_normalization(None) == split_normalization("lossless") == ("lossless", "lossless")
    (tmp_path / "empty.tsv").write_text("")
    for received, reason in (
        ("nfd", "No such file"),
        (f"nfc,{tmp_path}/empty.tsv", "it holds no rules"),
        ("a,b,c", "SOURCE,TARGET"),
    ):
        with pytest.raises(RequestError, match=f"--normalization .*{reason}"):
            split_normalization(received)


def test_normalizing_is_silent(capfd) -> None:
    trained(["a b"])
    assert capfd.readouterr() == ("", "")
