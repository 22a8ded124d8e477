"""Text comes back as it was, in pieces or in bytes; the rest is read in its nearest form."""

import unicodedata

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.core.errors import RequestError
from keras_transformer.text.lines import plain
from keras_transformer.text.normalization import normalizer_of, split_normalization
from keras_transformer.text.subword_sampling import SubwordSampler
from keras_transformer.text.tokenizer import MODEL_TYPES, SPACE, UNKNOWN, Tokenizer, VocabularyTooLarge
from tests.tiny_text import lines

# Spelled by code points where an editor or a reader would not see the difference.
TEXTS = {
    "Persian half-spaces": "او می\u200cخواهد کتاب\u200cها را به خانه\u200cای ببرد.",
    "Hindi joiners": "क्\u200dष और क्\u200cष अलग दिखते हैं; क\u093cलम और \u0958लम भी।",
    "Thai sara am": "น้ำใจงามตามคำของพ่อ",
    "Korean jamo": "ㅋㅋ 그래ㅠㅠ \u1112\u1161\u11ab글 한글",
    "mathematics": "42 m², ½ x₂ + ¾ y³ ≤ 10⁻⁶ µm, ℝⁿ, ℓ",
    "typography": "“So… it’s ‘here’” – ‚dort‘ — „nie“ ™ © № ﬁne",
    "Arabic presentation forms": "ﷺ و ﻻ و ﺳﻼم وسلام",
    "Vietnamese": "Tiếng Việt: tie\u0302\u0301ng Vie\u0323\u0302t, đường phố",
    "Japanese widths": "Ｔｏｋｙｏ　２０２０　ﾊﾝｶｸ カタカナ ㌔ ①",
    "emoji": "❤\ufe0f ❤ 👩\u200d👧 👍🏽",
    "replaced and private": "a\ufffdb \ue000",
}


def trained(texts, model_type: str = "unigram", size: int = 2_000, **options) -> Tokenizer:
    text = [*texts] * 30 + lines(0)
    try:
        return Tokenizer.train(text, size, model_type, **options)
    except VocabularyTooLarge as error:
        return Tokenizer.train(text, error.most, model_type, **options)


def came_back(tokenizer: Tokenizer, text: str) -> str:
    return tokenizer.decode(tokenizer.encode([text]))[0]


@pytest.fixture(scope="module", params=["unigram", "bpe"])
def lossless(request) -> Tokenizer:
    return trained(TEXTS.values(), model_type=request.param)


def test_what_training_text_holds_comes_back_exactly(lossless) -> None:
    for text in TEXTS.values():
        assert came_back(lossless, text) == text


@given(st.data())
def test_any_text_in_the_alphabet_is_kept(lossless, data) -> None:
    text = data.draw(st.text(st.sampled_from(sorted(lossless.alphabet))))
    assert lossless.normalize(text).replace(SPACE, " ").strip(" ") == " ".join(filter(None, text.split(" ")))


NEAREST = {
    "a\u00a0b\u202fc\u3000d": "a b c d", "wait…": "wait...", "½ of 3²": "1/2 of 32", "™ ﬁne ①": "TM fine 1",
    "Ｔｏｋｙｏ": "Tokyo", "soft\u00adly, word\u200bbreak, join\u200cer\u200d": "softly, wordbreak, joiner",
    "“it’s” – „so“ — «no»": '"it\'s" - "so" - "no"', "e\u0301": "é", "marks\u200e\u200f\ufe0f": "marks",
}  # fmt: skip


def test_what_the_vocabulary_cannot_write_is_read_in_its_nearest_form() -> None:
    letters = "abcdefghijklmnopqrstuvwxyzé"
    latin = trained([f"{letters} {letters.upper()} 0123456789 .,!?()/'\"-"])
    for text, expected in NEAREST.items():
        assert came_back(latin, text) == expected
        assert UNKNOWN not in latin.encode([text])[0]
    assert UNKNOWN in latin.encode(["\u06dd"])[0], "what is visible does not vanish"
    in_parts = trained(["e\u0302\u0301 a\u0323 \u1112\u1161\u11ab"])
    assert came_back(in_parts, "ế ạ 한") == "e\u0302\u0301 a\u0323 \u1112\u1161\u11ab"


@pytest.mark.parametrize("name", ["lossless", "identity", "nfkc"])
def test_control_characters_and_line_breaks_are_cleaned(name) -> None:
    tokenizer = trained(["a\tb\x01c \u2028d\u2029 e\x85f\ufeff ▁g"], size=60, normalization=name)
    assert came_back(tokenizer, "a\tb\x01c\u2028d\u2029e\x85f\ufeffg\x9f▁h\x7f") == "a bc d e fg h"
    assert not [char for char in tokenizer.alphabet if unicodedata.category(char) in ("Cc", "Zl", "Zp")]


