"""Samples subwords: draws the segmentation of a sentence at random, and the same one for the same seed.

Processes segment the corpus anew for each epoch while the epoch before trains. Lines are drawn in parts of
`PART_LINES`, each from a generator seeded by (seed, epoch, side, part). So a run that resumes finds the same epochs,
however many processes share the parts. SentencePiece can sample too, but seeds its generator anew in every process, so
its draws cannot be repeated.
"""

from __future__ import annotations

import bisect
import functools
import itertools
import json
import math
import os
import random
import re
import shutil
import subprocess
import sys
import weakref
from dataclasses import asdict, dataclass
from itertools import accumulate, groupby, pairwise
from pathlib import Path

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.core.folders import scratch_folder, unlock
from keras_transformer.core.machine import num_cores
from keras_transformer.text.tokenized import SideWriter, TokenizedCorpus, chunks, join_side, write_meta
from keras_transformer.text.tokenizer import UNKNOWN, Tokenizer, parse_model

# SentencePiece scores an unknown character this much below its worst piece.
_UNKNOWN_PENALTY = 10.0
_CACHED_WORDS, _CACHED_WORD_LENGTH = 2**15, 16
SIDES = ("source", "target")
_LINES_AT_A_TIME = 1_000
PART_LINES = 20_000
CORES_A_PROCESS = 2  # the other one trains, or feeds a GPU


# The pieces that end at one place of a word, each with the place where it starts; and the sums of their weights.
_Arrivals = tuple[list[tuple[int, int]], list[float]]


class SubwordSampler:
    """Draws segmentations of lines. All lines share one generator, so their order matters.

    Unigram: draws from all segmentations, each weighted by its probability to the power `alpha`, by forward filtering
    and backward sampling (Kudo 2018, arXiv 1804.10959). BPE: skips each possible merge at each step with the
    probability `alpha` (Provilkov et al. 2020, arXiv 1910.13267). Words are drawn one by one, because no piece crosses
    a space. A tag is never divided.

    Args:
        tokenizer: the vocabulary.
        alpha: unigram: the paper takes 0.1 to 0.5, and smaller values vary more; BPE: the paper takes 0.1, and larger
            values vary more.
        seed: the same seed draws the same segmentations.
    """

    def __init__(self, tokenizer: Tokenizer, alpha: float, seed: str = ""):
        model = parse_model(tokenizer.model)
        pieces = [(id, piece) for id, piece in enumerate(model.pieces) if piece.type == piece.NORMAL]
        self._whole = {one.piece: id for id, one in enumerate(model.pieces) if one.type == one.USER_DEFINED}
        self._around_whole = re.compile("({})".format("|".join(map(re.escape, self._whole)) or "(?!)"))
        self._ids = {piece.piece: id for id, piece in pieces}
        self._scores = {piece.piece: piece.score for _, piece in pieces}
        self._longest = max(map(len, self._ids))
        self._unknown_score = min(self._scores.values()) - _UNKNOWN_PENALTY
        self._bytes = {one.piece: id for id, one in enumerate(model.pieces) if one.type == one.BYTE}
        self._normalize = tokenizer.normalize
        self._alpha = alpha
        self.begin(seed)
        self._cached_lattice = functools.lru_cache(_CACHED_WORDS)(self._lattice)
        is_bpe = model.trainer_spec.model_type == model.trainer_spec.BPE
        self._draw = self._draw_bpe if is_bpe else self._draw_unigram

    def begin(self, seed: str) -> None:
        """Draws from here on as a new sampler with this seed does."""
        self._random = random.Random(seed)

    def sample(self, line: str) -> list[int]:
        """Ids of one segmentation of a line. A run of unknown characters is one id, or bytes where there are bytes."""
        words = re.findall("▁[^▁]*|^[^▁]+", self._normalize(line))
        parts = [part for word in words for part in self._around_whole.split(word) if part]
        ids = [id for part in parts for id in ([self._whole[part]] if part in self._whole else self._draw(part))]
        return [id for unit, run in groupby(ids) for id in ([UNKNOWN] if unit == UNKNOWN else run)]

    def _draw_unigram(self, word: str) -> list[int]:
        lattice = self._cached_lattice(word) if len(word) <= _CACHED_WORD_LENGTH else self._lattice(word)
        ids, end = [], len(word)
        while end:
            edges, weights = lattice[end]
            drawn = bisect.bisect(weights, self._random.random() * weights[-1], 0, len(weights) - 1)
            start, id = edges[drawn]
            ids += [id] if id != UNKNOWN else self._spelled(word[start:end])[::-1]
            end = start
        return ids[::-1]

    def _spelled(self, char: str) -> list[int]:
        """Returns the ids of a character without a piece: those of its bytes, if the vocabulary has bytes."""
        return [self._bytes[f"<0x{byte:02X}>"] for byte in char.encode()] if self._bytes else [UNKNOWN]

    def _lattice(self, word: str) -> list[_Arrivals]:
        """Finds for each place in the word the pieces that end there, weighted by all segmentations of what precedes
        them."""
        lattice, log_sums = list[_Arrivals]([([], [])]), [0.0]
        for end in range(1, len(word) + 1):
            edges, log_weights = [], []
            for start in range(max(0, end - self._longest), end):
                piece = word[start:end]
                if piece in self._ids or start == end - 1:
                    edges.append((start, self._ids.get(piece, UNKNOWN)))
                    score = self._scores.get(piece, self._unknown_score)
                    log_weights.append(log_sums[start] + self._alpha * score)
            largest = max(log_weights)
            weights = list(accumulate(math.exp(weight - largest) for weight in log_weights))
            lattice.append((edges, weights))
            log_sums.append(largest + math.log(weights[-1]))
        return lattice

    def _draw_bpe(self, word: str) -> list[int]:
        symbols = list(word)
        while True:
            merges = [
                (-self._scores[symbols[at] + symbols[at + 1]], at)
                for at in range(len(symbols) - 1)
                if symbols[at] + symbols[at + 1] in self._scores and self._random.random() >= self._alpha
            ]
            if not merges:
                known = ([self._ids[one]] if one in self._ids else self._spelled(one) for one in symbols)
                return [id for ids in known for id in ids]
            _, at = min(merges)
            symbols[at : at + 2] = [symbols[at] + symbols[at + 1]]


