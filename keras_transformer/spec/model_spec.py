"""Lists the arguments of every kind of model, and checks and completes a model's configuration. No Keras here.

A model's *arguments* are numbers, switches, and parts. A *part* fills a *slot*. Like an initializer in Keras, a part is
given as a name or as a dictionary of its name and options: `"learned"`, or `{"name": "learned", "offset": 2}`; on a
command line `learned:offset=2`. `part_registry` has the parts, this module the arguments.

These tables are the source of the flags of train.py and their help, of the check of config.json, of the README's table,
and of the parameters of tests.
"""

from __future__ import annotations

from collections import ChainMap
from dataclasses import replace
from typing import Any, NamedTuple

from keras_transformer.spec.options import Config, Fault, Option, Part, PartConfig, Unknown, home_of
from keras_transformer.spec.part_registry import IMAGE_SLOTS, SLOTS

# The slots of all models. Tests add rows to `SLOTS`, and a map sees them.
ALL_SLOTS = ChainMap(SLOTS, IMAGE_SLOTS)


def _size(default: int | None, help: str, most: int, is_optional: bool = False) -> Option:
    return Option(default, help, int, least=1, most=most, is_optional=is_optional)


def _rate(default: float, help: str) -> Option:
    return Option(default, help, float, least=0, below=1)


def _switch(default: bool, help: str) -> Option:
    return Option(default, help, bool)


def _of_channels(help: str, least: float, most: float) -> Option:
    return Option(0.5, f"{help}; a number, or one for each channel", float, least, most, is_list=True)


def _slot(slot: str, help: str, is_optional: bool = False) -> Option:
    return Option(None if is_optional else next(iter(ALL_SLOTS[slot])), help, slot, is_optional=is_optional)


# The arguments of a translator. The default sizes are those of the paper's base model (table 3). `vocabulary_size` has
# no default: the vocabulary sets it.
ARGUMENTS: dict[str, Option] = {
    "vocabulary_size": _size(None, "pieces in the vocabulary of target and output, with the control ids", 4_000_000),
    "num_layers": _size(6, "blocks in the encoder, and in the decoder", 512),
    "num_heads": _size(8, "attention heads", 1024),
    "hidden_dim": _size(512, "model width, the paper's d_model", 65_536),
    "intermediate_dim": _size(2048, "feed-forward width, the paper's d_ff", 1_048_576),
    "dropout": _rate(0.1, "dropout on sub-layers and embeddings"),
    "key_dim": _size(None, "size of a head, by default hidden-dim / num-heads", 65_536, is_optional=True),
    "attention_dropout": _rate(0.0, "dropout on attention scores"),
    "source_vocabulary_size": _size(None, "pieces in the source's own vocabulary", 4_000_000, is_optional=True),
    "max_source_length": _size(512, "longest source in pieces; the translator cuts longer text", 1_000_000),
    "encoder_layers": _size(None, "blocks in the encoder, by default num-layers", 512, is_optional=True),
    "decoder_layers": _size(None, "blocks in the decoder, by default num-layers", 512, is_optional=True),
    "positions": _slot("positions", "how the model knows the positions of tokens"),
    "attention": _slot("attention", "self-attention of encoder and decoder"),
    "decoder_attention": _slot("attention", "self-attention of the decoder, by default as in the encoder", True),
    "score": _slot("score", "the function that scores a query against a key"),
    "residual": _slot("residual", "where the norm stands around a sub-layer"),
    "norm": _slot("norm", "the normalization"),
    "feed_forward": _slot("feed_forward", "the network that is applied to each position"),
    "activation": _slot("activation", "the activation in the feed-forward network"),
    "stack": _slot("stack", "how the blocks are stacked"),
    "attention_bias": _switch(False, "biases in the projections of attention"),
    "output_bias": _switch(False, "a bias added to the logits"),
    "fixed_output_bias": _switch(False, "training leaves that bias as it is"),
    "tied_output": _switch(True, "the output layer shares the target embedding's matrix"),
    "embedding_scale": Option(
        None, "factor on embeddings, by default the square root of hidden-dim", float, least=1e-6, most=1e6,
        is_optional=True,
    ),
    "embedding_norm": _switch(False, "a norm after the sum of embedding and position"),
    "num_control_ids": Option(4, "ids that are not text: pad, unknown, start, end, then others", least=4, most=10_000),
}  # fmt: skip
# A model of one stack has these arguments less, and its `context_length`.
_OF_TWO_STACKS = {
    "source_vocabulary_size", "max_source_length", "encoder_layers", "decoder_layers", "decoder_attention",
}  # fmt: skip
ONE_STACK: dict[str, Option] = {
    **{name: option for name, option in ARGUMENTS.items() if name not in _OF_TWO_STACKS},
    "context_length": Option(256, "the most positions that the model takes at once", least=2, most=1_000_000),
}
_OF_IDS = {
    "vocabulary_size", "output_bias", "fixed_output_bias", "tied_output", "embedding_scale", "num_control_ids",
    "context_length",
}  # fmt: skip
# The parts of a Vision Transformer (arXiv 2010.11929, 3.1), where they differ from those of other models.
VISION: Config = {
    "positions": "learned", "residual": "pre_norm", "activation": "gelu", "attention_bias": True,
}  # fmt: skip
# The sizes are those of ViT-B/16.
IMAGES: dict[str, Option] = {
    **{name: option for name, option in ONE_STACK.items() if name not in _OF_IDS},
    **{name: replace(ONE_STACK[name], default=default) for name, default in VISION.items()},
    "image_size": _size(224, "height and width of an image in pixels; images of other sizes are resized", 4_096),
    "patch_size": _size(16, "height and width of a patch in pixels", 4_096),
    "channels": _size(3, "channels of an image: 1 for grey, 3 for colour", 1_024),
    "stem": _slot("stem", "how an image becomes vectors of patches"),
    "pixel_mean": _of_channels("subtracted from each pixel, which goes from 0 to 1", -10, 10),
    "pixel_std": _of_channels("what remains of a pixel is divided by this", 1e-3, 1e3),
}


