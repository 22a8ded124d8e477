"""The only module that makes masks. They are booleans, True = visible."""

from __future__ import annotations

from keras_transformer import ops
from keras_transformer.tensor import Tensor

HIDDEN = -1e9  # added to the logit of a hidden key: in float32 the exponential of the sum is exactly 0


def padding_mask(ids: Tensor, pad_token_id: int = 0) -> Tensor:
    """True at real tokens, False at padding: ids (B, S) → (B, S)."""
    return ops.not_equal(ids, pad_token_id)


def real_labels(labels: Tensor) -> Tensor:
    """True where a label counts: labels (B,) of whole rows all count; of labels (B, T) of tokens, 0 is padding."""
    return padding_mask(labels) if len(labels.shape) > 1 else ops.ones_like(labels, "bool")


def causal_mask(length: int | Tensor) -> Tensor:
    """(1, T, T), True where query t sees key s, which is s ≤ t (paper, 3.2.3)."""
    positions = ops.arange(length)
    return (positions[None, :] <= positions[:, None])[None]


def keys_mask(mask: Tensor) -> Tensor:
    """Hides padded keys from every query: padding mask (B, S) → attention mask (B, 1, S)."""
    return ops.expand_dims(mask, 1)  # not `mask[:, None]`: LiteRT cannot slice booleans


def joint_mask(attention_mask: Tensor | None, memory_mask: Tensor | None) -> Tensor | None:
    """What both masks show: an attention mask (B, T, S) or what broadcasts to it, and a padding mask (B, S)."""
    if memory_mask is None:
        return attention_mask
    visible = keys_mask(memory_mask)  # (B, 1, S)
    return visible if attention_mask is None else ops.logical_and(attention_mask, visible)
