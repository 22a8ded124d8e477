"""The base of the models, and how their layers are made from a configuration."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, TypeVar

import keras

from keras_transformer.core.errors import command_line
from keras_transformer.layers.layer import Dropout, make_part
from keras_transformer.layers.patches import ClassToken
from keras_transformer.layers.positions import TokenEmbedding
from keras_transformer.models.training_step import ReplicatedFit
from keras_transformer.ops import Tensor
from keras_transformer.spec import model_spec, part_registry
from keras_transformer.spec.options import Config, home_of
from keras_transformer.spec.search_options import longest

BLOCK_ARGUMENTS = (
    "num_heads",
    "intermediate_dim",
    "dropout",
    "attention_dropout",
    "attention",
    "score",
    "residual",
    "norm",
    "feed_forward",
    "activation",
    "attention_bias",
)


def make_layers(config: Config, dtype: object) -> Config:
    """The layers of a model by their names in the model. They are not built.

    Args:
        config: complete, see `model_spec.complete`.
        dtype: the layers' type or policy.
    """
    # Keras draws seeds and writes weights in this order.
    layers = _embeddings(config, dtype)
    layers |= _positions_and_dropout(config, dtype, longest(config["max_source_length"]))
    layers |= _stacks(config, dtype)
    for name in ("source_norm", "target_norm"):
        layers[name] = _embedding_norm(config, dtype)
    return layers | _own_output(config, dtype)


def make_layers_of_one_stack(config: Config, dtype: object, is_decoder: bool) -> Config:
    """The layers of a model of one stack that takes ids, by their names in the model. They are not built.

    Args:
        config: complete, see `model_spec.complete`.
        dtype: the layers' type or policy.
        is_decoder: whether no position sees a later one.
    """
    embedding = _tied_embedding(config, dtype)
    layers = {"embedding": embedding, "output_embedding": embedding}
    layers |= _one_stack(config, dtype, config["context_length"], is_decoder)
    return layers | _own_output(config, dtype)


def make_layers_of_images(config: Config, dtype: object) -> Config:
    """The layers of a model of one stack that takes images, by their names in the model. They are not built.

    Args:
        config: complete, see `model_spec.complete`.
        dtype: the layers' type or policy.
    """
    sizes = {name: config[name] for name in ("patch_size", "channels", "hidden_dim")}
    layers = {"stem": make_part("stem", config["stem"], dtype, sizes), "class_token": ClassToken(dtype=dtype)}
    num_patches = (config["image_size"] // config["patch_size"]) ** 2
    return layers | _one_stack(config, dtype, num_patches + 1, is_decoder=False)


def _embeddings(config: Config, dtype: object) -> Config:
    """The embeddings of target, source and output, which share one matrix unless the configuration separates them."""
    target = _tied_embedding(config, dtype)
    embeddings = {"target_embedding": target, "source_embedding": target, "output_embedding": target}
    if config["source_vocabulary_size"] is not None:
        embeddings["source_embedding"] = _embedding(config["source_vocabulary_size"], config, dtype)
    return embeddings


def _tied_embedding(config: Config, dtype: object) -> TokenEmbedding:
    """The embedding whose matrix is that of the output too, unless the output has its own."""
    return _embedding(config["vocabulary_size"], config, dtype, config["output_bias"] and config["tied_output"])


def _own_output(config: Config, dtype: object) -> Config:
    """The output's own matrix, if it has one."""
    if config["tied_output"]:
        return {}
    return {"output_embedding": _embedding(config["vocabulary_size"], config, dtype, config["output_bias"])}


def _embedding_norm(config: Config, dtype: object) -> Any:
    return make_part("norm", config["norm"], dtype, {}) if config["embedding_norm"] else None


def _embedding(size: int, config: Config, dtype: object, output_bias: bool = False) -> TokenEmbedding:
    is_fixed = config["fixed_output_bias"]
    return TokenEmbedding(size, config["hidden_dim"], config["embedding_scale"], output_bias, is_fixed, dtype=dtype)


def _positions_and_dropout(config: Config, dtype: object, max_length: int) -> Config:
    sizes = {
        "hidden_dim": config["hidden_dim"],
        "num_heads": config["num_heads"],
        "key_dim": part_registry.key_dim(config),
        "max_length": max_length,
    }
    return {
        "positions": make_part("positions", config["positions"], dtype, sizes),
        "embedding_dropout": Dropout(config["dropout"], dtype=dtype),
    }