class Kind(NamedTuple):
    """A kind of model.

    Args:
        home: the class, as "module:class".
        arguments: its arguments by name.
        can_answer: whether a run of it may learn from pairs of a text and its answer, in one sequence.
    """

    home: str
    arguments: dict[str, Option]
    can_answer: bool = False


def _labels(help: str) -> Option:
    return Option(None, help, least=2, most=1_000_000, is_optional=True)


def _ends(config: Config) -> Fault | None:
    """Returns why the ids that end a text do not fit a complete configuration, or None."""
    ends = config["end_ids"] if isinstance(config["end_ids"], list) else [config["end_ids"]]
    if ends[0] == 3 and len({*ends}) == len(ends) and max(ends) < config["vocabulary_size"]:
        return None
    sizes = {"end_ids": f"{ends!r:.60}", "vocabulary_size": config["vocabulary_size"]}
    return Fault("{end_ids} must be 3, or 3 and others, each once and less than {vocabulary_size}", sizes)


KINDS = {
    "translator": Kind("keras_transformer.models.transformer:Transformer", ARGUMENTS),
    "language-model": Kind(
        "keras_transformer.models.stack_models:LanguageModel",
        {**ONE_STACK, "end_ids": Option(3, "ids that end a text", least=3, most=4_000_000, is_list=True)},
        can_answer=True,
    ),
    "encoder": Kind(
        "keras_transformer.models.classifiers:Encoder",
        {
            **ONE_STACK,
            "num_labels": _labels("labels of a text"),
            "head_layer": _switch(False, "a layer between the last state and the logits, as in BERT"),
            "head_activation": _slot("activation", "the activation of that layer before labels, by default tanh", True),
            "first_state": _switch(False, "the vector of a text is its first state, and not the mean of all"),
            "unit_vectors": _switch(False, "vectors of texts have the length 1"),
        },
    ),
    "image-classifier": Kind(
        "keras_transformer.models.classifiers:ImageClassifier", {**IMAGES, "num_labels": _labels("labels of an image")}
    ),
    "sequence-encoder": Kind("keras_transformer.models.stack_models:SequenceEncoder", ONE_STACK),
}


DEFAULT_KIND = next(iter(KINDS))  # for configurations that name none


def kind_at(home: str) -> str | None:
    """Returns the kind of the models of a class, "module:class"; None if there is none."""
    return next((name for name, kind in KINDS.items() if kind.home == home), None)


def part(slot: str, value: PartConfig | type, argument: str = "") -> Config:
    """Checks a part and returns its complete configuration: its name and all of its options.

    Args:
        slot: a key of `ALL_SLOTS`.
        value: a name, a dictionary of name and options, or a class of your own, which has no options.
        argument: the argument's name in error messages; by default the slot's.

    Raises:
        Fault: the slot has no such part, the part has no such option, or an option's value is not allowed.
    """
    argument = argument or slot
    value = _name_of(slot, value, argument) if isinstance(value, type) else value
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        raise Fault(f"{{{argument}}} must be a name, or a dictionary with a name", {argument: f"{value!r:.60}"})
    name = given["name"]
    if name not in ALL_SLOTS[slot]:
        raise Unknown(f"{{{argument}}} must be one of {', '.join(ALL_SLOTS[slot])}", {argument: f"{name!r:.60}"})
    options = ALL_SLOTS[slot][name].options
    if unknown := sorted(map(str, given.keys() - {"name", *options})):
        known = f"has the options {', '.join(options)}" if options else "has no options"
        raise Unknown(f"{{{argument}}}: {name!r} {known}", {"": f"{unknown[0]:.60}"})
    checked = {
        key: option.checked(f"{argument}:{key}", given.get(key, option.default)) for key, option in options.items()
    }
    return {"name": name, **checked}


