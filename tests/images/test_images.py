"""Images from files: every kind that is read or refused, folders of labels, held-out images, batches."""

import io
import shutil
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import PIL
import pytest
from PIL import Image

from keras_transformer.core.errors import RequestError
from keras_transformer.tasks.images.batches import ImagePlan, Pixels, read_pixels, shifted
from keras_transformer.tasks.images.corpus import (
    FORMATS,
    LabelledImage,
    UnreadableImage,
    images_from_folder,
    named_images,
    pixels_of,
    read_image,
)
from keras_transformer.text.feeding import Place
from tests.text.plans import batches_of

COLOUR = np.random.default_rng(0).integers(0, 256, (6, 6, 3)).astype("uint8")


def saved(path: Path, image: Image.Image, **options: Any) -> Path:
    image.save(path, **options)
    return path


def test_an_image_of_the_size_comes_as_it_is_and_another_is_resized(tmp_path):
    path = saved(tmp_path / "a.png", Image.fromarray(COLOUR))
    np.testing.assert_array_equal(read_image(path, 6, 3), COLOUR)
    np.testing.assert_array_equal(pixels_of(COLOUR, 6, 3), COLOUR)
    grey = saved(tmp_path / "grey.png", Image.fromarray(COLOUR[..., 0]))
    np.testing.assert_array_equal(read_image(grey, 6, 3), COLOUR[..., :1].repeat(3, -1))
    np.testing.assert_array_equal(pixels_of(COLOUR[..., 0], 6, 1), COLOUR[..., :1])
    pixels = read_image(saved(tmp_path / "b.png", Image.new("L", (30, 20), 77)), 5, 1)
    assert pixels.shape == (5, 5, 1) and (pixels == 77).all()
    halves = np.repeat([0, 255], 8).astype("uint8")[None].repeat(8, 0)
    np.testing.assert_array_equal(pixels_of(halves, 4, 1)[..., 0] > 127, np.array([[0, 0, 1, 1]] * 4, bool))


def test_other_modes_are_turned_into_grey_or_colour(tmp_path):
    whole = Image.fromarray(COLOUR)
    images = [whole.quantize(64), Image.new("1", (6, 6), 1), whole.convert("CMYK")]
    if int(PIL.__version__.split(".")[0]) >= 13:  # older ones take what they saved for truncated
        images.append(whole.convert("YCbCr"))
    for image in images:
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


def test_a_photograph_is_turned_upright(tmp_path):
    exif = Image.Exif()
    exif[0x0112] = 6  # to be turned by a quarter, clockwise
    path = saved(tmp_path / "a.png", Image.fromarray(COLOUR), exif=exif)
    np.testing.assert_array_equal(read_image(path, 6, 3), np.rot90(COLOUR, -1))


def bytes_of(format: str, image: Image.Image) -> bytes:
    file = io.BytesIO()
    image.save(file, format)
    return file.getvalue()


