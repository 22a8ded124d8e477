from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
import textwrap
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from keras_transformer.errors import JobError, RequestError
from keras_transformer.text.batches import (
    Batch,
    BatchPlan,
    Place,
    TokenizedCorpus,
    _static_widths,
    dataset,
    generator,
    one_epoch,
    shard,
)
from keras_transformer.text.sampled_epochs import SampledEpochs
from keras_transformer.text.tokenized import scratch_folder, unlock
from keras_transformer.text.tokenizer import END, PAD, START, Tokenizer

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def corpus(pairs, unigram, tmp_path_factory) -> TokenizedCorpus:
    return TokenizedCorpus.build(tmp_path_factory.mktemp("cache") / "tokens", pairs, unigram, unigram)


@pytest.fixture
def with_text(pairs, unigram, tmp_path) -> TokenizedCorpus:
    return TokenizedCorpus.build(tmp_path / "tokens", pairs[:200], unigram, unigram, keep_text=True)


def epoch_of(plan: BatchPlan, epoch: int = 0) -> list[Batch]:
    return [plan.batch(Place(epoch, index)) for index in range(plan.num_batches(epoch))]


def rows_of(batches: list[Batch]) -> Counter[tuple[tuple[int, ...], tuple[int, ...]]]:
    """The pairs of ids in batches, pad and blank rows left out."""
    return Counter(
        (tuple(source[source != PAD]), tuple(labels[labels != PAD]))
        for batch in batches
        for source, labels in zip(batch.inputs["source_ids"].tolist(), batch.labels.tolist(), strict=True)
        for source, labels in [(np.array(source), np.array(labels))]
        if labels.any()
    )


def arrays(batch: Batch) -> list[np.ndarray]:
    return [*batch.inputs.values(), batch.labels, batch.weights]


def same(first: Batch, second: Batch) -> bool:
    return all(map(np.array_equal, arrays(first), arrays(second)))


# The tokenised corpus


def test_the_cache_holds_what_the_tokenizer_says(corpus, pairs, unigram) -> None:
    sources, targets = ([[*ids, END] for ids in unigram.encode(side)] for side in zip(*pairs, strict=True))
    assert len(corpus) == corpus.report.kept == len(pairs)
    assert corpus.source_lengths.tolist() == list(map(len, sources))
    assert corpus.target_lengths.tolist() == list(map(len, targets))
    rows = np.array([600, 0, 17])
    for padded, expected in (
        (corpus.source_ids(rows, 4, 70), sources),
        (corpus.labels(rows, 4, 70), targets),
    ):
        assert padded.shape == (4, 70) and padded.dtype == np.int32
        assert [row[row != PAD].tolist() for row in padded] == [expected[row] for row in rows] + [[]]
    opened = TokenizedCorpus.open(corpus.folder)
    assert opened.report == corpus.report
    assert np.array_equal(opened.labels(rows, 3, 70), corpus.labels(rows, 3, 70))


def test_pairs_left_out_are_counted_once(unigram, tmp_path) -> None:
    pairs = [
        ("bada", "gögo"),
        ("", "gögo"),
        ("bada", " "),
        ("\0\x01", "gögo"),
        ("", "bada " * 400),
        ("bada " * 400, "gögo"),
        ("bada " * 20, "gö"),
        ("gö", "bada " * 20),
        ("control\0and\x02 characters", "stay"),
    ]
    corpus = TokenizedCorpus.build(tmp_path / "tokens", iter(pairs), unigram, unigram, max_length=250)
    assert vars(corpus.report) == {"kept": 2, "empty": 4, "too_long": 1, "bad_ratio": 2, "held_out": 0}
    assert str(corpus.report).startswith("2 pairs kept, 7 left out of training: 4 empty on a side, 1 too long")
    assert len(corpus) == 2


def test_an_empty_corpus_after_cleaning_is_refused(unigram, tmp_path) -> None:
    for pairs in ([], [("", "a"), ("b", "")]):
        with pytest.raises(RequestError, match="no pair is left after cleaning: 0 pairs kept, .* check"):
            TokenizedCorpus.build(tmp_path / "tokens", pairs, unigram, unigram)
    assert not list(tmp_path.iterdir())


