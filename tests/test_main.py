"""The commands, from bytes to bytes."""

import argparse
import io
import json
import math
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from itertools import product
from pathlib import Path
from types import SimpleNamespace
from typing import Any, TextIO

import pytest

from export.__main__ import main as export
from export.__main__ import make_parser as export_parser
from export.exporting import show
from keras_transformer.__main__ import commands, main, make_parser
from keras_transformer.core.errors import RequestError, Stopped, check_utf8, exit_status, print_result, say, warn
from keras_transformer.core.files import check_writable
from keras_transformer.core.task_registry import TASKS
from keras_transformer.tasks.translation.commands import translate as engines
from keras_transformer.training.flags import Parser, parser
from tests.processes import PROGRAMS, ROOT, run_python
from tests.tiny_corpus import resolved, tiny_flags
from train import main as train

MODULE = "my/python -m keras_transformer"  # as it is typed where the interpreter is
SOURCE = b"to the sea\nseven hundred and two\n\ntwo dogs\n"


@pytest.fixture
def run(run_folder, translator, monkeypatch, capfdbinary):
    """`run(command, *options, stdin=b"")` → exit status, standard output, standard error.

    Commands are handed one decoder, whose graphs are traced already, in place of one from the disk.
    """
    monkeypatch.setattr(engines, "decoder_for", lambda *of_the_command: lambda: translator.decoder)
    monkeypatch.setattr("keras_transformer.tasks.translation.loading.load", lambda run: translator)

    def run(command, *options, stdin=b""):
        monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(stdin)))
        status = main([command, str(run_folder), *map(str, options)])
        out, err = capfdbinary.readouterr()
        return status, out, err.decode()

    return run


@pytest.mark.parametrize("of", [train, export, main])
def test_a_name_that_is_not_utf8_is_refused_in_one_line(of, tmp_path, monkeypatch, capsys):
    """JSON and TensorFlow do not take such names; Python gives their bytes as halves of surrogate pairs."""
    monkeypatch.chdir(tmp_path)
    name = os.fsdecode(b"caf\xe9")
    Path(name).mkdir()
    assert of({train: ["--out", name], export: [name], main: ["info", name]}[of]) == 2
    told = "error: expected arguments and names of files in UTF-8; received caf\\xe9: rename the file\n"
    assert capsys.readouterr() == ("", told)
    assert list(Path(name).iterdir()) == []
    monkeypatch.chdir(name)
    with pytest.raises(RequestError, match=r"expected arguments and names of files in UTF-8; received .*caf\\xe9/run"):
        check_writable(Path("run"))


GARBAGE = {
    "nothing": (b"", 0),
    "control characters": (b"\x03\none\x04t\rwo\n\x01\x02\x1b[0m\n\x7f\n", 4),
    "other line separators": ("one\u2028two\u0085three\x0bfour\x0cfive\x1csix\n".encode(), 1),
    "control symbols": (b"<s> </s> <pad> <unk>\n</s>\n", 2),
    "a byte order mark": (b"\xef\xbb\xbfone\n", 1),
    "a long line": (b"one " * 5000 + b"\n", 1),
}


@pytest.mark.parametrize("stdin, num_lines", GARBAGE.values(), ids=GARBAGE.keys())
def test_whatever_comes_has_a_line_out_for_each_line_in(run, stdin, num_lines):
    status, out, err = run("translate", "--beams", 1, stdin=stdin)
    assert status == 0
    assert out.count(b"\n") == num_lines and (not out or out.endswith(b"\n"))
    assert b"\r" not in out and b"\0" not in out
    assert len(out.decode().splitlines()) == num_lines
    assert ("1 line(s) were over" in err) == (stdin.count(b"one ") == 5000)


