"""The rules of the house, read from the source: who imports whom, what is imported late or documented."""

from __future__ import annotations

import ast
import json
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = "keras_transformer"
OURS = (PACKAGE, "export", "train", "benchmarks", "examples", "tests")


def modules(package: str, *names: str) -> list[str]:
    """The dotted names of a package's modules."""
    return [f"{package}.{name}" for name in names]


FACADES = ("losses", "metrics", "optimizers", "schedules")  # they re-export the classes of `training`

# Of ours, a module may import what lies under these names. The most exact line counts; `__init__` stands for
# a package itself; a module without a line is a leaf.
MAY_IMPORT = {
    "train": [PACKAGE],
    "notebooks": [PACKAGE, "export", "train"],
    "benchmarks": [PACKAGE, "export", "benchmarks"],
    "examples": [PACKAGE],
    "export.__main__": [PACKAGE, "export"],
    "export.forms": [PACKAGE, "export.signatures", "export.traced"],
    "export.traced": [PACKAGE, "export.signatures"],
    "export.saved_model": [PACKAGE, *modules("export", "forms", "signatures", "traced")],
    "export.onnx.__init__": ["export.onnx.export"],
    "export.onnx.export": [
        PACKAGE,
        *modules(
            "export.onnx",
            "continuation",
            "encoding",
            "graph",
            "model",
            "recognition",
            "recommending",
            "stacks",
            "support",
            "text",
            "translation",
        ),
        *modules("export", "forms", "signatures"),
    ],
    "export.onnx.support": [PACKAGE, "export.onnx.parts", "export.signatures"],
    "export.onnx.continuation": [
        PACKAGE,
        *modules("export.onnx", "graph", "model", "stacks", "text", "translation"),
        *modules("export", "forms", "signatures"),
    ],
    "export.onnx.encoding": [
        PACKAGE,
        *modules("export.onnx", "graph", "model", "text", "translation", "weights"),
        *modules("export", "forms", "signatures"),
    ],
    "export.onnx.recognition": [
        PACKAGE,
        *modules("export.onnx", "arithmetic", "graph", "model", "parts", "stacks", "weights"),
        "export.signatures",
    ],
    "export.onnx.recommending": [
        PACKAGE,
        *modules("export.onnx", "arithmetic", "continuation", "graph", "model"),
        *modules("export", "forms", "signatures"),
    ],
    "export.onnx.stems": [PACKAGE, *modules("export.onnx", "arithmetic", "graph", "weights")],
    "export.onnx.translation": [
        PACKAGE,
        *modules("export.onnx", "beams", "ensemble", "graph", "model", "search", "stacks"),
        "export.signatures",
    ],
    "export.onnx.ensemble": modules("export.onnx", "graph", "search"),
    "export.onnx.model": [
        PACKAGE,
        *modules("export.onnx", "arithmetic", "graph", "heads", "parts", "positions", "stacks", "weights"),
    ],
    "export.onnx.stacks": [
        PACKAGE,
        *modules("export.onnx", "arithmetic", "attention", "graph", "parts", "positions", "residuals", "weights"),
    ],
    "export.onnx.parts": [
        PACKAGE,
        *modules(
            "export.onnx",
            "activations",
            "attention",
            "feed_forward",
            "norms",
            "positions",
            "residuals",
            "scores",
            "stems",
        ),
    ],
    "export.onnx.attention": [
        PACKAGE,
        *modules("export.onnx", "arithmetic", "graph", "heads", "norms", "positions", "scores", "weights", "windows"),
    ],
    "export.onnx.feed_forward": [
        PACKAGE,
        *modules("export.onnx", "activations", "arithmetic", "graph", "norms", "weights"),
    ],
    "export.onnx.residuals": [PACKAGE, *modules("export.onnx", "arithmetic", "graph", "norms")],
    "export.onnx.scores": [PACKAGE, *modules("export.onnx", "arithmetic", "graph", "heads", "weights")],
    "export.onnx.positions": [PACKAGE, *modules("export.onnx", "arithmetic", "graph")],
    "export.onnx.norms": [PACKAGE, *modules("export.onnx", "arithmetic", "graph", "weights")],
    "export.onnx.activations": [PACKAGE, *modules("export.onnx", "arithmetic", "graph")],
    "export.onnx.weights": [PACKAGE, *modules("export.onnx", "arithmetic", "graph")],
    "export.onnx.search": [PACKAGE, *modules("export.onnx", "beams", "graph"), "export.signatures"],
    "export.onnx.beams": [PACKAGE, "export.onnx.graph", "export.signatures"],
    "export.onnx.text": [PACKAGE, "export.onnx.graph", "export.forms"],
    "export.onnx.heads": ["export.onnx.graph"],
    "export.onnx.windows": ["export.onnx.graph"],
    "export.onnx.arithmetic": ["export.onnx.graph"],
    "export.onnx.graph": [PACKAGE],
    "export.ctranslate2": [PACKAGE, *modules("export", "ctranslate2_spec", "signatures")],
    "export.ctranslate2_spec": [PACKAGE, "export.signatures"],
    "export.tflite": [PACKAGE, *modules("export", "forms", "probes", "signatures", "traced")],
    "export.artefacts": ["export.signatures"],
    "export.certificate.__init__": [
        *modules("export.certificate", "comparison", "contents", "files", "records"),
        "export.artefacts",
    ],
    "export.probes": [PACKAGE, "export.artefacts"],
    # From the ground up: what is expected, the checks, the judgement, the certificate.
    "export.certificate.contents": ["export.artefacts", "export.signatures"],
    "export.certificate.device": ["export.artefacts"],
    "export.certificate.bleu_loss": [PACKAGE],
    "export.certificate.rules": [PACKAGE],
    "export.certificate.near_ties": [PACKAGE, "export.signatures"],
    "export.certificate.expected": [
        PACKAGE,
        "export.certificate.near_ties",
        *modules("export", "artefacts", "forms", "probes", "signatures"),
    ],
    "export.certificate.searches": [
        PACKAGE,
        *modules("export.certificate", "expected", "near_ties"),
        *modules("export", "artefacts", "forms", "probes", "signatures", "traced"),
    ],
    "export.certificate.arrays": [
        PACKAGE,
        "export.certificate.expected",
        *modules("export", "artefacts", "forms", "probes"),
    ],
    "export.certificate.stored": [
        PACKAGE,
        *modules("export.certificate", "arrays", "expected", "searches"),
        *modules("export", "forms", "probes", "signatures"),
    ],
    "export.certificate.tokenizers": [
        PACKAGE,
        "export.certificate.expected",
        *modules("export", "artefacts", "forms", "probes", "signatures"),
    ],
    "export.certificate.execution": [
        PACKAGE,
        *modules("export.certificate", "device", "expected", "runner", "tokenizers"),
        *modules("export", "artefacts", "signatures"),
    ],
    "export.certificate.outputs": [
        *modules("export.certificate", "expected", "runner"),
        *modules("export", "artefacts", "forms"),
    ],
    "export.certificate.judgement": [
        PACKAGE,
        *modules("export.certificate", "bleu_loss", "expected", "outputs", "runner"),
        *modules("export", "artefacts", "probes"),
    ],
    "export.certificate.records": modules("export.certificate", "contents", "judgement"),
    "export.certificate.files": [PACKAGE, *modules("export.certificate", "judgement", "records")],
    "export.certificate.comparison": [PACKAGE, "export"],
    "export.signatures": [PACKAGE],
    f"{PACKAGE}.__init__": [PACKAGE],
    f"{PACKAGE}.__main__": [PACKAGE, "export"],  # the top floor
    f"{PACKAGE}.commands": [PACKAGE],
    f"{PACKAGE}.slots": [f"{PACKAGE}.{name}" for name in ("lengths", "options")],
    f"{PACKAGE}.family": [f"{PACKAGE}.options", f"{PACKAGE}.slots"],
    f"{PACKAGE}.fit": [f"{PACKAGE}.{name}" for name in ("auxiliary_losses", "r_drop", "weighted_fit")],
    f"{PACKAGE}.weighted_fit": [f"{PACKAGE}.layers.masks"],
    **{f"{PACKAGE}.{name}": [f"{PACKAGE}.lazy", f"{PACKAGE}.training.{name}"] for name in FACADES},
    f"{PACKAGE}.run_config": [f"{PACKAGE}.{name}" for name in ("decoding.options", "family", "files", "version")],
    f"{PACKAGE}.importing": [
        f"{PACKAGE}.{name}" for name in ("decoding", "family", "importing", "lengths", "models", "text")
    ],
    f"{PACKAGE}.run_folder": [
        f"{PACKAGE}.{name}" for name in ("family", "files", "models", "run_config", "text.tokenizer", "weights_file")
    ],
    f"{PACKAGE}.written_runs": [
        f"{PACKAGE}.{name}" for name in ("files", "models", "run_folder", "text.lines", "text.tokenizer")
    ],
    f"{PACKAGE}.training": [
        f"{PACKAGE}.{name}"
        for name in (
            "family",
            "files",
            "bleu",
            "ranking",
            "run_folder",
            "training",
            "decoding",
            "models",
            "text",
            "images",
            "plots",
        )
    ],
    **{f"{PACKAGE}.training.{name}": [] for name in ("schedules", "optimizers", "ordering", "devices", "workers")},
    f"{PACKAGE}.training.losses": [f"{PACKAGE}.{name}" for name in ("layers.masks", "training.ordering")],
    f"{PACKAGE}.training.metrics": [f"{PACKAGE}.{name}" for name in ("layers.masks", "ranking", "training.losses")],
    f"{PACKAGE}.training.replicas": [f"{PACKAGE}.training.{name}" for name in ("optimizers", "devices", "workers")],
    f"{PACKAGE}.decoding": [
        f"{PACKAGE}.{name}"
        for name in (
            "bounds",
            "files",
            "lengths",
            "bleu",
            "ranking",
            "run_folder",
            "written_runs",
            "export_folder",
            "decoding",
            "models",
            "text",
            "images",
        )  # fmt: skip
    ],
    **{
        f"{PACKAGE}.decoding.{name}": [
            f"{PACKAGE}.text",
            f"{PACKAGE}.lengths",
            f"{PACKAGE}.decoding.array_ops",
            f"{PACKAGE}.decoding.loop",
        ]
        for name in ("loop", "prompts", "sampling")
    },
    f"{PACKAGE}.decoding.search": [
        f"{PACKAGE}.{name}" for name in ("text", "lengths", "decoding.array_ops", "decoding.loop", "decoding.sampling")
    ],
    f"{PACKAGE}.models": [f"{PACKAGE}.models", f"{PACKAGE}.layers", f"{PACKAGE}.family"],
    f"{PACKAGE}.models.__init__": [f"{PACKAGE}.{name}" for name in ("models", "family", "lazy")],
    f"{PACKAGE}.models.assembly": [f"{PACKAGE}.{name}" for name in ("layers", "family", "lengths")],
    f"{PACKAGE}.models.base": [f"{PACKAGE}.{name}" for name in ("family", "fit")],
    f"{PACKAGE}.layers.__init__": [f"{PACKAGE}.{name}" for name in ("layers", "family", "lazy")],
    f"{PACKAGE}.layers.parts": [f"{PACKAGE}.family"],
    f"{PACKAGE}.layers.attention": [
        f"{PACKAGE}.layers.{name}"
        for name in ("cache", "heads", "initial", "masks", "parts", "score", "self_attention", "shared")
    ],
    f"{PACKAGE}.layers.self_attention": [f"{PACKAGE}.layers.positions"],
    f"{PACKAGE}.layers.score": [f"{PACKAGE}.layers.{name}" for name in ("initial", "masks")],
    f"{PACKAGE}.layers.experts": [
        f"{PACKAGE}.auxiliary_losses",
        *(f"{PACKAGE}.layers.{name}" for name in ("initial", "parts")),
    ],
    f"{PACKAGE}.layers.windowed": [
        f"{PACKAGE}.layers.{name}" for name in ("attention", "cache", "positions", "shared")
    ],
    f"{PACKAGE}.layers.local": [f"{PACKAGE}.layers.windowed"],
    f"{PACKAGE}.layers.compressed": [
        f"{PACKAGE}.layers.{name}" for name in ("attention", "cache", "heads", "masks", "shared", "windowed")
    ],
    **{
        f"{PACKAGE}.layers.{name}": [f"{PACKAGE}.layers.{used}" for used in ("initial", "parts")]
        for name in ("feed_forward", "head_layer")
    },
    f"{PACKAGE}.layers.residual": [f"{PACKAGE}.layers.parts"],
    f"{PACKAGE}.layers.positions": [f"{PACKAGE}.layers.shared"],
    f"{PACKAGE}.layers.position_biases": [f"{PACKAGE}.layers.positions"],
    f"{PACKAGE}.layers.rotary": [f"{PACKAGE}.layers.{name}" for name in ("positions", "shared")],
    f"{PACKAGE}.layers.blocks": [
        f"{PACKAGE}.family",
        *(f"{PACKAGE}.layers.{name}" for name in ("attention", "masks", "parts", "shared")),
    ],
    f"{PACKAGE}.layers.patches": [f"{PACKAGE}.layers.initial"],
    f"{PACKAGE}.layers.image_attention": [f"{PACKAGE}.layers.{name}" for name in ("attention", "initial", "score")],
    f"{PACKAGE}.layers.attentive_stem": [f"{PACKAGE}.layers.{name}" for name in ("image_attention", "patches")],
    f"{PACKAGE}.layers.causal": [f"{PACKAGE}.layers.{name}" for name in ("blocks", "shared")],
    f"{PACKAGE}.layers.stack": [
        f"{PACKAGE}.auxiliary_losses",
        f"{PACKAGE}.family",
        *(f"{PACKAGE}.layers.{name}" for name in ("blocks", "causal", "parts", "positions", "shared")),
    ],
    f"{PACKAGE}.layers.universal": [
        f"{PACKAGE}.auxiliary_losses",
        *(f"{PACKAGE}.layers.{name}" for name in ("positions", "stack")),
    ],
    f"{PACKAGE}.images": [f"{PACKAGE}.{name}" for name in ("images", "text", "files")],
    f"{PACKAGE}.text": [f"{PACKAGE}.text", f"{PACKAGE}.files"],
    f"{PACKAGE}.text.corpora": [f"{PACKAGE}.{name}" for name in ("text", "files", "models.presets")],
    f"{PACKAGE}.plots": [f"{PACKAGE}.plots", f"{PACKAGE}.lazy"],
    **{
        f"{PACKAGE}.plots.{name}": [f"{PACKAGE}.plots.fonts", f"{PACKAGE}.decoding.attention"]
        for name in ("attention", "word_lines")
    },
    **{f"{PACKAGE}.plots.{name}": [f"{PACKAGE}.plots.lines"] for name in ("curves", "positions", "schedule")},
    f"{PACKAGE}.plots.page": [f"{PACKAGE}.decoding.attention"],
}
FOR_ALL = (f"{PACKAGE}.errors", f"{PACKAGE}.tensor")

