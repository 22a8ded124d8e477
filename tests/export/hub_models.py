"""Small models of ours with random weights, each of which an architecture of Hugging Face's holds."""

import json
from pathlib import Path
from typing import Any

import keras

from export.artefacts import TrainedRun
from keras_transformer.models.model_factory import make_model
from keras_transformer.spec.options import Config
from keras_transformer.tasks.classification.pipeline import Classifier
from keras_transformer.tasks.images.pipeline import Recognizer
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.tokenizer import Tokenizer
from tests.layer_check import randomize
from tests.tiny_text import lines

SIZES: Config = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "intermediate_dim": 24}
TRANSLATES: Config = {"kind": "translator", "vocabulary_size": 64, "max_source_length": 40}
GENERATES: Config = {"kind": "language-model", "vocabulary_size": 64, "context_length": 32}
ENCODES: Config = {"kind": "encoder", "vocabulary_size": 64, "context_length": 32}
LABELS = ["dog", "sea", "window"]
T5: Config = {
    **TRANSLATES, "positions": {"name": "buckets", "num_buckets": 8, "max_distance": 6}, "score": "dot", "norm": "rms",
    "residual": "pre_norm", "feed_forward": "gated",
}  # fmt: skip
LLAMA: Config = {
    **GENERATES, "positions": "rotary", "residual": "pre_norm", "norm": "rms", "feed_forward": "gated",
    "activation": "silu",
}  # fmt: skip
BERT: Config = {**ENCODES, "embedding_norm": True, "head_layer": True}
# By the architecture, and a word for a variant. The first are as our own presets have them, the others are far from it.
MODELS: dict[str, Config] = {
    "marian": TRANSLATES,
    "marian apart": {
        **TRANSLATES, "source_vocabulary_size": 60, "tied_output": False, "attention_bias": True, "output_bias": True,
        "activation": "silu", "embedding_scale": 1.0, "encoder_layers": 1, "decoder_layers": 3,
    },
    "bart": {
        **TRANSLATES, "embedding_norm": True, "positions": {"name": "learned", "offset": 2, "separate": True},
        "attention_bias": True, "output_bias": True, "activation": "gelu",
    },
    "bart sinusoidal": {**TRANSLATES, "embedding_norm": True},
    "t5": {**T5, "activation": "gelu_tanh"},
    "t5 apart": {**T5, "activation": "silu", "tied_output": False, "embedding_scale": 1.0, "key_dim": 6},
    "gpt2": {**GENERATES, "positions": "learned", "residual": "pre_norm", "activation": "gelu_tanh"},
    "gpt2 sinusoidal": {**GENERATES, "residual": "pre_norm", "attention_bias": True, "embedding_scale": 1.0},
    "llama": LLAMA,
    "llama apart": {
        **LLAMA, "positions": {"name": "rotary", "base": 500.0}, "key_dim": 6, "tied_output": False,
        "attention": {"name": "full", "num_key_value_heads": 1}, "end_ids": [3, 49],
    },
    "llama stretched": {**LLAMA, "positions": {"name": "rotary", "interpolation": 4.0, "original_length": 8}},
    "llama linear": {**LLAMA, "positions": {"name": "rotary", "interpolation": 2.5}},
    "bert": {**BERT, "output_bias": True, "num_control_ids": 5, "positions": "learned"},
    "bert labels": {**BERT, "num_labels": 3, "attention_bias": True},
    "distilbert": {**BERT, "num_labels": 3, "attention_bias": True, "head_activation": "relu"},
    "vit": {"kind": "image-classifier", "num_labels": 3, "image_size": 8, "patch_size": 2},
    "vit grey": {
        "kind": "image-classifier", "num_labels": 3, "image_size": 8, "patch_size": 4, "channels": 1,
        "attention_bias": False, "pixel_mean": 0.2, "pixel_std": 0.3, "positions": "sinusoidal",
    },
}  # fmt: skip


def make_run(config: Config, seed: int = 3) -> TrainedRun:
    """A run of a model with these arguments, and with every weight moved from its start."""
    keras.utils.set_random_seed(seed)
    config = {**SIZES, **config}
    model: Any = make_model(config)
    randomize(model)
    has_mask = config["kind"] == "encoder" and "num_labels" not in config
    keeps_text = config["kind"] == "language-model"
    pipeline: Any
    if config["kind"] == "image-classifier":
        pipeline = Recognizer(model, LABELS)
    else:
        target = Tokenizer.train(lines(0), 64, keeps_text=keeps_text, has_mask=has_mask)
        source = Tokenizer.train(lines(1), size) if (size := config.get("source_vocabulary_size")) else target
        makers = {
            "translator": lambda: Translator(model, source, target),
            "language-model": lambda: Generator(model, target),
            "encoder": lambda: Classifier(model, target, LABELS if model.num_labels else []),
        }
        pipeline = makers[config["kind"]]()
    return TrainedRun(pipeline, "en-de")


def json_of(path: Path) -> Any:
    """What a file of JSON says."""
    return json.loads(path.read_text(encoding="utf-8"))
