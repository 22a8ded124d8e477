"""Images to train on: the user's files, or named ones with their recipe; and how a file becomes pixels of one size."""

from __future__ import annotations

import hashlib
import io
import os
import threading
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from keras_transformer.core.errors import RequestError, abridged, warn
from keras_transformer.core.extras import required
from keras_transformer.spec.options import Config
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.held_out import stratified, tell_of_single_labels
from keras_transformer.text.lines import sha256_of
from keras_transformer.training.task import recipe_named

required("PIL", "images", "reading images")

from PIL import Image, ImageOps

# A small model with a convolution before its patches: 899 images are few. It was chosen on parts of the training half.
DIGITS_RECIPE: Config = {
    "image_size": 8,
    "patch_size": 4,
    "channels": 1,
    "stem": "attentive:filters=32",
    "random_shift": 1,
    "num_layers": 2,
    "hidden_dim": 64,
    "intermediate_dim": 128,
    "num_heads": 4,
    "dropout": 0.1,
    "token_budget": 640,  # 128 images
    "steps": 1_200,
    "label_smoothing": 0.1,
    "warmup_steps": 100,
    "learning_rate_factor": 0.3,
    "checkpoint_every": 100,
}
RECIPES = {"digits": DIGITS_RECIPE}


# Pillow's formats that hold photographs or drawings. Others, such as EPS, start another program.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
MODES = {1: "L", 3: "RGB"}  # Pillow's name of an image with so many channels
HELD_OUT_SHARE = 0.1  # per label, if no validation images are given
DIGITS_SHARE, DIGITS_SEED = 0.5, 0  # what is held out of the digits: half of each, always the same
DIGITS_WHITE = 16  # the largest pixel of the digits


class UnreadableImage(ValueError):
    """A file holds no image that can be read. The message says why."""


_filtering = threading.Lock()  # all threads share the filters of warnings


def read_image(path: str | os.PathLike[str] | bytes, size: int, channels: int) -> np.ndarray:
    """Returns the pixels of a file, (S, S, channels) uint8.

    The first picture of an animation is taken. Transparent pixels are shown on white. An image is turned upright as its
    EXIF data says, and resized to S × S, whatever its proportions were. Of 16 bits the upper 8 are taken, unless the
    image may have 12 in their place.

    Args:
        path: a file in one of `FORMATS`, or its content.
        size: S.
        channels: 1 for grey, 3 for colour.

    Raises:
        UnreadableImage: it is no image, is broken or cut off, has pixels of 32 bits, or of 16 of which it uses no
            more than 12, or has more pixels than Pillow takes for safe (`PIL.Image.MAX_IMAGE_PIXELS`).
    """
    try:
        with _filtering, warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            source = io.BytesIO(path) if isinstance(path, bytes) else Path(path)
            with Image.open(source, formats=FORMATS) as image:
                image.load()
                return _pixels(ImageOps.exif_transpose(image), size, MODES[channels])
    except MemoryError:
        raise
    except UnreadableImage:
        raise
    except (Image.DecompressionBombError, Image.DecompressionBombWarning):
        raise UnreadableImage(f"it has more than {Image.MAX_IMAGE_PIXELS:,} pixels") from None
    except FileNotFoundError:
        raise UnreadableImage("there is no such file") from None
    except Image.UnidentifiedImageError:
        raise UnreadableImage(f"it is no image in one of the formats {', '.join(FORMATS)}") from None
    except Exception as error:  # Pillow's readers raise errors of many types about broken files
        raise UnreadableImage(" ".join(str(error).split())[:100] or type(error).__name__) from error


def _pixels(image: Image.Image, size: int, mode: str) -> np.ndarray:
    """Returns the pixels (S, S, channels) of an open image that stands upright."""
    if image.mode in ("I", "F"):
        raise UnreadableImage("its pixels have 32 bits, and nothing tells which of them is white")
    if image.mode.startswith("I;16"):
        pixels = np.asarray(image)
        if 0 < pixels.max() < 2**12:
            told = f"its pixels have 16 bits, and the brightest is {pixels.max()}, as if they had 12 or fewer"
            raise UnreadableImage(f"{told}: scale them, so that white is {2**16 - 1}")
        image = Image.fromarray((pixels >> 8).astype("uint8"))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert(mode).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(size, size, -1)


def pixels_of(array: np.ndarray, size: int, channels: int) -> np.ndarray:
    """Returns an array (H, W) or (H, W, channels) of uint8 as an image of S × S.

    Raises:
        UnreadableImage: it is no such array.
    """
    array = np.asarray(array)
    shape = array.shape if array.ndim == 3 else (*array.shape, 1)
    if array.dtype != np.uint8 or len(shape) != 3 or shape[2] not in MODES or 0 in shape:
        raise UnreadableImage(
            f"expected an array of uint8, (H, W), (H, W, 1) or (H, W, 3); received {array.dtype} {array.shape}"
        )
    return _pixels(Image.fromarray(array.reshape(shape[:2] if shape[2] == 1 else shape)), size, MODES[channels])


