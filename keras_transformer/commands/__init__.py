"""What the commands share: a command, and how the verbs of all tasks become one list."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple

from keras_transformer.errors import RequestError
from keras_transformer.export_folder import ExportFolder
from keras_transformer.run_folder import RunFolder, read_config
from keras_transformer.tasks import TASKS, task_of

AddOptions = Callable[[argparse.ArgumentParser], None]


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
    """The task of the run in a folder, by which a verb is done. An export is left to the first task."""
    if not RunFolder(folder).is_run() and ExportFolder(folder).is_export():
        return next(iter(of_each))
    task = task_of(read_config(folder))
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
