"""Batches of histories: windows, the held-out item, replicas; and recommending without a model."""

from collections import Counter

import numpy as np
import pytest

from keras_transformer import ranking
from keras_transformer.errors import RequestError
from keras_transformer.text.baselines import ItemToItem, Popularity, ranks
from keras_transformer.text.history_batches import HistoryPlan, begun
from tests.text.plans import batches_of, real

DRAW = np.random.default_rng(0)
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
    expected = [(begun(history[:-1], 8), history[-1:]) for history in HISTORIES if history]
    assert sorted(windows_of(plan, 0)) == sorted(expected)
    assert windows_of(plan, 0) == windows_of(plan, 5)
    with pytest.raises(RequestError, match="expected histories with items of the vocabulary; received none"):
        HistoryPlan([[], []], 8, 60)
    assert begun([], 4) == [2] and begun([7, 8, 9, 10], 4) == [2, 8, 9, 10]


TRAINED = [[4, 5, 4, 5], [4, 6], [7, 5, 4], [6]]


def test_baselines_by_hand():
    """After 4 came 5 twice and 6 once; after 8 nothing ever came."""
    popular = np.array([0, 0, 0, 0, 4, 3, 2, 1, 0]) / 10
    np.testing.assert_allclose(Popularity(TRAINED, 9).scores([7]), popular)
    markov = ItemToItem(TRAINED, 9, popular=0.5)
    np.testing.assert_allclose(markov.scores([7, 4]), (popular + np.array([0, 0, 0, 0, 0, 2, 1, 0, 0]) / 3) / 2)
    for history in ([4, 8], []):
        np.testing.assert_allclose(markov.scores(history), popular / 2)
    histories, targets = [[4], [7, 5], [], [6]], [6, 4, 8, 1]
    expected = ranking.ranks_of(np.array(targets), np.stack([markov.scores(history) for history in histories]))
    np.testing.assert_array_equal(ranks(markov, histories, targets, 4), np.asarray(expected))
