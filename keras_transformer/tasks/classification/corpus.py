"""Text with labels to train on: the user's files, or number words of several languages."""

from __future__ import annotations

import os
import random
from collections import Counter
from collections.abc import Iterator

from keras_transformer.core.errors import RequestError, say
from keras_transformer.runs.run_folder import require_readable
from keras_transformer.spec.options import Config
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.held_out import stratified, tell_of_single_labels, whole_groups
from keras_transformer.text.lines import read_lines, sha256_of
from keras_transformer.text.named_corpora import spelled
from keras_transformer.training.task import recipe_named

Labelled = tuple[str, str]  # label, text

HELD_OUT_SHARE = 0.1  # per label, without validation text
HELD_OUT_EVERY = 10  # one line in this many was held out before lines were drawn
# What a header may call the columns, in any capitals.
LABEL_NAMES = {"label", "labels", "class", "category", "target", "intent", "sentiment", "topic"}
TEXT_NAMES = {"text", "texts", "sentence", "content", "review", "comment", "document", "utterance"}
LANGUAGES = ("cs", "de", "en", "es", "fi", "fr", "hu", "it", "nl", "pl", "sv", "tr")
TRAINED_NUMBERS, HELD_OUT_NUMBERS = 1_500, 200  # in each language

NUMBERS_RECIPE: Config = {
    "num_layers": 2,
    "hidden_dim": 64,
    "intermediate_dim": 128,
    "num_heads": 4,
    "dropout": 0.1,
    "vocabulary_size": 400,
    "context_length": 64,
    "token_budget": 2_048,
    "steps": 600,
    "warmup_steps": 100,
    "checkpoint_every": 100,
}
RECIPES = {"number-languages": NUMBERS_RECIPE}


def labelled_from_file(
    text: str | os.PathLike[str], valid_text: str | os.PathLike[str] | None = None, seed: int | None = 0
) -> Corpus[Labelled]:
    """Returns the user's own labelled text: a UTF-8 file, plain or .gz, with a label, a tab and a text in each line.

    A first line that names the columns, such as `label` and `text`, is left out. Without validation text a tenth of
    each label's lines is held out, at least one, with all lines that equal them; the seed draws them (see
    `stratified`).

    Args:
        text, valid_text: the files.
        seed: the same seed holds out the same lines of a text. None takes every tenth line, as runs of before did.

    Raises:
        RequestError: a file is missing, empty, unreadable or not UTF-8, a line has no label, there is one label alone,
            there are more labels than texts, no label has two texts, or a label of the validation is never trained on;
            or see `require_readable`.
    """
    numbered = dict(_rows_of(text, seed is not None))
    rows = train = [*numbered.values()]
    _check_labels(numbered, text)
    if valid_text is None:
        held_out = _held_out(rows, seed)
        train, valid = [row for row in rows if row not in held_out], [row for row in rows if row in held_out]
    else:
        valid = [row for _, row in _rows_of(valid_text, seed is not None)]
    if not valid:
        raise RequestError(f"{text}: no label has two texts, one to validate on: add lines, or give --valid-text")
    if unknown := sorted({label for label, _ in valid} - {label for label, _ in train}):
        raise RequestError(
            f"{valid_text or text}: the label {unknown[0]!r:.60} is validated on and never trained on: add lines of it"
        )
    identity = sha256_of("\t".join(row) for row in [*train, ("", ""), *valid])
    return Corpus("files", None, None, lambda: iter(train), lambda: iter(valid), identity)


def _held_out(rows: list[Labelled], seed: int | None) -> set[Labelled]:
    """Returns the rows to validate on; see `labelled_from_file`."""
    if seed is not None:
        return stratified(rows, HELD_OUT_SHARE, seed)
    candidates, num_texts = rows[HELD_OUT_EVERY - 1 :: HELD_OUT_EVERY], Counter(label for label, _ in set(rows))
    several = [row for row in candidates if num_texts[row[0]] > 1]
    return whole_groups(several or candidates, Counter(rows), len(candidates))


def _check_labels(numbered: dict[int, Labelled], path: str | os.PathLike[str]) -> None:
    """Raises RequestError for labels that cannot be learned, and warns of those that one text alone has."""
    labels, texts = ({row[side] for row in numbered.values()} for side in (0, 1))
    if len(labels) < 2:
        raise RequestError(f"{path}: expected at least two labels; received one alone, {min(labels)!r:.60}")
    require_readable(sorted(labels), {})
    if len(labels) > len(texts):
        raise RequestError(
            f"{path}: expected a label, a tab and a text in each line; received {len(labels):,} labels of "
            f"{len(texts):,} text(s): is the first column the label?"
        )
    tell_of_single_labels(((*row, f"line {number}") for number, row in numbered.items()), path)


def _rows_of(path: str | os.PathLike[str], may_have_header: bool) -> Iterator[tuple[int, Labelled]]:
    """Yields the number of each line but a header, with its label and its text."""
    number = 0
    for number, line in enumerate(read_lines(path), start=1):
        label, tab, text = line.partition("\t")
        if not tab or not label.strip() or not text.strip():
            raise RequestError(f"{path}, line {number}: expected a label, a tab and a text; received {line!r:.60}")
        is_header = label.strip().lower() in LABEL_NAMES and text.strip().lower() in TEXT_NAMES
        if number == 1 and is_header and may_have_header:
            say(f"{path}, line 1: {line!r:.60} is taken for a header and left out")
        else:
            yield number, (label.strip(), text.strip())
    if not number:
        raise RequestError(f"{path} is empty; expected lines of a label, a tab and a text")


def named_labelled(name: str) -> Corpus[Labelled]:
    """Returns a named labelled text: `number-languages`, number words and the language they are in.

    Raises:
        RequestError: the name is unknown.
    """
    recipe = recipe_named(name, RECIPES, "a labelled text is one of", "--text")
    numbers = _drawn_numbers(TRAINED_NUMBERS + HELD_OUT_NUMBERS)
    words = {language: list(spelled(numbers, language)) for language in LANGUAGES}
    languages_of = Counter(word for spellings in words.values() for word in set(spellings))

    def rows(part: slice) -> list[Labelled]:
        pairs = [(language, word) for language, spellings in words.items() for word in spellings[part]]
        return [pair for pair in pairs if languages_of[pair[1]] == 1]  # "tre" is Italian and Swedish

    train, valid = rows(slice(TRAINED_NUMBERS)), rows(slice(TRAINED_NUMBERS, None))
    identity = sha256_of("\t".join(row) for row in [*train, *valid])
    return Corpus(name, None, None, lambda: iter(train), lambda: iter(valid), identity, recipe)


def _drawn_numbers(count: int) -> list[int]:
    """Returns different numbers of one to six digits, of each length about as many; the same in every process."""
    generator, numbers = random.Random(0), dict[int, None]()
    while len(numbers) < count:
        numbers[generator.randrange(10 ** generator.randint(1, 6))] = None
    return generator.sample(list(numbers), count)
