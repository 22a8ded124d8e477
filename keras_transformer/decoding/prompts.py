"""A language model that reads a prompt before it goes on, for any search.

Letters of the shapes: see `loop`.
"""

from __future__ import annotations

from typing import Any

from keras_transformer import ops
from keras_transformer.decoding.loop import NONE, Cache
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import PAD


class Prompted:
    """A language model that reads prompts before it goes on, whatever the search emits.

    While it reads, the search can emit a placeholder alone, of the probability 1: the first id of text. So only what
    follows a prompt counts in the score of a text, and a prompt may hold any id.

    Args:
        model: the language model.
        prompt_ids: (B, P), padded with 0.
    """

    def __init__(self, model: Any, prompt_ids: Tensor):
        self.model = model
        self.prompt_ids = prompt_ids

    def init_cache(self, num_beams: int, max_length: int | Tensor) -> Cache:
        """The cache of `step` at position 0: the model's own, and the prompts."""
        own = self.model.init_cache(self.prompt_ids, num_beams, max_length)
        return {"beams": own["beams"], "sentences": {"own": own["sentences"], "prompt": self.prompt_ids}}

    def step(self, token_ids: Tensor, cache: Cache, index: Tensor) -> tuple[Tensor, Cache]:
        """As the model's step."""
        own = {"beams": cache["beams"], "sentences": cache["sentences"]["own"]}
        prompt_ids = cache["sentences"]["prompt"]
        before, here = (ops.cast(at(prompt_ids, place), token_ids.dtype) for place in (index - 1, index))  # (B, 1)
        logits, own = self.model.step(ops.where(before == PAD, token_ids, before), own, index)
        placeholder = ops.equal(ops.arange(self.model.vocabulary_size), self.model.num_control_ids)  # (V,)
        logits = ops.where((here == PAD)[..., None], logits, ops.where(placeholder, 0.0, NONE))
        return logits, {**cache, "beams": own["beams"]}


def num_read(prompt_ids: Tensor) -> Tensor:
    """(B,) int32 How many ids prompts (B, P) have, padded with 0."""
    return ops.sum(ops.cast(prompt_ids != PAD, "int32"), axis=-1)


def at(ids: Tensor, place: Tensor) -> Tensor:
    """(B, 1) The ids at one place of rows (B, P); 0 outside of them."""
    here = ops.equal(ops.arange(ops.shape(ids)[1]), ops.cast(place, "int32"))  # (P,)
    return ops.sum(ops.where(here, ids, 0), axis=1, keepdims=True)