# These run on every backend of Keras, so they know none of them.
BACKEND_FREE = [
    f"{PACKAGE}.{name}"
    for name in (
        "options",
        "slots",
        "family",
        "auxiliary_losses",
        "weighted_fit",
        "lengths",
        "ranking",
        "layers",
        "models",
        "decoding.computations",
        "decoding.loop",
        "decoding.prompts",
        "decoding.sampling",
        "decoding.search",
        "training.losses",
        "training.metrics",
        "training.schedules",
    )
]
EXPORT_ONLY = {
    "onnx",
    "tf2onnx",
    "onnxruntime",
    "onnxruntime_extensions",
    "ai_edge_litert",
    "tensorflow_text",
}

# The export builds graphs; this module runs them, where it is asked to.
RUNS_GRAPHS = ("onnxruntime", f"{PACKAGE}.decoding.onnx_decoder")


class Import(NamedTuple):
    """One imported module, and whether the import runs as soon as its file is imported."""

    name: str
    line: int
    at_once: bool


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
                yield Import(alias.name, node.lineno, at_once)
        elif isinstance(node, ast.ImportFrom):
            base = module.split(".")[: -node.level] if node.level else []
            origin = ".".join(base + ([node.module] if node.module else []))
            for alias in node.names:
                inner = f"{origin}.{alias.name}"
                yield Import(inner if is_ours(inner) else origin, node.lineno, at_once)
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


