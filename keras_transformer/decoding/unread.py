"""Input that a vocabulary cannot read: counted, and told of."""

from __future__ import annotations

from collections.abc import Iterable
from weakref import WeakKeyDictionary

from keras_transformer.errors import warn
from keras_transformer.text.lines import is_blank
from keras_transformer.text.tokenizer import SPACE, UNKNOWN, Tokenizer

NUM_SHOWN = 5
# Of each vocabulary, what was told: a run validates the same text again and again.
_TOLD: WeakKeyDictionary[Tokenizer, set[str]] = WeakKeyDictionary()


class UnreadCharacters:
    """Counts the lines that hold characters without a piece, which a model reads as unknown.

    Args:
        tokenizer: what reads the lines.
    """

    def __init__(self, tokenizer: Tokenizer):
        self.tokenizer = tokenizer
        self.num_lines = 0
        self.characters = dict[str, None]()  # in the order in which they came

    def look(self, lines: Iterable[str]) -> None:
        """Looks at further lines."""
        alphabet = self.tokenizer.alphabet
        for line in lines:
            if alphabet.issuperset(line) or is_blank(line):
                continue
            unread = [char for char in self.tokenizer.normalize(line) if char not in alphabet and char != SPACE]
            if unread and UNKNOWN in self.tokenizer.encode([line])[0]:  # a tag has a piece, and bytes spell the rest
                self.num_lines += 1
                self.characters.update(dict.fromkeys(unread))

    def tell(self) -> None:
        """Warns of what was counted, if a character is among it that this process has not told of."""
        told = _TOLD.setdefault(self.tokenizer, set())
        if not told.issuperset(self.characters):
            shown = ", ".join(map(repr, list(self.characters)[:NUM_SHOWN]))
            warn(
                f"{self.num_lines} line(s) hold characters that the vocabulary cannot read, such as {shown}; a "
                "vocabulary with --byte-fallback reads everything"
            )
            told.update(self.characters)
