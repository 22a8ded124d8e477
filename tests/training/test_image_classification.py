"""Classifiers of images through the commands: trained, resumed, fine-tuned, used; and what is refused."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import train
from keras_transformer import load_recognizer
from keras_transformer.__main__ import main as command
from keras_transformer.errors import RequestError
from keras_transformer.models import ImageClassifier
from keras_transformer.run_folder import load_model, read_config
from keras_transformer.training.settings import resolve
from tests.training.test_family_runs import same_arrays
from tests.training.test_language_modelling import train_all

SIZES = "--image-size 4 --patch-size 2 --channels 1 --num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32"
FLAGS = f"--task images --images images {SIZES} --token-budget 100 --warmup-steps 20 --average-last 1"
RUNS = [
    f"{FLAGS} --steps 4 --checkpoint-every 2 --dropout 0.2 --random-shift 1 --stem attentive:filters=4 --devices cpu "
    "--out whole",
    "--resume --out begun --steps 4",
    f"{FLAGS} --steps 100 --checkpoint-every 50 --dropout 0 --learning-rate-factor 0.5 --ema 0.9 --devices cpu "
    "--out learned",
    "--task images --images images --init-from learned --steps 2 --checkpoint-every 1 --devices cpu --out tuned",
    f"{FLAGS} --steps 1 --valid-images valid --mixed-precision bfloat16 --preset modern --accumulate 2 "
    "--channels 3 --pixel-mean 0.3,0.4,0.5 --pixel-std 0.7 --devices cpu --out valid-run",
]
CORNERS = {"left": (0, 0), "right": (0, 2), "below": (2, 0)}


def draw_images(folder: Path, count: int, seed: int) -> None:
    """Images with a bright corner, which is the label, in a folder of class folders."""
    random = np.random.default_rng(seed)
    for label, (row, column) in CORNERS.items():
        (folder / label).mkdir(parents=True)
        for number in range(count):
            pixels = random.integers(0, 100, (4, 4)).astype("uint8")
            pixels[row : row + 2, column : column + 2] += 120
            Image.fromarray(pixels).save(folder / label / f"{number:02}.png")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A folder with images and runs."""
    folder = tmp_path_factory.mktemp("images")
    draw_images(folder / "images", 40, 1)
    draw_images(folder / "valid", 3, 2)
    (folder / "images" / "left" / "broken.png").write_bytes(b"broken")
    (folder / "said").write_text(train_all(folder, RUNS))
    return folder


def test_a_run_learns_and_says_how_well(folder):
    config = read_config(folder / "learned")
    assert config["labels"] == sorted(CORNERS) and config["model"]["num_labels"] == 3
    assert config["model"].items() >= {"kind": "image-classifier", "image_size": 4, "channels": 1}.items()
    assert config["model"]["positions"]["name"] == "learned" and config["model"]["attention_bias"] is True
    assert "vocabulary_size" not in config["settings"] and config["settings"]["images"] == "images"
    assert config["weights"]["val_accuracy"] >= 0.9 and config["weights"]["kind"] == "moving average"
    assert config["parameters"] == load_model(folder / "learned").count_params()
    kept = np.load(folder / "learned" / "validation.npz", allow_pickle=False)
    assert kept["images"].shape == (12, 4, 4, 1) and kept["images"].dtype == "uint8"
    found = load_recognizer(folder / "learned").classify(kept["images"])
    right = [one.label == config["labels"][label] for one, label in zip(found, kept["labels"], strict=True)]
    assert np.mean(right) == config["weights"]["val_accuracy"]


def test_what_is_said_while_training(folder):
    said = (folder / "said").read_text()
    assert "files: 108 images with 3 labels, 12 for validation\n" in said
    assert "warning: 1 image(s) cannot be read and are left out: images/left/broken.png (it is no image in" in said
    assert "images/s" in said


def test_a_resumed_run_ends_with_the_same_bits(folder):
    for part in ("weights", "state"):
        name = f"checkpoints/00000004.{part}.npz"
        assert same_arrays(folder / "whole" / name, folder / "begun" / name)


def test_a_run_that_is_fine_tuned_keeps_sizes_and_nearly_its_weights(folder):
    learned, tuned = folder / "learned", folder / "tuned"
    assert read_config(tuned)["model"] == read_config(learned)["model"]
    weights = [load_model(one).get_weights() for one in (learned, tuned)]
    near = [np.abs(a - b).max() for a, b in zip(*weights, strict=True)]
    assert 0 < max(near) < 0.1


def test_own_validation_images_and_settings_of_pixels(folder):
    config = read_config(folder / "valid-run")
    assert len(np.load(folder / "valid-run" / "validation.npz")["labels"]) == 9
    assert (config["model"]["pixel_mean"], config["model"]["pixel_std"]) == ([0.3, 0.4, 0.5], 0.7)
    assert config["model"]["norm"]["name"] == "rms", "of the preset"
    assert config["model"]["positions"]["name"] == "learned", "a Vision Transformer's"


