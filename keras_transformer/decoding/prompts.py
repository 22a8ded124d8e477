"""Reads prompts with a language model before a search goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer import ops
from keras_transformer.ops import Tensor
from keras_transformer.search.loop import NONE, Cache, at
from keras_transformer.text.tokenizer import PAD

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel


class PromptForcing:
    """A language model that reads prompts before it goes on, whatever the search emits.

    While it reads, the search can emit a placeholder alone, of the probability 1: the first id of text. So only what
    follows a prompt counts in the score of a text, and a prompt may hold any id.

    Args:
        model: the language model.
        first_ids: (B, 1) what stands at position 0, before the prompt.
        prompt_ids: (B, P), padded with 0.
    """

    def __init__(self, model: FamilyModel, first_ids: Tensor, prompt_ids: Tensor):
        self.model = model
        self.ids = ops.concatenate([first_ids, prompt_ids], axis=1)

    def init_cache(self, num_beams: int, max_length: int | Tensor) -> Cache:
        """The cache of `step` at position 0: the model's own, and the prompts."""
        own = self.model.init_cache(self.ids, num_beams, max_length)
        return {"beams": own["beams"], "sentences": {"own": own["sentences"], "prompt": self.ids}}

    def read(self, num_beams: int, max_length: int | Tensor) -> tuple[Cache, Tensor | None]:
        """The cache of `step` behind what all prompts have but the last token of the shortest, which the model reads in
        one pass; and the position that comes next. Where the model cannot, the cache at position 0, and None.
        """
        if not self.model.supports_prefill:
            return self.init_cache(num_beams, max_length), None
        ends = ops.cumsum(ops.cast(ops.any(self.ids == PAD, axis=0), "int32"), axis=0)  # (1 + P,) 0 in all prompts
        count = ops.maximum(ops.sum(ops.cast(ends == 0, ops.integers())) - 1, 0)
        cache = self.init_cache(1, max_length)
        # At least one, which the first step writes again: LiteRT and Keras's maximum fail on tensors without numbers. A
        # cache that grows cannot hold one twice.
        most = ops.maximum(count, 1) if ops.back_end() is None else count
        _, own = self.model.step(self.ids[:, :most], _own(cache), ops.arange(most))
        beams = ops.map_structure(lambda values: ops.repeat(values, num_beams, axis=1), own["beams"])
        return {**cache, "beams": beams if num_beams > 1 else own["beams"]}, count

    def step(self, token_ids: Tensor, cache: Cache, index: Tensor) -> tuple[Tensor, Cache]:
        """As the model's step."""
        ids = ops.cast(cache["sentences"]["prompt"], token_ids.dtype)
        here, behind = at(ids, index), at(ids, index + 1)  # (B, 1)
        logits, own = self.model.step(ops.where(here == PAD, token_ids, here), _own(cache), index)
        placeholder = ops.equal(ops.arange(self.model.vocabulary_size), self.model.num_control_ids)  # (V,)
        logits = ops.where((behind == PAD)[..., None], logits, ops.where(placeholder, 0.0, NONE))
        return logits, {**cache, "beams": own["beams"]}


def _own(cache: Cache) -> Cache:
    """The model's own part of a cache of `PromptForcing`."""
    return {"beams": cache["beams"], "sentences": cache["sentences"]["own"]}


def prompt_length(prompt_ids: Tensor) -> Tensor:
    """(B,) int32 How many ids prompts (B, P) have, padded with 0."""
    return ops.sum(ops.cast(prompt_ids != PAD, "int32"), axis=-1)
