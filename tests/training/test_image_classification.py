"""Classifiers of images through the commands: trained, resumed, fine-tuned, used; and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from keras_transformer import load_recognizer
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.errors import RequestError
from keras_transformer.models import ImageClassifier
from keras_transformer.run_folder import load_model, read_config
from keras_transformer.training.settings import resolve
from tests.golden.stored import unpack
from tests.interrupted import interrupt
from tests.training.runs import assert_same_end, assert_weights_of, begun, column, trained

SIZES = "--image-size 4 --patch-size 2 --channels 1 --num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32"
FLAGS = f"--task images --images images {SIZES} --token-budget 100 --warmup-steps 5 --average-last 1 --devices cpu"
CORNERS = {"left": (0, 0), "right": (0, 2), "below": (2, 0)}


def draw_images(folder: Path, count: int, seed: int) -> None:
    """Images with a bright corner, which is the label, in a folder of class folders."""
    random = np.random.default_rng(seed)
    for label, (row, place) in CORNERS.items():
        (folder / label).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 100, (4, 4)).astype("uint8")
            pixels[row : row + 2, place : place + 2] += 120
            Image.fromarray(pixels).save(folder / label / f"{number:02}.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with images, and the run `whole`; `said` is what it said."""
    folder = tmp_path_factory.mktemp("images")
    draw_images(folder / "images", 40, 1)
    draw_images(folder / "valid", 3, 2)
    (folder / "images" / "left" / "broken.png").write_bytes(b"broken")
    more = "--dropout 0.1 --random-shift 1 --stem attentive:filters=4 --ema 0.5 --learning-rate-factor 0.2"
    (folder / "said").write_text(trained(folder, f"{FLAGS} {more} --steps 8 --checkpoint-every 6 --out whole"))
    return folder


@pytest.fixture(scope="module")
def learned(tmp_path_factory) -> Path:
    """A run with patches that has learned the same for longer."""
    return unpack("images", tmp_path_factory.mktemp("learned") / "run")


def test_a_run_says_what_it_is_and_how_well_it_does(folder):
    run = folder / "whole"
    config = read_config(run)
    assert config["labels"] == sorted(CORNERS) and config["model"]["num_labels"] == 3
    assert config["model"].items() >= {"kind": "image-classifier", "image_size": 4, "channels": 1}.items()
    assert config["model"]["positions"]["name"] == "learned" and config["model"]["attention_bias"] is True
    assert "vocabulary_size" not in config["settings"] and config["settings"]["images"] == "images"
    assert config["weights"]["kind"] == "moving average"
    assert config["parameters"] == load_model(run).count_params()
    kept = np.load(run / "validation.npz", allow_pickle=False)
    assert kept["images"].shape == (12, 4, 4, 1) and kept["images"].dtype == "uint8"
    for image, label in zip(kept["images"], kept["labels"], strict=True):
        row, place = CORNERS[config["labels"][label]]
        assert image[row : row + 2, place : place + 2].min() >= 120, "the label is that of its folder"
    found = load_recognizer(run).classify(kept["images"])
    right = [one.label == config["labels"][label] for one, label in zip(found, kept["labels"], strict=True)]
    assert np.mean(right) == config["weights"]["val_accuracy"]
    assert column(run, "val_loss")[1] < column(run, "val_loss")[0]


def test_settings_reach_the_model_and_the_batches(folder):
    config = read_config(folder / "whole")
    assert config["model"]["stem"] == {"name": "attentive", "filters": 4}
    assert config["settings"]["random_shift"] == 1 and config["settings"]["stem"] == "attentive:filters=4"
    assert load_recognizer(folder / "whole").model.has_pixel_scores


def test_what_is_said_while_training(folder):
    said = (folder / "said").read_text()
    assert "files: 108 images with 3 labels, 12 for validation\n" in said
    assert "warning: 1 image(s) cannot be read and are left out: images/left/broken.png (it is no image in" in said
    assert "images/s" in said


def test_a_resumed_run_ends_with_the_same_bits(folder):
    interrupt(str(folder / "whole"), str(folder / "begun"), 8)
    assert "resuming at step 6\n" in trained(folder, "--resume --out begun")
    assert_same_end(folder / "whole", folder / "begun", 8)


