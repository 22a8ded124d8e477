"""Makes PyTorch's `nn.Transformer` with our weights, and its loss of a batch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch.nn.functional import cross_entropy, dropout, embedding

from benchmarks.weights import LAYER_NORM_EPSILON

Tensors = dict[str, torch.Tensor]

# Our names within a block, and PyTorch's: of attentions and norms, for each stack.
ATTENTIONS = {"encoder": {"self": "self_attn"}, "decoder": {"self": "self_attn", "cross": "multihead_attn"}}
NORMS = {
    "encoder": {"self_attention": "norm1", "feed_forward": "norm2"},
    "decoder": {"self_attention": "norm1", "cross_attention": "norm2", "feed_forward": "norm3"},
}


def torch_transformer(sizes: dict[str, int], weights: Tensors, dropout_rate: float) -> torch.nn.Transformer:
    """Makes an `nn.Transformer` with these weights, and with dropout on the outputs of the sub-layers only."""
    model = torch.nn.Transformer(
        sizes["hidden_dim"], sizes["num_heads"], sizes["num_layers"], sizes["num_layers"], sizes["intermediate_dim"],
        dropout_rate, layer_norm_eps=LAYER_NORM_EPSILON, batch_first=True,
    )  # fmt: skip
    model.encoder.norm = model.decoder.norm = None  # PyTorch adds a last norm even to a stack of post-norm blocks
    state = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    for stack in ("encoder", "decoder"):
        for number, block in enumerate(getattr(model, stack).layers):
            tensors = block_state(weights, f"{stack}/{number}", stack)
            state |= {f"{stack}.layers.{number}.{name}": tensor for name, tensor in tensors.items()}
            for attention in ATTENTIONS[stack].values():
                getattr(block, attention).dropout = 0.0
            block.dropout = torch.nn.Identity()  # the dropout within the feed-forward layer
    model.load_state_dict(state)
    return model


def block_state(weights: Tensors, block: str, stack: str) -> Tensors:
    """Returns the state of one of PyTorch's layers, by names within the layer."""
    state = {}
    for name, attention in ATTENTIONS[stack].items():
        kernels = [weights[f"{block}/{name}/{part}"].T for part in ("query", "key", "value")]
        state[f"{attention}.in_proj_weight"] = torch.cat(kernels)
        state[f"{attention}.out_proj.weight"] = weights[f"{block}/{name}/output"].T
    for name, norm in NORMS[stack].items():
        state[f"{norm}.weight"] = weights[f"{block}/{name}/gamma"]
        state[f"{norm}.bias"] = weights[f"{block}/{name}/beta"]
    for part, linear in (("in", "linear1"), ("out", "linear2")):
        state[f"{linear}.weight"] = weights[f"{block}/kernel_{part}"].T
        state[f"{linear}.bias"] = weights[f"{block}/bias_{part}"]
    return state


def torch_loss(
    transformer: torch.nn.Transformer,
    table: torch.nn.Parameter,
    positions: torch.Tensor,
    dropout_rate: float,
    label_smoothing: float,
    is_mixed: bool,
) -> Callable[..., Any]:
    """Returns a function (source ids, target ids, labels: each (B, T)) → loss.

    Args:
        transformer: of `torch_transformer`.
        table: embeddings (V, D), also the output projection.
        positions: (T, D).
        dropout_rate: of the embeddings.
        label_smoothing: of the cross-entropy.
        is_mixed: whether to compute in bfloat16, with the loss in float32.
    """
    mask = torch.nn.Transformer.generate_square_subsequent_mask(len(positions), device=positions.device)
    scale = math.sqrt(table.shape[1])

    def embed(ids: torch.Tensor) -> torch.Tensor:
        return dropout(embedding(ids, table) * scale + positions, dropout_rate, transformer.training)

    def loss_of(source_ids: torch.Tensor, target_ids: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        with torch.autocast(positions.device.type, torch.bfloat16, enabled=is_mixed):
            states = transformer(embed(source_ids), embed(target_ids), tgt_mask=mask, tgt_is_causal=True)
            logits = (states @ table.T).float().flatten(0, 1)
        return cross_entropy(logits, labels.flatten(), label_smoothing=label_smoothing)

    return loss_of
