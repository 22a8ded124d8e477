"""Keeps a corpus as ids on disk, memory-mapped, so that it may be larger than memory."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, fields
from itertools import chain, compress, islice
from pathlib import Path
from typing import TypeVar

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.core.folders import whole_folder
from keras_transformer.core.schema import list_of, object_of, one_of, read_json, whole
from keras_transformer.spec.options import Config
from keras_transformer.text.lines import plain
from keras_transformer.text.tokenizer import END, PAD, Tokenizer

Item = TypeVar("Item")
FirstIds = tuple[Sequence[int], Sequence[int]]  # with which each source and each target begins

MAX_LENGTH = 250
MAX_RATIO = 9.0
# A shorter line counts as this long in the ratio: of two short lines one is easily ten times as long as the other.
MIN_RATIO_LENGTH = 3
_PAIRS_AT_A_TIME = 10_000
_FORMAT = 2
MAX_META_BYTES = 1_000_000
MAX_ROWS = MAX_IDS = 2**48


@dataclass
class CleaningReport:
    """How many pairs were kept, and how many were left out for which reason.

    `held_out` counts the pairs of the training text that are held out for validation.
    """

    kept: int = 0
    empty: int = 0
    too_long: int = 0
    bad_ratio: int = 0
    held_out: int = 0

    @property
    def left_out(self) -> int:
        """Pairs that training does not see."""
        return self.empty + self.too_long + self.bad_ratio + self.held_out

    @property
    def told_held_out(self) -> str:
        """The end of the line that counts; empty where nothing is held out."""
        return f", {self.held_out:,} held out for validation" if self.held_out else ""

    def __str__(self) -> str:
        return (
            f"{self.kept:,} pairs kept, {self.left_out:,} left out of training: {self.empty:,} empty on a "
            f"side, {self.too_long:,} too long, {self.bad_ratio:,} of absurd length ratio{self.told_held_out}"
        )


META = object_of({
    "format": whole(_FORMAT, _FORMAT),
    "max_length": whole(1, MAX_IDS),
    "dtypes": list_of(one_of(("uint16", "uint32")), 2, 2),
    "report": object_of({"kept": whole(1, MAX_ROWS)}, {one.name: whole(0, MAX_ROWS) for one in fields(CleaningReport)}),
    "first_ids": list_of(list_of(whole(0, 2**31 - 1)), 2, 2),
})  # fmt: skip


class TokenizedCorpus:
    """Pairs of sentences as ids: source tokens + end, target tokens + end.

    `build` or `open` make it. `source_lengths` and `target_lengths` are (pairs,) int32 and count the end.
    """

    def __init__(self, folder: Path, meta: Config):
        self.folder = folder
        self.report = CleaningReport(**meta["report"])
        self.max_length: int = meta["max_length"]
        self.dtypes = tuple(map(np.dtype, meta["dtypes"]))
        self.first_ids: FirstIds = tuple(meta["first_ids"])
        self._source = self._side("source", self.dtypes[0])
        self._target = self._side("target", self.dtypes[1])
        self.source_lengths = self._source.lengths()
        self.target_lengths = self._target.lengths()

    def __len__(self) -> int:
        return len(self.source_lengths)

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike[str],
        pairs: Iterable[tuple[str, str]],
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer,
        max_length: int = MAX_LENGTH,
        max_ratio: float = MAX_RATIO,
        keep_text: bool = False,
        num_threads: int = 1,
        max_source_length: float | None = None,
        first_ids: FirstIds = ((), ()),
    ) -> TokenizedCorpus:
        """Encodes a stream of pairs into `folder`. The folder appears only when it is whole, and replaces an older one.

        Pairs are left out, and counted in `report`, if a side is empty or has over `max_length` tokens, or if one side
        is more than `max_ratio` times as long as the other. `max_source_length` is another most for the source.
        `keep_text` also keeps the lines and the tokenizers, which subword sampling needs. `first_ids`, such as tags of
        languages, begin each source and each target; no length counts them here.

        Raises:
            RequestError: no pair is left.
        """
        report, most = CleaningReport(), (max_source_length or max_length, max_length)
        with whole_folder(Path(folder)) as partial:
            with (
                SideWriter(partial, "source", source_tokenizer, keep_text, first_ids[0]) as source,
                SideWriter(partial, "target", target_tokenizer, keep_text, first_ids[1]) as target,
            ):
                for chunk in chunks(pairs, _PAIRS_AT_A_TIME):
                    source_lines, target_lines = zip(*chunk, strict=True)
                    source_rows = source_tokenizer.encode(source_lines, num_threads)
                    target_rows = target_tokenizer.encode(target_lines, num_threads)
                    keep = _keep(source_rows, target_rows, most, max_ratio, report)
                    source.write(compress(source_rows, keep), compress(source_lines, keep))
                    target.write(compress(target_rows, keep), compress(target_lines, keep))
            if not report.kept:
                raise RequestError(f"no pair is left after cleaning: {report}; check the text")
            write_meta(partial, report, max_length, (source.dtype, target.dtype), first_ids)
        return cls.open(folder)

    @classmethod
    def open(cls, folder: str | os.PathLike[str]) -> TokenizedCorpus:
        """Maps a cache that `build` wrote.

        Raises:
            RequestError: there is none, or it is damaged.
        """
        folder = Path(folder)
        try:
            return cls(folder, read_json(folder / "meta.json", META, MAX_META_BYTES))
        except FileNotFoundError:
            raise RequestError(f"no tokenised corpus at {folder}: build it first") from None
        except RequestError:
            raise
        except ValueError as error:
            raise RequestError(f"the tokenised corpus {folder} is damaged ({error}): delete it") from None

    def source_ids(self, rows: np.ndarray, num_rows: int, width: int) -> np.ndarray:
        """Returns (num_rows, width) int32: source tokens + end of the pairs `rows`, padded."""
        return self._source.padded(rows, num_rows, width)

    def labels(self, rows: np.ndarray, num_rows: int, width: int) -> np.ndarray:
        """Returns (num_rows, width) int32: target tokens + end of the pairs `rows`, padded."""
        return self._target.padded(rows, num_rows, width)

    def sources_among(self, rows: Iterable[list[int]], tags: Collection[int] = ()) -> int:
        """Counts the rows of tokens that are the whole source of a pair, but for the tags before both.

        Args:
            rows: without an end.
            tags: the ids of the vocabulary's tags.
        """
        ended = [[*row, END] for row in rows]
        ids = np.fromiter(chain.from_iterable(ended), self.dtypes[0])
        asked = list(_Side(ids, np.cumsum([0, *map(len, ended)])).untagged(tags))
        wanted = set(asked)
        sources = self._source.untagged(tags)
        known = {source for source in sources if source in wanted}
        return sum(row in known for row in asked)

    def _side(self, side: str, dtype: np.dtype) -> _Side:
        ids = mapped(self.folder / f"{side}.ids", dtype)
        offsets = mapped(self.folder / f"{side}.offsets", np.dtype(np.int64))
        fits = len(offsets) == self.report.kept + 1 and offsets[0] == 0 and offsets[-1] == len(ids)
        if not fits or (offsets[1:] <= offsets[:-1]).any():  # each row has its end id at least
            raise ValueError(f"{side}.ids and {side}.offsets do not fit together")
        return _Side(ids, offsets)


def mapped(path: Path, dtype: np.dtype) -> np.ndarray:
    """Maps the numbers (N,) in a file into memory.

    Raises:
        RequestError: it holds something else.
    """
    num_bytes = path.stat().st_size
    if num_bytes % dtype.itemsize:
        raise RequestError(f"{path} is damaged: {num_bytes:,} bytes are no numbers of {dtype.itemsize}: delete it")
    return np.asarray(np.memmap(path, dtype, "r")) if num_bytes else np.zeros(0, dtype)


@dataclass(frozen=True)
class _Side:
    """One language: the ids of all rows, one after the other, and where each row begins; memory-mapped."""

    ids: np.ndarray  # (tokens,)
    offsets: np.ndarray  # (rows + 1,)

    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets).astype(np.int32)

    def untagged(self, tags: Collection[int]) -> Iterator[bytes]:
        """Yields the bytes of each row behind the last of the tags in it."""
        starts, ends = self.offsets[:-1].copy(), self.offsets[1:]
        if tags:
            places = np.flatnonzero(np.isin(self.ids, list(tags)))
            starts[np.searchsorted(self.offsets, places, "right") - 1] = places + 1  # the last's of several in a row
        return (self.ids[start:end].tobytes() for start, end in zip(starts.tolist(), ends.tolist(), strict=True))

    def padded(self, rows: np.ndarray, num_rows: int, width: int) -> np.ndarray:
        """Returns (num_rows, width) int32: the given rows, then blank rows."""
        starts, lengths = np.zeros((2, num_rows, 1), np.int64)
        starts[: len(rows), 0] = self.offsets[rows]
        lengths[: len(rows), 0] = self.offsets[rows + 1] - self.offsets[rows]
        columns = np.arange(width)
        inside = columns < lengths  # (num_rows, width)
        positions = np.where(inside, starts + columns, 0)
        return np.where(inside, self.ids[positions], PAD).astype(np.int32)


class SideWriter:
    """Writes one side: the ids of its rows with their first and end ids, where each row begins, and the text if it is
    kept."""

    def __init__(
        self, folder: Path, side: str, tokenizer: Tokenizer, keep_text: bool = False, first_ids: Sequence[int] = ()
    ):
        self.first_ids = first_ids
        self.dtype = np.dtype(np.uint16 if tokenizer.vocabulary_size <= 2**16 else np.uint32)
        self._num_ids = 0
        self._ids = (folder / f"{side}.ids").open("wb")
        self._offsets = (folder / f"{side}.offsets").open("wb")
        self._offsets.write(np.zeros(1, np.int64).tobytes())
        self._text = None
        if keep_text:
            tokenizer.save(folder / f"{side}.model")
            self._text = (folder / f"{side}.text").open("w", encoding="utf-8", newline="\n")

    def write(self, rows: Iterable[list[int]], lines: Iterable[str] = ()) -> None:
        """Appends rows of ids and, where text is kept, the lines that they came from."""
        rows = [[*self.first_ids, *row, END] for row in rows]
        offsets = self._num_ids + np.cumsum(np.fromiter(map(len, rows), np.int64, len(rows)))
        self._ids.write(np.fromiter(chain.from_iterable(rows), self.dtype).tobytes())
        self._offsets.write(offsets.tobytes())
        self._num_ids = int(offsets[-1]) if rows else self._num_ids
        if self._text:
            self._text.writelines(f"{plain(line)}\n" for line in lines)

    def __enter__(self) -> SideWriter:
        return self

    def __exit__(self, *_: object) -> None:
        for file in filter(None, (self._ids, self._offsets, self._text)):
            file.close()


def join_side(folder: Path, side: str, count: int) -> None:
    """Joins what `SideWriter` wrote under the names `side`-0, `side`-1, ... to one side."""
    names, offsets = [f"{side}-{number}" for number in range(count)], [np.zeros(1, np.int64)]
    with (folder / f"{side}.ids").open("wb") as ids:
        for name in names:
            with (folder / f"{name}.ids").open("rb") as part:
                shutil.copyfileobj(part, ids)
            offsets.append(offsets[-1][-1] + np.fromfile(folder / f"{name}.offsets", np.int64)[1:])
    np.concatenate(offsets).tofile(folder / f"{side}.offsets")
    for name in names:
        for suffix in ("ids", "offsets"):
            (folder / f"{name}.{suffix}").unlink()


def write_meta(
    folder: Path, report: CleaningReport, max_length: int, dtypes: Sequence[np.dtype], first_ids: FirstIds = ((), ())
) -> None:
    """Writes the file that makes a folder a tokenised corpus: what `TokenizedCorpus.open` needs to know."""
    meta = {
        "format": _FORMAT,
        "max_length": max_length,
        "dtypes": list(map(str, dtypes)),
        "report": asdict(report),
        "first_ids": list(map(list, first_ids)),
    }
    (folder / "meta.json").write_text(json.dumps(meta), "utf-8")


def _keep(
    source_rows: list[list[int]],
    target_rows: list[list[int]],
    max_lengths: tuple[float, float],
    max_ratio: float,
    report: CleaningReport,
) -> list[bool]:
    """Tells which pairs to keep; each of the others is counted once."""
    lengths = np.array([list(map(len, source_rows)), list(map(len, target_rows))])  # (2, pairs)
    shorter, longer = lengths.min(axis=0), lengths.max(axis=0)
    empty = shorter == 0
    too_long = ~empty & (lengths > np.array(max_lengths)[:, None]).any(axis=0)
    bad_ratio = ~empty & ~too_long & (longer > max_ratio * np.maximum(shorter, MIN_RATIO_LENGTH))
    keep = ~(empty | too_long | bad_ratio)
    report.kept += int(keep.sum())
    report.empty += int(empty.sum())
    report.too_long += int(too_long.sum())
    report.bad_ratio += int(bad_ratio.sum())
    return keep.tolist()


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, the last one perhaps shorter."""
    iterator = iter(items)
    while chunk := list(islice(iterator, size)):
        yield chunk
