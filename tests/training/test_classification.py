"""Classifiers of texts and images through the commands: what is held out, what trained ones answer, what is refused."""

import json
import random
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_transformer import load_classifier, load_recognizer
from keras_transformer.core.errors import RequestError
from keras_transformer.models import Encoder, ImageClassifier
from keras_transformer.runs.run_folder import RunFolder, read_config, write_config
from keras_transformer.tasks.classification.corpus import labelled_from_file
from keras_transformer.tasks.images.pipeline import Recognizer
from keras_transformer.training.learning import inherit
from tests.golden.cases import CORNERS, LABELS, write_images, write_labelled
from tests.golden.stored import unpack
from tests.layer_check import array, assert_equal, randomize
from tests.training.runs import begun


@pytest.fixture
def learned(tmp_path) -> Path:
    """A run that knows which words tell the label."""
    return unpack("classification", tmp_path / "learned")


def test_a_tenth_of_the_lines_is_held_out_and_long_ones_are_cut(tmp_path):
    write_labelled(tmp_path, random.Random(7))
    flags = "--task classification --text text --vocabulary-size 36 --context-length 6 --devices cpu --out run"
    made = begun(tmp_path, flags, with_model=False)
    lines = (tmp_path / "text").read_text().splitlines()
    held_out = (tmp_path / "run/validation.text").read_text().splitlines()
    assert 0 < len(held_out) <= len(lines) // 10 + 3 and held_out == [line for line in lines if line in {*held_out}]
    assert made.run.config.labels == [*LABELS] and made.run.config.model["num_labels"] == 3
    assert "text(s) have more pieces than --context-length 6 and are cut" in made.said
    before = labelled_from_file(tmp_path / "text", seed=None)  # as a run began before lines were drawn
    made.run.config.corpus["identity"] = before.identity
    write_config(RunFolder(tmp_path / "run"), made.run.config)
    again = begun(tmp_path, "--resume --out run", with_model=False).run.corpus
    assert list(again.valid()) == list(before.valid()) != list(made.run.corpus.valid())


def test_classify_gives_a_line_for_a_line(learned, run):
    lines = b"the old cat\nred\n\none of a rose\xff\n" + b"the " * 40
    status, out, err = run("classify", learned, stdin=lines)
    rows = [line.split("\t") for line in out.splitlines()]
    assert status == 0 and [label for label, _ in rows][:2] == ["animal", "colour"] and len(rows) == 5
    assert all(1 / 3 <= float(probability) <= 1 for _, probability in rows)
    assert err.endswith("warning: 1 line(s) were not UTF-8; invalid bytes became U+FFFD\n")
    assert out == run("classify", learned, "--batch-size", 1, stdin=lines)[1]


def test_embed_writes_a_vector_for_each_line(learned, run, tmp_path):
    out = tmp_path / "vectors.npy"
    status, _, err = run("embed", learned, "--out", out, stdin="the old cat\nan old dog\n")
    assert status == 0 and err == f"wrote {out}: 2 vectors of 16 numbers\n"
    vectors, expected = np.load(out), load_classifier(learned).embed(["the old cat", "an old dog"])
    assert vectors.dtype == "float32"
    np.testing.assert_allclose(vectors, expected, atol=1e-6)
    assert run("embed", learned, "--out", out)[0] == 0 and np.load(out).shape == (0, 16)


MISUSED = {
    "classify {run} one.png": "IMAGE is for --task images; received it for --task classification",
    "embed {run} --out missing/vectors.npy": "choose another file with --out",
    "recommend {run}": "received encoder, which `classify` takes",
}


