"""Defines a command, and merges the commands of all tasks.

The modules of the export are imported here: `export` in a checkout, `keras_transformer.export` in a wheel. The commands
are the top floor: they alone may import the export.
"""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from keras_transformer.core.errors import RequestError
from keras_transformer.core.extras import missing
from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.run_folder import config_of

if TYPE_CHECKING:
    from keras_transformer.importing.weights import Imported

AddOptions = Callable[[argparse.ArgumentParser], None]
Validation = TypeVar("Validation")
IN_WHEEL = "keras_transformer.export"
RUN_OR_EXPORT = "a run folder, or an export with ONNX graphs: its folder, its folder onnx, or a graph"


class Command(NamedTuple):
    """One command.

    Args:
        run: does it with its arguments.
        help: one line.
        add_options: adds its options to a parser.
        run_help: the help of its first argument, RUN; empty if it has none.
        extra: the extra of this package that it needs; empty if it answers where the package was installed plainly.
    """

    run: Callable[[argparse.Namespace], None]
    help: str
    add_options: AddOptions = lambda parser: None
    run_help: str = "the run folder"
    extra: str = ""


class Importer(NamedTuple, Generic[Validation]):
    """How a task writes the run of an imported model: `IMPORTER` of its `commands`.

    Args:
        add_options: adds its own options to a parser.
        validation_of: finds what its options name to certify exports on; RequestError if that is not there.
        write: writes the run, from what was imported, the command's arguments, and the validation.
    """

    add_options: AddOptions
    validation_of: Callable[[argparse.Namespace], Validation]
    write: Callable[[Imported, argparse.Namespace, Validation], None]


@dataclass(frozen=True)
class LazyCommand:
    """What a command does, whose module is imported when it runs, not for `--help`.

    Args:
        place: "module:function".
    """

    place: str

    def __call__(self, arguments: argparse.Namespace) -> None:
        module, _, function = self.place.partition(":")
        getattr(import_module(module), function)(arguments)


def tell_what_lacks(
    name: str, extra: str, run: Callable[[argparse.Namespace], None], arguments: argparse.Namespace
) -> None:
    """Runs a command. Where a package of its extra is not installed, it raises MissingPackage."""
    try:
        run(arguments)
    except ModuleNotFoundError as error:
        if not extra:
            raise
        raise missing(error.name or "", extra, f"`{name}`") from None


def task_commands() -> dict[str, Command]:
    """Returns the commands of all tasks. One that several tasks have takes the options of all, and the run's task does
    it.
    """
    of_each: dict[str, dict[str, Command]] = {}
    for task, its in TASKS.items():
        commands: dict[str, Command] = its.module("commands").COMMANDS
        for name, command in commands.items():
            of_each.setdefault(name, {})[task] = command
    return {name: merged(name, some) for name, some in of_each.items()}


def merged(name: str, of_each: Mapping[str, Command]) -> Command:
    """Merges the commands of several tasks into one.

    Args:
        name: of the command.
        of_each: the command of each task.
    """
    first, *others = of_each.values()
    if not others:
        return first
    options = {task: command.add_options for task, command in of_each.items()}

    def run(arguments: argparse.Namespace) -> None:
        task = _task_in(arguments.run, name, of_each)
        refuse_options_of_others(arguments, task, options)
        of_each[task].run(arguments)

    def add_options(parser: argparse.ArgumentParser) -> None:
        add_shared_options(parser, options.values())

    return Command(run, "; ".join(dict.fromkeys(one.help for one in of_each.values())), add_options, first.run_help)


def _task_in(folder: str, name: str, of_each: Mapping[str, Command]) -> str:
    """Returns the task of the run or the export in a folder, which does a command."""
    task = config_of(folder).task
    if task not in of_each:
        raise RequestError(
            f"`{name}` takes runs of --task {' or '.join(of_each)}; {folder} is one of --task {task}, which "
            f"`{TASKS[task].main_command}` takes"
        )
    return task


def _options_of(add_options: AddOptions) -> list[argparse.Action]:
    """Returns the options that a task adds."""
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser)
    return parser._actions


def add_shared_options(parser: argparse.ArgumentParser, of_tasks: Iterable[AddOptions]) -> None:
    """Adds the options of several tasks to a parser. One that several tasks have is the same one, and added once."""
    known = set[str]()
    for add_options in of_tasks:
        for action in _options_of(add_options):
            flag = [action.dest, *action.option_strings][-1]
            if flag not in known:
                known.add(flag)
                parser._add_action(action)


def refuse_options_of_others(arguments: argparse.Namespace, task: str, of_tasks: Mapping[str, AddOptions]) -> None:
    """Raises RequestError if an option was given that other tasks have, and not this one."""
    actions, owners = dict[str, argparse.Action](), dict[str, list[str]]()
    for one, add_options in of_tasks.items():
        for action in _options_of(add_options):
            actions.setdefault(action.dest, action)
            owners.setdefault(action.dest, []).append(one)
    for name, value in vars(arguments).items():
        if task not in owners.get(name, [task]) and is_given(value, actions[name].default):
            flag = [actions[name].metavar or name, *actions[name].option_strings][-1]
            raise RequestError(
                f"{flag} is for --task {' or '.join(owners[name])}; received it for --task {task}: leave it out"
            )


def is_given(value: object, default: object) -> bool:
    """Tells whether an option was given: 0 is a value, and an empty list of files is none."""
    return value != default and value is not None and value is not False and value != []


def export_module(name: str) -> ModuleType:
    """Returns the module of the export with this name, such as "onnx"."""
    package = IN_WHEEL if importlib.util.find_spec(IN_WHEEL) else "export"
    return import_module(f"{package}.{name}")
