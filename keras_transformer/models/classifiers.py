"""Labels texts and images: the encoder of text, and the classifier of images."""

from __future__ import annotations

from typing import Any, Unpack

import keras

from keras_transformer import ops
from keras_transformer.layers.attention import padding_mask
from keras_transformer.layers.layer import Dense, DType, Layer, LayerArguments, glorot, make_part
from keras_transformer.layers.patches import ClassToken
from keras_transformer.models.base import Layers, as_layer, make_layers_of_images
from keras_transformer.models.stack_models import StackModel, TokenModel
from keras_transformer.ops import Tensor
from keras_transformer.spec.options import Config, PartConfig

LARGEST_PIXEL = 255.0
SHORTEST = 1e-12  # a vector that is divided by its length


@keras.saving.register_keras_serializable(package="keras_transformer")
class HeadLayer(Layer):
    """Norm(f(x W + b)): before labels f is tanh, or what the model names, and there is no norm; before tokens both are
    the model's.

    As in BERT (Devlin et al. 2018, arXiv 1810.04805, and the code that came with it).

    Args:
        activation: f, a part; None for tanh.
        norm: the norm, a part; None for no norm.

    Call arguments:
        x: (..., D).

    Returns:
        (..., D).
    """

    def __init__(
        self, activation: PartConfig | None = None, norm: PartConfig | None = None, **kwargs: Unpack[LayerArguments]
    ):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.activation_config = activation
        self.norm_config = norm
        self.activation = None if activation is None else make_part("activation", activation, self.dtype_policy, {})
        self.norm = None if norm is None else make_part("norm", norm, self.dtype_policy, {})

    def build(self, x_shape: tuple) -> None:
        self.kernel = self.add_weight(name="kernel", shape=(x_shape[-1], x_shape[-1]), initializer=glorot())
        self.bias = self.add_weight(name="bias", shape=(x_shape[-1],), initializer="zeros")
        for part in (self.activation, self.norm):
            if part is not None and not part.built:
                part.build(x_shape)

    def call(self, x: Tensor) -> Tensor:
        x = ops.product(x, self.kernel, self.bias)
        x = ops.tanh(x) if self.activation is None else self.activation(x)
        return x if self.norm is None else self.norm(x)

    def compute_output_shape(self, x_shape: tuple) -> tuple:
        return x_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class Encoder(TokenModel):
    """Tells the label of a text, or the token at each of its places (Devlin et al. 2018, arXiv 1810.04805).

    Ids: pad 0, unknown 1, start 2, end 3. A text begins with the start id, and ends with the end id.

    Args:
        vocabulary_size: V.
        context_length: the most positions of `call`.
        num_labels: C, the number of labels. None gives each position logits of tokens.
        head_layer: whether a layer stands between the last state and the logits, as in BERT; see `HeadLayer`.
        head_activation: the activation of that layer before labels, by default tanh; ReLU in DistilBERT.
        first_state, unit_vectors: see `vectors`.
        arguments: the others of `Transformer` but those of two stacks; see `ONE_STACK` in
            `keras_transformer.spec.model_spec`.

    Call arguments:
        inputs: {"ids": (B, S)}, integers, padded with 0.

    Returns:
        Logits (B, C) of the labels, from the state of the first position; or logits (B, S, V) of tokens.

    Raises:
        ValueError: an argument is unknown, its value is not allowed, or two arguments contradict each other.
    """

    head_layer: HeadLayer | None

    def __init__(
        self,
        vocabulary_size: int,
        context_length: int = 256,
        num_labels: int | None = None,
        head_layer: bool = False,
        **arguments: Any,
    ):
        super().__init__(vocabulary_size, context_length, num_labels=num_labels, head_layer=head_layer, **arguments)
        self.num_labels = num_labels
        if self.head_layer is not None:
            self.head_layer.build((None, self._config["hidden_dim"]))
        self.head = None
        if num_labels is not None:
            self.head = Dense(num_labels, dtype=self.dtype_policy)
            self.head.build((None, self._config["hidden_dim"]))

    def call(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        return self.logits_of(self.states(self.taken(inputs)[0], training=training))

    def logits_of(self, states: Tensor) -> Tensor:
        """Returns the logits of `call` from states (B, S, D)."""
        states = states if self.head is None else states[:, 0]
        states = states if self.head_layer is None else self.head_layer(states)
        return self.output_embedding.logits(states) if self.head is None else self.head(states)

    @as_layer
    def embed(self, ids: Tensor, training: bool = False) -> Tensor:
        """Returns the vector (B, D) of each text (B, S), float32; see `vectors`."""
        return self.vectors(self.states(ids, training=training), ids)

    def vectors(self, states: Tensor, ids: Tensor) -> Tensor:
        """Makes vectors (B, D) float32 of states (B, S, D): their mean, or the first, perhaps divided by its length.

        As sentence-transformers has it (Reimers and Gurevych 2019, arXiv 1908.10084, section 3).
        """
        vectors = ops.cast(states[:, 0], "float32") if self._config["first_state"] else mean_state(states, ids)
        if not self._config["unit_vectors"]:
            return vectors
        lengths = ops.sqrt(ops.sum(vectors * vectors, axis=-1, keepdims=True))
        return vectors / ops.maximum(lengths, SHORTEST)

    def symbolic_batch(self) -> tuple[dict[str, keras.KerasTensor], keras.KerasTensor, keras.KerasTensor]:
        inputs, labels, weights = super().symbolic_batch()
        if self.num_labels is None:
            return inputs, labels, weights
        return inputs, keras.KerasTensor((None,), dtype="int32"), keras.KerasTensor((None,), dtype="float32")

    @classmethod
    def make_layers(cls, config: Config, dtype: DType) -> Layers:
        parts = {"activation": config["head_activation"]}
        if config["num_labels"] is None:
            parts = {"activation": config["activation"], "norm": config["norm"]}
        head_layer = HeadLayer(**parts, dtype=dtype) if config["head_layer"] else None
        return {**super().make_layers(config, dtype), "head_layer": head_layer}


def mean_state(states: Tensor, ids: Tensor) -> Tensor:
    """Returns the mean (B, D) float32 of the states (B, S, D) where ids (B, S) are not pad."""
    weights = ops.expand_dims(ops.cast(padding_mask(ids), "float32"), -1)
    total = ops.sum(ops.cast(states, "float32") * weights, axis=1)
    return total / ops.maximum(ops.sum(weights, axis=1), 1.0)


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageClassifier(StackModel):
    """Tells the label of an image: a Vision Transformer (Dosovitskiy et al. 2020, arXiv 2010.11929, section 3.1).

    Patches, a class token, positions, the stack and a head: equations 1 to 4.

    The defaults are the sizes of an image of ViT-B/16, and its parts: learned positions, pre-norm, gelu, and biases in
    attention.

    Args:
        num_labels: C, the number of labels. None gives the state of the class token, without a head.
        image_size: S, the height and the width of an image in pixels.
        patch_size: P, the height and the width of a patch. It divides S.
        channels: how many numbers a pixel has.
        arguments: the others, see `keras_transformer.spec.model_spec.IMAGES`.

    Call arguments:
        inputs: {"images": (B, S, S, channels)}, pixels from 0 to 255, integers or not. The model itself divides them
            by 255, subtracts `pixel_mean` and divides by `pixel_std`: numbers, or one for each channel.

    Returns:
        Logits (B, C) of the labels, from the state of the class token; or that state (B, D).

    Raises:
        ValueError: an argument is unknown, its value is not allowed, or two arguments contradict each other; or images
            have another size.

    Example:

    >>> model = ImageClassifier(10, 8, 2, 1, num_layers=2, num_heads=4, hidden_dim=32, intermediate_dim=64)
    >>> tuple(model({"images": np.zeros((3, 8, 8, 1), "uint8")}).shape)
    (3, 10)
    """

    takes = ("images",)
    stem: keras.layers.Layer
    class_token: ClassToken

    def __init__(
        self,
        num_labels: int | None = None,
        image_size: int = 224,
        patch_size: int = 16,
        channels: int = 3,
        **arguments: Any,
    ):
        sizes = {"image_size": image_size, "patch_size": patch_size, "channels": channels, "num_labels": num_labels}
        super().__init__({**sizes, **arguments})
        self.num_labels = num_labels
        self.head = None
        if num_labels is not None:
            self.head = Dense(num_labels, dtype=self.dtype_policy)
            self.head.build((None, self.hidden_dim))

    @classmethod
    def make_layers(cls, config: Config, dtype: DType) -> Layers:
        return make_layers_of_images(config, dtype)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Returns (S, S, channels)."""
        return self._config["image_size"], self._config["image_size"], self._config["channels"]

    def call(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        return self.logits_of(self.states(self.taken(inputs)[0], training=training))

    def logits_of(self, states: Tensor) -> Tensor:
        """States (B, S, D) → the logits (B, C) of the labels; without labels the state (B, D) of the class token."""
        return states[:, 0] if self.head is None else self.head(states[:, 0])

    def embed(self, images: Tensor) -> Tensor:
        """Images (B, S, S, channels) → one vector each, the state of the class token: (B, D) float32."""
        return ops.cast(self.states(images)[:, 0], "float32")

    def pixels(self, images: Tensor) -> Tensor:
        """Scales pixels as the stem takes them: images (B, S, S, channels) → float32 of the same shape.

        Raises:
            ValueError: the images have another size.
        """
        known = [size is None or size == own for size, own in zip(images.shape[1:], self.image_shape, strict=False)]
        if len(images.shape) != 4 or not all(known):
            expected = ", ".join(map(str, self.image_shape))
            raise ValueError(f"`images` must have the shape (B, {expected}). Received: shape={tuple(images.shape)}")
        x = ops.reshape(ops.cast(images, "float32"), (-1, *self.image_shape))  # sizes that a graph does not know
        mean, std = (ops.convert_to_tensor(self._config[name], "float32") for name in ("pixel_mean", "pixel_std"))
        return (x / LARGEST_PIXEL - mean) / std

    def _build_vectors(self) -> None:
        self.stem.build((None, *self.image_shape))
        self.class_token.build((None, None, self.hidden_dim))
        if not self.positions.built:
            self.positions.build((None, None))

    def _vectors(self, inputs: Tensor) -> Tensor:
        return self.class_token(self.stem(self.pixels(inputs)))

    def symbolic_batch(self) -> tuple[dict[str, keras.KerasTensor], keras.KerasTensor, keras.KerasTensor]:
        images = keras.KerasTensor((None, *self.image_shape), dtype="uint8")
        return {"images": images}, keras.KerasTensor((None,), dtype="int32"), keras.KerasTensor((None,), "float32")
