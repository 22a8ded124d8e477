"""The encoder alone, on the patches of an image: a Vision Transformer (Dosovitskiy et al. 2020, arXiv 2010.11929)."""

from __future__ import annotations

from typing import Any

import keras

from keras_transformer import ops
from keras_transformer.layers.class_token import ClassToken
from keras_transformer.layers.layer import Dense
from keras_transformer.models.assembly import make_layers_of_images
from keras_transformer.models.stack_model import StackModel
from keras_transformer.tensor import Tensor

LARGEST_PIXEL = 255.0


@keras.saving.register_keras_serializable(package="keras_transformer")
class ImageClassifier(StackModel):
    """Tells the label of an image: patches, a class token, positions, the stack, a head (section 3.1, equations 1–4).

    The defaults are the sizes of an image of ViT-B/16, and its parts: learned positions, pre-norm, gelu, and biases in
    attention.

    Args:
        num_labels: C, the number of labels. None gives the state of the class token, without a head.
        image_size: S, the height and the width of an image in pixels.
        patch_size: P, the height and the width of a patch. It divides S.
        channels: of a pixel.
        arguments: the others, see `keras_transformer.family.IMAGES`.

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

    takes = "images"
    stem: Any
    class_token: ClassToken

    def __init__(
        self,
        num_labels: int | None = None,
        image_size: int = 224,
        patch_size: int = 16,
        channels: int = 3,
        **arguments: Any,
    ):
        layer_arguments = {name: arguments.pop(name) for name in ("name", "dtype", "trainable") if name in arguments}
        sizes = {"image_size": image_size, "patch_size": patch_size, "channels": channels, "num_labels": num_labels}
        super().__init__({**sizes, **arguments}, **layer_arguments)
        self.num_labels = num_labels
        self.head = None
        if num_labels is not None:
            self.head = Dense(num_labels, dtype=self.dtype_policy)
            self.head.build((None, self.hidden_dim))

    @classmethod
    def make_layers(cls, config: dict[str, Any], dtype: Any) -> dict[str, Any]:
        return make_layers_of_images(config, dtype)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """(S, S, channels)."""
        return self._config["image_size"], self._config["image_size"], self._config["channels"]

    def call(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        x = self.states(inputs["images"], training=training)[:, 0]
        return x if self.head is None else self.head(x)

    def pixels(self, images: Tensor) -> Tensor:
        """Pixels as the stem takes them: images (B, S, S, channels) → float32 of the same shape.

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
        """Symbolic inputs, labels and weights. From them Keras builds optimizer and metrics."""
        images = keras.KerasTensor((None, *self.image_shape), dtype="uint8")
        return {"images": images}, keras.KerasTensor((None,), dtype="int32"), keras.KerasTensor((None,), "float32")
