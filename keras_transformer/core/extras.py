"""Imports what an extra of this package brings, and tells how to install it where it is missing."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType

from keras_transformer.core.errors import CHECKOUT, RequestError, silent

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


_loading = threading.RLock()


def load_tensorflow() -> None:
    """Imports Keras and TensorFlow without the log lines of their C++ code.

    It also makes TensorFlow allocate GPU memory as needed; by default TensorFlow allocates all of it at once. If Keras
    is already imported, it changes nothing.

    Raises:
        MissingPackage: one of them is not installed.
    """
    with _loading:  # what is silent is the whole process: a second thread would restore the silence of the first
        if "keras" in sys.modules:
            return
        os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
        os.environ.setdefault("TF_FORCE_GPU_ALLOW_GROWTH", "true")
        with silent(), _without_garbage_collection():
            required("keras", "train", "this")


@contextmanager
def _without_garbage_collection() -> Iterator[None]:
    """Turns garbage collection off: it would take a fifth of an import, which makes millions of objects that stay."""
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
