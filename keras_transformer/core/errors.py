"""Turns errors of the commands into one line on standard error, and an exit status."""

from __future__ import annotations

import errno
import io
import os
import re
import shlex
import signal
import sys
import threading
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType
from typing import Any, TextIO
from weakref import WeakKeyDictionary

from keras_transformer.core.schema import Schema, number, or_null, printable, shown, whole

PACKAGE = "keras_transformer"
CHECKOUT = Path(__file__).resolve().parents[2]  # of the repository, where the package was not installed
MAX_MESSAGE = 2_000  # characters
STOPS: dict[int, str] = {signal.SIGINT: "Ctrl-C", signal.SIGTERM: "SIGTERM"}
NAMED_IN_WARNINGS = 5  # files, or lines; the others are counted
NO_WINDOWS = "keras_transformer does not run on Windows: run it in WSL (Linux)"


class RequestError(ValueError):
    """The request was wrong. The message says what was expected, what came, and how to mend it. Exit status 2."""


class JobError(RuntimeError):
    """The request was right, but the work failed. The message says where, and what is still intact. Exit status 1."""


class Stopped(BaseException):
    """A signal stopped the process. The message says what is saved. Exit status 128 + the signal's number.

    Like `KeyboardInterrupt` it is not an `Exception`: it may come at any line, and no `except Exception` may catch it.
    """

    def __init__(self, signal_number: int, message: str):
        super().__init__(message)
        self.signal_number = signal_number


class OutputClosed(Exception):
    """Nobody reads standard output any longer (`| head -1`). That is no failure: the exit status is 0."""


def require_positive(**sizes: int | None) -> None:
    """Raises ValueError unless every size is a positive integer, or None, which means not given."""
    _require(or_null(whole(1, told="a positive integer")), sizes)


def require_at_least(least: float, **numbers: float) -> None:
    """Raises ValueError unless every number is at least `least`."""
    _require(number(least, told=f"at least {least:g}"), numbers)


def require_rates(**rates: float) -> None:
    """Raises ValueError unless every rate is at least 0 and less than 1."""
    _require(number(0, below=1, told="at least 0 and less than 1"), rates)


def _require(allowed: Schema, arguments: Mapping[str, object]) -> None:
    for name, value in arguments.items():
        if not allowed.holds(value):
            raise ValueError(f"`{name}` must be {allowed.expected}. Received: {name}={shown(value)}")


_TOLD: WeakKeyDictionary[Hashable, set[str]] = WeakKeyDictionary()
# Set while a `Stopped` is on its way, so that it is raised again if a library swallowed it.
_pending: Stopped | None = None


def say(message: str) -> None:
    """Writes a line to standard error. Standard output is for results.

    Raises:
        Stopped: a signal came before, and a library swallowed the exception.
    """
    raise_if_stopped()
    _write(sys.stderr, f"{message}\n")


def raise_if_stopped() -> None:
    """Raises `Stopped` if a signal came before, and a library, or Python in a callback, swallowed the exception."""
    if _pending is not None and not isinstance(sys.exc_info()[1], Stopped):
        raise _pending


def warn(message: str) -> None:
    """Writes a warning to standard error."""
    _tell("warning", message)


def abridged(names: Iterable[Any], most: int = NAMED_IN_WARNINGS) -> str:
    """Joins the first names of a list, for a warning, and says how many more there are."""
    listed = [str(name) for name in names]
    return ", ".join(listed[:most]) + (f" and {len(listed) - most:,} more" if len(listed) > most else "")


def warn_of_news(message: str, of: Hashable, news: Collection[str]) -> None:
    """Warns, if there is news of something that this process has not told: a run validates the same text again and
    again.
    """
    told = _TOLD.setdefault(of, set())
    if not told.issuperset(news):
        warn(message)
        told.update(news)


def _tell(kind: str, message: str | Exception) -> None:
    """Says a warning or an error in one line, whatever a stranger's text in it holds."""
    say(f"{kind}: {printable(str(message))[:MAX_MESSAGE]}")


def print_result(text: str, end: str = "\n") -> None:
    """Writes a result to standard output at once.

    Raises:
        OutputClosed: nobody reads it any longer.
        JobError: it cannot be written, as to a full disk.
    """
    error = _write(sys.stdout, f"{text}{end}")
    if isinstance(error, BrokenPipeError):
        raise OutputClosed
    if error is not None:
        raise JobError(f"cannot write to standard output ({error.strerror or error}): send it elsewhere")


def _write(stream: TextIO | None, text: str) -> OSError | None:
    """Writes to a standard stream at once, if it is open; returns what went wrong.

    What is written later to a stream that broke is thrown away: Python at its end, TensorFlow and bars of progress
    meet no error.
    """
    if stream is None or stream.closed:
        return None
    try:
        stream.write(text)
        stream.flush()
    except OSError as error:
        if not isinstance(error, BlockingIOError):  # the reader is slow, and what is left follows later
            with suppress(OSError), Path(os.devnull).open("wb") as nowhere:
                os.dup2(nowhere.fileno(), stream.fileno())
        return error
    return None


