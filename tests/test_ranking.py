"""Ranks, recall and NDCG: by hand, against Keras's metric, and against the definition."""

import keras
import numpy as np
import pytest
from keras import ops

from keras_transformer import metrics
from keras_transformer.metrics import NDCGAt, RecallAt
from keras_transformer.tasks.next_item import training
from keras_transformer.tasks.next_item.corpus import FIRST_ITEM
from keras_transformer.tasks.next_item.pipeline import mean_figures
from keras_transformer.text.tokenizer import UNKNOWN

SCORES = np.array([[9.0, 9, 9, 9, 5, 1, 3, 3], [0, 0, 0, 0, 1, 2, 3, 4]], "float32")


def ranks(targets, scores=SCORES):
    return ops.convert_to_numpy(metrics.ranks_of(np.array(targets), scores)).tolist()


def test_ranks_by_hand():
    assert metrics.NUM_CONTROL_IDS == FIRST_ITEM
    assert ranks([4, 7]) == [1, 1]
    assert ranks([5, 4]) == [4, 4]
    assert ranks([6, 6]) == [3, 2], "an item of the same score counts as better"
    assert ranks([[4, 5], [6, 7]], np.stack([SCORES, SCORES])) == [[1, 3], [3, 1]]
    for value in (0.0, np.nan):
        assert ranks([5], np.full((1, 8), value, "float32")) == [4], "scores that are equal or no numbers tell nothing"


def definition(relevant, scores, k):
    """NDCG of one list with one relevant item. The DCG of the best order is 1."""
    order = np.argsort(-scores)[:k]
    return (np.isin(order, relevant) / np.log2(np.arange(2, len(order) + 2))).sum()


@pytest.mark.parametrize("k", [1, 3, 10])
def test_recall_is_kerass_and_ndcg_is_the_definition(k):
    draw = np.random.default_rng(0)
    scores, targets = draw.permuted(np.tile(np.arange(30.0), (50, 1)), axis=1), draw.integers(4, 30, 50)
    scores[:, :4] = -1
    found = mean_figures(np.array(ranks(targets, scores.astype("float32"))), k)
    top = keras.metrics.SparseTopKCategoricalAccuracy(k)
    top.update_state(targets, scores.astype("float32"))
    assert found["recall"] == pytest.approx(float(top.result()), abs=1e-6)
    expected = np.mean([definition(target, row, k) for target, row in zip(targets, scores, strict=True)])
    assert found["ndcg"] == pytest.approx(expected, abs=1e-6) and 0 < found["ndcg"] <= found["recall"]


@pytest.mark.parametrize("num_items", range(1, 25))
def test_an_unknown_target_is_a_miss_in_every_catalogue(num_items):
    scores = np.random.default_rng(num_items).random((5, FIRST_ITEM + num_items)).astype("float32")
    targets = [UNKNOWN, UNKNOWN, FIRST_ITEM, UNKNOWN, UNKNOWN]
    found = [
        np.array(ranks(targets, scores)),
        training.ranks(lambda _: scores[0].astype("float64"), [[]] * 5, targets, FIRST_ITEM),
    ]
    for k in (1, 5, 10, 20, 1000):
        for one in found:
            assert [mean_figures(one[place : place + 1], k)["recall"] for place in (0, 1, 3, 4)] == [0] * 4
            assert mean_figures(np.delete(one, 2), k) == {"recall": 0, "ndcg": 0}
        for metric in (RecallAt(k), NDCGAt(k)):
            metric.update_state(np.array([targets]), scores[None], np.array([[1, 1, 0, 1, 1]], "float32"))
            assert float(metric.result()) == 0


def test_the_metrics_count_labels_alone():
    labels, weights = np.array([[7, 6, 0]]), np.array([[1.0, 1.0, 0.0]], "float32")
    logits = np.array([[SCORES[1], SCORES[1], SCORES[0]]])
    for metric, expected in ((RecallAt(1), 0.5), (RecallAt(2), 1.0), (NDCGAt(2), (1 + 1 / np.log2(3)) / 2)):
        metric.update_state(labels, logits, weights)
        assert float(metric.result()) == pytest.approx(expected)
        assert type(metric).from_config(metric.get_config()).k == metric.k
