"""The tasks that a run can learn. Each is a folder here. Keras is not imported."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


class Task(NamedTuple):
    """A task.

    Args:
        package: its folder, with the modules `settings` and `training`.
        help: what it learns, in a few words.
    """

    package: str
    help: str

    def load(self) -> TaskModule:
        """Imports the module that trains."""
        return import_module(f"{self.package}.training")  # type: ignore[return-value]

    @property
    def settings(self) -> type[Any]:
        """The class of its settings."""
        return import_module(f"{self.package}.settings").Settings

    @property
    def kind(self) -> str:
        """The kind of its model, a key of `family.KINDS`."""
        return self.settings.kind


def _task(folder: str, help: str) -> Task:
    return Task(f"{__name__}.{folder}", help)


TASKS = {
    "translation": _task("translation", "from parallel text"),
    "language-model": _task("language_modelling", "from text, or from pairs of a text and its answer"),
    "masked-tokens": _task("masked_tokens", "to fill masked places of text"),
    "classification": _task("classification", "from lines of a label, a tab and a text"),
    "next-item": _task("next_item", "what comes next in users' histories"),
    "images": _task("images", "from a folder of images for each label"),
}
DEFAULT_TASK = "translation"