def command_line(verb: str = "") -> str:
    """Spells a command of this project as it is typed where this process was started.

    Args:
        verb: the command, such as "train"; empty for the program alone.

    Returns:
        Such as "python -m keras_transformer train"; where no command started the process, "keras-transformer train".
    """
    program = Path(sys.argv[0]).resolve()
    python = shlex.quote((sys.orig_argv or ["python"])[0])
    package = program.parent.name if program.name == "__main__.py" else ""
    if verb == "train" and program == CHECKOUT / "train.py":
        return f"{python} {shlex.quote(sys.argv[0])}"
    if verb == "export" and package == verb:
        in_wheel = f"{PACKAGE}." if program.parents[1].name == PACKAGE else ""
        return f"{python} -m {in_wheel}{verb}"
    is_python = program == CHECKOUT / "train.py" or package in (PACKAGE, "export")
    start = f"{python} -m {PACKAGE}" if is_python else "keras-transformer"
    return f"{start} {verb}".rstrip()


@contextmanager
def silent() -> Iterator[None]:
    """Throws away what code in C++ or Rust writes to standard error within."""
    if sys.stderr is None:
        yield
        return
    _write(sys.stderr, "")
    standard_error = os.dup(2)
    try:
        with Path(os.devnull).open("wb") as nowhere:
            os.dup2(nowhere.fileno(), 2)
        yield
    finally:
        os.dup2(standard_error, 2)
        os.close(standard_error)


@contextmanager
def _stoppable() -> Iterator[None]:
    """Makes Ctrl-C and SIGTERM raise `Stopped`, so that `finally` blocks remove unfinished files.

    A library may make another error of it, as NumPy does while it is imported, and Python drops it where it comes in a
    callback, as of the search for garbage: then it is raised at the next line that is said. A signal that the parent
    process has made this one ignore stays ignored.
    """
    global _pending
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def stop(number: int, frame: FrameType | None) -> None:
        global _pending
        _pending = Stopped(number, f"stopped by {STOPS[number]}")
        raise _pending

    unraisable = sys.unraisablehook
    sys.unraisablehook = lambda found: None if isinstance(found.exc_value, Stopped) else unraisable(found)
    heard = [number for number in STOPS if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, stop) for number in heard}
    try:
        yield
    except Exception:
        if _pending is not None:
            raise _pending from None
        raise
    finally:
        _pending, sys.unraisablehook = None, unraisable
        for number, handler in before.items():
            signal.signal(number, handler)


def check_utf8(arguments: Iterable[str]) -> None:
    """Raises RequestError for an argument, such as the name of a folder, whose bytes are not UTF-8.

    JSON files, TensorFlow and onnx, which keep or take such names, know no other bytes.
    """
    for argument in arguments:
        if not argument.isascii() and re.search("[\udc80-\udcff]", argument):
            shown = argument.encode(errors="surrogateescape").decode(errors="backslashreplace")
            raise RequestError(f"expected arguments and names of files in UTF-8; received {shown}: rename the file")


def _for_tensor(error: Exception) -> str:
    """Names the tensor for which memory ran out, if TensorFlow's error does."""
    tensor = re.search(r"tensor with shape\[[\d,]*\]", str(error))
    return f" for a {tensor[0]}" if tensor else ""


def exit_status(command: Callable[[], Any], arguments: Sequence[str] | None = None) -> int:
    """Runs `command` and returns its exit status. Expected errors are printed as one line, not as a traceback.

    Args:
        command: what to run. Its standard output is UTF-8, whatever the environment says.
        arguments: the arguments of the command line, which must be UTF-8; by default those of this process.

    Returns:
        0 success, 1 the work failed, 2 the request was wrong, 128 + n signal n stopped the process.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(encoding="utf-8", errors="backslashreplace")
    try:
        if sys.platform == "win32":
            raise RequestError(NO_WINDOWS)
        check_utf8(sys.argv[1:] if arguments is None else arguments)
        with _stoppable():
            command()
            print_result("", end="")  # what others printed
        return 0
    except RequestError as error:
        _tell("error", error)
        return 2
    except Stopped as stop:
        say(str(stop))
        return 128 + stop.signal_number
    except KeyboardInterrupt:
        return 130
    except OutputClosed:
        return 0
    except (JobError, OSError, MemoryError) as error:
        _tell("error", str(error) or type(error).__name__)
        return 2 if getattr(error, "errno", None) == errno.ENAMETOOLONG else 1  # no job makes such a name
    except Exception as error:
        if type(error).__name__ != "ResourceExhaustedError":  # TensorFlow's error; TensorFlow may not be imported
            raise
        say(f"error: out of memory{_for_tensor(error)}: take smaller batches, or a smaller model")
        return 1
    finally:
        _write(sys.stdout, "")  # such as help, which `| head` may have left
