"""`wrong_paths.py RUN`: gives each command, and the training of each task, a wrong path in place of each that it reads.

It prints what is not refused by the name of the path before TensorFlow is imported, and how many it gave.
"""

import contextlib
import io
import sys
from itertools import chain
from pathlib import Path
from typing import Any

import train
from keras_transformer.__main__ import main, make_parser
from keras_transformer.core.task_registry import TASKS
from keras_transformer.spec.options import flag_of

RUN, TEXT = sys.argv[1], __file__
RIGHT = {"FILE": TEXT, "FOLDER": ".", "RUN": RUN}
WRONG = {"FILE": ("nowhere", "empty"), "FOLDER": ("nowhere", TEXT), "RUN": ("nowhere", "empty")}
parsers: Any = next(action.choices for action in make_parser()._actions if action.choices)
given: list[Any] = [(main, "no.en", f"distill {RUN} --source {TEXT} --out new --train --valid-source no.en".split())]
for name, parser in parsers.items():
    for action in (one for one in parser._actions if one.metavar in WRONG and one.dest != "out"):
        needed = [one for one in parser._actions if one.required or not one.option_strings or one is action]
        for wrong in WRONG[action.metavar]:
            paths = [wrong if one is action else RIGHT.get(one.metavar, "new.npy") for one in needed]
            words = ([*one.option_strings[:1], path] for one, path in zip(needed, paths, strict=True))
            given.append((main, wrong, [name, *chain.from_iterable(words)]))
for task, its in TASKS.items():
    kinds = {name: flag.options.get("metavar") for name, flag in its.settings.flags.items() if name != "out"}
    wrongs: list[Any] = [(flag_of(name), wrong) for name, kind in kinds.items() for wrong in WRONG.get(kind, ())]
    wrongs += [("--out", RUN), ("--out", TEXT), ("--resume", "--out", "nowhere")]
    given += [(train.main, words[-1], [task, *words]) for words in wrongs]
given.append((train.main, "nowhere", f"--source {TEXT} --target {TEXT} --normalization nowhere".split()))
Path("empty").mkdir()
for command, wrong, words in given:
    with contextlib.redirect_stderr(io.StringIO()) as told:
        status = command(words)
    if status != 2 or wrong not in told.getvalue() or {"keras", "tensorflow"} & sys.modules.keys():
        print(*words, told.getvalue())
print(len(given))
