"""Follows a parameter through the source: how often it changes the file on its way, and how often it comes back.

    python -m benchmarks.journey train.py:train given --until _fit_rounds

The source is read, nothing is run. The parameter, and whatever is made of it, is followed through the calls that take
it, in the order in which they are written; branches are walked one after the other. A stay is a run of entered
functions in one file; a return is a stay in a file that was left before. A function that was walked is entered again,
but not walked again. A method is followed where one class alone defines its name. Messages for people are no stays.
"""

from __future__ import annotations

import argparse
import ast
import io
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
Function = ast.FunctionDef | ast.AsyncFunctionDef
MESSAGES = "keras_transformer/core/errors.py"
# Methods that lists, dictionaries, texts, paths, files and arrays have too.
COMMON = {name for kind in (str, list, dict, set, Path, io.TextIOWrapper, bytes, np, np.ndarray) for name in dir(kind)}


class Place(NamedTuple):
    """Names a function in a file."""

    file: str
    function: Function
    owner: str  # the class of a method


class Arrived(Exception):
    """Says that the function at which the way ends is entered."""


class House:
    """Knows the functions of the source, and the names by which each file knows them."""

    def __init__(self, root: Path):
        paths = [root / "train.py", *sorted(root.glob("keras_transformer/**/*.py"))]
        self.trees = {path.relative_to(root).as_posix(): ast.parse(path.read_text(encoding="utf-8")) for path in paths}
        self.functions: dict[tuple[str, str], Place] = {}
        self.methods: dict[str, list[Place]] = {}
        for file, tree in self.trees.items():
            for node in tree.body:
                if isinstance(node, Function):
                    self.functions[file, node.name] = Place(file, node, "")
                elif isinstance(node, ast.ClassDef):
                    for one in node.body:
                        if isinstance(one, Function):
                            self.functions[file, f"{node.name}.{one.name}"] = Place(file, one, node.name)
                            self.methods.setdefault(one.name, []).append(Place(file, one, node.name))
        self.names = {file: dict(self._imports(tree)) for file, tree in self.trees.items()}

    def _imports(self, tree: ast.Module) -> Iterator[tuple[str, tuple[str, str]]]:
        """Yields what the imports of a file name: (file, name), with "" for the module itself."""
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}".replace(".", "/") + ".py"
                    outer = node.module.replace(".", "/")
                    files = [(inner, ""), (f"{outer}.py", alias.name), (f"{outer}/__init__.py", alias.name)]
                    yield from [(alias.asname or alias.name, one) for one in files if one[0] in self.trees][:1]

    def place_of(self, file: str, called: ast.expr, owner: str) -> Place | None:
        """Returns the function that a call enters, as far as the source tells."""
        if isinstance(called, ast.Name):
            where, name = self.names[file].get(called.id, (file, called.id))
            return self.functions.get((where, name)) or self.functions.get((where, f"{name}.__init__"))
        if not isinstance(called, ast.Attribute):
            return None
        if isinstance(called.value, ast.Name) and called.value.id in self.names[file]:
            where, name = self.names[file][called.value.id]
            inner = f"{name}.{called.attr}" if name else called.attr
            return self.functions.get((where, inner)) or self.functions.get((where, f"{inner}.__init__"))
        if isinstance(called.value, ast.Name) and called.value.id in ("self", "cls"):
            return self.functions.get((file, f"{owner}.{called.attr}"))
        several = [] if called.attr in COMMON else self.methods.get(called.attr, [])
        return several[0] if len(several) == 1 else None


class Journey:
    """Walks the way of a parameter: `stays` are the files of the functions that it enters, one after another."""

    def __init__(self, house: House, until: str):
        self.house = house
        self.until = until
        self.stays: list[str] = []
        self._walked: set[tuple[str, str, str]] = set()

    @property
    def num_returns(self) -> int:
        """Counts the stays in a file that was left before."""
        return len(self.stays) - len(set(self.stays))

    def enter(self, place: Place, followed: set[str]) -> None:
        """Walks through a function whose parameters `followed` hold what is followed."""
        if place.function.name == self.until:
            raise Arrived
        if place.file != MESSAGES and self.stays[-1:] != [place.file]:
            self.stays.append(place.file)
        key = (place.file, place.owner, place.function.name)
        if key not in self._walked:
            self._walked.add(key)
            self._walk(ast.Module(place.function.body, []), place, followed)

    def _walk(self, node: ast.AST, place: Place, followed: set[str]) -> None:
        if isinstance(node, ast.For) and self._holds(node.iter, followed):
            followed |= {one.id for one in ast.walk(node.target) if isinstance(one, ast.Name)}
        for child in _as_it_runs(node):
            self._walk(child, place, followed)
            for value, target in _bindings(child):
                if self._holds(value, followed):
                    followed |= {one.id for one in ast.walk(target) if isinstance(one, ast.Name)}
        if isinstance(node, ast.Call):
            self._call(node, place, followed)

    def _call(self, node: ast.Call, place: Place, followed: set[str]) -> None:
        found = self.house.place_of(place.file, node.func, place.owner)
        if not found:
            return
        own = found.function.args
        names = [one.arg for one in [*own.posonlyargs, *own.args]]
        is_method = bool(found.owner) and names[:1] in (["self"], ["cls"])
        given = set()
        if is_method and isinstance(node.func, ast.Attribute) and self._holds(node.func.value, followed):
            given.add(names[0])
        for name, argument in zip(names[is_method:], node.args, strict=False):
            given |= {name} if self._holds(argument, followed) else set()
        for keyword in node.keywords:
            given |= {keyword.arg or names[-1]} if self._holds(keyword.value, followed) else set()
        if given:
            self.enter(found, given)

    def _holds(self, node: ast.AST, followed: set[str]) -> bool:
        """Tells whether an expression is made of what is followed."""
        return any(isinstance(one, ast.Name) and one.id in followed for one in ast.walk(node))


def _as_it_runs(node: ast.AST) -> Iterator[ast.AST]:
    """Yields the parts of a node, those that bind names before those that use them."""
    parts = list(ast.iter_child_nodes(node))
    yield from sorted(parts, key=lambda part: not isinstance(part, ast.comprehension))


def _bindings(node: ast.AST) -> Iterator[tuple[ast.AST, ast.AST]]:
    """Yields what a statement binds: values and their targets."""
    if isinstance(node, ast.Assign):
        yield from ((node.value, target) for target in node.targets)
    elif isinstance(node, ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value:
        yield node.value, node.target
    elif isinstance(node, ast.comprehension):
        yield node.iter, node.target
    elif isinstance(node, ast.withitem) and node.optional_vars:
        yield node.context_expr, node.optional_vars


def main() -> None:
    """Prints the stays, and how many they and the returns are."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("start", metavar="FILE:FUNCTION")
    parser.add_argument("parameter")
    parser.add_argument("--until", default="", metavar="FUNCTION", help="where the way ends")
    parser.add_argument("--root", type=Path, default=ROOT, help="of the source, such as another checkout")
    arguments = parser.parse_args()
    file, _, function = arguments.start.partition(":")
    house = House(arguments.root)
    journey = Journey(house, arguments.until)
    with suppress(Arrived):
        journey.enter(house.functions[file, function], {arguments.parameter})
    print(*journey.stays, sep="\n")
    print(f"{len(journey.stays)} stays, {journey.num_returns} returns")


if __name__ == "__main__":
    main()
