"""Lists the parts of the family: for each slot of a model, its variants. Keras is not imported.

To add a variant to a slot, write a class and a row here. A class has the methods of the first class in its slot, or of
their base (`Positions`, `Residual`, `Score`). It takes its operations from `keras_transformer.ops`, so every
format has it.
"""

from __future__ import annotations

from collections.abc import Callable

from keras_transformer.spec.options import Config, Fault, Option, Part
from keras_transformer.spec.search_options import longest

LAYERS = "keras_transformer.layers"
MAX_ATTENTIVE_SIZE = 64  # pixels have 16 million scores then, for each image


def _needs_even_width(what: str) -> Callable[[Config], Fault | None]:
    return lambda model: _odd("hidden_dim", model["hidden_dim"], what)


def _odd(name: str, size: int, what: str) -> Fault | None:
    return Fault(f"{{{name}}} must be even for {what}", {name: size}) if size % 2 else None


def _needs_two_stacks_to_separate(model: Config) -> Fault | None:
    if "max_source_length" in model or not model["positions"]["separate"]:
        return None
    return Fault("{positions:separate} needs an encoder and a decoder", {"": "separate=True for a model of one stack"})


def _needs_whole_groups(model: Config) -> Fault | None:
    for argument in ("attention", "decoder_attention"):
        groups, heads = (model.get(argument) or {}).get("num_key_value_heads"), model["num_heads"]
        if groups and heads % groups:
            name = f"{argument}:num_key_value_heads"
            return Fault(f"{{{name}}} must divide {{num_heads}}", {name: groups, "num_heads": heads})
    return None


def _needs_even_key_dim(model: Config) -> Fault | None:
    return _odd("key_dim", key_dim(model), f"{model['positions']['name']} positions")


def _needs_a_range_of_waves(model: Config) -> Fault | None:
    low, high = (model["positions"][f"{name}_freq_factor"] for name in ("low", "high"))
    if high > low:
        return _needs_even_key_dim(model)
    return Fault("{positions:high_freq_factor} must be greater than {positions:low_freq_factor}", high_freq_factor=high)


def _needs_as_many_experts(model: Config) -> Fault | None:
    received = {f"feed_forward:{name}": model["feed_forward"][name] for name in ("top_k", "num_experts")}
    if model["feed_forward"]["top_k"] <= model["feed_forward"]["num_experts"]:
        return None
    return Fault("{feed_forward:top_k} must be at most {feed_forward:num_experts}", received)


def _needs_keys_in_range(model: Config) -> Fault | None:
    if "image_size" in model:  # only a decoder scales keys
        return _needs_even_key_dim(model)
    name = "max_source_length" if "max_source_length" in model else "context_length"
    length, scale_base = model[name], model["positions"]["scale_base"]
    if length > 4 * scale_base:
        return Fault(
            f"{{{name}}} must be at most four times {{positions:scale_base}}, {4 * scale_base}: later keys would leave "
            "the range of float16",
            {name: length},
        )
    if name == "max_source_length" and longest(length) > 7 * scale_base:  # a translation may be longer than its source
        return Fault(
            f"{{positions:scale_base}} must be at least a seventh of the longest translation, {longest(length)}: later "
            "keys would leave the range of float16",
            scale_base=scale_base,
        )
    return _needs_even_key_dim(model)


def _needs_distances_for_buckets(model: Config) -> Fault | None:
    num_buckets, max_distance = (model["positions"][name] for name in ("num_buckets", "max_distance"))
    if num_buckets % 2:
        return Fault("{positions:num_buckets} must be even", num_buckets=num_buckets)
    if max_distance > num_buckets // 2:
        return None
    text = f"{{positions:max_distance}} must be greater than half of {{positions:num_buckets}}, {num_buckets // 2}"
    return Fault(text, max_distance=max_distance)


def _needs_full_attention(model: Config) -> Fault | None:
    for argument in ("attention", "decoder_attention"):
        name = (model.get(argument) or model["attention"])["name"]
        if name != "full":
            text = f"{{{argument}}} must be 'full' for the score 'location', which needs the positions of all keys"
            return Fault(text, {argument: repr(name)})
    return None


def _needs_added_positions_and_layers(model: Config) -> Fault | None:
    allowed = {"positions": ("sinusoidal", "learned", "none"), "stack": ("layers",)}
    for slot, names in allowed.items():
        name = model[slot]["name"]
        if name not in names:
            return Fault(f"{{{slot}}} must be {' or '.join(names)} with compressed attention", {slot: repr(name)})
    return None


def _needs_whole_patches(model: Config) -> Fault | None:
    channels = model["channels"]
    sizes = {name: model[name] for name in ("patch_size", "image_size")}
    if model["image_size"] % model["patch_size"]:
        return Fault("{patch_size} must divide {image_size}", sizes)
    for name in ("pixel_mean", "pixel_std"):
        if isinstance(model[name], list) and len(model[name]) != channels:
            return Fault(f"{{{name}}} must be one number, or one for each channel, {channels}", {name: model[name]})
    return None


