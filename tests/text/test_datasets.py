"""Two datasets for `fit` from files: every pair once an epoch, weights, files of their own, caches, replicas."""

from __future__ import annotations

import gc
import re
import textwrap
import warnings
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from keras_transformer.errors import RequestError
from keras_transformer.text.batches import BatchPlan
from keras_transformer.text.corpora import corpus_from_files
from keras_transformer.text.datasets import Epochs, _PyEpochs, datasets_from_files
from keras_transformer.text.feeding import Batch, Place
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import Tokenizer
from tests.text.plans import batches_of, real
from tests.tiny_corpus import write_corpus

on_tensorflow = pytest.mark.skipif(keras.config.backend() != "tensorflow", reason="the datasets are tf.data's")


@pytest.fixture
def files(tmp_path) -> tuple[Path, Path]:
    return write_corpus(tmp_path)


@pytest.fixture(scope="module")
def backwards(tmp_path_factory) -> Tokenizer:
    """A vocabulary for `write_corpus`."""
    pairs = corpus_from_files(*write_corpus(tmp_path_factory.mktemp("text"))).train()
    return Tokenizer.train((line for pair in pairs for line in pair), 32)


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder of temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    return tmp_path / "temporary"


def datasets_of(files: tuple[Path, Path], tokenizer: Tokenizer, **options: Any) -> tuple[Any, Any]:
    return datasets_from_files(*files, tokenizer, **{"token_budget": 256, **options})


def epoch_of(dataset: Any) -> list[Batch]:
    """The batches of one iteration, as arrays."""
    batches: Iterable[Any] = dataset.as_numpy_iterator() if hasattr(dataset, "as_numpy_iterator") else dataset
    return [Batch(*batch) for batch in batches]


def pairs_of(batches: list[Batch]) -> list[tuple[tuple[int, ...], ...]]:
    """The pairs of ids in their order, without pad and blank rows."""
    return [
        (real(source), real(labels))
        for batch in batches
        for source, labels in zip(batch.inputs["source_ids"], batch.labels, strict=True)
        if labels.any()
    ]


def encoded(pairs: Iterable[tuple[str, str]], *tokenizers: Tokenizer) -> Counter[tuple[tuple[int, ...], ...]]:
    """How often each pair of ids comes, with end ids."""
    sides = [tokenizer.encode(side) for tokenizer, side in zip(tokenizers, zip(*pairs, strict=True), strict=True)]
    return Counter(((*source, 3), (*target, 3)) for source, target in zip(*sides, strict=True))


def make_model(tokenizer: Tokenizer) -> Any:
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.training.losses import SmoothedCrossEntropy
    from keras_transformer.training.metrics import Perplexity

    model = Transformer(tokenizer.vocabulary_size, 1, 2, 8, 12)
    compiled = (
        keras.config.backend() == "jax"
    )  # which is slow without; TensorFlow would compile for longer than it trains
    options: dict[str, Any] = {"jit_compile": compiled, "weighted_metrics": [Perplexity()]}
    model.compile(keras.optimizers.Adam(0.01), SmoothedCrossEntropy(0.1), **options)
    return model


