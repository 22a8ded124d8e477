"""Lines of ids in place of text, for models whose tokenizer this project does not have."""

from __future__ import annotations

import os
from collections.abc import Sequence

from keras_transformer.errors import RequestError
from keras_transformer.text.lines import string_of, strings_of
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN, Tokenizer

NO_RUN = (
    "the text of this model is cut by byte-level BPE, or by other rules that SentencePiece lacks, so no run can be "
    "written of it; "
    "in Python, `keras_transformer.import_huggingface` makes a translator, a generator or a classifier of it, which "
    "takes and gives lines of ids"
)


class IdTokenizer(Tokenizer):
    """Stands for a tokenizer that this project does not have: a line is ids of that tokenizer, as in "0 713 16 2".

    Pad ids and an end id at the end of a line are left out, and a start id at its beginning, as a model adds its own.
    Text is refused.

    Args:
        model: the serialised SentencePiece model whose pieces are ids.
        ids: for each of our ids, the id in the model from outside.

    Raises:
        ValueError: see `Tokenizer`.
    """

    def __init__(self, model: bytes, ids: Sequence[int]):
        super().__init__(model)
        # Start and unknown may be copies of other ids.
        control = {str(ids[place]): place for place in (UNKNOWN, START, PAD, END)}
        self._ours = control | {str(id): place for place, id in enumerate(ids) if place > END}

    def encode(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Our ids of each line.

        Raises:
            RequestError: a line holds something else than ids, or `lines` is no list of strings.
        """
        return [self._encoded(line) for line in strings_of(lines)]

    def _encoded(self, line: str) -> list[int]:
        words = line.split()
        if strange := [word for word in words if word not in self._ours]:
            most = max(map(int, self._ours))
            raise RequestError(
                f"expected a line of ids from 0 to {most:,}, such as '0 713 16 2', from the model's own tokenizer; "
                f"received {strange[0]!r:.60}"
            )
        ids = [self._ours[word] for word in words]
        while ids and ids[-1] == PAD:
            ids.pop()
        ids = ids[1:] if ids and ids[0] == START else ids
        return ids[:-1] if ids and ids[-1] == END else ids

    def encode_text(self, text: str) -> list[int]:
        """Our ids of a text, which is ids of the model's own tokenizer.

        Raises:
            RequestError: it holds something else than ids.
        """
        return self._encoded(string_of(text))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Raises RequestError: a run would have to hold the tokenizer."""
        raise RequestError(NO_RUN)