def test_settings_reach_the_model_and_the_batches(folder):
    config = read_config(folder / "whole")
    assert config["model"]["stem"] == {"name": "attentive", "filters": 4}
    assert config["settings"]["random_shift"] == 1 and config["settings"]["stem"] == "attentive:filters=4"
    assert load_recognizer(folder / "whole").model.has_pixel_scores


def test_classify_files_and_count_those_that_cannot_be_read(folder, capsys):
    files = [str(folder / "valid" / label / "00.png") for label in CORNERS]
    assert command(["classify", str(folder / "learned"), *files]) == 0
    rows = [line.split("\t") for line in capsys.readouterr().out.splitlines()]
    assert [(label, file) for label, _, file in rows] == list(zip(CORNERS, files, strict=True))
    assert all(1 / 3 <= float(probability) <= 1 for _, probability, _ in rows)
    broken = str(folder / "images" / "left" / "broken.png")
    asked = [files[0], broken, files[1], files[2], "missing.png"]
    assert command(["classify", str(folder / "learned"), *asked, "--batch-size", "2"]) == 1
    out, err = capsys.readouterr()
    assert [line.split("\t") for line in out.splitlines()] == rows
    assert f"warning: {broken} cannot be read: it is no image" in err
    assert "warning: missing.png cannot be read: there is no such file\n" in err
    assert err.endswith("error: 2 of 5 images cannot be read; the others are answered\n")


def test_an_image_of_another_size_is_resized(folder, tmp_path):
    recognizer = load_recognizer(folder / "learned")
    small = Image.open(folder / "valid" / "right" / "00.png")
    small.resize((40, 40), Image.Resampling.NEAREST).convert("RGB").save(tmp_path / "large.png")
    [one, large, array] = recognizer.classify(
        [folder / "valid" / "right" / "00.png", str(tmp_path / "large.png"), np.asarray(small)]
    )
    assert one.label == large.label == "right" and one == array
    assert one.probability == pytest.approx(large.probability, abs=0.05)
    with pytest.raises(RequestError, match="image 1 cannot be read: there is no such file"):
        recognizer.classify([tmp_path / "large.png", tmp_path / "none.png"])
    assert repr(recognizer).endswith("width 16, images of 4 x 4 pixels with 1 channels, 3 labels>")


def test_where_a_pixel_looks(folder):
    recognizer = load_recognizer(folder / "whole")
    file = folder / "valid" / "right" / "00.png"
    looks = recognizer.looks(file, (3, 1))
    assert {name: each.shape for name, each in looks.items()} == {"pixels": (4, 4), "layer 1": (2, 2)}
    images = recognizer.pixels(file)[None]
    scores = np.asarray(recognizer.model.attention_scores({"images": images}))[0, 0].mean(0)  # of layer and image
    np.testing.assert_allclose(looks["layer 1"].ravel(), scores[3, 1:], atol=1e-6)  # the patch of pixel 3,1
    np.testing.assert_allclose(
        looks["pixels"].ravel(), np.asarray(recognizer.model.pixel_scores(images))[0, 13], atol=1e-6
    )
    assert "pixels" not in load_recognizer(folder / "learned").looks(file, (0, 0))
    with pytest.raises(RequestError, match="a pixel's row and column go from 0 to 3; received: 4,0"):
        recognizer.looks(file, (4, 0))


def test_a_picture_of_where_a_pixel_looks(folder, tmp_path, capsys):
    file, out = str(folder / "valid" / "right" / "00.png"), tmp_path / "looks.png"
    words = ["classify", str(folder / "whole"), file, "--picture", str(out)]
    assert command([*words, "--pixel", "1,3"]) == 0 and Image.open(out).size[0] > 300
    assert capsys.readouterr().err == f"wrote {out}: where the pixel 1,3 looks\n"
    out.unlink()
    assert command(words) == 0 and "the pixel 2,2 looks" in capsys.readouterr().err and out.is_file()
    for wrong, message in {
        ("--pixel", "1"): "--pixel must be a row and a column, such as 3,4; received: 1",
        ("--pixel", "9,9"): "row and column go from 0 to 3; received: 9,9",
        ("--picture", "looks.doc"): "must be a .png, .pdf or .svg file in a folder that is there; received: looks.doc",
    }.items():
        assert command([*words, *wrong]) == 2 and message in capsys.readouterr().err
    assert command(["classify", str(folder / "whole"), file, file, "--picture", str(out)]) == 2
    assert "--picture is about one image; received 2" in capsys.readouterr().err
    assert command(["classify", str(folder / "whole"), file, "--pixel", "1,3"]) == 2
    assert "--pixel needs --picture" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["translate"], "received image-classifier, which `classify` takes"),
        (["generate"], "received image-classifier, which `classify` takes"),
        (["embed", "--out", "vectors.npy"], "received image-classifier, which `classify` takes"),
        (["classify"], "classifies images: give their files, as in `classify RUN"),
    ],
)
def test_other_commands_refuse_it_by_name(folder, capsys, words, message):
    assert command([words[0], str(folder / "whole"), *words[1:]]) == 2
    assert message in capsys.readouterr().err


