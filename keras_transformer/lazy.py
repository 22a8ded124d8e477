"""Names of a package that are imported when they are first used: Keras and TensorFlow take seconds to import."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Mapping
from importlib import import_module
from typing import Any

from keras_transformer.errors import load_tensorflow


def lazy_names(
    package: str, homes: Mapping[str, str], without_keras: Collection[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a package or module.

    Beside this call, list the names under `if TYPE_CHECKING:` with their imports, for editors and type checkers.

    Args:
        package: the package's `__name__`.
        homes: the module that defines each name; for a module of the package, the module itself.
        without_keras: the names whose modules do not import Keras; before the others, Keras is imported quietly.
    """

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name not in without_keras:
            load_tensorflow()
        module = import_module(homes[name])
        return module if homes[name] == f"{package}.{name}" else getattr(module, name)

    def names() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, names
