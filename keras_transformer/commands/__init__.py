"""What the commands share: a command, how the verbs of all tasks become one list, and what commands read and write.

The modules of the export are imported here: `export` in a checkout, `keras_transformer.export` in a wheel. The commands
are the top floor: they alone may import the export.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, TYPE_CHECKING, Any, NamedTuple, TypeVar

from keras_transformer.core.errors import RequestError, say, warn
from keras_transformer.core.files import check_there, check_writable, write_whole
from keras_transformer.core.task_registry import DEFAULT_TASK, TASKS
from keras_transformer.runs.export_folder import PRECISIONS, PROVIDERS, ExportFolder
from keras_transformer.runs.run_folder import read_config
from keras_transformer.text.lines import read_lines, require_no_nul
from keras_transformer.training.flags import Parser

if TYPE_CHECKING:
    import numpy as np

AddOptions = Callable[[argparse.ArgumentParser], None]
Item = TypeVar("Item")
COUNTED = "{n:,}{unit} · {rate_noinv_fmt}"  # for tqdm
SECONDS = 0.2  # between two lines
ENGINES = ("auto", "onnx", "keras")
READ = ("FILE", "FOLDER", "RUN")  # the metavars of what a command reads, see `CommandParser`
IN_WHEEL = "keras_transformer.export"


class CommandParser(Parser):
    """The parser of a command.

    An argument with the metavar FILE, FOLDER or RUN names what the command reads, but for `--out`; what it writes has
    another metavar. The parser looks whether it is there, so a wrong path is told before TensorFlow is imported.
    """

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:  # type: ignore[override]
        """As in `argparse`."""
        found, rest = super().parse_known_args(args, namespace)
        for action in self._actions:
            given = getattr(found, action.dest, None) if action.metavar in READ and action.dest != "out" else None
            for path in [given] if isinstance(given, str) else given or []:
                _check_read(path, str(action.metavar))
        return found, rest


def _check_read(path: str, metavar: str) -> None:
    """Raises RequestError unless what a command reads is there. In place of a run an export or a graph passes: the
    command tells whether it takes one.
    """
    if metavar != "RUN":
        check_there(path, metavar)
    elif not ExportFolder(path).is_export():
        read_config(path)


def number_from(least: float, most: float = 1_000_000, kind: type[int] | type[float] = int) -> Callable[[str], float]:
    """What reads the number of an option, its `type`. One out of the range is refused before any model is loaded."""

    def read(text: str) -> float:
        with suppress(ValueError):
            if least <= (value := kind(text)) <= most:
                return value
        what = "a whole number" if kind is int else "a number"
        raise argparse.ArgumentTypeError(f"must be {what} from {least:,} to {most:,}; received: {text:.60}")

    return read


COUNT, FEW = number_from(1), number_from(1, 1_000)


class Command(NamedTuple):
    """One command.

    Args:
        run: what it does with its arguments.
        help: one line.
        add_options: adds its options to a parser.
        takes: the help of its first argument, a folder; empty if it has none.
    """

    run: Callable[[argparse.Namespace], None]
    help: str
    add_options: AddOptions = lambda parser: None
    takes: str = "the run folder"


class Importing(NamedTuple):
    """How a task writes the run of an imported model: `IMPORTING` of its `commands`.

    Args:
        add_options: adds its own options to a parser.
        validation_of: what its options name to certify exports on; it raises RequestError if that is not there.
        write: writes the run, from what was imported, the command's arguments, and the validation.
    """

    add_options: AddOptions
    validation_of: Callable[[argparse.Namespace], Any]
    write: Callable[[Any, argparse.Namespace, Any], None]


@dataclass(frozen=True)
class Deed:
    """What a command does. The module is imported when the command runs, not for `--help`.

    Args:
        place: "module:function".
    """

    place: str

    def __call__(self, *arguments: object) -> Any:
        module, _, function = self.place.partition(":")
        return getattr(import_module(module), function)(*arguments)


def verbs() -> dict[str, Command]:
    """The verbs of all tasks. One that several tasks have takes the options of all, and the run's task does it."""
    of_each: dict[str, dict[str, Command]] = {}
    for task, its in TASKS.items():
        for verb, command in its.commands.items():
            of_each.setdefault(verb, {})[task] = command
    return {verb: _joined(verb, some) for verb, some in of_each.items()}


