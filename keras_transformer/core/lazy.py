"""Imports slow modules when they are first used: TensorFlow, and those behind the names of a package."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from importlib import import_module
from typing import TYPE_CHECKING, Any

from keras_transformer.core.extras import load_tensorflow


class LazyModule:
    """Imports a module when one of its names is first asked for.

    Args:
        name: such as "tensorflow".
    """

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        return getattr(import_module(self._name), name)


if TYPE_CHECKING:
    import tensorflow as tf
else:
    tf = LazyModule("tensorflow")


def lazy_names(
    package: str, names: Mapping[str, Sequence[str]], modules: Sequence[str] = (), without_keras: Sequence[str] = ()
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Returns the functions `__getattr__` and `__dir__` of a package, and its `__all__`.

    Beside this call, list the names under `if TYPE_CHECKING:` with their imports, for editors and type checkers.

    Args:
        package: the package's `__name__`.
        names: those that each module of the package defines; the modules are named from the package on.
        modules: the modules of the package that are names of it too.
        without_keras: the names whose modules do not import Keras; before the others, Keras is imported quietly.
    """
    homes = {name: module for module in names for name in names[module]} | dict(zip(modules, modules, strict=True))

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        if name not in without_keras:
            load_tensorflow()
        module = import_module(f"{package}.{homes[name]}")
        return module if name in modules else getattr(module, name)

    def known() -> list[str]:
        return sorted({*vars(sys.modules[package]), *homes})

    return get, known, sorted(homes.keys() - modules)


def on_tensorflow() -> bool:
    """Whether Keras computes with TensorFlow."""
    import keras

    return bool(keras.config.backend() == "tensorflow")


def computed_after(tensors: Sequence[Any]) -> AbstractContextManager[None]:
    """Makes TensorFlow compute `tensors` before what is within. JAX and PyTorch order their operations themselves."""
    return tf.control_dependencies(tensors) if on_tensorflow() else nullcontext()


_fused = ContextVar("fused", default=False)


@contextmanager
def fused() -> Iterator[None]:
    """Marks what TensorFlow traces within as compiled by XLA."""
    token = _fused.set(True)
    try:
        yield
    finally:
        _fused.reset(token)


def is_fused() -> bool:
    """Whether XLA fuses what is computed now: on JAX always, on TensorFlow within `fused`. PyTorch needs no help."""
    return not on_tensorflow() or _fused.get()
