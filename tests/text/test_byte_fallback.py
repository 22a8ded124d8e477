"""With byte fallback nothing is unknown: what no piece spells is spelled by bytes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.errors import RequestError
from keras_transformer.text.sampling import SubwordSampler
from keras_transformer.text.tokenizer import MODEL_TYPES, UNKNOWN, Tokenizer, VocabularyTooLarge, plain
from tests.text.test_normalization import TEXTS
from tests.tiny_text import lines

TEXT = lines(0) * 3


def trained(model_type: str = "unigram", text=TEXT, size: int = 300, **options) -> Tokenizer:
    return Tokenizer.train(text, size, model_type, byte_fallback=True, **options)


@pytest.fixture(scope="module", params=MODEL_TYPES)
def tokenizer(request) -> Tokenizer:
    return trained(request.param, size=300 if request.param != "char" else 287)


def id_of_byte(tokenizer: Tokenizer, byte: int) -> int:
    return tokenizer.pieces(range(tokenizer.vocabulary_size)).index(f"<0x{byte:02X}>")


@pytest.mark.parametrize("text", TEXTS.values(), ids=[*TEXTS])
def test_unseen_text_comes_back_exactly(tokenizer, text) -> None:
    [ids] = tokenizer.encode([text])
    assert UNKNOWN not in ids
    assert tokenizer.decode([ids]) == [text]


@given(st.text(st.characters(exclude_categories=("Cs", "Cc"), exclude_characters="\u2028\u2029\ufeff▁")))
def test_any_text_comes_back(tokenizer, text) -> None:
    one_space = " ".join(filter(None, text.split(" ")))
    assert tokenizer.decode(tokenizer.encode([text])) == [one_space.strip()]


@given(st.lists(st.integers(0, 255), max_size=12))
def test_any_bytes_are_a_line_of_valid_unicode(tokenizer, values) -> None:
    [text] = tokenizer.decode([[id_of_byte(tokenizer, byte) for byte in values]])
    read = bytes(values).decode("utf-8", "replace")
    assert ("\ufffd" in text) == ("\ufffd" in read)
    assert text.encode("utf-8").decode("utf-8") == text == plain(text)
    if "\ufffd" not in read:
        assert text == plain(read).strip()


def test_rare_characters_are_bytes_so_that_bytes_are_learned() -> None:
    text = [*TEXT * 4, *["Ω twice"] * 2, *["ж"] * 5, *["often й"] * 300]
    assert 7 < 0.0005 * sum(map(len, text)) < 300
    tokenizer = trained(text=text)
    assert not {*"Ωж"} & tokenizer.alphabet
    assert "й" in tokenizer.alphabet, "it is frequent"
    assert "Ω" not in trained(text=[*lines(0)[:20], "Ω"]).alphabet, "of a short text, what it holds twice at most"
    byte_ids = {id_of_byte(tokenizer, byte) for byte in "Ω".encode()}
    assert byte_ids <= {*tokenizer.encode(["Ω twice"])[0]}


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_the_vocabulary_has_room_for_the_bytes(model_type) -> None:
    with pytest.raises(RequestError, match="size must be over 260; received: 260"):
        trained(model_type, size=260)
    with pytest.raises(RequestError, match=r"too small .* takes at least \d+") as error:
        trained(model_type, size=262)
    least = int(str(error.value).split()[-1])
    assert trained(model_type, size=least).vocabulary_size == least
    with pytest.raises(VocabularyTooLarge) as error:
        trained(model_type, size=9_999)
    assert trained(model_type, size=error.value.most).vocabulary_size == error.value.most


def test_text_that_spells_a_byte_is_text(tokenizer) -> None:
    [ids] = tokenizer.encode(["<0x41>"])
    assert tokenizer.decode([ids]) == ["<0x41>"]


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_subword_sampling_spells_bytes_too(model_type) -> None:
    tokenizer = trained(model_type)
    sampler = SubwordSampler(tokenizer, 0.3, "seed")
    for text in TEXTS.values():
        ids = sampler.sample(text)
        assert UNKNOWN not in ids
        assert tokenizer.decode([ids]) == [text]


def test_a_text_that_is_kept_as_it_is() -> None:
    tokenizer = trained(keeps_text=True)
    for text in (*TEXTS.values(), "two  spaces\n\n\tand a tab"):
        assert tokenizer.decode_text(tokenizer.encode_text(text)) == text