def _needs_few_pixels(model: Config) -> Fault | None:
    if model["image_size"] > MAX_ATTENTIVE_SIZE:
        most = f"{MAX_ATTENTIVE_SIZE} for an attentive stem, where every pixel looks at every other"
        text = f"{{image_size}} must be at most {most}"
        return Fault(text, image_size=model["image_size"])
    return _needs_whole_patches(model)


def _local_first(config: Config, layer: int) -> Config:
    """Lets local and compressed layers take turns (arXiv 1801.10198, 4.2.3)."""
    return config if layer % 2 else {"name": "local", "width": config["width"]}


_WIDTH_OF_BLOCKS = {"width": Option(256, "positions in a block of local attention", least=1, most=1_000_000)}
_BASE = {"base": Option(10_000.0, "the longest wavelength is nearly 2 pi times this", float, least=1, most=1e9)}
_INTERPOLATION = {
    "interpolation": Option(
        1.0, "divides every position, for inputs longer than in training", float, least=1, most=1_000
    )
}
_STRETCH = {
    **_INTERPOLATION,
    "original_length": Option(
        None, "positions in training; short waves are then not divided, as in Llama 3.1", least=1, most=1_000_000,
        is_optional=True,
    ),
    "low_freq_factor": Option(1.0, "waves as long as original_length / this are divided", float, least=1e-3, most=1e3),
    "high_freq_factor": Option(4.0, "waves up to original_length / this are not", float, least=1e-3, most=1e4),
}  # fmt: skip
_OFFSET = {"offset": Option(0, "added to every position", least=0, most=1_000)}

