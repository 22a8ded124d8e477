"""The rows of the family's table: arguments, parts and the options of parts, with bounds and help. No Keras here."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from importlib import import_module
from typing import Any


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
    def expected(self) -> str:
        """The values that are allowed, in words."""
        if self.kind is bool:
            return "true or false"
        bounds = f" from {self.least:,}" if self.least > -math.inf else ""
        bounds += f" to {self.most:,}" if self.most < math.inf else ""
        bounds = f" of at least {self.least:,} and less than {self.below:,}" if self.below < math.inf else bounds
        bounds += ", or a list of such" if self.is_list else ""
        return ("an integer" if self.kind is int else "a number") + bounds

    def checked(self, name: str, value: Any) -> Any:
        """Returns a number, a switch or a list if it is allowed. `family.part` checks parts.

        Raises:
            ValueError: the value is not allowed.
        """
        if value is None and self.is_optional:
            return None
        if self.is_list and isinstance(value, list | tuple) and value:
            return [replace(self, is_list=False).checked(name, each) for each in value]
        kinds = (int, float) if self.kind is float else (self.kind,)
        if type(value) in kinds and (self.kind is bool or self.least <= value <= self.most and value < self.below):
            return float(value) if self.kind is float else value
        raise ValueError(f"`{name}` must be {self.expected}. Received: {name}={value!r:.60}")

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
        fault: a function of a model's complete configuration. It returns why this part does not fit there, or "".
        of_layer: a function of this part's complete configuration and a layer's number, from 0. It returns the part
            that a stack has in this layer.
    """

    home: str
    help: str
    source: str
    options: dict[str, Option] = field(default_factory=dict)
    fault: Callable[[dict[str, Any]], str] = lambda model: ""
    of_layer: Callable[[dict[str, Any], int], dict[str, Any]] = lambda config, layer: config

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
        return load(self.home)

    def usage(self, name: str) -> str:
        """The part in a command's help: its name, its options with their defaults, and what it is."""
        options = ",".join(f"{key}={option.default}" for key, option in self.options.items())
        return f"{name}{f'[:{options}]' if options else ''} ({self.help})"


def load(home: str) -> type[Any]:
    """Imports the class at "module:class"."""
    module, name = home.split(":")
    return getattr(import_module(module), name)
