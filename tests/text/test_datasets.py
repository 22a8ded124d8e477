"""Two datasets for `fit` from files."""

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
from keras_transformer.text.batches import Batch, BatchPlan, Place, TokenizedCorpus
from keras_transformer.text.corpora import corpus_from_files
from keras_transformer.text.datasets import Epochs, _PyEpochs, datasets_from_files
from keras_transformer.text.tokenizer import PAD, Tokenizer
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


def datasets_of(files: tuple[Path, Path], tokenizer: Tokenizer, **options: Any) -> tuple[Any, Any]:
    source, target = files
    return datasets_from_files(source, target, tokenizer, **options)


def epoch_of(dataset: Any) -> list[Batch]:
    """The batches of one iteration, as arrays."""
    batches: Iterable[Any] = dataset.as_numpy_iterator() if hasattr(dataset, "as_numpy_iterator") else dataset
    return [Batch(*batch) for batch in batches]


def pairs_of(batches: list[Batch]) -> list[tuple[tuple[int, ...], ...]]:
    """The pairs of ids in their order, without pad and blank rows."""
    return [
        tuple(tuple(row[row != PAD].tolist()) for row in pair)
        for batch in batches
        for pair in zip(batch.inputs["source_ids"], batch.labels, strict=True)
        if pair[1].any()
    ]


def make_model(tokenizer: Tokenizer) -> Any:
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.training.losses import SmoothedCrossEntropy
    from keras_transformer.training.metrics import Perplexity

    model = Transformer(tokenizer.vocabulary_size, 1, 2, 8, 12)
    model.compile(keras.optimizers.Adam(0.01), SmoothedCrossEntropy(0.1), weighted_metrics=[Perplexity()])
    return model


def test_fit_takes_both_and_needs_no_numbers_of_steps(files, backwards) -> None:
    train, valid = datasets_of(files, backwards, token_budget=256)
    epochs: list[int] = []

    class Steps(keras.callbacks.Callback):
        def on_epoch_begin(self, epoch, logs=None):
            epochs.append(0)

        def on_train_batch_end(self, batch, logs=None):
            epochs[-1] += 1

    model = make_model(backwards)
    with warnings.catch_warnings():
        warnings.filterwarnings("error", "Your input ran out of data")
        history = model.fit(train, validation_data=valid, epochs=3, verbose=0, callbacks=[Steps()])
    count = len(epoch_of(train))
    assert history.params["steps"] == count and epochs == [count] * 3
    perplexities = history.history["val_perplexity"]
    assert perplexities[-1] < perplexities[0]
    assert model.evaluate(valid, verbose=0, return_dict=True)["perplexity"] == pytest.approx(perplexities[-1], rel=1e-4)


