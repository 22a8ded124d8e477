"""Subword sampling of whole epochs: each has segmentations of its own, drawn ahead, which repeat exactly."""

import numpy as np
import pytest

from keras_transformer.errors import JobError, RequestError
from keras_transformer.text.batches import BatchPlan
from keras_transformer.text.feeding import Batch, Place
from keras_transformer.text.sampled_epochs import SampledEpochs
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import Tokenizer
from tests.text.plans import batches_of, real, same


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


def test_sampled_segmentations_stay_within_the_limit(pairs, unigram, tmp_path) -> None:
    corpus = TokenizedCorpus.build(tmp_path / "t", pairs[:100], unigram, unigram, max_length=20, keep_text=True)
    sampled = SampledEpochs(corpus, 0.1, seed=1).corpus(0)
    assert sampled.source_lengths.sum() > corpus.source_lengths.sum()
    assert max(sampled.source_lengths.max(), sampled.target_lengths.max()) <= 21


def test_epochs_come_and_go_and_another_seed_has_others(corpus) -> None:
    sampled, other = (SampledEpochs(corpus, 0.1, seed=seed) for seed in (1, 2))
    mine, theirs = (one.corpus(0).labels(np.arange(len(corpus)), len(corpus), 300) for one in (sampled, other))
    assert not np.array_equal(mine, theirs)
    del other
    (folder,) = corpus.folder.glob("sampled-*")
    for epoch in (0, 1):
        drawn = sampled.corpus(epoch)
        assert sorted(path.name for path in folder.iterdir()) == [f"epoch-{epoch}", f"epoch-{epoch + 1}"]
    del sampled
    assert len(drawn) == len(corpus)
    assert drawn.labels(np.arange(100), 100, 300).any()  # mapped, though its file is gone
    assert not list(corpus.folder.glob("sampled-*"))


def test_what_cannot_be_sampled_is_told(corpus, pairs, unigram, tmp_path, capfd) -> None:
    without_text = TokenizedCorpus.build(tmp_path / "without", pairs[:9], unigram, unigram)
    with pytest.raises(RequestError, match="built with `keep_text=True`"):
        BatchPlan(without_text, 1000, sampling=0.1)
    (corpus.folder / "source.model").write_bytes(b"damaged")
    with pytest.raises(JobError, match="subword sampling of epoch 0 failed"):
        SampledEpochs(corpus, 0.1, seed=1).corpus(0)
    assert "source.model" in capfd.readouterr().err


def test_what_a_killed_run_left_does_no_harm(corpus, run_program) -> None:
    assert run_program("killed_while_sampling", corpus.folder).returncode == -9
    (abandoned,) = corpus.folder.glob("sampled-*")
    sampled = SampledEpochs(corpus, 0.1, seed=1)
    assert not abandoned.exists()
    assert len(sampled.corpus(0)) == len(corpus)
    SampledEpochs(corpus, 0.1, seed=1)  # One that lives is left alone.
    assert len(sampled.corpus(0)) == len(corpus) and len(list(corpus.folder.glob("sampled-*"))) == 1
