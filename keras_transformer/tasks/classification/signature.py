"""What the artefacts of a classifier of texts take and give: ids or text → probabilities of labels, and a vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer import ops
from keras_transformer.checking.certificate_texts import valid
from keras_transformer.checking.signatures import (
    TEXT,
    VECTOR,
    Detokenize,
    Output,
    Outputs,
    ReferenceOutputs,
    Signature,
    between_ends,
    first_lines,
    likeliest_labels,
    ranking_of,
    valid_ids,
)
from keras_transformer.ops import Tensor
from keras_transformer.runs.run_folder import RunConfig, RunFolder
from keras_transformer.tasks.classification.pipeline import Classifier

if TYPE_CHECKING:
    from keras_transformer.models.classifiers import Encoder


class Reading(Signature):
    """The base of the signatures of encoders, whose texts stand between start and end."""

    takes, has_start = "ids", True

    @classmethod
    def inputs(cls, pipeline: Classifier, texts: Sequence[Any]) -> list[list[int]]:
        return [pipeline.ids(valid(text)) for text in texts]


class Labelling(Reading):
    """An encoder with labels: ids → the probability of each label, and a vector."""

    mark = "labels"
    ids_stem, text_stem = "classify", "classify_text"
    ids_outputs = {"probabilities": Output("float32", "C"), "vector": VECTOR}
    text_outputs = {"label": TEXT, **ids_outputs}

    def of_ids(self, ids: Tensor) -> Outputs:
        ids, states = encoded(self.model, ids)
        logits = ops.cast(self.model.logits_of(states), "float32")
        return {"probabilities": ops.softmax(logits), "vector": self.model.vectors(states, ids)}

    def of_pieces(self, pieces: Any, texts: Detokenize) -> Outputs:
        found = self.of_ids(between_ends(pieces))
        return {"label": likeliest_labels(self.pipeline.labels, found["probabilities"]), **found}

    @classmethod
    def validation(cls, folder: RunFolder, config: RunConfig) -> tuple[list[str], list[str] | None]:
        return first_lines(folder.valid_text, lambda line: line.partition("\t")[2]), None

    @classmethod
    def reference_outputs(cls, pipeline: Classifier, texts: Sequence[Any]) -> list[ReferenceOutputs]:
        lines = [valid(text) for text in texts]
        found = zip(pipeline.probabilities(lines), pipeline.embed(lines), strict=True)
        return [ReferenceOutputs([ranking_of(pipeline.labels, row)], vector) for row, vector in found]


def encoded(model: Encoder, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (B, S) from outside → ids that the model takes, and their states."""
    ids = valid_ids(ids, model.vocabulary_size, model.context_length - 1)
    return ids, model.states(ids)


SIGNATURES = (Labelling,)
