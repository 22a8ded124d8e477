"""BERT and ViT models that Hugging Face made and saved, imported: the same logits, vectors and pixels."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PIL import Image

import keras_transformer
from keras_transformer.decoding.sentences import padded
from keras_transformer.importing.huggingface import read_huggingface

pytestmark = pytest.mark.parity
WORDS = ["[PAD]", "the", "dog", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{number}" for number in range(40))]
SIZES: dict[str, Any] = {
    "hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4, "intermediate_size": 24,
    "id2label": {0: "a", 1: "b", 2: "c"}, "label2id": {"a": 0, "b": 1, "c": 2},
}  # fmt: skip


@pytest.fixture(scope="module")
def transformers() -> Any:
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


def randomized(model: Any) -> Any:
    """The model with weights that are far from their start."""
    import torch

    torch.manual_seed(3)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            is_gain = ("norm" in name.lower()) and not name.endswith("bias")
            parameter.normal_(float(is_gain), 0.3)
    return model.eval()


def bert(transformers: Any, kind: str, folder: Any, **options: Any) -> Any:
    """A BERT of a class of theirs, saved with its tokenizer."""
    config = transformers.BertConfig(vocab_size=len(WORDS), max_position_embeddings=20, **SIZES, **options)
    model = randomized(getattr(transformers, kind)(config))
    model.save_pretrained(str(folder))
    (folder / "words.txt").write_text("".join(f"{word}\n" for word in WORDS))
    transformers.BertTokenizer(str(folder / "words.txt")).save_pretrained(str(folder))
    (folder / "words.txt").unlink()
    return model


def batch(seed: int) -> tuple[list[list[int]], Any]:
    """Texts of several lengths in their ids, with start and end; and these with pad, as a tensor."""
    import torch

    draws = np.random.default_rng(seed)
    rows = [[4, *draws.integers(7, len(WORDS), length).tolist(), 5] for length in (3, 9, 1, 17)]
    return rows, torch.tensor(padded(rows))


def ours_of(classifier: Any, rows: list[list[int]]) -> np.ndarray:
    return padded([classifier.ids(" ".join(map(str, row))) for row in rows])


@pytest.mark.parametrize("options", [{}, {"hidden_act": "gelu_new", "type_vocab_size": 1}])
def test_masked_tokens(transformers, options, tmp_path):
    import torch

    model = bert(transformers, "BertForMaskedLM", tmp_path, **options)
    classifier = keras_transformer.import_huggingface(tmp_path)
    rows, inputs = batch(1)
    with torch.no_grad():
        expected = model(inputs, attention_mask=(inputs != 0).long()).logits.numpy()
    theirs = read_huggingface(tmp_path).source.ids
    ids = ours_of(classifier, rows)
    logits = np.array(classifier.model({"ids": ids}))
    for row, ours, their in zip(rows, logits, expected, strict=True):
        np.testing.assert_allclose(ours[: len(row)], their[: len(row), theirs], atol=1e-4)


def test_labels(transformers, tmp_path):
    import torch

    model = bert(transformers, "BertForSequenceClassification", tmp_path)
    classifier: Any = keras_transformer.import_huggingface(tmp_path)
    assert classifier.labels == ["a", "b", "c"]
    rows, inputs = batch(2)
    with torch.no_grad():
        expected = torch.softmax(model(inputs, attention_mask=(inputs != 0).long()).logits, -1).numpy()
    lines = [" ".join(map(str, row)) for row in rows]
    np.testing.assert_allclose(list(classifier.probabilities(lines)), expected, atol=1e-5)


def test_vectors_of_a_model_without_a_head(transformers, tmp_path):
    """The mean of the states, as sentence-transformers' mean pooling has it."""
    import torch

    model = bert(transformers, "BertModel", tmp_path)
    classifier: Any = keras_transformer.import_huggingface(tmp_path)
    rows, inputs = batch(3)
    mask = (inputs != 0).long()
    with torch.no_grad():
        states = model(inputs, attention_mask=mask).last_hidden_state
    expected = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
    vectors = classifier.embed([" ".join(map(str, row)) for row in rows])
    np.testing.assert_allclose(vectors, expected.numpy(), atol=1e-4)


@pytest.mark.parametrize("options", [{}, {"qkv_bias": False, "hidden_act": "gelu_new"}])
def test_images(transformers, options, tmp_path):
    import torch

    config = transformers.ViTConfig(image_size=12, patch_size=4, **SIZES, **options)
    model = randomized(transformers.ViTForImageClassification(config))
    model.save_pretrained(str(tmp_path))
    processor = image_processor(transformers, size={"height": 12, "width": 12}, image_std=[0.2, 0.3, 0.4])
    processor.save_pretrained(str(tmp_path))
    recognizer: Any = keras_transformer.import_huggingface(tmp_path)
    draws = np.random.default_rng(4)
    images = [draws.integers(0, 256, shape).astype("uint8") for shape in ((12, 12, 3), (30, 17, 3), (9, 40, 3))]
    inputs = processor([Image.fromarray(image) for image in images], return_tensors="pt")["pixel_values"]
    pixels = np.stack([recognizer.pixels(image) for image in images])
    ours = np.array(recognizer.model.pixels(pixels)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(ours, inputs.numpy(), atol=1e-4)
    with torch.no_grad():
        expected = model(inputs).logits.numpy()
    np.testing.assert_allclose(np.array(recognizer.model({"images": pixels})), expected, atol=1e-4)


def image_processor(transformers: Any, **options: Any) -> Any:
    """The processor of images that resizes by Pillow."""
    for name in ("ViTImageProcessorPil", "ViTImageProcessor"):
        if hasattr(transformers, name):
            return getattr(transformers, name)(**options)
    raise AssertionError("no processor of images")
