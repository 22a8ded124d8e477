"""Lines of ids in place of text, for models whose tokenizer this project does not have."""

from __future__ import annotations

import os
from collections.abc import Sequence

from keras_transformer.errors import RequestError
from keras_transformer.text.lines import string_of, strings_of
from keras_transformer.text.tokenizer import END, MASK, MASK_PIECE, PAD, START, UNKNOWN, Tokenizer

NO_RUN = (
    "the text of this model is cut by byte-level BPE, or by other rules that SentencePiece lacks, so no run can be "
    "written of it; "
    "in Python, `keras_transformer.import_huggingface` makes a translator, a generator or a classifier of it, which "
    "takes and gives lines of ids"
)


class IdTokenizer(Tokenizer):
    """Stands for a tokenizer that this project does not have: a line is ids of that tokenizer, as in "0 713 16 2".

    Pad ids and an end id at the end of a line are left out, and a start id at its beginning, as a model adds its own.
    A text of a language model keeps its end. Inside a line these ids stay what they are. Words are refused.

    Args:
        model: the serialised SentencePiece model whose pieces are ids.
        ids: for each of our ids, the id in the model from outside.

    Raises:
        ValueError: see `Tokenizer`.
    """

    def __init__(self, model: bytes, ids: Sequence[int]):
        super().__init__(model)
        # Some control ids of ours may be copies of one id. A line has the last of these, which a model reads and emits.
        control = {str(ids[place]): place for place in (UNKNOWN, PAD, START, END)}
        self._ours = control | {str(id): place for place, id in enumerate(ids) if place > END}
        self._ids = ids

    def encode(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Our ids of each line.

        Raises:
            RequestError: a line holds something else than ids, or `lines` is no list of strings.
        """
        return [_without_ends(self._encoded(line)) for line in strings_of(lines)]

    def encode_masked(self, line: str) -> list[int]:
        """`encode` of a line in which `<mask>` is the id of the mask."""
        return self.encode([string_of(line).replace(MASK_PIECE, f" {self._ids[MASK]} ")])[0]

    def encode_text(self, text: str) -> list[int]:
        """Our ids of a text, which is ids of the model's own tokenizer.

        Raises:
            RequestError: it holds something else than ids.
        """
        ids = self._encoded(string_of(text))
        return ids[1:] if ids[:1] == [self._ours[str(self._ids[START])]] else ids

    def _encoded(self, line: str) -> list[int]:
        words = line.split()
        if strange := [word for word in words if word not in self._ours]:
            most = max(map(int, self._ours))
            raise RequestError(
                f"expected a line of ids from 0 to {most:,}, such as '0 713 16 2', from the model's own tokenizer; "
                f"received {strange[0]!r:.60}"
            )
        return [self._ours[word] for word in words]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Raises RequestError: a run would have to hold the tokenizer."""
        raise RequestError(NO_RUN)


def _without_ends(ids: list[int]) -> list[int]:
    while ids and ids[-1] == PAD:
        ids.pop()
    ids = ids[1:] if ids and ids[0] == START else ids
    return ids[:-1] if ids and ids[-1] == END else ids
