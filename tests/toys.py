"""Variants for tests, at least one for most slots. Each is a class and a row of the family's table."""

from typing import Any

from keras_transformer import ops
from keras_transformer.layers.attention import SelfAttention, keys_mask
from keras_transformer.layers.layer import PreNorm
from keras_transformer.layers.positions import Positions
from keras_transformer.layers.score import Score
from keras_transformer.layers.stack import Stack
from keras_transformer.spec import part_registry
from keras_transformer.spec.options import Option, Part


class SlopedPositions(Positions):
    """Adds sin(position · w) to the embedding, w learned."""

    def __init__(self, hidden_dim: int, **kwargs: Any):
        super().__init__(**kwargs)
        self.hidden_dim = hidden_dim

    def build(self, _: Any) -> None:
        self.slopes = self.add_weight(name="slopes", shape=(self.hidden_dim,), initializer="random_normal")

    def embed(self, x: Any, positions: Any) -> Any:
        angles = ops.cast(positions, "float32")[..., None] * ops.cast(self.slopes, "float32")
        return x + ops.cast(ops.sin(angles), x.dtype)


class DistancePositions(Positions):
    """Subtracts from the logits a multiple of the distance. Each head has its own factor."""

    def __init__(self, num_heads: int, rate: float = 1.0, **kwargs: Any):
        super().__init__(**kwargs)
        self.num_heads = num_heads
        self.rate = rate

    def bias(self, queries: Any, keys: Any, is_causal: bool) -> Any:
        distances = ops.abs(ops.cast(queries, "float32")[:, None] - ops.cast(keys, "float32")[None])  # (T, S)
        rates = self.rate * 2.0 ** -(1.0 + ops.arange(self.num_heads, dtype="float32"))
        return -rates[:, None, None] * distances


class InnerNorm(PreNorm):
    """Norm before a sub-layer, and inside."""

    has_inner_norm = True

    @staticmethod
    def gain(encoder_layers: int, decoder_layers: int, is_decoder: bool) -> float:
        return 2.0 if is_decoder else 1.5


class Bilinear(Score):
    """query · W · key."""

    def build(self, query_shape: tuple, key_shape: tuple) -> None:
        sizes = (query_shape[-1], key_shape[-1])
        self.kernel = self.add_weight(name="kernel", shape=sizes, initializer="glorot_uniform")

    def call(self, query: Any, key: Any) -> Any:
        kernel = ops.cast(self.kernel, self.compute_dtype)
        return ops.cast(ops.matmul(ops.matmul(query, kernel), ops.swapaxes(key, -1, -2)), "float32")


class RunningMean(SelfAttention):
    """The projected mean of the visible positions. Its cache is a sum (B, K, D) for any length."""

    def build(self, query_shape: tuple, memory_shape: tuple | None = None) -> None:
        width = query_shape[-1]
        self.kernel = self.add_weight(name="kernel", shape=(width, width), initializer="glorot_uniform")

    def call(self, query: Any, memory: Any, attention_mask: Any = None, shared: Any = None) -> Any:
        return self.with_scores(query, memory, attention_mask, shared=shared)[0]

    def with_scores(self, query: Any, memory: Any, attention_mask: Any = None, shared: Any = None) -> tuple[Any, Any]:
        mask = keys_mask(ops.ones_like(memory[..., 0], dtype="bool")) if attention_mask is None else attention_mask
        seen = ops.cast(mask, "float32") + 0 * ops.cast(query[..., :1], "float32")  # (B, T, S)
        scores = ops.cast(seen / ops.maximum(ops.sum(seen, axis=-1, keepdims=True), 1.0), self.compute_dtype)
        return self.project(ops.matmul(scores, memory)), scores[:, None]

    def init_cache(self, batch_size: Any, num_beams: int, max_length: Any) -> dict[str, Any]:
        return {"sum": ops.zeros((batch_size, num_beams, self.kernel.shape[0]), self.compute_dtype)}

    def key_positions(self, cache: Any, index: Any) -> Any:
        return ops.arange(1)

    def step(self, x: Any, cache: Any, index: Any, shared: Any = None) -> tuple[Any, Any]:
        total = cache["sum"] + x
        return self.project(total / (ops.cast(index, self.compute_dtype) + 1)), {"sum": total}

    def project(self, x: Any) -> Any:
        return ops.matmul(x, ops.cast(self.kernel, self.compute_dtype))

    def compute_output_shape(self, query_shape: tuple, *_: Any, **__: Any) -> tuple:
        return query_shape


class Repeated(Stack):
    """One block, repeated for every layer."""

    def num_different_blocks(self, num_layers: int) -> int:
        return 1

    def blocks_in_order(self) -> Any:
        return [self.blocks[0]] * self.num_layers


def row(name: str, options: dict[str, Option] | None = None) -> Part:
    return Part(f"tests.toys:{name}", "a toy", "a test", options or {})


ROWS = {
    ("positions", "sloped"): row("SlopedPositions"),
    ("positions", "distance"): row("DistancePositions", {"rate": Option(1.0, "of all heads", float, least=0.5)}),
    ("residual", "inner_norm"): row("InnerNorm"),
    ("score", "bilinear"): row("Bilinear"),
    ("attention", "running_mean"): row("RunningMean"),
    ("stack", "repeated"): row("Repeated"),
}


def enter() -> None:
    """Enters every toy into the table."""
    for (slot, name), part in ROWS.items():
        part_registry.SLOTS[slot][name] = part
