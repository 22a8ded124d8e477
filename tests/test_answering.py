"""What each command does where this package was installed without extras."""

from collections.abc import Iterator
from pathlib import Path

from keras_transformer.__main__ import CORE_COMMANDS
from keras_transformer.commands.command import Command
from keras_transformer.core.task_registry import TASKS

ROOT = Path(__file__).resolve().parent.parent
HEAD = "| command | task | in the answering environment |\n| --- | --- | --- |\n"


def commands() -> Iterator[tuple[str, str, Command]]:
    """Each command's name, its task, or "" if it is of all, and the command."""
    for task, its in TASKS.items():
        yield from ((name, task, command) for name, command in its.module("commands").COMMANDS.items())
    yield from ((name, "", command) for name, command in CORE_COMMANDS.items())


def test_the_table_of_build_says_what_each_command_needs():
    rows = [
        f"| `{name}` | {task or 'all'} | {f'needs the extra `{command.extra}`' if command.extra else 'answers'} |\n"
        for name, task, command in commands()
    ]
    assert HEAD + "".join(rows) in (ROOT / "BUILD.md").read_text(encoding="utf-8"), "".join(rows)
