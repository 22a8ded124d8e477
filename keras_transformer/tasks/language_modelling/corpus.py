"""Opens the text that a language model trains on: a file of the user, or a named text."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator

from keras_transformer.core.errors import RequestError
from keras_transformer.spec.options import Config
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.held_out import drawn_identity, stratified
from keras_transformer.text.lines import read_lines, refuse_pipe, sha256_of
from keras_transformer.training.task import recipe_named

Lines = Callable[[], Iterator[str]]  # each call returns a new iterator
HELD_OUT_SHARE = 0.1  # so much is held out if no validation text is given
NUM_STRETCHES = 100

# Small, for a text of half a million characters.
PYDOC_RECIPE: Config = {
    "num_layers": 4,
    "hidden_dim": 128,
    "intermediate_dim": 512,
    "num_heads": 4,
    "dropout": 0.1,
    "vocabulary_size": 1_000,
    "context_length": 128,
    "token_budget": 2_048,
    "steps": 2_000,
    "warmup_steps": 200,
    "learning_rate_factor": 1.0,
    "checkpoint_every": 200,
}
RECIPES = {"pydoc-topics": PYDOC_RECIPE}


def text_from_file(
    text: str | os.PathLike[str], valid_text: str | os.PathLike[str] | None = None, seed: int | None = 0
) -> Corpus[str]:
    """Returns the lines of the user's own text, a UTF-8 file, plain or .gz.

    Without validation text a tenth is held out, see `divided`.

    Args:
        text, valid_text: the files.
        seed: the same seed holds out the same lines of a text. None takes the last lines, as runs of before did.

    Raises:
        RequestError: a file is missing, empty, unreadable or not UTF-8, or is too short to be divided.
    """
    identity = sha256_of(_lines_of(text))
    if valid_text is not None:
        both = sha256_of([identity, sha256_of(_lines_of(valid_text))])
        return Corpus("files", None, None, lambda: read_lines(text), lambda: read_lines(valid_text), both)
    train, valid = divided(lambda: read_lines(text), seed)
    if any(next(lines(), None) is None for lines in (train, valid)):
        raise RequestError(f"{text} has too few lines to hold a tenth out: add lines, or give --valid-text")
    return Corpus("files", None, None, train, valid, drawn_identity(identity, seed))


def _lines_of(path: str | os.PathLike[str]) -> Iterator[str]:
    """Yields the lines of a file that is read more than once.

    Raises:
        RequestError: the file is empty, or no file.
    """
    refuse_pipe(path)
    is_empty = True
    for line in read_lines(path):
        is_empty = is_empty and not line
        yield line
    if is_empty:
        raise RequestError(f"{path} is empty; expected text")


def divided(lines: Callable[[], Iterable[str]], seed: int | None) -> tuple[Lines, Lines]:
    """Returns the lines to train on and those to validate on, about a tenth of the characters, line breaks included.

    A text is cut into a hundred stretches of whole lines, so that held-out lines stand among their neighbours, and
    still come from everywhere: of each ten stretches the seed draws one. Without a seed the last ones are held out.
    """
    size = sum(len(line) + 1 for line in lines())

    def numbered() -> Iterator[tuple[int, str]]:
        seen = 0
        for line in lines():
            seen += len(line) + 1
            yield (seen * NUM_STRETCHES - 1) // size, line

    stretches = sorted({stretch for stretch, _ in numbered()})
    if seed is None:
        held_out = {stretch for stretch in stretches if stretch >= (1 - HELD_OUT_SHARE) * NUM_STRETCHES}
    else:
        in_tens = [(str(place // 10), stretch) for place, stretch in enumerate(stretches)]
        held_out = {stretch for _, stretch in stratified(in_tens, HELD_OUT_SHARE, seed)}
    return (
        lambda: (line for stretch, line in numbered() if stretch not in held_out),
        lambda: (line for stretch, line in numbered() if stretch in held_out),
    )


def named_text(name: str) -> Corpus[str]:
    """Returns a named text: `pydoc-topics`, the help texts of Python's own `pydoc`.

    Raises:
        RequestError: the name is unknown.
    """
    recipe = recipe_named(name, RECIPES, "a text is one of", "--text")
    from pydoc_data.topics import topics

    lines = "\n\n".join(topics[topic] for topic in sorted(topics)).split("\n")
    return Corpus(name, "en", "en", *divided(lambda: lines, None), sha256_of(lines), recipe)
