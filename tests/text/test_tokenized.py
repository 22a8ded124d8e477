"""A corpus as ids on disk: it holds what the tokenizer says, and is whole or not there."""

import json
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.text.tokenized import MAX_META_BYTES, TokenizedCorpus
from keras_transformer.text.tokenizer import END, PAD, Tokenizer
from tests.text.plans import real


def test_the_cache_holds_what_the_tokenizer_says(pairs, unigram, tmp_path) -> None:
    corpus = TokenizedCorpus.build(tmp_path / "tokens", pairs, unigram, unigram)
    sources, targets = ([(*ids, END) for ids in unigram.encode(side)] for side in zip(*pairs, strict=True))
    assert len(corpus) == corpus.report.kept == len(pairs)
    assert corpus.source_lengths.tolist() == [*map(len, sources)]
    assert corpus.target_lengths.tolist() == [*map(len, targets)]
    rows = np.array([600, 0, 17])
    for padded, expected in ((corpus.source_ids(rows, 4, 70), sources), (corpus.labels(rows, 4, 70), targets)):
        assert padded.shape == (4, 70) and padded.dtype == np.int32
        assert [real(row) for row in padded] == [expected[row] for row in rows] + [()]
    opened = TokenizedCorpus.open(corpus.folder)
    assert opened.report == corpus.report
    assert np.array_equal(opened.labels(rows, 3, 70), corpus.labels(rows, 3, 70))


def test_pairs_left_out_are_counted_once(unigram, tmp_path) -> None:
    long = "bada " * 400
    pairs = [
        ("bada", "gögo"), ("", "gögo"), ("bada", " "), ("\0\x01", "gögo"), ("", long), (long, "gögo"),
        ("bada " * 20, "gö"), ("gö", "bada " * 20), ("control\0and\x02 characters", "stay"),
    ]  # fmt: skip
    corpus = TokenizedCorpus.build(tmp_path / "tokens", iter(pairs), unigram, unigram, max_length=250)
    assert vars(corpus.report) == {"kept": 2, "empty": 4, "too_long": 1, "bad_ratio": 2, "held_out": 0}
    assert str(corpus.report).startswith("2 pairs kept, 7 left out of training: 4 empty on a side, 1 too long")
    with pytest.raises(RequestError, match="no pair is left after cleaning: 0 pairs kept, .* check"):
        TokenizedCorpus.build(tmp_path / "none", [("", "a"), ("b", "")], unigram, unigram)
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_sources_are_found_whatever_tags_stand_before_them(tmp_path) -> None:
    tokenizer = Tokenizer.train(["one two three four"] * 9, 40, "bpe", tags=["<bt>", "<2de>"])
    pairs = [("<2de> <bt> one two", "x"), ("three", "y"), ("<bt> four", "z")]
    corpus = TokenizedCorpus.build(tmp_path / "tokens", pairs, tokenizer, tokenizer)
    asked = tokenizer.encode(["one two", "<bt> three", "<2de> <bt> four", "two", "one"])
    assert corpus.sources_among(asked, tokenizer.tags.values()) == 3
    assert corpus.sources_among(asked) == 0


def test_a_cache_is_whole_or_not_there(pairs, unigram, tmp_path) -> None:
    def build(pairs: Iterable[tuple[str, str]]) -> int:
        return len(TokenizedCorpus.build(tmp_path / "tokens", pairs, unigram, unigram))

    def breaking() -> Iterator[tuple[str, str]]:
        yield from pairs
        raise RuntimeError("the disk is gone")

    def while_another_builds() -> Iterator[tuple[str, str]]:
        assert build(pairs[:10]) == 10
        yield from pairs[:40]

    for left in ([], ["tokens"]):
        with pytest.raises(RuntimeError):
            build(breaking())
        assert [path.name for path in tmp_path.iterdir()] == left
        assert build(pairs[:20]) == len(TokenizedCorpus.open(tmp_path / "tokens")) == 20
    (tmp_path / ".00000000-tokens").mkdir()  # as a killed build leaves it
    (tmp_path / ".00000000-tokens" / "source.ids").write_bytes(b"half")
    assert build(while_another_builds()) == 40
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_a_cache_that_is_missing_or_damaged_is_named(pairs, unigram, tmp_path) -> None:
    corpus = TokenizedCorpus.build(tmp_path / "tokens", pairs[:9], unigram, unigram)
    with pytest.raises(RequestError, match="no tokenised corpus at .*nowhere: build it first"):
        TokenizedCorpus.open(tmp_path / "nowhere")
    meta = json.loads((corpus.folder / "meta.json").read_text())
    offsets = np.fromfile(corpus.folder / "source.offsets", np.int64)
    ends = [offsets[::-1], np.r_[1, offsets[1:]], np.r_[0, -1, offsets[2:]], np.r_[0, 2**62, -(2**62), offsets[3:]]]
    changed: list[dict] = [
        {"format": 99},
        {"max_length": 10**400},
        {"first_ids": [[]]},
        {"report": {"kept": 9.0}},
        {"report": {}},
    ]
    wrong: list[list] = [[], ["uint16"], ["O", "O"], ["S0", "S0"], ["uint16", "float32"], [[], []]]
    changed += [{"dtypes": dtypes} for dtypes in wrong]
    for name, content in (
        ("source.ids", b""), ("target.ids", b"123"), ("target.offsets", bytes(16)), ("target.offsets", b"123"),
        ("meta.json", b"{"), ("meta.json", b"[" * 100_000), ("meta.json", b" " * MAX_META_BYTES + b"{}"),
        *(("meta.json", json.dumps(meta | one).encode()) for one in changed),
        *(("source.offsets", one.tobytes()) for one in ends),
    ):  # fmt: skip
        whole = (corpus.folder / name).read_bytes()
        (corpus.folder / name).write_bytes(content)
        with pytest.raises(RequestError, match="tokens.* is damaged.*delete it$"):
            TokenizedCorpus.open(corpus.folder)
        (corpus.folder / name).write_bytes(whole)


class Counting(Tokenizer):
    """In place of a tokenizer: a line is the number of its pieces."""

    def __init__(self) -> None:
        self.vocabulary_size = 100_000

    def encode(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        return [[99_999] * int(line) for line in lines]


def test_large_vocabularies_fit(tmp_path) -> None:
    corpus = TokenizedCorpus.build(tmp_path / "tokens", [("2", "1")], Counting(), Counting())
    assert corpus.labels(np.array([0]), 1, 3).tolist() == [[99_999, END, PAD]]
