"""Subword sampling for training: processes that segment the corpus anew for each epoch while the one before trains.

One process draws one side of one epoch, seeded by (seed, epoch, side), so a run that resumes finds the same epochs.
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
        self._processes: dict[int, list[subprocess.Popen]] = {}
        self._corpora: dict[int, TokenizedCorpus] = {}
        self._folder, lock = scratch_folder(corpus.folder, "sampled-")
        weakref.finalize(self, _clear, self._folder, lock, self._processes)

    def corpus(self, epoch: int) -> TokenizedCorpus:
        """The corpus of an epoch. Also starts the processes of the next epoch.

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
        self._processes[epoch] = [_started(self._task(epoch, side)) for side in SIDES]

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
        for process in self._processes[epoch]:
            if process.wait():
                raise JobError(f"subword sampling of epoch {epoch} failed (status {process.returncode}), see above")
        del self._processes[epoch]
        write_meta(self._path(epoch), self._base.report, self._base.max_length, self._base.dtypes)
        return TokenizedCorpus.open(self._path(epoch))


@dataclass(frozen=True)
class _Task:
    """What one process does: it draws one side of the corpus in `base` and writes it into `folder`."""

    base: str
    folder: str
    side: str
    alpha: float
    seed: str
    max_length: int
    parent: int

    def run(self) -> None:
        """Draws the side; stops when the parent process is gone."""
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
        [sys.executable, "-m", "keras_transformer.text.sampled_epochs", json.dumps(asdict(task))],
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
    unlock(lock)


if __name__ == "__main__":
    task = _Task(**json.loads(sys.argv[1]))
    try:
        task.run()
    except OSError:
        if not task.is_orphan():  # An orphan's folder may be gone: the next run removes it.
            raise
