"""Parses the command line of training, which has a flag for each setting of a task."""

from __future__ import annotations

import argparse
import difflib
import re
import shutil
import sys
import textwrap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NoReturn

from keras_transformer.core.errors import RequestError, command_line
from keras_transformer.core.schema import having, read_json
from keras_transformer.core.task_registry import DEFAULT_TASK, TASKS, task_named
from keras_transformer.core.version import __version__
from keras_transformer.runs.run_folder import MAX_CONFIG_BYTES
from keras_transformer.spec.custom_parts import FLAG, HELP
from keras_transformer.spec.presets import PRESETS
from keras_transformer.training.common_settings import GROUPS, Flag, Settings, settings_of, wrong_task_message

OF_TASK = having(settings=dict, model=having(kind=str))  # what tells a run's task
# What other toolkits call some flags.
ELSEWHERE = {
    "--batch-size": "--token-budget", "--batch": "--token-budget", "--epochs": "--steps", "--max-steps": "--steps",
    "--lr": "--learning-rate-factor", "--learning-rate": "--learning-rate-factor", "--gpus": "--devices",
    "--layers": "--num-layers", "--heads": "--num-heads", "--d-model": "--hidden-dim", "--d-ff": "--intermediate-dim",
    "--fp16": "--mixed-precision", "--amp": "--mixed-precision", "--bf16": "--mixed-precision", "--output": "--out",
    "--src": "--source", "--tgt": "--target", "--train-source": "--source", "--warmup": "--warmup-steps",
    "--vocab-size": "--vocabulary-size", "--grad-clip": "--clip-norm", "--early-stopping": "--patience",
}  # fmt: skip


class _Compact(argparse.HelpFormatter):
    """Puts a flag and its help into one line where they fit, and breaks lines at spaces alone, so that a reader finds
    flags, and copies them, whole."""

    def __init__(self, prog: str):
        super().__init__(prog, max_help_position=28, width=shutil.get_terminal_size().columns)

    def _format_action_invocation(self, action: argparse.Action) -> str:
        if isinstance(action, argparse.BooleanOptionalAction):
            return f"--[no-]{action.option_strings[0].removeprefix('--')}"
        return super()._format_action_invocation(action)

    def _split_lines(self, text: str, width: int) -> list[str]:
        return textwrap.wrap(" ".join(text.split()), width, break_on_hyphens=False)


def parser(task: str = DEFAULT_TASK) -> TrainParser:
    """The command line of train.py, whose help is that of a task."""
    return TrainParser(prog=command_line("train"), task=task)


class Parser(argparse.ArgumentParser):
    """A parser that tells what is wrong in one line, with what is probably meant, as all commands do."""

    task = ""  # whose flags of training it has

    def error(self, message: str) -> NoReturn:
        """Raises RequestError."""
        if choice := re.search(r"invalid choice: '(.*)' \(choose from (.*)\)", message):
            message += _meant(choice[1], choice[2].replace("'", "").split(", "))
        raise RequestError(f"{message}; see `{self.prog} --help`")

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As in `argparse`, but a word that the parser does not know is refused by RequestError."""
        found, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(_unknown(rest, self))
        return found, []


class TrainParser(Parser):
    """Takes the flags of the task that the words name: first, as in `images --steps 9`, or with --task.

    A run that goes on, or that is fine-tuned, names its task itself.
    """

    def __init__(self, *arguments: Any, task: str = DEFAULT_TASK, **options: Any):
        self.task = task
        super().__init__(*arguments, **{**options, "add_help": False})  # the parser of a task has it

    def of_task(self, task: str) -> Parser:
        """The parser of a task; a flag that is not given is None."""
        parser = Parser(
            prog=self.prog,
            usage=self.usage or f"{self.prog} [TASK] [flags]",
            description=" ".join(filter(None, [self.description, f"Learns {TASKS[task].help}. {_others(task)}"])),
            epilog="The recipe of a named corpus wins over --preset, flags win over both. BUILD.md has the presets.",
            formatter_class=_Compact,
            allow_abbrev=False,
            parents=[self],
        )
        parser.task = task
        parser.add_argument("--version", action="version", version=f"keras-transformer {__version__}")
        parser.add_argument(FLAG, metavar="MODULE", default=argparse.SUPPRESS, help=HELP)
        groups = {name: parser.add_argument_group(name) for name in GROUPS}
        settings = settings_of(task)
        for flag in settings.flags.values():
            options = {"default": None, "help": flag.help + _default(flag, settings), **flag.options}
            groups[flag.group].add_argument(flag.spelling, **options)
        return parser

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """As in `Parser`, by the parser of the task."""
        words = sys.argv[1:] if args is None else [*args]
        words = ["--task", *words] if words and words[0] in TASKS else words
        return self.of_task(_task_of(words)).parse_known_args(words, namespace)

    def format_help(self) -> str:
        """The help of a task."""
        return self.of_task(self.task).format_help()


def _others(task: str) -> str:
    return f"Other tasks: {', '.join(name for name in TASKS if name != task)}."


def _task_of(words: Sequence[str]) -> str:
    """The task that the words name, or the run that goes on or is fine-tuned; the default one where they name none."""
    named = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    for flag in ("--task", "--out", "--init-from"):
        named.add_argument(flag, nargs="?")
    named.add_argument("--resume", action="store_true")
    found, _ = named.parse_known_args(words)
    run = found.out if found.resume else found.init_from
    task = found.task or (_task_of_run(Path(run)) if run else None)
    return task if task in [*TASKS] else DEFAULT_TASK  # a list, because config.json may hold what has no hash


def _task_of_run(folder: Path) -> str | None:
    """The task of a run by its config.json, if it tells; whoever reads the run tells what is wrong with it."""
    try:
        config = read_json(folder / "config.json", OF_TASK, MAX_CONFIG_BYTES, has_constants=True)
        return task_named(config["settings"].get("task"), config["model"]["kind"], config)
    except (OSError, ValueError):
        return None


def _unknown(rest: Sequence[str], parser: Parser) -> str:
    """Builds the error message for unknown flags."""
    flag = next((word.partition("=")[0] for word in rest if word.startswith("--")), None)
    if flag is None:
        return f"unrecognized arguments: {' '.join(rest)}"
    if parser.task and (message := wrong_task_message(flag, parser.task)):
        return message
    known = [name for action in parser._actions for name in action.option_strings]
    return f"there is no flag {flag}{_meant(flag, known)}"


def _meant(word: str, known: Sequence[str]) -> str:
    """The end of a message on a wrong word: the one that is probably meant, if there is any."""
    near = [ELSEWHERE.get(word), *difflib.get_close_matches(word, known, 1)]
    return next((f"; did you mean {one}?" for one in near if one in known), "")


def _default(flag: Flag, settings: type[Settings]) -> str:
    """Returns the value of a setting if neither a flag nor a recipe gives one."""
    if flag.name not in settings.defaults and any(flag.name in preset for preset in PRESETS.values()):
        return " (preset)"
    is_told = flag.default in (None, False) or "default" in flag.help
    return "" if is_told else f" (default: {flag.default})"
