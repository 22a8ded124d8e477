"""Registers parts of your own under a name, and imports them before a run that has them is read. No Keras here.

A run names the modules that register its parts. Nothing in a run is imported by itself: a program imports the modules,
or a command does, by `--import MODULE`.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from keras_transformer.core.errors import RequestError
from keras_transformer.core.extras import load_tensorflow
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Option, Part, home_of, parameters_of

FLAG = "--import"
HELP = "a module of yours that registers parts, or adds a task to `tasks.TASKS`; it may be given several times"
VARIABLE = "KERAS_TRANSFORMER_IMPORT"  # the modules, for processes that a command starts
NAME = re.compile(r"[A-Za-z_][\w.-]*")


def register_part(
    slot: str,
    name: str,
    part_class: type,
    options: Mapping[str, Option] | None = None,
    help: str = "a part of your own",
    module: str | None = None,
) -> None:
    """Adds a part of your own to a slot. Models, flags, runs and exports then know it by its name.

    Call this function in a module that can be imported, beside the class: a run names the module, and whoever reads the
    run imports it.

    Args:
        slot: which part of a model it is, such as "feed_forward"; a key of `model_spec.ALL_SLOTS`.
        name: such as "gated".
        part_class: a `keras_transformer.layers.Layer` with the methods of the other classes in the slot. Its
            constructor gets the options, and the model's sizes that it names, such as `hidden_dim`.
        options: the options of the part, by the names of the constructor's arguments; see `Option`.
        help: what it is, in a few words, for `--help`.
        module: that calls this function; by default that of the class.

    Raises:
        ValueError: there is no such slot, the name is taken by another class or is none, the class is no layer, or an
            option is no argument of its constructor, or has a default that its bounds exclude.
    """
    options = dict(options or {})
    _check(slot, name, part_class, options)
    own = module or part_class.__module__
    for known, part in [*model_spec.ALL_SLOTS[slot].items()]:
        if part.home == home_of(part_class) and part.own_class is not None and not part.own_module:
            del model_spec.ALL_SLOTS[slot][known]  # a model was given the class before
    model_spec.ALL_SLOTS[slot][name] = Part(
        home_of(part_class), help, own, options, own_class=part_class, own_module=own
    )


def _check(slot: str, name: str, part_class: type, options: dict[str, Option]) -> None:
    """Raises ValueError if a part cannot be registered so."""
    import keras  # the class's module has imported it

    if slot not in model_spec.ALL_SLOTS:
        raise ValueError(f"`slot` must be one of {', '.join(model_spec.ALL_SLOTS)}. Received: slot={slot!r:.60}")
    if not NAME.fullmatch(name):
        raise ValueError(f"`name` must be of letters, digits, '_', '-' and '.'. Received: name={name!r:.60}")
    if not (isinstance(part_class, type) and issubclass(part_class, keras.layers.Layer)):
        raise ValueError(f"`part_class` must be a class of layers. Received: part_class={part_class!r:.60}")
    known = model_spec.ALL_SLOTS[slot].get(name)
    if known is not None and known.home != home_of(part_class):
        raise ValueError(f"`name` must be a new one: {known.home} has it in {slot!r}. Received: name={name!r}")
    if unknown := sorted(options.keys() - parameters_of(part_class)):
        raise ValueError(f"`options` must be arguments of {part_class.__name__}. Received: {unknown[0]!r}")
    for key, option in options.items():
        option.checked(key, option.default)


def modules_of(model: Mapping[str, Any]) -> list[str]:
    """Lists the modules that register parts of a model's complete configuration; none for parts of this package.

    Raises:
        RequestError: a part is not registered, or not in a module that others can import.
    """
    modules = set()
    for argument, value in model.items():
        if isinstance(value, dict) and value.get("name"):
            slot = model_spec.KINDS[model["kind"]].arguments[argument].slot
            part = model_spec.ALL_SLOTS[slot][value["name"]]
            if part.own_class is not None and part.own_module in ("", "__main__"):
                raise RequestError(
                    f"a run names the module of each part, and {part.class_name} has none: define it in a module, and "
                    f"call `keras_transformer.register_part({slot!r}, …)` there"
                )
            modules |= {part.own_module} - {""}
    return sorted(modules)


def with_imports(arguments: Sequence[str] | None) -> list[str]:
    """Imports the modules that a command line names by `--import`.

    Args:
        arguments: the words; by default those of this process.

    Returns:
        The other words.

    Raises:
        RequestError: a module cannot be imported.
    """
    words, others, names = iter(sys.argv[1:] if arguments is None else arguments), [], []
    for word in words:
        flag, has_value, value = word.partition("=")
        if flag != FLAG:
            others.append(word)
        elif found := value if has_value else next(words, ""):
            names.append(found)
        else:
            others.append(word)  # the parser tells that a value is missing
    if names:
        os.environ[VARIABLE] = ",".join(names)
        import_named()
    return others


def import_flags(modules: Iterable[str] = ()) -> str:
    """Returns the flags that import these modules, and those that this process was told to import."""
    names = dict.fromkeys([*modules, *filter(None, os.environ.get(VARIABLE, "").split(","))])
    return "".join(f" {FLAG} {name}" for name in names)


def import_named() -> None:
    """Imports the modules that this process was told to import.

    Raises:
        RequestError: one of them cannot be imported.
    """
    names = [*filter(None, os.environ.get(VARIABLE, "").split(","))]
    if not names:
        return
    load_tensorflow()  # quietly, before the modules import Keras
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.append(here)  # behind what is installed
    for name in names:
        try:
            import_module(name)
        except Exception as error:
            reason = f"{type(error).__name__}: {error}"
            raise RequestError(f"{FLAG} {name}: the module cannot be imported ({reason:.300})") from error
