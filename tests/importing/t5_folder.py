"""Tiny T5 models in Hugging Face's format, made by hand, and T5 in NumPy, after its description."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.importing.marian_folder import piece_model, safetensors

WIDTH, HEADS, KEY_WIDTH, HIDDEN, BUCKETS, DISTANCE = 16, 2, 6, 24, 8, 6
PIECES, SENTINELS, SIZE = 60, 5, 68  # three ids have no piece
DEPTHS = {"encoder": 2, "decoder": 1}
GATED = {"feed_forward_proj": "gated-gelu", "tie_word_embeddings": False}

Arrays = dict[str, np.ndarray]


def t5_pieces() -> bytes:
    """A SentencePiece model with T5's control ids."""
    return piece_model(0, PIECES, pad_id=0, eos_id=1, unk_id=2, bos_id=-1, pad_piece="<pad>")


def configuration() -> dict[str, Any]:
    """The configuration of an old T5 model, in small."""
    return {
        "architectures": ["T5WithLMHeadModel"], "d_ff": HIDDEN, "d_kv": KEY_WIDTH, "d_model": WIDTH,
        "decoder_start_token_id": 0, "dropout_rate": 0.1, "eos_token_id": 1, "initializer_factor": 1.0,
        "is_encoder_decoder": True, "layer_norm_epsilon": 1e-3, "model_type": "t5", "n_positions": 64,
        "num_decoder_layers": DEPTHS["decoder"], "num_heads": HEADS, "num_layers": DEPTHS["encoder"],
        "output_past": True, "pad_token_id": 0, "relative_attention_max_distance": DISTANCE,
        "relative_attention_num_buckets": BUCKETS, "task_specific_params": {"summarization": {"prefix": "summarize: "}},
        "vocab_size": SIZE,
    }  # fmt: skip


