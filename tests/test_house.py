"""The rules of the house, read from the source: who imports whom, what is imported late or documented."""

import ast
import json
import re
import subprocess
from collections.abc import Iterator
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

from keras_transformer.core.task_registry import TASKS
from tests.processes import PROGRAMS, ROOT, run_python

PACKAGE = "keras_transformer"
OURS = (PACKAGE, "export", "train", "benchmarks", "examples", "tests")
# The floors of the house, from the roof down. A floor imports what stands below it, never a neighbour or what stands
# above, type-checking imports included. The most exact name of a module counts. Within a room, files import one another
# without circles.
FLOORS = """
benchmarks notebooks examples
keras_transformer.__main__ train export.__main__
export.exporting
keras_transformer.__init__
keras_transformer.serving
export.onnx export.saved_model export.tflite export.certificate export.ctranslate2 export.hub export.triton
export.hub_text
export.artefacts export.hub_forms export.tflite_converter
export.word_pieces
tasks
keras_transformer.commands
keras_transformer.training
keras_transformer.importing keras_transformer.plots
keras_transformer.decoding
keras_transformer.checking
keras_transformer.runs
keras_transformer.models
keras_transformer.metrics keras_transformer.search
keras_transformer.losses
keras_transformer.layers keras_transformer.optimizers keras_transformer.schedules keras_transformer.text
keras_transformer.spec
keras_transformer.tasks
keras_transformer.core keras_transformer.ops
"""
# Packages that show the names of their modules to users, and the table of the tasks. All others show what they define.
SHOWN = {PACKAGE, *(f"{PACKAGE}.{name}" for name in ("layers", "models", "plots", "tasks"))}
MOST_AT_THE_TOP = 8  # modules beside the rooms: what a user imports
LEVELS = {name: level for level, line in enumerate(FLOORS.strip().splitlines()) for name in line.split()}
# The folders of the tasks may take from one another. The house reaches them by the registry alone.
ONE_NAME = {f"{PACKAGE}.tasks.{path.parent.name}": "tasks" for path in ROOT.glob(f"{PACKAGE}/tasks/*/__init__.py")}
# They run where this project is not installed.
ALONE = ["export.certificate.runner", "export.certificate.runtimes"]
# These run on every backend of Keras, so they know none of them.
BACKEND_FREE = "spec ops layers models search losses metrics schedules"
ORDERS_ITS_CHUNKS = f"{PACKAGE}.losses"  # by `lazy.computed_after`, which does nothing on other backends
OVERRIDES_FIT = f"{PACKAGE}.models.training_step"  # with a class for each backend


class Import(NamedTuple):
    """One import: who imports what, in which line, and whether as soon as its file is imported."""

    module: str
    name: str
    line: int
    at_once: bool

    def __str__(self) -> str:
        return f"{self.module}:{self.line} imports {self.name}"


def module_name(path: Path) -> str:
    """The dotted name of a file: `package.__init__` for a package's own, `notebooks` for every notebook."""
    return "notebooks" if path.suffix == ".ipynb" else ".".join(path.relative_to(ROOT).with_suffix("").parts)


def is_ours(name: str) -> bool:
    """Whether a file of this repository defines the module."""
    path = ROOT.joinpath(*name.split("."))
    return name.split(".")[0] in OURS and (path.with_suffix(".py").is_file() or path.is_dir())


def imports_of(tree: ast.AST, module: str, at_once: bool = True) -> Iterator[Import]:
    """Every import in a file, functions included; names relative to the module are made absolute."""
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield Import(module, alias.name, node.lineno, at_once)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            origin = ".".join(base + ([node.module] if node.module else []))
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                yield Import(module, inner if is_ours(inner) else origin, node.lineno, at_once)
        elif isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            for part in node.body:
                yield from imports_of(ast.Module([part], []), module, False)
        else:
            late = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
            yield from imports_of(node, module, at_once and not late)


def source(path: Path) -> str:
    """The Python in a file; of a notebook the code cells, without the lines that are IPython's own."""
    text = path.read_text(encoding="utf-8")
    if path.suffix != ".ipynb":
        return text
    cells = [cell for cell in json.loads(text)["cells"] if cell["cell_type"] == "code"]
    return re.sub(r"(?m)^([^\S\n]*)[%!].*$", r"\1pass", "\n".join("".join(cell["source"]) for cell in cells))


def python_files(*folders: str) -> list[Path]:
    """The Python files and notebooks under the folders (or files) named, in order."""
    found = [path for name in folders for path in [ROOT / name, *(ROOT / name).rglob("*")] if path.is_file()]
    return sorted(path for path in found if path.suffix in (".py", ".ipynb") and ".ipynb_checkpoints" not in path.parts)


