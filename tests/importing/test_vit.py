"""The import of ViT's models: the pixels that their processor makes, and runs that classify images."""

from typing import Any

import numpy as np
from PIL import Image

import keras_transformer
from keras_transformer.__main__ import main
from keras_transformer.importing.huggingface import read_huggingface
from tests.answers import printed, refused
from tests.importing.theirs import change, write


def test_pixels_are_as_the_processor_says(tmp_path):
    change(write("vit", tmp_path), "preprocessor_config.json", image_mean=[0.5, 0.4, 0.3], image_std=[0.5] * 3, size=6)
    config = read_huggingface(tmp_path).config
    assert (config["pixel_mean"], config["pixel_std"]) == ([0.5, 0.4, 0.3], 0.5)
    change(tmp_path, "preprocessor_config.json", do_normalize=False)
    config = read_huggingface(tmp_path).config
    assert (config["pixel_mean"], config["pixel_std"]) == (0.0, 1.0)


def test_the_command_writes_a_run_that_classifies_images(tmp_path, capsys):
    folder, run, photos = write("vit", tmp_path / "model"), tmp_path / "run", tmp_path / "photos"
    (photos / "birds").mkdir(parents=True)
    draws = np.random.default_rng(1)
    for number in range(3):
        image = draws.integers(0, 256, (9, 12, 3)).astype("uint8")
        Image.fromarray(image).save(photos / "birds" / f"{number}.png")
    (photos / "notes.txt").write_text("three birds")
    assert main(["import", str(folder), str(run), "--valid-images", str(photos)]) == 0
    assert "images of 6 x 6 pixels with 3 channels, 3 labels" in capsys.readouterr().err
    recognizer: Any = keras_transformer.import_huggingface(folder)
    files = sorted((photos / "birds").iterdir())
    kept = np.load(run / "validation.npz", allow_pickle=False)["images"]
    np.testing.assert_array_equal(kept, [recognizer.pixels(file) for file in files])
    labels = [line.split("\t")[0] for line in printed("classify", run, *files).splitlines()]
    assert labels == [one.label for one in recognizer.classify(files)]


def test_the_command_refuses_what_does_not_fit(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "one.png").write_bytes(b"broken")
    for kind, message in (
        ("vit", "image 0 cannot be read: it is no image"),
        ("bert-labels", "--valid-images is for --task images; received it"),
    ):
        write(kind, tmp_path / kind)
        assert message in refused("import", kind, "run", "--valid-images", "broken")
    assert not (tmp_path / "run").exists()
