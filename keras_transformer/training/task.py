"""A run that is about to train, and what the module `training` of its task defines."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.spec.options import Config
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training.common_settings import Settings

if TYPE_CHECKING:
    import keras

    from keras_transformer.text.feeding import Plan
    from keras_transformer.training.callbacks import Progress


class Prepared(Protocol):
    """A run's data, ready to train on."""

    @property
    def plan(self) -> Plan:
        """The batches of training."""

    @property
    def valid_plan(self) -> Plan:
        """The batches of validation."""


class TaskModule(Protocol):
    """What the module `training` of a task defines: text, batches, loss, metrics, samples.

    Attributes:
        SCORE: the name of the score by which a round is judged, such as "BLEU".
        UNIT: what has a label, such as "tokens".

    A task that decodes in validation may have `decoding_seconds(run, data, model)`: how long that takes.
    """

    SCORE: str
    UNIT: str

    def corpus(self, settings: object) -> Corpus[Any]:
        """The corpus that the settings name."""

    def prepare(self, run: Run, cache: Path, num_replicas: int) -> Any:
        """Prepares the data, see `Prepared`."""

    def loss(self, settings: object) -> keras.losses.Loss:
        """The loss."""

    def metrics(self) -> list[keras.metrics.Metric]:
        """The metrics beside the loss."""

    def validation(
        self, run: Run, data: object, model: object, progress: Progress, show: Callable[[int, str], None] | None
    ) -> list[keras.callbacks.Callback]:
        """What happens after the validation of a round: samples, which `show` takes, and early stopping."""

    def final_metrics(self, run: Run, data: object, model: object) -> dict[str, float]:
        """What is measured on the model that a run ends with."""


@dataclass
class Run:
    """A run that is about to train.

    Args:
        settings: what was asked for.
        folder: where the run is written.
        corpus: what to train on.
        config: what `config.json` holds.
        is_chief: whether this worker writes the run folder; of several workers one does.
        is_resumed: whether the run began before.
        vocabulary: what spells the model's input, once it is known; None for models that take no text.
        given: the flags of a new run, by the names of their settings.
    """

    settings: Settings
    folder: RunFolder
    corpus: Corpus[Any]
    config: Config
    is_chief: bool = True
    is_resumed: bool = False
    vocabulary: Tokenizer | None = None
    given: Config = field(default_factory=dict)

    @property
    def task(self) -> TaskModule:
        """What the run learns."""
        return TASKS[self.settings.task].module("training")  # type: ignore[return-value]

    @property
    def lowers_vocabulary(self) -> bool:
        """Whether the vocabulary may be smaller than the setting if the text supports no more.

        Not if the user gave the size; a run that is resumed does not tell whether it was given.
        """
        return "vocabulary_size" not in self.given