def test_the_example_in_the_docstring_runs(files, backwards, tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    for path, name in zip(files, ("train.en", "train.de"), strict=True):
        path.rename(name)
    (lines,) = re.findall(r"((?:^ {8}\S.*\n)+)", str(datasets_from_files.__doc__).partition("Args:")[0], re.MULTILINE)
    model = make_model(backwards)
    names = {"datasets_from_files": datasets_from_files, "tokenizer": backwards, "model": model}
    exec(textwrap.dedent(lines).replace("epochs=10", "epochs=1"), names)
    assert int(model.optimizer.iterations) > 0


@on_tensorflow
def test_fit_goes_through_the_epochs_of_the_plan(files, backwards, monkeypatch) -> None:
    """Keras makes more iterators than it reads from."""
    begun: list[int] = []
    batches = Epochs.batches

    def watched(self):
        if not self.is_validation:
            begun.append(self.epoch)
        yield from batches(self)

    monkeypatch.setattr(Epochs, "batches", watched)
    train, valid = datasets_of(files, backwards, token_budget=256, initial_epoch=2)
    make_model(backwards).fit(train, validation_data=valid, epochs=5, initial_epoch=2, verbose=0)
    assert begun == [2, 3, 4]


def test_each_epoch_is_every_pair_in_an_order_of_its_own(files, backwards) -> None:
    train, _ = datasets_of(files, backwards, token_budget=256, seed=3)
    first, second = (pairs_of(epoch_of(train)) for _ in range(2))
    assert first != second and Counter(first) == Counter(second)
    pairs = list(corpus_from_files(*files).train())
    sources, targets = (backwards.encode(side) for side in zip(*pairs, strict=True))
    expected = Counter((*map(tuple, ([*x, 3], [*y, 3])),) for x, y in zip(sources, targets, strict=True))
    assert Counter(first) == expected

    again, _ = datasets_of(files, backwards, token_budget=256, seed=3, initial_epoch=1)
    other, _ = datasets_of(files, backwards, token_budget=256, seed=4)
    assert pairs_of(epoch_of(again)) == second
    assert pairs_of(epoch_of(other)) != first


def test_training_weighs_by_batch_and_validation_by_token(files, backwards) -> None:
    train, valid = datasets_of(files, backwards, token_budget=256)
    for batch in epoch_of(train):
        assert batch.weights.sum() == pytest.approx(1)
        assert max(batch.inputs["source_ids"].size, batch.labels.size) <= 256
    first, second = epoch_of(valid), epoch_of(valid)
    assert pairs_of(first) == pairs_of(second)
    assert 0 < len(pairs_of(first)) <= 240 // 20, "some of the last lines are held out"
    assert not {*pairs_of(first)} & {*pairs_of(epoch_of(train))}
    for batch in first:
        assert np.array_equal(batch.weights, batch.labels != PAD) and batch.weights.dtype == np.float32


def test_validation_files_and_two_vocabularies(files, backwards, tmp_path) -> None:
    source, target = files
    (tmp_path / "valid").mkdir()
    valid_source, valid_target = write_corpus(tmp_path / "valid", 17)
    reversed_vocabulary = Tokenizer.train(target.read_text().splitlines(), 28)
    train, valid = datasets_from_files(
        source, target, backwards, reversed_vocabulary, valid_source=valid_source, valid_target=valid_target
    )
    found = Counter(pairs_of(epoch_of(valid)))
    lines = (valid_source.read_text().splitlines(), valid_target.read_text().splitlines())
    sides = (backwards.encode(lines[0]), reversed_vocabulary.encode(lines[1]))
    assert found == Counter(((*x, 3), (*y, 3)) for x, y in zip(*sides, strict=True))
    assert len(pairs_of(epoch_of(train))) == 240


def test_an_epoch_that_is_broken_off_begins_again(files, backwards, tmp_path) -> None:
    corpus = TokenizedCorpus.build(tmp_path / "t", corpus_from_files(*files).train(), backwards, backwards)
    epochs = Epochs(BatchPlan(corpus, 256), epoch=4)
    list(islice(epochs.batches(), epochs.num_batches - 1))
    assert epochs.epoch == 4
    list(epochs.batches())
    assert epochs.epoch == 5


def test_on_jax_and_pytorch_batches_come_in_the_order_of_the_plan(files, backwards, tmp_path) -> None:
    corpus = TokenizedCorpus.build(tmp_path / "t", corpus_from_files(*files).train(), backwards, backwards)
    plan = BatchPlan(corpus, 256)
    dataset = _PyEpochs(Epochs(plan))
    for epoch in range(2):
        expected = pairs_of([plan.batch(Place(epoch, index)) for index in range(plan.num_batches(epoch))])
        dataset.on_epoch_begin()
        asked = reversed(range(dataset.num_batches))
        assert pairs_of([Batch(*dataset[index]) for index in asked]) == expected


@pytest.mark.parity
@pytest.mark.parametrize("backend", ["jax", "torch"])
def test_fit_on_other_backends(backend, run_in_backend) -> None:
    code = f"""
        import sys
        import pytest
        sys.stdout = sys.stderr
        some = "needs_no_numbers or order_of_its_own or by_token"
        sys.exit(pytest.main(["-x", "-p", "no:cacheprovider", "--rootdir={ROOT}", "-k", some, {__file__!r}]))
    """
    run_in_backend(code, backend, timeout=600)


ROOT = Path(__file__).resolve().parents[2]


def test_sampling_gives_each_epoch_as_many_batches(files, backwards) -> None:
    train, valid = datasets_of(files, backwards, token_budget=256, sampling=0.2)
    first, second = epoch_of(train), epoch_of(train)
    assert len(first) == len(second)
    assert Counter(pairs_of(first)) != Counter(pairs_of(second))


def test_the_tokenised_text_is_kept_in_a_cache(files, backwards, tmp_path, monkeypatch) -> None:
    cache = tmp_path / "cache"
    train, _ = datasets_of(files, backwards, cache=cache)
    folders = sorted(path.name.partition("-")[0] for path in cache.iterdir())
    assert folders == ["train", "validation"]
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
    shortened = train.take(2) if hasattr(train, "take") else train
    del train
    gc.collect()
    assert epoch_of(shortened), "what is made of a dataset keeps its text"
    del shortened, valid
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())


