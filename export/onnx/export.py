"""Writes the ONNX artefacts of a run: the whole search, and its two halves for callers with a loop of their own."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import keras
import numpy as np

from keras_transformer import ops
from keras_transformer.checking.signatures import IDS, Output, Outputs, Signature, limits_of, valid_ids, with_a_column
from keras_transformer.decoding.computations import Aligned
from keras_transformer.layers.cache import KeysValues
from keras_transformer.layers.layer import Recordable
from keras_transformer.layers.score import HIDDEN
from keras_transformer.models.model_factory import parts_of
from keras_transformer.models.transformer import members_of
from keras_transformer.ops import Tensor
from keras_transformer.runs.export_folder import RECORDER, TF2ONNX
from keras_transformer.spec.search_options import longest
from keras_transformer.tasks.translation.signature import beginnings, translate_ids
from keras_transformer.text.tokenizer import PAD, Tokenizer

from ..artefacts import Decoding, TrainedRun, model_of_precision, require_precision, stem
from .graph import TEXT, Model, ValueInfo, write_model
from .operations import OPERATIONS
from .overrides import KERAS_LAYERS, OVERRIDES
from .tensorflow_graph import ConvertedAnswer, converter_name
from .text_graph import detokenized, tokenized
from .tracer import PRECISION, Nest, Size, SymbolicTensor, Tracer, Untraceable, model_of

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel

SOURCE = ValueInfo("source_ids", np.int32, ["batch", "source"])
PREFIX = ValueInfo("prefix_ids", np.int32, ["batch", "prefix"])
LIMIT = ValueInfo("limit", np.int32, ["batch"])
TOKENS, INDEX = ValueInfo("token_ids", np.int32, ["batch", "beams"]), ValueInfo("index", np.int32, [])
POSITIONS = ValueInfo("token_ids", np.int32, ["batch", "beams_or_positions"])
STARTS = ValueInfo("start", np.int32, ["starts"], default=np.zeros(1, "int32"))
LOOKS = ValueInfo("alignment", np.int32, ["batch", "beams"])
BIAS = ValueInfo("memory_bias", np.float32, ["batch", 1, 1, "source"])


def tracer_of(model: FamilyModel, precision: str) -> Tracer:
    """A tracer for a model, with tables of all its positions."""
    if hasattr(model, "max_source_length"):
        num_positions = max(longest(member.max_source_length) for member in members_of(model))
    elif hasattr(model, "image_shape"):
        arguments = model.arguments()
        num_positions = (arguments["image_size"] // arguments["patch_size"]) ** 2 + 1
    else:
        num_positions = model.context_length
    return new_tracer(precision, num_positions, getattr(model, "vocabulary_size", 0))


def new_tracer(precision: str, num_positions: int, num_tokens: int = 0) -> Tracer:
    """A tracer that writes all operations and layers which have a form in ONNX here; see `Tracer`."""
    return Tracer(PRECISION[precision], num_positions, num_tokens, OPERATIONS, OVERRIDES, KERAS_LAYERS)


def encoder_model(run: TrainedRun, precision: str) -> Model:
    """The first half: `source_ids` (batch, source) int32 → the inputs of `step` that depend on the source alone, and
    `limit` (batch,) int32, the most tokens to emit.
    """
    r, model = tracer_of(run.model, precision), run.model
    with ops.on(r):
        size = model.source_vocabulary_size or model.vocabulary_size
        ids = valid_ids(r.input(SOURCE), size, model.max_source_length)
        cache = model.init_cache(model.encode(ids), ids, 1, 1)["sentences"]
        keys = [ops.swapaxes(each.keys, -1, -2) for each in cache["memory"]]
        values = [each.values for each in cache["memory"]]
        bias = (1.0 - ops.cast(cache["mask"], "float32"))[:, None, None] * HIDDEN
        outputs = [*zip(memory_infos(model, precision), [*keys, *values], strict=True), (BIAS, bias)]
        return model_of(r, [SOURCE], [*outputs, (LIMIT, limits_of(ids))])


def memory_infos(model: FamilyModel, precision: str) -> list[ValueInfo]:
    """The keys of all layers (batch, heads, key_dim, source), then the values (batch, heads, source, key_dim)."""
    heads = [block.cross_attention.num_groups for block in model.decoder_stack.blocks_in_order()]
    dtype, size = PRECISION[precision].dtype, model.key_dim
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

    Where the second axis of `token_ids` is called beams_or_positions, a language model also takes several positions of
    each sentence at once, from `index` on, such as those of a prompt: then rows = batch. It mostly has one input more,
    which may be left out: `start` (rows,) int32, the first place of each row in the cache, by default 0. What stands
    before it is not seen, and a row's positions count from there. So texts of different lengths take one step together.

    Outputs: `logits` (batch, beams, vocabulary) float32 of the tokens at `index` + 1, and the cache: `present_key_i`,
    `present_value_i`. A beam search must reorder their rows, as it reorders its beams, before the next step. The last
    output of a translator is `alignment` (batch, beams) int32: where in `source_ids` it looks for the token.

    Like the other files, the caller must emit no id below `num_control_ids` (metadata, "model") but the end, 3.
    """
    r, model = tracer_of(run.model, precision), run.model
    with ops.on(r):
        tokens = POSITIONS if getattr(model, "supports_prefill", False) else TOKENS
        given, index = r.input(tokens), ops.cast(r.input(INDEX), "int64")
        beams, starts = [] if tokens is POSITIONS else given.sizes, [STARTS] if takes_starts(model) else []
        memories, sentences = _memory_inputs(r, model, precision) if hasattr(model, "encode") else ([], [])
        stack = model.decoder_stack if sentences else model.stack
        empty = stack.init_cache(r.zeros((given.sizes[0], 1, model.hidden_dim)), 1, r.num_positions)["beams"]
        pasts: dict[str, ValueInfo] = {}
        cache = {"beams": mapped(lambda path, one: _past(r, path, one, beams, pasts), empty), "sentences": sentences}
        token_ids = ops.cast(given, "int64")
        if tokens is POSITIONS:
            rows = keras.tree.flatten(cache["beams"])[0].sizes[0]
            token_ids, index = _positions(token_ids, index, rows)
            r.starts = r.broadcast_to(ops.cast(r.input(STARTS), "int64"), [rows]) if starts else None
        logits, cache, *places = (model.aligned_step if sentences else model.step)(token_ids, cache, index)
        logits = ops.reshape(logits, (*given.sizes, model.vocabulary_size))
        outputs = [(ValueInfo("logits", np.float32, [*tokens.shape, model.vocabulary_size]), logits)]
        outputs += [*_presents(cache["beams"], pasts), *((LOOKS, one) for one in places)]
        return model_of(r, [tokens, INDEX, *(pasts[path] for path in in_order(pasts)), *memories, *starts], outputs)


