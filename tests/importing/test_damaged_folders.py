"""Damaged folders: every damage is refused in one line, or harmless; none ends in another error."""

from __future__ import annotations

import json
import random
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from tests.importing.bart_folder import write_bart
from tests.importing.causal_folders import write_causal
from tests.importing.encoder_folders import write_encoder
from tests.importing.marian_folder import tensors, write_marian
from tests.importing.t5_folder import write_t5
from tests.importing.torch_pickles import torch_file

NUM_DAMAGES = 60
STRANGE: list[Any] = [None, True, -1, 0, 10**30, 10**400, 1.5, "", "x" * 300, [], [[]], {}, {"a": 1}, [1, "2"], "</s>"]


@pytest.fixture(scope="module")
def models(tmp_path_factory) -> Path:
    """A folder with a folder for each architecture."""
    models = tmp_path_factory.mktemp("models")
    folder = write_marian(models / "marian")
    (folder / "generation_config.json").write_text('{"num_beams": 2, "max_length": 30}')
    folder = write_t5(models / "t5")
    (folder / "added_tokens.json").write_text('{"<extra_id_0>": 64}')
    write_bart(models / "bart")
    for kind in ("gpt2", "llama"):
        write_causal(models / kind, kind)
    for head in ("labels", "images"):
        write_encoder(models / head, head)
    return models


def flipped(content: bytes, draw: random.Random) -> bytes:
    """Some bytes changed, most of them near the beginning, where headers are."""
    changed = bytearray(content)
    for _ in range(draw.choice([1, 1, 3, 20])):
        changed[draw.randrange(min(len(changed), draw.choice([64, 4096, len(changed)])))] = draw.randrange(256)
    return bytes(changed)


def cut(content: bytes, draw: random.Random) -> bytes:
    """The end or a part in the middle removed, or a part written twice."""
    first, last = sorted(draw.randrange(len(content)) for _ in range(2))
    return draw.choice([content[:first], content[:first] + content[last:], content[:last] + content[first:]])


def spelled_otherwise(content: bytes, draw: random.Random) -> bytes:
    """JSON with a value exchanged, left out or added, at any depth."""
    whole = values = json.loads(content)
    while inner := [value for value in values.values() if value and isinstance(value, dict)]:
        if draw.random() < 0.5:
            break
        values = draw.choice(inner)
    name = draw.choice(sorted(values))
    change = draw.choice(["exchange", "leave out", "add", "rename"])
    if change == "exchange":
        values[name] = draw.choice(STRANGE)
    elif change == "add":
        values[f"new_{name}"] = draw.choice(STRANGE[2:])
    else:
        value = values.pop(name)
        values |= {f"{name}2": value} if change == "rename" else {}
    return json.dumps(whole).encode()


def damages(folder: Path, name: str, kinds: Sequence[Callable[[bytes, random.Random], bytes]]) -> int:
    """Damages a file again and again; returns how many damages were refused."""
    draw, whole = random.Random(name), (folder / name).read_bytes()
    num_refused = 0
    for _ in range(NUM_DAMAGES):
        (folder / name).write_bytes(draw.choice(kinds)(whole, draw))
        try:
            read_huggingface(folder)
        except RequestError as error:
            num_refused += 1
            assert "\n" not in str(error)
            assert len(str(error)) < 1_000
    return num_refused


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *(("marian", name) for name in (
            "config.json", "generation_config.json", "tokenizer_config.json", "vocab.json", "source.spm", "target.spm",
            "model.safetensors", "archive", "row",
        )),
        *((model, "config.json") for model in ("bart", "gpt2", "llama", "labels", "images")),
        ("labels", "vocab.txt"), ("images", "preprocessor_config.json"),
        *(("t5", name) for name in ("config.json", "tokenizer_config.json", "added_tokens.json", "spiece.model")),
    ],
)  # fmt: skip
def test_every_damage_is_refused_or_harmless(models, tmp_path, model, name):
    folder = Path(shutil.copytree(models / model, tmp_path / model))
    if name in ("archive", "row"):
        (folder / "model.safetensors").unlink()
        content = torch_file(tensors(len(json.loads((folder / "vocab.json").read_text()))), name == "archive")
        name = "pytorch_model.bin"
        (folder / name).write_bytes(content)
        read_huggingface(folder)
    kinds = [flipped, cut] + ([spelled_otherwise] * 2 if name.endswith("json") else [])
    assert damages(folder, name, kinds) > NUM_DAMAGES // 10
