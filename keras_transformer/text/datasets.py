"""Makes the two datasets that `model.fit` takes, for training and validation, of text files in one call."""

from __future__ import annotations

import os
import shutil
import tempfile
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias, TypedDict, Unpack

import keras
import numpy as np

from keras_transformer.core.errors import RequestError, command_line
from keras_transformer.core.lazy import on_tensorflow, tf
from keras_transformer.text.batch_sampler import BatchPlan
from keras_transformer.text.corpora import MAX_VALIDATION_PAIRS, Corpus, Pair, corpus_from_files
from keras_transformer.text.feeding import Place, as_tf_dataset, generator
from keras_transformer.text.lines import sha256_of, sha256_of_source
from keras_transformer.text.tokenized import FirstIds, TokenizedCorpus
from keras_transformer.text.tokenizer import Tokenizer

if TYPE_CHECKING:
    Dataset: TypeAlias = tf.data.Dataset | keras.utils.PyDataset

PathLike = str | os.PathLike[str]
Batch = tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]  # inputs, labels, weights


class PlanOptions(TypedDict, total=False):
    """Options of `BatchPlan` that a caller may choose."""

    accumulate: int
    static_shapes: int
    shuffle: bool
    sampling: float


def datasets_from_files(
    source: PathLike,
    target: PathLike,
    tokenizer: Tokenizer,
    target_tokenizer: Tokenizer | None = None,
    *,
    valid_source: PathLike | None = None,
    valid_target: PathLike | None = None,
    token_budget: int = 4096,
    seed: int = 0,
    initial_epoch: int = 0,
    strategy: tf.distribute.Strategy | None = None,
    cache: PathLike | None = None,
    first_ids: FirstIds = ((), ()),
    **plan_options: Unpack[PlanOptions],
) -> tuple[Dataset, Dataset]:
    """Makes the datasets for training and validation, of parallel text (UTF-8, plain or .gz, one sentence a line):

        train, valid = datasets_from_files("train.en", "train.de", tokenizer)
        model.fit(train, validation_data=valid, epochs=10)

    Args:
        source, target, valid_source, valid_target: see `corpus_from_files`. Validation takes at most 2,000 pairs.
        tokenizer, target_tokenizer: the vocabulary of the source and of the target; by default one for both.
        token_budget, seed, plan_options: see `BatchPlan`, for training; the seed draws what is held out, too.
        initial_epoch: the epoch with which training begins, as in `fit`.
        strategy: the `tf.distribute` strategy of the model; its replicas share each batch.
        cache: a folder that keeps the tokenised text. By default a temporary one lives as long as the datasets.
        first_ids: with which each source and target begins, such as `direction` of a translator between many languages.

    Returns:
        A `tf.data.Dataset` each on TensorFlow, a `keras.utils.PyDataset` on JAX and PyTorch; see `Epochs`.

    Raises:
        RequestError: files or options that `train.py` would refuse too, or a strategy of several workers.
    """
    corpus = corpus_from_files(source, target, valid_source, valid_target, seed=seed)
    text = _Text(corpus, (tokenizer, target_tokenizer or tokenizer), None if cache is None else Path(cache), first_ids)
    plan, valid_plan = text.plans(token_budget, seed, num_replicas(strategy), plan_options)
    return Epochs(plan, initial_epoch).dataset(), Epochs(valid_plan).dataset()


def num_replicas(strategy: tf.distribute.Strategy | None) -> int:
    """Counts the replicas of a strategy; 1 without a strategy.

    Raises:
        RequestError: its replicas are on several workers, or the backend is not TensorFlow.
    """
    if strategy is None:
        return 1
    if not on_tensorflow():
        raise RequestError(f"`strategy` must be None on the backend {keras.config.backend()}; received: {strategy!r}")
    if isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy):
        raise RequestError(
            f"`strategy` must have one worker, such as a MirroredStrategy; received: {strategy!r}; with several "
            f"workers train with `{command_line('train')}`"
        )
    return strategy.num_replicas_in_sync


