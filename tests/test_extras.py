"""The extras of the package bring what they say and never two ONNX Runtimes; every advice to install names them."""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator

import pytest

from keras_transformer.core import extras
from tests.answers import refused
from tests.processes import ROOT
from tests.test_house import python_files

PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS: dict[str, list[str]] = PROJECT["optional-dependencies"]
OWN = re.compile(rf"{extras.DISTRIBUTION}\[([\w,-]+)\]")
RUNTIMES = re.compile(r"onnxruntime(?!-extensions)[\w-]*")
# pip's command with the other project's package, within one quotation or line; and that package with an extra.
OTHERS = re.compile(r"(?<!un)install\b[^`;|\n]*?\bkeras[-_]transformer(?![\w/-])|\bkeras[-_]transformer\[")
PAGES = ("*.md", "docs/**/*.md", "benchmarks/*.md", "docker/*", "notebooks/*.ipynb", "Makefile", "*.txt", "*.cff")


def brought_by(*names: str) -> set[str]:
    """The requirements of this package with extras, and of the extras that these name."""
    found: set[str] = set(PROJECT["dependencies"])
    todo, done = [*names], set()
    while todo:
        done.add(name := todo.pop())
        for requirement in EXTRAS[name]:
            inner = OWN.fullmatch(requirement)
            found |= set() if inner else {requirement}
            todo += [each for each in inner[1].split(",") if each not in done] if inner else []
    return found


def package_of(requirement: str) -> str:
    """The name in a requirement."""
    return re.split(r"[\[<>=;~ ]", requirement)[0]


def test_no_set_of_extras_brings_two_onnx_runtimes() -> None:
    """What a set of extras brings, all of them together bring too."""
    every = {*map(package_of, brought_by(*EXTRAS))}
    assert {name for name in every if RUNTIMES.fullmatch(name)} == {"onnxruntime"}
    assert {name for name in every if "keras-transformer" in name} == set(), "of this package only as an extra"
    pinned = re.findall(r"^([\w.-]+)==", (ROOT / "requirements.lock").read_text(encoding="utf-8"), re.MULTILINE)
    assert {name for name in pinned if RUNTIMES.fullmatch(name)} == {"onnxruntime"}


def test_the_answering_environment_has_neither_keras_nor_tensorflow_nor_onnx() -> None:
    plain = {*map(package_of, brought_by())}
    assert not plain & {"keras", "tensorflow", "jax", "onnx", "matplotlib", "h5py"}
    assert "onnxruntime" in plain


def test_the_extras_hold_one_another() -> None:
    on_jax, on_tensorflow = brought_by("jax"), brought_by("train")
    assert {*map(package_of, on_jax ^ on_tensorflow)} == {"jax", "tensorflow"}
    assert all(brought_by("train") <= brought_by(name) for name in ("export", "gpu", "wmt", "notebooks", "ctranslate2"))
    assert brought_by("export") < brought_by("tf2onnx")
    assert brought_by("all") == brought_by(*({*EXTRAS} - {"gpu", "bench", "dev"}))
    assert not [requirement for requirement in brought_by("all") if re.search("gpu|cuda", requirement)]


def test_the_requirements_for_a_gpu_differ_in_the_two_packages_that_a_gpu_needs() -> None:
    lines = (ROOT / "requirements-gpu.txt").read_text(encoding="utf-8").splitlines()
    listed = {line for line in lines if not line.startswith("#")}
    assert {*map(package_of, listed ^ brought_by("export", "gpu"))} == {
        "onnxruntime", "onnxruntime-gpu", "tensorflow"
    }  # fmt: skip
    assert {package_of(each) for each in listed if "onnxruntime" in each} == {
        "onnxruntime-extensions", "onnxruntime-gpu"
    }  # fmt: skip
    assert EXTRAS["gpu"][1] in listed


