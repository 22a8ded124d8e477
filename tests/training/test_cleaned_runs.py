"""`--clean` through train.py: what is trained on, what is told, and what the run folder keeps."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import train
from keras_transformer.run_folder import read_config
from keras_transformer.text.cleaning import REASONS
from keras_transformer.text.tokenizer import UNKNOWN
from keras_transformer.training import devices, run
from keras_transformer.training.fine_tuning import inherited_from
from tests.tiny_corpus import tiny_flags

pytest_plugins = ["tests.tiny_run"]

Begun = tuple[Any, Any, str]  # the run, its text, and what was told


@pytest.fixture
def begin(tmp_path, monkeypatch, capsys) -> Any:
    """`begin(*flags)` runs train.py on a tiny text of 250 lines, the last 10 of them Cyrillic, up to its first step."""
    seen: list[Any] = []
    monkeypatch.setattr(devices, "configure", lambda *_: None)
    monkeypatch.setattr(run, "fit", lambda *made: seen.append(made))
    monkeypatch.setattr(run, "compiled_model", lambda _: None)

    def begin(*flags: str) -> Begun:
        own = tiny_flags(tmp_path, tmp_path / "run") if "--resume" not in flags else ["--out", str(tmp_path / "run")]
        for side in ("source", "target"):
            with (tmp_path / f"corpus.{side}").open("a", encoding="utf-8") as file:
                if "--resume" not in flags:
                    file.writelines("ж" * number + "\n" for number in range(1, 11))
            (tmp_path / f"valid.{side}").write_text("ba\nnew words\nba do fi gu\n", encoding="utf-8")
        assert train.main([*own, *flags]) == 0
        return (*seen[-1][:2], capsys.readouterr().err)

    return begin


def validation(folder: Path) -> list[str]:
    return ["--valid-source", str(folder / "valid.source"), "--valid-target", str(folder / "valid.target")]


def test_without_the_flag_nothing_is_left_out_and_an_overlap_is_told(begin, tmp_path):
    made, text, told = begin(*validation(tmp_path))
    assert len(list(made.corpus.train())) == 250 and not made.folder.cleaning.exists()
    assert len(text.plan.corpus) == 250
    assert (
        "warning: 1 of 3 validation sources are in the training text too, so validation tells less of new text: "
        "--clean leaves them out of training\n" in told
    )


def test_with_the_flag_the_vocabulary_and_the_batches_see_what_is_left(begin, tmp_path):
    made, text, told = begin(*validation(tmp_path), "--clean")
    pairs = list(made.corpus.train())
    assert len(pairs) == len(set(pairs)) == len(text.plan.corpus) < 240
    assert ("ba", "ba") not in pairs
    assert UNKNOWN in text.tokenizers.source.encode(["ж"])[0], "no piece has its letters"
    assert "warning" not in told, "no line of validation is in the training text any more"
    assert list(made.corpus.valid()) == [("ba", "ba"), ("new words",) * 2, ("ba do fi gu",) * 2]


def test_what_was_left_out_is_told_and_kept(begin, tmp_path):
    made, _, told = begin("--clean", *validation(tmp_path))
    report = json.loads(made.folder.cleaning.read_text(encoding="utf-8"))
    assert report["pairs"] == 250 == report["kept"] + sum(report["left_out"].values())
    assert list(report["left_out"]) == [*REASONS] and report["left_out"]["its source is in another script"] == 10
    assert (report["source_scripts"], report["target_scripts"]) == (["Latin"], ["Latin"])
    first = {"line": 241, "source": "ж", "target": "ж", "like": None}
    assert report["examples"]["its source is in another script"][0] == first
    assert f"files: --clean keeps {report['kept']} of 250 pairs\n" in told
    assert "         10  its source is in another script       line 241: ж ||| ж\n" in told
    assert f"{made.folder.cleaning} has more examples\n" in told
    assert made.folder.cleaning in made.folder.parts(), "--overwrite removes it with the run"


def test_a_run_that_goes_on_cleans_alike(begin, tmp_path):
    made, text, _ = begin("--clean")
    pairs, report = list(made.corpus.train()), made.folder.cleaning.read_bytes()
    assert read_config(made.folder)["settings"]["clean"] is True
    made.folder.cleaning.unlink()
    again, same, told = begin("--resume")
    assert not again.folder.cleaning.exists(), "the tokenised text is there: nothing is read again"
    assert len(same.plan.corpus) == len(text.plan.corpus) == len(pairs) and "--clean" not in told
    assert list(again.corpus.train()) == pairs
    assert again.folder.cleaning.read_bytes() == report


def test_a_run_that_is_fine_tuned_has_text_of_its_own():
    assert inherited_from({"clean": True, "seed": 3}) == {"seed": 3}


@pytest.mark.parametrize("flags", ["--task language-model --text text --clean", "--task next-item --log text --clean"])
def test_pairs_alone_are_cleaned(tmp_path, monkeypatch, capsys, flags):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "text").write_text("a text\n", encoding="utf-8")
    assert train.main(flags.split()) == 2
    assert "--clean " in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()
