"""What an importer reads of a model: all that makes a translator of ours. Keras is not imported."""

from __future__ import annotations

from typing import Any, NamedTuple

from keras_transformer.importing.pieces import Vocabulary
from keras_transformer.importing.weights import Weights


class Imported(NamedTuple):
    """A model from outside, read and checked.

    Args:
        config: the complete arguments of our model.
        source, target: the vocabularies.
        weights: the tensors, from which our model's weights are made.
        search: the options of the search, see `SearchOptions`.
        languages: of source and target; None if the model does not say.
    """

    config: dict[str, Any]
    source: Vocabulary
    target: Vocabulary
    weights: Weights
    search: dict[str, Any]
    languages: tuple[str, str] | None
