"""Imports the modules of the export, which are `export` in a checkout and `keras_transformer.export` in a wheel.

The commands are the top floor: they alone may import the export.
"""

from __future__ import annotations

import importlib.util
from importlib import import_module
from types import ModuleType

IN_WHEEL = "keras_transformer.export"


def export_module(name: str) -> ModuleType:
    """The module of the export with this name, such as "onnx"."""
    package = IN_WHEEL if importlib.util.find_spec(IN_WHEEL) else "export"
    return import_module(f"{package}.{name}")