def test_carriage_returns_change_nothing_and_invalid_utf8_is_replaced_and_counted(run):
    _, expected, _ = run("translate", stdin="one\ufffdtwo\none\n\ufffd\n".encode())
    status, out, err = run("translate", stdin=b"one\xfftwo\r\none\n\xc3")
    assert (status, out) == (0, expected)
    assert "warning: 2 line(s) were not UTF-8; invalid bytes became U+FFFD\n" in err


def test_scores_and_alignments_are_columns_and_lists_are_in_the_format_of_moses(run, translator):
    lines = SOURCE.decode().split("\n")[:-1]
    _, out, _ = run("translate", "--scores", "--alignments", stdin=SOURCE)
    for line, (best,) in zip(out.decode().split("\n"), translator.n_best(lines, alignments=True), strict=False):
        pairs = " ".join(f"{source}-{target}" for source, target in best.alignment)
        assert line == f"{best.score:.4f}\t{best.text}\t{pairs}"
    lists = translator.n_best(lines, n_best=3)
    expected = [f"{n} ||| {one.text} ||| {one.score:.4f}" for n, some in enumerate(lists) for one in some]
    _, out, _ = run("translate", "--n-best", 3, stdin=SOURCE)
    assert out.decode().split("\n")[:-1] == expected
    assert len(expected) == 3 + 3 + 1 + 3, "a blank line has one translation"


def test_a_prefix_for_each_line_comes_from_a_file(run, tmp_path):
    prefixes = tmp_path / "prefixes"
    prefixes.write_text("the dog\n\nseven\none\n")
    status, out, _ = run("translate", "--prefix", prefixes, stdin=SOURCE)
    lines = out.decode().split("\n")
    assert status == 0 and lines[0].startswith("the dog") and lines[3].startswith("one")
    assert lines[2] == "", "a blank source stays blank"
    prefixes.write_text("the\n")
    status, _, err = run("translate", "--prefix", prefixes, stdin=SOURCE)
    assert status == 2 and "expected a prefix, which may be blank, for each line" in err


def test_sentences_are_translated_apart_and_long_lines_split_or_cut_where_asked(run, translator):
    stdin = b"One two. Three.  Four five.\none\n"
    options = ("--max-source-length", 10, "--beams", 1)
    one, two, three = translator.translate(["One two.", "Three.", "Four five."], num_beams=1)
    status, out, err = run("translate", *options, stdin=stdin)
    assert (status, out.decode().splitlines()[0]) == (0, f"{one} {two}  {three}")
    assert "were over" not in err
    status, found, err = run("translate", *options, "--split", "lines", stdin=stdin)
    assert (status, found) == (0, out)
    assert "warning: 1 line(s) were over 10 pieces: their parts were translated and joined\n" in err
    status, cut, err = run("translate", *options, "--long", "cut", stdin=stdin)
    assert (status, cut.count(b"\n")) == (0, 2) and cut != out
    assert "warning: 1 source(s) were over 10 pieces and were cut\n" in err


@pytest.mark.parametrize(
    "options, message",
    [
        (["--n-best", "5"], "n_best must be at most the number of beams, 4; received: 5; ask for fewer"),
        (["--temperature", "0", "--sample"], "--temperature: must be a number from 1e-06 to 1,000,000; received: 0;"),
        (["--top-k", "3", "--seed", "1"], "--top-k, --seed expects --sample, which was not given"),
    ],
)
def test_a_wrong_option_is_one_line_and_status_2(run, options, message):
    status, out, err = run("translate", *options, stdin=SOURCE)
    assert (status, out) == (2, b"")
    assert err.startswith("error: ") and message in err and err.count("\n") == 1