def takes_starts(model: FamilyModel) -> bool:
    """Tells whether rows of a cache may begin at places of their own: all parts are of this package, and none counts
    keys from the first."""
    parts = [part for _, part in parts_of(model, "model")]
    return (
        getattr(model, "supports_prefill", False)
        and all(type(part).__module__.startswith("keras_transformer.") for part in parts)
        and all(getattr(part, "compares_keys", True) for part in parts)
    )


def _positions(token_ids: SymbolicTensor, index: SymbolicTensor, rows: Size) -> tuple[SymbolicTensor, SymbolicTensor]:
    """Token ids (rows, T) and their positions (T,), of ids (batch, beams or positions) and the first position ()."""
    r = token_ids.tracer
    count = r.floor_divide(r.multiply(*token_ids.sizes), r.maximum(rows, 1))  # 1, if the rows are beams
    return ops.reshape(token_ids, (rows, count)), index + ops.arange(count)


def _memory_inputs(r: Tracer, model: FamilyModel, precision: str) -> tuple[list[ValueInfo], dict[str, Nest]]:
    """The inputs that the encoder gives, and the part of the model's cache that they make."""
    infos = memory_infos(model, precision)
    values, bias = [r.input(info) for info in infos], r.input(BIAS)
    pairs = zip(values[: len(values) // 2], values[len(values) // 2 :], strict=True)
    memory = [KeysValues(ops.swapaxes(keys, -1, -2), of_keys) for keys, of_keys in pairs]
    return [*infos, BIAS], {"memory": memory, "mask": ops.greater(bias, HIDDEN / 2)[:, 0, 0]}


def _past(
    r: Tracer, path: str, empty: SymbolicTensor, beams: Sequence[Size], pasts: dict[str, ValueInfo]
) -> SymbolicTensor:
    """A tensor of the cache as an input (rows, ...), which is added to `pasts` under its path: of such beams (B, K), or
    without them of one beam for each row."""
    axes = ["past" if size == 0 else size for size in empty.sizes[2:] if isinstance(size, int)]
    pasts[path] = ValueInfo(f"past_{path}", empty.dtype, ["rows", *axes])
    value = r.input(pasts[path])
    return r.reshape(value, (*(beams or [value.sizes[0], 1]), *value.sizes[1:]))


def _presents(beams: Sequence[Nest], pasts: dict[str, ValueInfo]) -> list[tuple[ValueInfo, SymbolicTensor]]:
    """The cache after a step, as outputs that are named as its inputs."""
    presents: dict[str, SymbolicTensor] = {}
    mapped(lambda path, one: presents.update({path: one}), beams)
    outputs = []
    for path in in_order(pasts):
        shape = ["present" if size == "past" else size for size in pasts[path].shape]
        value = ops.reshape(presents[path], (-1, *ops.shape(presents[path])[2:]))
        outputs.append((ValueInfo(f"present_{path}", pasts[path].dtype, shape), value))
    return outputs


def mapped(function: Callable[[str, Nest], Nest], beams: Sequence[Nest]) -> list[Nest]:
    """The caches of all layers with a function of each tensor and its path in the file, such as "key_0"."""

    def of(nest: Nest, path: list[str], layer: int) -> Nest:
        if isinstance(nest, dict):
            return {name: of(one, [*path, name], layer) for name, one in nest.items()}
        if hasattr(nest, "_fields"):
            fields = zip(nest._fields, nest, strict=True)
            return type(nest)(*(of(one, [*path, name.removesuffix("s")], layer) for name, one in fields))
        if isinstance(nest, list | tuple):
            return [of(one, [*path, str(place)], layer) for place, one in enumerate(nest)]
        return function("_".join([*path, str(layer)]), nest)

    return [of(one, [], layer) for layer, one in enumerate(beams)]


def in_order(paths: Iterable[str]) -> list[str]:
    """The keys of all layers, then the values of all layers, and so on."""
    stems = [path.rpartition("_")[0] for path in paths]
    return [path for stem in dict.fromkeys(stems) for path, own in zip(paths, stems, strict=True) if own == stem]


OfIds = Callable[[Tensor], Outputs]  # as `Signature.of_ids`
# What the axes of ids are called in the graphs.
LENGTHS = {"source_ids": "source", "prompt_ids": "prompt", "target_ids": "target", "added_ids": "added"}


def export_onnx(
    run: TrainedRun,
    folder: str | os.PathLike[str],
    decoding: Decoding | None = None,
    precision: str = "float32",
    converter: str = RECORDER,
) -> list[Path]:
    """Writes the graphs of a model into `folder`/onnx: of a translator `translate`, `translate_text`, `encoder`, `step`
    and `translate_aligned`, of other models those of `graphs_of`.

    All use opset 17; those of text need onnxruntime-extensions. float16 is meant for GPUs: states and weights are
    in half, softmax, norms and search in float32. int8 is meant for CPUs: weights have 8 bits and a scale for each
    column, states 8 bits and a scale for each row; it needs one operator that only ONNX Runtime has.

    Args:
        run: what to export; `artefacts.open_run` reads it from a run folder.
        folder: where to write; it is created if it does not exist.
        decoding: the options of the search, for models that search.
        precision: "float32", "float16" or "int8".
        converter: "recorder"; or "tf2onnx", which takes any layer that TensorFlow traces, and writes no halves.

    Returns:
        The paths of the files.

    Raises:
        RequestError: the precision is unknown, or the converter cannot write a part of the model.
    """
    require_precision("onnx", precision, converter)
    decoding = decoding or run.decoding()
    graphs, about = graphs_by(converter, run, decoding, precision)
    folder, metadata = Path(folder) / "onnx", {**run.metadata(decoding, precision), **about}
    paths: list[Path] = []
    for name, make in graphs.items():
        model = make(run, decoding, precision)  # what has no form is refused before the folder is made
        folder.mkdir(parents=True, exist_ok=True)
        paths += write_model(folder / f"{stem(name, precision)}.onnx", model, metadata)
    return paths


def graphs_by(
    converter: str, run: TrainedRun, decoding: Decoding, precision: str
) -> tuple[dict[str, Make], dict[str, str]]:
    """What makes the graphs of an export, by the stems of their files, and what these tell of the converter."""
    if converter == TF2ONNX:
        return converted_graphs(run, decoding, precision), {"converter": converter_name()}
    require_traceable(run.model)
    return graphs_of(run.signature), {}


def write_graph(
    run: TrainedRun, path: Path, name: str, decoding: Decoding, precision: str, num_listed: int | None = None
) -> list[Path]:
    """Writes one of the graphs, see `graphs_of`; the one with a search gives `decoding.n_best` hypotheses, and one that
    lists choices `num_listed`. That of a model between many languages takes prefixes, so that one graph serves all.
    Several runs have only "translate".

    Raises:
        Unwritable: a part of the model computes what has no form in ONNX here.
    """
    require_traceable(run.model)
    has_list, has_prefix = decoding.n_best != 1, bool(getattr(run.pipeline, "language_tags", None))
    if name in (run.signature.ids_stem, run.signature.aligned_stem) and (has_list or has_prefix):
        model = translate_model(run, decoding, precision, has_list, has_prefix, name == run.signature.aligned_stem)
    elif num_listed:
        model = ids_model(run, decoding, precision, num_listed)
    else:
        model = graphs_of(run.signature)[name](run, decoding, precision)
    return write_model(path, model, run.metadata(decoding, precision))


def require_traceable(model: FamilyModel) -> None:
    """Raises Untraceable, which names the layer, unless a tracer takes the calls of all layers.

    Models with layers from outside this package are recorded once, to see it.
    """
    for member in members_of(model):
        parts = [*parts_of(member, "model")]
        for path, part in parts[1:]:
            if not isinstance(part, Recordable):
                name = type(part).__name__
                raise Untraceable(
                    f"expected a layer of `keras_transformer.layers.Layer` at {path}; received {name}, a layer of "
                    "keras.layers.Layer: take `keras_transformer.layers` for the base of own layers and for Dense, "
                    "Dropout, Conv2D, LayerNorm and RmsNorm; or export saved_model or tflite, which trace any model"
                )
        if not all(type(part).__module__.startswith("keras_transformer.") for _, part in parts):
            _record_once(member)


def _record_once(model: FamilyModel) -> None:
    run: Any = SimpleNamespace(model=model)
    if hasattr(model, "encode"):
        encoder_model(run, "float32")
    if hasattr(model, "step"):
        step_model(run, "float32")
        return
    r = tracer_of(model, "float32")
    shape = ["batch", *model.image_shape] if model.takes == ("images",) else ["batch", "length"]
    with ops.on(r):
        model.states(r.input(ValueInfo(model.takes[0], np.int32, shape)))


def ids_model(
    run: TrainedRun, decoding: Decoding, precision: str, num_listed: int | None = None, of_ids: OfIds | None = None
) -> Model:
    """The graph that takes ids, or images: what the run's `Signature` gives of them. Any ids are
    allowed, and rows of any length, 0 included. What `of_ids` gives, if any, stands in place of the signature's own.
    """
    r = tracer_of(run.model, precision)
    signature = run.signature(run.pipeline, run.model, decoding, num_listed=num_listed)
    shape = ["batch", *(signature.item_shape() or [LENGTHS.get(signature.takes, "length")])]
    given = ValueInfo(signature.takes, np.dtype(signature.input_type), shape)
    with ops.on(r):
        found = (of_ids or signature.of_ids)(signature.taken(r.input(given)))
        outputs = [_output(name, output, found[name]) for name, output in signature.ids_outputs.items()]
    return model_of(r, [given], outputs)


def translate_model(
    run: TrainedRun,
    decoding: Decoding,
    precision: str,
    with_n_best: bool = False,
    with_prefix: bool = False,
    with_alignment: bool = False,
) -> Model:
    """A translator of ids: `source_ids` (batch, source) int32 → `target_ids` (batch, target) int32, `score` (batch,).

    Args:
        run, decoding, precision: as for `export_onnx`.
        with_n_best: adds the outputs `n_best_ids` (batch, n_best, target) and `n_best_scores` (batch, n_best), the best
            first. If fewer hypotheses exist, the other rows are pad, with the score -inf.
        with_prefix: adds the input `prefix_ids` (batch, prefix) int32, with which translations begin in place of the
            run's own beginning; 0 leaves a position free.
        with_alignment: adds the output `alignment` (batch, target) int32: for each token the position in `source_ids`
            at which the model looked most, by the heads that the metadata name; -1 where the end stands, or pad. With
            a list it also adds `n_best_alignment` (batch, n_best, target).
    """
    if not (with_n_best or with_prefix or with_alignment):
        return ids_model(run, decoding, precision)
    r: Tracer = tracer_of(run.model, precision)
    translator: Any = run.pipeline
    decoding = decoding if with_n_best else decoding.one_best()
    with ops.on(r):
        model = Aligned(run.model) if with_alignment else run.model
        source_ids = with_a_column(r.input(SOURCE))
        prefix_ids = r.input(PREFIX) if with_prefix else beginnings(translator.beginning, source_ids)
        ids, scores = translate_ids(model, source_ids, decoding, prefix_ids=prefix_ids)
        ids, scores = ids[:, : decoding.num_listed], scores[:, : decoding.num_listed]
        ids, *places = model.apart(ids) if isinstance(model, Aligned) else [ids]
        outputs = _hypotheses(trimmed(ids), scores, places, decoding.num_listed if with_n_best else None)
    return model_of(r, [SOURCE, *([PREFIX] if with_prefix else [])], outputs)


def _hypotheses(
    ids: SymbolicTensor, scores: SymbolicTensor, places: Sequence[SymbolicTensor], size: int | None
) -> list[tuple[ValueInfo, SymbolicTensor]]:
    """The outputs of the best of ids (batch, n, target), scores (batch, n) and perhaps alignments (batch, n, more), and
    of lists of `size` of each."""
    tokens, listed, places = ["target"], ["batch", size], [each[..., : ops.shape(ids)[-1]] for each in places]
    outputs = [
        (ValueInfo("target_ids", np.int32, ["batch", *tokens]), ids[:, 0]),
        (ValueInfo("score", np.float32, ["batch"]), scores[:, 0]),
    ]
    if size is not None:
        outputs += [
            (ValueInfo("n_best_ids", np.int32, [*listed, *tokens]), ids),
            (ValueInfo("n_best_scores", np.float32, listed), scores),
        ]
    for each in places:
        outputs.append((ValueInfo("alignment", np.int32, ["batch", *tokens]), each[:, 0]))
        if size is not None:
            outputs.append((ValueInfo("n_best_alignment", np.int32, [*listed, *tokens]), each))
    return outputs


def text_model(run: TrainedRun, decoding: Decoding, precision: str, of_ids: OfIds | None = None) -> Model:
    """The graph that takes `text` (batch,): what the run's signature gives of the ids of texts, with texts for ids;
    `of_ids` as for `ids_model`.
    """
    r, signature = tracer_of(run.model, precision), run.signature(run.pipeline, run.model, decoding)
    source, target = run.tokenizers
    with ops.on(r):
        found = (of_ids or signature.of_ids)(_ids_of_text(r, signature, source))
        outputs = []
        for name, output in signature.text_outputs.items():
            if name == "label":
                best = r.emit("ArgMax", found["probabilities"], dtype="int64", sizes=[None], axis=1, keepdims=0)
                value = r.emit("Gather", np.array(run.pipeline.names, object), best, dtype=object, sizes=[None])
            elif output.type == "text":
                ids = trimmed(found[next(iter(signature.ids_outputs))])
                name_of_text = detokenized(r.graphs[0], ids.name, target, signature.is_one_line)
                value = SymbolicTensor(r, name_of_text, "object", [None], 0)
            else:
                value = found[name]
            outputs.append(_output(name, output, value))
    return model_of(r, [TEXT], outputs)


def _ids_of_text(r: Tracer, signature: Signature, tokenizer: Tokenizer) -> SymbolicTensor:
    """Text (B,) → the ids (B, S) that `signature.of_ids` takes."""
    name = tokenized(r.graphs[0], TEXT.name, tokenizer, signature.cleaning, signature.max_pieces, signature.closing)
    ids = r.input(ValueInfo(name, np.int32, [None, None]))
    return signature.opened(ids)


def _output(name: str, output: Output, value: SymbolicTensor) -> tuple[ValueInfo, SymbolicTensor]:
    """An output of a signature, described; ids of a search end where the longest ends."""
    if output == IDS:
        value = trimmed(value)
    names = {"L": LENGTHS.get(name), "S": "length"}
    shape = ["batch", *(names.get(axis) or size for axis, size in zip(output.axes, value.shape[1:], strict=True))]
    dtype = object if output.type == "text" else np.dtype(output.type)
    return ValueInfo(name, dtype, shape), value


def trimmed(ids: SymbolicTensor) -> SymbolicTensor:
    """Ids (..., L) without the columns that are pad alone; one is left."""
    counts = ops.sum(ops.cast(ids != PAD, "int64"), axis=-1)
    longest_row = ops.max(ops.concatenate([ops.reshape(counts, (-1,)), np.ones(1, "int64")], axis=0))
    return ids[..., :longest_row]


Make = Callable[[TrainedRun, Decoding, str], Model]
HALVES: dict[str, Make] = {
    "encoder": lambda run, decoding, precision: encoder_model(run, precision),
    "step": lambda run, decoding, precision: step_model(run, precision),
}
ALIGNED_MODEL: Make = partial(translate_model, with_alignment=True)


def graphs_of(signature: type[Signature]) -> dict[str, Make]:
    """What makes the graphs of an export, by the stems of their files."""
    of_text: dict[str, Make] = {signature.text_stem: text_model} if signature.text_stem else {}
    aligned = {signature.aligned_stem: ALIGNED_MODEL} if signature.aligned_stem else {}
    return {signature.ids_stem: ids_model, **of_text, **{name: HALVES[name] for name in signature.halves}, **aligned}


def converted_graphs(run: TrainedRun, decoding: Decoding, precision: str) -> dict[str, Make]:
    """What makes those graphs that answer by themselves, around what tf2onnx converts.

    Raises:
        RequestError: it cannot convert the model.
    """
    signature = run.signature(run.pipeline, model_of_precision(run.model, precision), decoding)
    answer = ConvertedAnswer(signature)
    makes: dict[str, Any] = {run.signature.ids_stem: ids_model, run.signature.text_stem: text_model}
    return {name: partial(make, of_ids=answer) for name, make in makes.items() if name}
