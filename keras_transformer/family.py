"""The family of models as one table: what a model is made of, with bounds and help. Keras is not imported.

A model is made of *arguments*: numbers, switches, and parts. A *part* fills a *slot* and is named, as Keras names its
initializers, by a string or by a dictionary of name and options: `"learned"`, or `{"name": "learned", "offset": 2}`; on
a command line `learned:offset=2`. A new variant of a slot is one row in `SLOTS`, a class, and a writer for ONNX
(without one, ONNX refuses the variant by name).

From here come the flags of train.py and their help, the check of config.json, the README's table and the parameters of
tests. A class offers what the first class of its slot offers, or their base (`Positions`, `Residual`): its methods, and
`num_parameters`, by which a model is counted before it is made.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any

LAYERS = "keras_transformer.layers"


class Unknown(ValueError):
    """There is no argument, part or option of this name: a later version may know it."""


@dataclass(frozen=True)
class Option:
    """An argument of a model, or an option of a part.

    Args:
        default: its value where none is given.
        help: what it is, in one line.
        kind: int, float or bool; or the name of a slot, whose part it is.
        least, most: its bounds, themselves allowed.
        below: a bound that is not allowed itself.
        is_optional: None is allowed.
    """

    default: Any
    help: str
    kind: type | str = int
    least: float = -math.inf
    most: float = math.inf
    below: float = math.inf
    is_optional: bool = False

    @property
    def slot(self) -> str:
        """The slot whose part it is, or ""."""
        return self.kind if isinstance(self.kind, str) else ""

    @property
    def expected(self) -> str:
        """What its values are, in words."""
        if self.kind is bool:
            return "true or false"
        bounds = f" from {self.least:,}" if self.least > -math.inf else ""
        bounds += f" to {self.most:,}" if self.most < math.inf else ""
        bounds = f" of at least {self.least:,} and less than {self.below:,}" if self.below < math.inf else bounds
        return ("an integer" if self.kind is int else "a number") + bounds

    def checked(self, name: str, value: Any) -> Any:
        """The value; of a part its configuration, complete.

        Raises:
            ValueError: the value is none that the option can have.
        """
        if value is None and self.is_optional:
            return None
        if self.slot:
            return part(self.slot, value, name)
        kinds = (int, float) if self.kind is float else (self.kind,)
        if type(value) in kinds and (self.kind is bool or self.least <= value <= self.most and value < self.below):
            return float(value) if self.kind is float else value
        raise ValueError(f"`{name}` must be {self.expected}. Received: {name}={value!r:.60}")

    def parsed(self, text: str) -> Any:
        """The value that a text on a command line spells; the text itself, where it spells none."""
        if self.kind is bool:
            return {"true": True, "false": False}.get(text.lower(), text)
        try:
            return int(text) if self.kind is int else float(text)
        except ValueError:
            return text


@dataclass(frozen=True)
class Part:
    """A variant of a slot: a row of the table.

    Args:
        home: the class, as "module:class". It is made of the row's options, and of those of the model's sizes that its
            constructor names.
        help: what it is, in a few words.
        source: where it is defined.
        options: by name.
        fault: of a model's complete configuration, why this part cannot stand in it; "" where it can.
    """

    home: str
    help: str
    source: str
    options: dict[str, Option] = field(default_factory=dict)
    fault: Callable[[dict[str, Any]], str] = lambda model: ""

    def load(self) -> type:
        """The class."""
        return load(self.home)

    def usage(self, name: str) -> str:
        """How a command line names the part, its options at their defaults, and what it is."""
        options = ",".join(f"{key}={option.default}" for key, option in self.options.items())
        return f"{name}{f'[:{options}]' if options else ''} ({self.help})"


def load(home: str) -> type:
    """The class of "module:class"."""
    module, name = home.split(":")
    return getattr(import_module(module), name)


def _needs_even_width(model: dict[str, Any]) -> str:
    width = model["hidden_dim"]
    return f"`hidden_dim` must be even for sinusoidal positions. Received: hidden_dim={width}" if width % 2 else ""


_OFFSET = {"offset": Option(0, "added to every position", least=0, most=1_000)}

# The first part of a slot is its default.
SLOTS: dict[str, dict[str, Part]] = {
    "positions": {
        "sinusoidal": Part(
            f"{LAYERS}.positions:SinusoidalPositions", "waves, added to the embedding", "paper, 3.5", _OFFSET,
            _needs_even_width,
        ),
        "learned": Part(
            f"{LAYERS}.positions:LearnedPositions", "a vector for each, added to the embedding",
            "paper, table 3 row E", _OFFSET,
        ),
    },
    "attention": {
        "full": Part(f"{LAYERS}.attention:MultiHeadAttention", "every position looks at every other", "paper, 3.2.2"),
    },
    "score": {
        "scaled_dot": Part(
            f"{LAYERS}.score:ScaledDot", "product of query and key, over the root of their size", "paper, equation 1"
        ),
    },
    "residual": {
        "post_norm": Part(f"{LAYERS}.residual:PostNorm", "norm after the sum", "paper, 3.1"),
        "pre_norm": Part(
            f"{LAYERS}.residual:PreNorm", "norm before the sub-layer, and one after the stack", "arXiv 2002.04745"
        ),
    },
    "norm": {
        "layer": Part(
            f"{LAYERS}.norms:LayerNorm", "layer normalization", "arXiv 1607.06450",
            {"epsilon": Option(1e-6, "added to the variance", float, least=1e-12, most=1.0)},
        ),
    },
    "feed_forward": {
        "plain": Part(f"{LAYERS}.feed_forward:FeedForward", "two products, an activation between", "paper, 3.3"),
    },
    "activation": {
        "relu": Part(f"{LAYERS}.activations:Relu", "max(0, x)", "paper, equation 2"),
    },
    "stack": {
        "layers": Part(f"{LAYERS}.stack:Stack", "blocks, each with weights of its own", "paper, 3.1"),
    },
}  # fmt: skip


def _size(default: int | None, help: str, most: int, is_optional: bool = False) -> Option:
    return Option(default, help, int, least=1, most=most, is_optional=is_optional)


def _rate(default: float, help: str) -> Option:
    return Option(default, help, float, least=0, below=1)


def _switch(default: bool, help: str) -> Option:
    return Option(default, help, bool)


def _slot(slot: str, help: str, is_optional: bool = False) -> Option:
    return Option(None if is_optional else next(iter(SLOTS[slot])), help, slot, is_optional=is_optional)


# What a translator is made of. The sizes are the paper's base model's (table 3); no default of `vocabulary_size` is a
# model's own: a vocabulary says how large it is.
ARGUMENTS: dict[str, Option] = {
    "vocabulary_size": _size(None, "pieces of target and output, the control ids included", 4_000_000),
    "num_layers": _size(6, "blocks in the encoder, and in the decoder", 512),
    "num_heads": _size(8, "attention heads", 1024),
    "hidden_dim": _size(512, "model width, the paper's d_model", 65_536),
    "intermediate_dim": _size(2048, "feed-forward width, the paper's d_ff", 1_048_576),
    "dropout": _rate(0.1, "dropout on sub-layers and embeddings"),
    "key_dim": _size(None, "size of a head, by default hidden-dim / num-heads", 65_536, is_optional=True),
    "attention_dropout": _rate(0.0, "dropout on attention scores"),
    "source_vocabulary_size": _size(None, "pieces of the source's own vocabulary", 4_000_000, is_optional=True),
    "max_source_length": _size(512, "longest source in pieces when translating", 1_000_000),
    "encoder_layers": _size(None, "blocks in the encoder, by default num-layers", 512, is_optional=True),
    "decoder_layers": _size(None, "blocks in the decoder, by default num-layers", 512, is_optional=True),
    "positions": _slot("positions", "how a token's place is told"),
    "attention": _slot("attention", "self-attention of encoder and decoder"),
    "decoder_attention": _slot("attention", "self-attention of the decoder, by default as in the encoder", True),
    "score": _slot("score", "how well a query and a key fit"),
    "residual": _slot("residual", "where norms stand around a sub-layer"),
    "norm": _slot("norm", "what a norm computes"),
    "feed_forward": _slot("feed_forward", "what is applied to each position alike"),
    "activation": _slot("activation", "what bends inside the feed-forward network"),
    "stack": _slot("stack", "how blocks follow one another"),
    "attention_bias": _switch(False, "biases in the projections of attention"),
    "output_bias": _switch(False, "a bias on the logits"),
    "tied_output": _switch(True, "the output shares the target embedding's matrix"),
    "embedding_scale": Option(
        None, "factor on embeddings, by default the root of hidden-dim", float, least=1e-6, most=1e6, is_optional=True
    ),
    "embedding_norm": _switch(False, "a norm on the sum of embedding and position"),
    "num_control_ids": Option(4, "ids that are no text: pad, unknown, start, end, then others", least=4, most=10_000),
}  # fmt: skip
PART_ARGUMENTS = [name for name, option in ARGUMENTS.items() if option.slot]
KINDS = {"translator": "keras_transformer.models.transformer:Transformer"}


def part(slot: str, value: str | dict[str, Any], argument: str = "") -> dict[str, Any]:
    """The complete configuration of a part: its name and all of its options.

    Args:
        slot: a key of `SLOTS`.
        value: a name, or a dictionary of name and options.
        argument: what the errors call it; the slot by default.

    Raises:
        ValueError: no such part, no such option, or a value that the option cannot have.
    """
    argument = argument or slot
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise ValueError(
            f"`{argument}` must be a name, or a dictionary with a name. Received: {argument}={value!r:.60}"
        )
    name = given["name"]
    if name not in SLOTS[slot]:
        raise Unknown(f"`{argument}` must be one of {', '.join(SLOTS[slot])}. Received: {argument}={name!r:.60}")
    options = SLOTS[slot][name].options
    if unknown := sorted(map(str, given.keys() - {"name", *options})):
        known = f"has the options {', '.join(options)}" if options else "has no options"
        raise Unknown(f"`{argument}`: {name!r} {known}. Received: {unknown[0]:.60}")
    checked = {
        key: option.checked(f"{argument}:{key}", given.get(key, option.default)) for key, option in options.items()
    }
    return {"name": name, **checked}


def parse(text: str, slot: str, argument: str = "") -> dict[str, Any]:
    """The part that a command line spells, `name` or `name:option=value,option=value`, complete.

    Raises:
        ValueError: as for `part`.
    """
    name, _, rest = text.partition(":")
    options = SLOTS[slot][name].options if name in SLOTS[slot] else {}
    given: dict[str, Any] = {"name": name}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        if key in given:
            raise ValueError(f"`{argument or slot}`: an option may be given once. Received: {text!r:.60}")
        given[key] = options[key].parsed(value) if key in options else value
    return part(slot, given, argument)


def spelled(value: str | dict[str, Any], slot: str) -> str:
    """A part as a command line spells it, without the options that have their defaults.

    Raises:
        ValueError: as for `part`.
    """
    config = part(slot, value)
    options = SLOTS[slot][config["name"]].options
    given = [f"{key}={config[key]}" for key, option in options.items() if config[key] != option.default]
    return ":".join([config["name"], *([",".join(given)] if given else [])])


def row(slot: str, value: str | dict[str, Any]) -> Part:
    """The row of the table that a part has.

    Raises:
        ValueError: as for `part`.
    """
    return SLOTS[slot][part(slot, value)["name"]]


def complete(config: dict[str, Any]) -> dict[str, Any]:
    """The arguments of a model, those left out at their defaults, parts as complete dictionaries.

    Raises:
        ValueError: an argument is unknown, or has a value that it cannot have, or two contradict each other.
    """
    config = modern(config)
    if unknown := sorted(map(str, config.keys() - ARGUMENTS.keys())):
        raise Unknown(f"expected arguments among {', '.join(ARGUMENTS)}; received {unknown[0]!r:.60}")
    config = {name: option.checked(name, config.get(name, option.default)) for name, option in ARGUMENTS.items()}
    if config["key_dim"] is None and config["hidden_dim"] % config["num_heads"]:
        raise ValueError(
            "`num_heads` must divide `hidden_dim`, or `key_dim` must be given. "
            f"Received: num_heads={config['num_heads']}, hidden_dim={config['hidden_dim']}"
        )
    if config["num_control_ids"] >= config["vocabulary_size"]:
        raise ValueError(
            "`vocabulary_size` must be larger than `num_control_ids`. Received: "
            f"vocabulary_size={config['vocabulary_size']}, num_control_ids={config['num_control_ids']}"
        )
    for name in PART_ARGUMENTS:
        if config[name] is not None and (fault := row(ARGUMENTS[name].slot, config[name]).fault(config)):
            raise ValueError(fault)
    return config


def modern(config: dict[str, Any]) -> dict[str, Any]:
    """Arguments, or settings, in which what version 0.1 called otherwise has its present name.

    Raises:
        ValueError: one of the old switches is neither true nor false.
    """
    spellings = {
        "normalize_first": ("residual", {True: "pre_norm", False: "post_norm"}),
        "learned_positions": ("positions", {True: "learned", False: "sinusoidal"}),
    }
    present = {name: value for name, value in config.items() if name not in spellings}
    for old, (name, values) in spellings.items():
        switch = config.get(old)
        if switch is None:
            continue
        if type(switch) is not bool:
            raise ValueError(f"`{old}` must be true or false. Received: {old}={switch!r:.60}")
        given = present.get(name)
        if given not in (None, next(iter(SLOTS[name])), values[switch]):
            raise ValueError(
                f"`{old}` is another spelling of `{name}`: give one of them. Received: {name}={given!r:.60}"
            )
        present[name] = values[switch]
    return present


def depths(config: dict[str, Any]) -> tuple[int, int]:
    """How many layers encoder and decoder have, of a complete configuration."""
    return config["encoder_layers"] or config["num_layers"], config["decoder_layers"] or config["num_layers"]


def key_dim(config: dict[str, Any]) -> int:
    """The size of a head, of a complete configuration."""
    return config["key_dim"] or config["hidden_dim"] // config["num_heads"]


def table() -> str:
    """The family as a table in Markdown."""
    lines = ["| slot | variant | what it is | source |", "| --- | --- | --- | --- |"]
    for slot, parts in SLOTS.items():
        for name, each in parts.items():
            options = "".join(f", `{key}` ({option.default})" for key, option in each.options.items())
            lines.append(f"| `{slot}` | `{name}` | {each.help}{options} | {each.source} |")
    return "\n".join(lines) + "\n"
