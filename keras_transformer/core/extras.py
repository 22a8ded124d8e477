"""Imports what an extra of this package brings, and tells how to install it where it is missing."""

from __future__ import annotations

import gc
import importlib
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from keras_transformer.core.errors import CHECKOUT, RequestError, silent, warn

DISTRIBUTION = "keras-transformer-kit"
# Another project's package has its module in the same folder as ours, so that each overwrites files of the other.
NAMESAKE = (
    "keras-transformer is another project's package whose module has the same name: pip uninstall keras-transformer, "
    "then install this one again"
)


class MissingPackage(RequestError, ImportError):
    """A package is not installed. The message says what needs it, and how to install it."""


def required(module: str, extra: str, purpose: str) -> ModuleType:
    """Imports a module that an extra brings.

    Args:
        module: its name, such as "tokenizers".
        extra: the extra of this package that installs it; empty if this package itself does.
        purpose: what needs it, the subject of a sentence: "training".

    Raises:
        MissingPackage: it is not installed, or broken.
    """
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        raise missing(error.name or module, extra, purpose) from None
    except ImportError as error:
        raise missing(module, extra, purpose, f"cannot be imported ({error})") from None


def missing(module: str, extra: str, purpose: str, fault: str = "is not installed") -> MissingPackage:
    """Returns the error of a module that is not installed, or has another fault; see `required`."""
    package = module.partition(".")[0]
    return MissingPackage(f"{purpose} needs the package {package}, which {fault}: {install(extra)}")


def install(extra: str = "") -> str:
    """Returns the command that installs this package with an extra: from the checkout, or again where it is installed.

    pip finds an installed package without an index, and adds what its extra lacks.
    """
    extras = f"[{extra}]" if extra else ""
    command = f"pip install '{DISTRIBUTION}{extras}'"
    if (CHECKOUT / "pyproject.toml").is_file():
        command = f"pip install -e '{CHECKOUT}{extras}'"
    return f"{command} ({NAMESAKE})" if has_namesake() else command


def has_namesake() -> bool:
    """Tells whether another project's package `keras-transformer` is installed. `importlib.metadata` takes 15 ms.

    This project had that name too. It was never on an index then, so pip noted where it came from.
    """
    places = [Path(path) for path in sys.path if path.endswith("-packages")]
    found = [folder for place in places for folder in place.glob("keras_transformer-*-info")]
    return any(not (folder / "direct_url.json").exists() for folder in found)


def warn_of_namesake() -> None:
    """Warns if another project's package of nearly the same name is installed."""
    if has_namesake():
        warn(NAMESAKE)


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
