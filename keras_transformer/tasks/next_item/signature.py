"""What the artefacts of a model of histories take and give: ids → the likeliest next items, and a vector."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer import ops
from keras_transformer.checking.certificate_texts import QUICK_TEXTS, Texts
from keras_transformer.checking.signatures import (
    NUM_ITEMS,
    VECTOR,
    Output,
    Outputs,
    Ranking,
    ReferenceOutputs,
    Signature,
    known_ids,
    rows_from,
)
from keras_transformer.core.lazy import tf
from keras_transformer.layers.score import HIDDEN
from keras_transformer.ops import Tensor
from keras_transformer.runs.run_folder import RunConfig, RunFolder
from keras_transformer.tasks.next_item.corpus import Items
from keras_transformer.tasks.next_item.pipeline import Recommender
from keras_transformer.text.tokenizer import PAD, START

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel

SEED = 1  # for histories that are made up


class Recommending(Signature):
    """A model of histories: ids, the start id and then items, the oldest first → the likeliest next items, a vector.

    The last items count of a history that is longer than the context.
    """

    ids_stem, text_stem = "recommend", ""
    takes = "ids"
    ids_outputs = {"item_ids": Output("int32", "I"), "probabilities": Output("float32", "I"), "vector": VECTOR}
    text_outputs = {"items": Output("text", "I"), **ids_outputs}

    def of_ids(self, ids: Tensor) -> Outputs:
        model = self.model
        ids = known_ids(ops.pad(ids, [[0, 0], [0, 1]]), model.vocabulary_size)
        last = model.context_length - 1
        count = ops.sum(ops.cast(ids[:, 1:] != PAD, "int32"), axis=-1)  # (B,)
        ids = ops.concatenate([ids[:, :1], rows_from(ids[:, 1:], ops.maximum(count - last, 0))[:, :last]], axis=1)
        vector = model.embed(ids)
        scores = ops.cast(model.output_embedding.logits(vector), "float32")
        is_item = ops.arange(model.vocabulary_size) >= model.num_control_ids
        listed = min(self.num_listed or NUM_ITEMS, num_items(model))
        probabilities, items = ops.top_k(ops.softmax(ops.where(is_item, scores, HIDDEN)), listed)
        return {"item_ids": ops.cast(items, "int32"), "probabilities": probabilities, "vector": vector}

    def named(self, ids: Tensor) -> Outputs:
        found = self.of_ids(ids)
        return {"items": tf.gather(self.pipeline.names, found["item_ids"] - self.model.num_control_ids), **found}

    @classmethod
    def validation(cls, folder: RunFolder, config: RunConfig) -> tuple[list[list[str]], list[str] | None]:
        return histories_of(folder, config.model["context_length"]), None

    @classmethod
    def texts(cls, pipeline: Recommender, given: Sequence[object]) -> Texts:
        return Texts([], history_probes(pipeline.names, pipeline.model.context_length - 1), given)

    @classmethod
    def inputs(cls, pipeline: Recommender, texts: Sequence[Any]) -> list[list[int]]:
        return [[START, *pipeline.items.encode(history)] for history in texts]

    @classmethod
    def reference_outputs(cls, pipeline: Recommender, texts: Sequence[Any]) -> list[ReferenceOutputs]:
        listed = pipeline.recommend(texts, len(pipeline.names))
        return [
            ReferenceOutputs([Ranking({one.item: one.probability for one in found})], vector)
            for found, vector in zip(listed, pipeline.embed(texts), strict=True)
        ]

    @classmethod
    def names_in(cls, folder: RunFolder, about: Mapping[str, str]) -> list[str]:
        return Items.load(folder.items).names

    @classmethod
    def names_file(cls, folder: RunFolder) -> Path | None:
        return folder.items


def num_items(model: FamilyModel) -> int:
    """Returns how many items a model of histories knows."""
    return model.vocabulary_size - model.num_control_ids


def history_probes(names: Sequence[str], most: int) -> list[list[str]]:
    """Histories of no item, of one, of as many as the model takes, and of one more."""
    return [[names[place % len(names)] for place in range(count)] for count in (0, 1, most, most + 1)]


def histories_of(folder: RunFolder, context_length: int) -> list[list[str]]:
    """Makes up histories of the run's items, some longer than the context: a run keeps none of its users'."""
    names = Items.load(folder.items).names
    draws = np.random.default_rng(SEED)
    lengths = draws.integers(0, context_length + 5, QUICK_TEXTS)
    return [[names[place] for place in draws.integers(0, len(names), length)] for length in lengths]


SIGNATURES = (Recommending,)
