"""Small models of every kind, and batches for them."""

from typing import Any

import keras
import numpy as np
from keras import ops

from keras_transformer.models import Transformer
from tests.layer_check import randomize

SOURCE_WIDTH, TARGET_WIDTH = 7, 5
SIZES: dict[str, Any] = {"vocabulary_size": 23, "num_layers": 2, "num_heads": 3, "hidden_dim": 12}
SIZES |= {"intermediate_dim": 17, "dropout": 0.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"residual": "pre_norm"},
    "key_dim": {"key_dim": 5, "num_layers": 1},
    "separate vocabularies": {"source_vocabulary_size": 29},
    "learned positions": {"positions": {"name": "learned", "offset": 2}, "max_source_length": 11,
                          "residual": "pre_norm"},
    "general, grouped heads": {"score": "general", "attention": {"name": "full", "num_key_value_heads": 2},
                               "num_heads": 6, "attention_bias": True, "num_layers": 1},
    "additive, one key head": {"score": "additive", "decoder_attention": {"name": "full", "num_key_value_heads": 1},
                               "residual": "pre_norm", "num_layers": 1},
    "location": {"score": {"name": "location", "max_length": 4}, "num_layers": 1},
    # The other arguments, several in a variant to keep the suite quick.
    "unlike sides": {"encoder_layers": 1, "decoder_layers": 3, "attention_bias": True, "output_bias": True,
                     "norm": {"name": "layer", "epsilon": 1e-3}, "embedding_norm": True,
                     "positions": {"name": "sinusoidal", "offset": 2}},
    # As in Magneto and Llama: a norm inside the sub-layers, and gates.
    "sub-norm and gates": {"encoder_layers": 1, "residual": "sub_norm", "norm": {"name": "rms", "epsilon": 1e-5},
                           "feed_forward": {"name": "gated", "use_bias": True}, "activation": "silu"},
    "no residual": {"residual": "none", "activation": "gelu_tanh", "num_layers": 1, "feed_forward": "gated"},
    "untied": {"encoder_layers": 3, "tied_output": False, "output_bias": True, "embedding_scale": 0.5,
               "source_vocabulary_size": 29, "num_control_ids": 6, "residual": "pre_norm", "embedding_norm": True,
               "num_layers": 1},
    "universal": {"stack": "universal", "num_layers": 3},
    "rotary positions": {"positions": {"name": "rotary", "base": 100.0}, "residual": "pre_norm",
                         "attention_bias": True, "key_dim": 6, "num_layers": 1},
    "buckets": {"positions": {"name": "buckets", "num_buckets": 8, "max_distance": 6}, "encoder_layers": 1,
                "embedding_norm": True},
    "experts": {"feed_forward": {"name": "experts", "num_experts": 3}, "residual": "pre_norm"},
    "windowed": {"attention": {"name": "windowed", "width": 4}, "decoder_attention": {"name": "windowed", "width": 2},
                 "attention_bias": True, "positions": "rotary"},
    "windows and slopes": {"attention": {"name": "windowed", "width": 3}, "positions": "alibi", "num_layers": 1},
    "windows and buckets": {"attention": {"name": "windowed", "width": 4},
                            "positions": {"name": "buckets", "num_buckets": 8, "max_distance": 6}, "num_layers": 1},
}  # fmt: skip
# The other kinds of positions, for tests of exports.
POSITIONS: dict[str, dict[str, Any]] = {
    name: {"positions": config, "num_layers": 1, "max_source_length": 11}
    for name, config in {
        "none": "none",
        "alibi": "alibi",
        "xpos": {"name": "xpos", "scale_base": 15},
        "interpolated": {"name": "sinusoidal", "interpolation": 1.5},
        "two tables": {"name": "learned", "offset": 2, "separate": True},
    }.items()
}


def make_model(variant: str = "post-norm", **settings: Any) -> Transformer:
    """A model whose biases are not 0 and whose gains are not 1. Every call makes the same model."""
    keras.utils.set_random_seed(1)
    model = Transformer(**{**SIZES, **{**VARIANTS, **POSITIONS}[variant], **settings})
    randomize(model)
    return model


def make_inputs(seed: int = 0, target_width: int = TARGET_WIDTH) -> dict[str, np.ndarray]:
    """Three sentence pairs: a full one, one padded on both sides, and a blank source."""
    generator = np.random.default_rng(seed)
    source_ids = generator.integers(4, 23, (3, SOURCE_WIDTH)).astype("int32")
    target_ids = generator.integers(4, 23, (3, target_width)).astype("int32")
    target_ids[:, 0] = 2
    for row, (source_length, target_length) in enumerate([(SOURCE_WIDTH, target_width), (4, 3), (1, 2)]):
        source_ids[row, source_length - 1] = 3
        source_ids[row, source_length:] = 0
        target_ids[row, target_length:] = 0
    return {"source_ids": source_ids, "target_ids": target_ids}


def make_batch(seed: int = 0) -> tuple[dict[str, np.ndarray], np.ndarray, np.ndarray]:
    """Inputs, labels and weights as the batch plan makes them."""
    inputs = make_inputs(seed)
    target_ids = inputs["target_ids"]
    real = target_ids != 0
    following = np.pad(target_ids[:, 1:], ((0, 0), (0, 1)))
    labels = np.where(real, np.where(following == 0, 3, following), 0).astype("int32")
    return inputs, labels, (real / real.sum()).astype("float32")


def cached_logits(model: Any, inputs: dict[str, np.ndarray], num_beams: int) -> np.ndarray:
    """Logits (B, K, T, V) of `beams_of` the targets, one step at a time."""
    source_ids = ops.convert_to_tensor(inputs["source_ids"])
    targets = ops.convert_to_tensor(beams_of(inputs["target_ids"], num_beams))
    cache = model.init_cache(model.encode(source_ids), source_ids, num_beams, targets.shape[-1] + 2)
    logits = []
    for index in range(targets.shape[-1]):
        at = ops.convert_to_tensor(index, "int32")
        step_logits, cache = model.step(targets[:, :, index], cache, at)
        logits.append(ops.convert_to_numpy(step_logits))
    return np.stack(logits, axis=2)


def beams_of(target_ids: np.ndarray, num_beams: int) -> np.ndarray:
    """(B, T) → (B, K, T), with different words in every beam."""
    shifted = target_ids[:, None] + np.arange(num_beams)[None, :, None]
    return np.where(target_ids[:, None] >= 4, (shifted - 4) % 19 + 4, target_ids[:, None]).astype("int32")
