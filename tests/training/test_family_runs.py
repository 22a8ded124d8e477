"""Models that together have every part of the family, through the commands: trained, resumed, and described."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from keras_transformer import family
from keras_transformer.__main__ import main as command
from keras_transformer.run_folder import read_config
from tests.interrupted import interrupt
from tests.models.combinations import COMBINATIONS, SIZES_OF_ALL
from tests.tiny_corpus import tiny_flags
from tests.training.runs import assert_same_end, column, trained

# What a run may have beside its parts: each way with another combination.
WAYS = [
    "--mixed-precision bfloat16 --average-last 2",
    "--mixed-precision float16 --average-last 1",
    "--ema 0.5",
    "--accumulate 2 --average-last 2",
    "--separate-vocabularies --average-last 2",
    "--r-drop 1 --clip-norm 1 --static-shapes 1 --average-last 2",
]
EACH = [pytest.param(*row, id=name) for name, *row in zip(COMBINATIONS, COMBINATIONS.values(), WAYS, strict=True)]


@pytest.mark.parametrize(("parts", "way"), EACH)
def test_a_run_has_the_parts_of_its_flags_and_ends_the_same_if_it_is_resumed(tmp_path, monkeypatch, capsys, parts, way):
    flags = [*tiny_flags(tmp_path, Path("whole")), "--encoder-layers", "1", *way.split()]
    flags += ["--max-source-length", str(SIZES_OF_ALL["max_source_length"]), "--dropout", "0.2"]
    for name, value in parts.items():
        flags += ["--" + name.replace("_", "-"), family.spelled(value, name) if name in family.SLOTS else str(value)]
    trained(tmp_path, " ".join([*flags, "--steps", "2", "--checkpoint-every", "1"]))
    monkeypatch.chdir(tmp_path)
    interrupt("whole", "resumed", 2)
    assert "resuming at step 1\n" in trained(tmp_path, "--resume --out resumed")
    assert_same_end(tmp_path / "whole", tmp_path / "resumed", 2)
    losses = column(tmp_path / "whole", "val_loss")
    assert np.isfinite(losses).all() and losses[1] != losses[0]

    model = read_config("whole")["model"]
    expected = family.complete({"vocabulary_size": 32, **parts})
    assert {slot: model[slot] for slot in family.SLOTS} == {slot: expected[slot] for slot in family.SLOTS}
    assert command(["info", "whole"]) == 0
    shown = capsys.readouterr().out
    assert all(part["name"] in shown for slot, part in parts.items() if slot in family.SLOTS)