NOISE = Image.fromarray(np.random.default_rng(1).integers(0, 256, (40, 40, 3)).astype("uint8"))
UNREADABLE: list[tuple[bytes, str]] = [
    (b"not an image", "it is no image in one of the formats PNG, JPEG"),
    (bytes_of("JPEG", NOISE)[:-600], "truncated"),
    (bytes_of("PNG", NOISE)[:60] + b"\xff" * 40 + bytes_of("PNG", NOISE)[100:], "."),
    (b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EndComments\nshowpage\n", "it is no image"),
    (bytes_of("TIFF", Image.new("F", (6, 6), 0.5)), "its pixels have 32 bits"),
    (bytes_of("PNG", Image.fromarray(np.full((6, 6), 4095, "uint16"))), "the brightest is 4095, as if they had 12 or"),
]


def test_what_cannot_be_read_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.png"
    for content, message in UNREADABLE:
        path.write_bytes(content)
        with pytest.raises(UnreadableImage, match=message):
            read_image(path, 6, 3)
    with pytest.raises(UnreadableImage, match="there is no such file"):
        read_image(tmp_path / "b.png", 6, 3)
    for array in (np.zeros((6, 6)), np.zeros((6, 6, 2), "uint8"), np.zeros((0, 6), "uint8")):
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


def make_folder(folder, counts):
    """A folder of class folders. Each image is of one grey, and no two are the same."""
    for label, count in counts.items():
        (folder / label).mkdir(parents=True)
        for number in range(count):
            grey = sum(map(ord, label)) % 7 * 30 + number
            Image.new("L", (4, 4), grey).save(folder / label / f"{number:02}.png")
    return folder


@pytest.fixture
def folder(tmp_path):
    return make_folder(tmp_path / "images", {"cat": 20, "dog": 11, "hen": 2})


def names(images):
    return [f"{image.label}/{image.source.name}" for image in images]


def test_equal_images_are_on_one_side(folder):
    corpus = images_from_folder(folder, seed=1)
    Image.new("L", (4, 4), 99).save(folder / "cat" / "00.png")
    assert images_from_folder(folder, seed=1).identity != corpus.identity, "an image changed"
    for label, number in ((label, number) for label in ("cat", "hen") for number in range(15)):
        shutil.copy(folder / label / f"{number % 5 % 2:02}.png", folder / label / f"copy {number}.png")
    corpus = images_from_folder(folder, seed=1)
    sides = [[(image.label, image.sha256) for image in part] for part in (corpus.train(), corpus.valid())]
    assert not {*sides[0]} & {*sides[1]} and {label for label, _ in sides[0]} == {label for label, _ in sides[1]}
    assert sum(map(len, sides)) == 33 + 30


def test_own_validation_images_deeper_folders_and_files_that_are_no_images(folder, tmp_path, capsys):
    valid = make_folder(tmp_path / "valid", {"cat": 1, "hen": 1})
    (folder / "cat" / "deeper").mkdir()
    (folder / "cat" / "00.png").rename(folder / "cat" / "deeper" / "00.PNG")
    for name in ("notes.txt", "cat/readme.md", "dog/.hidden", ".hidden"):
        (folder / name).write_text("text")
    (folder / ".git").mkdir()
    corpus = images_from_folder(folder, valid)
    assert len(list(corpus.train())) == 33 and names(corpus.valid()) == ["cat/00.png", "hen/00.png"]
    assert "cat/00.PNG" in names(corpus.train())
    line, *_ = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: 2 file(s) are no images in a class folder and are left out: ")
    assert "notes.txt" in line and "readme.md" in line and "hidden" not in line


def test_what_cannot_be_trained_on_is_refused(folder, tmp_path, capsys):
    for message, counts in {
        "at least two labels, each a folder of images; received one alone, 'cat'": {"cat": 3},
        "a label must be printable text; received the folder 'a.*nb'": {"a\nb": 2, "cat": 2},
    }.items():
        with pytest.raises(RequestError, match=message):
            images_from_folder(make_folder(tmp_path / str(len(counts)), counts))
    with pytest.raises(RequestError, match="the label 'owl' is validated on and never trained on"):
        images_from_folder(folder, make_folder(tmp_path / "valid", {"cat": 1, "owl": 1}))
    shutil.copy(folder / "hen" / "00.png", folder / "hen" / "01.png")  # copies of one image are one image
    assert "hen" not in {image.label for image in images_from_folder(folder).valid()}
    told = "1 label(s) have one item alone, which is not held out: 'hen' ("
    assert told in capsys.readouterr().err
    with pytest.raises(RequestError, match="no label has two images, one to validate on: add images, or give --valid-"):
        images_from_folder(make_folder(tmp_path / "alone", {"cat": 1, "owl": 1}))


def test_the_digits_are_halved(monkeypatch):
    corpus = named_images("digits")
    train, valid = list(corpus.train()), list(corpus.valid())
    assert len(train) + len(valid) == 1797
    counts = [Counter(image.label for image in part) for part in (train, valid)]
    assert set(counts[0]) == {*"0123456789"} and all(abs(counts[0][d] - counts[1][d]) <= 1 for d in counts[0])
    assert not {i.sha256 for i in train} & {i.sha256 for i in valid}
    sources = np.stack([np.asarray(image.source) for image in train])
    assert sources.shape[1:] == (8, 8) and sources.dtype == "uint8" and sources.max() == 255, "white is white"
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(RequestError, match="needs the package sklearn, which is not installed"):
        named_images("digits")


def test_pixels_are_read_once_and_broken_images_are_counted(folder, tmp_path, capsys):
    images: list[Any] = list(images_from_folder(folder).train())
    broken, whole, labels = images[0], images[1:], ["cat", "dog", "hen"]
    broken.source.write_bytes(broken.source.read_bytes()[:50])
    greys = np.array([int(np.asarray(Image.open(image.source))[0, 0]) for image in whole], "uint8")
    found = read_pixels(tmp_path / "cache" / "train.images", images, labels, 4, 1)
    err = capsys.readouterr().err
    assert err.startswith("warning: 1 image(s) cannot be read and are left out: ") and f"{broken.source.name} (" in err
    assert [labels[place] for place in found.labels] == [image.label for image in whole]
    np.testing.assert_array_equal(found.images, greys[:, None, None, None] * np.ones((1, 4, 4, 1), "uint8"))
    shutil.rmtree(folder)
    again = read_pixels(tmp_path / "cache" / "train.images", images, labels, 4, 1)
    np.testing.assert_array_equal(again.images, found.images)
    assert capsys.readouterr().err == "" and not found.images.flags.writeable


def test_damaged_pixels_are_refused_in_one_line(tmp_path):
    path, images = tmp_path / "train.images", [LabelledImage(label, np.zeros((4, 4), "uint8"), "") for label in "ab"]
    read_pixels(path, images, ["a", "b"], 4, 1)
    labels = path.with_suffix(".labels")
    for file, content in ((path, bytes(31)), (labels, bytes(7)), (labels, bytes(4)), (labels, b"\2" + bytes(7)),
                          (labels, b"\xff" * 8), (path, b"")):  # fmt: skip
        whole = file.read_bytes()
        file.write_bytes(content)
        with pytest.raises(RequestError, match="delete (it|both)$"):
            read_pixels(path, images, ["a", "b"], 4, 1)
        file.write_bytes(whole)
    assert read_pixels(path, images, ["a", "b"], 4, 1).labels.tolist() == [0, 1]


def test_batches_hold_each_image_once():
    numbers = np.arange(23, dtype="int32")
    pixels = Pixels(numbers.astype("uint8")[:, None, None, None].repeat(3, 1).repeat(3, 2), numbers)
    for num_replicas, accumulate, shuffle in ((1, 1, True), (5, 2, True), (2, 1, False)):
        plan = ImagePlan(pixels, 5, 64, 1, num_replicas, accumulate, shuffle)
        assert plan.rows == 12 and plan.divisor == num_replicas * accumulate
        orders = []
        for batches in (batches_of(plan, epoch) for epoch in range(2)):
            assert [(batch.weights > 0).sum() for batch in batches] == [12, 11], "however many share them"
            rows = ((batch.inputs["images"], *batch[1:]) for batch in batches)
            images, labels, weights = map(np.concatenate, zip(*rows, strict=True))
            np.testing.assert_array_equal(images[weights > 0, 0, 0, 0], labels[weights > 0])
            assert not images[weights == 0].any() and not labels[weights == 0].any()
            orders.append(labels[weights > 0].tolist())
            assert sorted(orders[-1]) == list(range(23))
        assert (orders[0] != orders[1]) == shuffle
    with pytest.raises(RequestError, match=r"an image of 17 positions on each of 2 replicas .*: at least 34; .*: 33"):
        ImagePlan(pixels, 17, 33, num_replicas=2)


def test_images_are_shifted_at_random_and_always_in_the_same_way():
    image = np.arange(1, 10, dtype="uint8").reshape(3, 3, 1)
    np.testing.assert_array_equal(shifted(image, 1, -2)[..., 0], [[0, 0, 0], [3, 0, 0], [6, 0, 0]])
    many = Pixels(np.repeat(image[None], 400, 0), np.zeros(400, "int32"))
    plan = ImagePlan(many, 1, 400, 1, random_shift=1)
    moved = plan.batch(Place(0, 0)).inputs["images"]
    allowed = {shifted(image, down, right).tobytes() for down in (-1, 0, 1) for right in (-1, 0, 1)}
    assert {each.tobytes() for each in moved} == allowed
    np.testing.assert_array_equal(moved, ImagePlan(many, 1, 400, 1, random_shift=1).batch(Place(0, 0)).inputs["images"])
    assert not np.array_equal(moved, plan.batch(Place(1, 0)).inputs["images"])