def test_a_cache_is_whole_or_not_there(pairs, unigram, tmp_path) -> None:
    def breaking() -> Iterator[tuple[str, str]]:
        yield from pairs
        raise RuntimeError("the disk is gone")

    with pytest.raises(RuntimeError):
        TokenizedCorpus.build(tmp_path / "tokens", breaking(), unigram, unigram)
    assert not list(tmp_path.iterdir())
    TokenizedCorpus.build(tmp_path / "tokens", pairs[:20], unigram, unigram)
    with pytest.raises(RuntimeError):
        TokenizedCorpus.build(tmp_path / "tokens", breaking(), unigram, unigram)
    assert len(TokenizedCorpus.open(tmp_path / "tokens")) == 20
    assert len(TokenizedCorpus.build(tmp_path / "tokens", pairs[:30], unigram, unigram)) == 30
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_what_a_killed_build_left_is_removed(pairs, unigram, tmp_path) -> None:
    (tmp_path / ".tokens-dead").mkdir()
    (tmp_path / ".tokens-dead" / "source.ids").write_bytes(b"half")

    def while_another_builds() -> Iterator[tuple[str, str]]:
        TokenizedCorpus.build(tmp_path / "tokens", pairs[:10], unigram, unigram)
        yield from pairs[:20]

    assert len(TokenizedCorpus.build(tmp_path / "tokens", while_another_builds(), unigram, unigram)) == 20
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


def test_a_build_that_ends_while_another_begins_is_left_alone(tmp_path, monkeypatch) -> None:
    (tmp_path / ".tokens-other").mkdir()
    glob = Path.glob

    def ending(self: Path, pattern: str) -> Iterator[Path]:
        for folder in list(glob(self, pattern)):
            folder.rename(self / "tokens")
            yield folder

    monkeypatch.setattr(Path, "glob", ending)
    folder, lock = scratch_folder(tmp_path, ".tokens-")
    unlock(lock)
    assert folder.is_dir() and (tmp_path / "tokens").is_dir()


def test_a_cache_that_is_missing_or_damaged_is_named(corpus, tmp_path) -> None:
    with pytest.raises(RequestError, match="no tokenised corpus at .*nowhere: build it first"):
        TokenizedCorpus.open(tmp_path / "nowhere")
    for name, content in {
        "source.ids": b"",
        "target.ids": b"123",
        "target.offsets": bytes(16),
        "meta.json": b"{",
    }.items():
        folder = shutil.copytree(corpus.folder, tmp_path / name)
        (folder / name).write_bytes(content)
        with pytest.raises(RequestError, match=f"the tokenised corpus .*{name} is damaged .*delete it"):
            TokenizedCorpus.open(folder)
    meta = json.loads((corpus.folder / "meta.json").read_text())
    (folder / "meta.json").write_text(json.dumps(meta | {"format": 99}))
    with pytest.raises(RequestError, match="damaged"):
        TokenizedCorpus.open(folder)


