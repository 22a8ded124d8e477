"""Training tells which target lines its vocabulary does not give back as they were."""

from types import SimpleNamespace
from typing import Any

import pytest

from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.training import preparation
from keras_transformer.training.preparation import tell_of_changed_targets
from tests.tiny_text import lines

PLAIN = lines(0, 997)


def told(capsys, targets: list[str], tokenizer: Tokenizer, **run: Any) -> tuple[str, float | None]:
    """What is said of target lines, and the share that config.json keeps."""
    corpus = SimpleNamespace(name="files", train=lambda: (("a source", target) for target in targets))
    of_run = {"settings": SimpleNamespace(threads=0), "config": {"corpus": {}}, "is_resumed": False, **run}
    made: Any = SimpleNamespace(corpus=corpus, **of_run)
    tell_of_changed_targets(made, tokenizer, len(targets))
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
