"""Keeps texts that grow together by the graph of a language model: what it has read of them, padded at their left."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Generic, TypeVar

import numpy as np

from keras_transformer.decoding.onnx_graphs import READ_AT_ONCE, SteppedLanguageModel
from keras_transformer.text.sentences import Ids
from keras_transformer.text.tokenizer import PAD

Text = TypeVar("Text")


class GrowingBatch(Generic[Text]):
    """Texts of which one run of the graph reads the next places.

    All stand at the same place of the cache; where one begins later than the first, what is before it is padding.

    Args:
        graph: the step of the model.
        rows: the texts, of any kind.
        texts: the ids to read of each.
    """

    def __init__(self, graph: SteppedLanguageModel, rows: Sequence[Text], texts: Sequence[Ids]):
        self.rows = list(rows)
        width = max(map(len, texts), default=0)
        self._graph = graph
        self._unread = np.array([[PAD] * (width - len(ids)) + ids for ids in texts], "int32").reshape(len(rows), width)
        self._starts = width - np.array([len(ids) for ids in texts], "int32")
        self._past = graph.empty(len(rows))
        self._index = 0

    @classmethod
    def begun(cls, graph: SteppedLanguageModel, rows: Sequence[Text], texts: Sequence[Ids]) -> list[GrowingBatch[Text]]:
        """Returns batches that begin to read texts: one, or one for each length where a graph knows no padding."""
        lengths = [len(ids) for ids in texts]
        groups = [lengths] if graph.takes_starts else [[length] for length in dict.fromkeys(lengths)]
        batches = list[GrowingBatch[Text]]()
        for group in groups if rows else ():
            places = [place for place, length in enumerate(lengths) if length in group]
            batches.append(cls(graph, [rows[place] for place in places], [texts[place] for place in places]))
        return batches

    @classmethod
    def merged(cls, graph: SteppedLanguageModel, batches: Sequence[GrowingBatch[Text]]) -> list[GrowingBatch[Text]]:
        """Joins those batches that have read all but the newest token, as far as the graph allows."""
        found = list[GrowingBatch[Text]]()
        for batch in batches:
            same = (other for other in found if other._goes_with(batch))
            if (other := next(same, None)) is None:
                found.append(batch)
            else:
                other._join(batch)
        return found

    def read(self) -> np.ndarray | None:
        """Reads the next places. Returns logits (rows, V) of the tokens that follow; None if more is to be read."""
        count = max(READ_AT_ONCE // len(self.rows), 1) if self._graph.takes_many else 1
        some = self._unread[:, :count]
        logits, self._past = self._graph.next_places(some, self._past, self._index, self._starts)
        self._index += some.shape[1]
        self._unread = self._unread[:, count:]
        return None if self._unread.shape[1] else logits[:, -1]

    def next_ids(self, ids: np.ndarray) -> None:
        """Takes the token (rows,) that each text goes on with."""
        self._unread = ids[:, None]

    def keep(self, places: Sequence[int]) -> None:
        """Keeps the rows at these places, and no more padding than they need."""
        if len(places) == len(self.rows):
            return
        self.rows = [self.rows[place] for place in places]
        self._unread, self._starts = self._unread[places], self._starts[places]
        self._past = [values[places] for values in self._past]
        surplus = min(int(self._starts.min(initial=self._index)), self._index)
        self._index -= surplus
        self._starts = self._starts - surplus
        self._past = [
            values if axis is None else _last(values, axis, self._index)
            for values, axis in zip(self._past, self._graph.growing_axes, strict=True)
        ]

    def _goes_with(self, other: GrowingBatch[Text]) -> bool:
        is_read = self._unread.shape[1] == other._unread.shape[1] == 1
        return is_read and (self._graph.takes_starts or self._index == other._index)

    def _join(self, other: GrowingBatch[Text]) -> None:
        """Takes the rows of another batch. The shorter of both gets padding at its left."""
        index = max(self._index, other._index)
        pairs = [(one, index - one._index) for one in (self, other)]
        self._starts = np.concatenate([one._starts + shift for one, shift in pairs])
        self._past = [
            _stacked(one, another, axis)
            for one, another, axis in zip(self._past, other._past, self._graph.growing_axes, strict=True)
        ]
        self._unread = np.concatenate([self._unread, other._unread])
        self.rows += other.rows
        self._index = index


def _last(values: np.ndarray, axis: int, count: int) -> np.ndarray:
    """Returns the last of the places along an axis, at most so many."""
    places = [slice(None)] * values.ndim
    places[axis] = slice(max(values.shape[axis] - count, 0), None)
    return values[tuple(places)]


def _stacked(one: np.ndarray, other: np.ndarray, axis: int | None) -> np.ndarray:
    """Puts rows below one another; where they grow along an axis, the shorter ones get zeros before them."""
    if axis is None:
        return np.concatenate([one, other])
    width = max(one.shape[axis], other.shape[axis])
    found = []
    for values in (one, other):
        padding = [(0, 0)] * values.ndim
        padding[axis] = (width - values.shape[axis], 0)
        found.append(np.pad(values, padding))
    return np.concatenate(found)