class Epochs:
    """The epochs of a plan, one for each iteration.

    Epoch e depends on the plan's seed and on e alone, so it is the same in every process. An epoch that is broken off
    begins again. With subword sampling the epochs of a plan differ in their number of batches; here each has as many as
    the first: the rest is left out, and missing batches are taken from the next epoch.

    Batches are (inputs, labels, weights). Each real label weighs 1, and padding 0.

    Args:
        plan: the batches.
        epoch: the first epoch.
    """

    def __init__(self, plan: BatchPlan, epoch: int = 0):
        self.plan = plan
        self.epoch = epoch
        self.num_batches = plan.num_batches(epoch)

    def batches(self) -> Iterator[Batch]:
        """Yields the batches of one epoch."""
        feed = generator(self.plan, Place(self.epoch))
        for index, batch in enumerate(islice(feed, self.num_batches), start=1):
            if index == self.num_batches:
                self.epoch += 1
            yield batch

    def dataset(self) -> Dataset:
        """Returns the epochs as `fit` takes them on this backend.

        Under a `MirroredStrategy` Keras divides the rows of each batch among the replicas. They divide evenly.
        """
        if not on_tensorflow():
            return _PyEpochs(self)
        # TensorFlow keeps the function until the process ends, so the dataset, not the function, keeps the text.
        epochs = weakref.proxy(self)
        dataset = as_tf_dataset(lambda: epochs.batches(), self.plan.like)
        dataset = dataset.apply(tf.data.experimental.assert_cardinality(self.num_batches))
        dataset.epochs = self
        return dataset


class _PyEpochs(keras.utils.PyDataset):
    """Epochs for JAX and PyTorch.

    By default `fit` asks for the batches in an order that it draws itself. The plan has shuffled them already, so the
    n-th batch that `fit` asks for is the n-th of the plan.
    """

    def __init__(self, epochs: Epochs):
        super().__init__()
        self._epochs = epochs
        self._batches: Iterator[Batch] = iter(())

    @property
    def num_batches(self) -> int:
        return self._epochs.num_batches

    def on_epoch_begin(self) -> None:
        self._batches = self._epochs.batches()

    def __getitem__(self, index: int) -> Batch:
        return next(self._batches)

    def __iter__(self) -> Iterator[Batch]:
        return self._epochs.batches()


@dataclass(frozen=True)
class _Text:
    """A corpus that is tokenised in folders, which are named for what is in them.

    Args:
        corpus: the text.
        tokenizers: the tokenizers of source and target.
        cache: where the folders are made; None makes temporary folders, which go away with the tokenised text.
        first_ids: see `datasets_from_files`.
    """

    corpus: Corpus
    tokenizers: tuple[Tokenizer, Tokenizer]
    cache: Path | None
    first_ids: FirstIds

    def plans(self, token_budget: int, seed: int, replicas: int, options: PlanOptions) -> tuple[BatchPlan, BatchPlan]:
        """Returns the batches of training and of validation."""
        train = self.tokenized("train", self.corpus.train(), keep_text=bool(options.get("sampling")))
        valid = self.tokenized("validation", islice(self.corpus.valid(), MAX_VALIDATION_PAIRS))
        plan = BatchPlan(train, token_budget, seed, replicas, **options)
        return plan, BatchPlan(valid, token_budget, num_replicas=replicas, shuffle=False)

    def tokenized(self, part: str, pairs: Iterator[Pair], keep_text: bool = False) -> TokenizedCorpus:
        """Returns a part of the corpus tokenised, from its folder if that is there."""
        identity = sha256_of(
            [
                self.corpus.identity,
                str(keep_text),
                str([*map(list, self.first_ids)]),
                *(tokenizer.model.hex() for tokenizer in self.tokenizers),
                sha256_of_source(Path(__file__).parent),
            ]  # fmt: skip
        )
        name = f"{part}-{identity[:16]}"
        if self.cache is not None and (self.cache / name).is_dir():
            return TokenizedCorpus.open(self.cache / name)
        folder = self.cache or Path(tempfile.mkdtemp(prefix="keras_transformer-"))
        try:
            tokenized = TokenizedCorpus.build(
                folder / name, pairs, *self.tokenizers, keep_text=keep_text, first_ids=self.first_ids
            )
        except BaseException as error:
            if self.cache is None:
                shutil.rmtree(folder, ignore_errors=True)
            if isinstance(error, RequestError):
                raise RequestError(f"{self.corpus.name}, {part}: {error}") from error
            raise
        if self.cache is None:
            weakref.finalize(tokenized, shutil.rmtree, folder, ignore_errors=True)
        return tokenized
