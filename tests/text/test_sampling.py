"""Subword sampling draws segmentations as often as its papers say; whole epochs are drawn ahead and repeat exactly."""

import math
import random
from collections import Counter
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.text import subword_sampling
from keras_transformer.text.batch_sampler import BatchPlan
from keras_transformer.text.feeding import Batch, Place
from keras_transformer.text.subword_sampling import SampledEpochs, SubwordSampler
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import UNKNOWN, Tokenizer
from tests.processes import PROGRAMS, run_python
from tests.text.plans import batches_of, real, same


def test_without_chance_the_segmentation_is_the_tokenizers(tokenizer, lines) -> None:
    """Unigram: a high power leaves the best segmentation alone; BPE: no merge is passed over."""
    lines = [*lines, "", "bada 你好 gögo", "你好", "bada你", "<s> </s>"]
    sampler = SubwordSampler(tokenizer, 0 if tokenizer.model_type == "bpe" else 1000, "1")
    assert [sampler.sample(line) for line in lines] == tokenizer.encode(lines)


def test_any_segmentation_spells_the_line(tokenizer, lines) -> None:
    sampler = SubwordSampler(tokenizer, 0.1, "1")
    sampled = [sampler.sample(line) for line in lines]
    assert tokenizer.decode(sampled) == lines
    assert sampled != tokenizer.encode(lines)
    assert sampler.sample("你好世界").count(UNKNOWN) == 1, "a run of unknown characters is one id"


@given(st.text(st.characters(exclude_categories=()), max_size=30))
def test_any_text_can_be_sampled(unigram, text) -> None:
    ids = SubwordSampler(unigram, 0.2, "1").sample(text)
    assert not {0, 2, 3} & set(ids)
    assert bool(ids) == bool(unigram.encode([text])[0])
    assert unigram.decode([ids]) == unigram.decode(unigram.encode([text]))


def test_unigram_draws_by_probability() -> None:
    """Held to all segmentations of a word, one by one."""
    generator, alpha, word = random.Random(1), 0.3, "abacab"
    lines = ["".join(generator.choices("abc", k=8)) for _ in range(200)]
    sampler = SubwordSampler(Tokenizer.train(lines, 40), alpha, "1")

    def segmentations(rest: str) -> list[list[str]]:
        if not rest:
            return [[]]
        heads = [rest[:end] for end in range(1, len(rest) + 1) if rest[:end] in sampler._ids]
        return [[head, *tail] for head in heads for tail in segmentations(rest[len(head) :])]

    possible = segmentations(f"▁{word}")
    weights = [math.exp(alpha * sum(sampler._scores[piece] for piece in pieces)) for pieces in possible]
    assert len(possible) > 5
    draws = 20_000
    counts = Counter(tuple(sampler.sample(word)) for _ in range(draws))
    for pieces, weight in zip(possible, weights, strict=True):
        expected = weight / sum(weights)
        found = counts.pop(tuple(sampler._ids[piece] for piece in pieces), 0) / draws
        assert found == pytest.approx(expected, abs=5 * math.sqrt(expected / draws) + 1e-4)
    assert not counts


def test_bpe_passes_over_merges_as_often_as_told(lines) -> None:
    tokenizer = Tokenizer.train(lines, 200, "bpe")
    lengths = []
    for alpha in (0.0, 0.1, 0.5, 1.0):
        sampler = SubwordSampler(tokenizer, alpha, "1")
        lengths.append(sum(len(sampler.sample(line)) for line in lines[:100]))
    assert lengths == sorted(set(lengths))
    assert lengths[-1] == sum(len(tokenizer.normalize(line)) for line in lines[:100])  # characters alone


@pytest.fixture
def corpus(pairs, unigram, tmp_path) -> TokenizedCorpus:
    return TokenizedCorpus.build(tmp_path / "tokens", pairs[:100], unigram, unigram, keep_text=True)


def targets_of(batches: list[Batch]) -> list[tuple[int, ...]]:
    return sorted(real(row) for batch in batches for row in batch.labels if row.any())


@pytest.mark.parametrize("model_type", ["unigram", "bpe"])
def test_epochs_repeat_exactly_and_keep_the_text(pairs, lines, tmp_path, model_type) -> None:
    tokenizer = Tokenizer.train(lines, 200, model_type)
    corpus = TokenizedCorpus.build(tmp_path / "tokens", pairs[:30], tokenizer, tokenizer, keep_text=True)
    plan = BatchPlan(corpus, 1000, seed=3, sampling=0.1)
    first, second = batches_of(plan, 0), batches_of(plan, 1)
    for batches in (first, second):
        assert sorted(tokenizer.decode(targets_of(batches))) == sorted(target for _, target in pairs[:30])
    assert targets_of(first) != targets_of(second)
    resumed = BatchPlan(corpus, 1000, seed=3, sampling=0.1).iterate(Place(1, 0))
    assert same(next(resumed)[1], second[0])


