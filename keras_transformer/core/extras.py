"""Imports what an extra of this package brings, and tells how to install it where it is missing."""

from __future__ import annotations

import importlib
from types import ModuleType

from keras_transformer.core.errors import CHECKOUT, RequestError

DISTRIBUTION = "keras-transformer-kit"


class MissingPackage(RequestError, ImportError):
    """A package is not installed. The message says what needs it, and how to install it."""


def required(module: str, extra: str, purpose: str) -> ModuleType:
    """Imports a module that an extra brings.

    Args:
        module: its name, such as "tokenizers".
        extra: the extra of this package that installs it.
        purpose: what needs it, the subject of a sentence: "training".

    Raises:
        MissingPackage: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise missing(error.name or module, extra, purpose) from None


def missing(module: str, extra: str, purpose: str) -> MissingPackage:
    """Returns the error of a module that is not installed; see `required`."""
    package = module.partition(".")[0]
    return MissingPackage(f"{purpose} needs the package {package}, which is not installed: {install(extra)}")


def install(extra: str) -> str:
    """Returns the command that installs an extra here: from the checkout, or beside the package that is installed."""
    if (CHECKOUT / "pyproject.toml").is_file():
        return f"pip install -e '{CHECKOUT}[{extra}]'"
    return f"pip install '{DISTRIBUTION}[{extra}]'"
