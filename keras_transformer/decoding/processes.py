"""Runs work in processes of their own: a decoder in several, or a job that shall not share this process."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.connection import Connection, wait
from operator import attrgetter, methodcaller
from typing import TypeVar, TypeVarTuple

import numpy as np

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.decoding.decoder import Decoder, Emitted, Found
from keras_transformer.spec.custom_parts import import_named
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.text.sentences import Arrays, Ids, Sentence

Result = TypeVar("Result")
Arguments = TypeVarTuple("Arguments")
TOLD = (RequestError, JobError, OSError, MemoryError)  # errors that a command tells in one line


_decoder: Decoder | None = None  # the decoder of this process, if `ProcessDecoder` started the process


class ProcessDecoder(Decoder):
    """Gives each batch to a process that is free. Threads may share it.

    Args:
        open_decoder: makes the decoder of a process; it must be picklable.
        num_processes: how many processes.

    Raises:
        RequestError: what `open_decoder` raises.
        JobError: a process died.
    """

    def __init__(self, open_decoder: Callable[[], Decoder], num_processes: int):
        context = multiprocessing.get_context("spawn")  # a fork would copy locks that other threads hold
        self._pool = ProcessPoolExecutor(num_processes, context, initializer=_depend_on_parent)
        self._open_decoder = open_decoder
        self.num_parallel = num_processes
        asked = attrgetter("max_source_length", "vocabulary_sizes", "own_search", "learned_text")
        self.max_source_length, self.vocabulary_sizes, self.own_search, self.learned_text = self._ask(asked)

    def __repr__(self) -> str:
        return f"{self._ask(repr)}, in {self.num_parallel} processes"

    def check_source_length(self, length: int) -> None:
        self._ask(methodcaller("check_source_length", length))

    def require_checked(self, options: SearchOptions) -> None:
        self._ask(methodcaller("require_checked", options))

    def decode(self, sentences: list[Sentence], options: SearchOptions) -> list[Emitted]:
        return self._ask(methodcaller("decode", sentences, options))

    def search(self, arrays: Arrays, options: SearchOptions) -> Found:
        return self._ask(methodcaller("search", arrays, options))

    def sample(self, arrays: Arrays, uniforms: np.ndarray, options: SearchOptions) -> Found:
        return self._ask(methodcaller("sample", arrays, uniforms, options))

    def align(self, emitted: list[Emitted]) -> list[tuple[tuple[int, int], ...]]:
        return self._ask(methodcaller("align", emitted))

    def log_probs(self, sources: list[Ids], targets: list[Ids]) -> np.ndarray:
        return self._ask(methodcaller("log_probs", sources, targets))

    def _ask(self, question: Callable[[Decoder], Result]) -> Result:
        """Asks the decoder of a process that is free."""
        try:
            return self._pool.submit(_answer, self._open_decoder, question).result()
        except BrokenProcessPool:
            raise JobError("a process that translates died, perhaps because memory ran out: take fewer") from None


def _answer(open_decoder: Callable[[], Decoder], question: Callable[[Decoder], Result]) -> Result:
    global _decoder
    if _decoder is None:
        import_named()
        _decoder = open_decoder()
    return question(_decoder)


def _depend_on_parent() -> None:
    """Leaves Ctrl-C to the parent, and ends this process when the parent ends, however that ends."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def end() -> None:
        wait([parent.sentinel])
        os._exit(1)

    threading.Thread(target=end, daemon=True).start()


def run_in_subprocess(job: Callable[[*Arguments], Result], *arguments: *Arguments) -> Result:
    """Runs a job in a process of its own, such as one in which TensorFlow is set up in another way.

    The process ends when this one stops to wait for it, for whatever reason.

    Args:
        job: a function of a module.
        arguments: what it is called with. They are pickled, and so is the result.

    Raises:
        JobError: the process died.
        RequestError, OSError, MemoryError: what the job raised; so is a `JobError`. The process prints the traceback of
            another error, and dies.
    """
    context = multiprocessing.get_context("spawn")
    answers, answer = context.Pipe(duplex=False)
    process = context.Process(target=_report, args=(answer, partial(job, *arguments)))
    process.start()
    answer.close()
    try:
        result, error = answers.recv()
    except EOFError:
        raise JobError("a process of this command died, perhaps because memory ran out") from None
    finally:
        answers.close()
        process.kill()
        process.join()
    if error is not None:
        raise error
    return result


def _report(answer: Connection, job: Callable[[], Result]) -> None:
    _depend_on_parent()
    try:
        import_named()
        answer.send((job(), None))
    except TOLD as error:
        answer.send((None, error))