def under(name: str, prefix: str) -> bool:
    """Whether a dotted name is the prefix or lies under it."""
    return f"{name}.".startswith(f"{prefix}.")


def name_of(module: str) -> str:
    """The most exact name in the order that a module lies under; itself if there is none."""
    module = {PACKAGE: f"{PACKAGE}.__init__"}.get(module, module)
    names = [name for name in (*LEVELS, *ONE_NAME) if under(module, name)]
    return ONE_NAME.get(found := max(names, key=len, default=module), found)


def goes_up(found: Import) -> bool:
    """Whether an import goes to another name that does not stand lower."""
    one, other = name_of(found.module), name_of(found.name)
    return one != other and not LEVELS[one] < LEVELS.get(other, -1)


def read_imports(*folders: str) -> Iterator[Import]:
    """Every import of the files named."""
    for path in python_files(*folders):
        yield from imports_of(ast.parse(source(path)), module_name(path))


def test_imports_go_one_way() -> None:
    assert not [
        str(found)
        for found in read_imports("train.py", PACKAGE, "export", "notebooks", "benchmarks", "examples")
        if found.name.split(".")[0] in OURS and (found.module in ALONE or goes_up(found))
    ]


def test_a_forbidden_import_is_found() -> None:
    code = "def f():\n    from ..text import tokenizer\nfrom keras_transformer import ops, load\n"
    found = list(imports_of(ast.parse(code), f"{PACKAGE}.layers.feed_forward"))
    assert [one.name for one in found] == [f"{PACKAGE}.text.tokenizer", f"{PACKAGE}.ops", PACKAGE]
    assert [goes_up(one) for one in found] == [True, False, True]


def test_files_import_one_another_without_circles() -> None:
    graph: dict[str, set[str]] = {}
    for module, name, *_ in read_imports(PACKAGE, "export"):
        imported = f"{name}.__init__" if (ROOT / name.replace(".", "/")).is_dir() else name
        graph.setdefault(module, set()).update({imported} - {module})
    TopologicalSorter(graph).prepare()  # raises CycleError, which names the circle


def is_misplaced(found: Import) -> bool:
    """Whether what runs on every backend imports one of them, or waits for TensorFlow."""
    is_free = any(under(found.module, f"{PACKAGE}.{name}") for name in BACKEND_FREE.split())
    is_lazy = under(found.name, f"{PACKAGE}.core.lazy") and found.module not in (ORDERS_ITS_CHUNKS, OVERRIDES_FIT)
    return is_free and (found.name.partition(".")[0] in ("tensorflow", "jax", "torch") or is_lazy)


def test_what_runs_on_every_backend_imports_none() -> None:
    assert not [str(found) for found in read_imports(PACKAGE) if is_misplaced(found)]


@pytest.mark.parametrize("run", ["run_module('keras_transformer'", "run_path('train.py'"])
def test_help_is_quick(run: str) -> None:
    program = f"import runpy, sys\nsys.argv = ['it', '--help']\ntry:\n    runpy.{run}, run_name='__main__')\n"
    program += "except SystemExit:\n    print(*sys.modules, sep='\\n', file=sys.stderr)"
    imported = set(run_python("-c", program).stderr.split())
    assert PACKAGE in imported
    assert not imported & {"tensorflow", "keras", "numpy", "sentencepiece", "matplotlib"}


@pytest.mark.parity
def test_every_module_imports_without_tensorflow(tmp_path) -> None:
    modules = [module_name(path).removesuffix(".__init__") for path in python_files(PACKAGE)]
    run_python(PROGRAMS / "imports_without_tensorflow.py", *modules, folder=tmp_path, KERAS_BACKEND="jax")


# Where "encoder" is the stack of a model, or its graph, and not the kind of a model.
THE_STACK = {
    "export/artefacts.py", "export/certificate/comparison.py", "export/onnx/export.py",
    *(f"{PACKAGE}/{name}.py" for name in (
        "decoding/attention_maps", "decoding/onnx_decoder", "decoding/onnx_graphs", "importing/bart_models",
        "importing/t5", "layers/score", "models/transformer", "plots/page",
    )),
}  # fmt: skip


ENGINES = ("serving/translating", "serving/generating", "serving/answering")


@cache
def named(path: Path) -> tuple[set[object], set[str]]:
    """The texts of a file, and its names of classes, not of variables such as `translator`."""
    nodes = [*ast.walk(ast.parse(source(path)))]
    words = {str(getattr(node, "id", "") or getattr(node, "name", "")) for node in nodes}
    return {node.value for node in nodes if isinstance(node, ast.Constant)}, {one for one in words if one[:1].isupper()}


