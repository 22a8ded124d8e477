"""What mkdocs does besides rendering docs/: pages that are made from the repository, and the links between them.

README.md, BUILD.md, RESULTS.md and CHANGELOG.md stand where readers of the repository look for them, and are pages of
the site too; so is every notebook. The reference is made of the names that packages export, and of the parsers of the
commands, so that a new name or flag comes into it by itself.
"""

from __future__ import annotations

import ast
import os
import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files
from notebook_pages import notebook_page
from pymdownx.slugs import slugify

ROOT = Path(__file__).resolve().parent.parent
# Pages of the site, by the file of the repository that each is made of.
FROM_OUTSIDE = {
    "README.md": "index.md",
    "BUILD.md": "build.md",
    "benchmarks/RESULTS.md": "results.md",
    "CHANGELOG.md": "changelog.md",
}
NOTEBOOKS = {f"notebooks/{path.name}": f"notebooks/{path.stem}.md" for path in sorted(ROOT.glob("notebooks/*.ipynb"))}
FROM_OUTSIDE |= NOTEBOOKS
PACKAGES = ["", *(f".{name}" for name in ("layers", "losses", "metrics", "models", "optimizers", "plots", "schedules"))]
EXPORT = [
    "export.artefacts.open_run",
    "export.artefacts.TrainedRun",
    "keras_transformer.spec.search_options.Decoding",
    "export.saved_model.export_saved_model",
    "export.onnx.export.export_onnx",
    "export.tflite.export_tflite",
    "export.certificate.comparison.certify",
]
CODE_OR_LINK = re.compile(
    r"^( *)```.*?^\1```|`[^`\n]*`|\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)", re.MULTILINE | re.DOTALL
)


def on_config(config: Any) -> Any:
    """Anchors are named as on GitHub; the notebooks stand after the tutorials."""
    config["nav"].insert(2, {"Notebooks": list(NOTEBOOKS.values())})
    config["mdx_configs"].setdefault("toc", {})["slugify"] = slugify(case="lower")
    return config


def on_files(files: Files, config: Any) -> Files:
    """Adds the pages that are not in docs/."""
    for source, page in FROM_OUTSIDE.items():
        path = ROOT / source
        content = notebook_page(path) if path.suffix == ".ipynb" else path.read_text(encoding="utf-8")
        files.append(File.generated(config, page, content=content))
    pages = {f"reference/{package_name(package)}.md": package_page(package) for package in PACKAGES}
    pages |= {"reference/export.md": export_page(), "reference/commands.md": commands_page()}
    for page, content in pages.items():
        files.append(File.generated(config, page, content=content))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Links to files of the repository become links to their pages; those without a page become text."""
    homes = {page: source for source, page in FROM_OUTSIDE.items()}
    home = homes.get(page.file.src_uri, f"docs/{page.file.src_uri}")

    def linked(found: re.Match[str]) -> str:
        text, target = found[2], found[3]
        if target is None or re.match(r"[a-z]+:|#", target):
            return found[0]
        path, hash_sign, anchor = target.partition("#")
        source = posixpath.normpath(posixpath.join(posixpath.dirname(home), path))
        uri = FROM_OUTSIDE.get(source, source.removeprefix("docs/") if source.startswith("docs/") else None)
        if uri is None and (ROOT / source).exists():
            return text if "`" in text else f"`{text}`" if "/" in text or "." in text else text
        relative = posixpath.relpath(uri or source, posixpath.dirname(page.file.src_uri) or ".")
        return f"[{text}]({relative}{hash_sign}{anchor})"

    return CODE_OR_LINK.sub(linked, markdown)


def package_name(package: str) -> str:
    """The name of a page of the reference."""
    return package.removeprefix(".") or "keras_transformer"


def exported(package: str) -> dict[str, str]:
    """The names that a package or a module exports, with the modules that define them: its `__all__` where that is
    written out, else what it imports, but for names of `core`."""
    path = ROOT / "keras_transformer" / package.removeprefix(".")
    tree = ast.parse((path / "__init__.py" if path.is_dir() else path.with_suffix(".py")).read_text(encoding="utf-8"))
    imports = {
        alias.name: node.module or ""
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }
    for node in tree.body:
        if (
            isinstance(node, ast.Assign)
            and ast.unparse(node.targets[0]) == "__all__"
            and isinstance(node.value, ast.List)
        ):
            names = ast.literal_eval(node.value)
            return {name: imports.get(name, f"keras_transformer{package}") for name in names}
    return {
        name: module
        for name, module in imports.items()
        if module.startswith("keras_transformer.") and not module.startswith("keras_transformer.core.")
    }


def package_page(package: str) -> str:
    """The reference of what a package exports, in the order of the alphabet."""
    name = f"keras_transformer{package}"
    entries = [f"::: {module}.{item}" for item, module in sorted(exported(package).items())]
    return "\n\n".join([f"# {name}", f"```python\nimport {name}\n```", *entries])


def export_page() -> str:
    """The reference of the functions that write and certify files."""
    say = "In an installed package these modules lie in `keras_transformer.export`."
    return "\n\n".join(["# export", say, *(f"::: {name}" for name in EXPORT)])


def commands_page() -> str:
    """What `--help` prints of each command."""
    from keras_transformer.__main__ import commands, make_parser
    from keras_transformer.core.task_registry import TASKS

    os.environ["COLUMNS"] = "110"
    subparsers: Any = next(action for action in make_parser()._actions if action.dest == "==SUPPRESS==")
    train = subparsers.choices["train"]
    helps = [(f"train {task}", train.of_task(task).format_help()) for task in TASKS]
    helps += [(name, subparsers.choices[name].format_help()) for name in commands() if name != "train"]
    return "\n\n".join(["# Commands", *(f"## {name}\n\n```text\n{text}```" for name, text in helps)])