def test_a_run_that_is_fine_tuned_begins_with_sizes_and_weights(folder):
    made = begun(folder, "--task images --images images --init-from whole --steps 2 --devices cpu --out tuned")
    assert read_config(folder / "tuned")["model"] == read_config(folder / "whole")["model"]
    assert_weights_of(made.model, folder / "whole")


def test_own_validation_images_and_settings_of_pixels(folder):
    flags = "--preset modern --channels 3 --pixel-mean 0.3,0.4,0.5 --pixel-std 0.7 --mixed-precision bfloat16"
    more = "--valid-images valid --steps 1 --accumulate 2 --out valid-run"
    trained(folder, f"{FLAGS} {flags} {more}")
    config = read_config(folder / "valid-run")
    assert len(np.load(folder / "valid-run" / "validation.npz")["labels"]) == 9
    assert (config["model"]["pixel_mean"], config["model"]["pixel_std"]) == ([0.3, 0.4, 0.5], 0.7)
    assert config["model"]["norm"]["name"] == "rms", "of the preset"
    assert config["model"]["positions"]["name"] == "learned", "a Vision Transformer's"


def test_classify_files_and_count_those_that_cannot_be_read(folder, learned, run):
    files = [str(folder / "valid" / label / "00.png") for label in CORNERS]
    status, out, _ = run("classify", learned, *files)
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0 and [file for *_, file in rows] == files
    found = load_recognizer(learned).classify(files)
    assert [(label, float(share)) for label, share, _ in rows] == [
        (one.label, pytest.approx(one.probability, abs=1e-4)) for one in found
    ]
    assert [one.label for one in found] == [*CORNERS]
    broken = str(folder / "images" / "left" / "broken.png")
    asked = [files[0], broken, files[1], files[2], "missing.png"]
    status, out, err = run("classify", learned, *asked, "--batch-size", "2")
    assert status == 1 and [line.split("\t") for line in out.splitlines()] == rows
    assert f"warning: {broken} cannot be read: it is no image" in err
    assert "warning: missing.png cannot be read: there is no such file\n" in err
    assert err.endswith("error: 2 of 5 images cannot be read; the others are answered\n")


def test_an_image_of_another_size_is_resized(folder, learned, tmp_path):
    recognizer = load_recognizer(learned)
    small = folder / "valid" / "right" / "00.png"
    image = Image.open(small)
    image.resize((40, 40), Image.Resampling.NEAREST).convert("RGB").save(tmp_path / "large.png")
    [one, large, array] = recognizer.classify([small, str(tmp_path / "large.png"), np.asarray(image)])
    assert one.label == large.label == "right" and one == array
    assert one.probability == pytest.approx(large.probability, abs=0.05)
    with pytest.raises(RequestError, match="image 1 cannot be read: there is no such file"):
        recognizer.classify([tmp_path / "large.png", tmp_path / "none.png"])
    assert repr(recognizer).endswith("width 16, images of 4 x 4 pixels with 1 channels, 3 labels>")


def test_where_a_pixel_looks(folder, learned):
    recognizer = load_recognizer(folder / "whole")
    file = folder / "valid" / "right" / "00.png"
    looks = recognizer.looks(file, (3, 1))
    assert {name: each.shape for name, each in looks.items()} == {"pixels": (4, 4), "layer 1": (2, 2)}
    images = recognizer.pixels(file)[None]
    scores = np.asarray(recognizer.model.attention_scores({"images": images}))[0, 0].mean(0)  # of layer and image
    np.testing.assert_allclose(looks["layer 1"].ravel(), scores[3, 1:], atol=1e-6)  # the patch of pixel 3,1
    of_pixel = np.asarray(recognizer.model.pixel_scores(images))[0, 13]
    np.testing.assert_allclose(looks["pixels"].ravel(), of_pixel, atol=1e-6)
    assert "pixels" not in load_recognizer(learned).looks(file, (0, 0))
    with pytest.raises(RequestError, match="a pixel's row and column go from 0 to 3; received: 4,0"):
        recognizer.looks(file, (4, 0))