def test_epochs_come_and_go_and_another_seed_has_others(corpus) -> None:
    sampled, other = (SampledEpochs(corpus, 0.1, seed=seed) for seed in (1, 2))
    mine, theirs = (one.corpus(0).target_lengths for one in (sampled, other))
    assert mine.sum() > corpus.target_lengths.sum() and not np.array_equal(mine, theirs)
    del other
    (folder,) = corpus.folder.glob("*-sampled")
    for epoch in (0, 1):
        drawn = sampled.corpus(epoch)
        assert sorted(path.name for path in folder.glob("epoch-*")) == [f"epoch-{epoch}", f"epoch-{epoch + 1}"]
    del sampled
    assert len(drawn) == len(corpus)
    assert drawn.labels(np.arange(100), 100, 300).any()  # mapped, though its file is gone
    assert not list(corpus.folder.glob("*-sampled"))


def test_however_many_processes_draw_an_epoch_is_the_same(corpus, monkeypatch) -> None:
    monkeypatch.setattr(subword_sampling, "PART_LINES", 30)  # four parts, the last of ten lines
    drawn = []
    for num_cores, expected in ((2, [(0, 4)]), (12, [(0, 1), (1, 2), (2, 4)]), (64, [(0, 1), (1, 2), (2, 3), (3, 4)])):
        monkeypatch.setattr(subword_sampling, "num_cores", lambda count=num_cores: count)
        assert subword_sampling.shares(4) == expected
        epoch = SampledEpochs(corpus, 0.1, seed=1).corpus(0)
        drawn.append([side(np.arange(100), 100, 300) for side in (epoch.source_ids, epoch.labels)])
    assert all(np.array_equal(one, two) for others in drawn[1:] for one, two in zip(drawn[0], others, strict=True))


def test_parts_are_drawn_apart(pairs, unigram, tmp_path, monkeypatch) -> None:
    corpus = TokenizedCorpus.build(tmp_path / "tokens", pairs[:30] * 2, unigram, unigram, keep_text=True)
    monkeypatch.setattr(subword_sampling, "PART_LINES", 30)
    first, second = np.split(SampledEpochs(corpus, 0.1, seed=1).corpus(0).labels(np.arange(60), 60, 300), 2)
    assert not np.array_equal(first, second)


def test_every_drawn_pair_begins_with_its_first_ids(pairs, unigram, tmp_path) -> None:
    first: Any = ([9, 5], [7])
    corpus = TokenizedCorpus.build(
        tmp_path / "tokens", pairs[:30], unigram, unigram, keep_text=True, max_length=70, first_ids=first
    )
    rows = np.arange(30)
    for place, sides in enumerate(zip(*pairs[:30], strict=True)):
        drawn = [SampledEpochs(corpus, 0.1, seed=1).corpus(epoch) for epoch in (0, 1)]
        for epoch in (corpus, *drawn):
            ids = (epoch.source_ids, epoch.labels)[place](rows, 30, 100)
            size = len(first[place])
            assert (ids[:, :size] == first[place]).all()
            assert unigram.decode([real(row[size:]) for row in ids]) == [*sides]
    with pytest.raises(RequestError, match="the longest sentence, 73 tokens"):
        BatchPlan(corpus, 72, sampling=0.1)
    assert batches_of(BatchPlan(corpus, 73, sampling=0.1), 0)


def test_what_cannot_be_sampled_is_told(corpus, pairs, unigram, tmp_path, capfd) -> None:
    without_text = TokenizedCorpus.build(tmp_path / "without", pairs[:9], unigram, unigram)
    with pytest.raises(RequestError, match="built with `keep_text=True`"):
        BatchPlan(without_text, 1000, sampling=0.1)
    (corpus.folder / "source.model").write_bytes(b"damaged")
    with pytest.raises(JobError, match="subword sampling of epoch 0 failed"):
        SampledEpochs(corpus, 0.1, seed=1).corpus(0)
    assert "source.model" in capfd.readouterr().err


def test_what_a_killed_run_left_does_no_harm(corpus) -> None:
    run_python(PROGRAMS / "killed_while_sampling.py", corpus.folder, status=-9)
    (abandoned,) = corpus.folder.glob("*-sampled")
    sampled = SampledEpochs(corpus, 0.1, seed=1)
    assert not abandoned.exists()
    assert len(sampled.corpus(0)) == len(corpus)
    SampledEpochs(corpus, 0.1, seed=1)  # One that lives is left alone.
    assert len(sampled.corpus(0)) == len(corpus) and len(list(corpus.folder.glob("*-sampled"))) == 1
