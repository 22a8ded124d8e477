"""Labelled images: folders, held-out images, batches."""

from __future__ import annotations

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


def test_a_share_of_each_label_is_held_out(folder):
    corpus = images_from_folder(folder, seed=1)
    train, valid = list(corpus.train()), list(corpus.valid())
    assert Counter(image.label for image in valid) == {"cat": 2, "dog": 1, "hen": 1}
    assert sorted(names([*train, *valid])) == sorted(str(path.relative_to(folder)) for path in folder.rglob("*.png"))
    assert names(images_from_folder(folder, seed=1).valid()) == names(valid)
    assert any(names(images_from_folder(folder, seed=seed).valid()) != names(valid) for seed in (2, 3, 4))
    assert images_from_folder(folder, seed=1).identity == corpus.identity
    Image.new("L", (4, 4), 99).save(folder / "cat" / "00.png")
    assert images_from_folder(folder, seed=1).identity != corpus.identity, "an image changed"


def test_equal_images_are_all_held_out_or_all_trained_on(folder):
    for label in ("cat", "hen"):
        for number in range(15):
            shutil.copy(folder / label / f"{number % 5 % 2:02}.png", folder / label / f"copy {number}.png")
    corpus = images_from_folder(folder, seed=1)
    train, valid = ([(image.label, image.sha256) for image in part] for part in (corpus.train(), corpus.valid()))
    assert not set(train) & set(valid) and {label for label, _ in train} == {label for label, _ in valid}
    assert len(train) + len(valid) == 33 + 30


def test_own_validation_images_and_images_in_deeper_folders(folder, tmp_path):
    valid = make_folder(tmp_path / "valid", {"cat": 1, "hen": 1})
    (folder / "cat" / "deeper").mkdir()
    (folder / "cat" / "00.png").rename(folder / "cat" / "deeper" / "00.PNG")
    corpus = images_from_folder(folder, valid)
    assert len(list(corpus.train())) == 33 and names(corpus.valid()) == ["cat/00.png", "hen/00.png"]
    assert "cat/00.PNG" in names(corpus.train())


def test_files_that_are_no_images_are_counted(folder, capsys):
    for name in ("notes.txt", "cat/readme.md", "dog/.hidden", ".hidden"):
        (folder / name).write_text("text")
    (folder / ".git").mkdir()
    assert len([*images_from_folder(folder).train(), *images_from_folder(folder).valid()]) == 33
    line, *_ = capsys.readouterr().err.splitlines()
    assert line.startswith("warning: 2 file(s) are no images in a class folder and are left out: ")
    assert "notes.txt" in line and "readme.md" in line and "hidden" not in line


def test_what_cannot_be_trained_on_is_refused(folder, tmp_path):
    for place, (counts, message) in enumerate(
        [
            (None, "no such folder: .*; expected one with a folder of images for each label"),
            ({}, "holds no images; expected a folder of images for each label"),
            ({"cat": 3}, "at least two labels, each a folder of images; received one alone, 'cat'"),
            ({"cat": 3, "dog": 1}, "the label 'dog' has one image, which cannot be trained on and held out"),
            ({"a\nb": 2, "cat": 2}, "a label must be printable text; received the folder 'a.*nb'"),
        ]
    ):
        other = tmp_path / str(place)
        if counts is not None:
            other.mkdir()
            make_folder(other, counts)
        with pytest.raises(RequestError, match=message):
            images_from_folder(other)
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
    assert sources.shape == (len(train), 8, 8) and sources.dtype == "uint8" and sources.max() == 255, "white is white"
    assert named_images("digits").identity == corpus.identity
    with pytest.raises(RequestError, match="named images are digits, or your own with --images; received: 'letters'"):
        named_images("letters")
    monkeypatch.setitem(sys.modules, "sklearn.datasets", None)
    with pytest.raises(RequestError, match="needs the package scikit-learn, which is not installed"):
        named_images("digits")


def test_pixels_are_read_once_and_broken_images_are_counted(folder, tmp_path, capsys):
    (folder / "dog" / "03.png").write_bytes((folder / "dog" / "03.png").read_bytes()[:50])
    images: list[Any] = list(images_from_folder(folder).train())
    labels = ["cat", "dog", "hen"]
    found = read_pixels(tmp_path / "cache" / "train.images", images, labels, 4, 1)
    err = capsys.readouterr().err
    broken = [image for image in images if image.source.name == "03.png" and image.label == "dog"]
    assert len(found.labels) == len(images) - len(broken)
    if broken:
        assert err.startswith("warning: 1 image(s) cannot be read and are left out: ") and "03.png (" in err
    whole = [image for image in images if image not in broken]
    assert [labels[place] for place in found.labels] == [image.label for image in whole]
    greys = [int(np.asarray(Image.open(image.source))[0, 0]) for image in whole]
    np.testing.assert_array_equal(
        found.images, np.array(greys, "uint8").reshape(-1, 1, 1, 1) * np.ones((1, 4, 4, 1), "uint8")
    )
    shutil.rmtree(folder)
    again = read_pixels(tmp_path / "cache" / "train.images", images, labels, 4, 1)
    np.testing.assert_array_equal(again.images, found.images)
    assert capsys.readouterr().err == "" and not found.images.flags.writeable


def pixels(count=23):
    """Images whose pixels all are their number."""
    images = np.arange(count, dtype="uint8")[:, None, None, None] * np.ones((1, 3, 3, 1), "uint8")
    return Pixels(images, np.arange(count, dtype="int32"))


@pytest.mark.parametrize(("num_replicas", "accumulate", "shuffle"), [(1, 1, True), (3, 2, True), (2, 1, False)])
def test_batches_hold_each_image_once(num_replicas, accumulate, shuffle):
    plan = ImagePlan(pixels(), 5, 64, 1, num_replicas, accumulate, shuffle)
    assert plan.rows == 12 and plan.divisor == num_replicas * accumulate
    orders = []
    for epoch in range(2):
        batches = batches_of(plan, epoch)
        assert all(len(batch.labels) * 5 <= 64 for batch in batches)
        for _, labels, weights in batches:
            assert not labels[weights == 0].any()
        images, labels, weights = (
            np.concatenate(arrays)
            for arrays in zip(*((batch.inputs["images"], *batch[1:]) for batch in batches), strict=True)
        )
        np.testing.assert_array_equal(images[weights > 0, 0, 0, 0], labels[weights > 0])
        assert not images[weights == 0].any()
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