def test_what_cannot_be_trained_on_is_refused_as_by_train_py(files, backwards, tmp_path, monkeypatch) -> None:
    source, target = files
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    short, blank = tmp_path / "short", tmp_path / "blank"
    short.write_text("ba do\nfi gu\n")
    blank.write_text("\n" * 240)
    refused: list[tuple[str, tuple[Path, Path], dict[str, Any]]] = [
        ("no such file: .*missing; check the path", (source, tmp_path / "missing"), {}),
        ("has 240 lines and .*short has 2: ", (source, short), {}),
        ("give both or none", files, {"valid_source": source}),
        ("token budget must hold the longest sentence, .* at least .*; received: 5", files, {"token_budget": 5}),
        ("files, .*: no pair is left after cleaning", (blank, target), {}),
    ]
    for expected, arguments, options in refused:
        with pytest.raises(RequestError, match=expected):
            datasets_of(arguments, backwards, **options)
    gc.collect()
    assert not list((tmp_path / "temporary").iterdir())


@on_tensorflow
def test_replicas_share_each_batch(run_in_backend, files, backwards, tmp_path) -> None:
    """Two replicas learn in two epochs what one device learns."""
    backwards.save(tmp_path / "tokenizer.model")
    code = f"""
        from keras_transformer.training import replicas
        replicas.configure("cpu:2")
        import keras
        import numpy as np
        import tensorflow as tf
        from keras_transformer.models.transformer import Transformer
        from keras_transformer.text.datasets import datasets_from_files
        from keras_transformer.text.tokenizer import Tokenizer
        from keras_transformer.training.losses import SmoothedCrossEntropy
        from keras_transformer.training.metrics import Perplexity

        tokenizer = Tokenizer.load({str(tmp_path / "tokenizer.model")!r})

        mirrored = tf.distribute.MirroredStrategy(["/cpu:0", "/cpu:1"])

        def trained(strategy):
            keras.utils.set_random_seed(5)
            # The number of replicas divides the rows of a batch, so both take the batches that are made for two.
            train, valid = datasets_from_files({str(files[0])!r}, {str(files[1])!r}, tokenizer, token_budget=512,
                                               strategy=mirrored)
            with strategy.scope():
                model = Transformer(tokenizer.vocabulary_size, 1, 2, 8, 12, dropout=0.0)
                model.compile(keras.optimizers.SGD(0.1), SmoothedCrossEntropy(0.1), weighted_metrics=[Perplexity()])
            history = model.fit(train, validation_data=valid, epochs=2, verbose=0)
            assert history.params["steps"] > 2
            return [np.asarray(each) for each in model.trainable_variables], history.history

        one, two = trained(tf.distribute.get_strategy()), trained(mirrored)
        for mine, theirs in zip(one[0], two[0]):
            np.testing.assert_allclose(mine, theirs, atol=2e-5)
        for name, values in one[1].items():
            np.testing.assert_allclose(values, two[1][name], rtol=1e-4, err_msg=name)
    """
    run_in_backend(textwrap.dedent(code), "tensorflow")


def test_a_strategy_of_several_workers_is_refused(files, backwards, monkeypatch) -> None:
    import tensorflow as tf

    class Several:
        num_replicas_in_sync = 2

    monkeypatch.setattr(tf.distribute, "MultiWorkerMirroredStrategy", Several)
    message = "must have one worker" if keras.config.backend() == "tensorflow" else "`strategy` must be None"
    with pytest.raises(RequestError, match=message):
        datasets_of(files, backwards, strategy=Several())