class Counting(Tokenizer):
    """In place of a tokenizer: a line is the number of its pieces."""

    def __init__(self) -> None:
        self.vocabulary_size = 100_000

    def encode(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        return [[99_999] * int(line) for line in lines]


def test_large_vocabularies_fit(tmp_path) -> None:
    corpus = TokenizedCorpus.build(tmp_path / "tokens", [("2", "1")], Counting(), Counting())
    assert corpus.labels(np.array([0]), 1, 3).tolist() == [[99_999, END, PAD]]


def test_windows_is_refused_in_one_line(run_in_backend) -> None:
    code = """
        import sys
        sys.modules["fcntl"] = None  # Windows has none
        from keras_transformer.errors import exit_status

        def command():
            import keras_transformer.text.batches

        sys.stderr = sys.stdout
        assert exit_status(command) == 2
    """
    printed = run_in_backend(code, "tensorflow")
    assert printed == "error: keras_transformer does not run on Windows: run it in WSL (Linux)\n"


# The plan


plans = st.fixed_dictionaries(
    {
        "token_budget": st.integers(1000, 4000),
        "seed": st.integers(0, 99),
        "num_replicas": st.integers(1, 4),
        "accumulate": st.integers(1, 3),
        "static_shapes": st.sampled_from([0, 1, 3, 8]),
        "shuffle": st.booleans(),
    }
)


@settings(max_examples=40)
@given(plans, st.integers(0, 3))
def test_an_epoch_is_every_pair_once_within_the_budget(corpus, pairs, unigram, settings, epoch) -> None:
    plan = BatchPlan(corpus, **settings)
    batches = epoch_of(plan, epoch)
    sources, targets = ([(*ids, END) for ids in unigram.encode(side)] for side in zip(*pairs, strict=True))
    assert rows_of(batches) == Counter(zip(sources, targets, strict=True))
    for inputs, labels, weights in batches:
        source_ids, target_ids = inputs["source_ids"], inputs["target_ids"]
        assert source_ids.dtype == target_ids.dtype == labels.dtype == np.int32
        assert weights.dtype == np.float32
        assert max(source_ids.size, labels.size) <= plan.token_budget
        assert len(source_ids) == len(labels) and target_ids.shape == labels.shape == weights.shape
        assert len(labels) % (settings["num_replicas"] * settings["accumulate"]) == 0
        if plan.shapes:
            assert (*source_ids.shape, labels.shape[1]) in plan.shapes
        else:
            assert source_ids[:, -1].any() and labels[:, -1].any()  # no wider than the longest


def test_weights_make_a_mean_over_the_real_tokens(corpus) -> None:
    for batch in epoch_of(BatchPlan(corpus, 1000, num_replicas=3)):
        real = batch.labels != PAD
        assert np.array_equal(batch.weights > 0, real)
        assert len(set(batch.weights[real].tolist())) == 1
        assert batch.weights.sum(dtype=np.float64) == pytest.approx(1, abs=1e-6)


def test_the_decoder_reads_start_and_the_labels_before(corpus) -> None:
    for inputs, labels, _ in epoch_of(BatchPlan(corpus, 1000, num_replicas=4)):
        for target, label in zip(inputs["target_ids"], labels, strict=True):
            pieces = label[(label != PAD) & (label != END)]
            expected = [START, *pieces] if label.any() else []
            assert target[: len(expected)].tolist() == expected
            assert not target[len(expected) :].any()


def test_rows_that_do_not_divide_are_filled_up_with_blank_ones(corpus) -> None:
    batches = epoch_of(BatchPlan(corpus, 2000, num_replicas=4, shuffle=False))
    blank = [int((~batch.labels.any(axis=1)).sum()) for batch in batches]
    assert blank == [0] * (len(batches) - 1) + [3]  # 601 pairs
    last = batches[-1]
    assert not any(array[-3:].any() for array in arrays(last))


def test_batches_are_a_function_of_seed_epoch_and_index(corpus) -> None:
    first, again, other = (BatchPlan(corpus, 800, seed=seed) for seed in (1, 1, 2))
    places = [Place(epoch, index) for epoch in (2, 0) for index in (5, 1)]
    for place in places:
        assert same(first.batch(place), again.batch(place))
        assert not same(first.batch(place), other.batch(place))
    assert not same(first.batch(Place(0, 1)), first.batch(Place(1, 1)))
    still = BatchPlan(corpus, 800, shuffle=False)
    assert same(still.batch(Place(0, 1)), still.batch(Place(7, 1)))


@pytest.mark.parametrize("static_shapes", [0, 3])
def test_continued_from_any_place_is_the_same(corpus, static_shapes) -> None:
    whole = list(islice(BatchPlan(corpus, 2000, static_shapes=static_shapes).iterate(), 40))
    assert whole[-1][0].epoch >= 2
    for start in (0, 4, 11, 39):
        rest = islice(BatchPlan(corpus, 2000, static_shapes=static_shapes).iterate(whole[start][0]), 40 - start)
        for (place, batch), (expected_place, expected) in zip(rest, whole[start:], strict=True):
            assert place == expected_place and same(batch, expected)


def test_tokens_of_a_batch_are_known_without_it(corpus) -> None:
    plan = BatchPlan(corpus, 2000, num_replicas=4)
    for index, batch in enumerate(epoch_of(plan)):
        assert plan.num_tokens(Place(0, index)) == np.count_nonzero(batch.labels != PAD)


def test_places_follow_one_another(corpus) -> None:
    plan = BatchPlan(corpus, 2000)
    last = plan.num_batches(0) - 1
    assert plan.place_after(Place(0, 0)) == (0, 1)
    assert plan.place_after(Place(0, last)) == (1, 0)


def test_shards_are_the_batch(corpus) -> None:
    batch = BatchPlan(corpus, 2000, num_replicas=3).batch(Place(0, 1))
    shards = [shard(batch, index, 3) for index in range(3)]
    assert len({len(part.labels) for part in shards}) == 1
    for whole, *parts in zip(arrays(batch), *map(arrays, shards), strict=True):
        assert np.array_equal(np.stack(parts, axis=1).reshape(whole.shape), whole)


def test_a_budget_below_the_longest_sentence_is_refused(corpus) -> None:
    longest = int(max(corpus.source_lengths.max(), corpus.target_lengths.max()))
    message = f"longest sentence, {longest} tokens, .* 6 replicas .* at least {6 * longest}; received: 100"
    with pytest.raises(RequestError, match=message):
        BatchPlan(corpus, 100, num_replicas=3, accumulate=2)
    BatchPlan(corpus, 6 * longest, num_replicas=3, accumulate=2)


@pytest.fixture(scope="module")
def like_multi30k(tmp_path_factory) -> TokenizedCorpus:
    """29,000 pairs of lengths like Multi30k's."""
    random = np.random.default_rng(1)
    source = np.clip(random.gamma(9, 1.6, 29_000), 3, 60).astype(int)
    target = np.clip(source + random.normal(0.5, 2.5, 29_000), 3, 60).astype(int)
    pairs = zip(source.astype(str).tolist(), target.astype(str).tolist(), strict=True)
    return TokenizedCorpus.build(tmp_path_factory.mktemp("like") / "tokens", pairs, Counting(), Counting())


def padding_share(plan: BatchPlan, epoch: int = 0) -> float:
    batches = epoch_of(plan, epoch)
    ids = [array for batch in batches for array in (batch.inputs["source_ids"], batch.labels)]
    return 1 - sum(map(np.count_nonzero, ids)) / sum(array.size for array in ids)


def test_little_is_padded_and_epochs_differ(like_multi30k) -> None:
    plan = BatchPlan(like_multi30k, 4096)
    assert padding_share(plan) < 0.06
    assert padding_share(BatchPlan(like_multi30k, 4096, static_shapes=8)) < 0.25

    def members(epoch: int) -> list[set[int]]:
        order = plan._epoch(epoch)
        return [set(order.rows_of(index).tolist()) for index in range(len(order.batches))]

    now, later = members(0), members(1)
    kept = [max(len(batch & other) for other in later) / len(batch) for batch in now]
    assert np.mean(kept) < 0.7


@given(st.lists(st.integers(1, 9), min_size=1, max_size=30), st.integers(1, 4))
def test_static_shapes_pad_least(widest, num_shapes) -> None:
    """Held to every choice of widths."""

    def slots(widths: tuple[int, ...]) -> int:
        return sum(min(width for width in widths if width >= wide) for wide in widest)

    longest = max(widest)
    chosen = tuple(_static_widths(np.array(widest), longest, num_shapes).tolist())
    assert len(chosen) <= num_shapes and chosen[-1] == longest
    others = itertools.combinations(range(1, longest), min(num_shapes, longest) - 1)
    assert slots(chosen) == min(slots((*other, longest)) for other in others)


# Feeding fit


def test_the_generator_yields_shards_in_replica_order(corpus) -> None:
    plan = BatchPlan(corpus, 2000, num_replicas=4)
    place = Place(0, 2)
    fed = list(islice(generator(plan, place, replica_indices=(2, 3), num_shards=4), 4))
    for index, values in enumerate(fed):
        assert type(values) is tuple
        batch = plan.batch(Place(0, 2 + index // 2))
        assert same(Batch(*values), shard(batch, 2 + index % 2, 4))


def test_the_dataset_is_the_generator(corpus) -> None:
    import tensorflow as tf

    plan = BatchPlan(corpus, 2000, num_replicas=2)
    data = dataset(plan, Place(1, 3), replica_indices=(1, 0), num_shards=2)
    assert data.options().experimental_distribute.auto_shard_policy == tf.data.experimental.AutoShardPolicy.OFF
    assert data.options().autotune.enabled is False  # or its end may wait until the tuner wakes
    expected = generator(plan, Place(1, 3), replica_indices=(1, 0), num_shards=2)
    for fed, values in zip(data.take(12).as_numpy_iterator(), expected, strict=False):
        assert same(Batch(*fed), Batch(*values))


def test_one_epoch_is_for_validation(corpus) -> None:
    plan = BatchPlan(corpus, 2000, num_replicas=2, shuffle=False)
    fed = [Batch(*values) for values in one_epoch(plan, (0, 1), 2).as_numpy_iterator()]
    assert rows_of(fed) == rows_of(epoch_of(plan))
    for batch in fed:
        assert np.array_equal(batch.weights, batch.labels != PAD)


# Subword sampling


def texts_of(batches: list[Batch], tokenizer: Tokenizer) -> list[str]:
    rows = [row for batch in batches for row in batch.labels.tolist() if row[0] != PAD]
    return sorted(tokenizer.decode(rows))


@pytest.mark.parametrize("alpha", [0.1])
def test_sampling_repeats_exactly_and_keeps_the_text(pairs, tokenizer, tmp_path, alpha) -> None:
    corpus = TokenizedCorpus.build(tmp_path / "tokens", pairs[:100], tokenizer, tokenizer, keep_text=True)
    plan, again = (BatchPlan(corpus, 2000, seed=3, sampling=alpha) for _ in range(2))
    first, second = (epoch_of(plan, epoch) for epoch in (0, 1))
    assert all(map(same, first, epoch_of(again, 0)))
    assert rows_of(first) != rows_of(second)
    assert texts_of(first, tokenizer) == texts_of(second, tokenizer) == sorted(pair[1] for pair in pairs[:100])
    resumed = BatchPlan(corpus, 2000, seed=3, sampling=alpha).iterate(Place(1, 2))
    assert same(next(resumed)[1], second[2])
    other = epoch_of(BatchPlan(corpus, 2000, seed=4, sampling=alpha), 0)
    assert rows_of(other) != rows_of(first)


def test_sampled_segmentations_stay_within_the_limit(pairs, unigram, tmp_path) -> None:
    corpus = TokenizedCorpus.build(tmp_path / "t", pairs[:100], unigram, unigram, max_length=20, keep_text=True)
    sampled = SampledEpochs(corpus, 0.1, seed=1).corpus(0)
    assert sampled.source_lengths.sum() > corpus.source_lengths.sum()
    assert max(sampled.source_lengths.max(), sampled.target_lengths.max()) <= 21


def test_sampled_epochs_come_and_go(with_text) -> None:
    sampled = SampledEpochs(with_text, 0.1, seed=1)
    (folder,) = with_text.folder.glob("sampled-*")
    for epoch in (0, 1, 2):
        corpus = sampled.corpus(epoch)
        assert sorted(path.name for path in folder.iterdir()) == [f"epoch-{epoch}", f"epoch-{epoch + 1}"]
    del sampled
    assert len(corpus) == len(with_text)
    assert corpus.labels(np.arange(200), 200, 300).any()  # mapped, though its file is gone
    assert not list(with_text.folder.glob("sampled-*"))


def test_sampling_takes_the_text(corpus) -> None:
    with pytest.raises(RequestError, match="built with `keep_text=True`"):
        BatchPlan(corpus, 1000, sampling=0.1)


def test_sampling_that_fails_says_so(with_text, capfd) -> None:
    (with_text.folder / "source.model").write_bytes(b"damaged")
    with pytest.raises(JobError, match="subword sampling of epoch 0 failed"):
        SampledEpochs(with_text, 0.1, seed=1).corpus(0)
    assert "source.model" in capfd.readouterr().err


def test_what_a_killed_run_left_does_no_harm(with_text) -> None:
    code = f"""
        import os, signal
        from keras_transformer.text.sampled_epochs import SampledEpochs
        from keras_transformer.text.tokenized import TokenizedCorpus
        sampled = SampledEpochs(TokenizedCorpus.open({str(with_text.folder)!r}), 0.1, seed=1)
        sampled._start(0)
        os.kill(os.getpid(), signal.SIGKILL)
    """
    killed = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], cwd=ROOT)
    assert killed.returncode == -9
    (abandoned,) = with_text.folder.glob("sampled-*")
    sampled = SampledEpochs(with_text, 0.1, seed=1)
    assert not abandoned.exists()
    assert len(sampled.corpus(0)) == len(with_text)
    beside = SampledEpochs(with_text, 0.1, seed=1)  # One that lives is left alone.
    assert len(list(with_text.folder.glob("sampled-*"))) == 2
    assert np.array_equal(beside.corpus(0).target_lengths, sampled.corpus(0).target_lengths)


# The benchmark


def test_the_benchmark_runs_at_a_small_size(tmp_path) -> None:
    from benchmarks import data

    results = data.benchmark(tmp_path, pairs=300, run=data.measured)
    assert "pairs kept" in results["build"]["report"]
    for feed in ("arrays", "dataset"):
        assert results[f"{feed}_4096"]["target_tokens_per_second"] > 0
        assert results[f"{feed}_4096"]["memory_mib"]["resident_peak"] > 0
    assert results["sampling"]["lines"] == 300
