"""`wrong_paths.py RUN`: gives each command, and the training of each task, a wrong path in place of each that it reads.

It prints each that is not refused by the name of the path, or after TensorFlow is imported; and at last their number.
"""

import contextlib
import io
import sys
from collections.abc import Callable, Iterator
from dataclasses import fields
from itertools import chain
from pathlib import Path
from typing import Any

import train
from keras_transformer.__main__ import main, make_parser
from keras_transformer.tasks import TASKS
from keras_transformer.training.common_settings import flag_of

RUN, TEXT = sys.argv[1], __file__
RIGHT = {"FILE": TEXT, "FOLDER": ".", "RUN": RUN}
WRONG = {"FILE": ("nowhere", "empty"), "FOLDER": ("nowhere", TEXT), "RUN": ("nowhere", "empty")}
STUDENT = ["distill", RUN, "--source", TEXT, "--out", "new", "--train"]


def of_commands() -> Iterator[tuple[str, list[str]]]:
    yield "nowhere", [*STUDENT, "--valid-source", "nowhere"]
    parsers: Any = next(one.choices for one in make_parser()._actions if one.dest == "command" or one.choices)
    for name, actions in {name: parser._actions for name, parser in parsers.items()}.items():
        for action in (one for one in actions if one.metavar in WRONG and one.dest != "out"):
            needed = [one for one in actions if one.required or not one.option_strings or one is action]
            for wrong in WRONG[action.metavar]:
                paths = [wrong if one is action else RIGHT.get(one.metavar, "new.npy") for one in needed]
                words = ([*one.option_strings[:1], path] for one, path in zip(needed, paths, strict=True))
                yield wrong, [name, *chain.from_iterable(words)]


def of_training() -> Iterator[tuple[str, list[str]]]:
    for task in TASKS:
        for one in fields(TASKS[task].settings):
            wrongs = WRONG.get(one.metadata["options"].get("metavar"), ()) if one.name != "out" else ()
            yield from ((wrong, [task, flag_of(one.name), wrong]) for wrong in wrongs)
        yield from ((wrong, [task, "--out", wrong]) for wrong in (RUN, TEXT))
        yield "nowhere", [task, "--resume", "--out", "nowhere"]
    yield "nowhere", ["--source", TEXT, "--target", TEXT, "--normalization", "nowhere"]


def check(command: Callable[[list[str]], int], wrong: str, words: list[str]) -> None:
    with contextlib.redirect_stderr(io.StringIO()) as told:
        status = command(words)
    if status != 2 or wrong not in told.getvalue() or {"keras", "tensorflow"} & sys.modules.keys():
        print(*words, told.getvalue())


Path("empty").mkdir()
given: list[Any] = [*((main, *one) for one in of_commands()), *((train.main, *one) for one in of_training())]
for one in given:
    check(*one)
print(len(given))