@pytest.mark.parametrize("command", commands())
def test_a_wrong_word_is_refused_with_the_one_that_is_meant_and_the_help_of_the_command(command):
    of_it = parser().of_task("translation") if command == "train" else Parser(prog=command, allow_abbrev=False)
    commands()[command].add_options(of_it)
    flags = [flag for action in of_it._actions for flag in action.option_strings if len(flag) > 5]
    wrong = {flag: ([flag[:-1]], f"there is no flag {flag[:-1]}") for flag in flags if flag[:-1] not in flags}
    for action in of_it._actions:
        action.required = False
        for choice in action.choices or ():
            wrong[choice] = [f"{action.option_strings[0]}={choice}x"], f"invalid choice: '{choice}x'"
    for words, told in wrong.values():
        with pytest.raises(RequestError, match=rf"{told}.*; did you mean .*\?; see `.*{command} --help`$"):
            of_it.parse_args(words)


@pytest.mark.parametrize("command", commands())
def test_every_option_has_help_and_bounds_of_its_number_and_no_help_says_none(command):
    """So a wrong one is refused before anything is loaded, and never ends in a traceback."""
    parser = argparse.ArgumentParser()
    commands()[command].add_options(parser)
    assert "default: None" not in parser.format_help() and all(action.help for action in parser._actions)
    for action, text in product(parser._actions, ["0", "-1", "nan", "-inf", str(10**30), "1e300", "x"]):
        read: Any = action.type
        if read is not None:
            with suppress(argparse.ArgumentTypeError):
                assert -100 <= read(text) < 2**63, action.option_strings


@pytest.mark.parametrize("task", TASKS)
def test_a_setting_takes_a_number_or_refuses_it_in_one_line(task):
    assert "default: None" not in parser(task).format_help()
    refused = []
    for (name, flag), value in product(TASKS[task].settings.flags.items(), [0, -1, 10**30, math.nan, math.inf]):
        kind = flag.options.get("type")
        if kind is float or kind is int and math.isfinite(value):
            try:
                resolved({"task": task, name: kind(value)})
            except RequestError as error:
                refused.append(str(error))
    assert len(refused) > 30 and not [message for message in refused if "\n" in message]


@pytest.mark.parametrize("verb", ["evaluate", "compare"])
def test_an_unknown_tokenizer_is_refused_before_a_model_is_loaded(run, monkeypatch, tmp_path, verb):
    monkeypatch.setattr(engines, "decoder_for", lambda *_: pytest.fail("loaded"))
    text, others = tmp_path / "text", [tmp_path / "run"] if verb == "compare" else []
    text.write_text("two dogs\n")
    status, _, err = run(verb, *others, "--source", text, "--reference", text, "--tokenize", "nonsense", stdin=SOURCE)
    assert status == 2 and "error: expected a tokenizer among" in err and err.count("\n") == 1


def test_a_wrong_path_is_told_by_every_command_before_tensorflow_is_imported(run_folder, tmp_path):
    """Help calls it FILE, FOLDER or RUN; what a command writes has another name, or is --out."""
    assert int(run_python(PROGRAMS / "wrong_paths.py", run_folder, folder=tmp_path).stdout) > 150


def test_a_line_that_was_translated_to_nothing_is_counted_and_an_unfinished_run_is_named(run, run_folder, monkeypatch):
    config = json.loads((run_folder / "config.json").read_text())
    monkeypatch.setattr("keras_transformer.text.tokenizer.Tokenizer.decode", lambda self, ids: [""] * len(ids))
    for settings, hint in ({}, ""), ({"steps": 3000}, "; the run is unfinished: `"):
        (run_folder / "config.json").write_text(json.dumps({**config, "settings": settings}))
        _, out, err = run("translate", "--beams", 1, stdin=SOURCE)
        assert out == b"\n" * 4 and f"warning: 3 line(s) were translated to nothing{hint}" in err


