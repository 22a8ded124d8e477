"""Calls a function as soon as somebody imports a module.

The package wrapt does this too. Its own import takes 50 ms, because it imports asyncio: a sixth of the time that the
command `translate` takes to start and to translate one sentence.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


def when_imported(name: str, function: Callable[[ModuleType], None]) -> None:
    """Calls `function(module)` after the first successful import of a module; now, if the module is there already."""
    if name in sys.modules:
        function(sys.modules[name])
    else:
        sys.meta_path.insert(0, _Watcher(name, function))


class _Watcher:
    """A finder that finds one module by the finders after it, and has its loader call a function at the end."""

    def __init__(self, name: str, function: Callable[[ModuleType], None]):
        self.name = name
        self.function = function

    def find_spec(self, name: str, path: Any = None, target: ModuleType | None = None) -> ModuleSpec | None:
        """See `importlib.abc.MetaPathFinder`."""
        if name != self.name:
            return None
        after = sys.meta_path[sys.meta_path.index(self) + 1 :]
        spec = next((spec for finder in after if (spec := finder.find_spec(name, path, target))), None)
        if spec is not None and spec.loader is not None:
            self._watch(spec.loader)
        return spec

    def _watch(self, loader: Any) -> None:
        execute = loader.exec_module

        def exec_module(module: ModuleType) -> None:
            execute(module)
            if self in sys.meta_path:
                sys.meta_path.remove(self)
                self.function(module)

        loader.exec_module = exec_module  # of this loader alone, which is made for this import
