"""The documents say what is there: links and anchors, commands and their flags, versions."""

import ast
import importlib
import operator
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import keras_transformer
from bulk_translate import parser as bulk_parser
from export.__main__ import make_parser as export_parser
from keras_transformer.__main__ import make_parser
from keras_transformer.training.flags import parser as train_parser
from serve_on_ray import parser as ray_serve_parser
from tests.processes import ROOT
from train_on_ray import parser as ray_parser

PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("benchmarks/*.md")]
EVERY_PAGE = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
FENCED = re.compile(r"^( *)```(\w*)\n(.*?)^\1```", re.MULTILINE | re.DOTALL)
PARSERS = {
    ("python", "train.py"): train_parser,
    ("python", "-m", "export"): export_parser,
    ("python", "examples/bulk_translate.py"): bulk_parser,
    ("python", "examples/train_on_ray.py"): ray_parser,
    ("python", "examples/serve_on_ray.py"): ray_serve_parser,
    ("python", "-m", "keras_transformer"): make_parser,
    ("keras-transformer",): make_parser,
}


def text_of(page: Path) -> str:
    """The text of a page without its fenced code."""
    return FENCED.sub("", page.read_text(encoding="utf-8"))


def anchors(page: Path) -> set[str]:
    """The anchors of a page's headings, as GitHub names them."""
    titles = re.findall(r"^#+ (.*)$", text_of(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def commands(page: Path) -> Iterator[list[str]]:
    """The commands of ours in a page's fenced code, each as its words, without redirections."""
    for _, language, code in FENCED.findall(page.read_text(encoding="utf-8")):
        for line in code.replace("\\\n", " ").splitlines():
            if language == "python" or "…" in line or not any(" ".join(start) in line for start in PARSERS):
                continue
            for words in simple_commands(line.strip().removeprefix("$ ")):
                if any(tuple(words[: len(start)]) == start for start in PARSERS):
                    yield words


def simple_commands(line: str) -> Iterator[list[str]]:
    """The commands of a line that are divided by pipes and semicolons."""
    words: list[str] = []
    lexer = shlex.shlex(line, posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    for token in [*lexer, ";"]:
        if set(token) <= set("|;&()"):
            yield words[: next((place for place, word in enumerate(words) if set(word) <= set("<>")), None)]
            words = []
        else:
            words.append(token)


@EVERY_PAGE
def test_links_resolve(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", text_of(page))):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target}: no such file"
        assert file.is_relative_to(ROOT), f"{target}: not in the repository"
        assert not anchor or anchor in anchors(file), f"{target}: {file.name} has {sorted(anchors(file))}"


@EVERY_PAGE
def test_commands_and_their_flags_exist(page, capsys, monkeypatch):
    monkeypatch.setattr("keras_transformer.commands.parser._check_read", lambda *_: None)
    found = list(commands(page))
    assert len(found) > 40 or page.name != "BUILD.md", "or the search for them is wrong"
    for words in found:
        start = next(start for start in PARSERS if tuple(words[: len(start)]) == start)
        arguments = words[len(start) :]
        if arguments[-1:] in ([], ["--help"]):
            continue
        try:
            PARSERS[start]().parse_args(arguments)
        except SystemExit:
            pytest.fail(f"{shlex.join(words)}: {capsys.readouterr().err}")


@EVERY_PAGE
def test_files_and_targets_of_make_that_are_named_exist(page):
    text, makefile = page.read_text(encoding="utf-8"), (ROOT / "Makefile").read_text(encoding="utf-8")
    for target in re.findall(r"\bmake ([a-z]+)\b(?=[`\s])", " ".join(re.findall(r"`make [^`]*`", text))):
        assert re.search(rf"^{target}:", makefile, re.MULTILINE), target
    folders = r"keras_transformer|export|tests|docs|docker|benchmarks|examples|notebooks|\.github"
    for name in re.findall(rf"`((?:{folders})/[\w./-]+\.(?:py|md|yml|ipynb|config|Dockerfile))`", text):
        assert (ROOT / name).exists(), name


def test_messages_of_troubleshooting_are_those_of_the_code():
    files = [*(ROOT / "keras_transformer").rglob("*.py"), *(ROOT / "export").rglob("*.py"), ROOT / "Makefile"]
    code = "\n".join(path.read_text(encoding="utf-8") for path in files)
    code = re.sub(r'"\s*\n\s*f?"', "", code)  # a literal on several lines is one
    page = (ROOT / "docs" / "troubleshooting.md").read_text(encoding="utf-8")
    messages = [
        message for title in re.findall(r"^\*\*(.*?)\*\*", page, re.MULTILINE) for message in title.split("`")[1::2]
    ]
    assert len(messages) > 12 and not [message for message in messages if message not in code]


def test_the_walk_through_the_source_names_functions_and_lines_that_are_there():
    page = (ROOT / "docs/read_this_first.md").read_text(encoding="utf-8")
    stops = re.findall(r"^\d+\. `([\w/]+\.py)`, `(\w+)`:\s+`([^`]+)`", page, re.MULTILINE)
    assert len(stops) == len(re.findall(r"^\d+\. ", page, re.MULTILINE)) > 20
    for file, name, line in stops:
        source = (ROOT / "keras_transformer" / file).read_text(encoding="utf-8")
        functions = [node for node in ast.walk(ast.parse(source)) if getattr(node, "name", "") == name]
        found = any(line in (ast.get_source_segment(source, function) or "") for function in functions)
        assert found, (file, name, line)


def test_the_bounds_of_files_are_those_of_the_code():
    page = (ROOT / "docs/SECURITY.md").read_text(encoding="utf-8")
    rows = [row for row in page.splitlines() if re.search(r"`[a-z_.]+\.\w+` \|$", row) and row.count("|") == 4]
    named = [(row, name) for row in rows for name in re.findall(r"`([\w.]+)`", row.split("|")[3])]
    assert len(named) > 25
    for row, name in named:
        module, *path = re.split(r"\.(?=[A-Z])", name)
        value = operator.attrgetter(".".join(path))(importlib.import_module(f"keras_transformer.{module}"))
        spelled = f"{value >> 20:,} MiB" if value % 2**20 == 0 else f"{value:,} "
        assert f" {spelled}" in row, f"{name} is {spelled}"


def test_there_is_one_version():
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == keras_transformer.__version__
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == keras_transformer.__version__
    assert f"\n## {keras_transformer.__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
