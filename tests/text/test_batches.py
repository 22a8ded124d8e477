"""Batches of pairs: every pair once an epoch, within the budget, from seed and place alone; and how they are fed."""

from collections import Counter
from itertools import islice

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.core.errors import RequestError
from keras_transformer.tasks.language_modelling.batches import WindowPlan
from keras_transformer.text.batch_sampler import BatchPlan
from keras_transformer.text.feeding import Batch, Place, dataset, generator, one_epoch, shard
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import END, PAD, START
from tests.text.plans import arrays, batches_of, pairs_of, same
from tests.text.test_tokenized import Counting


@pytest.fixture(scope="module")
def corpus(pairs, unigram, tmp_path_factory) -> TokenizedCorpus:
    return TokenizedCorpus.build(tmp_path_factory.mktemp("cache") / "tokens", pairs, unigram, unigram)


def rows_of(batches: list[Batch]) -> Counter[tuple[tuple[int, ...], ...]]:
    """How often each pair of ids comes."""
    return Counter(pairs_of(batches))


PLANS = {
    "token_budget": st.integers(1000, 4000), "seed": st.integers(0, 99), "num_replicas": st.integers(1, 4),
    "accumulate": st.integers(1, 3), "static_shapes": st.sampled_from([0, 1, 3, 8]), "shuffle": st.booleans(),
}  # fmt: skip


@settings(max_examples=25)
@given(st.fixed_dictionaries(PLANS), st.integers(0, 3))
def test_an_epoch_is_every_pair_once_within_the_budget(corpus, pairs, unigram, settings, epoch) -> None:
    plan = BatchPlan(corpus, **settings)
    assert plan.divisor == settings["num_replicas"] * settings["accumulate"]
    batches = batches_of(plan, epoch)
    sources, targets = ([(*ids, END) for ids in unigram.encode(side)] for side in zip(*pairs, strict=True))
    assert rows_of(batches) == Counter(zip(sources, targets, strict=True))
    undivided = batches_of(BatchPlan(corpus, **{**settings, "num_replicas": 1, "accumulate": 1}), epoch)
    assert [rows_of([one]) for one in batches] == [rows_of([one]) for one in undivided], (
        "each batch, not the epoch alone"
    )
    for inputs, labels, _ in batches:
        assert (inputs["target_ids"][:, 0] == START)[labels.any(1)].all()
        before = np.where(labels == END, PAD, labels)[:, :-1]  # the decoder reads start and the labels before
        np.testing.assert_array_equal(inputs["target_ids"][:, 1:], before)
        if plan.shapes:
            assert (*inputs["source_ids"].shape, labels.shape[1]) in plan.shapes
        else:
            assert inputs["source_ids"][:, -1].any() and labels[:, -1].any()  # no wider than the longest


def test_batches_are_a_function_of_seed_epoch_and_index(corpus) -> None:
    first, again, other = (BatchPlan(corpus, 800, seed=seed) for seed in (1, 1, 2))
    assert same(first.batch(Place(2, 5)), again.batch(Place(2, 5)))
    assert not same(first.batch(Place(2, 5)), other.batch(Place(2, 5)))
    assert not same(first.batch(Place(0, 1)), first.batch(Place(1, 1)))
    still = BatchPlan(corpus, 800, shuffle=False)
    assert same(still.batch(Place(0, 1)), still.batch(Place(7, 1)))
    whole = list(islice(BatchPlan(corpus, 2000, static_shapes=3).iterate(), 40))
    assert whole[0][0] == (0, 0) and whole[-1][0].epoch >= 2
    for start in (4, 39):
        rest = islice(BatchPlan(corpus, 2000, static_shapes=3).iterate(whole[start][0]), 40 - start)
        for (place, batch), (expected_place, expected) in zip(rest, whole[start:], strict=True):
            assert place == expected_place and same(batch, expected), "continued from any place"


def test_a_budget_below_the_longest_sentence_is_refused(corpus) -> None:
    longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max()))
    message = f"longest sentence, {longest} tokens, .* 6 replicas .* at least {6 * longest}; received: 100"
    with pytest.raises(RequestError, match=message):
        BatchPlan(corpus, 100, num_replicas=3, accumulate=2)
    BatchPlan(corpus, 6 * longest, num_replicas=3, accumulate=2)


def test_little_is_padded(tmp_path) -> None:
    """Of 29,000 pairs of lengths like Multi30k's."""
    random = np.random.default_rng(1)
    source = np.clip(random.gamma(9, 1.6, 29_000), 3, 60).astype(int)
    target = np.clip(source + random.normal(0.5, 2.5, 29_000), 3, 60).astype(int)
    pairs = zip(source.astype(str).tolist(), target.astype(str).tolist(), strict=True)
    corpus = TokenizedCorpus.build(tmp_path / "tokens", pairs, Counting(), Counting())
    for static_shapes, most in ((8, 0.25), (0, 0.06)):
        plan = BatchPlan(corpus, 4096, static_shapes=static_shapes)
        batches = [plan.batch(Place(0, index)) for index in range(plan.num_batches(0))]
        ids = [array for batch in batches for array in (batch.inputs["source_ids"], batch.labels)]
        assert 1 - sum(map(np.count_nonzero, ids)) / sum(array.size for array in ids) < most


def test_batches_of_each_shape_are_known_where_shapes_are_few(corpus) -> None:
    plan = BatchPlan(corpus, 2000, num_replicas=2, static_shapes=4)
    shapes = {batch.labels.shape for _, batch in islice(plan.iterate(), 3 * plan.num_batches(0))}
    of_each = [plan.batch(place).labels.shape for place in plan.of_each_shape()]
    assert set(of_each) == shapes and len(of_each) == len(shapes) <= 4
    assert set(of_each) <= {(rows, width) for rows, _, width in plan.shapes}
    assert BatchPlan(corpus, 2000).of_each_shape() == []
    windows = WindowPlan(np.arange(100, dtype="int32") + 4, 8, 32)
    assert windows.of_each_shape() == [Place(0, 0), Place(0, windows.num_batches(0) - 1)]


def test_the_dataset_yields_shards_in_replica_order(corpus) -> None:
    import tensorflow as tf

    plan = BatchPlan(corpus, 2000, num_replicas=4)
    whole = plan.batch(Place(1, 2))
    shards = map(arrays, (shard(whole, index, 4) for index in range(4)))
    for array, *parts in zip(arrays(whole), *shards, strict=True):
        assert np.array_equal(np.stack(parts, axis=1).reshape(array.shape), array)
    fed = list(islice(generator(plan, Place(1, 2), replica_indices=(3, 2), num_shards=4), 12))
    for index, values in enumerate(fed):
        assert type(values) is tuple
        assert same(Batch(*values), shard(plan.batch(Place(1, 2 + index // 2)), 3 - index % 2, 4))
    data = dataset(plan, Place(1, 2), replica_indices=(3, 2), num_shards=4)
    assert data.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert data.options().autotune.enabled is False  # or its end may wait until the tuner wakes
    for values, expected in zip(data.take(12).as_numpy_iterator(), fed, strict=True):
        assert same(Batch(*values), Batch(*expected))
    validation = [Batch(*values) for values in one_epoch(plan, (0, 1), 2).as_numpy_iterator()]
    assert rows_of(validation) == rows_of(batches_of(plan))
    assert all(np.array_equal(batch.weights, batch.labels != PAD) for batch in validation)