def test_a_picture_of_where_a_pixel_looks(folder, run, tmp_path):
    file, out = folder / "valid" / "right" / "00.png", tmp_path / "looks.png"
    words = ["classify", folder / "whole", file, "--picture", out]
    assert run(*words, "--pixel", "1,3")[::2] == (0, f"wrote {out}: where the pixel 1,3 looks\n")
    assert Image.open(out).size[0] > 300
    assert "the pixel 2,2 looks" in run(*words)[2]
    for wrong, message in {
        (*words, "--pixel", "1"): "--pixel must be a row and a column, such as 3,4; received: 1",
        (*words, "--pixel", "9,9"): "row and column go from 0 to 3; received: 9,9",
        (*words, "--picture", "looks.doc"): "must be a .png, .pdf or .svg file in a folder that is there; received: lo",
        (*words[:3], file, "--picture", out): "--picture is about one image; received 2",
        (*words[:3], "--pixel", "1,3"): "--pixel needs --picture",
        ("classify", folder / "whole"): "classifies images: give their files, as in `classify RUN",
        ("translate", folder / "whole"): "received image-classifier, which `classify` takes",
        ("generate", folder / "whole"): "received image-classifier, which `classify` takes",
        ("embed", folder / "whole", "--out", "vectors.npy"): "received image-classifier, which `classify` takes",
    }.items():
        status, _, err = run(*wrong)
        assert status == 2 and message in err, wrong


def test_average_and_info_take_it(folder, tmp_path, run):
    shutil.copytree(folder / "whole", tmp_path / "run")
    assert run("average", tmp_path / "run", "--last", "1")[0] == 0
    assert "image_size: 4" in run("info", tmp_path / "run")[1]


REFUSED = {
    "--source belongs to --task translation or language-model; received --task images": "--source a --target b",
    "--vocabulary-size belongs to --task translation or language-model": "--vocabulary-size 9",
    "--context-length belongs to": "--context-length 9",
    "--images is your own folder, and --dataset belongs to a named corpus": "--images images --dataset digits",
    "--valid-images needs --images; received none": "--valid-images valid",
    "--patch-size must divide --image-size; received: --patch-size 3, --image-size 8": "--patch-size 3 --image-size 8",
    "--random-shift must be less than --image-size, 8; received: 8": "--random-shift 8 --image-size 8 --patch-size 2",
    "--stem must be one of patches, attentive; received: 'waves'": "--stem waves",
    "--channels must be 1 for grey or 3 for colour; received: 2": "--images images --channels 2",
    "the new run must not lie in --images, images": "--images images --out images/run",
    "no such folder: nowhere": "--images nowhere",
    "the token budget must hold an image of 197 positions": "--images images --token-budget 196",
    "named images are digits, or your own with --images; received: 'letters'": "--dataset letters",
    "that run holds a image-classifier; received --task classification": "--task classification --init-from whole",
    "--init-from: that run has --patch-size 2; received: 4": "--images images --init-from whole --patch-size 4",
    "no image of the label 'below' can be read: replace them": f"{SIZES} --token-budget 100 --images broken",
    "no image that is held out for validation can be read": f"{SIZES} --token-budget 100 --images images "
    "--valid-images broken",
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_requests_are_refused(folder, monkeypatch, refused, message):
    monkeypatch.chdir(folder)
    for label in CORNERS if message.startswith("no image") else []:
        (folder / "broken" / label).mkdir(parents=True, exist_ok=True)
        is_whole = "label" in message and label != "below"
        for path in (folder / "valid" / label).iterdir():
            content = path.read_bytes() if is_whole else f"broken {path}".encode()
            (folder / "broken" / label / path.name).write_bytes(content)
    words = REFUSED[message].split()
    assert message in refused(*([] if "--task" in words else ["--task", "images"]), *words)
    assert not Path("images/run").exists()


def test_the_settings_of_images_belong_to_images_alone():
    with pytest.raises(RequestError, match="--patch-size belongs to --task images; received --task translation"):
        resolve({"patch_size": 2}, {})
    settings = resolve({"task": "images"}, {})
    assert (settings.name, settings.positions, settings.residual) == ("digits", "learned", "pre_norm")
    assert resolve({"preset": "base"}, {}).positions == "sinusoidal", "other tasks keep their defaults"
    assert resolve({"task": "images", "positions": "rotary"}, {}).positions == "rotary"


def test_fewer_labels_than_the_model_has_are_refused(learned, tmp_path):
    shutil.copytree(learned, tmp_path / "run")
    config = json.loads((learned / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "labels": ["a", "b"]}))
    with pytest.raises(RequestError, match="expected 3 labels in config.json; received 2"):
        load_recognizer(tmp_path / "run")
    with pytest.raises(RequestError, match="expected no labels; received 0"):
        Recognizer(ImageClassifier(**{"num_layers": 1, "image_size": 16}), [])
