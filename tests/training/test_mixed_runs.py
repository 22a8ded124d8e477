"""--more-source, --more-tag, --copies and --both-directions through train.py."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

import train
from keras_transformer.commands.evaluate import warn_of_training_text
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import read_config
from keras_transformer.training import devices, run
from keras_transformer.training.settings import resolve
from tests.tiny_corpus import tiny_flags

MORE = [f"ba {word}" for word in ("do", "fi", "gu", "do fi", "fi gu")]
MORE_FLAGS = ["--more-source", "MORE.source", "--more-target", "MORE.target"]


@pytest.fixture
def begin(tmp_path, monkeypatch, capsys) -> Any:
    """`begin(*flags)` runs train.py on a tiny text up to its first step. It returns the run, its text, and the told."""
    seen: list[Any] = []
    monkeypatch.setattr(devices, "configure", lambda *_: None)
    monkeypatch.setattr(run, "fit", lambda *made: seen.append(made))
    monkeypatch.setattr(run, "compiled_model", lambda _: None)

    def begin(*flags: str, status: int = 0) -> Any:
        own = tiny_flags(tmp_path, tmp_path / "run") if "--resume" not in flags else ["--out", str(tmp_path / "run")]
        for side in ("source", "target"):
            (tmp_path / f"MORE.{side}").write_text("".join(f"{line}\n" for line in MORE), encoding="utf-8")
        given = [flag.replace("MORE", str(tmp_path / "MORE")) for flag in flags]
        assert train.main([*own, *given]) == status
        return (*seen[-1][:2], capsys.readouterr().err) if status == 0 else capsys.readouterr().err

    return begin


def test_the_batches_hold_the_further_pairs_and_copies_of_the_corpus(begin):
    plain, text, _ = begin()
    corpus_size = len(text.plan.corpus)
    assert len(list(plain.corpus.train())) == corpus_size
    made, text, _ = begin(*MORE_FLAGS, "--more-tag", "<bt>", "--copies", "3", "--overwrite")
    assert len(text.plan.corpus) == 3 * corpus_size + len(MORE)
    tokenizer = text.tokenizers.source
    assert [*tokenizer.tags] == ["<bt>"]
    ids = text.plan.corpus.source_ids(np.arange(len(text.plan.corpus)), len(text.plan.corpus), 20)
    assert [("<bt>" in tokenizer.pieces(row)) for row in ids.tolist()] == [False] * 3 * corpus_size + [True] * len(MORE)
    assert text.valid_sources == [source for source, _ in plain.corpus.valid()]


def test_both_directions_validate_with_the_tag_that_users_give(begin):
    made, text, _ = begin("--both-directions")
    assert [*text.tokenizers.source.tags] == ["<2target>", "<2source>"]
    assert all(source.startswith("<2target> ") for source in text.valid_sources)
    assert made.folder.valid_source.read_text(encoding="utf-8").splitlines() == text.valid_sources
    assert read_config(made.folder)["model"]["vocabulary_size"] == text.tokenizers.source.vocabulary_size


def test_a_run_goes_on_with_the_same_pairs_and_with_no_others(begin, tmp_path):
    _, text, _ = begin(*MORE_FLAGS, "--more-tag", "<bt>")
    _, again, _ = begin("--resume")
    assert len(again.plan.corpus) == len(text.plan.corpus)
    assert again.tokenizers.source.model == text.tokenizers.source.model
    MORE.append("gu gu")
    try:
        assert "the training text is not the one that the run began with" in begin("--resume", status=2)
    finally:
        MORE.pop()


def test_further_pairs_are_cleaned_too_and_reported_apart(begin):
    plain, _, _ = begin()
    corpus_size = len(list(plain.corpus.train()))
    made, text, told = begin(*MORE_FLAGS, "--clean", "--copies", "2", "--overwrite")
    report = json.loads(made.folder.cleaning_more.read_text(encoding="utf-8"))
    own = json.loads(made.folder.cleaning.read_text(encoding="utf-8"))
    assert (report["pairs"], own["pairs"]) == (len(MORE), corpus_size)
    assert len(text.plan.corpus) == 2 * own["kept"] + report["kept"]
    assert f"MORE.target: --clean keeps {report['kept']} of {len(MORE)} pairs" in told
    assert made.folder.cleaning_more in made.folder.parts(), "--overwrite removes it with the run"


def test_tags_hide_no_text_that_was_trained_on(begin, monkeypatch, capsys):
    plain, _, told = begin()
    assert "training text too" not in told
    known = next(plain.corpus.valid())[0]
    num_known = sum(source == known for source, _ in plain.corpus.valid())
    monkeypatch.setitem(globals(), "MORE", [known, *MORE])
    made, text, told = begin(*MORE_FLAGS, "--more-tag", "<bt>", "--overwrite")
    assert f"{num_known} of {len(text.valid_sources)} validation sources are in the training text too" in told
    own = next(plain.corpus.train())[0]
    assert own not in MORE
    for asked, num_known in {known: 1, f"<bt> {own}": 1, "<bt> fi ba fi ba fi": 0}.items():
        warn_of_training_text(made.folder, [asked], text.tokenizers.source)
        assert capsys.readouterr().err.count("trained on 1 of these 1 sources") == num_known


def test_a_vocabulary_without_the_tag_is_refused(begin, tmp_path):
    made, _, _ = begin()
    vocabulary = tmp_path / "vocabulary.model"
    vocabulary.write_bytes(made.folder.tokenizers(separate=False)[0].read_bytes())
    told = begin(*MORE_FLAGS, "--more-tag", "<bt>", "--tokenizer", str(vocabulary), "--overwrite", status=2)
    assert "expected a vocabulary with the tag <bt> as one piece; received that of" in told


@pytest.mark.parametrize(
    ("flags", "told"),
    [
        (["--more-source", "x"], "--more-source and --more-target go together; received only one of them"),
        (["--copies", "2"], "--more-tag and --copies are for --more-source and --more-target; received neither"),
        ([*MORE_FLAGS, "--more-tag", "bt"], "--more-tag must be a name in angle brackets, such as <bt>; received: bt"),
        ([*MORE_FLAGS, "--more-tag", "<s>"], "a tag must be none of SentencePiece's control ids; received: <s>"),
        (
            [*MORE_FLAGS, "--more-tag", "<2target>", "--both-directions"],
            "--more-tag <2target> is the tag of a direction; choose another, such as <bt>",
        ),
        (["--both-directions", "--separate-vocabularies"], "--both-directions takes a joint vocabulary"),
        (["--more-source", "nowhere", "--more-target", "nowhere"], "no such file: nowhere"),
    ],
)
def test_what_cannot_be_is_refused(begin, flags, told):
    assert told in begin(*flags, status=2)


def test_a_tag_that_no_file_can_hold_is_refused():
    with pytest.raises(RequestError, match="--more-tag must be a name in angle brackets, such as <bt>"):
        resolve({"more_source": "x", "more_target": "y", "more_tag": "<\udcff>"}, {})


def test_a_run_notes_how_many_sentences_the_lines_hold(begin, tmp_path):
    run, _, _ = begin()
    assert read_config(run.folder)["corpus"]["sentences_per_line"] == 1
    text = "".join(f"Ba do {number}. Fi gu. Ba.\n" for number in range(60))
    for side in ("source", "target"):
        (tmp_path / f"PAIRS.{side}").write_text(text, encoding="utf-8")
    pairs = [str(tmp_path / f"PAIRS.{side}") for side in ("source", "target")]
    run, _, _ = begin("--source", pairs[0], "--target", pairs[1], "--overwrite", "--vocabulary-size", "30")
    assert read_config(run.folder)["corpus"]["sentences_per_line"] == 3


def test_a_long_line_hands_its_tags_on_to_its_parts(begin):
    from keras_transformer.decoding.options import SearchOptions
    from keras_transformer.decoding.passages import Passages
    from keras_transformer.text.splitting import LearnedText

    _, text, _ = begin("--both-directions")
    tokenizer = text.tokenizers.source
    tag = next(iter(tokenizer.tags))
    for start in (f"{tag} ", f" {tag}{tag} ", tag, ""):
        line = start + "ba do fi gu. " * 4
        passages = Passages((tokenizer, tokenizer), 12, SearchOptions(), LearnedText())
        _, parts = passages.fitted(passages.taken_apart([(0, (line, ""))]))
        tags = [tokenizer.pieces(part.source).count(tag) for part in parts]
        assert len(parts) > 1 and tags == [start.count(tag)] * len(parts)
