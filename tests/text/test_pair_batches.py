"""Batches of pairs: each in one row, of which only the source is ever cut."""

import math

import numpy as np
import pytest

from keras_transformer.errors import RequestError
from keras_transformer.text.pair_batches import PairPlan, PairRows
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import END, SEPARATOR, START, Tokenizer
from tests.text.plans import batches_of, real
from tests.tiny_text import lines

PAIRS = list(zip(lines(1, 150), lines(2, 150), strict=True))
MOST = 12  # ids of a source, with the separator


@pytest.fixture(scope="module")
def tokenizer():
    return Tokenizer.train(lines(0), 60)


def corpus_of(folder, tokenizer, pairs=PAIRS, **options):
    options = {"max_source_length": math.inf, "max_ratio": math.inf, **options}
    return TokenizedCorpus.build(folder, pairs, tokenizer, tokenizer, **options)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory, tokenizer):
    return corpus_of(tmp_path_factory.mktemp("pairs") / "train", tokenizer)


@pytest.mark.parametrize("options", [{}, {"num_replicas": 3}, {"accumulate": 2, "seed": 4}])
def test_a_row_is_source_separator_target_and_end(corpus, tokenizer, options):
    batches = batches_of(PairPlan(PairRows(corpus, MOST), 400, **options))
    found = sorted(real(row) for batch in batches for row in batch.labels if row.any())
    encoded = [tokenizer.encode(pair) for pair in PAIRS]
    assert found == sorted((*source[: MOST - 1], SEPARATOR, *target, END) for source, target in encoded)
    for batch in batches:
        for ids, labels in zip(batch.inputs["ids"], batch.labels, strict=True):
            assert real(ids) == (START, *real(labels)[:-1])[: len(real(labels))]
    rows, lengths = PairRows(corpus, MOST), [len(source) for source, _ in encoded]
    assert rows.num_cut == sum(length > MOST - 1 for length in lengths) > 10
    assert len(rows) == len(PAIRS) and PairRows(corpus, 1_000).num_cut == 0


def test_of_a_validation_only_targets_have_labels(corpus, tokenizer):
    plan, found = PairPlan(PairRows(corpus, MOST, targets_alone=True), 400, shuffle=False), []
    for batch in batches_of(plan):
        for ids, labels in zip(batch.inputs["ids"], batch.labels, strict=True):
            assert ids[np.flatnonzero(labels)[0]] == SEPARATOR, "the first label follows the separator"
            found.append(real(labels))
    assert sorted(found) == sorted((*tokenizer.encode([target])[0], END) for _, target in PAIRS)


def test_rows_of_similar_length_share_a_batch_and_the_order_changes(corpus):
    one, same, later, other = (
        [
            [real(row) for row in batch.labels]
            for batch in batches_of(PairPlan(PairRows(corpus, MOST), 400, seed), epoch)
        ]
        for seed, epoch in ((1, 0), (1, 0), (1, 1), (2, 0))
    )
    from_long_to_short = [len(row) for batch in sorted(one, key=lambda rows: -len(rows[0])) for row in batch]
    assert from_long_to_short == sorted(from_long_to_short, reverse=True) and len(one) > 5
    assert one == same not in (later, other) and sorted(sum(one, [])) == sorted(sum(later, []))
    with pytest.raises(RequestError, match="the token budget must hold the longest sentence"):
        PairPlan(PairRows(corpus, MOST), 12)


def test_a_long_source_stays_where_the_target_may_not_be_long(tmp_path, tokenizer):
    pairs = [("dog " * 90, "cat"), ("cat", "dog " * 90), ("", "dog"), ("dog", " "), ("dog", "sea " * 9)]
    report = corpus_of(tmp_path / "some", tokenizer, pairs, max_length=30).report
    assert (report.kept, report.empty, report.too_long, report.bad_ratio) == (2, 2, 1, 0)
    assert TokenizedCorpus.build(tmp_path / "both", pairs, tokenizer, tokenizer, max_length=30).report.too_long == 2
