"""Two datasets for `fit` from files: every pair once an epoch, weights, files of their own, caches, replicas."""

import gc
import warnings
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.losses import SmoothedCrossEntropy
from keras_transformer.metrics import Perplexity
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.batch_sampler import BatchPlan
from keras_transformer.text.corpora import corpus_from_files
from keras_transformer.text.datasets import Epochs, _PyEpochs, datasets_from_files
from keras_transformer.text.feeding import Batch
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import Tokenizer
from tests.processes import PROGRAMS, run_python
from tests.text.plans import batches_of, pairs_of
from tests.tiny_corpus import write_corpus


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    return write_corpus(tmp_path)


@pytest.fixture(scope="module")
def backwards(tmp_path_factory) -> Tokenizer:
    """A vocabulary for `write_corpus`."""
    pairs = corpus_from_files(*write_corpus(tmp_path_factory.mktemp("text"))).train()
    return Tokenizer.train((line for pair in pairs for line in pair), 32)


def datasets_of(files: tuple[Path, Path], tokenizer: Tokenizer, **options: Any) -> tuple[Any, Any]:
    return datasets_from_files(*files, tokenizer, **{"token_budget": 256, **options})


def epoch_of(dataset: Any) -> list[Batch]:
    """The batches of one iteration, as arrays."""
    return [Batch(*batch) for batch in getattr(dataset, "as_numpy_iterator", dataset.__iter__)()]


def encoded(pairs: Iterable[tuple[str, str]], *tokenizers: Tokenizer) -> Counter[tuple[tuple[int, ...], ...]]:
    """How often each pair of ids comes, with end ids."""
    sides = [tokenizer.encode(side) for tokenizer, side in zip(tokenizers, zip(*pairs, strict=True), strict=True)]
    return Counter(((*source, 3), (*target, 3)) for source, target in zip(*sides, strict=True))


def make_model(tokenizer: Tokenizer) -> Any:
    model = Transformer(tokenizer.vocabulary_size, 1, 2, 8, 12)
    # JAX is slow without; TensorFlow would trace a graph for longer than it trains.
    ways: dict[str, Any] = {"jit_compile": True} if keras.config.backend() == "jax" else {"run_eagerly": True}
    model.compile(keras.optimizers.Adam(0.05), SmoothedCrossEntropy(0.1), weighted_metrics=[Perplexity()], **ways)
    return model


def test_fit_takes_both_and_needs_no_numbers_of_steps(files, backwards) -> None:
    train, valid = datasets_of(files, backwards, initial_epoch=2, token_budget=1024)
    model = make_model(backwards)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Your input ran out of data")
        history = model.fit(train, validation_data=valid, epochs=4, initial_epoch=2, verbose=0, shuffle=False)
    count = len(epoch_of(train))
    assert history.params["steps"] == count and int(model.optimizer.iterations) == 2 * count
    perplexities = history.history["val_perplexity"]
    assert perplexities[-1] < perplexities[0]


def test_each_epoch_is_every_pair_in_an_order_of_its_own(files, backwards) -> None:
    train, _ = datasets_of(files, backwards, seed=3)
    first, second = (pairs_of(epoch_of(train)) for _ in range(2))
    assert first != second and Counter(first) == Counter(second)
    assert Counter(first) == encoded(corpus_from_files(*files, seed=3).train(), backwards, backwards)
    again, _ = datasets_of(files, backwards, seed=3, initial_epoch=1)
    other, _ = datasets_of(files, backwards, seed=4)
    assert pairs_of(epoch_of(again)) == second
    assert pairs_of(epoch_of(other)) != first
    sampled, _ = datasets_of(files, backwards, sampling=0.2)
    one, two = epoch_of(sampled), epoch_of(sampled)
    assert len(one) == len(two) and Counter(pairs_of(one)) != Counter(pairs_of(two))


