"""What the artefacts of an encoder of masked tokens take and give: ids → the likeliest pieces, and a vector; text → a
vector."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from keras_transformer.checking.certificate_texts import valid
from keras_transformer.checking.signatures import (
    NUM_FILLS,
    VECTOR,
    Detokenize,
    Output,
    Outputs,
    Ranking,
    ReferenceOutputs,
    between_ends,
)
from keras_transformer.decoding.computations import likeliest_pieces
from keras_transformer.ops import Tensor
from keras_transformer.tasks.classification.signature import Reading, encoded

NUM_KNOWN = 4 * NUM_FILLS  # pieces of each place whose probabilities are kept


class Filling(Reading):
    """An encoder of masked tokens: ids → the likeliest pieces at each place, and a vector; text → a vector."""

    ids_stem, text_stem = "fill", "embed_text"
    ids_outputs = {"piece_ids": Output("int32", "SF"), "probabilities": Output("float32", "SF"), "vector": VECTOR}
    text_outputs = {"vector": VECTOR}

    def of_ids(self, ids: Tensor) -> Outputs:
        ids, states = encoded(self.model, ids)
        listed = self.num_listed or NUM_FILLS
        probabilities, pieces = likeliest_pieces(self.model, self.model.logits_of(states), listed)
        return {"piece_ids": pieces, "probabilities": probabilities, "vector": self.model.vectors(states, ids)}

    def of_pieces(self, pieces: Any, texts: Detokenize) -> Outputs:
        ids, states = encoded(self.model, between_ends(pieces))
        return {"vector": self.model.vectors(states, ids)}

    @classmethod
    def reference_outputs(cls, pipeline: Any, texts: Sequence[Any]) -> list[ReferenceOutputs]:
        lines = [valid(text) for text in texts]
        found = zip(pipeline.likeliest_pieces(lines, NUM_KNOWN), pipeline.embed(lines), strict=True)
        seen = []
        for (probabilities, ids), vector in found:
            places = zip(ids.tolist(), probabilities.tolist(), strict=True)
            rankings = [Ranking(dict(zip(some, probs, strict=True)), probs[-1]) for some, probs in places]
            seen.append(ReferenceOutputs(rankings, vector))
        return seen


SIGNATURES = (Filling,)
