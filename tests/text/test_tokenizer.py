"""Vocabularies: training, files, and text that comes back, whatever it spells."""

import copy
import pickle
import random
import re
from itertools import chain
from typing import Any
from unittest.mock import Mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.core.errors import RequestError
from keras_transformer.text import tokenizer as module
from keras_transformer.text.lines import plain
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, MASK, PAD, START, UNKNOWN, Tokenizer
from tests.importing.theirs import sentencepiece_of
from tests.tiny_text import lines as tiny_lines

NEVER_IN_TEXT = {PAD, START, END}


def test_same_lines_give_the_same_bytes_and_of_a_long_stream_lines_are_drawn_by_seed(lines, monkeypatch) -> None:
    for model_type in module.MODEL_TYPES:
        one, same, other = (Tokenizer.train(iter(lines[:count]), 100, model_type).model for count in (400, 400, 300))
        assert one == same != other
    monkeypatch.setattr(module, "MAX_TRAINING_LINES", 100)
    one, same, other = (Tokenizer.train(lines, 80, seed=seed).model for seed in (1, 1, 2))
    assert one == same != other
    kept = [*map(int, module.sample_of(map(str, range(1000)), 100, random.Random(1)))]
    assert len(set(kept)) == 100 and 350 < sum(kept) / 100 < 650, "from the whole stream, not from its head"


def test_what_a_vocabulary_is_is_read_once(tokenizer, monkeypatch) -> None:
    one, names = Tokenizer(tokenizer.model), ("model_type", "has_denormalizer", "alphabet", "tags")
    monkeypatch.setattr(module, "parse_model", parse := Mock(side_effect=module.parse_model))
    monkeypatch.setattr(one, "_processor", processor := Mock(wraps=one._processor))
    asked = [{name: getattr(one, name) for name in (*names, "has_bytes", "has_unused_pieces")} for _ in range(3)]
    assert [one.is_ambiguous("two dogs") for _ in range(3)] == [False] * 3
    assert parse.call_count == len(names) and processor.is_byte.call_count <= one.vocabulary_size
    assert asked[0] == asked[1] == asked[2] == {name: getattr(tokenizer, name) for name in asked[0]}
    copies = [pickle.loads(pickle.dumps(tokenizer)), copy.deepcopy(tokenizer)]
    assert all({name: getattr(each, name) for name in asked[0]} == asked[0] for each in copies)


def test_what_is_saved_and_loaded_is_the_same_and_text_comes_back(tokenizer, lines, tmp_path) -> None:
    assert tuple(tokenizer.pieces([PAD, UNKNOWN, START, END])) == CONTROL_PIECES
    tokenizer.save(tmp_path / "tokenizer.model")
    loaded = Tokenizer.load(tmp_path / "tokenizer.model")
    assert loaded.model == tokenizer.model and loaded.vocabulary_size == tokenizer.vocabulary_size == 200
    assert loaded.decode(loaded.encode(lines)) == lines


def test_pieces_words_and_surfaces(tokenizer, lines) -> None:
    (ids,) = tokenizer.encode(["bada gögo"])
    assert "".join(tokenizer.pieces(ids)) == "▁bada▁gögo"
    words, pieces = tokenizer.words(), tokenizer.pieces(range(tokenizer.vocabulary_size))
    assert {f"▁{word}": id for word, id in words.items()} == {
        piece: id for id, piece in enumerate(pieces) if piece[0] == "▁" and piece != "▁"
    }
    assert 0 < len(words) < len(pieces) - 5, "some pieces are parts of words"
    surfaces = tokenizer.surfaces()
    assert len(surfaces) == tokenizer.vocabulary_size
    for ids in [*tokenizer.encode(lines[:20]), [UNKNOWN, END + 1, UNKNOWN, START]]:
        assert [b"".join(surfaces[id] for id in ids).decode().strip()] == tokenizer.decode([ids])


@pytest.mark.parametrize("model_type", module.MODEL_TYPES)
def test_text_that_spells_control_symbols_is_text(lines, model_type) -> None:
    """Also where the corpus is full of them, so that they would make good pieces."""
    spelled = " ".join(CONTROL_PIECES)
    marked = [f"{spelled} 1 < 2 / 3 > {line}" for line in lines[:300]]
    tokenizer = Tokenizer.train([*lines[:300], *marked], 120, model_type)
    ids = tokenizer.encode([spelled])
    assert not {*ids[0]} & {*NEVER_IN_TEXT, UNKNOWN}
    assert tokenizer.decode(ids) == [spelled]


def test_a_vocabulary_with_a_mask() -> None:
    lines = [f"line {n} of a text <mask>" for n in range(50)]
    tokenizer = Tokenizer.train(lines, 29, has_mask=True)
    assert tokenizer.has_mask and tokenizer.pieces([*range(5)]) == [*CONTROL_PIECES, "<mask>"]
    assert MASK not in tokenizer.encode(["a <mask> text"])[0], "text that spells it stays text"
    assert not Tokenizer.train(lines, 29).has_mask