def _stacks(config: Config, dtype: object) -> Config:
    encoder_layers, decoder_layers = model_spec.depths(config)
    encoder_block = _block(config)
    decoder_block = {**encoder_block, "attention": config["decoder_attention"] or config["attention"]}
    encoder = {"num_layers": encoder_layers, "block": encoder_block, "other_layers": decoder_layers}
    decoder = {"num_layers": decoder_layers, "block": decoder_block, "other_layers": encoder_layers, "is_decoder": True}
    return {
        "encoder_stack": make_part("stack", config["stack"], dtype, encoder),
        "decoder_stack": make_part("stack", config["stack"], dtype, decoder),
    }


def _one_stack(config: Config, dtype: object, max_length: int, is_decoder: bool) -> Config:
    """Positions, dropout, the only stack of a model, and the norm before it."""
    layers = _positions_and_dropout(config, dtype, max_length)
    stack = {"num_layers": config["num_layers"], "block": _block(config), "is_decoder": is_decoder, "has_memory": False}
    layers["stack"] = make_part("stack", config["stack"], dtype, stack)
    return {**layers, "norm": _embedding_norm(config, dtype)}


def _block(config: Config) -> Config:
    """The arguments of a block."""
    return {name: config[name] for name in BLOCK_ARGUMENTS} | {"key_dim": part_registry.key_dim(config)}


Method = TypeVar("Method", bound=Callable[..., Any])
METHODS = ("encode", "states", "embed", "scores")  # those that `as_layer` marks


def as_layer(method: Method) -> Method:
    """A method of a model, (inputs, training) → a tensor. On a `keras.Input` it is one layer of a functional model."""

    @wraps(method)
    def call(model: Any, *inputs: object, **named: object) -> Any:
        if any(isinstance(each, keras.KerasTensor) for each in inputs):
            return MethodLayer(model, method.__name__)(*inputs, **named)
        return method(model, *inputs, **named)

    return call  # type: ignore[return-value]


@keras.saving.register_keras_serializable(package="keras_transformer")
class MethodLayer(keras.layers.Layer):
    """What a method of a model computes, as a layer: Keras saves it with the model.

    Args:
        model: the model.
        method: the name of the method, such as "encode".

    Call arguments:
        inputs: what the method takes first.

    Returns:
        What the method returns.

    Raises:
        ValueError: this method cannot be a layer.
    """

    def __init__(self, model: Any, method: str, **kwargs: object):
        super().__init__(autocast=False, **kwargs)
        if method not in METHODS:
            raise ValueError(f"`method` must be one of {', '.join(METHODS)}. Received: method={method!r:.60}")
        self.model = model
        self.method = method
        self.built = True

    def call(self, inputs: Tensor, training: bool = False) -> Tensor:
        return getattr(self.model, self.method)(inputs, training=training)

    def get_config(self) -> Config:
        return {**super().get_config(), "model": self.model, "method": self.method}  # two such layers share a model

    @classmethod
    def from_config(cls, config: Config) -> MethodLayer:
        model = keras.saving.serialize_keras_object(config["model"])  # a file has it in this form already
        return cls(**{**config, "model": keras.saving.deserialize_keras_object(model)})


