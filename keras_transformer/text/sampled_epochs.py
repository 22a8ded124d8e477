"""Subword sampling for training: an epoch's own tokenised corpus, made beside the training.

Each side of an epoch is drawn by a process of its own, seeded by (seed, epoch, side); the next epoch's
processes run while this epoch trains. So a run that resumes anywhere finds the same epochs again.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import subprocess
import sys
import weakref
from dataclasses import asdict, dataclass
from pathlib import Path

from keras_transformer.errors import JobError, RequestError
from keras_transformer.text.sampling import SubwordSampler
from keras_transformer.text.tokenized import (
    SideWriter,
    TokenizedCorpus,
    chunks,
    scratch_folder,
    unlock,
    write_meta,
)
from keras_transformer.text.tokenizer import Tokenizer

SIDES = ("source", "target")
_LINES_AT_A_TIME = 1_000


class SampledEpochs:
    """For each epoch the corpus in a segmentation drawn for it: a function of (seed, epoch) alone.

    The corpora, this epoch's and the next one's, lie in a folder inside the corpus's own and go away with
    this object. What a killed run left there is removed by the next.

    Args:
        corpus: built with `keep_text`.
        alpha: of `SubwordSampler`.
        seed: repeats the draw.
    """

    def __init__(self, corpus: TokenizedCorpus, alpha: float, seed: int):
        if not all((corpus.folder / f"{side}.text").exists() for side in SIDES):
            raise RequestError("subword sampling takes a corpus built with `keep_text=True`: build it again")
        self._base = corpus
        self._alpha = alpha
        self._seed = seed
        self._jobs: dict[int, list[subprocess.Popen]] = {}
        self._corpora: dict[int, TokenizedCorpus] = {}
        self._folder, lock = scratch_folder(corpus.folder, "sampled-")
        weakref.finalize(self, _clear, self._folder, lock, self._jobs)

    def corpus(self, epoch: int) -> TokenizedCorpus:
        """The corpus of an epoch; begins to make the next epoch's.

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
        if epoch in self._jobs or epoch in self._corpora:
            return
        self._path(epoch).mkdir(exist_ok=True)
        self._jobs[epoch] = [_started(self._task(epoch, side)) for side in SIDES]

    def _task(self, epoch: int, side: str) -> _Task:
        return _Task(
            base=str(self._base.folder),
            folder=str(self._path(epoch)),
            side=side,
            alpha=self._alpha,
            seed=f"{self._seed}-{epoch}-{side}",
            max_length=self._base.max_length,
            parent=os.getpid(),
        )

    def _finish(self, epoch: int) -> TokenizedCorpus:
        for job in self._jobs[epoch]:
            if job.wait():
                raise JobError(f"subword sampling of epoch {epoch} failed (status {job.returncode}), see above")
        del self._jobs[epoch]
        write_meta(self._path(epoch), self._base.report, self._base.max_length, self._base.dtypes)
        return TokenizedCorpus.open(self._path(epoch))


@dataclass(frozen=True)
class _Task:
    """One process's share: a side of the corpus in `base`, drawn into `folder`."""

    base: str
    folder: str
    side: str
    alpha: float
    seed: str
    max_length: int
    parent: int

    def run(self) -> None:
        """Samples one side; gives up when the parent is gone."""
        tokenizer = Tokenizer.load(Path(self.base) / f"{self.side}.model")
        sampler = SubwordSampler(tokenizer, self.alpha, self.seed)
        with (
            (Path(self.base) / f"{self.side}.text").open(encoding="utf-8", newline="\n") as text,
            SideWriter(Path(self.folder), self.side, tokenizer) as writer,
        ):
            for lines in chunks(text, _LINES_AT_A_TIME):
                if self.is_orphan():
                    return
                writer.write(self._drawn(sampler, tokenizer, line) for line in lines)

    def is_orphan(self) -> bool:
        """Whether the process that wants this side is gone."""
        return os.getppid() != self.parent

    def _drawn(self, sampler: SubwordSampler, tokenizer: Tokenizer, line: str) -> list[int]:
        ids = sampler.sample(line)
        # The best segmentation was within the limit when the corpus was cleaned; a drawn one need not be.
        return ids if len(ids) <= self.max_length else tokenizer.encode([line])[0]


def _started(task: _Task) -> subprocess.Popen:
    # The process finds this package where this one did, installed or not.
    paths = filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")))
    return subprocess.Popen(
        [sys.executable, "-m", "keras_transformer.text.sampled_epochs", json.dumps(asdict(task))],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
        start_new_session=True,  # Ctrl-C is for the parent, which saves first.
    )


def _clear(folder: Path, lock: int | None, jobs: dict[int, list[subprocess.Popen]]) -> None:
    for job in itertools.chain.from_iterable(jobs.values()):
        job.kill()
        job.wait()
    shutil.rmtree(folder, ignore_errors=True)
    unlock(lock)


if __name__ == "__main__":
    task = _Task(**json.loads(sys.argv[1]))
    try:
        task.run()
    except OSError:
        if not task.is_orphan():  # The next run may have removed an orphan's folder.
            raise
