"""From files to pixels: any image that Pillow reads safely becomes an array of one size."""

from __future__ import annotations

import os
import warnings
from pathlib import Path

import numpy as np
from PIL import Image, ImageOps

# Pillow's formats that hold photographs or drawings. Others, such as EPS, start another program.
FORMATS = ("PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM")
SUFFIXES = {".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".pgm", ".pbm"}
MODES = {1: "L", 3: "RGB"}  # Pillow's name of an image with so many channels


class UnreadableImage(ValueError):
    """A file holds no image that can be read. The message says why."""


def read_image(path: str | os.PathLike[str], size: int, channels: int) -> np.ndarray:
    """The pixels of a file, (S, S, channels) uint8.

    The first picture of an animation is taken. Transparent pixels are shown on white. An image is turned upright as its
    EXIF data says, and resized to S × S, whatever its proportions were. Of 16 bits the upper 8 are taken.

    Args:
        path: a file in one of `FORMATS`.
        size: S.
        channels: 1 for grey, 3 for colour.

    Raises:
        UnreadableImage: it is no image, is broken or cut off, has pixels of 32 bits, or has more pixels than Pillow
            takes for safe (`PIL.Image.MAX_IMAGE_PIXELS`).
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            warnings.simplefilter("error", Image.DecompressionBombWarning)
            with Image.open(Path(path), formats=FORMATS) as image:
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
    """The pixels (S, S, channels) of an open image that stands upright."""
    if image.mode in ("I", "F"):
        raise UnreadableImage("its pixels have 32 bits, and nothing tells which of them is white")
    if image.mode.startswith("I;16"):
        image = Image.fromarray((np.asarray(image) >> 8).astype("uint8"))
    if image.has_transparency_data:
        image = image.convert("RGBA")
        image = Image.alpha_composite(Image.new("RGBA", image.size, "white"), image)
    image = image.convert(mode).resize((size, size), Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(size, size, -1)


def pixels_of(array: np.ndarray, size: int, channels: int) -> np.ndarray:
    """An array (H, W) or (H, W, channels) of uint8 as an image of S × S.

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