class FamilyModel(ReplicatedFit):
    """The base of the models.

    A model is made of layers of Keras, and so is what it is part of: `fit` trains it, `save` and `load_model` keep it.
    Its methods `encode`, `states`, `embed` and `scores` may be called on a `keras.Input`.

    Args:
        arguments: the model's arguments, see `model_spec.KINDS`.

    Raises:
        ValueError: an argument's value is not allowed, two arguments contradict each other, `dtype` is a policy of
            quantization, or `keras.config.floatx()` is a half precision.
    """

    kind: str  # a key of `model_spec.KINDS`
    takes: tuple[str, ...] = ("ids",)  # the names of the inputs
    license = ""  # the licence of the weights; "" if none is known

    def __init_subclass__(cls, **kwargs: object):
        super().__init_subclass__(**kwargs)
        kind = model_spec.kind_at(home_of(cls))
        if kind is not None:  # a user's own subclass has the kind of its base
            cls.kind = kind

    def __init__(self, arguments: Config, **kwargs: object):
        if keras.config.floatx() in ("float16", "bfloat16"):
            raise ValueError(
                "`keras.config.floatx()` must be 'float32' or 'float64', for positions would be counted in 16 bits: "
                f"give the model `dtype='mixed_float16'` or 'mixed_bfloat16'. Received: {keras.config.floatx()!r}"
            )
        self._config = model_spec.complete(arguments, self.kind)  # raises errors before Keras makes anything
        super().__init__(**kwargs)
        self.autocast = False  # half precision has no id 257
        if self.dtype_policy.quantization_mode is not None:
            raise ValueError(
                "`dtype` must be a type or a policy of mixed precision: Keras cannot quantize the model's layers. "
                f"Received: dtype={self.dtype_policy.name!r}"
            )

    def build(self, *_: object) -> None:
        """Does nothing: the constructor has built the layers."""

    def summary(self, *args: object, expand_nested: bool = True, **kwargs: object) -> None:
        """As in Keras, but it shows the blocks of the stacks unless `expand_nested=False`."""
        super().summary(*args, expand_nested=expand_nested, **kwargs)

    def export(
        self,
        filepath: object,
        format: str = "tf_saved_model",
        verbose: bool | None = None,
        input_signature: object = None,
        **kwargs: object,
    ) -> None:
        """As in Keras: writes what `call` computes. The artefact takes batches and lengths of any size.

        Raises:
            ValueError: Keras cannot write the model in this format; or the backend is PyTorch, whose exports have fixed
                sizes, and no `input_signature` says which.
        """
        if format == "onnx":
            raise ValueError(
                "`format` must not be 'onnx': Keras's converter breaks the model's graphs. Export a run instead, with "
                f"`{command_line('export')} RUN --format onnx`. Received: format={format!r}"
            )
        if input_signature is None and keras.config.backend() == "torch":
            raise ValueError(
                "`input_signature` must give the sizes of the inputs: PyTorch exports a model for fixed sizes. "
                f"Received: input_signature={input_signature!r}"
            )
        if input_signature is None:
            inputs = self.symbolic_batch()[0].items()
            specs = {name: keras.InputSpec(symbol.dtype, symbol.shape, name=name) for name, symbol in inputs}
            input_signature = [specs]
        super().export(filepath, format, verbose, input_signature, **kwargs)

    def quantize(self, mode: object = None, config: object = None, **kwargs: object) -> None:
        """Raises ValueError: Keras quantizes the weights of its own layers alone."""
        raise ValueError(
            "`quantize` is for Keras's own layers, and would leave the model's weights as they are. Export int8 "
            f"instead, with `{command_line('export')} RUN --format onnx --precision int8`. Received: mode={mode!r}"
        )

    def enable_lora(self, rank: int, *_: object, **__: object) -> None:
        """Raises ValueError: the layers have no low-rank adapters."""
        raise ValueError(
            "`enable_lora` is not available: the model's layers have no low-rank adapters. Fine-tune all weights "
            f"instead, with `--init-from RUN`. Received: rank={rank!r}"
        )

    def symbolic_batch(self) -> tuple[dict[str, keras.KerasTensor], keras.KerasTensor, keras.KerasTensor]:
        """Symbolic inputs, labels and weights of unknown sizes. From them Keras builds optimizer and metrics."""
        ids, weights = (keras.KerasTensor((None, None), dtype) for dtype in ("int32", "float32"))
        return dict.fromkeys(self.takes, ids), ids, weights

    def taken(self, inputs: Any) -> list[Tensor]:
        """The tensors of a batch, in the order of `symbolic_batch`.

        Raises:
            ValueError: the batch is no dictionary of the tensors that the model takes; or one is not of numbers, or has
                another number of axes.
        """
        symbols, keys = self.symbolic_batch()[0], inputs.keys() if isinstance(inputs, dict) else ()
        if keys == symbols.keys() and all(_is_like(inputs[name], symbols[name]) for name in symbols):
            return [inputs[name] for name in symbols]
        expected, received = (keras.tree.map_structure(_told, each) for each in (symbols, inputs))
        raise ValueError(f"`inputs` must be {expected}, numbers of any kind. Received: {received!s:.200}")

    def arguments(self) -> Config:
        """A complete copy of the arguments that make this model again, without Keras's arguments."""
        return {name: _copy(value) for name, value in self._config.items()}

    def get_config(self) -> Config:
        return {**super().get_config(), **self.arguments()}


def _is_like(value: Any, symbol: keras.KerasTensor) -> bool:
    """Whether a value is a tensor of numbers with as many axes as a symbol."""
    return len(getattr(value, "shape", ())) == len(symbol.shape) and "str" not in _told(value)


def _told(value: Any) -> str:
    """The type and the shape of a tensor; the type of what is none."""
    is_tensor = hasattr(value, "shape")
    return f"{getattr(value.dtype, 'name', value.dtype)} {tuple(value.shape)}" if is_tensor else type(value).__name__


def _copy(value: object) -> Any:
    """A copy of an argument. Keras keeps lists and dictionaries as types of its own."""
    return dict(value) if isinstance(value, dict) else list(value) if isinstance(value, list) else value
