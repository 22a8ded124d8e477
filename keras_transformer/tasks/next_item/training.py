"""The task of telling the next item: histories, cross entropy, recall and NDCG; and simple recommenders to beat."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

import numpy as np

from keras_transformer.core.errors import say, warn
from keras_transformer.metrics import MISSED, NDCGAt, RecallAt, mean_figures
from keras_transformer.models.model_factory import count_parameters
from keras_transformer.runs.run_folder import RunFolder, write_config
from keras_transformer.tasks.next_item.batches import HistoryPlan
from keras_transformer.tasks.next_item.corpus import FIRST_ITEM, History, Items, log_from_file, named_log
from keras_transformer.tasks.next_item.pipeline import Recommender
from keras_transformer.tasks.next_item.settings import Settings
from keras_transformer.tasks.translation.training import loss as loss
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.held_out import drawn
from keras_transformer.text.tokenizer import UNKNOWN
from keras_transformer.training.callbacks import NdcgMonitor
from keras_transformer.training.task import Run

if TYPE_CHECKING:
    import keras

    from keras_transformer.models.stack_models import SequenceEncoder
    from keras_transformer.training.callbacks import Progress

SCORE = "NDCG@10"
UNIT = "events"
AT = 10  # the k of recall and NDCG
MAX_VALIDATION_USERS = 10_000  # what a round is validated on


class Baseline(Protocol):
    """Scores items after a history."""

    def scores(self, history: Sequence[int]) -> np.ndarray:
        """(V,) float64, more is better, for the ids of a history."""


class Popularity:
    """Scores an item by its share of the events.

    Args:
        histories: to count in, as ids.
        vocabulary_size: V.
    """

    def __init__(self, histories: Sequence[Sequence[int]], vocabulary_size: int):
        counts = np.zeros(vocabulary_size)
        for history in histories:
            np.add.at(counts, np.array(history, "int64"), 1)
        self.shares = counts / max(counts.sum(), 1)

    def scores(self, history: Sequence[int]) -> np.ndarray:
        """The same for each history."""
        return self.shares


class ItemToItem:
    """A Markov chain: scores an item by how often it came right after the last item of the history.

    What never came after it is ranked by popularity, as is everything after an empty history.

    Args:
        histories, vocabulary_size: see `Popularity`.
        popular: the share of popularity in the score; the rest is the share among the followers.
    """

    def __init__(self, histories: Sequence[Sequence[int]], vocabulary_size: int, popular: float = 0.2):
        self.popular = popular
        self.popularity = Popularity(histories, vocabulary_size)
        pairs = np.array([pair for history in histories for pair in pairwise(history)], "int64").reshape(-1, 2)
        self._pairs, self._counts = np.unique(pairs, axis=0, return_counts=True)

    def scores(self, history: Sequence[int]) -> np.ndarray:
        """(V,) for the last item of the history."""
        scores = self.popular * self.popularity.shares
        if len(history):
            first, stop = np.searchsorted(self._pairs[:, 0], [history[-1], history[-1] + 1])
            counts = self._counts[first:stop]
            scores[self._pairs[first:stop, 1]] += (1 - self.popular) * counts / max(counts.sum(), 1)
        return scores


def ranks(baseline: Baseline, histories: Sequence[Sequence[int]], targets: Sequence[int], first: int) -> np.ndarray:
    """The rank (N,) of each target after its history among the ids from `first` on, as in `metrics.ranks_of`.

    Args:
        baseline: what scores.
        histories: as ids.
        targets: ids; one below `first` is no item, and missed.
        first: the first id of an item.
    """
    found = np.zeros(len(targets), "int32")
    for row, (history, target) in enumerate(zip(histories, targets, strict=True)):
        scores = baseline.scores(history)
        found[row] = MISSED if target < first else (scores[first:] >= scores[target]).sum()
    return found


@dataclass(frozen=True)
class Histories:
    """A run's histories, ready to train on."""

    items: Items
    plan: HistoryPlan
    valid_plan: HistoryPlan
    valid: list[History]  # whole ones, the item that is held out at the end


