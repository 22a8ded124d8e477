"""What an importer reads of a model: all that makes a model of ours with its pipeline. Keras is not imported."""

from __future__ import annotations

from typing import Any, NamedTuple

from keras_transformer import family
from keras_transformer.importing.pieces import Vocabulary
from keras_transformer.importing.weights import Weights
from keras_transformer.making import make_model
from keras_transformer.tasks import task_named


class Imported(NamedTuple):
    """A model from outside, read and checked.

    Args:
        config: the complete arguments of our model.
        weights: the tensors, from which our model's weights are made.
        vocabularies: of what is read and of what is written, or one for both; models of images have none.
        search: the options of the search, see `SearchOptions`.
        languages: of source and target; None if the model does not say.
        labels: of a classifier, in the order of its logits.
    """

    config: dict[str, Any]
    weights: Weights
    vocabularies: tuple[Vocabulary, ...] = ()
    search: dict[str, Any] = {}
    languages: tuple[str, str] | None = None
    labels: list[str] = []

    @property
    def task(self) -> str:
        """The task that the model was trained for, a key of `tasks.TASKS`."""
        return task_named(None, self.config.get("kind", family.DEFAULT_KIND), {"labels"} if self.labels else ())

    def model(self) -> Any:
        """The model, with its weights."""
        model = make_model(self.config)
        self.weights.assign_to(model)
        return model

    @property
    def source(self) -> Vocabulary:
        """The vocabulary of what is read."""
        return self.vocabularies[0]

    @property
    def target(self) -> Vocabulary:
        """The vocabulary of what is written."""
        return self.vocabularies[-1]
