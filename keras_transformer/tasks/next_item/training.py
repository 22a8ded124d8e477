"""Trains a model to tell the next item: histories, cross entropy, recall and NDCG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.core.errors import say, warn
from keras_transformer.metrics import NDCGAt, RecallAt
from keras_transformer.models.stack_models import SequenceEncoder
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.tasks.next_item.baselines import followers, popularity, ranks
from keras_transformer.tasks.next_item.batches import HistoryPlan
from keras_transformer.tasks.next_item.corpus import FIRST_ITEM, History, Items, log_from_file, named_log
from keras_transformer.tasks.next_item.pipeline import Recommender, mean_figures
from keras_transformer.tasks.next_item.settings import Settings
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.held_out import drawn
from keras_transformer.text.tokenizer import UNKNOWN
from keras_transformer.training.callbacks import MetricMonitor
from keras_transformer.training.task import Prepared, Run, Show, TaskTraining

if TYPE_CHECKING:
    import keras

    from keras_transformer.training.callbacks import Progress

AT = 10  # the k of recall and NDCG
MAX_VALIDATION_USERS = 10_000  # what a round is validated on


@dataclass(frozen=True)
class Histories(Prepared):
    """A run's histories, ready to train on."""

    items: Items
    valid: list[History]  # whole ones, the item that is held out at the end


class Training(TaskTraining[Settings, Histories, SequenceEncoder]):
    """What a model of histories brings to training."""

    SCORE = "NDCG@10"
    UNIT = "events"

    def corpus(self, settings: Settings) -> Corpus[History]:
        """Opens the user's own log, or a named one.

        Raises:
            RequestError: see `log_from_file` and `named_log`.
        """
        return log_from_file(settings.log) if settings.log is not None else named_log(settings.name)

    def prepare(self, run: Run, cache: Path, num_replicas: int) -> Histories:
        """Counts the items, and plans batches of the histories.

        Raises:
            RequestError: the items of a run that is fine-tuned are none of these, or the budget holds no window.
        """
        settings, items = run.settings, _items(run)
        run.record(vocabulary_size=items.vocabulary_size)
        valid = list(run.corpus.valid())
        valid = [valid[place] for place in drawn(len(valid), MAX_VALIDATION_USERS)]
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
        return Histories(plan, valid_plan, items, valid)

    def metrics(self) -> list[keras.metrics.Metric]:
        """Returns recall and NDCG at 10."""
        return [RecallAt(AT), NDCGAt(AT)]

    def validation(
        self, run: Run, data: Histories, model: SequenceEncoder, progress: Progress, show: Show
    ) -> list[keras.callbacks.Callback]:
        """Returns early stopping by NDCG."""
        return [MetricMonitor(progress, run.settings.patience, "val_ndcg")]

    def final_metrics(self, run: Run, data: Histories, model: SequenceEncoder) -> dict[str, float]:
        """Measures recall and NDCG."""
        found = mean_figures(Recommender(model, data.items).ranks(data.valid), AT)
        return {f"val_{name}": value for name, value in found.items()}


def _items(run: Run) -> Items:
    """Returns the items of the run: its own, those of `--init-from`, or those of the log."""
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
    for name, baseline in (("popularity", popularity), ("what followed the last item", followers)):
        scores = baseline(train, items.vocabulary_size)
        found = mean_figures(ranks(scores, before, targets, FIRST_ITEM), AT)
        say(f"to beat: {name} · validation · recall {found['recall']:.4f} · ndcg {found['ndcg']:.4f}")