def tensors(is_gated: bool = False, seed: int = 2) -> Arrays:
    """Random weights by T5's names."""
    generator = np.random.default_rng(seed)
    heads = HEADS * KEY_WIDTH
    shapes: dict[str, tuple[int, ...]] = {"shared.weight": (SIZE, WIDTH)}
    if is_gated:
        shapes["lm_head.weight"] = (SIZE, WIDTH)
    for stack, depth in DEPTHS.items():
        names = ["SelfAttention", "EncDecAttention"][: 1 if stack == "encoder" else 2]
        for number in range(depth):
            layers = f"{stack}.block.{number}.layer"
            for place, name in enumerate(names):
                shapes |= {f"{layers}.{place}.{name}.{each}.weight": (heads, WIDTH) for each in "qkv"}
                shapes[f"{layers}.{place}.{name}.o.weight"] = (WIDTH, heads)
            feed_forward = f"{layers}.{len(names)}.DenseReluDense"
            kernels = ["wi_0", "wi_1"] if is_gated else ["wi"]
            shapes |= {f"{feed_forward}.{name}.weight": (HIDDEN, WIDTH) for name in kernels}
            shapes[f"{feed_forward}.wo.weight"] = (WIDTH, HIDDEN)
            shapes |= {f"{layers}.{place}.layer_norm.weight": (WIDTH,) for place in range(len(names) + 1)}
        shapes[f"{stack}.final_layer_norm.weight"] = (WIDTH,)
        shapes[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"] = (BUCKETS, HEADS)
    arrays = {name: generator.normal(0, 0.3, shape).astype("float32") for name, shape in shapes.items()}
    for name in arrays:
        arrays[name] += np.float32(name.endswith("norm.weight"))
        arrays[name] *= np.float32(4 if "EncDecAttention" in name else 1)
    arrays["shared.weight"] *= 10
    arrays["shared.weight"][1] /= 4  # few translations end at once
    arrays["decoder.final_layer_norm.weight"] *= -1  # else each id would repeat itself
    return arrays


def write_t5(folder: Path, is_gated: bool = False, **changes: Any) -> Path:
    """Writes the folder; `changes` are options of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**configuration(), **(GATED if is_gated else {}), **changes}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps({"extra_ids": SENTINELS}), encoding="utf-8")
    (folder / "spiece.model").write_bytes(t5_pieces())
    (folder / "model.safetensors").write_bytes(safetensors(tensors(is_gated)))
    return folder


def logits(arrays: Arrays, source: list[int], target: list[int]) -> np.ndarray:
    """The logits (T, V) after each id of a target that begins with the pad id, for one source, in T5's ids."""
    embedding = arrays["shared.weight"]
    memory = _stack(arrays, "encoder", embedding[source], None)
    states = _stack(arrays, "decoder", embedding[target], memory)
    return states @ arrays["lm_head.weight"].T if "lm_head.weight" in arrays else states / WIDTH**0.5 @ embedding.T


def _stack(arrays: Arrays, stack: str, x: np.ndarray, memory: np.ndarray | None) -> np.ndarray:
    biases = arrays[f"{stack}.block.0.layer.0.SelfAttention.relative_attention_bias.weight"]
    distances = np.arange(len(x))[None] - np.arange(len(x))[:, None]
    bias = biases[np.vectorize(_bucket)(distances, memory is not None)].transpose(2, 0, 1)
    if memory is not None:
        bias = np.where(np.tri(len(x), dtype=bool), bias, -np.inf)
    for number in range(DEPTHS[stack]):
        layers = f"{stack}.block.{number}.layer"
        normed = _norm(arrays[f"{layers}.0.layer_norm.weight"], x)
        x = x + _attention(arrays, f"{layers}.0.SelfAttention", normed, normed, bias)
        if memory is not None:
            normed = _norm(arrays[f"{layers}.1.layer_norm.weight"], x)
            x = x + _attention(arrays, f"{layers}.1.EncDecAttention", normed, memory, np.zeros(1))
        last = 1 if memory is None else 2
        x = x + _feed_forward(
            arrays, f"{layers}.{last}.DenseReluDense", _norm(arrays[f"{layers}.{last}.layer_norm.weight"], x)
        )
    return _norm(arrays[f"{stack}.final_layer_norm.weight"], x)


def _bucket(distance: int, is_causal: bool) -> int:
    count = BUCKETS if is_causal else BUCKETS // 2
    first = 0 if is_causal or distance <= 0 else count
    distance = max(-distance, 0) if is_causal else abs(distance)
    if distance < count // 2:
        return first + distance
    share = np.log(distance / (count // 2)) / np.log(DISTANCE / (count // 2))
    return first + min(count // 2 + int(share * (count - count // 2)), count - 1)


def _norm(gain: np.ndarray, x: np.ndarray) -> np.ndarray:
    return gain * x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + 1e-3)


def _attention(arrays: Arrays, name: str, x: np.ndarray, memory: np.ndarray, bias: np.ndarray) -> np.ndarray:
    def heads(projection: str, states: np.ndarray) -> np.ndarray:
        return (states @ arrays[f"{name}.{projection}.weight"].T).reshape(len(states), HEADS, -1).swapaxes(0, 1)

    scores = np.exp(heads("q", x) @ heads("k", memory).swapaxes(1, 2) + bias)
    attended = scores / scores.sum(axis=-1, keepdims=True) @ heads("v", memory)
    return attended.swapaxes(0, 1).reshape(len(x), -1) @ arrays[f"{name}.o.weight"].T


def _feed_forward(arrays: Arrays, name: str, x: np.ndarray) -> np.ndarray:
    if f"{name}.wi.weight" in arrays:
        hidden = np.maximum(x @ arrays[f"{name}.wi.weight"].T, 0)
    else:
        gate = x @ arrays[f"{name}.wi_0.weight"].T
        gate = 0.5 * gate * (1 + np.tanh(np.sqrt(2 / np.pi) * (gate + 0.044715 * gate**3)))
        hidden = gate * (x @ arrays[f"{name}.wi_1.weight"].T)
    return hidden @ arrays[f"{name}.wo.weight"].T