def file_of(name: str) -> str:
    """The name under which the rules know what is imported: of the package itself, its own file."""
    return f"{PACKAGE}.__init__" if name == PACKAGE else name


def most_exact(module: str) -> list[str]:
    """What a module may import of ours."""
    rules = [rule for rule in MAY_IMPORT if under(module, rule)]
    return MAY_IMPORT[max(rules, key=len)] if rules else []


def read_imports(*folders: str) -> Iterator[tuple[Path, str, Import]]:
    """(file, its module's name, one import) for every import of the files named."""
    for path in python_files(*folders):
        module = module_name(path)
        for found in imports_of(ast.parse(source(path)), module):
            yield path, module, found


def place(path: Path, found: Import) -> str:
    """Where an import stands, for a person to find."""
    return f"{path.relative_to(ROOT)}:{found.line} imports {found.name}"


def test_imports_go_one_way() -> None:
    wrong = [
        place(path, found)
        for path, module, found in read_imports("train.py", PACKAGE, "export", "notebooks", "benchmarks", "examples")
        if found.name.split(".")[0] in OURS
        and not any(under(file_of(found.name), allowed) for allowed in [*most_exact(module), *FOR_ALL])
    ]
    assert not wrong, "\n".join(wrong)


def test_a_forbidden_import_is_found() -> None:
    code = "def f():\n    from ..text import tokenizer\nfrom keras_transformer import errors, load\n"
    found = [name for name, _, _ in imports_of(ast.parse(code), f"{PACKAGE}.layers.feed_forward")]
    assert found == [f"{PACKAGE}.text.tokenizer", f"{PACKAGE}.errors", PACKAGE]
    code = "from .signatures import Decoding\nfrom .certificate import certify\nfrom . import artefacts\n"
    found = [name for name, _, _ in imports_of(ast.parse(code), "export.tflite")]
    assert found == ["export.signatures", "export.certificate", "export.artefacts"]
    assert most_exact("export.saved_model") == [PACKAGE, "export.forms", "export.signatures", "export.traced"]
    assert most_exact("export.certificate.runner") == [], "it is run without this project"
    assert most_exact(f"{PACKAGE}.layers.masks") == []
    assert most_exact(f"{PACKAGE}.models.presets") == [f"{PACKAGE}.{name}" for name in ("models", "layers", "family")]
    assert most_exact(f"{PACKAGE}.options") == most_exact(f"{PACKAGE}.auxiliary_losses") == [], "they are leaves"


