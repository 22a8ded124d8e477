"""Images from files: every kind that is read, upright and whole, and every kind that is refused."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_transformer.images.reading import FORMATS, UnreadableImage, pixels_of, read_image

COLOUR = np.random.default_rng(0).integers(0, 256, (6, 6, 3)).astype("uint8")


def saved(path: Path, image: Image.Image, **options: object) -> Path:
    image.save(path, **options)  # type: ignore[arg-type]
    return path


def test_an_image_of_the_size_comes_as_it_is_and_another_is_resized(tmp_path):
    path = saved(tmp_path / "a.png", Image.fromarray(COLOUR))
    np.testing.assert_array_equal(read_image(path, 6, 3), COLOUR)
    np.testing.assert_array_equal(pixels_of(COLOUR, 6, 3), COLOUR)
    grey = saved(tmp_path / "grey.png", Image.fromarray(COLOUR[..., 0]))
    np.testing.assert_array_equal(read_image(grey, 6, 1), COLOUR[..., :1])
    np.testing.assert_array_equal(read_image(grey, 6, 3), COLOUR[..., :1].repeat(3, -1))
    np.testing.assert_array_equal(pixels_of(COLOUR[..., 0], 6, 1), COLOUR[..., :1])
    pixels = read_image(saved(tmp_path / "b.png", Image.new("L", (30, 20), 77)), 5, 1)
    assert pixels.shape == (5, 5, 1) and (pixels == 77).all()
    halves = np.repeat([0, 255], 8).astype("uint8")[None].repeat(8, 0)
    np.testing.assert_array_equal(pixels_of(halves, 4, 1)[..., 0] > 127, np.array([[0, 0, 1, 1]] * 4, bool))


def test_other_modes_are_turned_into_grey_or_colour(tmp_path):
    whole = Image.fromarray(COLOUR)
    for image in whole.quantize(64), Image.new("1", (6, 6), 1), whole.convert("CMYK"), whole.convert("YCbCr"):
        path = saved(tmp_path / "a.tif", image)
        for channels, mode in ((1, "L"), (3, "RGB")):
            expected = np.asarray(image.convert(mode)).reshape(6, 6, -1).astype(int)
            assert np.abs(read_image(path, 6, channels) - expected).max() <= 2


def test_of_sixteen_bits_the_upper_eight_are_taken_and_what_is_transparent_is_white(tmp_path):
    deep = np.arange(36, dtype="uint16").reshape(6, 6) * 1800
    path = saved(tmp_path / "a.png", Image.fromarray(deep))
    np.testing.assert_array_equal(read_image(path, 6, 1)[..., 0], deep >> 8)
    image = Image.new("RGBA", (6, 6), (200, 0, 0, 0))
    image.paste((0, 0, 200, 255), (0, 0, 6, 3))
    for mode in ("RGBA", "LA", "P"):
        pixels = read_image(saved(tmp_path / "b.png", image.convert(mode)), 6, 3)
        assert (pixels[3:] == 255).all() and not (pixels[:3] == 255).all(-1).any()


def test_a_photograph_is_turned_upright_and_an_animation_gives_its_first_picture(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    path = saved(tmp_path / "a.png", Image.fromarray(COLOUR), exif=exif)
    np.testing.assert_array_equal(read_image(path, 6, 3), np.rot90(COLOUR, -1))
    first, second = (Image.new("L", (6, 6), value) for value in (40, 200))
    path = saved(tmp_path / "a.gif", first, save_all=True, append_images=[second])
    assert (read_image(path, 6, 1) == 40).all()


def bytes_of(format: str, image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


NOISE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 40, 3)).astype("uint8"))
REFUSED: list[tuple[bytes, str]] = [
    (b"not an image", "it is no image in one of the formats PNG, JPEG"),
    (b"", "it is no image"),
    (bytes_of("JPEG", NOISE)[:-600], "truncated"),
    (bytes_of("PNG", NOISE)[:2000], "."),
    (bytes_of("PNG", NOISE)[:60] + b"\xff" * 40 + bytes_of("PNG", NOISE)[100:], "."),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", "it is no image"),
    (bytes_of("TIFF", Image.new("F", (6, 6), 0.5)), "its pixels have 32 bits"),
]


def test_what_cannot_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    for content, message in REFUSED:
        path.write_bytes(content)
        with pytest.raises(UnreadableImage, match=message):
            read_image(path, 6, 3)
    for missing, message in ((tmp_path / "b.png", "there is no such file"), (tmp_path, "directory")):
        with pytest.raises(UnreadableImage, match=message):
            read_image(missing, 6, 3)
    arrays: list[Any] = [np.zeros((6, 6)), np.zeros((6, 6, 2), "uint8"), np.zeros((0, 6), "uint8"), np.uint8(3)]
    for array in arrays:
        with pytest.raises(UnreadableImage, match="expected an array of uint8"):
            pixels_of(array, 6, 3)
    saved(path, NOISE)
    for most in (1_000, 500):  # Pillow warns above it, and refuses above twice as many
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", most)
        with pytest.raises(UnreadableImage, match=f"it has more than {most:,} pixels"):
            read_image(path, 6, 3)


@pytest.mark.parametrize("format", FORMATS)
def test_every_format_is_read_whatever_breaks(format, tmp_path):
    """A file with any bytes changed or cut is read or refused, and raises nothing else."""
    content, random = bytearray(bytes_of(format, NOISE)), np.random.default_rng(0)
    path = tmp_path / "a"
    path.write_bytes(content)
    assert read_image(path, 6, 3).shape == (6, 6, 3)
    for _ in range(40):
        broken = content.copy()
        for place in random.integers(0, len(broken), 4):
            broken[place] = random.integers(256)
        path.write_bytes(broken[: random.integers(1, len(broken))] if random.random() < 0.3 else broken)
        try:
            assert read_image(path, 6, 3).shape == (6, 6, 3)
        except UnreadableImage as error:
            assert str(error)
