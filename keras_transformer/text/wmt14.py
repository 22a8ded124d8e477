"""WMT14 as tensorflow-datasets prepares it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from keras_transformer.errors import JobError, RequestError

LANGUAGES = ("cs", "de", "fr", "hi", "ru")


class Wmt14:
    """The pairs of one direction.

    Args:
        source, target: the languages; one of them is English (en).
        data_dir: where tensorflow-datasets keeps its files.

    Attributes:
        num_pairs: of training.

    Raises:
        RequestError: other languages, or tensorflow-datasets is not installed.
        JobError: tensorflow-datasets could not prepare the corpus.
    """

    def __init__(self, source: str, target: str, data_dir: Path | None):
        other = target if source == "en" else source
        if other not in LANGUAGES or "en" not in (source, target):
            raise RequestError(f"wmt14 pairs English (en) with {', '.join(LANGUAGES)}; received: {source}-{target}")
        self.source, self.target = source, target
        # One configuration serves both directions: its examples name their languages.
        (self._train, self._valid), self.full_name = _prepared(f"wmt14_translate/{other}-en", data_dir)
        self.num_pairs = int(self._train.cardinality())

    def train(self) -> Iterator[tuple[str, str]]:
        """Training pairs."""
        return self._pairs(self._train)

    def valid(self) -> Iterator[tuple[str, str]]:
        """Validation pairs."""
        return self._pairs(self._valid)

    def _pairs(self, split: Any) -> Iterator[tuple[str, str]]:
        import tensorflow_datasets as tfds

        for example in tfds.as_numpy(split):
            yield _one_line(example[self.source]), _one_line(example[self.target])


def _prepared(name: str, data_dir: Path | None) -> tuple[list[Any], str]:
    """The training and validation split, and the full name of what was prepared, its version included."""
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise RequestError(
            "wmt14 takes tensorflow-datasets: pip install 'keras-transformer[wmt]', or in a checkout "
            "pip install -e '.[wmt]'"
        ) from None
    try:
        splits, info = tfds.load(
            name, split=["train", "validation"], data_dir=data_dir, shuffle_files=False, with_info=True
        )
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise JobError(f"tensorflow-datasets could not prepare {name} ({reason}); see --data-dir") from error
    return splits, str(info.full_name)


def _one_line(text: bytes) -> str:
    return " ".join(text.decode("utf-8", "replace").splitlines())
