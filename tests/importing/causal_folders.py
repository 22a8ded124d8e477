"""Tiny GPT-2 and Llama models in Hugging Face's format, made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from tests.importing.marian_folder import safetensors
from tests.importing.numpy_marian import Arrays

SIZE, WIDTH, INNER, CONTEXT, LAYERS = 30, 8, 12, 10, 2
GPT2: dict[str, Any] = {
    "model_type": "gpt2", "vocab_size": SIZE, "n_positions": CONTEXT, "n_ctx": CONTEXT, "n_embd": WIDTH,
    "n_layer": LAYERS, "n_head": 2, "n_inner": INNER, "activation_function": "gelu_new", "bos_token_id": 29,
    "eos_token_id": 29, "embd_pdrop": 0.1, "initializer_range": 0.02, "summary_type": "cls_index",
    "task_specific_params": {"text-generation": {"do_sample": True, "max_length": 50}},
}  # fmt: skip
LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": SIZE, "hidden_size": WIDTH, "intermediate_size": INNER,
    "num_hidden_layers": LAYERS, "num_attention_heads": 2, "num_key_value_heads": 1, "hidden_act": "silu",
    "max_position_embeddings": CONTEXT, "rms_norm_eps": 1e-5, "rope_theta": 500.0, "bos_token_id": 1, "eos_token_id": 2,
    "tie_word_embeddings": False, "pretraining_tp": 1, "rope_scaling": None,
}  # fmt: skip


def shapes(kind: str) -> dict[str, tuple[int, ...]]:
    """The shapes of the tensors by their names; old files of GPT-2 have masks too."""
    found: dict[str, tuple[int, ...]] = {}
    for layer in range(LAYERS):
        if kind == "gpt2":
            block = {
                "attn.c_attn.weight": (WIDTH, 3 * WIDTH), "attn.c_attn.bias": (3 * WIDTH,), "ln_1.weight": (WIDTH,),
                "attn.c_proj.weight": (WIDTH, WIDTH), "attn.c_proj.bias": (WIDTH,), "mlp.c_fc.weight": (WIDTH, INNER),
                "mlp.c_fc.bias": (INNER,), "mlp.c_proj.weight": (INNER, WIDTH), "mlp.c_proj.bias": (WIDTH,),
                "ln_1.bias": (WIDTH,), "ln_2.weight": (WIDTH,), "ln_2.bias": (WIDTH,),
                "attn.bias": (1, 1, CONTEXT, CONTEXT),
            }  # fmt: skip
            found |= {f"h.{layer}.{name}": shape for name, shape in block.items()}
        else:
            block = {
                "self_attn.q_proj.weight": (WIDTH, WIDTH), "self_attn.k_proj.weight": (WIDTH // 2, WIDTH),
                "self_attn.v_proj.weight": (WIDTH // 2, WIDTH), "self_attn.o_proj.weight": (WIDTH, WIDTH),
                "mlp.gate_proj.weight": (INNER, WIDTH), "mlp.up_proj.weight": (INNER, WIDTH),
                "mlp.down_proj.weight": (WIDTH, INNER), "input_layernorm.weight": (WIDTH,),
                "post_attention_layernorm.weight": (WIDTH,),
            }  # fmt: skip
            found |= {f"model.layers.{layer}.{name}": shape for name, shape in block.items()}
    if kind == "gpt2":
        whole = {"wte.weight": (SIZE, WIDTH), "wpe.weight": (CONTEXT, WIDTH)}
        return {**whole, **found, "ln_f.weight": (WIDTH,), "ln_f.bias": (WIDTH,)}
    whole = {"model.embed_tokens.weight": (SIZE, WIDTH), "lm_head.weight": (SIZE, WIDTH)}
    return {**whole, **found, "model.norm.weight": (WIDTH,)}


def tensors(kind: str, seed: int = 3) -> Arrays:
    """Random weights by their names."""
    draws = np.random.default_rng(seed)
    return {name: draws.normal(0, 0.5, shape).astype("float32") for name, shape in shapes(kind).items()}


def write_causal(folder: Path, kind: str, arrays: Arrays | None = None, **changes: Any) -> Path:
    """Writes the folder of a "gpt2" or "llama" model; `changes` are options of config.json."""
    folder.mkdir(parents=True, exist_ok=True)
    config = {**(GPT2 if kind == "gpt2" else LLAMA), **changes}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    (folder / "model.safetensors").write_bytes(safetensors(tensors(kind) if arrays is None else arrays))
    return folder
