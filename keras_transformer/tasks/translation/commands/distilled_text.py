"""A text and its teachers' translations, in a folder that grows until both are whole."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
import textwrap
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict
from itertools import compress, islice
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.core.errors import RequestError, say
from keras_transformer.core.files import check_writable, write_text, write_whole
from keras_transformer.core.schema import Allowed, having, list_of, parse_json, read_json, text, whole
from keras_transformer.runs.export_folder import ExportFolder
from keras_transformer.runs.run_folder import RunFolder
from keras_transformer.spec.options import Config
from keras_transformer.text.cleaning import Faults, Translation, faultless, survey
from keras_transformer.text.corpora import Corpus
from keras_transformer.text.lines import read_lines, refuse_pipe, sha256_of
from keras_transformer.text.tokenizer import END

if TYPE_CHECKING:
    from keras_transformer.decoding.decoder import Hypothesis
    from keras_transformer.text.corpora import Pair

SHARD_LINES = 10_000  # so many translations are lost at most if the work is stopped
SHOWN_CHARACTERS = 60  # as much of an example is shown
MAX_JSON_BYTES, MAX_LINES, MAX_SHARDS = 1_000_000, 10**12, 100_000
PAIR = list_of(object, 2, 2)  # a translation, and whether it is finished
A_LINE = text(re.compile("[^\n\ud800-\udfff]*"), "a line")


class DistilledText:
    """The files of a text that teachers translate, and how they come to be.

    Args:
        folder: it need not exist yet.
    """

    def __init__(self, folder: str):
        self.folder = Path(folder)
        self.made_of = self.folder / "made_of.json"
        self.shards = self.folder / "translations"
        self.source, self.target = self.folder / "source.txt", self.folder / "target.txt"
        self.report = self.folder / "report.json"

    def check(self) -> None:
        """Raises RequestError unless the folder is one of these, or may become one."""
        own = [self.made_of, self.shards, self.source, self.target, self.report]
        there = list(self.folder.iterdir()) if self.folder.is_dir() else []
        if foreign := [path.name for path in there if path not in own and not path.name.startswith(".")]:
            raise RequestError(
                f"{self.folder} holds files that are not a distilled text's, such as {foreign[0]}: choose an empty or "
                "a new folder with --text"
            )
        check_writable(self.folder, "choose another folder with --text")

    def making(self, teachers: list[str], source: str, search: Config) -> Config:
        """Returns what the text is made of: hashes of the teachers' weights and of the source, and the search.

        Args:
            teachers: run folders or export folders.
            source: the file that they translate.
            search: how they translate.

        Raises:
            RequestError: the source cannot be read or is empty, or the folder has translations of another text, by
                other teachers, or by another search.
        """
        making = {"teachers": list(map(_identity, teachers)), **_survey(source), "search": search}
        before = self._made_of() if self.made_of.is_file() else making
        other = {
            "teachers": "other teachers", "text": "another text", "lines": "more or fewer lines",
            "search": "another search",
        }  # fmt: skip
        if different := [told for name, told in other.items() if before.get(name) != making[name]]:
            raise RequestError(
                f"{self.folder} was made with {' and '.join(different)}: give the same again, or choose another folder "
                "with --text"
            )
        return {"shard_lines": SHARD_LINES, **making, **before}

    def begin(self, making: Config) -> None:
        """Makes the folder, and writes down what the text is made of. Deletes translations whose origin is unknown."""
        if not self.made_of.is_file():
            shutil.rmtree(self.shards, ignore_errors=True)
        self.shards.mkdir(parents=True, exist_ok=True)
        write_text(self.made_of, json.dumps(making, indent=1) + "\n")

    def missing(self, making: Config) -> list[int]:
        """Returns the numbers of the shards that are not translated yet."""
        is_known = self.made_of.is_file()
        return [number for number, shard in enumerate(self._shards(making)) if not (is_known and shard.is_file())]

    def translate(self, source: str, translated: Callable[[Iterable[str]], Iterator[list[Hypothesis]]]) -> None:
        """Translates the shards that are missing, each file whole or not at all.

        Args:
            source: the file.
            translated: gives the translations of lines, the best of each first.
        """
        making = self._made_of()
        size, num_lines, shards = making["shard_lines"], making["lines"], self._shards(making)
        missing = dict.fromkeys(self.missing(making))
        found = translated(line for place, line in enumerate(read_lines(source)) if place // size in missing)
        for shard in missing:
            with write_whole(shards[shard]) as aside, aside.open("w", encoding="utf-8") as file:
                for best, *_ in islice(found, size):
                    is_finished = best.ids[-1:] == (END,)
                    file.write(json.dumps([best.text, is_finished], ensure_ascii=False) + "\n")
            say(f"translated {min((shard + 1) * size, num_lines):,} of {num_lines:,} lines")
        next(found, None)  # behind the last line it tells what was counted

    def is_filtered(self, valid_sources: list[str]) -> bool:
        """Tells whether the text to train on is there, without the sources on which the student validates."""
        return self.report.is_file() and _read(self.report, dict).get("validation") == sha256_of(valid_sources)

    def filter(self, source: str, valid_sources: list[str]) -> None:
        """Writes the pairs from which a student learns, and a report of those that were left out.

        Args:
            source: the file that was translated.
            valid_sources: on which the student validates; it does not train on them.

        Raises:
            RequestError: no pair is left.
        """

        def translated() -> Iterator[tuple[str, Translation]]:
            return zip(read_lines(source), self._translations(), strict=True)

        def numbers() -> Iterator[int]:
            return (number for number, _ in faultless(translated()))

        def pairs() -> Iterator[Pair]:
            return (pair for _, pair in faultless(translated()))

        def valid() -> Iterator[Pair]:
            return ((line, "") for line in valid_sources)

        faults = Faults.among(translated())
        cleaning = survey(Corpus(source, None, None, pairs, valid, "", lines=numbers))
        counts, examples = {**faults.counts, **cleaning.counts}, {**faults.examples, **cleaning.examples}
        report = {
            "lines": self._made_of()["lines"],
            "validation": sha256_of(valid_sources),
            "kept": cleaning.num_kept,
            "left_out": {reason: count for reason, count in counts.items() if count},
            "examples": {reason: list(map(asdict, some)) for reason, some in examples.items()},
        }
        self._tell(report)
        self._write_pairs(compress(pairs(), cleaning.reasons == 0))
        write_text(self.report, json.dumps(report, ensure_ascii=False, indent=1) + "\n")

    def _tell(self, report: Config) -> None:
        """Says what was left out, with an example of each kind."""
        num_kept, num_lines = report["kept"], report["lines"]
        say(f"{self.folder}: {num_kept:,} of {num_lines:,} translations are kept")
        for reason, count in sorted(report["left_out"].items(), key=lambda one: -one[1]):
            first = report["examples"][reason][0]
            shown = textwrap.shorten(f"{first['source']} ||| {first['target']}", SHOWN_CHARACTERS, placeholder=" …")
            say(f"  {count:>9,}  {reason}: {shown}")
        if not num_kept:
            raise RequestError(
                f"none of {num_lines:,} translations is fit to learn from: see what `translate` gives with them"
            )

    def _write_pairs(self, pairs: Iterable[Pair]) -> None:
        with (
            write_whole(self.source) as sources,
            write_whole(self.target) as targets,
            sources.open("w", encoding="utf-8") as source,
            targets.open("w", encoding="utf-8") as target,
        ):
            for one, other in pairs:
                source.write(f"{one}\n")
                target.write(f"{other}\n")

    def _translations(self) -> Iterator[Translation]:
        making = self._made_of()
        size, num_left = making["shard_lines"], making["lines"]
        for path in self._shards(making):
            yield from _translations_in(path, min(size, num_left))
            num_left -= size

    def _shards(self, making: Config) -> list[Path]:
        num_shards = -(-making["lines"] // making["shard_lines"])
        return [self.shards / f"{number:06}.jsonl" for number in range(num_shards)]

    def _made_of(self) -> Config:
        making = _read(self.made_of, having(shard_lines=whole(1, MAX_LINES), lines=whole(1, MAX_LINES)))
        if making["lines"] > MAX_SHARDS * making["shard_lines"]:
            raise _damaged(self.made_of, f"expected at most {MAX_SHARDS:,} shards")
        return making


def _read(path: Path, allowed: Allowed) -> Config:
    try:
        return read_json(path, allowed, MAX_JSON_BYTES)
    except ValueError as error:
        raise _damaged(path, str(error)[:200]) from error


def _translations_in(path: Path, num_lines: int) -> Iterator[Translation]:
    """Yields the translations in a shard of so many lines."""
    number = 0
    with path.open("rb") as file:
        for number, line in enumerate(file, start=1):
            translation = _translation(line) if number <= num_lines else None
            if translation is None:
                expected = f"expected {num_lines:,} lines of a text, and true or false"
                raise _damaged(path, f"{expected}; line {number} is {line!r:.60}")
            yield translation
    if number < num_lines:
        raise _damaged(path, f"expected {num_lines:,} lines; received {number:,}")


def _translation(line: bytes) -> Translation | None:
    """Returns what a line of a shard holds; None if it is damaged."""
    try:
        translation, is_finished = parse_json(line, PAIR)
    except ValueError:
        return None
    is_whole = A_LINE.holds(translation) and isinstance(is_finished, bool)
    return Translation(translation, is_finished) if is_whole else None


def _damaged(path: Path, how: str) -> RequestError:
    return RequestError(f"{path} is damaged ({how}): delete it, and the same command makes it again")


def _survey(source: str) -> Config:
    refuse_pipe(source)
    digest, num_lines = hashlib.sha256(), 0
    for line in read_lines(source):
        digest.update(line.encode() + b"\n")
        num_lines += 1
    if not num_lines:
        raise RequestError(f"{source} is empty; expected a sentence a line")
    return {"text": digest.hexdigest(), "lines": num_lines}


def _identity(teacher: str) -> str:
    """Returns the SHA-256 of a teacher's weights."""
    run = RunFolder(teacher)
    paths = [run.model] if run.is_run() else sorted(ExportFolder(teacher).onnx.glob("*"))
    digest = hashlib.sha256()
    for path in filter(Path.is_file, paths):
        with path.open("rb") as file:
            digest.update(hashlib.file_digest(file, "sha256").digest())
    return digest.hexdigest()
