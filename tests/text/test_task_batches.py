"""Batches of other tasks than translation: texts with masked places, histories of items, pairs in one row."""

import math
from collections import Counter
from itertools import chain

import numpy as np
import pytest

from keras_transformer.metrics import ranks_of
from keras_transformer.tasks.language_modelling.batches import PairPlan, PairRows
from keras_transformer.tasks.masked_tokens.training import SHARE, MaskedRows
from keras_transformer.tasks.next_item.baselines import followers, popularity, ranks
from keras_transformer.tasks.next_item.batches import HistoryPlan, with_start
from keras_transformer.text.batch_sampler import RowPlan
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import END, MASK, PAD, SEPARATOR, START, Tokenizer
from tests.text.plans import batches_of, real, same
from tests.tiny_text import lines

DRAW = np.random.default_rng(0)
PIECES = (5, 300)
TEXTS = [DRAW.integers(*PIECES, DRAW.integers(1, 40)).tolist() for _ in range(400)]


def masked_plan(seed=1, **options):
    return RowPlan(MaskedRows(TEXTS, 30, PIECES), 900, seed, **options)


@pytest.mark.parametrize("options", [{}, {"num_replicas": 3}, {"shuffle": False}])
def test_labels_are_what_stood_at_the_places_and_texts_are_whole(options):
    plan, found = masked_plan(**options), []
    for batch in batches_of(plan):
        ids, told = batch.inputs["ids"], batch.labels != PAD
        found += [real(row) for row in np.where(told, batch.labels, ids) if row.any()]
        assert not told[:, 0].any() and not np.isin(ids[told], (START, END, PAD)).any()
        lengths = (ids != PAD).sum(1)
        counts = [max(1, round(SHARE * (length - 2))) if length else 0 for length in lengths]
        assert told.sum(1).tolist() == counts
    assert sorted(found) == sorted((START, *text[:28], END) for text in TEXTS)
    assert plan.corpus.num_cut == sum(len(text) > 28 for text in TEXTS)


def test_four_in_five_are_masked_one_in_ten_changed():
    epochs = [batches_of(masked_plan(), epoch) for epoch in range(12)]
    labels_of_epochs = [np.concatenate([batch.labels.ravel() for batch in batches]) for batches in epochs]
    assert not np.array_equal(labels_of_epochs[0], labels_of_epochs[1]), "each epoch has places of its own"
    one = RowPlan(MaskedRows([list(range(5, 30))], 40, PIECES), 900)
    assert len({batches_of(one, epoch)[0].labels.tobytes() for epoch in range(8)}) > 1, "of one text too"
    still = [batches_of(masked_plan(shuffle=False), epoch)[0] for epoch in (0, 1)]
    assert same(*still) and not same(batches_of(masked_plan(seed=2))[0], epochs[0][0])
    batches = list(chain(*epochs))
    labels = np.concatenate([batch.labels[batch.labels != PAD] for batch in batches])
    hidden = np.concatenate([batch.inputs["ids"][batch.labels != PAD] for batch in batches])
    assert len(labels) > 10_000
    assert np.mean(hidden == MASK) == pytest.approx(0.8, abs=0.02)
    assert np.mean(hidden == labels) == pytest.approx(0.1, abs=0.01)
    changed = hidden[(hidden != MASK) & (hidden != labels)]
    assert len(changed) / len(labels) == pytest.approx(0.1, abs=0.01)
    assert changed.min() >= PIECES[0] and changed.max() < PIECES[1]


HISTORIES = [DRAW.integers(4, 40, size).tolist() for size in (0, 1, 3, 7, 8, 9, 24, 25, 1, 14)]


def windows_of(plan, epoch):
    """(inputs, labels) of each window of an epoch, without padding."""
    return [
        (list(real(ids)), list(real(labels)))
        for batch in batches_of(plan, epoch)
        for ids, labels in zip(batch.inputs["ids"], batch.labels, strict=True)
        if ids.any()
    ]


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_each_event_is_told_once_in_an_epoch_from_those_before(num_replicas):
    plan, cuts = HistoryPlan(HISTORIES, 8, 60, 1, num_replicas), set()
    for epoch in range(6):
        told: Counter[int] = Counter()
        windows = windows_of(plan, epoch)
        for ids, window in windows:
            assert ids == [2, *window[:-1]] and 1 <= len(window) <= 8
            text = ",".join(map(str, window))
            assert any(text in ",".join(map(str, history)) for history in HISTORIES)
            told.update(window)
        assert told == Counter(item for history in HISTORIES for item in history)
        for history in HISTORIES:
            assert not 0 < len(history) <= 8 or history in [window for _, window in windows], "it is whole"
        cuts.add(tuple(sorted(window[0] for _, window in windows)))
    assert len(cuts) == 6, "long histories are cut at other places in each epoch"
    again, other = (HistoryPlan(HISTORIES, 8, 60, seed, num_replicas) for seed in (1, 2))
    assert windows_of(again, 3) == windows_of(plan, 3) != windows_of(other, 3)


def test_validation_tells_the_last_item_from_as_much_as_the_model_sees_when_it_is_used():
    plan = HistoryPlan(HISTORIES, 8, 60, num_replicas=3, shuffle=False, tells_last=True)
    expected = [(with_start(history[:-1], 8), history[-1:]) for history in HISTORIES if history]
    assert sorted(windows_of(plan, 0)) == sorted(expected)
    assert windows_of(plan, 0) == windows_of(plan, 5)
    assert with_start([], 4) == [2] and with_start([7, 8, 9, 10], 4) == [2, 8, 9, 10]


TRAINED = [[4, 5, 4, 5], [4, 6], [7, 5, 4], [6]]


def test_baselines_by_hand():
    """After 4 came 5 twice and 6 once; after 8 nothing ever came."""
    popular = np.array([0, 0, 0, 0, 4, 3, 2, 1, 0]) / 10
    np.testing.assert_allclose(popularity(TRAINED, 9)([7]), popular)
    markov = followers(TRAINED, 9, popular=0.5)
    np.testing.assert_allclose(markov([7, 4]), (popular + np.array([0, 0, 0, 0, 0, 2, 1, 0, 0]) / 3) / 2)
    for history in ([4, 8], []):
        np.testing.assert_allclose(markov(history), popular / 2)
    histories, targets = [[4], [7, 5], [], [6]], [6, 4, 8, 1]
    expected = ranks_of(np.array(targets), np.stack([markov(history) for history in histories]))
    np.testing.assert_array_equal(ranks(markov, histories, targets, 4), np.asarray(expected))


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


def test_a_long_source_stays_where_the_target_may_not_be_long(tmp_path, tokenizer):
    pairs = [("dog " * 90, "cat"), ("cat", "dog " * 90), ("", "dog"), ("dog", " "), ("dog", "sea " * 9)]
    report = corpus_of(tmp_path / "some", tokenizer, pairs, max_length=30).report
    assert (report.kept, report.empty, report.too_long, report.bad_ratio) == (2, 2, 1, 0)
    assert TokenizedCorpus.build(tmp_path / "both", pairs, tokenizer, tokenizer, max_length=30).report.too_long == 2