def corpus(settings: Settings) -> Corpus[History]:
    """The user's own log, or a named one.

    Raises:
        RequestError: see `log_from_file` and `named_log`.
    """
    return log_from_file(settings.log) if settings.log is not None else named_log(settings.name)


def prepare(run: Run, cache: Path, num_replicas: int) -> Histories:
    """Counts the items, and plans batches of the histories.

    Raises:
        RequestError: the items of a run that is fine-tuned are none of these, or the budget holds no window.
    """
    settings, items = run.settings, _items(run)
    run.config.model["vocabulary_size"] = items.vocabulary_size
    run.config.parameters = count_parameters(run.config.model)
    valid = list(run.corpus.valid())
    valid = [valid[place] for place in drawn(len(valid), MAX_VALIDATION_USERS)]
    if run.is_chief:
        write_config(run.folder, run.config)
    train = [items.encode(history) for history in run.corpus.train()]
    before = [items.encode(history[:-1]) for history in valid]
    targets = [items.id(history[-1], UNKNOWN) for history in valid]
    _tell(run, items, train, targets)
    if run.is_chief and not run.is_resumed:
        _tell_baselines(items, train, before, targets)
    length, budget = settings.context_length, settings.token_budget
    plan = HistoryPlan(train, length, budget, settings.seed, num_replicas, settings.accumulate)
    held_out = [[*history, target] for history, target in zip(before, targets, strict=True)]
    valid_plan = HistoryPlan(held_out, length, budget, num_replicas=num_replicas, shuffle=False, tells_last=True)
    return Histories(items, plan, valid_plan, valid)


def _items(run: Run) -> Items:
    """The items of the run: its own, those of `--init-from`, or those of the log."""
    settings, path = run.settings, run.folder.items
    if run.is_resumed and path.is_file():
        return Items.load(path)
    if settings.init_from:
        items = Items.load(RunFolder(settings.init_from).items)
    else:
        items = Items.of(run.corpus.train(), settings.vocabulary_size)
    if run.is_chief:
        items.save(path)
    return items


def _tell(run: Run, items: Items, train: Sequence[Sequence[int]], targets: Sequence[int]) -> None:
    num_events, num_known = sum(map(len, run.corpus.train())), sum(map(len, train))
    say(
        f"{run.corpus.name}: {num_known:,} events of {len(train):,} users with {len(items):,} items, "
        f"{len(targets):,} held out for validation"
    )
    if num_known < num_events:
        warn(f"{num_events - num_known} event(s) are left out: the vocabulary does not hold their items")
    if unseen := targets.count(UNKNOWN):
        warn(f"{unseen} held-out event(s) have items that are not trained on, and count as missed")


def _tell_baselines(
    items: Items, train: Sequence[Sequence[int]], before: Sequence[Sequence[int]], targets: Sequence[int]
) -> None:
    """Says how well popularity and the last item alone tell the held-out items: what a model has to beat."""
    baselines: dict[str, Baseline] = {
        "popularity": Popularity(train, items.vocabulary_size),
        "what followed the last item": ItemToItem(train, items.vocabulary_size),
    }
    for name, baseline in baselines.items():
        found = mean_figures(ranks(baseline, before, targets, FIRST_ITEM), AT)
        say(f"to beat: {name} · validation · recall {found['recall']:.4f} · ndcg {found['ndcg']:.4f}")


def metrics() -> list[keras.metrics.Metric]:
    """Recall and NDCG at 10."""
    return [RecallAt(AT), NDCGAt(AT)]


def validation(
    run: Run, data: Histories, model: SequenceEncoder, progress: Progress, show: Callable[[int, str], None] | None
) -> list[keras.callbacks.Callback]:
    """Early stopping by NDCG."""
    return [NdcgMonitor(progress, run.settings.patience)]


def final_metrics(run: Run, data: Histories, model: SequenceEncoder) -> dict[str, float]:
    """Recall and NDCG of the model that the run ends with."""
    found = mean_figures(Recommender(model, data.items).ranks(data.valid), AT)
    return {f"val_{name}": value for name, value in found.items()}