class SampledEpochs:
    """The corpus of each epoch, in a segmentation that depends on (seed, epoch) alone.

    The corpora of this epoch and the next are in a subfolder of the corpus, which is removed with this object. If a run
    was killed, the next run removes its subfolder.

    Args:
        corpus: built with `keep_text`.
        alpha: see `SubwordSampler`.
        seed: the same seed draws the same segmentations.

    Raises:
        RequestError: the corpus was built without `keep_text`.
    """

    def __init__(self, corpus: TokenizedCorpus, alpha: float, seed: int):
        if not all((corpus.folder / f"{side}.text").exists() for side in SIDES):
            raise RequestError("subword sampling takes a corpus built with `keep_text=True`: build it again")
        self._base = corpus
        self._alpha = alpha
        self._seed = seed
        self._shares = shares(math.ceil(len(corpus) / PART_LINES))
        self._processes: dict[int, list[subprocess.Popen]] = {}
        self._corpora: dict[int, TokenizedCorpus] = {}
        self._folder, lock = scratch_folder(corpus.folder / "sampled")
        weakref.finalize(self, _clear, self._folder, lock, self._processes)

    def corpus(self, epoch: int) -> TokenizedCorpus:
        """Returns the corpus of an epoch, and starts the processes of the next one.

        Raises:
            JobError: a sampling process failed.
        """
        if epoch not in self._corpora:
            self._start(epoch)
            self._corpora[epoch] = self._finish(epoch)
        self._start(epoch + 1)
        for old in set(self._corpora) - {epoch, epoch + 1}:
            del self._corpora[old]
            shutil.rmtree(self._path(old), ignore_errors=True)
        return self._corpora[epoch]

    def _path(self, epoch: int) -> Path:
        return self._folder / f"epoch-{epoch}"

    def _start(self, epoch: int) -> None:
        if epoch in self._processes or epoch in self._corpora:
            return
        self._path(epoch).mkdir(exist_ok=True)
        self._processes[epoch] = [
            _started(self._task(epoch, side, number)) for side in SIDES for number in range(len(self._shares))
        ]

    def _task(self, epoch: int, side: str, number: int) -> _Task:
        return _Task(
            base=str(self._base.folder),
            folder=str(self._path(epoch)),
            side=side,
            number=number,
            parts=self._shares[number],
            part_lines=PART_LINES,
            alpha=self._alpha,
            seed=f"{self._seed}-{epoch}-{side}",
            max_length=self._base.max_length,
            first_ids=[*self._base.first_ids[SIDES.index(side)]],
            parent=os.getpid(),
        )

    def _finish(self, epoch: int) -> TokenizedCorpus:
        for process in self._processes[epoch]:
            if process.wait():
                raise JobError(f"subword sampling of epoch {epoch} failed (status {process.returncode}), see above")
        del self._processes[epoch]
        for side in SIDES:
            join_side(self._path(epoch), side, len(self._shares))
        write_meta(self._path(epoch), self._base.report, self._base.max_length, self._base.dtypes, self._base.first_ids)
        return TokenizedCorpus.open(self._path(epoch))