def test_what_a_classifier_of_texts_refuses(learned, run, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for words, message in MISUSED.items():
        status, out, err = run(*words.format(run=learned).split(), stdin="a\n")
        assert (status, out) == (2, "") and message in err and [*tmp_path.iterdir()] == [learned], words
    config = read_config(learned)
    for labels, message in (
        *((["a", 1], r"characters in a line under 'labels\[1\]'; received 1"), (["a", "a", "b"], "each label once")),
        (["a", "b"], "expected 3 labels in config.json; received 2"),
    ):
        (learned / "config.json").write_text(json.dumps({**config.sections, "labels": labels}))
        with pytest.raises(RequestError, match=message):
            load_classifier(learned)


SIZES = "--image-size 4 --patch-size 2 --channels 1 --num-layers 1 --num-heads 2 --hidden-dim 16 --intermediate-dim 32"
IMAGES = f"--task images --images images {SIZES} --token-budget 100 --devices cpu"
BROKEN, RIGHT = Path("images/left/broken.png"), Path("valid-images/right/00.png")


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    """A folder with images, one of them broken, a run `learned`, and a run of random weights with a `stem`."""
    folder = tmp_path_factory.mktemp("images")
    write_images(folder, random.Random(7))
    (folder / BROKEN).write_bytes(b"broken")
    unpack("images", folder / "learned")
    model = ImageClassifier(3, 4, 2, 1, num_layers=1, num_heads=2, hidden_dim=8, stem={"name": "attentive"})
    Recognizer(model, [*CORNERS]).save(folder / "stem")
    return folder


def test_a_share_of_the_images_is_held_out_unless_others_are_named(folder):
    made = begun(folder, f"{IMAGES} --random-shift 1 --stem attentive:filters=4 --out run", with_model=False)
    assert "files: 81 images with 3 labels, 9 for validation\n" in made.said
    assert f"warning: 1 image(s) cannot be read and are left out: {BROKEN} (it is no image in" in made.said
    config, kept = read_config(folder / "run"), np.load(folder / "run/validation.npz")
    assert config.labels == sorted(CORNERS) and config.model["num_labels"] == 3
    assert config.model["stem"] == {"name": "attentive", "filters": 4} and made.data.plan.random_shift == 1
    assert config.model["attention_bias"] is True and "vocabulary_size" not in config.settings
    for image, label in zip(kept["images"], kept["labels"], strict=True):
        row, place = CORNERS[sorted(CORNERS)[label]]
        assert image[row : row + 2, place : place + 2].min() >= 120, "the label is that of its folder"
    flags = "--preset modern --channels 3 --pixel-mean 0.3,0.4,0.5 --pixel-std 0.7 --valid-images valid-images"
    model = begun(folder, f"{IMAGES} {flags} --out other", with_model=False).run.config.model
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
    assert err.endswith("error: 2 of 5 images cannot be read; the others are answered\n")


def test_images_are_files_of_any_size_or_arrays(folder, tmp_path):
    recognizer, image = load_recognizer("learned"), Image.open(RIGHT)
    image.resize((40, 40), Image.Resampling.NEAREST).convert("RGB").save(tmp_path / "large.png")
    [one, large, array] = recognizer.classify([RIGHT, str(tmp_path / "large.png"), np.asarray(image)])
    assert one.label == large.label == "right" and one == array
    with pytest.raises(RequestError, match="image 1 cannot be read: there is no such file"):
        recognizer.classify([RIGHT, tmp_path / "none.png"])


REFUSED = {
    "--patch-size 3 --image-size 8": "--patch-size must divide --image-size; received: --patch-size 3, --image-size 8",
    "--random-shift 8 --image-size 8 --patch-size 2": "--random-shift must be less than --image-size, 8; received: 8",
    "--images images --channels 2": "--channels must be 1 for grey or 3 for colour; received: 2",
    "--images images --out images/run": "the new run must not lie in --images, images",
    f"{IMAGES} --images part": "no image of the label 'below' can be read: replace them",
    f"{IMAGES} --valid-images broken": "no image that is held out for validation can be read",
}


def test_wrong_requests_are_refused(folder, refused):
    for name, labels in {"part": ["left", "right"], "broken": []}.items():
        shutil.copytree("valid-images", name)
        for path in (path for path in Path(name).glob("*/*") if path.parent.name not in labels):
            path.write_bytes(f"broken {path}".encode())
    for flags, message in REFUSED.items():
        assert message in refused(*([] if "--task" in flags else ["--task", "images"]), *flags.split()), flags
    assert not Path("images/run").exists()


@pytest.mark.parametrize("has_same_labels", [False, True])
def test_the_layer_before_a_head_is_inherited_with_the_head_alone(has_same_labels):
    sizes: Any = {"num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 12, "head_layer": True}
    parent: Any = Encoder(20, num_labels=2 if has_same_labels else None, **sizes)
    model: Any = Encoder(20, num_labels=2, **sizes)
    randomize(parent)
    before = array(model.head_layer.kernel)
    inherit(model, parent, has_same_labels)
    assert_equal(array(model.embedding.embeddings), array(parent.embedding.embeddings))
    expected = array(parent.head_layer.kernel) if has_same_labels else before
    assert_equal(array(model.head_layer.kernel), expected)