def _name_of(slot: str, part_class: type, argument: str) -> str:
    """Returns the name of a class in a slot; a new class is put there."""
    home = home_of(part_class)
    for name, one in ALL_SLOTS[slot].items():
        if one.home == home:
            if one.own_class is not None:  # a cell of a notebook that ran again has made another class
                ALL_SLOTS[slot][name] = replace(one, own_class=part_class)
            return name
    if (name := part_class.__name__) in ALL_SLOTS[slot]:
        raise Fault(f"{{{argument}}} must have a name of its own", {argument: f"another class {name!r:.60}"})
    ALL_SLOTS[slot][name] = Part(home, "a class of your own", "", own_class=part_class)
    return name


def parse(text: str, slot: str, argument: str = "") -> Config:
    """Reads a part from a command line: `name` or `name:option=value,option=value`.

    Returns:
        The part's complete configuration.

    Raises:
        Fault: see `part`; or an option is given twice.
    """
    name, _, rest = text.partition(":")
    options = ALL_SLOTS[slot][name].options if name in ALL_SLOTS[slot] else {}
    given: Config = {"name": name}
    for pair in filter(None, rest.split(",")):
        key, _, value = pair.partition("=")
        if key in given:
            raise Fault(f"{{{argument or slot}}}: an option may be given once", {"": f"{text!r:.60}"})
        given[key] = options[key].parsed(value) if key in options else value
    return part(slot, given, argument)


def spelled(value: PartConfig, slot: str) -> str:
    """Spells a part as on a command line, without options at their defaults.

    Raises:
        Fault: see `part`.
    """
    config = part(slot, value)
    options = ALL_SLOTS[slot][config["name"]].options
    given = [f"{key}={config[key]}" for key, option in options.items() if config[key] != option.default]
    return ":".join([config["name"], *([",".join(given)] if given else [])])


def row(slot: str, value: PartConfig) -> Part:
    """Returns the part's row in the table.

    Raises:
        Fault: see `part`.
    """
    return ALL_SLOTS[slot][part(slot, value)["name"]]


def complete(config: Config, kind: str = DEFAULT_KIND) -> Config:
    """Checks the arguments of a model and fills in the defaults. Parts become complete dictionaries.

    Args:
        config: the arguments.
        kind: the model's kind, a key of `KINDS`.

    Raises:
        Fault: an argument is unknown, its value is not allowed, or two arguments contradict each other.
    """
    arguments = KINDS[kind].arguments
    if unknown := sorted(map(str, config.keys() - arguments.keys())):
        raise Unknown(f"expected arguments among {', '.join(arguments)}", {"": f"{unknown[0]!r:.60}"})
    config = {name: _checked(name, option, config.get(name, option.default)) for name, option in arguments.items()}
    if config["key_dim"] is None and config["hidden_dim"] % config["num_heads"]:
        sizes = {name: config[name] for name in ("num_heads", "hidden_dim")}
        raise Fault("{num_heads} must divide {hidden_dim}, or {key_dim} must be given", sizes)
    if "vocabulary_size" in config and config["num_control_ids"] >= config["vocabulary_size"]:
        sizes = {name: config[name] for name in ("vocabulary_size", "num_control_ids")}
        raise Fault("{vocabulary_size} must be larger than {num_control_ids}", sizes)
    if "end_ids" in config and (fault := _ends(config)):
        raise fault
    for name, option in arguments.items():
        if option.slot and config[name] is not None and (fault := row(option.slot, config[name]).fault(config)):
            fault.arguments.append(name)
            raise fault
    return config


def _checked(name: str, option: Option, value: Any) -> Any:
    """Returns the argument's value if it is allowed; a part as its complete configuration."""
    if option.slot and not (value is None and option.is_optional):
        return part(option.slot, value, name)
    return option.checked(name, value)


def depths(config: Config) -> tuple[int, ...]:
    """Returns the number of layers of each stack, or of the only one, from a complete configuration."""
    stacks = [name for name in ("encoder_layers", "decoder_layers") if name in config]
    return tuple(config[name] or config["num_layers"] for name in stacks) or (config["num_layers"],)


def table() -> str:
    """Returns the family as a table in Markdown."""
    lines = ["| slot | variant | what it is | source |", "| --- | --- | --- | --- |"]
    for slot, parts in SLOTS.items():
        for name, each in parts.items():
            options = "".join(f", `{key}` ({option.default})" for key, option in each.options.items())
            lines.append(f"| `{slot}` | `{name}` | {each.help}{options} | {each.source} |")
    return "\n".join(lines) + "\n"
