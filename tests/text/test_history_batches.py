"""Batches of histories: windows, the held-out item, replicas; and recommending without a model."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest

from keras_transformer import ranking
from keras_transformer.errors import RequestError
from keras_transformer.text.baselines import ItemToItem, Popularity, ranks
from keras_transformer.text.feeding import Place
from keras_transformer.text.history_batches import HistoryPlan, begun

DRAW = np.random.default_rng(0)
HISTORIES = [DRAW.integers(4, 40, size).tolist() for size in (0, 1, 3, 7, 8, 9, 24, 25, 1, 14)]


def windows_of(plan, epoch):
    """(inputs, labels) of each window of an epoch, without padding."""
    found = []
    for number in range(plan.num_batches(epoch)):
        batch = plan.batch(Place(epoch, number))
        assert np.isclose(batch.weights.sum(), 1) and ((batch.weights > 0) == (batch.labels != 0)).all()
        assert plan.num_tokens(Place(epoch, number)) == (batch.labels != 0).sum()
        assert batch.labels.size <= plan.token_budget and len(batch.labels) % plan.divisor == 0
        for ids, labels in zip(batch.inputs["ids"], batch.labels, strict=True):
            if ids.any():
                found.append((ids[ids != 0].tolist(), labels.tolist()))
    return found


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_each_event_is_told_once_in_an_epoch_from_those_before(num_replicas):
    plan = HistoryPlan(HISTORIES, 8, 60, 1, num_replicas)
    cuts = set()
    for epoch in range(6):
        told: Counter[int] = Counter()
        for ids, labels in windows_of(plan, epoch):
            window = [label for label in labels if label]
            assert ids == [2, *window[:-1]] and 1 <= len(window) <= 8
            text = ",".join(map(str, window))
            assert any(text in ",".join(map(str, history)) for history in HISTORIES)
            told.update(window)
        assert told == Counter(item for history in HISTORIES for item in history)
        cuts.add(tuple(sorted(labels[0] for _, labels in windows_of(plan, epoch))))
    assert len(cuts) == 6, "long histories are cut at other places in each epoch"


def test_short_histories_are_whole():
    plan = HistoryPlan(HISTORIES, 8, 60, 1)
    for epoch in range(4):
        found = [[label for label in labels if label] for _, labels in windows_of(plan, epoch)]
        for history in HISTORIES:
            assert not 0 < len(history) <= 8 or history in found


def test_the_same_seed_and_place_give_the_same_batch():
    one, other, third = (HistoryPlan(HISTORIES, 8, 60, seed) for seed in (1, 1, 2))
    for epoch in (3, 0):
        np.testing.assert_array_equal(one.batch(Place(epoch, 1)).labels, other.batch(Place(epoch, 1)).labels)
    assert windows_of(one, 3) != windows_of(third, 3)


@pytest.mark.parametrize("num_replicas", [1, 3])
def test_validation_tells_the_last_item_from_as_much_as_the_model_sees_when_it_is_used(num_replicas):
    plan = HistoryPlan(HISTORIES, 8, 60, num_replicas=num_replicas, shuffle=False, tells_last=True)
    found = sorted((ids, [label for label in labels if label]) for ids, labels in windows_of(plan, 0))
    assert found == sorted((begun(history[:-1], 8), history[-1:]) for history in HISTORIES if history)
    assert windows_of(plan, 0) == windows_of(plan, 5)


def test_what_the_model_sees_is_the_start_and_the_last_items():
    assert begun([], 4) == [2] and begun([7, 8, 9], 4) == [2, 7, 8, 9] and begun([7, 8, 9, 10], 4) == [2, 8, 9, 10]


def test_what_cannot_be_planned_is_refused():
    with pytest.raises(RequestError, match="expected histories with items of the vocabulary; received none"):
        HistoryPlan([[], []], 8, 60)
    with pytest.raises(RequestError, match="the token budget must hold the longest sentence, 8 tokens, on each of 3"):
        HistoryPlan(HISTORIES, 8, 20, 0, 3)


TRAINED = [[4, 5, 4, 5], [4, 6], [7, 5, 4], [6]]


def test_popularity_by_hand():
    scores = Popularity(TRAINED, 9).scores([7])
    np.testing.assert_allclose(scores, np.array([0, 0, 0, 0, 4, 3, 2, 1, 0]) / 10)


def test_item_to_item_by_hand():
    """After 4 came 5 twice and 6 once; after 8 nothing ever came."""
    markov = ItemToItem(TRAINED, 9, popular=0.5)
    popular = np.array([0, 0, 0, 0, 4, 3, 2, 1, 0]) / 10
    np.testing.assert_allclose(markov.scores([7, 4]), (popular + np.array([0, 0, 0, 0, 0, 2, 1, 0, 0]) / 3) / 2)
    for history in ([4, 8], []):
        np.testing.assert_allclose(markov.scores(history), popular / 2)


def test_ranks_of_a_baseline_are_those_of_a_model():
    markov, histories = ItemToItem(TRAINED, 9), [[4], [7, 5], [], [6]]
    targets = [6, 4, 8, 1]
    scores = np.stack([markov.scores(history) for history in histories])
    expected = ranking.ranks_of(np.array(targets), scores)
    np.testing.assert_array_equal(ranks(markov, histories, targets, 4), np.asarray(expected))
