"""The rows of the family's table: arguments, parts and the options of parts, with bounds and help. No Keras here."""

from __future__ import annotations

import inspect
import math
import string
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any, TypeAlias

from keras_transformer.core.schema import Schema, number, of_type, or_null, shown, whole

# Values by their names, as JSON has them: a model's configuration, a run's settings, the flags of a command.
Config: TypeAlias = dict[str, Any]


class Fault(ValueError):
    """What is wrong with the arguments of a model: for people who write Python, as an error says it, or for those who
    write flags.

    Args:
        text: what was expected. `{name}` stands for an argument, `{name:option}` for an option of a part.
        received: values, or texts of them, by such names without braces; by "" a value that has none.

    Attributes:
        arguments: the names of the arguments that are told, and last that of the part which does not fit.
    """

    def __init__(self, text: str, received: Mapping[str, Any] | None = None, **more: object):
        super().__init__(text)
        self.text = text
        self.received = {**(received or {}), **more}
        self.arguments = [name for _, name, _, _ in string.Formatter().parse(text) if name]

    def __str__(self) -> str:
        received = ", ".join(f"{name}={value}" if name else value for name, value in self.received.items())
        return _named(self.text, lambda name: f"`{name}`") + (f". Received: {received}" if received else "")

    def in_flags(self) -> str:
        """The same in the words of a command line."""
        told = [(f"{flag_of(name)} " if len(self.received) > 1 else "") + f"{v}" for name, v in self.received.items()]
        return _named(self.text, flag_of) + (f"; received: {', '.join(told)}" if told else "")


class Unknown(Fault):
    """No argument, part or option has this name. A later version may have it."""


def flag_of(name: str) -> str:
    """The flag of an argument; `norm:epsilon`, the option of a part, is told as --norm epsilon."""
    argument, _, option = name.partition(":")
    return " ".join(["--" + argument.replace("_", "-"), *([option] if option else [])])


def _named(text: str, spelling: Callable[[str], str]) -> str:
    """A text with the names in braces spelled."""
    parts = string.Formatter().parse(text)
    return "".join(
        before + ("" if name is None else spelling(f"{name}:{option}" if option else name))
        for before, name, option, _ in parts
    )


@dataclass(frozen=True)
class Option:
    """An argument of a model, or an option of a part.

    Args:
        default: the value if none is given.
        help: what it is, in one line.
        kind: int, float or bool; or the name of a slot, if the value is a part.
        least, most: inclusive bounds.
        below: an exclusive upper bound.
        is_optional: whether None is a value.
        is_list: whether a list of such numbers is a value too.
    """

    default: Any
    help: str
    kind: type | str = int
    least: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    is_optional: bool = False
    is_list: bool = False

    @property
    def slot(self) -> str:
        """The slot that the value fills; "" if the value is no part."""
        return self.kind if isinstance(self.kind, str) else ""

    @property
    def schema(self) -> Schema:
        """The values that are allowed, but for parts and lists."""
        numbers = whole(self.least, self.most) if self.kind is int else number(self.least, self.most, self.below)
        one = of_type(bool) if self.kind is bool else numbers
        return or_null(one) if self.is_optional else one

    def checked(self, name: str, value: Any) -> Any:
        """Returns a number, a switch or a list if it is allowed. `model_spec.part` checks parts.

        Raises:
            Fault: the value is not allowed.
        """
        if value is None and self.is_optional:
            return None
        if self.is_list and isinstance(value, list | tuple) and value:
            return [replace(self, is_list=False).checked(name, each) for each in value]
        if not self.schema.holds(value):
            expected = self.schema.expected + ", or a list of such" * self.is_list
            raise Fault(f"{{{name}}} must be {expected}", {name: shown(value)})
        return float(value) if self.kind is float else value

    def parsed(self, text: str) -> Any:
        """The value that a text on a command line stands for. A text that stands for none is returned as it is."""
        if self.is_optional and text == "None":
            return None
        if self.kind is bool:
            return {"true": True, "false": False}.get(text.lower(), text)
        if self.is_list and "," in text:
            return [self.parsed(each) for each in text.split(",")]
        try:
            return int(text) if self.kind is int else float(text)
        except ValueError:
            return text


@dataclass(frozen=True)
class Part:
    """A variant of a slot.

    Args:
        home: the class, as "module:class". Its constructor gets the part's options, and the model's sizes that it
            names.
        help: what the part is, in a few words.
        source: where the part is defined, such as a section of the paper.
        options: the part's options by name.
        fault: a function of a model's complete configuration. It returns why this part does not fit there, or None.
        of_layer: a function of this part's complete configuration and a layer's number, from 0. It returns the part
            that a stack has in this layer.
        own_class: the class of a part that `custom_parts.register_part` added, or that a model was given.
        own_module: that registers it; "" for parts of this package, and for classes that are not registered.
    """

    home: str
    help: str
    source: str
    options: dict[str, Option] = field(default_factory=dict)
    fault: Callable[[Config], Fault | None] = lambda model: None
    of_layer: Callable[[Config, int], Config] = lambda config, layer: config
    own_class: type[Any] | None = None
    own_module: str = ""

    @property
    def module(self) -> str:
        """The module that defines the class."""
        return self.home.split(":")[0]

    @property
    def class_name(self) -> str:
        """The name of the class."""
        return self.home.split(":")[1]

    def load(self) -> type[Any]:
        """Imports the class."""
        return self.own_class or load(self.home)

    def usage(self, name: str) -> str:
        """The part in a command's help: its name, its options with their defaults, and what it is."""
        options = ",".join(f"{key}={option.default}" for key, option in self.options.items())
        return f"{name}{f'[:{options}]' if options else ''} ({self.help})"


def load(home: str) -> type[Any]:
    """Imports the class at "module:class"."""
    module, name = home.split(":")
    return getattr(import_module(module), name)


def home_of(some_class: type) -> str:
    """Where a class is defined, "module:class"."""
    return f"{some_class.__module__}:{some_class.__qualname__}"


def parameters_of(part_class: type) -> set[str]:
    """The argument names of a layer's constructor and of its bases' constructors, Keras's `Layer` excluded."""
    import keras  # the class's module has imported it

    names: set[str] = set()
    for one in part_class.__mro__:
        if one is keras.layers.Layer:
            break
        if "__init__" in vars(one):
            parameters = inspect.signature(one.__init__).parameters.values()  # type: ignore[misc]
            names |= {each.name for each in parameters if each.kind not in (each.VAR_KEYWORD, each.VAR_POSITIONAL)} - {
                "self"
            }
    return names
