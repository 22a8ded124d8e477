"""Damaged folders: every damage is refused in one line, or harmless; none ends in another error."""

import json
import random

import pytest

from keras_transformer.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from tests.importing.test_torch_file import torch_file
from tests.importing.theirs import split, tensors_of, write
from tests.test_damaged_files import put, strange


def damaged(content: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, most of them in the headers; or a part removed or written twice."""
    first, last = sorted(draw.randrange(len(content)) for _ in range(2))
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 3, 20])):
        changed[draw.randrange(min(len(changed), draw.choice([64, 4096, len(changed)])))] = draw.randrange(256)
    return bytes(draw.choice([changed, content[:first], content[:first] + content[last:], content * 2]))


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(("marian", name) for name in (
            "config.json", "generation_config.json", "tokenizer_config.json", "vocab.json", "source.spm",
            "model.safetensors", "archive", "row", "model.safetensors.index.json",
        )),
        *((model, "config.json") for model in ("bart", "gpt2", "llama", "bert-labels", "vit")),
        *((model, "tokenizer.json") for model in ("bert-labels", "bart", "gpt2")), ("vit", "preprocessor_config.json"),
        *(("t5", name) for name in (
            "config.json", "tokenizer_config.json", "added_tokens.json", "spiece.model", "tokenizer.json",
        )),
    ],
)  # fmt: skip
def test_every_damage_is_refused_or_harmless(tmp_path, model, name):
    folder = write(model, tmp_path)
    if name == "added_tokens.json":
        (folder / name).write_text('{"<extra_id_0>": 159}')
    if name in ("archive", "row"):
        content = torch_file(tensors_of(folder), name == "archive")
        (folder / "model.safetensors").unlink()
        name = "pytorch_model.bin"
        (folder / name).write_bytes(content)
    if name == "model.safetensors.index.json":
        split(folder)
    if (model, name) == ("t5", "tokenizer.json"):
        (folder / "spiece.model").unlink()
    read_huggingface(folder)
    draw, whole, num_refused = random.Random(name), (folder / name).read_bytes(), 0
    contents = [damaged(whole, draw) for _ in range(40)]
    if name.endswith("json"):
        values = json.loads(whole)
        others = [json.dumps(put(values, *other)).encode() for other in strange(values, 3)]
        contents += draw.sample(others, min(len(others), 60))
    for content in contents:
        (folder / name).write_bytes(content)
        try:
            read_huggingface(folder)
        except RequestError as error:
            num_refused += 1
            assert "\n" not in str(error) and len(str(error)) < 1_000
    assert num_refused > 6