def test_each_token_weighs_alike(files, backwards, tmp_path) -> None:
    train, valid = map(epoch_of, datasets_of(files, backwards))
    assert all(np.array_equal(batch.weights, batch.labels != 0) for batch in [*train, *valid])
    assert all(max(batch.inputs["source_ids"].size, batch.labels.size) <= 256 for batch in train)
    assert {batch.weights.dtype for batch in valid} == {np.dtype("float32")}
    (tmp_path / "valid").mkdir()
    of_valid = write_corpus(tmp_path / "valid", 17)
    reverse = Tokenizer.train(files[1].read_text().splitlines(), 28)
    options = {"valid_source": of_valid[0], "valid_target": of_valid[1]}
    train, valid = datasets_of(files, backwards, target_tokenizer=reverse, **options)
    sides = [path.read_text().splitlines() for path in of_valid]
    assert Counter(pairs_of(epoch_of(valid))) == encoded(zip(*sides, strict=True), backwards, reverse)
    assert len(pairs_of(epoch_of(train))) == 240


def test_epochs_that_are_broken_off_and_those_of_jax_and_pytorch(files, backwards, tmp_path) -> None:
    """The former begin again. The latter have the order of the plan, however they are asked for."""
    corpus = TokenizedCorpus.build(tmp_path / "t", corpus_from_files(*files).train(), backwards, backwards)
    plan = BatchPlan(corpus, 256)
    epochs = Epochs(plan, epoch=4)
    for count, epoch in ((epochs.num_batches - 1, 4), (epochs.num_batches + 1, 5)):
        list(islice(epochs.batches(), count))
        assert epochs.epoch == epoch
    dataset = _PyEpochs(Epochs(plan))
    for epoch in range(2):
        dataset.on_epoch_begin()
        asked = reversed(range(dataset.num_batches))
        assert pairs_of([Batch(*dataset[index]) for index in asked]) == pairs_of(batches_of(plan, epoch))


@pytest.mark.parity
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_fit_on_other_backends(backend) -> None:
    some = "needs_no_numbers or order_of_its_own or weighs_alike"
    run_python("-m", "pytest", "-x", "-p", "no:cacheprovider", __file__, "-k", some, KERAS_BACKEND=backend)


def test_the_tokenised_text_is_kept_in_a_cache(files, backwards, tmp_path, monkeypatch) -> None:
    cache = tmp_path / "cache"
    train, _ = datasets_of(files, backwards, cache=cache)
    assert sorted(path.name.partition("-")[0] for path in cache.iterdir()) == ["train", "validation"]
    with monkeypatch.context() as patch:
        patch.setattr(TokenizedCorpus, "build", lambda *_, **__: pytest.fail("tokenised again"))
        again, _ = datasets_of(files, backwards, cache=cache)
    assert pairs_of(epoch_of(again)) == pairs_of(epoch_of(train))
    files[1].write_text(files[1].read_text().replace("ba", "do"))
    datasets_of(files, backwards, cache=cache)
    assert len(list(cache.iterdir())) == 4, "another text"
    monkeypatch.setattr("keras_transformer.text.datasets.sha256_of_source", lambda folder: "other rules of cleaning")
    datasets_of(files, backwards, cache=cache)
    assert len(list(cache.iterdir())) == 6, "other code"


def test_a_temporary_folder_goes_away_with_the_datasets(files, backwards, tmp_path, monkeypatch) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    train, valid = datasets_of(files, backwards)
    assert len(list((tmp_path / "temporary").iterdir())) == 2
    train = train.take(2) if hasattr(train, "take") else train
    gc.collect()
    assert epoch_of(train), "what is made of a dataset keeps its text"
    del train, valid
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())


def test_what_cannot_be_trained_on_is_refused(files, backwards, monkeypatch) -> None:
    several = type("Several", (), {"num_replicas_in_sync": 2})
    monkeypatch.setattr("tensorflow.distribute.MultiWorkerMirroredStrategy", several)
    refused: list[tuple[str, dict[str, Any]]] = [
        ("give both or none", {"valid_source": files[0]}),
        ("must have one worker|`strategy` must be None", {"strategy": several()}),
        ("token budget must hold the longest sentence, .* at least .*; received: 5", {"token_budget": 5}),
    ]
    for expected, options in refused:
        with pytest.raises(RequestError, match=expected):
            datasets_of(files, backwards, **options)


@pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="replicas are TensorFlow's")
def test_replicas_share_each_batch(files, backwards, tmp_path) -> None:
    """That two replicas with the parts of a batch learn what one device learns is in training/test_replicas.py."""
    backwards.save(tmp_path / "tokenizer.model")
    run_python(PROGRAMS / "divide_among_replicas.py", *files, tmp_path / "tokenizer.model")
