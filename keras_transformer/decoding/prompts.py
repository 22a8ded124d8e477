"""A language model's step that reads a prompt before it goes on, for any search.

Letters of the shapes: see `loop`.
"""

from __future__ import annotations

from typing import Any

from keras_transformer.decoding.array_ops import ops
from keras_transformer.decoding.loop import NONE, Cache, Step
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import PAD


def prompted(model: Any, prompt_ids: Tensor) -> Step:
    """The model's step, which reads the prompts (B, P), padded with 0, whatever the search emits.

    While it reads, the search can emit a placeholder alone, of the probability 1: the first id of text. So only what
    follows a prompt counts in the score of a text, and a prompt may hold any id.
    """
    placeholder = ops.equal(ops.arange(model.vocabulary_size), model.num_control_ids)  # (V,)
    placeholder_logits = ops.where(placeholder, 0.0, NONE)

    def step(token_ids: Tensor, cache: Cache, index: Tensor) -> tuple[Tensor, Cache]:
        before, here = (ops.cast(at(prompt_ids, place), token_ids.dtype) for place in (index - 1, index))  # (B, 1)
        token_ids = ops.where(before == PAD, token_ids, before)
        logits, cache = model.step(token_ids, cache, index)
        return ops.where((here == PAD)[..., None], logits, placeholder_logits), cache

    return step


def num_read(prompt_ids: Tensor) -> Tensor:
    """(B,) int32 How many ids prompts (B, P) have, padded with 0."""
    return ops.sum(ops.cast(prompt_ids != PAD, "int32"), axis=-1)


def at(ids: Tensor, place: Tensor) -> Tensor:
    """(B, 1) The ids at one place of rows (B, P); 0 outside of them."""
    here = ops.equal(ops.arange(ops.shape(ids)[1]), ops.cast(place, "int32"))  # (P,)
    return ops.sum(ops.where(here, ids, 0), axis=1, keepdims=True)