_EXPERTS = {
    "num_experts": Option(8, "feed-forward networks", least=1, most=256),
    "top_k": Option(2, "networks that a position goes through", least=1, most=256),
    "gated": Option(False, "gated networks without biases, as in Mixtral", bool),
    "alpha": Option(0.01, "the weight of the load-balancing loss", float, least=0.0, most=0.5),
}
_PONDERING = {
    "adaptive": Option(True, "adaptive computation time: each position halts by itself", bool),
    "epsilon": Option(0.01, "a position halts when its probabilities sum to 1 - epsilon", float, least=0.0, most=0.5),
    "ponder_cost": Option(0.01, "the weight of the mean of steps + remainder in the loss", float, least=0.0, most=0.5),
}
# The first part of a slot is its default.
SLOTS: dict[str, dict[str, Part]] = {
    "positions": {
        "sinusoidal": Part(
            f"{LAYERS}.positions:SinusoidalPositions", "sine and cosine waves, added to the embedding", "paper, 3.5",
            {**_OFFSET, **_INTERPOLATION}, _needs_even_width("sinusoidal positions"),
        ),
        "learned": Part(
            f"{LAYERS}.positions:LearnedPositions", "a learned vector for each position, added to the embedding",
            "paper, table 3 row E",
            {**_OFFSET, "separate": Option(False, "encoder and decoder have vectors of their own, as in BART", bool)},
            _needs_two_stacks_to_separate,
        ),
        "none": Part(
            f"{LAYERS}.positions:NoPositions", "nothing: only the decoder's mask tells the order", "arXiv 2203.16634"
        ),
        "rotary": Part(
            f"{LAYERS}.positions:RotaryPositions", "queries and keys rotated by their positions", "arXiv 2104.09864",
            {**_BASE, **_STRETCH}, _needs_a_range_of_waves,
        ),
        "alibi": Part(
            f"{LAYERS}.score:AlibiPositions", "logits less the distance times a slope for each head",
            "arXiv 2108.12409",
        ),
        "buckets": Part(
            f"{LAYERS}.score:BucketPositions", "T5's learned bias for each head and bucket of distances",
            "arXiv 1910.10683",
            {
                "num_buckets": Option(32, "buckets of distances, an even number", least=4, most=1_024),
                "max_distance": Option(128, "the distance where the last bucket begins", least=3, most=100_000),
            },
            _needs_distances_for_buckets,
        ),
        "xpos": Part(
            f"{LAYERS}.positions:XposPositions", "rotary, and in the decoder a decay with the distance",
            "arXiv 2212.10554",
            {**_BASE, "scale_base": Option(512, "the distance of one decay", least=1, most=1_000_000)},
            _needs_keys_in_range,
        ),
    },
    "attention": {
        "full": Part(
            f"{LAYERS}.attention:MultiHeadAttention", "multi-head attention over all positions",
            "paper, 3.2.2; groups: arXiv 2305.13245",
            {
                "num_key_value_heads": Option(
                    None, "heads of keys and values, each for a group of query heads; by default as many as heads",
                    least=1, most=1024, is_optional=True,
                )
            },
            _needs_whole_groups,
        ),
        "windowed": Part(
            f"{LAYERS}.windowed:WindowedAttention",
            "a position sees `width` keys: around itself in the encoder, itself and those before in the decoder",
            "paper, 4",
            {"width": Option(33, "keys that a position sees, itself included", least=1, most=1_000_000)},
        ),
        "local": Part(
            f"{LAYERS}.windowed:LocalAttention", "attention within blocks of `width` positions, each block alone",
            "arXiv 1801.10198, 4.2.3", _WIDTH_OF_BLOCKS,
        ),
        "compressed": Part(
            f"{LAYERS}.compressed:CompressedAttention",
            "a convolution makes one key of three; layers of local attention come between", "arXiv 1801.10198, 4.2.3",
            _WIDTH_OF_BLOCKS, _needs_added_positions_and_layers, _local_first,
        ),
    },
    "score": {
        "scaled_dot": Part(
            f"{LAYERS}.score:ScaledDot", "dot product of query and key, divided by the square root of their size",
            "paper, equation 1",
        ),
        "dot": Part(f"{LAYERS}.score:Dot", "dot product of query and key", "arXiv 1508.04025, 3.1"),
        "general": Part(
            f"{LAYERS}.score:General", "dot product of query and key with a learned matrix between them",
            "arXiv 1508.04025, 3.1",
        ),
        "additive": Part(
            f"{LAYERS}.score:Additive", "a network with one hidden layer of query and key", "arXiv 1409.0473, A.1.2"
        ),
        "location": Part(
            f"{LAYERS}.score:Location", "a learned vector for each position of a key; keys are not compared",
            "arXiv 1508.04025, 3.1",
            {"max_length": Option(1024, "positions with a vector; later keys are hidden", least=1, most=1_000_000)},
            _needs_full_attention,
        ),
    },
    "residual": {
        "post_norm": Part(f"{LAYERS}.layer:PostNorm", "norm after the residual sum", "paper, 3.1"),
        "pre_norm": Part(
            f"{LAYERS}.layer:PreNorm", "norm before the sub-layer, and another after the stack", "arXiv 2002.04745"
        ),
        "sub_norm": Part(
            f"{LAYERS}.layer:SubNorm", "pre_norm, with another norm before the last product",
            "arXiv 2210.06423 (Magneto)",
        ),
        "none": Part(
            f"{LAYERS}.layer:NoResidual", "post_norm without the residual sum, for comparison", "paper, 3.1"
        ),
    },
    "norm": {
        "layer": Part(
            f"{LAYERS}.layer:LayerNorm", "layer normalization", "arXiv 1607.06450",
            {"epsilon": Option(1e-6, "added to the variance", float, least=1e-12, most=1.0)},
        ),
        "rms": Part(
            f"{LAYERS}.layer:RmsNorm", "division by the root mean square", "arXiv 1910.07467",
            {"epsilon": Option(1e-6, "added to the mean of the squares", float, least=1e-12, most=1.0)},
        ),
    },
    "feed_forward": {
        "plain": Part(
            f"{LAYERS}.feed_forward:FeedForward", "two matrix products with the activation between them", "paper, 3.3"
        ),
        "gated": Part(
            f"{LAYERS}.feed_forward:GatedFeedForward", "a product times an activated gate (silu: SwiGLU, gelu: GEGLU)",
            "arXiv 2002.05202", {"use_bias": Option(False, "a bias for each product", bool)},
        ),
        "experts": Part(
            f"{LAYERS}.feed_forward:Experts", "several networks, of which a router chooses some for each position",
            "arXiv 2101.03961, arXiv 2401.04088", _EXPERTS, _needs_as_many_experts,
        ),
    },
    "activation": {
        "relu": Part(f"{LAYERS}.feed_forward:Relu", "max(0, x)", "paper, equation 2"),
        "gelu": Part(
            f"{LAYERS}.feed_forward:Gelu", "x times the normal distribution's probability", "arXiv 1606.08415"
        ),
        "gelu_tanh": Part(
            f"{LAYERS}.feed_forward:GeluTanh", "gelu, computed by a hyperbolic tangent", "arXiv 1606.08415, section 2"
        ),
        "silu": Part(f"{LAYERS}.feed_forward:Silu", "x times its sigmoid, also called swish", "arXiv 1702.03118"),
    },
    "stack": {
        "layers": Part(f"{LAYERS}.stack:Stack", "a block for each layer, each with its own weights", "paper, 3.1"),
        "universal": Part(
            f"{LAYERS}.stack:UniversalStack",
            "one block, applied once for each layer; before each time, position and step are added", "arXiv 1807.03819",
            _PONDERING, _needs_even_width("a universal stack"),
        ),
    },
}  # fmt: skip

# The slots that a classifier of images has besides.
IMAGE_SLOTS: dict[str, dict[str, Part]] = {
    "stem": {
        "patches": Part(
            f"{LAYERS}.patches:Patches", "a linear projection of each patch of the image", "arXiv 2010.11929, 3.1",
            fault=_needs_whole_patches,
        ),
        "attentive": Part(
            f"{LAYERS}.patches:AttentiveStem",
            "a convolution and self-attention of all pixels come before the patches", "arXiv 1805.08318, 3",
            {"filters": Option(16, "channels of the convolution", least=1, most=1_024)},
            _needs_few_pixels,
        ),
    },
}  # fmt: skip


def key_dim(config: Config) -> int:
    """Returns the size of a head, from a complete configuration."""
    return config["key_dim"] or config["hidden_dim"] // config["num_heads"]