@pytest.mark.parametrize(
    ("started", "training", "others", "exporting"),
    [
        ("/usr/bin/keras-transformer", "keras-transformer train", "keras-transformer", "keras-transformer export"),
        ("/src/export/__main__.py", f"{MODULE} train", MODULE, "my/python -m export"),
        ("/site/keras_transformer/export/__main__.py", f"{MODULE} train", MODULE, f"{MODULE}.export"),
        ("my code/train.py", "my/python 'my code/train.py'", MODULE, f"{MODULE} export"),
        ("train.py", "keras-transformer train", "keras-transformer", "keras-transformer export"),  # a user's own
    ],
)
def test_a_message_names_a_command_as_it_is_typed_here(
    run_folder, tmp_path, monkeypatch, capsys, started, training, others, exporting
):
    (tmp_path / "my code").symlink_to(ROOT)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", [started])
    monkeypatch.setattr(sys, "orig_argv", ["my/python", started])
    assert (make_parser().prog, parser().prog, export_parser().prog) == (others, training, exporting)
    (run_folder / "model.keras").unlink()
    assert main(["translate", "run"]) == 2 and f"`{training} --resume --out run`" in capsys.readouterr().err
    (tmp_path / "exported" / "onnx").mkdir(parents=True)
    assert main(["translate", "exported"]) == 2 and f"with `{exporting} RUN --format" in capsys.readouterr().err


def test_sigterm_that_a_library_swallows_stops_at_the_next_line(capsys):
    assert not issubclass(Stopped, Exception), "so that most handlers let it pass"
    before = signal.getsignal(signal.SIGTERM)

    def swallowing():
        with suppress(BaseException):
            os.kill(os.getpid(), signal.SIGTERM)
        say("went on")

    assert exit_status(swallowing) == 128 + signal.SIGTERM
    assert capsys.readouterr().err == "stopped by SIGTERM\n"
    assert exit_status(lambda: say("the next command")) == 0
    assert signal.getsignal(signal.SIGTERM) is before


def test_what_a_file_says_is_told_in_one_line_that_can_be_printed(capsys):
    def refuse() -> None:
        raise RequestError("expected a model; received \x1b[31m\r\nred" + "x" * 9_000)

    assert exit_status(refuse, []) == 2
    err = capsys.readouterr().err
    assert err.startswith("error: expected a model; received \\u001b[31m\\u000d\\u000aredxxx") and len(err) < 2_100
    assert exit_status(lambda: Path("x" * 9_000).stat(), []) == 2


def test_a_closed_pipe_ends_quietly_and_a_line_is_answered_before_the_next_is_read(run_folder, translator):
    options = f"translate {run_folder} --batch-size 1 --beams 1 --max-length 4".split()
    command, pipe = [sys.executable, "-m", "keras_transformer", *options], subprocess.PIPE
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    process: Any = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, stderr=pipe)
    process.stdin.write(b"one two\n")
    process.stdin.flush()
    expected = translator.translate("one two", num_beams=1, max_length=4)
    assert process.stdout.readline().decode() == f"{expected}\n"
    process.stdout.close()
    process.stdin.write(b"three\n" * 20)
    process.stdin.close()
    assert process.wait(timeout=120) == 0
    assert process.stderr.read() == b""


@pytest.fixture
def unread() -> Iterator[TextIO]:
    """A stream into a pipe that nobody reads."""
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w", encoding="latin-1") as stream:
        yield stream


def test_only_a_result_that_nobody_reads_ends_a_command_early_with_status_0(unread, monkeypatch, capsys):
    def command():
        print_result("\ud800")
        pytest.fail("it went on")

    monkeypatch.setattr(sys, "stdout", unread)
    assert exit_status(command) == 0
    reader, inner = os.pipe()
    os.close(reader)
    for stdout in (sys.__stdout__, None):
        monkeypatch.setattr(sys, "stdout", stdout)
        assert exit_status(lambda: os.write(inner, b"x")) == 1, "a pipe of the job's own"
        assert capsys.readouterr().err == "error: [Errno 32] Broken pipe\n"
    os.close(inner)
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        assert exit_status(lambda: print("a result")) == 1
    assert "error: cannot write to standard output (No space left on device): " in capsys.readouterr().err


