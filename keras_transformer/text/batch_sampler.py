"""Plans the batches of parallel text from (seed, epoch, batch) alone, so that a run resumes exactly."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.text.feeding import NO_IDS, Batch, Place, Plan
from keras_transformer.text.subword_sampling import SampledEpochs
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import END, PAD, START

# Pairs of one width are sorted by the difference of their two lengths, plus noise of up to this many tokens. In batches
# for 4,096 tokens of Multi30k the noise costs 1.6 % more padding, and half of a batch is new in the next epoch.
LENGTH_NOISE = 3.0


class BatchPlan(Plan):
    """Plans the global batches of every epoch: sentences of similar length together, as many as a token budget holds.

    A global batch is what all replicas and accumulated micro-batches take together. It holds the same sentences however
    many they are: blank rows (pad ids of weight 0) make its number of rows a multiple of `num_replicas * accumulate`.
    Each label weighs 1, and padding 0.

    Args:
        corpus: the pairs.
        token_budget: the most source positions, and the most target positions, of a global batch, padding included, but
            for blank rows.
        seed: for shuffling. The same seed, epoch and index give the same batch in every process.
        num_replicas: how many replicas share a global batch.
        accumulate: how many micro-batches a replica makes of its share.
        static_shapes: 0 makes batches as wide as their longest sentence; k gives batches at most k different shapes
            (`shapes`), so that XLA compiles at most k times.
        shuffle: False gives every epoch the same batches, from long sentences to short ones.
        sampling: the `alpha` of subword sampling (see `SubwordSampler`), which segments the corpus anew for each epoch;
            0 for none. The corpus must have been built with `keep_text`.

    Raises:
        RequestError: the budget does not hold the longest sentence on every replica.
    """

    like = Batch({"source_ids": NO_IDS, "target_ids": NO_IDS}, NO_IDS, NO_IDS.astype("float32"))

    def __init__(
        self,
        corpus: TokenizedCorpus,
        token_budget: int,
        seed: int = 0,
        num_replicas: int = 1,
        accumulate: int = 1,
        static_shapes: int = 0,
        shuffle: bool = True,
        sampling: float = 0.0,
    ):
        self.corpus = corpus
        self.token_budget = token_budget
        self.seed = seed
        self.divisor = num_replicas * accumulate
        self.shuffle = shuffle
        self._sampled = SampledEpochs(corpus, sampling, seed) if sampling else None
        widest = np.maximum(corpus.source_lengths, corpus.target_lengths)
        # A sampled segmentation may be as long as the corpus allows, plus its first ids and its end.
        longest = corpus.max_length + max(map(len, corpus.first_ids)) + 1 if sampling else int(widest.max())
        if token_budget < longest * self.divisor:
            raise RequestError(
                f"the token budget must hold the longest sentence, {longest} tokens, on each of "
                f"{self.divisor} replicas and micro-batches: at least {longest * self.divisor}; "
                f"received: {token_budget}"
            )
        self.widths = _static_widths(widest, longest, static_shapes) if static_shapes else None
        self._epochs: dict[int, _Epoch] = {}
        self._lock = threading.Lock()

    @property
    def shapes(self) -> list[tuple[int, int, int]]:
        """(rows, source width, target width) of the static shapes; empty when widths are free."""
        widths = [] if self.widths is None else self.widths.tolist()
        return [(self.filled(self.token_budget // width), width, width) for width in widths]

    def of_each_shape(self) -> list[Place]:
        if self.widths is None:
            return []
        _, first = np.unique(self._epoch(0).batches["width"], return_index=True)
        return [Place(0, int(batch)) for batch in first]

    def num_batches(self, epoch: int) -> int:
        """Returns how many global batches an epoch has; with subword sampling the number differs from epoch to
        epoch."""
        return len(self._epoch(epoch).batches)

    def num_tokens(self, place: Place) -> int:
        """Returns how many target tokens the batch at a place has: ends count, padding does not."""
        epoch = self._epoch(place.epoch)
        return int(epoch.corpus.target_lengths[epoch.rows_of(place.batch)].sum())

    def batch(self, place: Place) -> Batch:
        """Returns the global batch at a place."""
        epoch = self._epoch(place.epoch)
        rows, corpus = epoch.rows_of(place.batch), epoch.corpus
        num_rows, width = int(epoch.batches["num_rows"][place.batch]), int(epoch.batches["width"][place.batch])
        labels = corpus.labels(rows, num_rows, width or int(corpus.target_lengths[rows].max()))
        source_ids = corpus.source_ids(rows, num_rows, width or int(corpus.source_lengths[rows].max()))
        target_ids = np.roll(np.where(labels == END, PAD, labels), 1, axis=1)
        target_ids[: len(rows), 0] = START
        inputs = {"source_ids": source_ids, "target_ids": target_ids}
        return Batch(inputs, labels, (labels != PAD).astype("float32"))

    def corpus_of(self, epoch: int) -> TokenizedCorpus:
        """Returns the corpus as an epoch takes it; with subword sampling it is segmented anew."""
        return self._sampled.corpus(epoch) if self._sampled else self.corpus

    def _epoch(self, epoch: int) -> _Epoch:
        with self._lock:
            if epoch not in self._epochs:
                # The epoch before is kept, because a feeding thread runs ahead of the training step.
                self._epochs = {known: order for known, order in self._epochs.items() if known == epoch - 1}
                self._epochs[epoch] = self._planned(epoch)
            return self._epochs[epoch]

    def _planned(self, epoch: int) -> _Epoch:
        corpus = self.corpus_of(epoch)
        random = np.random.default_rng((self.seed, epoch))
        widths = np.maximum(corpus.source_lengths, corpus.target_lengths)
        difference = corpus.source_lengths - corpus.target_lengths
        if self.widths is not None:
            widths = self.widths[np.searchsorted(self.widths, widths)]
        if self.shuffle:
            noise = LENGTH_NOISE if self.widths is None else float(widths.max())
            difference = difference + random.uniform(0, noise, len(corpus)).astype(np.float32)
        rows = _sorted_rows(widths, difference)
        batches = self._cut(widths[rows])
        if self.shuffle:
            batches = batches[random.permutation(len(batches))]
        return _Epoch(corpus, rows, batches)

    def _cut(self, widths: np.ndarray) -> np.ndarray:
        """Cuts rows, sorted from wide to narrow, into `_Epoch.batches`."""
        batches, start = [], 0
        while start < len(widths):
            width = int(widths[start])
            num_rows = self.token_budget // width
            stop = min(start + num_rows, len(widths))
            if self.widths is None:
                num_rows, width = stop - start, 0
            batches.append((start, stop, self.filled(num_rows), width))
            start = stop
        return np.array(batches, _STRETCH)


class RowPlan(BatchPlan):
    """Plans batches of rows of one sequence each, with a label at some of their places, as `BatchPlan` plans pairs.

    Each label weighs 1.

    Args:
        corpus: the rows: `source_lengths` counts the ids of each, `target_lengths` the labels; `row(number, random)`
            gives the ids (S,) of a row and its labels, PAD where there is none. `random` is the batch's.
        token_budget, arguments: see `BatchPlan`.
    """

    like = Batch({"ids": NO_IDS}, NO_IDS, NO_IDS.astype("float32"))

    def __init__(self, corpus: Any, token_budget: int, *arguments: Any, **options: Any):
        super().__init__(corpus, token_budget, *arguments, **options)

    def batch(self, place: Place) -> Batch:
        epoch = self._epoch(place.epoch)
        rows, corpus = epoch.rows_of(place.batch), epoch.corpus
        random = np.random.default_rng((self.seed, place.epoch if self.shuffle else 0, place.batch))
        shape = int(epoch.batches["num_rows"][place.batch]), int(corpus.source_lengths[rows].max())
        ids, labels = np.full(shape, PAD, "int32"), np.full(shape, PAD, "int32")
        for number, row in enumerate(rows):
            some, told = corpus.row(row, random)
            ids[number, : len(some)], labels[number, : len(told)] = some, told
        real = labels != PAD
        return Batch({"ids": ids}, labels, real.astype("float32"))


class EqualPlan(Plan):
    """Plans batches of rows of one size, in each epoch in another order. Blank rows fill them, see `BatchPlan`.

    Args:
        size: the size of a row, in what the budget counts.
        unit: what a row is, for errors.
        token_budget: the most of a global batch, but for blank rows.
        seed: for shuffling. The same seed, epoch and index give the same batch in every process.
        num_replicas: how many replicas share a global batch.
        accumulate: how many micro-batches a replica makes of its share.
        shuffle: False gives every epoch the rows in their order.

    Raises:
        RequestError: the budget does not hold a row for every replica.
    """

    def __init__(
        self,
        size: int,
        unit: str,
        token_budget: int,
        seed: int = 0,
        num_replicas: int = 1,
        accumulate: int = 1,
        shuffle: bool = True,
    ):
        self.seed, self.shuffle, self.divisor = seed, shuffle, num_replicas * accumulate
        self.rows = token_budget // size
        if self.rows < self.divisor:
            raise RequestError(
                f"the token budget must hold {unit} on each of {self.divisor} replicas and micro-batches: at least "
                f"{size * self.divisor}; received: {token_budget}"
            )
        self._order = lru_cache(maxsize=2)(self.order)

    def order(self, epoch: int) -> np.ndarray:
        """Returns what identifies each row of an epoch, such as its index, in the order of the epoch."""
        raise NotImplementedError

    def of_each_shape(self) -> list[Place]:
        return [Place(0, batch) for batch in sorted({0, self.num_batches(0) - 1})]

    def num_batches(self, epoch: int) -> int:
        return -(-len(self._order(epoch)) // self.rows)

    def rows_of(self, place: Place) -> np.ndarray:
        """Returns what identifies each row of a batch."""
        return self._order(place.epoch)[place.batch * self.rows : (place.batch + 1) * self.rows]


# A batch is a stretch of an epoch's rows.
_STRETCH = np.dtype(
    [
        ("start", np.int64),
        ("stop", np.int64),
        ("num_rows", np.int64),  # blank rows included
        ("width", np.int64),  # static, or 0: as wide as the longest sentence
    ]
)


@dataclass(frozen=True)
class _Epoch:
    """The order of an epoch."""

    corpus: Any  # a `TokenizedCorpus`, or the rows of a plan of another kind
    rows: np.ndarray  # (pairs,) int32: the pairs from long to short
    batches: np.ndarray  # (batches,) of `_STRETCH`

    def rows_of(self, index: int) -> np.ndarray:
        """Returns the rows of a batch."""
        return self.rows[self.batches["start"][index] : self.batches["stop"][index]]


def _sorted_rows(widths: np.ndarray, difference: np.ndarray) -> np.ndarray:
    """Rows from wide to narrow; rows of one width are sorted by the difference of their lengths.

    The difference rises in one width and falls in the next, so that rows are similar across two widths too.
    """
    snake = np.where(widths % 2, -difference, difference)
    return np.lexsort((snake, -widths)).astype(np.int32)


def _static_widths(widest: np.ndarray, longest: int, num_shapes: int) -> np.ndarray:
    """Returns the widths, at most `num_shapes` of them and the last one `longest`, that need least padding for these
    rows."""
    widths = np.arange(longest + 1)
    counts = np.bincount(widest, minlength=longest + 1).cumsum()  # rows of at most this width
    # slots[v, w]: positions of the rows wider than v and at most w, all padded to w.
    slots = np.where(widths[:, None] < widths, (counts - counts[:, None]) * widths, 2**61)
    least = slots[0]  # least[w]: positions of all rows up to w, in one shape, then two, ...
    choices = []
    for _ in range(num_shapes - 1):
        totals = least[:, None] + slots
        choices.append(np.where(totals.min(axis=0) < least, totals.argmin(axis=0), widths))
        least = np.minimum(least, totals.min(axis=0))
    chosen = [longest]
    for choice in reversed(choices):
        chosen.append(int(choice[chosen[-1]]))
    return np.array(sorted(set(chosen) - {0}))
