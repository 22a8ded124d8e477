"""What `--clean`, `--more-source` and `--both-directions` make of a run's text, and what its vocabulary changes."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.runs.run_folder import read_config
from keras_transformer.text.cleaning import REASONS
from keras_transformer.text.tokenizer import UNKNOWN, Tokenizer
from keras_transformer.training import preparation
from keras_transformer.training.request import inherited_from, resolve
from tests.golden.cases import write_lines
from tests.tiny_corpus import tiny_flags, write_corpus
from tests.tiny_text import lines as words
from tests.training.runs import Begun, begun, trained

MORE = [f"ba {word}" for word in ("do", "fi", "gu", "do fi", "fi gu")]
MORE_FLAGS = "--more-source more.source --more-target more.target"
FOREIGN = "--source foreign.source --target foreign.target"
VALIDATION = "--valid-source valid.source --valid-target valid.target"


@pytest.fixture
def folder(tmp_path, monkeypatch) -> Path:
    """The present folder, with texts; `foreign` is one of 250 pairs, the last 10 of them Cyrillic."""
    lines = {"more": MORE, "valid": ["ba", "new words", "ba do fi gu"]}
    lines["long"] = [f"Ba do {number}. Fi gu. Ba." for number in range(60)]
    monkeypatch.chdir(tmp_path)
    for side, file in zip(("source", "target"), write_corpus(tmp_path), strict=True):
        own = file.read_text(encoding="utf-8").splitlines()
        for name, each in {**lines, "foreign": [*own, *("ж" * number for number in range(1, 11))]}.items():
            write_lines(tmp_path / f"{name}.{side}", each)
    return tmp_path


@pytest.fixture
def flags(folder) -> str:
    """Of a run of the tiny text in the folder `run`."""
    return " ".join([*tiny_flags(folder, Path("run")), "--overwrite"])


@pytest.fixture
def begin(folder, flags) -> Callable[..., Begun]:
    """`begin(more)` runs train.py up to its first step."""
    return lambda more="": begun(folder, f"{flags} {more}", with_model=False)


def report_in(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text(encoding="utf-8"))


def test_without_clean_nothing_is_left_out_and_an_overlap_is_told(begin):
    made = begin(f"{FOREIGN} {VALIDATION}")
    assert len(list(made.run.corpus.train())) == len(made.data.plan.corpus) == 250
    assert not made.run.folder.cleaning.exists()
    told = "warning: 1 of 3 validation sources are in the training text too, so validation tells less of new text: "
    assert f"{told}--clean leaves them out of training\n" in made.said


def test_with_clean_the_batches_see_what_is_left_and_a_run_that_goes_on_cleans_alike(folder, begin):
    made = begin(f"{FOREIGN} {VALIDATION} --clean")
    pairs, cleaning = list(made.run.corpus.train()), made.run.folder.cleaning
    assert len(pairs) == len(set(pairs)) == len(made.data.plan.corpus) < 240
    assert UNKNOWN in made.data.tokenizers.source.encode(["ж"])[0], "no piece has its letters"
    assert "warning" not in made.said, "no line of validation is in the training text any more"
    assert list(made.run.corpus.valid()) == [("ba", "ba"), ("new words",) * 2, ("ba do fi gu",) * 2]
    report, script = report_in(cleaning), "its source is in another script"
    assert report["pairs"] == 250 == report["kept"] + sum(report["left_out"].values())
    assert list(report["left_out"]) == [*REASONS] and report["left_out"][script] == 10
    assert report["examples"][script][0] == {"line": 241, "source": "ж", "target": "ж", "like": None}
    for told in (f"files: --clean keeps {report['kept']} of 250 pairs\n", f"{script}       line 241: ж ||| ж\n"):
        assert told in made.said
    assert cleaning.name in made.run.folder.parts(), "--overwrite removes it with the run"
    cleaning.unlink()
    again = begun(folder, "--resume --out run", with_model=False)
    assert not cleaning.exists(), "the tokenised text is there: nothing is read again"
    assert len(again.data.plan.corpus) == len(pairs) and "--clean" not in again.said
    assert list(again.run.corpus.train()) == pairs and report_in(cleaning) == report
    assert inherited_from({"clean": True, "seed": 3}) == {"seed": 3}, "a run that is fine-tuned does not"


def test_the_batches_hold_the_further_pairs_and_copies_of_the_corpus(begin):
    plain = begin()
    size = len(plain.data.plan.corpus)
    assert read_config(plain.run.folder.path).corpus["sentences_per_line"] == 1
    long = begin("--source long.source --target long.target --vocabulary-size 30").run.folder.path
    assert read_config(long).corpus["sentences_per_line"] == 3
    made = begin(f"{MORE_FLAGS} --more-tag <bt> --copies 3")
    corpus, tokenizer = made.data.plan.corpus, made.data.tokenizers.source
    assert len(corpus) == 3 * size + len(MORE) and [*tokenizer.tags] == ["<bt>"]
    ids = corpus.source_ids(np.arange(len(corpus)), len(corpus), 20)
    assert [("<bt>" in tokenizer.pieces(row)) for row in ids.tolist()] == [False] * 3 * size + [True] * len(MORE)
    assert made.data.valid_sources == [source for source, _ in plain.run.corpus.valid()]


def test_both_directions_validate_with_the_tag_that_users_give(begin):
    made = begin("--both-directions")
    sources = made.data.valid_sources
    assert [*made.data.tokenizers.source.tags] == ["<2target>", "<2source>"]
    assert all(source.startswith("<2target> ") for source in sources)
    assert made.run.folder.valid_source.read_text(encoding="utf-8").splitlines() == sources


def test_further_pairs_are_cleaned_too_and_a_run_goes_on_with_them_and_no_others(folder, begin):
    made = begin(f"{MORE_FLAGS} --more-tag <bt> --clean --copies 2")
    report, own = report_in(made.run.folder.cleaning_more), report_in(made.run.folder.cleaning)
    assert report["pairs"] == len(MORE) and 200 < own["pairs"] < 240
    assert len(made.data.plan.corpus) == 2 * own["kept"] + report["kept"]
    assert made.run.folder.cleaning_more.name in made.run.folder.parts(), "--overwrite removes it with the run"
    again = begun(folder, "--resume --out run", with_model=False)
    assert len(again.data.plan.corpus) == len(made.data.plan.corpus)
    assert again.data.tokenizers.source.model == made.data.tokenizers.source.model
    for side in ("source", "target"):
        (folder / f"more.{side}").write_text("gu gu\n")
    told = "the training text is not the one that the run began with"
    assert told in trained(folder, "--resume --out run", status=2)


REFUSED = {
    f"{MORE_FLAGS} --more-tag <bt> --tokenizer own.model": "expected a vocabulary with the tag <bt> as one piece; rec",
    "--copies 2": "--more-tag and --copies are for --more-source and --more-target; received neither",
    f"{MORE_FLAGS} --more-tag <s>": "a tag must be none of SentencePiece's control ids; received: <s>",
    f"{MORE_FLAGS} --more-tag <2target> --both-directions": "--more-tag <2target> is the tag of a direction; choose an",
    "--both-directions --separate-vocabularies": "--both-directions takes a joint vocabulary",
}


def test_what_cannot_be_is_refused(folder, flags, begin):
    (folder / "own.model").write_bytes(begin().run.folder.tokenizers(separate=False)[0].read_bytes())
    for more, told in REFUSED.items():
        assert told in trained(folder, f"{flags} {more}", status=2), more
    with pytest.raises(RequestError, match="--more-tag must be a name in angle brackets, such as <bt>"):
        resolve({"more_source": "x", "more_target": "y", "more_tag": "<\udcff>"}, {})
    other = "--task next-item --log more.source --clean"
    assert "--clean " in trained(folder, other, status=2), "pairs alone are cleaned"


PLAIN = words(0, 997)


def told(capsys, targets: list[str], tokenizer: Tokenizer, **run: Any) -> tuple[str, float | None]:
    """What is said of target lines, and the share that config.json keeps."""
    corpus = SimpleNamespace(name="files", train=lambda: (("a source", target) for target in targets))
    of_run = {"settings": SimpleNamespace(threads=0), "config": {"corpus": {}}, "is_resumed": False, **run}
    made: Any = SimpleNamespace(corpus=corpus, **of_run)
    preparation.tell_of_changed_targets(made, tokenizer, len(targets))
    return capsys.readouterr().err, made.config["corpus"].get("changed_targets")


@pytest.fixture(scope="module")
def nmt_nfkc() -> Tokenizer:
    return Tokenizer.train([*PLAIN, *["1⁄2 more and more"] * 50], 60, normalization="nmt_nfkc")


def test_lost_characters_are_warned_of_with_three_examples(capsys, nmt_nfkc) -> None:
    changed = [f"{'one two three ' * 5}½ and more and more", "m²", "two\u00a0words", "a ☃"]
    said, share = told(capsys, [*PLAIN[:996], *changed], nmt_nfkc)
    assert share == 0.004
    assert said.startswith("warning: files: the vocabulary changes 0.40% of the target lines, such as ")
    assert said.count("which becomes") == 3 and "'two\\xa0words', which becomes 'two words'" in said
    assert "' one two three ½ and more and ', which becomes ' one two three 1⁄2 and more an'" in said


def test_what_cleaning_changes_and_one_line_in_a_thousand_are_no_reason_for_a_warning(capsys, nmt_nfkc) -> None:
    said, share = told(capsys, [*PLAIN, " two  spaces ", "a\ttab", "no\x00text\x01 at\u2028all", ""], nmt_nfkc)
    assert (said, share) == ("files: the vocabulary changes 0.00% of the target lines\n", 0)
    said, share = told(capsys, [*PLAIN, "½", "a", "b"], nmt_nfkc)
    assert share == 0.001 and said.startswith("files: the vocabulary changes 0.10% of the target lines, such as '½'")


def test_of_many_lines_some_are_looked_at_and_a_lossless_vocabulary_changes_none(capsys, nmt_nfkc, monkeypatch) -> None:
    targets = [*PLAIN, *["½ m² two\u00a0words"] * 50]
    assert told(capsys, targets, Tokenizer.train(targets, 60))[1] == 0
    monkeypatch.setattr(preparation, "MOST_CHECKED", 5)
    assert told(capsys, ["½", "a"] * 5, nmt_nfkc)[1] == 1, "every second line"
    assert told(capsys, ["½"], nmt_nfkc, is_resumed=True) == ("", None)


def test_sampling_that_only_a_recipe_asked_for_gives_way_to_a_vocabulary_that_has_none(monkeypatch, capsys):
    joint = SimpleNamespace(is_sentencepiece=False, tags=())
    monkeypatch.setattr(preparation, "_tokenizers_of", lambda *_: preparation.Tokenizers(joint, joint))  # type: ignore[arg-type]
    settings = resolve({"source": "a", "target": "b", "init_from": "parent"}, {"sampling": 0.5})
    run: Any = SimpleNamespace(settings=settings, given={"sampling": 0.5}, config={})
    with pytest.raises(RequestError, match="^--sampling draws among .*; parent has another vocabulary: leave it out$"):
        preparation._tokenizers(run, [])
    run.given = {}
    preparation._tokenizers(run, [])
    assert run.settings.sampling == run.config.settings["sampling"] == 0
    assert capsys.readouterr().err.startswith("--sampling 0.5 gives way to 0: --sampling draws among the pieces")
