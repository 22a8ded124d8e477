"""Defines what a task brings to training, with defaults for most of it; and a run that is about to train."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from keras_transformer.core.errors import RequestError
from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.run_folder import RunConfig, RunFolder, write_config
from keras_transformer.spec.options import Config
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.feeding import Plan
from keras_transformer.text.tokenizer import PAD, Tokenizer
from keras_transformer.training.common_settings import Given, S, Settings

if TYPE_CHECKING:
    import keras

    from keras_transformer.models.base import FamilyModel
    from keras_transformer.training.callbacks import Progress

SCORED_TOKENS = 8_192  # at once
Show = Callable[[int, str], None] | None  # takes a step and samples of it


@dataclass(frozen=True)
class Prepared:
    """A run's data, ready to train on.

    Args:
        plan: the batches of training.
        valid_plan: the batches of validation.
    """

    plan: Plan
    valid_plan: Plan


Data = TypeVar("Data", bound=Prepared)
Model = TypeVar("Model", bound="FamilyModel")


class TaskTraining(Generic[S, Data, Model]):
    """What a task brings to training. Its module `training` defines the class `Training`: its data, and what differs
    from the defaults, which are those of a model that tells a token at each place.

    Attributes:
        SCORE: the name of the score by which a round is judged, such as "BLEU".
        UNIT: what has a label, such as "tokens".
    """

    SCORE = "validation loss"
    UNIT = "tokens"

    def corpus(self, settings: S) -> Corpus[Any]:
        """Opens the corpus that the settings name."""
        raise NotImplementedError

    def prepare(self, run: Run[S], cache: Path, num_replicas: int) -> Data:
        """Prepares the data, and records in the run what the model learns from them, such as its labels."""
        raise NotImplementedError

    def loss(self, settings: S) -> keras.losses.Loss:
        """Returns the loss: cross entropy with label smoothing (paper, 5.4)."""
        from keras_transformer.losses import SmoothedCrossEntropy

        return SmoothedCrossEntropy(settings.label_smoothing)

    def metrics(self) -> list[keras.metrics.Metric]:
        """Returns the metrics beside the loss: accuracy and perplexity, of tokens."""
        from keras_transformer.metrics import Perplexity, TokenAccuracy

        return [TokenAccuracy(), Perplexity()]

    def validation(
        self, run: Run[S], data: Data, model: Model, progress: Progress, show: Show
    ) -> list[keras.callbacks.Callback]:
        """Returns what follows the validation of a round: early stopping by its loss, and samples for `show`."""
        from keras_transformer.training.callbacks import MetricMonitor

        return [MetricMonitor(progress, run.settings.patience)]

    def decoding_seconds(self, run: Run[S], data: Data, model: Model) -> float:
        """Returns how long a validation decodes; 0 for a task that does not."""
        return 0.0

    def final_metrics(self, run: Run[S], data: Data, model: Model) -> dict[str, float]:
        """Measures the model that a run ends with: by its validation loss, in nats a label."""
        return {"val_loss": mean_loss(model, data.valid_plan)}


def both_plans(
    plan: Callable[..., Plan], rows: Sequence[object], settings: Settings, num_replicas: int
) -> tuple[Plan, Plan]:
    """Plans the batches of training, and those of validation, which are the same in every epoch.

    Args:
        plan: the class of both.
        rows: to train on, and to validate on.
        settings: the run's.
        num_replicas: how many replicas share a batch.
    """
    train, valid = rows
    return (
        plan(train, settings.token_budget, settings.seed, num_replicas, settings.accumulate),
        plan(valid, settings.token_budget, num_replicas=num_replicas, shuffle=False),
    )


def training_of(task: str) -> TaskTraining[Settings, Prepared, FamilyModel]:
    """Returns what a task brings to training."""
    training: TaskTraining[Settings, Prepared, FamilyModel] = TASKS[task].module("training").Training()
    return training


def recipe_named(name: str, recipes: dict[str, Config], known: str, flag: str) -> Config:
    """Returns the recipe of a named corpus.

    Args:
        name: of the corpus.
        recipes: those of all corpora of the task, by their names.
        known: the beginning of the error: "a text is one of".
        flag: the flag that names the user's own data.

    Raises:
        RequestError: the name is unknown.
    """
    if name not in recipes:
        raise RequestError(f"{known} {', '.join(recipes)}, or your own with {flag}; received: {name!r}")
    return recipes[name]


def mean_loss(model: FamilyModel, plan: Plan) -> float:
    """Computes the mean cross entropy of a plan's first epoch by a model of tokens, in nats a label."""
    from keras_transformer.decoding.computations import LogProbs
    from keras_transformer.decoding.keras_decoder import CompiledComputations

    computations, log_prob, count = CompiledComputations(model), 0.0, 0
    for _, batch in islice(plan.iterate(), plan.num_batches(0)):
        ids, labels = batch.inputs["ids"], batch.labels
        num_rows = max(1, SCORED_TOKENS // ids.shape[1])
        for first in range(0, len(ids), num_rows):
            some = slice(first, first + num_rows)
            (log_probs,) = computations.run(LogProbs(), ids[some], labels[some])
            log_prob += float(log_probs.astype("float64").sum())
        count += int((labels != PAD).sum())
    return -log_prob / count


@dataclass
class Run(Generic[S]):
    """A run that is about to train.

    Args:
        settings: what was asked for.
        folder: where the run is written.
        corpus: what to train on.
        config: what `config.json` holds.
        is_chief: whether this worker writes the run folder; of several workers one does.
        given: the flags of a new run; of a run that goes on none.
        is_resumed: whether the run began before.
        vocabulary: the input tokenizer, which `prepare` sets; None for models that take no text.
    """

    settings: S
    folder: RunFolder
    corpus: Corpus[Any]
    config: RunConfig
    is_chief: bool
    given: Given
    is_resumed: bool = False
    vocabulary: Tokenizer | None = None

    @property
    def task(self) -> TaskTraining[Settings, Prepared, FamilyModel]:
        """What the task of the run brings to training."""
        return training_of(self.settings.task)

    def record(self, **arguments: int) -> None:
        """Puts arguments of the model that the data tells, and the number of parameters that follows from them, into
        config.json.
        """
        from keras_transformer.models.model_factory import count_parameters

        self.config.model.update(arguments)
        self.config.parameters = count_parameters(self.config.model)
        if self.is_chief:
            write_config(self.folder, self.config)