def test_tensorflow_is_imported_late() -> None:
    wrong = [
        place(path, found)
        for path, _, found in read_imports(PACKAGE)
        if found.at_once and found.name.split(".")[0].startswith("tensorflow")
    ]
    assert not wrong, "\n".join(wrong)


def test_what_runs_on_every_backend_names_none() -> None:
    wrong = [
        place(path, found)
        for path, module, found in read_imports(PACKAGE)
        if any(under(module, name) for name in BACKEND_FREE)
        and found.name.split(".")[0] in ("tensorflow", "jax", "torch")
    ]
    assert not wrong, "\n".join(wrong)


def test_export_libraries_stay_in_export() -> None:
    wrong = [
        place(path, found)
        for path, module, found in read_imports("train.py", PACKAGE)
        if found.name.split(".")[0] in EXPORT_ONLY and (found.name, module) != RUNS_GRAPHS
    ]
    assert not wrong, "\n".join(wrong)


def test_notebooks_define_nothing() -> None:
    wrong = [
        f"{path.name} defines {node.name}"
        for path in python_files("notebooks")
        for node in ast.walk(ast.parse(source(path)))
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "arguments",
    [
        ["-c", f"import {PACKAGE}"],
        ["-m", PACKAGE, "--help"],
        ["-m", PACKAGE, "translate", "--help"],
        ["train.py", "--help"],
    ],
    ids=" ".join,
)
def test_help_is_quick(arguments: list[str]) -> None:
    command = [sys.executable, "-X", "importtime", *arguments]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, re.sub(r"import time:.*\n", "", done.stderr)
    imported = set(re.findall(r"^import time:.*\|\s+(\w+)$", done.stderr, re.MULTILINE))
    assert PACKAGE in imported
    assert not imported & {"tensorflow", "keras", "numpy", "sentencepiece", "matplotlib"}


