"""Labelled images: folders, held-out images, batches."""

import shutil
import sys
from collections import Counter
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_transformer.errors import RequestError
from keras_transformer.images.batches import ImagePlan, Pixels, read_pixels, shifted
from keras_transformer.images.labelled import images_from_folder, named_images
from keras_transformer.text.feeding import Place
from tests.text.plans import batches_of


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


def test_a_share_of_each_label_is_held_out_and_equal_images_on_one_side(folder):
    corpus = images_from_folder(folder, seed=1)
    train, valid = list(corpus.train()), list(corpus.valid())
    assert Counter(image.label for image in valid) == {"cat": 2, "dog": 1, "hen": 1}
    assert sorted(names([*train, *valid])) == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))
    assert names(images_from_folder(folder, seed=1).valid()) == names(valid)
    assert any(names(images_from_folder(folder, seed=seed).valid()) != names(valid) for seed in (2, 3, 4))
    assert images_from_folder(folder, seed=1).identity == corpus.identity
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


REFUSED: list[tuple[dict[str, int], str]] = [
    ({}, "holds no images; expected a folder of images for each label"),
    ({"cat": 3}, "at least two labels, each a folder of images; received one alone, 'cat'"),
    ({"cat": 3, "dog": 1}, "the label 'dog' has one image, which cannot be trained on and held out"),
    ({"a\nb": 2, "cat": 2}, "a label must be printable text; received the folder 'a.*nb'"),
]


def test_what_cannot_be_trained_on_is_refused(folder, tmp_path):
    for place, (counts, message) in enumerate(REFUSED):
        (tmp_path / str(place)).mkdir()
        with pytest.raises(RequestError, match=message):
            images_from_folder(make_folder(tmp_path / str(place), counts))
    with pytest.raises(RequestError, match="no such folder: .*; expected one with a folder of images for each label"):
        images_from_folder(tmp_path / "none")
    with pytest.raises(RequestError, match="the label 'owl' is validated on and never trained on"):
        images_from_folder(folder, make_folder(tmp_path / "valid", {"cat": 1, "owl": 1}))
    shutil.copy(folder / "hen" / "00.png", folder / "hen" / "01.png")  # copies of one image are one image
    with pytest.raises(RequestError, match="the label 'hen' has one image, which cannot be trained on and held out"):
        images_from_folder(folder)


def test_the_digits_are_halved(monkeypatch):
    corpus = named_images("digits")
    train, valid = list(corpus.train()), list(corpus.valid())
    assert len(train) + len(valid) == 1797 and abs(len(train) - len(valid)) <= 10
    counts = [Counter(image.label for image in part) for part in (train, valid)]
    assert set(counts[0]) == {*"0123456789"} and all(abs(counts[0][d] - counts[1][d]) <= 1 for d in counts[0])
    assert not {i.sha256 for i in train} & {i.sha256 for i in valid}
    sources = np.stack([np.asarray(image.source) for image in train])
    assert sources.shape[1:] == (8, 8) and sources.dtype == "uint8" and sources.max() == 255, "white is white"
    assert named_images("digits").identity == corpus.identity
    with pytest.raises(RequestError, match="named images are digits, or your own with --images; received: 'letters'"):
        named_images("letters")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(RequestError, match="needs the package scikit-learn, which is not installed"):
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


def pixels(count=23):
    """Images whose pixels all are their number."""
    numbers = np.arange(count, dtype="int32")
    return Pixels(numbers.astype("uint8")[:, None, None, None].repeat(3, 1).repeat(3, 2), numbers)


def test_batches_hold_each_image_once():
    for num_replicas, accumulate, shuffle in ((1, 1, True), (3, 2, True), (2, 1, False)):
        plan = ImagePlan(pixels(), 5, 64, 1, num_replicas, accumulate, shuffle)
        assert plan.rows == 12 and plan.divisor == num_replicas * accumulate
        orders = []
        for batches in (batches_of(plan, epoch) for epoch in range(2)):
            assert all(len(batch.labels) * 5 <= 64 for batch in batches)
            images, labels, weights = (
                np.concatenate(arrays)
                for arrays in zip(*((batch.inputs["images"], *batch[1:]) for batch in batches), strict=True)
            )
            np.testing.assert_array_equal(images[weights > 0, 0, 0, 0], labels[weights > 0])
            assert not images[weights == 0].any() and not labels[weights == 0].any()
            orders.append(labels[weights > 0].tolist())
            assert sorted(orders[-1]) == list(range(23))
        assert (orders[0] != orders[1]) == shuffle
    with pytest.raises(RequestError, match=r"an image of 17 positions on each of 2 replicas .*: at least 34; .*: 33"):
        ImagePlan(pixels(), 17, 33, num_replicas=2)


def test_images_are_shifted_at_random_and_always_in_the_same_way():
    image = np.arange(1, 10, dtype="uint8").reshape(3, 3, 1)
    np.testing.assert_array_equal(shifted(image, 1, -2)[..., 0], [[0, 0, 0], [3, 0, 0], [6, 0, 0]])
    np.testing.assert_array_equal(shifted(image, 0, 0), image)
    many = Pixels(np.repeat(image[None], 400, 0), np.zeros(400, "int32"))
    plan = ImagePlan(many, 1, 400, 1, random_shift=1)
    moved = plan.batch(Place(0, 0)).inputs["images"]
    allowed = {shifted(image, down, right).tobytes() for down in (-1, 0, 1) for right in (-1, 0, 1)}
    assert {each.tobytes() for each in moved} == allowed
    stays = np.mean([each.tobytes() == image.tobytes() for each in moved])
    assert 0.2 < stays < 0.3, "half of the numbers are rounded to 0 in each direction"
    np.testing.assert_array_equal(moved, ImagePlan(many, 1, 400, 1, random_shift=1).batch(Place(0, 0)).inputs["images"])
    assert not np.array_equal(moved, plan.batch(Place(1, 0)).inputs["images"])