class LabelledImage(NamedTuple):
    """An image and its label.

    Args:
        label: such as the name of the folder that the image lies in.
        source: a file, or pixels (H, W) or (H, W, 3) uint8.
        sha256: that of the file, or of the pixels.
    """

    label: str
    source: Path | np.ndarray
    sha256: str


def images_from_folder(
    images: str | os.PathLike[str], valid_images: str | os.PathLike[str] | None = None, seed: int = 0
) -> Corpus[LabelledImage]:
    """Returns the user's own images: a folder with a folder for each label, which holds the images of that label.

    Without validation images a tenth of each label's images is held out, at least one; the seed draws them (see
    `stratified`).

    Raises:
        RequestError: a folder is missing or holds no images, there is one label alone, no label has two images, or a
            label of the validation is never trained on.
    """
    train = _images_in(Path(images))
    if len({image.label for image in train}) < 2:
        raise RequestError(
            f"{images}: expected at least two labels, each a folder of images; received one alone, "
            f"{train[0].label!r:.60}"
        )
    tell_of_single_labels(((image.label, image.sha256, str(image.source)) for image in train), images)
    if valid_images is None:
        train, valid = _divided(train, HELD_OUT_SHARE, seed)
    else:
        valid = _images_in(Path(valid_images))
    if not valid:
        raise RequestError(f"{images}: no label has two images, one to validate on: add images, or give --valid-images")
    if unknown := sorted({image.label for image in valid} - {image.label for image in train}):
        raise RequestError(
            f"{valid_images}: the label {unknown[0]!r:.60} is validated on and never trained on: add images of it to "
            f"{images}"
        )
    return _corpus("files", train, valid)


def named_images(name: str) -> Corpus[LabelledImage]:
    """Named images: `digits`, the 1,797 digits of 8 × 8 pixels that come with scikit-learn. Half of each is held out.

    Raises:
        RequestError: the name is unknown, or scikit-learn is not installed.
    """
    recipe = recipe_named(name, RECIPES, "named images are", "--images")
    digits = required("sklearn.datasets", "images", "--dataset digits").load_digits()
    pixels = np.round(digits.images * (255 / DIGITS_WHITE)).astype("uint8")
    images = [
        LabelledImage(str(label), image, hashlib.sha256(image.tobytes()).hexdigest())
        for label, image in zip(digits.target, pixels, strict=True)
    ]
    return _corpus(name, *_divided(images, DIGITS_SHARE, DIGITS_SEED), recipe)


def _corpus(
    name: str, train: list[LabelledImage], valid: list[LabelledImage], recipe: Config | None = None
) -> Corpus[LabelledImage]:
    lines = [[f"{image.label}\t{image.sha256}" for image in part] for part in (train, valid)]
    identity = sha256_of([*lines[0], "", *lines[1]])
    return Corpus(name, None, None, lambda: iter(train), lambda: iter(valid), identity, recipe or {})


def _divided(
    images: Sequence[LabelledImage], share: float, seed: int
) -> tuple[list[LabelledImage], list[LabelledImage]]:
    """Returns the images to train on and those held out; see `stratified`. Both stand in the order of `images`."""
    held_out = stratified([(image.label, image.sha256) for image in images], share, seed)
    parts: tuple[list[LabelledImage], list[LabelledImage]] = ([], [])
    for image in images:
        parts[(image.label, image.sha256) in held_out].append(image)
    return parts


def _images_in(folder: Path) -> list[LabelledImage]:
    """Returns the images in a folder of class folders, by their paths. A warning counts files that are no images."""
    if not folder.is_dir():
        raise RequestError(f"no such folder: {folder}; expected one with a folder of images for each label")
    images, others = [], [path for path in sorted(folder.iterdir()) if path.is_file() and path.name[0] != "."]
    for class_folder in sorted(path for path in folder.iterdir() if path.is_dir() and path.name[0] != "."):
        if not class_folder.name.isprintable():
            raise RequestError(f"a label must be printable text; received the folder {class_folder.name!r:.60}")
        for path in files_under(class_folder):
            if path.suffix.lower() in SUFFIXES:
                images.append(LabelledImage(class_folder.name, path, _sha256_of_file(path)))
            else:
                others.append(path)
    if others:
        warn(f"{len(others)} file(s) are no images in a class folder and are left out: {abridged(others)}")
    if not images:
        raise RequestError(f"{folder} holds no images; expected a folder of images for each label")
    return images


def files_under(folder: Path) -> list[Path]:
    """Returns all files under a folder but hidden ones, by their paths. Links to folders are not followed."""
    found = [Path(place) / name for place, _, names in os.walk(folder) for name in names if not name.startswith(".")]
    return sorted(found)


def _sha256_of_file(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise RequestError(f"cannot read {path} ({error.strerror or error}); expected an image") from None
