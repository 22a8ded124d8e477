"""Attentions to show, with random scores."""

import numpy as np

from keras_transformer.decoding.attention_maps import Attention, Tokens
from keras_transformer.text.tokenizer import SPACE


def some_attention(queries: Tokens, keys: Tokens, layers: int = 2, heads: int = 3, causal: bool = False) -> Attention:
    """An attention whose rows sum to 1; where it is causal, a query sees no key after itself."""
    scores = np.random.default_rng(1).exponential(size=(layers, heads, len(queries.labels), len(keys.labels))) ** 3
    scores = np.tril(scores) if causal else scores
    return Attention(queries, keys, (scores / scores.sum(-1, keepdims=True)).astype("float32"))


def pieces(*words: int) -> Tokens:
    """Tokens of words that have so many pieces each."""
    return Tokens.of_pieces(
        f"{SPACE if piece == 0 else ''}w{word}.{piece}" for word, count in enumerate(words) for piece in range(count)
    )


def translation(source: Tokens, target: Tokens | None = None, layers: int = 2, heads: int = 3) -> dict[str, Attention]:
    """The three attentions of a translator."""
    target = target or source
    return {
        "encoder": some_attention(source, source, layers, heads),
        "decoder": some_attention(target, target, layers, heads, causal=True),
        "cross": some_attention(target, source, layers, heads),
    }
