"""Batches of texts with masked places."""

from __future__ import annotations

import numpy as np
import pytest

from keras_transformer.text.feeding import Place
from keras_transformer.text.masked_batches import SHARE, MaskedPlan, MaskedRows
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, MASK, PAD, START, Tokenizer

GENERATOR = np.random.default_rng(0)
PIECES = (5, 300)
TEXTS = [GENERATOR.integers(*PIECES, GENERATOR.integers(1, 40)).tolist() for _ in range(400)]


def plan_of(seed=1, max_length=30, **options):
    return MaskedPlan(MaskedRows(TEXTS, max_length), PIECES, 900, seed, **options)


def batches(plan, epoch=0):
    return [plan.batch(Place(epoch, number)) for number in range(plan.num_batches(epoch))]


def texts_of(batch):
    """The texts of a batch as they were, with start and end."""
    ids = np.where(batch.labels != PAD, batch.labels, batch.inputs["ids"])
    return [tuple(row[row != PAD].tolist()) for row in ids if row.any()]


@pytest.mark.parametrize("options", [{}, {"num_replicas": 3}, {"shuffle": False}])
def test_labels_are_what_stood_at_the_places_and_texts_are_whole(options):
    plan = plan_of(**options)
    found = [text for batch in batches(plan) for text in texts_of(batch)]
    expected = [(START, *text[:28], END) for text in TEXTS]
    assert sorted(found) == sorted(expected) and plan.corpus.num_cut == sum(len(text) > 28 for text in TEXTS)
    for number, batch in enumerate(batches(plan)):
        told = batch.labels != PAD
        assert not told[:, 0].any() and not np.isin(batch.inputs["ids"][told], (START, END, PAD)).any()
        assert plan.num_tokens(Place(0, number)) == told.sum()
        np.testing.assert_allclose(batch.weights, told / told.sum(), rtol=1e-6)
        lengths = (batch.inputs["ids"] != PAD).sum(1)
        expected_counts = [max(1, round(SHARE * (length - 2))) if length else 0 for length in lengths]
        assert told.sum(1).tolist() == expected_counts


def test_four_in_five_are_masked_one_in_ten_changed():
    hidden, labels = (
        np.concatenate(arrays)
        for arrays in zip(
            *(
                (batch.inputs["ids"][batch.labels != PAD], batch.labels[batch.labels != PAD])
                for epoch in range(12)
                for batch in batches(plan_of(), epoch)
            ),
            strict=True,
        )
    )
    assert len(labels) > 10_000
    assert np.mean(hidden == MASK) == pytest.approx(0.8, abs=0.02)
    assert np.mean(hidden == labels) == pytest.approx(0.1, abs=0.01)
    changed = hidden[(hidden != MASK) & (hidden != labels)]
    assert len(changed) / len(labels) == pytest.approx(0.1, abs=0.01)
    assert changed.min() >= PIECES[0] and changed.max() < PIECES[1]


def test_places_change_with_the_epoch_and_the_seed_and_not_in_validation():
    def told(plan, epoch):
        return {tuple(row) for batch in batches(plan, epoch) for row in batch.labels.tolist()}

    assert told(plan_of(), 0) == told(plan_of(), 0)
    assert told(plan_of(), 0) != told(plan_of(), 1) and told(plan_of(), 0) != told(plan_of(seed=2), 0)
    assert told(plan_of(shuffle=False), 0) == told(plan_of(shuffle=False), 1)


def test_a_vocabulary_with_a_mask():
    lines = [f"line {n} of a text <mask>" for n in range(50)]
    tokenizer = Tokenizer.train(lines, 29, has_mask=True)
    assert tokenizer.has_mask and tokenizer.pieces([*range(5)]) == [*CONTROL_PIECES, "<mask>"]
    assert MASK not in tokenizer.encode(["a <mask> text"])[0], "text that spells it stays text"
    assert not Tokenizer.train(lines, 29).has_mask
