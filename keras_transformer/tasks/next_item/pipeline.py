"""From histories to what comes next, and to vectors: a sequence encoder and its items."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from keras_transformer.commands.graph_cache import open_in_python
from keras_transformer.core.errors import RequestError, warn
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.attention_maps import Attention, Tokens, attention_of
from keras_transformer.decoding.computations import Embedding, NextItems, Ranks
from keras_transformer.decoding.onnx_graphs import OnnxComputations, computations_of
from keras_transformer.decoding.pipelines import Pipeline, in_batches
from keras_transformer.runs.run_folder import RunConfig, RunFolder
from keras_transformer.spec.search_options import require_whole
from keras_transformer.tasks.next_item.batches import with_start
from keras_transformer.tasks.next_item.corpus import FIRST_ITEM, Items
from keras_transformer.text.lines import each_of, strings_of
from keras_transformer.text.sentences import Ids, padded
from keras_transformer.text.tokenizer import CONTROL_PIECES, START, UNKNOWN

if TYPE_CHECKING:
    from keras_transformer.models.stack_models import SequenceEncoder


class Recommendation(NamedTuple):
    """An item, and the probability that it comes next."""

    item: str
    probability: float


class Recommender(Pipeline):
    """Tells what comes next in histories, and makes vectors of histories and of items. Threads may share it:

        recommender = keras_transformer.load_recommender("runs/series-tiny")
        [recommendations] = recommender.recommend([["series 7, part 1", "series 7, part 2"]])

    A history is a list of items, the oldest first. Of a history longer than the context the last items count. Items
    that the vocabulary lacks are left out; a warning counts them.

    Args:
        model: the model, or an `OnnxComputations` of its outputs.
        items: its vocabulary.
    """

    task = "next-item"

    def __init__(self, model: SequenceEncoder | OnnxComputations, items: Items):
        self._computations = computations_of(model)
        self.model = self._computations.model
        self.items = items

    def details(self) -> str:
        return f"{len(self.items):,} items"

    @classmethod
    def of_run(cls, model: SequenceEncoder | OnnxComputations, folder: RunFolder, config: RunConfig) -> Recommender:
        """Makes a recommender of a model, with the items in a folder.

        Raises:
            RequestError: the items are missing, damaged or not the model's.
        """
        items, size, first = Items.load(folder.items), config.model["vocabulary_size"], config.model["num_control_ids"]
        if (size, first) != (items.vocabulary_size, FIRST_ITEM):
            raise RequestError(
                f"{folder.items} has {len(items)} items, but the model of {folder.path} has {size - first}: one of "
                "them is another run's; copy the run folder anew"
            )
        return cls(model, items)

    @property
    def names(self) -> Sequence[str]:
        return self.items.names

    def save_vocabularies(self, folder: Path) -> None:
        self.items.save(RunFolder(folder).items)

    def read(self, line: str) -> list[str]:
        return history_of(line)

    def recommend(
        self, histories: Iterable[Sequence[str]], count: int = 10, only_new: bool = False, batch_size: int = 64
    ) -> list[list[Recommendation]]:
        """Returns the likeliest next items of each history, the likeliest first.

        Args:
            histories: an empty one gets what mostly comes first.
            count: the most items for a history.
            only_new: leaves out the items of the history itself. An export lists so many items that some histories
                may get fewer than `count`; a warning counts them.
            batch_size: histories at once.

        Raises:
            RequestError: a number is not a whole number from 1, or the histories are no lists of strings.
        """
        return list(self.stream(histories, count, only_new, batch_size))

    def stream(
        self, histories: Iterable[Sequence[str]], count: int = 10, only_new: bool = False, batch_size: int = 64
    ) -> Iterator[list[Recommendation]]:
        """`recommend`, which yields while histories come."""
        require_whole("count", count, 1)
        num_short = 0
        for some in self._in_batches(histories, batch_size):
            for best, history in zip(self.best_of(some, count, only_new), some, strict=True):
                num_short += len(best) < min(count, len(self.items) - len(set(history)))
                yield best
        if num_short:
            listed = self._computations.num_listed or len(self.items)
            warn(f"{num_short} history(s) have fewer than {count} new items among the {listed} that the export lists")

    def best_of(self, histories: list[Ids], count: int, only_new: bool) -> list[list[Recommendation]]:
        """`recommend` with histories in ids, without the start, in one batch."""
        most = (self._computations.num_listed or len(self.items)) if only_new else count
        found = self._computations.run(NextItems(most), self._begun(histories))
        return [
            self._best(probs, ids, history if only_new else ())[:count]
            for probs, ids, history in zip(*found, histories, strict=True)
        ]

    def embed(self, histories: Iterable[Sequence[str]], batch_size: int = 64) -> np.ndarray:
        """Returns a vector for each history, (N, D) float32.

        The inner product with an item's vector is the item's logit, without the bias that `--output-bias` adds.
        """
        batches = self._in_batches(histories, batch_size)
        rows = [self.vectors_of(some) for some in batches]
        return np.concatenate([np.zeros((0, self.model.hidden_dim), "float32"), *rows])

    def vectors_of(self, histories: list[Ids]) -> np.ndarray:
        """`embed` with histories in ids, without the start, in one batch."""
        return self._computations.run(Embedding(), self._begun(histories))[0]

    def attention(self, history: Sequence[str]) -> dict[str, Attention]:
        """Tells where the items of a history look: "self", with the beginning of the history among them."""
        (known,) = self._in_batches([history], 1)
        ids = self._begun([known[0]])
        names = [self.items.names[id - FIRST_ITEM] for id in ids[0, 1:]]
        tokens = Tokens.of_whole([CONTROL_PIECES[START], *names])
        return attention_of(self.model, {"ids": ids}, {"self": (tokens, tokens)})

    def item_vectors(self) -> np.ndarray:
        """Returns the vectors of all items, (items, D) float32, in the order of `items.names`."""
        return np.asarray(self.model.item_vectors(), "float32")

    def ranks(self, histories: Iterable[Sequence[str]], batch_size: int = 64) -> np.ndarray:
        """Returns the rank (N,) of the last item of each history after the items before, from 1, with all items ranked.

        An item that the vocabulary lacks is missed, see `metrics.ranks_of`. An export tells apart the ranks that it
        lists.

        Raises:
            RequestError: a history is empty.
        """
        whole = [list(strings_of(history, "items")) for history in each_of(histories, "histories")]
        if not all(whole):
            raise RequestError("expected histories of at least one item; received one of none")
        targets = np.array([self.items.id(history[-1], UNKNOWN) for history in whole], "int32")
        before, found = self._in_batches((history[:-1] for history in whole), batch_size), [np.zeros(0, "int32")]
        for first, some in zip(range(0, len(whole), batch_size), before, strict=True):
            found += self._computations.run(Ranks(), self._begun(some), targets[first : first + batch_size])
        return np.concatenate(found)

    def _best(self, probs: np.ndarray, ids: np.ndarray, left_out: Iterable[int]) -> list[Recommendation]:
        known, found = {*left_out}, zip(probs.tolist(), ids.tolist(), strict=True)
        names = self.items.names
        return [Recommendation(names[id - FIRST_ITEM], prob) for prob, id in found if prob >= 0 and id not in known]

    def _begun(self, histories: list[Ids]) -> np.ndarray:
        return padded([with_start(ids, self.model.context_length) for ids in histories])

    def _in_batches(self, histories: Iterable[Sequence[str]], size: int) -> Iterator[list[Ids]]:
        """Histories as ids, `size` at a time. At the end it warns of items that the vocabulary lacks, and of those that
        do not fit in the context.
        """
        num_unknown, num_cut, most = 0, 0, self.model.context_length - 1
        for some in in_batches(each_of(histories, "histories"), size):
            ids = [self.items.encode(history) for history in some]
            num_unknown += sum(map(len, some)) - sum(map(len, ids))
            num_cut += sum(len(history) > most for history in ids)
            yield ids
        if num_unknown:
            warn(f"{num_unknown} event(s) of the histories are left out: the model does not know their items")
        if num_cut:
            warn(f"{num_cut} history(s) have more than {most} items, which the context holds: only the last count")


def load_recommender(run: str | os.PathLike[str]) -> Recommender:
    """Loads the recommender of a run, with its Keras model, or of an export, with its graph in ONNX Runtime.

    An export needs no Keras. Nothing in the folder is executed.

    Raises:
        RequestError: the folder holds no run of a sequence encoder, no model yet, or a file is damaged.
    """
    return Recommender.of_run(*open_in_python(run, TASKS[Recommender.task].kind))


def mean_figures(ranks: np.ndarray, k: int) -> dict[str, float]:
    """Returns recall and NDCG at k: means over ranks (N,), of which each has one target. See `metrics.ndcg_at`."""
    is_found = ranks <= k
    return {"recall": float(is_found.mean()), "ndcg": float((is_found / np.log2(1.0 + ranks)).mean())}


def history_of(line: str) -> list[str]:
    """Returns the items of a line, which tabs divide."""
    return [item.strip() for item in line.split("\t") if item.strip()]


PIPELINE = Recommender
