"""Marian's model in NumPy, after its description: what an import is compared with where PyTorch is missing."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

Arrays = dict[str, np.ndarray]


def logits(arrays: Arrays, num_heads: int, source: list[int], target: list[int]) -> np.ndarray:
    """The logits (T, V) after each id of a target that begins with the pad id, for one source, in Marian's ids."""
    memory = stack_of(arrays, "encoder", num_heads, _embedded(arrays, source), None)
    states = stack_of(arrays, "decoder", num_heads, _embedded(arrays, target), memory)
    return states @ arrays["model.shared.weight"].T + arrays["final_logits_bias"][0]


def _embedded(arrays: Arrays, ids: list[int]) -> np.ndarray:
    rows = arrays["model.shared.weight"][ids]
    width = rows.shape[1]
    angles = np.arange(len(ids))[:, None] / 10_000 ** (np.arange(0, width, 2) / width)
    return rows * np.sqrt(width) + np.concatenate([np.sin(angles), np.cos(angles)], axis=1)


def _swish(x: np.ndarray) -> np.ndarray:
    return x / (1 + np.exp(-x))


def stack_of(
    arrays: Arrays,
    stack: str,
    num_heads: int,
    x: np.ndarray,
    memory: np.ndarray | None,
    activation: Callable[[np.ndarray], np.ndarray] = _swish,
) -> np.ndarray:
    """The states after a stack; those of the encoder are the decoder's memory."""
    number = 0
    while f"model.{stack}.layers.{number}.fc1.weight" in arrays:
        layer = f"model.{stack}.layers.{number}"
        attended = _attention(arrays, f"{layer}.self_attn", num_heads, x, x, memory is not None)
        x = norm(arrays, f"{layer}.self_attn_layer_norm", x + attended)
        if memory is not None:
            attended = _attention(arrays, f"{layer}.encoder_attn", num_heads, x, memory, False)
            x = norm(arrays, f"{layer}.encoder_attn_layer_norm", x + attended)
        hidden = activation(_linear(arrays, f"{layer}.fc1", x))
        x = norm(arrays, f"{layer}.final_layer_norm", x + _linear(arrays, f"{layer}.fc2", hidden))
        number += 1
    return x


def _linear(arrays: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    return x @ arrays[f"{name}.weight"].T + arrays[f"{name}.bias"]


def norm(arrays: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    centred = x - x.mean(axis=-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    return scaled * arrays[f"{name}.weight"] + arrays[f"{name}.bias"]


def _attention(
    arrays: Arrays, name: str, num_heads: int, x: np.ndarray, memory: np.ndarray, is_causal: bool
) -> np.ndarray:
    def heads(projection: str, states: np.ndarray) -> np.ndarray:
        projected = _linear(arrays, f"{name}.{projection}", states)
        return projected.reshape(len(states), num_heads, -1).swapaxes(0, 1)

    query, key, value = heads("q_proj", x), heads("k_proj", memory), heads("v_proj", memory)
    scores = query @ key.swapaxes(1, 2) / np.sqrt(query.shape[-1])
    if is_causal:
        scores = np.where(np.tri(len(x), dtype=bool), scores, -np.inf)
    scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
    scores /= scores.sum(axis=-1, keepdims=True)
    return _linear(arrays, f"{name}.out_proj", (scores @ value).swapaxes(0, 1).reshape(len(x), -1))
