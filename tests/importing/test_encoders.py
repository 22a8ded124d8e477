"""The import of BERT's and ViT's models: weights, ids, labels, pixels, runs, and what is refused."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from PIL import Image

import keras_transformer
from keras_transformer.__main__ import main
from keras_transformer.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.text.tokenizer import END, MASK, START
from tests.importing.encoder_folders import CHANNELS, IMAGE, PATCH, SIZE, SPECIAL, WIDTH, tensors, write_encoder


def imported(folder, head, *arrays, **changes):
    return keras_transformer.import_huggingface(write_encoder(folder, head, *arrays, **changes))


def test_lines_are_ids_between_start_and_end(tmp_path):
    classifier = imported(tmp_path / "model", "labels")
    ids = read_huggingface(tmp_path / "model").source.ids
    assert ids[: MASK + 1] == [*SPECIAL.values()] and sorted(ids) == [*range(SIZE)]
    expected = [START, *(ids.index(id) for id in (5, 7, SPECIAL["[UNK]"])), END]
    for line in ("5 7 20", "21 5 7 20 22", "21 5 7 20 22 0 0"):
        assert classifier.ids(line) == expected
    with pytest.raises(RequestError, match="expected a line of ids from 0 to 29"):
        classifier.ids("the dog")


def test_labels_of_the_same_name_get_their_number(tmp_path):
    classifier = imported(tmp_path / "model", "labels")
    assert classifier.labels == ["crane", "dog", "crane (2)"]
    predictions = classifier.classify(["5 7", "8 9 10", "11"])
    assert {one.label for one in predictions} <= {*classifier.labels}
    names = {"0": "crane (2)", "1": "crane", "2": "crane"}
    assert read_huggingface(write_encoder(tmp_path / "other", "labels", id2label=names)).labels == [
        "crane (2)", "crane", "crane (2) (2)"
    ]  # fmt: skip


def test_the_first_segment_is_added_to_every_position(tmp_path):
    model, arrays = imported(tmp_path / "model", "none").model, tensors("none")
    segment = arrays["bert.embeddings.token_type_embeddings.weight"][0]
    expected = arrays["bert.embeddings.position_embeddings.weight"] + segment
    np.testing.assert_array_equal(np.array(model.positions.embeddings), expected)


def test_masks_are_filled(tmp_path):
    classifier = imported(tmp_path / "model", "tokens")
    [by_name], [by_id] = (classifier.fill([line]) for line in ("21 5 22 <mask> 21 7 22", "5 22 23 21 7"))
    assert by_name == by_id and len(by_name) == 1
    assert all(int(one.label.strip("▁")) < SIZE for one in by_name[0])
    model = classifier.model
    np.testing.assert_array_equal(
        np.array(model.head_layer.norm.gamma), tensors("tokens")["cls.predictions.transform.LayerNorm.gamma"]
    )


def test_a_model_without_a_head_gives_vectors_alone(tmp_path):
    arrays = {name.removeprefix("bert."): array for name, array in tensors("none").items()}
    classifier = imported(tmp_path / "model", "none", arrays)
    assert classifier.embed(["5 7", "8"]).shape == (2, WIDTH)
    with pytest.raises(RequestError, match="fills masks"):
        classifier.fill(["5 7"])
    with pytest.raises(RequestError, match="with labels"):
        classifier.classify(["5 7"])


def test_ids_of_a_tokenizer_in_json(tmp_path):
    folder = write_encoder(tmp_path / "model", "labels")
    (folder / "vocab.txt").unlink()
    tokens = [{"id": id, "content": token} for token, id in SPECIAL.items()]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens}))
    assert read_huggingface(folder).source.ids[: MASK + 1] == [*SPECIAL.values()]
    (folder / "tokenizer.json").write_text(json.dumps({"added_tokens": tokens[:-1]}))
    with pytest.raises(RequestError, match=r"tokenizer.json: expected \[MASK\] with an id of its own"):
        read_huggingface(folder)


def test_a_patch_is_projected_as_by_the_convolution(tmp_path):
    model, arrays = imported(tmp_path / "model", "images").model, tensors("images")
    kernel = arrays["vit.embeddings.patch_embeddings.projection.weight"]
    pixels = np.random.default_rng(1).normal(size=(1, IMAGE, IMAGE, CHANNELS)).astype("float32")
    patch = pixels[0, PATCH : 2 * PATCH, :PATCH]  # the first of the second row
    expected = np.einsum("ijc,dcij->d", patch, kernel) + arrays["vit.embeddings.patch_embeddings.projection.bias"]
    np.testing.assert_allclose(np.array(model.stem(pixels))[0, IMAGE // PATCH], expected, atol=1e-5)


def test_pixels_are_as_the_processor_says(tmp_path):
    config = imported(tmp_path / "one", "images").model.arguments()
    assert config["pixel_mean"] == [0.5, 0.4, 0.3] and config["pixel_std"] == 0.5
    config = imported(tmp_path / "two", "images", do_normalize=False, size=IMAGE).model.arguments()
    assert (config["pixel_mean"], config["pixel_std"]) == (0.0, 1.0)


def test_biases_may_be_missing(tmp_path):
    endings = tuple(f"attention.attention.{name}.bias" for name in ("query", "key", "value"))
    arrays = {name: array for name, array in tensors("images").items() if not name.endswith(endings)}
    model = imported(tmp_path / "model", "images", arrays, qkv_bias=False).model
    assert not np.array(model.stack.blocks[0].self_attention.query_bias).any()
    with pytest.raises(RequestError, match="expected a tensor .*query.bias"):
        imported(tmp_path / "model", "images", arrays)


def test_the_command_writes_a_run_that_classifies_images(tmp_path, capsys):
    folder, run, photos = (tmp_path / name for name in ("model", "run", "photos"))
    write_encoder(folder, "images")
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
    assert main(["classify", str(run), *map(str, files)]) == 0
    labels = [line.split("\t")[0] for line in capsys.readouterr().out.splitlines()]
    assert labels == [one.label for one in recognizer.classify(files)]


@pytest.mark.parametrize(
    ("head", "options", "message"),
    [
        ("images", ["--valid-images", "empty"], "expected a folder of images with --valid-images; found none in"),
        ("images", ["--valid-source", "text", "--valid-target", "text"], "which --valid-images are for"),
        ("labels", ["--valid-images", "photos"], "which --valid-source is for"),
        ("labels", [], "no run can be written of it"),
        ("images", ["--valid-images", "broken"], "image 0 cannot be read: it is no image"),
    ],
)
def test_the_command_refuses_what_does_not_fit(head, options, message, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    write_encoder(tmp_path / "model", head)
    for folder in ("empty", "photos", "broken"):
        (tmp_path / folder).mkdir()
    Image.new("RGB", (4, 4)).save("photos/one.png")
    (tmp_path / "broken" / "one.png").write_bytes(b"broken")
    (tmp_path / "text").write_text("a line\n")
    assert main(["import", "model", "run", *options]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "relative positions": ("labels", {"position_embedding_type": "relative_key"}, "position_embedding_type"),
    "several labels at once": ("labels", {"problem_type": "multi_label_classification"}, "problem_type"),
    "a decoder": ("tokens", {"is_decoder": True}, "is_decoder"),
    "an output of its own": ("tokens", {"tie_word_embeddings": False}, "tie_word_embeddings"),
    "another pad": ("labels", {"pad_token_id": 3}, "pad_token_id"),
    "labels that are not numbered": ("labels", {"id2label": {"0": "a", "2": "b"}}, "id2label"),
    "labels that are a list": ("labels", {"id2label": ["a", "b"]}, "id2label"),
    "labels that are numbers": ("labels", {"id2label": {"0": 1, "1": 2, "2": 3}}, "id2label"),
    "more labels than rows": ("labels", {"id2label": {str(id): f"{id}" for id in range(4)}}, "classifier.weight"),
    "more segments": ("labels", {"type_vocab_size": 3}, "token_type_embeddings"),
    "fewer layers than tensors": ("tokens", {"num_hidden_layers": 1}, "received 'bert.encoder.layer.1."),
    "a smaller vocabulary": ("labels", {"vocab_size": 22}, r"expected \[SEP\] with an id of its own below 22"),
    "unknown options": ("none", {"rotary": 4}, "rotary"),
    "patches that do not fit": ("images", {"patch_size": 4}, "patch_size"),
    "another size of images": ("images", {"size": {"height": 8, "width": 8}}, "'size': expected 6, as in config.json"),
    "images that are cut": ("images", {"do_center_crop": True}, "do_center_crop"),
    "another filter": ("images", {"resample": 3}, "resample"),
    "another scale": ("images", {"rescale_factor": 1}, "rescale_factor"),
    "means of other channels": ("images", {"image_mean": [0.1, 0.2]}, "one for each channel"),
    "means that are text": ("images", {"image_mean": "half"}, "pixel_mean"),
    "one label": ("images", {"id2label": {"0": "a"}}, "id2label"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_by_name(case, tmp_path):
    head, changes, message = REFUSED[case]
    with pytest.raises(RequestError, match=message):
        read_huggingface(write_encoder(tmp_path / "model", head, **changes))


def test_a_classifier_of_images_needs_its_processor(tmp_path):
    folder = write_encoder(tmp_path / "model", "images")
    (folder / "preprocessor_config.json").unlink()
    with pytest.raises(RequestError, match="expected a file preprocessor_config.json"):
        read_huggingface(folder)