def test_fit_takes_both_and_needs_no_numbers_of_steps(files, backwards, monkeypatch) -> None:
    """Keras makes more iterators of tf.data than it reads from. It goes through the epochs of the plan."""
    begun: list[int] = []
    batches = Epochs.batches

    def watched(self):
        if not self.is_validation:
            begun.append(self.epoch)
        yield from batches(self)

    monkeypatch.setattr(Epochs, "batches", watched)
    train, valid = datasets_of(files, backwards, initial_epoch=2)
    steps: Counter[int] = Counter()

    class Steps(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            self.epoch = epoch

        def on_train_batch_end(self, batch, logs=None):
            steps[self.epoch] += 1

    model = make_model(backwards)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Your input ran out of data")
        history = model.fit(train, validation_data=valid, epochs=4, initial_epoch=2, verbose=0, callbacks=[Steps()])
    if keras.config.backend() == "tensorflow":
        assert begun == [2, 3]
    count = len(epoch_of(train))
    assert history.params["steps"] == count and steps == {2: count, 3: count}
    perplexities = history.history["val_perplexity"]
    assert perplexities[-1] < perplexities[0]
    assert model.evaluate(valid, verbose=0, return_dict=True)["perplexity"] == pytest.approx(perplexities[-1], rel=1e-4)


@on_tensorflow
def test_the_example_in_the_docstring_runs(files, backwards, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, name in zip(files, ("train.en", "train.de"), strict=True):
        path.rename(name)
    (lines,) = re.findall(r"((?:^ {8}\S.*\n)+)", str(datasets_from_files.__doc__).partition("Args:")[0], re.MULTILINE)
    model = make_model(backwards)
    model.run_eagerly = True
    names = {"datasets_from_files": datasets_from_files, "tokenizer": backwards, "model": model}
    exec(textwrap.dedent(lines).replace("epochs=10", "epochs=1"), names)
    assert int(model.optimizer.iterations) > 0


def test_each_epoch_is_every_pair_in_an_order_of_its_own(files, backwards) -> None:
    train, _ = datasets_of(files, backwards, seed=3)
    first, second = (pairs_of(epoch_of(train)) for _ in range(2))
    assert first != second and Counter(first) == Counter(second)
    assert Counter(first) == encoded(corpus_from_files(*files).train(), backwards, backwards)
    again, _ = datasets_of(files, backwards, seed=3, initial_epoch=1)
    other, _ = datasets_of(files, backwards, seed=4)
    assert pairs_of(epoch_of(again)) == second
    assert pairs_of(epoch_of(other)) != first


def test_training_weighs_by_batch_and_validation_by_token(files, backwards) -> None:
    train, valid = datasets_of(files, backwards)
    for batch in epoch_of(train):
        assert batch.weights.sum() == pytest.approx(1)
        assert max(batch.inputs["source_ids"].size, batch.labels.size) <= 256
    first, second = epoch_of(valid), epoch_of(valid)
    assert pairs_of(first) == pairs_of(second)
    assert 0 < len(pairs_of(first)) <= 240 // 20, "some of the last lines are held out"
    assert not {*pairs_of(first)} & {*pairs_of(epoch_of(train))}
    for batch in first:
        assert np.array_equal(batch.weights, batch.labels != 0) and batch.weights.dtype == np.float32


def test_validation_files_and_two_vocabularies(files, backwards, tmp_path) -> None:
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
    list(islice(epochs.batches(), epochs.num_batches - 1))
    assert epochs.epoch == 4
    list(epochs.batches())
    assert epochs.epoch == 5
    dataset = _PyEpochs(Epochs(plan))
    for epoch in range(2):
        dataset.on_epoch_begin()
        asked = reversed(range(dataset.num_batches))
        assert pairs_of([Batch(*dataset[index]) for index in asked]) == pairs_of(batches_of(plan, epoch))
    assert plan.batch(Place(0, 0)).labels.any()


@pytest.mark.parity
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_fit_on_other_backends(backend, run_program) -> None:
    some = "needs_no_numbers or order_of_its_own or by_token"
    done = run_program("run_tests", __file__, "-k", some, KERAS_BACKEND=backend)
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-4000:]


def test_sampling_gives_each_epoch_as_many_batches(files, backwards) -> None:
    train, valid = datasets_of(files, backwards, sampling=0.2)
    first, second = epoch_of(train), epoch_of(train)
    assert len(first) == len(second)
    assert Counter(pairs_of(first)) != Counter(pairs_of(second))


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


def test_a_temporary_folder_goes_away_with_the_datasets(files, backwards, temporary) -> None:
    train, valid = datasets_of(files, backwards)
    assert len(list(temporary.iterdir())) == 2
    shortened = train.take(2) if hasattr(train, "take") else train
    del train
    gc.collect()
    assert epoch_of(shortened), "what is made of a dataset keeps its text"
    del shortened, valid
    gc.collect()
    assert not list(temporary.iterdir())


def test_what_cannot_be_trained_on_is_refused_as_by_train_py(
    files, backwards, tmp_path, temporary, monkeypatch
) -> None:
    import tensorflow as tf

    class Several:
        num_replicas_in_sync = 2

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", Several)
    source, target = files
    short, blank = tmp_path / "short", tmp_path / "blank"
    short.write_text("ba do\nfi gu\n")
    blank.write_text("\n" * 240)
    refused: list[tuple[str, tuple[Path, Path], dict[str, Any]]] = [
        ("no such file: .*missing; check the path", (source, tmp_path / "missing"), {}),
        ("has 240 lines and .*short has 2: ", (source, short), {}),
        ("give both or none", files, {"valid_source": source}),
        ("token budget must hold the longest sentence, .* at least .*; received: 5", files, {"token_budget": 5}),
        ("files, .*: no pair is left after cleaning", (blank, target), {}),
        ("must have one worker|`strategy` must be None", files, {"strategy": Several()}),
    ]
    for expected, arguments, options in refused:
        with pytest.raises(RequestError, match=expected):
            datasets_of(arguments, backwards, **options)
    gc.collect()
    assert not list(temporary.iterdir())


@on_tensorflow
def test_replicas_share_each_batch(run_program, files, backwards, tmp_path) -> None:
    """Two replicas learn in an epoch what one device learns."""
    backwards.save(tmp_path / "tokenizer.model")
    done = run_program("fit_on_replicas", *files, tmp_path / "tokenizer.model")
    assert done.returncode == 0, done.stderr[-4000:]
