"""Makes Hugging Face's Marian model with our weights."""

from __future__ import annotations

from typing import Any

import torch
from transformers import MarianConfig, MarianMTModel

from benchmarks.sentences import END, PAD, START
from benchmarks.weights import LAYER_NORM_EPSILON, STACKS, Weights

Tensors = dict[str, torch.Tensor]

ATTENTIONS = {"self": "self_attn", "cross": "encoder_attn"}  # our names, and Marian's
PROJECTIONS = {"query": "q_proj", "key": "k_proj", "value": "v_proj", "output": "out_proj"}


def marian(weights: Weights) -> Any:
    """Makes a `MarianMTModel` with the weights of `weights.arrays_of`."""
    tensors = {name: torch.from_numpy(array) for name, array in weights.items() if array.ndim}
    config = config_of(weights)
    model = MarianMTModel(config).eval()
    state = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    for name in state:
        if "embed_positions" in name:
            state[name] = tensors["positions"]
        elif "embed_tokens" in name or "shared" in name or "lm_head" in name:
            state[name] = tensors["embeddings"]
    for stack in STACKS:
        for number in range(config.encoder_layers):
            block = block_state(tensors, f"{stack}/{number}", STACKS[stack])
            state |= {f"model.{stack}.layers.{number}.{name}": tensor for name, tensor in block.items()}
    model.load_state_dict(state)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = LAYER_NORM_EPSILON
    return model


def config_of(weights: Weights) -> MarianConfig:
    """Returns Marian's configuration for a model with these weights."""
    vocabulary_size, hidden_dim = weights["embeddings"].shape
    sizes = {
        "layers": sum(name.startswith("encoder/") and name.endswith("/bias_in") for name in weights),
        "attention_heads": int(weights["num_heads"]),
        "ffn_dim": len(weights["encoder/0/bias_in"]),
    }
    sizes_of_stacks: dict[str, Any] = {f"{stack}_{name}": size for stack in STACKS for name, size in sizes.items()}
    return MarianConfig(
        vocab_size=vocabulary_size, decoder_vocab_size=vocabulary_size, d_model=hidden_dim, activation_function="relu",
        scale_embedding=True, max_position_embeddings=len(weights["positions"]), pad_token_id=PAD, bos_token_id=START,
        eos_token_id=END, decoder_start_token_id=START, forced_eos_token_id=None, **sizes_of_stacks,
    )  # fmt: skip


def block_state(tensors: Tensors, block: str, attentions: list[str]) -> Tensors:
    """Returns the state of one of Marian's layers, by names within the layer."""
    state = {}
    for name in attentions:
        for part, projection in PROJECTIONS.items():
            state[f"{ATTENTIONS[name]}.{projection}.weight"] = tensors[f"{block}/{name}/{part}"].T
        state |= norm_state(tensors, f"{block}/{name}_attention", f"{ATTENTIONS[name]}_layer_norm")
    for part, linear in (("in", "fc1"), ("out", "fc2")):
        state[f"{linear}.weight"] = tensors[f"{block}/kernel_{part}"].T
        state[f"{linear}.bias"] = tensors[f"{block}/bias_{part}"]
    return state | norm_state(tensors, f"{block}/feed_forward", "final_layer_norm")


def norm_state(tensors: Tensors, ours: str, theirs: str) -> Tensors:
    """Returns the state of a layer normalisation."""
    return {f"{theirs}.weight": tensors[f"{ours}/gamma"], f"{theirs}.bias": tensors[f"{ours}/beta"]}