def test_average_and_info_take_it(folder, tmp_path, capsys):
    shutil.copytree(folder / "learned", tmp_path / "run")
    assert command(["average", str(tmp_path / "run"), "--last", "1"]) == 0
    assert command(["info", str(tmp_path / "run")]) == 0
    assert "image_size: 4" in capsys.readouterr().out


REFUSED = {
    "--source belongs to --task translation or language-model; received --task images": "--source a --target b",
    "--vocabulary-size belongs to --task translation or language-model": "--vocabulary-size 9",
    "--context-length belongs to": "--context-length 9",
    "--images is your own folder, and --dataset belongs to a named corpus": "--images images --dataset digits",
    "--valid-images needs --images; received none": "--valid-images valid",
    "--patch-size must divide --image-size; received: --patch-size 3, --image-size 8": "--patch-size 3 --image-size 8",
    "--random-shift must be less than --image-size, 8; received: 8": "--random-shift 8 --image-size 8 --patch-size 2",
    "--stem must be one of patches, attentive; received: 'waves'": "--stem waves",
    "--channels must be 1 for grey or 3 for colour; received: 2": "--images images --channels 2 --out refused",
    "the new run must not lie in --images, images": "--images images --out images/run",
    "no such folder: nowhere": "--images nowhere --out refused",
    "the token budget must hold an image of 197 positions": "--images images --token-budget 196 --out refused",
    "named images are digits, or your own with --images; received: 'letters'": "--dataset letters --out refused",
    "that run holds a image-classifier; received --task classification": "--task classification --init-from learned",
    "--init-from: that run has --patch-size 2; received: 4": "--images images --init-from learned --patch-size 4",
}


@pytest.mark.parametrize("message", REFUSED)
def test_wrong_requests_are_refused(folder, monkeypatch, capsys, message):
    monkeypatch.chdir(folder)
    words = REFUSED[message].split()
    assert train.main([*([] if "--task" in words else ["--task", "images"]), *words]) == 2
    assert message in capsys.readouterr().err
    assert not Path("refused").exists() and not Path("images/run").exists()


def test_the_settings_of_images_belong_to_images_alone():
    with pytest.raises(RequestError, match="--patch-size belongs to --task images; received --task translation"):
        resolve({"patch_size": 2}, {})
    settings = resolve({"task": "images"}, {})
    assert (settings.name, settings.positions, settings.residual) == ("digits", "learned", "pre_norm")
    assert resolve({"preset": "base"}, {}).positions == "sinusoidal", "other tasks keep their defaults"
    assert resolve({"task": "images", "positions": "rotary"}, {}).positions == "rotary"


def test_images_of_a_label_that_cannot_be_read_are_refused(folder, tmp_path, capsys):
    shutil.copytree(folder / "valid", tmp_path / "images")
    for path in (tmp_path / "images" / "below").iterdir():
        path.write_bytes(f"broken {path.name}".encode())
    words = f"--task images --token-budget 100 --devices cpu {SIZES}".split()
    flags: list[Any] = [*words, "--images", tmp_path / "images", "--out", tmp_path / "run"]
    assert train.main([*map(str, flags)]) == 2
    assert "no image of the label 'below' can be read: replace them" in capsys.readouterr().err
    flags = [*words, "--images", folder / "images", "--valid-images", tmp_path / "images", "--out", tmp_path / "run"]
    for path in (tmp_path / "images").rglob("*.png"):
        path.write_bytes(b"broken")
    assert train.main([*map(str, flags)]) == 2
    assert "no image that is held out for validation can be read" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_fewer_labels_than_the_model_has_are_refused(folder, tmp_path):
    shutil.copytree(folder / "whole", tmp_path / "run")
    config = json.loads((folder / "whole" / "config.json").read_text())
    (tmp_path / "run" / "config.json").write_text(json.dumps({**config, "labels": ["a", "b"]}))
    with pytest.raises(RequestError, match="expected 3 labels in config.json; received 2"):
        load_recognizer(tmp_path / "run")
    from keras_transformer.decoding.recognizer import Recognizer

    with pytest.raises(RequestError, match="expected no labels; received 0"):
        Recognizer(ImageClassifier(**{"num_layers": 1, "image_size": 16}), [])
