"""Classifiers of images through the commands: what is held out, what a trained one answers, and what is refused."""

import json
import random
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_transformer import load_recognizer
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.errors import RequestError
from keras_transformer.models import ImageClassifier
from keras_transformer.run_folder import read_config
from tests.golden.cases import CORNERS, write_images
from tests.golden.stored import unpack
from tests.training.runs import begun

SIZES = "--image-size 4 --patch-size 2 --channels 1 --num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32"
FLAGS = f"--task images --images images {SIZES} --token-budget 100 --devices cpu"
BROKEN, RIGHT = Path("images/left/broken.png"), Path("valid-images/right/00.png")


@pytest.fixture(scope="module")
def texts(tmp_path_factory) -> Path:
    """A folder with images, one of them broken, a run `learned`, and a run of random weights with a `stem`."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, random.Random(7))
    (folder / BROKEN).write_bytes(b"broken")
    unpack("images", folder / "learned")
    model = ImageClassifier(3, 4, 2, 1, num_layers=1, num_heads=2, hidden_dim=8, stem={"name": "attentive"})
    Recognizer(model, [*CORNERS]).save(folder / "stem")
    return folder


@pytest.fixture
def folder(texts, monkeypatch) -> Path:
    monkeypatch.chdir(texts)
    return texts


def test_a_share_of_the_images_is_held_out_unless_others_are_named(folder):
    made = begun(folder, f"{FLAGS} --random-shift 1 --stem attentive:filters=4 --out run", with_model=False)
    assert "files: 81 images with 3 labels, 9 for validation\n" in made.said
    assert f"warning: 1 image(s) cannot be read and are left out: {BROKEN} (it is no image in" in made.said
    config, kept = read_config(folder / "run"), np.load(folder / "run/validation.npz")
    assert config["labels"] == sorted(CORNERS) and config["model"]["num_labels"] == 3
    assert config["model"]["stem"] == {"name": "attentive", "filters": 4} and made.data.plan.random_shift == 1
    assert config["model"]["attention_bias"] is True and "vocabulary_size" not in config["settings"]
    assert kept["images"].shape == (9, 4, 4, 1) and kept["images"].dtype == "uint8"
    for image, label in zip(kept["images"], kept["labels"], strict=True):
        row, place = CORNERS[config["labels"][label]]
        assert image[row : row + 2, place : place + 2].min() >= 120, "the label is that of its folder"
    flags = "--preset modern --channels 3 --pixel-mean 0.3,0.4,0.5 --pixel-std 0.7 --valid-images valid-images"
    model = begun(folder, f"{FLAGS} {flags} --out other", with_model=False).run.config["model"]
    assert len(np.load(folder / "other/validation.npz")["labels"]) == 6
    assert (model["pixel_mean"], model["pixel_std"]) == ([0.3, 0.4, 0.5], 0.7)
    assert (model["norm"]["name"], model["positions"]["name"]) == ("rms", "learned"), "of preset and task"


def test_classify_files_and_count_those_that_cannot_be_read(folder, run):
    files = [f"valid-images/{label}/00.png" for label in CORNERS]
    status, out, _ = run("classify", "learned", *files)
    rows, found = [line.split("\t") for line in out.splitlines()], load_recognizer("learned").classify(files)
    assert status == 0 and [one.label for one in found] == [*CORNERS]
    expected = zip(found, files, strict=True)
    assert rows == [[one.label, f"{one.probability:.4f}", file] for one, file in expected]
    status, out, err = run("classify", "learned", files[0], BROKEN, *files[1:], "missing.png", "--batch-size", "2")
    assert status == 1 and [line.split("\t") for line in out.splitlines()] == rows
    assert f"warning: {BROKEN} cannot be read: it is no image" in err
    assert "warning: missing.png cannot be read: there is no such file\n" in err
    assert err.endswith("error: 2 of 5 images cannot be read; the others are answered\n")


def test_images_are_files_of_any_size_or_arrays(folder, tmp_path):
    recognizer, image = load_recognizer("learned"), Image.open(RIGHT)
    image.resize((40, 40), Image.Resampling.NEAREST).convert("RGB").save(tmp_path / "large.png")
    [one, large, array] = recognizer.classify([RIGHT, str(tmp_path / "large.png"), np.asarray(image)])
    assert one.label == large.label == "right" and one == array
    assert one.probability == pytest.approx(large.probability, abs=0.05)
    with pytest.raises(RequestError, match="image 1 cannot be read: there is no such file"):
        recognizer.classify([RIGHT, tmp_path / "none.png"])


def test_where_a_pixel_looks(folder, run, tmp_path):
    recognizer = load_recognizer("stem")
    looks, images = recognizer.looks(RIGHT, (3, 1)), recognizer.pixels(RIGHT)[None]
    assert {name: each.shape for name, each in looks.items()} == {"pixels": (4, 4), "layer 1": (2, 2)}
    scores = np.asarray(recognizer.model.attention_scores({"images": images}))[0, 0].mean(0)  # of layer and image
    np.testing.assert_allclose(looks["layer 1"].ravel(), scores[3, 1:], atol=1e-6)  # the patch of pixel 3,1
    of_pixel = np.asarray(recognizer.model.pixel_scores(images))[0, 13]
    np.testing.assert_allclose(looks["pixels"].ravel(), of_pixel, atol=1e-6)
    assert "pixels" not in load_recognizer("learned").looks(RIGHT, (0, 0))
    out = tmp_path / "looks.png"
    words = ["classify", "stem", RIGHT, "--picture", out]
    assert run(*words, "--pixel", "1,3")[::2] == (0, f"wrote {out}: where the pixel 1,3 looks\n")
    assert Image.open(out).size[0] > 300
    for wrong, message in {
        (*words, "--pixel", "1"): "--pixel must be a row and a column, such as 3,4; received: 1",
        (*words, "--pixel", "4,0"): "a pixel's row and column go from 0 to 3; received: 4,0",
        (*words, "--picture", "looks.doc"): "must be a .png, .pdf or .svg file in a folder that is there; received: lo",
        (*words[:3], RIGHT, "--picture", out): "--picture is about one image; received 2",
        ("classify", "stem"): "classifies images: give their files, as in `classify RUN",
    }.items():
        status, _, err = run(*wrong)
        assert status == 2 and message in err, wrong


REFUSED = {
    "--source a --target b": "--source belongs to --task translation or language-model; received --task images",
    "--patch-size 3 --image-size 8": "--patch-size must divide --image-size; received: --patch-size 3, --image-size 8",
    "--random-shift 8 --image-size 8 --patch-size 2": "--random-shift must be less than --image-size, 8; received: 8",
    "--images images --channels 2": "--channels must be 1 for grey or 3 for colour; received: 2",
    "--images images --out images/run": "the new run must not lie in --images, images",
    f"{FLAGS} --images part": "no image of the label 'below' can be read: replace them",
    f"{FLAGS} --valid-images broken": "no image that is held out for validation can be read",
}


def test_wrong_requests_are_refused(folder, refused):
    for name, labels in {"part": ["left", "right"], "broken": []}.items():
        shutil.copytree("valid-images", name)
        for path in (path for path in Path(name).glob("*/*") if path.parent.name not in labels):
            path.write_bytes(f"broken {path}".encode())
    for flags, message in REFUSED.items():
        assert message in refused(*([] if "--task" in flags else ["--task", "images"]), *flags.split()), flags
    assert not Path("images/run").exists()
    shutil.copytree("learned", "fewer")
    Path("fewer/config.json").write_text(json.dumps({**read_config("learned"), "labels": ["a", "b"]}))
    with pytest.raises(RequestError, match="expected 3 labels in config.json; received 2"):
        load_recognizer("fewer")
