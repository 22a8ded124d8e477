"""What the module `training` of a task defines."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import keras

    from keras_transformer.text.corpora import Corpus
    from keras_transformer.text.feeding import Plan
    from keras_transformer.training.callbacks import Progress
    from keras_transformer.training.request import Run


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

    def corpus(self, settings: Any) -> Corpus[Any]:
        """The corpus that the settings name."""

    def prepare(self, run: Run, cache: Path, num_replicas: int) -> Any:
        """Prepares the data, see `Prepared`."""

    def loss(self, settings: Any) -> keras.losses.Loss:
        """The loss."""

    def metrics(self) -> list[keras.metrics.Metric]:
        """The metrics beside the loss."""

    def validation(
        self, run: Run, data: Any, model: Any, progress: Progress, show: Callable[[int, str], None] | None
    ) -> list[keras.callbacks.Callback]:
        """What happens after the validation of a round: samples, which `show` takes, and early stopping."""

    def measured(self, run: Run, data: Any, model: Any) -> dict[str, float]:
        """What is measured on the model that a run ends with."""