def shares(num_parts: int) -> list[tuple[int, int]]:
    """Divides the parts of a side among processes, by the cores that there are: from one to another, this one not
    included."""
    count = max(1, min(num_parts, num_cores() // (len(SIDES) * CORES_A_PROCESS)))
    return list(pairwise(num_parts * number // count for number in range(count + 1)))


@dataclass(frozen=True)
class _Task:
    """What one process does: it draws parts of one side of the corpus in `base`, and writes them into `folder`."""

    base: str
    folder: str
    side: str
    number: int  # among the processes of this side
    parts: tuple[int, int]  # from one to another, this one not included
    part_lines: int
    alpha: float
    seed: str
    max_length: int
    first_ids: list[int]
    parent: int

    def run(self) -> None:
        """Draws the parts; stops when the parent process is gone."""
        tokenizer = Tokenizer.load(Path(self.base) / f"{self.side}.model")
        sampler, (first, end) = SubwordSampler(tokenizer, self.alpha), self.parts
        with (
            (Path(self.base) / f"{self.side}.text").open(encoding="utf-8", newline="\n") as text,
            SideWriter(Path(self.folder), f"{self.side}-{self.number}", tokenizer, first_ids=self.first_ids) as writer,
        ):
            rest = itertools.islice(text, first * self.part_lines, None)
            for part in range(first, end):
                sampler.begin(f"{self.seed}-{part}")
                for lines in chunks(itertools.islice(rest, self.part_lines), _LINES_AT_A_TIME):
                    if self.is_orphan():
                        return
                    writer.write(self._drawn(sampler, tokenizer, line) for line in lines)

    def is_orphan(self) -> bool:
        """Whether the parent process is gone."""
        return os.getppid() != self.parent

    def _drawn(self, sampler: SubwordSampler, tokenizer: Tokenizer, line: str) -> list[int]:
        ids = sampler.sample(line)
        # Cleaning checked the length of the best segmentation; a drawn one may be too long.
        return ids if len(ids) <= self.max_length else tokenizer.encode([line])[0]


def _started(task: _Task) -> subprocess.Popen:
    # The process imports this package from where it is, installed or not.
    paths = filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")))
    return subprocess.Popen(
        [sys.executable, "-m", "keras_transformer.text.subword_sampling", json.dumps(asdict(task))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,  # Ctrl-C goes to the parent alone, which saves first.
    )


def _clear(folder: Path, lock: int | None, processes: dict[int, list[subprocess.Popen]]) -> None:
    for process in itertools.chain.from_iterable(processes.values()):
        process.kill()
        process.wait()
    shutil.rmtree(folder, ignore_errors=True)
    unlock(folder, lock)


if __name__ == "__main__":
    task = _Task(**json.loads(sys.argv[1]))
    try:
        task.run()
    except OSError:
        if not task.is_orphan():  # An orphan's folder may be gone: the next run removes it.
            raise