def named_in(names: set[str], folder: str) -> set[str]:
    """The files outside a folder that hold one of the names as a text, or as an identifier."""
    files = set()
    for path in python_files("train.py", PACKAGE, "export"):
        place = path.relative_to(ROOT).as_posix()
        texts, words = named(path)
        if place in THE_STACK:
            texts = texts - {"encoder"}
        if names & (texts | words) and not place.startswith(folder):
            files.add(place)
    return files


@pytest.mark.parametrize("task", TASKS)
def test_a_task_is_named_outside_its_folder_in_two_files_at_most(task: str) -> None:
    its = TASKS[task]
    held = {
        node.name
        for node in ast.parse((ROOT / f"{its.pipeline.replace('.', '/')}.py").read_text("utf-8")).body
        if isinstance(node, ast.ClassDef)
        and {"Pipeline", "TextPipeline"} & {*map(ast.unparse, node.bases)}
        and not its.shared_pipeline
    }
    # "translation" and "images" are names of inputs and outputs too. Tasks may share a kind of model.
    names = {task, *held} - {"translation", "images"}
    found = named_in(names, f"{its.package.replace('.', '/')}/") | named_in({its.kind}, f"{PACKAGE}/tasks/")
    # The one table of the tasks, the list of the package's public names, and the engines of the server.
    known = {f"{PACKAGE}/{name}.py" for name in ("core/task_registry", "__init__", *ENGINES)}
    assert len(found - known) <= 2, found


def test_no_two_files_have_one_name_but_the_tasks_and_the_top_shows_what_a_user_imports() -> None:
    paths = [path for path in python_files(PACKAGE, "export") if path.suffix == ".py"]
    shared = {"__init__.py", "__main__.py"}
    names = [path.name for path in paths if path.name not in shared and "tasks" not in path.parts]
    assert sorted(names) == sorted(set(names))
    assert not set(names) & {path.name for path in paths if "tasks" in path.parts} - shared
    assert len([*ROOT.glob(f"{PACKAGE}/*.py")]) <= MOST_AT_THE_TOP


def undocumented(tree: ast.Module) -> Iterator[str]:
    """The public methods that lack a docstring, of classes without a base on whose docstrings they could lean."""
    for owner in (node for node in tree.body if isinstance(node, ast.ClassDef) and not node.bases):
        for method in (node for node in owner.body if isinstance(node, ast.FunctionDef)):
            is_overload = "overload" in map(ast.unparse, method.decorator_list)
            is_private = owner.name.startswith("_") or method.name.startswith("_")
            if not (is_private or is_overload or ast.get_docstring(method)):
                yield f"{owner.name}.{method.name}"


def test_public_methods_are_documented() -> None:
    paths = python_files("train.py", PACKAGE, "export", "examples")
    assert not [f"{path}: {name}" for path in paths for name in undocumented(ast.parse(source(path)))]


def second_addresses(module: str, tree: ast.Module, defined: dict[str, set[str]]) -> Iterator[str]:
    """The names that a module imports from a module which does not define them."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and not node.level and node.module in defined and node.module not in SHOWN:
            for alias in node.names:
                if not is_ours(f"{node.module}.{alias.name}") and alias.name not in defined[node.module]:
                    yield f"{module}:{node.lineno} imports {alias.name} from {node.module}, which does not define it"


def definitions(tree: ast.Module) -> set[str]:
    """The names that a module defines, conditions included."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
    return names


def test_every_definition_has_one_address() -> None:
    """That a module imports no name for others alone, ruff says (F401, PLC0414)."""
    files = {module_name(path).removesuffix(".__init__"): path for path in python_files("train.py", *OURS)}
    trees = {module: ast.parse(source(path)) for module, path in files.items() if path.suffix == ".py"}
    defined = {module: definitions(tree) for module, tree in trees.items() if module.startswith(PACKAGE)}
    assert not [fault for module, tree in trees.items() for fault in second_addresses(module, tree, defined)]


def too_long(path: Path) -> Iterator[str]:
    """The functions of over 40 lines, signature and docstring included."""
    for node in ast.walk(ast.parse(source(path))):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > 40:
                yield f"{path}:{node.lineno}: {node.name} has {count} lines"


def test_functions_are_short() -> None:
    paths = python_files("train.py", PACKAGE, "export", "examples")
    assert not [line for path in paths for line in too_long(path)]


def test_a_test_file_says_in_its_first_line_what_it_proves() -> None:
    for path in (ROOT / "tests").rglob("test_*.py"):
        first = (ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or "").partition("\n")[0]
        assert len(first.split()) >= 5, f"{path.name}: {first!r}"


def test_no_large_file_in_git() -> None:
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode != 0:
        pytest.skip("not a git checkout")
    files = [ROOT / name for name in listed.stdout.split("\0") if name]
    large = [
        f"{path.name}: {path.stat().st_size} bytes"
        for path in files
        if path.is_file() and path.stat().st_size > 1_000_000
    ]
    assert not large, "\n".join(large)