def named_extras(tree: ast.AST) -> Iterator[str]:
    """The extras that calls of `required`, `missing` and `install` name."""
    places = {"required": 1, "missing": 1, "install": 0}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and (place := places.get(ast.unparse(node.func).split(".")[-1])) is not None:
            for each in [*node.args[place : place + 1], *(key.value for key in node.keywords if key.arg == "extra")]:
                yield from (str(found.value) for found in ast.walk(each) if isinstance(found, ast.Constant))


def test_every_extra_that_a_message_or_a_page_names_is_there() -> None:
    code = python_files("train.py", "keras_transformer", "export")
    in_code = {name for path in code for name in named_extras(ast.parse(path.read_text(encoding="utf-8")))}
    assert {"export", "import", "images"} <= in_code <= {"", *EXTRAS}
    pages = "\n".join(path.read_text(encoding="utf-8") for pattern in PAGES for path in ROOT.glob(pattern))
    in_pages = re.findall(r"install (?:-\w+ )*'(?:\.\.?|[^'\n]*whl)\[([\w,-]+)\]'", pages)
    named = {name for names in in_pages for name in names.split(",")}
    assert {"export", "import", "jax", "train"} <= named <= EXTRAS.keys()


def test_the_readme_lists_every_extra_for_users() -> None:
    section = (ROOT / "README.md").read_text(encoding="utf-8").split("\n## Extras\n")[1].split("\n## ")[0]
    rows = [row.split("|")[1] for row in section.splitlines() if row.startswith("| ")]
    assert {*re.findall(r"`([\w-]+)`", " ".join(rows))} == {*EXTRAS} - {"gpu", "bench", "dev"}


def test_nothing_advises_to_install_the_other_projects_package() -> None:
    wrong = ("pip install -q 'keras-transformer'", "keras-transformer[export]", "install keras_transformer")
    right = ("pip install 'keras-transformer-kit[export]'", "pip install .` installs `keras-transformer")
    assert all(map(OTHERS.search, wrong)) and not any(map(OTHERS.search, right))
    files = [path for pattern in PAGES for path in ROOT.glob(pattern)] + python_files(
        "train.py", "keras_transformer", "export", "benchmarks", "docker", "docs", "examples"
    )
    found = {path.name: OTHERS.findall(path.read_text(encoding="utf-8")) for path in files}
    assert len(found) > 150
    assert {name: texts for name, texts in found.items() if texts} == {}


def test_a_missing_package_and_a_broken_one_are_told_with_their_extra(tmp_path, monkeypatch) -> None:
    (tmp_path / "broken_package.py").write_text("raise ImportError('libfoo.so: no such file')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(extras.MissingPackage, match=r"^reading needs the package no_such, which is not installed: pip"):
        extras.required("no_such.module", "images", "reading")
    with pytest.raises(ImportError, match=r"broken_package, which cannot be imported \(libfoo\.so: no.*\): pip"):
        extras.required("broken_package", "images", "reading")
    assert extras.install("images") == f"pip install -e '{ROOT}[images]'"
    monkeypatch.setattr(extras, "CHECKOUT", tmp_path)
    assert extras.install("images") == "pip install 'keras-transformer-kit[images]'"
    assert extras.install() == "pip install 'keras-transformer-kit'"


def test_another_projects_package_of_the_name_is_told(tmp_path, monkeypatch) -> None:
    monkeypatch.setattr(sys, "path", [*sys.path, str(tmp_path / "site-packages")])
    folder = tmp_path / "site-packages"
    (folder / "keras_transformer_kit-0.3.0.dist-info").mkdir(parents=True)
    (folder / "keras_transformer-0.2.0.dist-info").mkdir()
    (folder / "keras_transformer-0.2.0.dist-info" / "direct_url.json").touch()
    assert not extras.has_namesake(), "this one's and its former name's"
    (folder / "keras_transformer-0.40.0.dist-info").mkdir()
    assert extras.install("export").endswith(f"[export]' ({extras.NAMESAKE})")
    assert refused("info", tmp_path / "no-run").startswith(f"warning: {extras.NAMESAKE}\nerror: ")