def test_a_standard_error_that_nobody_reads_or_that_is_closed_ends_nothing(unread, monkeypatch):
    """Python would end with status 120 if it found the stream broken once more."""
    monkeypatch.setattr(sys, "stderr", unread)
    assert exit_status(lambda: say("one")) == exit_status(lambda: warn("two")) == 0
    assert exit_status(lambda: check_utf8(["caf\udce9"])) == 2
    unread.flush()
    unread.close()
    assert exit_status(lambda: say("three")) == 0


def test_training_goes_on_to_its_end_where_nobody_reads_what_it_tells(unread, tmp_path):
    command = [sys.executable, "train.py", *tiny_flags(tmp_path, tmp_path / "run"), "--steps", "2"]
    assert subprocess.run(command, cwd=ROOT, stdout=unread, stderr=unread, timeout=300).returncode == 0
    assert (tmp_path / "run" / "model.keras").is_file()


def test_a_certificate_that_nobody_reads_ends_no_export_before_it_is_judged(unread, monkeypatch):
    monkeypatch.setattr(sys, "stdout", unread)
    show("a certificate\n")


def test_help_that_nobody_reads_and_results_in_another_encoding_are_no_error(run_folder, unread):
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1", "LC_ALL": "C"}
    config = json.loads((run_folder / "config.json").read_text())
    (run_folder / "config.json").write_text(json.dumps({**config, "parameters": 1, "corpus": {"name": "文"}}))
    command, pipe = [sys.executable, "-m", "keras_transformer"], subprocess.PIPE
    told = subprocess.run([*command, "info", run_folder], cwd=ROOT, env=environment, stdout=pipe, stderr=pipe)
    assert (told.returncode, told.stderr) == (0, b"") and '"文"'.encode() in told.stdout
    helped = subprocess.run([*command, "train", "--help"], cwd=ROOT, env=environment, stdout=unread, stderr=pipe)
    assert (helped.returncode, helped.stderr) == (0, b"")


def test_a_full_memory_is_told_in_one_line(capsys):
    import tensorflow as tf

    assert exit_status(lambda: tf.zeros([2**20, 2**20, 2**10])) == 1
    assert capsys.readouterr().err == (
        "error: out of memory for a tensor with shape[1048576,1048576,1024]: take smaller batches, or a smaller model\n"
    )


def test_without_standard_error_nothing_is_said_on_standard_output(monkeypatch, capsys):
    monkeypatch.setattr(sys, "stderr", None)
    assert main(["info", "nowhere"]) == 2
    assert main(["train", "--steps", "0"]) == 2
    say("a word")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(
    ("name", "value", "error"),
    [
        ("stdout", None, "standard input and standard output must be open"),
        ("platform", "win32", "keras_transformer does not run on Windows: run it in WSL (Linux)\n"),
    ],
)
def test_a_closed_stream_and_windows_are_no_traceback(run_folder, monkeypatch, capsys, name, value, error):
    monkeypatch.setattr(sys, name, value)
    assert exit_status(lambda: None) == (2 if name == "platform" else 0)
    assert main(["translate", str(run_folder)]) == 2
    assert f"error: {error}" in capsys.readouterr().err


def test_given_translations_are_scored_one_by_one_and_together(run, translator, tmp_path):
    sources, targets = ["two dogs", "to the sea"], ["seven hundred dogs run", ""]
    for name, lines in (("source", sources), ("target", targets)):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in lines))
    status, out, err = run("score", "--source", tmp_path / "source", "--target", tmp_path / "target")
    scores = translator.score(sources, targets)
    assert status == 0
    assert out.decode() == "".join(f"{one.log_prob:.4f}\t{one.perplexity:.4f}\n" for one in scores)
    num_tokens, log_prob = sum(one.num_tokens for one in scores), sum(one.log_prob for one in scores)
    perplexity = math.exp(-log_prob / num_tokens)
    assert err == f"in all: log P {log_prob:.4f}, perplexity {perplexity:.4f}, {num_tokens} tokens\n"
