"""The vocabulary of items: their names, and ids for them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from keras_transformer.errors import RequestError
from keras_transformer.files import write_text
from keras_transformer.text.lines import each_of, read_lines, string_of, strings_of
from keras_transformer.text.tokenizer import END

FIRST_ITEM = END + 1  # as for text, the ids before are pad, unknown, start and end
MAX_BYTES = 2**30  # of a file of names


class Items:
    """Items and their ids, from `FIRST_ITEM` on.

    Args:
        names: of the items, in the order of their ids.

    Raises:
        ValueError: there are no names, or one of them is blank or is there twice.
    """

    def __init__(self, names: Sequence[str]):
        self.names = list(strings_of(names, "names"))
        self._ids = {name: id for id, name in enumerate(self.names, start=FIRST_ITEM)}
        if not self.names or not all(name.strip() for name in self.names):
            raise ValueError("expected names of items; received none, or a blank one")
        if len(self._ids) < len(self.names):
            ((name, _),) = Counter(self.names).most_common(1)
            raise ValueError(f"expected each item once; received {name!r:.60} more than once")

    def __len__(self) -> int:
        return len(self.names)

    @property
    def vocabulary_size(self) -> int:
        """The number of ids, the control ids included."""
        return FIRST_ITEM + len(self)

    @classmethod
    def of(cls, histories: Iterable[Iterable[str]], vocabulary_size: int) -> Items:
        """The items of histories, the most frequent first, as many as a vocabulary of at most this size holds."""
        counts = Counter(item for history in each_of(histories, "histories") for item in strings_of(history, "items"))
        most = max(1, vocabulary_size - FIRST_ITEM)
        return cls(sorted(counts, key=lambda item: (-counts[item], item))[:most])

    @classmethod
    def load(cls, path: Path) -> Items:
        """Reads a file with a name a line.

        Raises:
            RequestError: the file is missing, too large, or damaged.
        """
        if path.is_file() and path.stat().st_size > MAX_BYTES:
            raise RequestError(f"{path} is damaged: it is larger than {MAX_BYTES:,} bytes")
        try:
            return cls(list(read_lines(path)))
        except RequestError:
            raise
        except ValueError as error:
            raise RequestError(f"{path} is damaged: {error}") from error

    def save(self, path: Path) -> None:
        """Writes a file with a name a line."""
        write_text(path, "".join(f"{name}\n" for name in self.names))

    def encode(self, history: Iterable[str]) -> list[int]:
        """The ids of a history. Items that the vocabulary lacks are left out.

        Raises:
            RequestError: the history is no list of strings.
        """
        return [self._ids[name] for name in strings_of(history, "items") if name in self._ids]

    def id(self, name: str, unknown: int) -> int:
        """The id of an item, or `unknown` if the vocabulary lacks the item."""
        return self._ids.get(string_of(name), unknown)
