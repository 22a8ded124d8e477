"""Where this package was installed without extras: what each command does there, and the export that it brings."""

import json
import subprocess
from collections.abc import Iterator

from keras_transformer.__main__ import CORE_COMMANDS, main
from keras_transformer.commands.command import Command
from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.export_folder import OF_DEMO
from tests.processes import ROOT

HEAD = "| command | task | in the answering environment |\n| --- | --- | --- |\n"
NUMBERS = {"forty-two": "zweiundvierzig", "seven thousand and eleven": "siebentausendelf"}
MOST_BYTES = 1_000_000  # of what the wheel carries to try at once


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


def test_what_the_package_brings_is_small_and_certified():
    files = [*OF_DEMO.iterdir()]
    assert sum(file.stat().st_size for file in files) <= MOST_BYTES
    certificate = json.loads((OF_DEMO / "certificate.json").read_text(encoding="utf-8"))
    assert certificate["holds"] and certificate["against"] == "model"
    sizes = {entry["name"]: entry["contents"]["bytes"] for entry in certificate["entries"]}
    for name in ("translate", "encoder + step"):
        graphs = [OF_DEMO / f"{part}-int8.onnx" for part in name.split(" + ")]
        assert sizes["onnx/" + " + ".join(path.name for path in graphs)] == sum(path.stat().st_size for path in graphs)


def test_the_demo_translates_unless_a_folder_has_its_name(plain_python, tmp_path, monkeypatch, capsys):
    asked = "".join(f"{number}\n" for number in NUMBERS)
    command = [plain_python.parent / "keras-transformer", "translate", "demo"]
    done = subprocess.run([*map(str, command)], cwd=tmp_path, input=asked, capture_output=True, text=True, timeout=60)
    assert (done.stdout.split(), done.stderr, done.returncode) == ([*NUMBERS.values()], "", 0)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "demo").mkdir()
    assert main(["translate", "demo"]) == 2
    assert "expected a run folder, with a config.json; found none in 'demo'" in capsys.readouterr().err


def test_in_python_what_answers_is_there_and_the_rest_names_its_extra(plain_python, tmp_path):
    program = "import keras_transformer as it; print(it.load('demo').translate('forty-two')); "
    program += "[it.load_classifier, it.load_generator, it.load_recommender, it.Tokenizer]; it.Transformer"
    done = subprocess.run([plain_python, "-c", program], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.stdout == "zweiundvierzig\n"
    told = done.stderr.splitlines()[-1]
    assert "MissingPackage: this needs the package keras, which is not installed: pip install" in told


# What stops without an extra, and the words behind the command.
LACKING = {
    "train": ["--dataset", "numbers:en-de"], "average": ["RUN"], "neighbours": ["RUN", "word"], "export": ["RUN"],
    "attention": ["RUN", "text", "--out", "page.html"], "import": ["model", "new"],
    "distill": ["RUN", "--source", "text", "--text", "new"], "serve": ["demo"],
}  # fmt: skip


def test_what_needs_an_extra_names_it_in_one_line(plain_python, run_folder, tmp_path):
    (tmp_path / "text").write_text("one\n")
    (tmp_path / "model").mkdir()
    needs = {name: command.extra for name, _, command in commands() if command.extra}
    assert needs.keys() - {"classify"} == LACKING.keys()
    for name, words in LACKING.items():
        given = [str(run_folder) if word == "RUN" else word for word in words]
        command = [plain_python, "-m", "keras_transformer", name, *given]
        done = subprocess.run([*map(str, command)], cwd=tmp_path, capture_output=True, text=True, timeout=60)
        assert (done.returncode, done.stdout) == (2, ""), done.stderr
        assert done.stderr.count("\n") == 1 and "keras-transformer-kit[" in done.stderr, (name, done.stderr)