STARTERS = [char for char in map(chr, range(0x20, 0x30000)) if unicodedata.normalize("NFD", char) != char]
NFC = normalizer_of("nfc")


@given(st.lists(st.sampled_from([*STARTERS, *"abeo한ㅋ가字\u1100"])), st.sampled_from(["NFC", "NFD"]))
def test_nfc_is_unicode_s(chars, form) -> None:
    # With a letter between, because rules do not bring the marks of several characters into order.
    text = "x".join(unicodedata.normalize(form, char) for char in chars)
    assert NFC.normalize(text)[1:] == unicodedata.normalize("NFC", text)


def test_nfc_composes_marks_in_any_order_and_identity_keeps_other_forms() -> None:
    for spelled in ("e\u0302\u0323", "e\u0323\u0302", "ê\u0323"):
        assert NFC.normalize(spelled) == f"{SPACE}ệ"
    text = "ﬁ e\u0301 é \u00a0½"
    assert normalizer_of("identity").normalize(text) == f"{SPACE}ﬁ{SPACE}e\u0301{SPACE}é{SPACE}\u00a0½"


def test_rules_of_a_file_and_names_that_do_not_exist(tmp_path, capfd) -> None:
    path = tmp_path / "rules.tsv"
    path.write_text("DF\t73 73\n", "utf-8")  # ß
    tokenizer = trained(["Straße Strasse"], normalization=str(path))
    assert came_back(tokenizer, "Straße") == "Strasse"
    assert str(tmp_path).encode() not in tokenizer.model, "a vocabulary names no path of the machine"
    assert capfd.readouterr() == ("", "")
    assert split_normalization("nfkc,lossless") == ("nfkc", "lossless")
    assert split_normalization(None) == split_normalization("lossless") == ("lossless", "lossless")
    (tmp_path / "empty.tsv").write_text("")
    for received, reason in (
        ("nfd", "No such file"),
        (f"nfc,{tmp_path}/empty.tsv", "it holds no rules"),
        ("nfc,nfc,nfc", "takes one for all"),
    ):
        with pytest.raises(RequestError, match=f"--normalization .*{reason}"):
            split_normalization(received)


SOME = lines(0) * 3


def in_bytes(model_type: str = "unigram", text=SOME, size: int = 300, **options) -> Tokenizer:
    return Tokenizer.train(text, size, model_type, byte_fallback=True, **options)


@pytest.fixture(scope="module", params=MODEL_TYPES)
def fallback(request) -> Tokenizer:
    return in_bytes(request.param, size=287 if request.param == "char" else 300)


def id_of_byte(tokenizer: Tokenizer, byte: int) -> int:
    return tokenizer.pieces(range(tokenizer.vocabulary_size)).index(f"<0x{byte:02X}>")


def test_unseen_text_comes_back_exactly(fallback) -> None:
    for text in (*TEXTS.values(), "<0x41>"):  # the last spells a byte
        [ids] = fallback.encode([text])
        assert UNKNOWN not in ids and fallback.decode([ids]) == [text]
        if fallback.model_type != "char":
            ids = SubwordSampler(fallback, 0.3, "seed").sample(text)
            assert UNKNOWN not in ids and fallback.decode([ids]) == [text]
    keeps = in_bytes(keeps_text=True)
    for text in (*TEXTS.values(), "two  spaces\n\n\tand a tab"):
        assert keeps.decode_text(keeps.encode_text(text)) == text


@given(
    st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\u2028\u2029\ufeff▁")),
    st.lists(st.integers(0, 255), max_size=12),
)
def test_any_text_comes_back_and_any_bytes_are_a_line_of_valid_unicode(fallback, text, values) -> None:
    one_space = " ".join(filter(None, text.split(" ")))
    assert fallback.decode(fallback.encode([text])) == [one_space.strip()]
    [text] = fallback.decode([[id_of_byte(fallback, byte) for byte in values]])
    read = bytes(values).decode("utf-8", "replace")
    assert ("\ufffd" in text) == ("\ufffd" in read)
    assert text.encode("utf-8").decode("utf-8") == text == plain(text)
    if "\ufffd" not in read:
        assert text == plain(read).strip()


def test_rare_characters_are_bytes_so_that_bytes_are_learned() -> None:
    text = [*SOME * 4, *["Ω twice"] * 2, *["ж"] * 5, *["often й"] * 300]
    assert 7 < 0.0005 * sum(map(len, text)) < 300
    tokenizer = in_bytes(text=text)
    assert not {*"Ωж"} & tokenizer.alphabet
    assert "й" in tokenizer.alphabet, "it is frequent"
    assert "Ω" not in in_bytes(text=[*lines(0)[:20], "Ω"]).alphabet, "of a short text, what it holds twice at most"
    assert {id_of_byte(tokenizer, byte) for byte in "Ω".encode()} <= {*tokenizer.encode(["Ω twice"])[0]}
