"""What a run can learn. Each task is one module: its text, batches, loss, metrics, samples. Keras is not imported."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from keras_transformer import family

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import keras

    from keras_transformer.text.corpora import Corpus
    from keras_transformer.text.feeding import Plan
    from keras_transformer.training.callbacks import Progress
    from keras_transformer.training.request import Run
    from keras_transformer.training.settings import Settings


class Prepared(Protocol):
    """A run's data, ready to train on."""

    @property
    def plan(self) -> Plan:
        """The batches of training."""

    @property
    def valid_plan(self) -> Plan:
        """The batches of validation."""


class TaskModule(Protocol):
    """What the module of a task defines.

    Attributes:
        SCORE: the name of the score by which a round is judged, such as "BLEU".
        UNIT: what has a label, such as "tokens".

    A task that decodes in validation may have `decoding_seconds(run, data, model)`: how long that takes.
    """

    SCORE: str
    UNIT: str

    def corpus(self, settings: Settings) -> Corpus[Any]:
        """The corpus that the settings name."""

    def prepare(self, run: Run, cache: Path, num_replicas: int) -> Any:
        """Prepares the data, see `Prepared`."""

    def loss(self, settings: Settings) -> keras.losses.Loss:
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
        module: its module.
        kind: of its model, a key of `family.KINDS`.
        help: what it learns, in a few words.
        settings: the settings that other tasks do not have.
        defaults: its defaults where they differ from those of the settings.
    """

    module: str
    kind: str
    help: str
    settings: frozenset[str]
    defaults: dict[str, Any]

    def load(self) -> TaskModule:
        """Imports the module."""
        return import_module(self.module)  # type: ignore[return-value]

    @property
    def arguments(self) -> list[str]:
        """The arguments of the task's model."""
        return list(family.KINDS[self.kind].arguments)


_OF_IDS = frozenset({"vocabulary_size", "output_bias", "tied_output", "embedding_scale"})
_OF_TEXT = frozenset({"vocabulary_type", "tokenizer", "word_vectors", "normalization", "byte_fallback"}) | _OF_IDS
_OF_TRANSLATION = frozenset(
    {
        "data_dir", "separate_vocabularies", "sampling", "static_shapes", "bleu_sentences", "encoder_layers",
        "decoder_layers", "decoder_attention", "max_source_length", "more_source", "more_target", "more_tag", "copies",
        "both_directions",
    }
)  # fmt: skip
_OF_PAIRS = frozenset({"source", "target", "valid_source", "valid_target", "max_length", "clean"})
_OF_ONE_LANGUAGE = frozenset({"text", "valid_text", "context_length"}) | _OF_TEXT
_OF_IMAGES = frozenset(
    {
        "images", "valid_images", "image_size", "patch_size", "channels", "stem", "pixel_mean", "pixel_std",
        "random_shift",
    }
)  # fmt: skip
TASKS = {
    "translation": Task(
        "keras_transformer.training.translation",
        "translator",
        "from parallel text",
        _OF_TRANSLATION | _OF_PAIRS | _OF_TEXT,
        {},
    ),  # fmt: skip
    "language-model": Task(
        "keras_transformer.training.language_modelling",
        "language-model",
        "from text of one language, or from pairs of a text and its answer",
        _OF_ONE_LANGUAGE | _OF_PAIRS,
        {"dataset": "pydoc-topics", "label_smoothing": 0.0, "preset": "tiny"},
    ),
    "masked-tokens": Task(
        "keras_transformer.training.masked_tokens",
        "encoder",
        "to fill masked places of text",
        _OF_ONE_LANGUAGE,
        {"dataset": "pydoc-topics", "label_smoothing": 0.0, "preset": "tiny"},
    ),
    "classification": Task(
        "keras_transformer.training.classification",
        "encoder",
        "from lines of a label, a tab and a text",
        _OF_ONE_LANGUAGE,
        {"dataset": "number-languages", "label_smoothing": 0.0, "preset": "tiny"},
    ),
    "next-item": Task(
        "keras_transformer.training.next_item",
        "sequence-encoder",
        "what comes next in users' histories",
        frozenset({"log", "context_length"}) | _OF_IDS,
        # As many items as there are.
        {"dataset": "series", "label_smoothing": 0.0, "preset": "tiny", "vocabulary_size": 4_000_000},
    ),
    "images": Task(
        "keras_transformer.training.image_classification",
        "image-classifier",
        "from a folder of images for each label",
        _OF_IMAGES,
        {"dataset": "digits", "label_smoothing": 0.0, "preset": "tiny", **family.VISION},
    ),
}
DEFAULT_TASK = "translation"


def is_foreign(setting: str, task: str) -> bool:
    """Whether a setting belongs to other tasks alone."""
    return setting not in TASKS[task].settings and any(setting in other.settings for other in TASKS.values())


def tasks_of(setting: str) -> list[str]:
    """The tasks that have a setting."""
    return [task for task in TASKS if not is_foreign(setting, task)]
