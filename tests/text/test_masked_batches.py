"""Batches of texts with masked places: which places, what stands there, and that texts are whole."""

from itertools import chain

import numpy as np
import pytest

from keras_transformer.text.masked_batches import SHARE, MaskedPlan, MaskedRows
from keras_transformer.text.tokenizer import END, MASK, PAD, START
from tests.text.plans import batches_of, real, same

GENERATOR = np.random.default_rng(0)
PIECES = (5, 300)
TEXTS = [GENERATOR.integers(*PIECES, GENERATOR.integers(1, 40)).tolist() for _ in range(400)]


def plan_of(seed=1, **options):
    return MaskedPlan(MaskedRows(TEXTS, 30), PIECES, 900, seed, **options)


@pytest.mark.parametrize("options", [{}, {"num_replicas": 3}, {"shuffle": False}])
def test_labels_are_what_stood_at_the_places_and_texts_are_whole(options):
    plan, found = plan_of(**options), []
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
    epochs = [batches_of(plan_of(), epoch) for epoch in range(12)]
    labels_of_epochs = [np.concatenate([batch.labels.ravel() for batch in batches]) for batches in epochs]
    assert not np.array_equal(labels_of_epochs[0], labels_of_epochs[1]), "each epoch has places of its own"
    still = [batches_of(plan_of(shuffle=False), epoch)[0] for epoch in (0, 1)]
    assert same(*still) and not same(batches_of(plan_of(seed=2))[0], epochs[0][0])
    batches = list(chain(*epochs))
    labels = np.concatenate([batch.labels[batch.labels != PAD] for batch in batches])
    hidden = np.concatenate([batch.inputs["ids"][batch.labels != PAD] for batch in batches])
    assert len(labels) > 10_000
    assert np.mean(hidden == MASK) == pytest.approx(0.8, abs=0.02)
    assert np.mean(hidden == labels) == pytest.approx(0.1, abs=0.01)
    changed = hidden[(hidden != MASK) & (hidden != labels)]
    assert len(changed) / len(labels) == pytest.approx(0.1, abs=0.01)
    assert changed.min() >= PIECES[0] and changed.max() < PIECES[1]