@pytest.mark.parity
def test_every_module_imports_without_tensorflow(run_in_backend: Callable[..., str]) -> None:
    modules = [module_name(path).removesuffix(".__init__") for path in python_files(PACKAGE)]
    code = f"""
        import importlib, sys
        sys.modules["tensorflow"] = None
        for name in {modules}:
            importlib.import_module(name)
    """
    run_in_backend(code, "jax")


def is_overload(method: ast.FunctionDef) -> bool:
    """Whether it is one more signature of the method that follows, which has the docstring."""
    return "overload" in map(ast.unparse, method.decorator_list)


def undocumented(tree: ast.Module) -> Iterator[str]:
    """The public names of a module that lack a docstring; a method may lean on its class's base."""
    if tree.body and not ast.get_docstring(tree):
        yield "the module"
    for node in tree.body:
        if not isinstance(node, ast.FunctionDef | ast.ClassDef) or node.name.startswith("_"):
            continue
        if not ast.get_docstring(node):
            yield node.name
        if isinstance(node, ast.ClassDef) and not node.bases:
            for method in node.body:
                if not isinstance(method, ast.FunctionDef) or method.name.startswith("_"):
                    continue
                if not ast.get_docstring(method) and not is_overload(method):
                    yield f"{node.name}.{method.name}"


def test_everything_public_is_documented() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {name}"
        for path in python_files("train.py", PACKAGE, "export", "examples")
        for name in undocumented(ast.parse(source(path)))
    ]
    assert not wrong, "\n".join(wrong)


def too_long(path: Path) -> Iterator[str]:
    """The file, if it has over 400 lines, and its functions of over 40 lines, signature and docstring included."""
    text, name = source(path), path.relative_to(ROOT)
    if (count := text.count("\n")) > 400:
        yield f"{name}: {count} lines"
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            count = (node.end_lineno or node.lineno) - node.lineno + 1
            if count > 40:
                yield f"{name}:{node.lineno}: {node.name} has {count} lines"


def test_files_and_functions_are_short() -> None:
    wrong = [line for path in python_files("train.py", PACKAGE, "export", "examples") for line in too_long(path)]
    assert not wrong, "\n".join(wrong)


def test_names_of_test_files_are_unique() -> None:
    """Pytest imports a test file by its name alone. Of two files with one name, it refuses the second."""
    names = Counter(path.name for path in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, times in names.items() if times > 1] == []


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