def _joined(verb: str, of_each: Mapping[str, Command]) -> Command:
    """The one command of several tasks."""
    first, *others = of_each.values()
    if not others:
        return first

    def run(arguments: argparse.Namespace) -> None:
        task = _task_of(arguments.run, verb, of_each)
        refuse_foreign(arguments, task, {one: its.add_options for one, its in of_each.items()})
        of_each[task].run(arguments)

    def add_options(parser: argparse.ArgumentParser) -> None:
        add_all(parser, [one.add_options for one in of_each.values()])

    return Command(run, "; ".join(dict.fromkeys(one.help for one in of_each.values())), add_options, first.takes)


def _task_of(folder: str, verb: str, of_each: Mapping[str, Command]) -> str:
    """The task of the run in a folder, by which a verb is done. Exports are a translator's: no others run here."""
    if DEFAULT_TASK in of_each and ExportFolder(folder).is_export():
        return DEFAULT_TASK
    task = read_config(folder).task
    if task not in of_each:
        raise RequestError(
            f"`{verb}` takes runs of --task {' or '.join(of_each)}; {folder} is one of --task {task}, which "
            f"`{next(iter(TASKS[task].commands))}` takes"
        )
    return task


class _Parser:
    """A parser to which several tasks add their options: an option that is there is the same one."""

    def __init__(self, parser: argparse.ArgumentParser, known: set[str]):
        self.parser = parser
        self.known = known  # the options that the parser has
        self.own: dict[str, str] = {}  # what was added, whoever added it first, as people write it

    def add_argument(self, *names: str, **options: Any) -> None:
        flag = names[-1]
        self.own[flag.lstrip("-").replace("-", "_")] = flag if flag.startswith("-") else options.get("metavar", flag)
        if flag not in self.known:
            self.known.add(flag)
            self.parser.add_argument(*names, **options)


def add_all(parser: argparse.ArgumentParser, several: list[AddOptions]) -> None:
    """Adds the options of several tasks to a parser."""
    shared: Any = _Parser(parser, set())
    for add_options in several:
        add_options(shared)


def refuse_foreign(arguments: argparse.Namespace, task: str, several: Mapping[str, AddOptions]) -> None:
    """Raises RequestError if an option was given that other tasks have, and not this one."""
    own: dict[str, dict[str, str]] = {}
    defaults, known = argparse.ArgumentParser(add_help=False), set[str]()
    for one, add_options in several.items():
        shared: Any = _Parser(defaults, known)
        add_options(shared)
        own[one] = shared.own
    for name, value in vars(arguments).items():
        owners = [one for one, names in own.items() if name in names]
        if owners and task not in owners and is_given(value, defaults.get_default(name)):
            flag = own[owners[0]][name]
            raise RequestError(
                f"{flag} is for --task {' or '.join(owners)}; received it for --task {task}: leave it out"
            )


def is_given(value: object, default: object) -> bool:
    """Whether an option was given: 0 is a value, and an empty list of files is none."""
    return value != default and value is not None and value is not False and value != []


class TextLines:
    """Lines of text from a stream of UTF-8 bytes.

    A line ends at \\n alone, and a \\r before it is dropped. Invalid bytes become U+FFFD; `num_invalid` counts the
    lines that had some. A line with NUL is refused, see `require_no_nul`.
    """

    def __init__(self, stream: IO[bytes]):
        self.stream = stream
        self.num_invalid = 0

    def tell_of_invalid(self) -> None:
        """Warns of the lines that were not UTF-8."""
        if self.num_invalid:
            warn(f"{self.num_invalid} line(s) were not UTF-8; invalid bytes became U+FFFD")

    def __iter__(self) -> Iterator[str]:
        for number, line in enumerate(self.stream, start=1):
            require_no_nul(line, number, "standard input")
            line = line.removesuffix(b"\n").removesuffix(b"\r")
            try:
                yield line.decode("utf-8")
            except UnicodeDecodeError:
                self.num_invalid += 1
                yield line.decode("utf-8", "replace")