@given(st.lists(st.text(st.characters(exclude_categories=())), max_size=4))
def test_any_text_gives_its_number_of_lines(unigram, texts) -> None:
    ids = unigram.encode(texts)
    decoded = unigram.decode(ids)
    assert len(ids) == len(decoded) == len(texts)
    assert not NEVER_IN_TEXT.intersection(chain(*ids))
    assert not set("".join(decoded)) & set("\0\n\r")


def test_blank_lines_line_breaks_and_control_ids(tokenizer, lines) -> None:
    """Decoding ends at the end, and drops pad and start."""
    assert tokenizer.encode(["", "\t \u3000", "\0 \x01\x1f\x7f"]) == [[], [], []]
    assert plain("a\0b\nc\rd") == "a b c d" and plain("Grüße 你好") == "Grüße 你好"
    assert "\ufffd" in plain("ä\ud800")
    other = Tokenizer(trained_elsewhere(lines, user_defined_symbols=["x\ny\r"]))  # pieces that ours never hold
    assert other.decode([[END + 1]]) == ["x y"]
    (ids,) = tokenizer.encode(["bada gögo"])
    rows = [[START, *ids, END, *ids], [PAD, *ids, PAD], [END, *ids], []]
    assert tokenizer.decode(rows) == ["bada gögo", "bada gögo", "", ""]
    assert tokenizer.decode([[UNKNOWN, UNKNOWN]])[0].strip()


@pytest.mark.parametrize("options", [{"model_type": "bpe"}, {"byte_fallback": True}])
def test_the_message_names_a_size_that_is_possible(lines, options) -> None:
    too_small = 262 if "byte_fallback" in options else 8
    for size, message in ((99_999, r"of 99999 is larger than .* at most (\d+)"), (too_small, r"small .* least (\d+)")):
        with pytest.raises(RequestError, match=message) as error:
            Tokenizer.train(lines[:60], size, **options)
        found = re.search(message, str(error.value))
        assert found
        possible = int(found[1])
        assert Tokenizer.train(lines[:60], possible, **options).vocabulary_size == possible
        with pytest.raises(RequestError):
            Tokenizer.train(lines[:60], possible + (1 if size > too_small else -1), **options)


def test_what_no_vocabulary_can_be_trained_of_is_refused(lines) -> None:
    """A vocabulary of characters has as many as there are, the most frequent ones."""
    for text, size, kind, message in (
        ([" ", "\0"], 100, "char", "no text to train a vocabulary from"),
        (lines, -1, "char", "size must be over 4; received: -1"),
        (lines, 100, "word", "one of unigram, bpe, char; received: word"),
    ):
        with pytest.raises(RequestError, match=message):
            Tokenizer.train(text, size, kind)
    for size, letters in ((60, "▁taehcmnos"), (8, "▁tae")):
        assert Tokenizer.train(["the cat sat on the mat"] * 3, size, "char").pieces(range(4, 4 + len(letters))) == [
            *letters
        ]


def trained_elsewhere(lines: list[str], **options) -> bytes:
    """By SentencePiece alone, with our control ids unless others are given."""
    return sentencepiece_of(lines, 150, **{"pad_id": 0, "unk_id": 1, "bos_id": 2, "eos_id": 3, **options})


OTHER_CONTROL_IDS: list[dict[str, Any]] = [
    {"unk_id": 3, "eos_id": 1}, {"bos_piece": "a"}, {"pad_piece": "<blank>", "user_defined_symbols": ["<pad>"]},
]  # fmt: skip


def test_files_that_are_no_model_of_ours_are_named(unigram, lines, tmp_path, monkeypatch) -> None:
    whole, path = unigram.model, tmp_path / "damaged.model"
    for damaged in (b"", b"not a model", whole[: len(whole) // 2], whole[:-1], bytes(1000)):
        path.write_bytes(damaged)
        with pytest.raises(RequestError, match=r"damaged\.model is not a tokenizer of this project: it is \w+"):
            Tokenizer.load(path)
    for options in OTHER_CONTROL_IDS:
        path.write_bytes(trained_elsewhere(lines, **options))
        with pytest.raises(RequestError, match=r"\.model is not a tokenizer .* <pad> 0, <unk> 1, <s> 2, </s> 3"):
            Tokenizer.load(path)
    with pytest.raises(RequestError, match=r"no tokenizer at .*missing\.model"):
        Tokenizer.load(tmp_path / "missing.model")
    monkeypatch.setattr(Tokenizer, "max_bytes", 2**10)
    with pytest.raises(RequestError, match=r"damaged\.model .* larger than"):
        Tokenizer.load(path)


def test_a_text_is_ambiguous_if_its_pieces_may_come_in_another_order() -> None:
    words = ["==== cat", "======= dog", "=========== sea"] * 40
    tokenizer = Tokenizer.train([*words, *tiny_lines(0)], 80, keeps_text=True)
    texts = ["=" * count for count in range(26)]
    can_change = [len(set(tokenizer.encode_text(text))) > 1 for text in texts]
    assert [tokenizer.is_ambiguous(text) for text in texts] == can_change and {*can_change} == {True, False}
    assert not Tokenizer.train(tiny_lines(0), 40, "bpe").is_ambiguous("dogdog")
