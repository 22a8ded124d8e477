"""What the artefacts of a tagger take and give: ids → the tags of each piece, the likeliest first; text → a vector."""

from typing import Any

import numpy as np

from keras_transformer import ops
from keras_transformer.checking.signatures import Ranking, ReferenceOutputs
from keras_transformer.models.classifiers import mean_state
from keras_transformer.tasks.classification.signature import encoded
from keras_transformer.tasks.masked_tokens.signature import Filling
from keras_transformer.text.sentences import valid
from tests.tagging.training import FIRST_TAG


class Tagging(Filling):
    """A tagger: ids → at each place the tags, as ids, with their probabilities."""

    ids_stem = "tag"

    def of_ids(self, ids: Any) -> dict[str, Any]:
        ids, states = encoded(self.model, ids)
        logits = ops.cast(self.model.logits_of(states), "float32")[..., FIRST_TAG : FIRST_TAG + len(self.pipeline.tags)]
        probabilities, tags = ops.top_k(ops.softmax(logits), len(self.pipeline.tags))
        return {
            "piece_ids": ops.cast(tags, "int32") + FIRST_TAG,
            "probabilities": probabilities,
            "vector": mean_state(states, ids),
        }

    @classmethod
    def reference_outputs(cls, pipeline: Any, texts: Any) -> list[ReferenceOutputs]:
        seen = []
        for text in map(valid, texts):
            ids = np.array([pipeline.ids(text)])
            rankings = [
                Ranking({int(tag) + FIRST_TAG: float(row[tag]) for tag in np.argsort(-row, kind="stable")})
                for row in pipeline.probabilities(text)
            ]
            seen.append(
                ReferenceOutputs(rankings, ops.convert_to_numpy(mean_state(pipeline.model.states(ids), ids))[0])
            )
        return seen


SIGNATURES = (Tagging,)