def standard_input() -> TextLines:
    """The lines of standard input.

    Raises:
        RequestError: it is closed.
    """
    if sys.stdin is None:
        raise RequestError("standard input must be open; received one that is closed")
    return TextLines(sys.stdin.buffer)


class ParallelLines(NamedTuple):
    """The lines of two files: line n of one belongs to line n of the other."""

    sources: list[str]
    targets: list[str]


def read_both(source: str, target: str) -> ParallelLines:
    """Reads two parallel files.

    Raises:
        RequestError: they have no lines, or not equally many.
    """
    lines = ParallelLines(list(read_lines(source)), list(read_lines(target)))
    if len(lines.sources) != len(lines.targets) or not lines.sources:
        raise RequestError(
            f"expected as many lines in both files, and one at least; {source} has {len(lines.sources)}, "
            f"{target} has {len(lines.targets)}: align them"
        )
    return lines


def add_batch_size(parser: argparse.ArgumentParser) -> None:
    """Adds `--batch-size`."""
    parser.add_argument("--batch-size", type=COUNT, default=64, metavar="N", help="how many at once (default: 64)")


def counted(items: Iterable[Item], noun: str) -> Iterator[Item]:
    """Yields the items, and counts them on standard error if a person sees nothing else of them.

    That is where standard error is a terminal, and neither standard input nor standard output is one.
    """
    if sys.stderr is None or not sys.stderr.isatty() or sys.stdin.isatty() or sys.stdout.isatty():
        return iter(items)
    from tqdm import tqdm

    return iter(tqdm(items, bar_format=COUNTED, unit=f" {noun}", mininterval=SECONDS, position=0, leave=False))


def write_vectors(arguments: argparse.Namespace, vectors_of: Callable[[argparse.Namespace], np.ndarray]) -> None:
    """Writes vectors as a NumPy file, (N, D) float32.

    Args:
        arguments: the command's.
        vectors_of: finds the vectors.

    Raises:
        RequestError: the file cannot be written; nothing is computed then.
    """
    out = Path(arguments.out)
    if not out.parent.is_dir() or out.is_dir():
        raise RequestError(f"expected a file in a folder that is there; received {out}: choose another file with --out")
    check_writable(out.parent, "choose another file with --out")
    import numpy as np

    vectors = vectors_of(arguments)
    with write_whole(out) as aside, aside.open("wb") as file:
        np.save(file, vectors, allow_pickle=False)
    say(f"wrote {out}: {vectors.shape[0]:,} vectors of {vectors.shape[1]} numbers")


def add_vector_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `embed` that all tasks share."""
    add_batch_size(parser)
    parser.add_argument("--out", required=True, metavar="FILE", help="the .npy file to write")


def add_engine_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose what computes."""
    engine = "ONNX Runtime (onnx), which needs no TensorFlow after the first time; Keras; or the one that fits (auto)"
    precision = "of ONNX Runtime; int8 is faster and less exact (default: float32, or what the export has)"
    add = parser.add_argument
    add("--engine", choices=ENGINES, default="auto", help=f"{engine} (default: auto)")
    add("--precision", choices=PRECISIONS, help=precision)
    add_provider_option(parser)
    threads = "of the processor, in each process (default: the cores, shared out)"
    add("--threads", type=FEW, metavar="N", help=threads)


def add_provider_option(parser: argparse.ArgumentParser) -> None:
    """Adds the option that chooses what ONNX Runtime computes on."""
    provider = "of ONNX Runtime: cpu; cuda, the first GPU; or the GPU if ONNX Runtime can use it (default: auto)"
    parser.add_argument("--provider", choices=PROVIDERS, default="auto", help=provider)


def export_module(name: str) -> ModuleType:
    """The module of the export with this name, such as "onnx"."""
    package = IN_WHEEL if importlib.util.find_spec(IN_WHEEL) else "export"
    return import_module(f"{package}.{name}")
