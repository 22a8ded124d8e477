"""Every command that reads text tells what it could not read and what it cut, and refuses what is no UTF-8."""

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from keras_transformer.__main__ import CORE_COMMANDS
from keras_transformer.core.task_registry import TASKS
from tests.golden.cases import write_lines
from tests.golden.stored import unpack

RUNS = ("translation", "language-model", "answers", "masked-tokens", "classification", "next-item")
LONG = "ba do " * 40 + "ba" * 80  # no model of these has so long a context
TEXTS = ["ba 日本 ☃", LONG, "ba"]
FILES = {"texts": TEXTS, "good": ["ba"] * 3, "log": ["user\titem\ttime", "1\tnew\t1", *["2\ta0\t1"] * 9]}
UNREAD = "1 line(s) hold 3 character(s) that the vocabulary cannot read, such as '日', '本', '☃'"
CUT, PROMPT = "were cut", "1 prompt(s) longer than the context"
LOG = "1 event(s) of the histories are left out", "1 history(s) have more than 7 items"
GREEDY = "--engine keras --beams 1 --max-length 3"
# The words behind a verb and a run, standard input, and what is told.
READING = {
    ("translate", "translation"): (GREEDY, TEXTS, (UNREAD, CUT)),
    ("evaluate", "translation"): (f"--source texts --reference good {GREEDY}", (), (UNREAD, CUT)),
    ("compare", "translation"): (f"translation --source texts --reference good {GREEDY}", (), (UNREAD, CUT)),
    ("distill", "translation"): (f"--source texts --text distilled {GREEDY}", (), (UNREAD, CUT)),
    ("score", "translation"): ("--source texts --target good", (), (UNREAD, CUT)),
    ("generate", "language-model"): ("--prompts texts --tokens 1", (), (UNREAD, PROMPT)),
    ("generate", "answers"): ("--prompts texts --tokens 1", (), (UNREAD, PROMPT)),
    ("score", "language-model"): ("--text texts", (), (UNREAD,)),  # in windows: nothing is cut
    ("score", "answers"): ("--source texts --target good", (), (UNREAD, PROMPT)),
    ("classify", "classification"): ("", TEXTS, (UNREAD, CUT)),
    **{("embed", run): ("--out vectors.npy", TEXTS, (UNREAD, CUT)) for run in RUNS[3:5]},
    ("fill", "masked-tokens"): ("", [*TEXTS, LONG + "<mask>"], (UNREAD, CUT, "1 mask(s) stand behind the context")),
    ("recommend", "next-item"): ("", ["a0\tnew", "a0\t" * 9], LOG),
    ("embed", "next-item"): ("--out vectors.npy", ["a0\tnew", "a0\t" * 9], LOG),
    ("evaluate", "next-item"): ("--log log", (), LOG[1:]),
    **{("attention", run): ("TEXT --out page.html", (), (UNREAD, CUT)) for run in ("translation", *RUNS[3:5])},
    **{("attention", run): ("TEXT --out page.html", (), (UNREAD, PROMPT)) for run in RUNS[1:3]},
    ("neighbours", "translation"): ("ba 日本", (), ("received '日本', which is cut into",)),
}  # fmt: skip
NO_TEXT = {("classify", "images"), *((verb, "") for verb in ("train", "average", "info", "import", "export", "serve"))}


@pytest.fixture(autouse=True, scope="module")
def _folder(tmp_path_factory) -> Iterator[None]:
    with contextlib.chdir(folder := tmp_path_factory.mktemp("runs")):
        for name in RUNS:
            unpack(name, folder / name)
        for name, lines in FILES.items():
            write_lines(folder / name, lines)
            Path(f"wide-{name}").write_bytes("".join(f"{line}\n" for line in lines).encode("utf-16-le"))
        yield


def test_each_verb_of_each_task_is_known_to_read_text_or_none():
    known = {
        (verb, "" if verb in CORE_COMMANDS else task.replace("answers", "language-model")) for verb, task in READING
    }
    verbs = {(verb, task) for task in TASKS for verb in TASKS[task].module("commands").COMMANDS} | {
        (verb, "") for verb in CORE_COMMANDS
    }
    assert known | NO_TEXT == verbs


@pytest.mark.parametrize(("verb", "task"), READING)
def test_what_is_not_read_is_told_with_its_count_and_no_utf_8_refused(run, verb, task):
    words, lines, expected = READING[verb, task]
    stdin = "".join(f"{line}\n" for line in lines)
    given = [" ".join(TEXTS) if word == "TEXT" else word for word in words.split()]
    status, _, err = run(verb, task, *given, stdin=stdin)
    assert status == (verb == "neighbours"), err
    for told in expected:
        assert err.count(told) == 1 + (verb == "compare"), err
    wide = [f"wide-{word}" if word in FILES else word for word in given]
    if stdin or wide != given:
        status, out, err = run(verb, task, *wide, stdin=stdin.encode("utf-16-le"))
        assert (status, out) == (2, "") and "iconv -f UTF-16LE -t UTF-8" in err, err
