"""What the artefacts of a tagger take and give: ids → the tags of each piece, the likeliest first; text → a vector."""

from keras_transformer import ops
from keras_transformer.checking.certificate_texts import valid
from keras_transformer.checking.signatures import ReferenceOutputs, ranking_of
from keras_transformer.tasks.classification.signature import encoded
from keras_transformer.tasks.masked_tokens.signature import Filling
from tests.tagging.training import FIRST_TAG


class Tagging(Filling):
    """A tagger: ids → at each place the tags, as ids, with their probabilities."""

    ids_stem = "tag"

    def of_ids(self, ids):
        (ids, states), num_tags = encoded(self.model, ids), len(self.pipeline.labels)
        logits = ops.cast(self.model.logits_of(states), "float32")[..., FIRST_TAG : FIRST_TAG + num_tags]
        probabilities, tags = ops.top_k(ops.softmax(logits), num_tags)
        tags = ops.cast(tags, "int32") + FIRST_TAG
        return {"piece_ids": tags, "probabilities": probabilities, "vector": self.model.vectors(states, ids)}

    @classmethod
    def reference_outputs(cls, pipeline, texts):
        lines, ids = [valid(text) for text in texts], range(FIRST_TAG, FIRST_TAG + len(pipeline.labels))
        vectors = pipeline.embed(lines)
        rankings = ([ranking_of(ids, row) for row in pipeline.tag_probabilities(line)] for line in lines)
        return [ReferenceOutputs(*one) for one in zip(rankings, vectors, strict=True)]


SIGNATURES = (Tagging,)
