"""The two halves of a translator, and the step of a language model, for a caller's own loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from keras_transformer import ops
from keras_transformer.decoding.ids import limits_of, permitted
from keras_transformer.layers.cache import KeysValues
from keras_transformer.layers.masks import HIDDEN

from ..signatures import TrainedRun
from .graph import Model, ValueInfo
from .recorded import Recorded
from .recorder import Recorder, model_of, recorder_of

SOURCE = ValueInfo("source_ids", np.int32, ["batch", "source"])
LIMIT = ValueInfo("limit", np.int32, ["batch"])
TOKENS, INDEX = ValueInfo("token_ids", np.int32, ["batch", "beams"]), ValueInfo("index", np.int32, [])
BIAS = ValueInfo("memory_bias", np.float32, ["batch", 1, 1, "source"])


def encoder_model(run: TrainedRun, precision: str) -> Model:
    """The first half: `source_ids` (batch, source) int32 → the inputs of `step` that depend on the source alone, and
    `limit` (batch,) int32, the most tokens to emit.
    """
    r, model = recorder_of(run.model, precision), run.model
    with ops.on(r):
        size = model.source_vocabulary_size or model.vocabulary_size
        ids = permitted(r.input(SOURCE), size, model.max_source_length)
        cache = model.init_cache(model.encode(ids), ids, 1, 1)["sentences"]
        keys = [ops.swapaxes(each.keys, -1, -2) for each in cache["memory"]]
        values = [each.values for each in cache["memory"]]
        bias = (1.0 - ops.cast(cache["mask"], "float32"))[:, None, None] * HIDDEN
        outputs = [*zip(memory_infos(model, precision), [*keys, *values], strict=True), (BIAS, bias)]
        return model_of(r, [SOURCE], [*outputs, (LIMIT, limits_of(ids, None))])


def memory_infos(model: Any, precision: str) -> list[ValueInfo]:
    """The keys of all layers (batch, heads, key_dim, source), then the values (batch, heads, source, key_dim)."""
    heads = [block.cross_attention.num_groups for block in model.decoder_stack.blocks_in_order()]
    dtype, size = recorder_of(model, precision).compute_dtype, model.key_dim
    return [
        ValueInfo(f"memory_{name}_{layer}", dtype, ["batch", count, *axes])
        for name, axes in (("key", [size, "source"]), ("value", ["source", size]))
        for layer, count in enumerate(heads)
    ]


def step_model(run: TrainedRun, precision: str) -> Model:
    """The second half, or the step of a language model: one position, for any number of hypotheses of each sentence.

    Inputs: `token_ids` (batch, beams) int32, the tokens at the position; the start id, 2, at the first position.
    `index` () int32, the position, from 0. The cache of each layer i: `past_key_i`, `past_value_i` (rows, key heads,
    past, key_dim), or what else the layer's attention keeps; the outputs of the step before. At the first step it holds
    no position: past is 0, and all numbers are 0 where no axis is called past. rows = batch · beams, the beams of a
    sentence one after the other. All outputs of `encoder` except `limit`.

    Outputs: `logits` (batch, beams, vocabulary) float32 of the tokens at `index` + 1, and the cache: `present_key_i`,
    `present_value_i`. A beam search must reorder their rows, as it reorders its beams, before the next step.

    The search of the other files emits no id below the model's `num_control_ids` but the end, 3; the caller must do the
    same. The number is in the file's metadata, under "model".
    """
    r, model = recorder_of(run.model, precision), run.model
    with ops.on(r):
        token_ids, index = r.input(TOKENS), r.input(INDEX)
        memories, sentences = _memory_inputs(r, model, precision) if hasattr(model, "encode") else ([], [])
        stack = model.decoder_stack if sentences else model.stack
        empty = stack.init_cache(r.zeros((token_ids.sizes[0], 1, model.hidden_dim)), 1, r.num_positions)["beams"]
        pasts: dict[str, ValueInfo] = {}
        cache = {
            "beams": mapped(lambda path, one: _past(r, path, one, token_ids, pasts), empty),
            "sentences": sentences,
        }
        logits, cache = model.step(ops.cast(token_ids, "int64"), cache, ops.cast(index, "int64"))
        presents: dict[str, Recorded] = {}
        mapped(lambda path, one: presents.update({path: one}), cache["beams"])
        outputs = [(ValueInfo("logits", np.float32, ["batch", "beams", model.vocabulary_size]), logits)]
        for path in in_order(pasts):
            shape = ["present" if size == "past" else size for size in pasts[path].shape]
            value = ops.reshape(presents[path], (-1, *ops.shape(presents[path])[2:]))
            outputs.append((ValueInfo(f"present_{path}", pasts[path].dtype, shape), value))
        return model_of(r, [TOKENS, INDEX, *(pasts[path] for path in in_order(pasts)), *memories], outputs)


def _memory_inputs(r: Recorder, model: Any, precision: str) -> tuple[list[ValueInfo], dict[str, Any]]:
    """The inputs that the encoder gives, and the part of the model's cache that they make."""
    infos = memory_infos(model, precision)
    values, bias = [r.input(info) for info in infos], r.input(BIAS)
    pairs = zip(values[: len(values) // 2], values[len(values) // 2 :], strict=True)
    memory = [KeysValues(ops.swapaxes(keys, -1, -2), of_keys) for keys, of_keys in pairs]
    return [*infos, BIAS], {"memory": memory, "mask": ops.greater(bias, HIDDEN / 2)[:, 0, 0]}


def _past(r: Recorder, path: str, empty: Any, token_ids: Recorded, pasts: dict[str, ValueInfo]) -> Recorded:
    """A tensor (B, K, ...) of the cache as an input (rows, ...), which is added to `pasts` under its path."""
    sizes = empty.sizes[2:]
    axes = ["past" if isinstance(size, int) and size == 0 else size for size in sizes]
    pasts[path] = ValueInfo(f"past_{path}", empty.dtype, ["rows", *axes])
    value = r.input(pasts[path])
    return r.reshape(value, (*token_ids.sizes, *value.sizes[1:]))


def mapped(function: Callable[[str, Any], Any], beams: Sequence[Any]) -> list[Any]:
    """The caches of all layers with a function of each tensor and its path in the file, such as "key_0"."""

    def of(nest: Any, path: list[str], layer: int) -> Any:
        if isinstance(nest, dict):
            return {name: of(one, [*path, name], layer) for name, one in nest.items()}
        if hasattr(nest, "_fields"):
            fields = zip(nest._fields, nest, strict=True)
            return type(nest)(*(of(one, [*path, name.removesuffix("s")], layer) for name, one in fields))
        if isinstance(nest, list | tuple):
            return [of(one, [*path, str(place)], layer) for place, one in enumerate(nest)]
        return function("_".join([*path, str(layer)]), nest)

    return [of(one, [], layer) for layer, one in enumerate(beams)]


def in_order(paths: dict[str, Any]) -> list[str]:
    """The keys of all layers, then the values of all layers, and so on."""
    stems = [path.rpartition("_")[0] for path in paths]
    return [path for stem in dict.fromkeys(stems) for path, own in zip(paths, stems, strict=True) if own == stem]
