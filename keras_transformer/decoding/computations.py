"""Defines what is computed with a model: the prefill of a cache, searches, probabilities, rankings and vectors.

Each is a frozen record of its options, so equal ones are compiled once (see `keras_decoder`). One that graphs compute
too names its results among the outputs of the graph, `outputs`, which `of_graph` brings into the form of `run`. Letters
of the shapes are those of `search.loop`, and S source and T target pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from keras_transformer import ops
from keras_transformer.checking.signatures import NUM_FILLS, NUM_ITEMS
from keras_transformer.ops import Tensor
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.loop import NO_HYPOTHESIS, Cache, Step, id_at, merge_end_ids, merge_end_labels
from keras_transformer.search.sampling import sample
from keras_transformer.spec.search_options import Guards, SearchOptions
from keras_transformer.text.tokenizer import END, PAD

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel
    from keras_transformer.models.classifiers import Encoder, ImageClassifier
    from keras_transformer.models.stack_models import LanguageModel, SequenceEncoder
    from keras_transformer.models.transformer import Transformer


@dataclass(frozen=True)
class Search:
    """Beam search."""

    num_beams: int
    length_penalty: float
    n_best: int
    guards: Guards | None = None

    def run(
        self, model: Transformer | Aligned, source_ids: Tensor, limits: Tensor, prefix_ids: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Finds ids (B, n_best, L) and scores (B, n_best); see `beam_search`."""
        begun = prefill(model, source_ids, prefix_ids, self.num_beams)
        return beam_search(
            begun.step,
            begun.cache,
            limits,
            self.num_beams,
            self.length_penalty,
            ops.shape(prefix_ids)[1],
            begun.prefix_ids,
            self.n_best,
            num_control_ids=model.num_control_ids,
            prompt_length=begun.prompt_length,
            index=begun.position,
            ids_dtype=getattr(model, "ids_dtype", "int32"),
            guards=self.guards,
            read_ids=begun.read_ids if self.guards else None,
        )


@dataclass(frozen=True)
class Sampling:
    """Random translations."""

    num_samples: int
    temperature: float
    top_k: int
    top_p: float
    guards: Guards | None = None

    def run(
        self, model: Transformer | Aligned, source_ids: Tensor, limits: Tensor, prefix_ids: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor]:
        """Draws ids (B, K, L) and log-probabilities (B, K) of K samples; see `sample`."""
        begun = prefill(model, source_ids, prefix_ids, self.num_samples)
        return sample(
            begun.step,
            begun.cache,
            limits,
            uniforms,
            self.num_samples,
            self.temperature,
            self.top_k,
            self.top_p,
            begun.prefix_ids,
            model.num_control_ids,
            begun.position,
            getattr(model, "ids_dtype", "int32"),
            self.guards,
            begun.prompt_length,
            begun.read_ids if self.guards else None,
        )


def search_or_sampling(options: SearchOptions) -> Search | Sampling:
    """Returns beam search, or sampling if the options ask for it."""
    if options.sampling:
        return Sampling(options.n_best, options.temperature, options.top_k, options.top_p, options.guards)
    return Search(options.num_beams, options.length_penalty, options.n_best, options.guards)


class Aligned:
    """A translator whose searches also tell where it looked: where they give ids, they give id + V · source position,
    which `apart` divides. So an alignment costs a search hardly more than what it computes of it.

    Args:
        model: what has `aligned_step`, see `Transformer.aligned_step`.
        ids_dtype: the type of the loop's integers.
    """

    def __init__(self, model: Any, ids_dtype: str | None = None):
        self.model = model
        self.ids_dtype = ids_dtype or ops.integers()

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def step(self, token_ids: Tensor, cache: Cache, index: Tensor) -> tuple[Tensor, Cache]:
        """Takes the model's step, and notes where each beam looks."""
        logits, cache, places = self.model.aligned_step(token_ids, cache, index)
        return logits, {**cache, "offsets": ops.cast(places, self.ids_dtype) * self.model.vocabulary_size}

    def apart(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the ids and the source positions, each (..., L) int32; -1 where the end stands, or nothing."""
        size = self.model.vocabulary_size
        places, ids = ops.floor_divide(ids, size), ops.mod(ids, size)
        is_piece = (ids != PAD) & (ids != END)
        return ops.cast(ids, "int32"), ops.cast(ops.where(is_piece, places, -1), "int32")


@dataclass(frozen=True)
class Alignment:
    """The encoder-decoder attention from which an alignment is read."""

    def run(self, model: Transformer, source_ids: Tensor, target_ids: Tensor) -> tuple[Tensor]:
        """Returns weights (B, T, S), see `Transformer.alignment_weights`."""
        return (model.alignment_weights({"source_ids": source_ids, "target_ids": target_ids}),)


@dataclass(frozen=True)
class LogProbs:
    """The probability of labels, as in training."""

    def run(self, model: FamilyModel, *arrays: Tensor) -> tuple[Tensor]:
        """Returns log P (B,) of the labels (B, T), which stand behind what the model takes."""
        *inputs, labels = arrays
        return (log_probs_of(model(dict(zip(model.takes, inputs, strict=True)), training=False), labels),)


@dataclass(frozen=True)
class TextLogProbs:
    """The probability of texts by a language model. As in a search, all ids that end a text count as one."""

    def run(self, model: LanguageModel, ids: Tensor, labels: Tensor) -> tuple[Tensor]:
        """Returns log P (B,) of the labels (B, T) that follow the ids (B, T)."""
        logits = merge_end_ids(model({"ids": ids}, training=False), model.end_ids)
        return (log_probs_of(logits, merge_end_labels(labels, model.end_ids)),)


class OfGraph:
    """The base of what a graph computes too, of a model that does not search."""

    outputs: ClassVar[tuple[str, ...]]
    num_best: int | None = None  # how many choices the graph must list
    usual: ClassVar[int] = 0  # how many it lists where nobody asks for more

    def of_graph(self, found: list[np.ndarray], *arrays: np.ndarray) -> list[np.ndarray]:
        """Returns the results by the outputs of the graph, and by the arrays that `run` takes too."""
        return [each[..., : self.num_best] for each in found]


@dataclass(frozen=True)
class LabelProbs(OfGraph):
    """The probabilities of labels."""

    outputs = ("probabilities",)

    def run(self, model: Encoder | ImageClassifier, inputs: Tensor) -> tuple[Tensor]:
        """Returns (B, C) float32 for texts (B, S), or for images (B, S, S, channels)."""
        return (ops.softmax(ops.cast(model.logits_of(model.states(inputs)), "float32")),)


@dataclass(frozen=True)
class Fills(OfGraph):
    """The likeliest pieces of text at each place."""

    num_best: int

    outputs = ("probabilities", "piece_ids")
    usual = NUM_FILLS

    def run(self, model: Encoder, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns probabilities and ids (B, S, K) for texts (B, S), the best first."""
        return likeliest_pieces(model, model.logits_of(model.states(ids)), self.num_best)


@dataclass(frozen=True)
class Embedding(OfGraph):
    """The vectors of texts, histories or images."""

    outputs = ("vector",)

    def run(self, model: Encoder | SequenceEncoder | ImageClassifier, inputs: Tensor) -> tuple[Tensor]:
        """Returns (B, D) float32 for ids (B, S), or for images (B, S, S, channels)."""
        return (model.embed(inputs),)


@dataclass(frozen=True)
class NextItems(OfGraph):
    """The likeliest items that come next."""

    num_best: int

    outputs = ("probabilities", "item_ids")
    usual = NUM_ITEMS

    def run(self, model: SequenceEncoder, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Returns probabilities and ids (B, K) for histories (B, T), the best first; -1 for ids that are no items."""
        is_item = ops.arange(model.vocabulary_size) >= model.num_control_ids
        probs = ops.where(is_item, ops.softmax(ops.where(is_item, model.scores(ids), -math.inf)), -1.0)
        probs, items = ops.top_k(probs, min(self.num_best, model.vocabulary_size))
        return probs, ops.cast(items, "int32")


@dataclass(frozen=True)
class Ranks(OfGraph):
    """Where the item that came next stands among all items."""

    outputs = ("item_ids",)

    def of_graph(self, found: list[np.ndarray], *arrays: np.ndarray) -> list[np.ndarray]:
        """Returns ranks; an item that the graph does not list is missed, as one that the vocabulary lacks."""
        is_own = found[0] == arrays[1][:, None]
        missed = np.iinfo("int32").max  # as in `metrics`, which imports Keras
        return [np.where(is_own.any(axis=1), np.argmax(is_own, axis=1) + 1, missed).astype("int32")]

    def run(self, model: SequenceEncoder, ids: Tensor, targets: Tensor) -> tuple[Tensor]:
        """Returns (B,) int32 from 1, for histories (B, T) and the items (B,) that followed."""
        from keras_transformer.metrics import ranks_of  # imports Keras

        return (ranks_of(targets, model.scores(ids)),)


def likeliest_pieces(model: Encoder, logits: Tensor, num_best: int) -> tuple[Tensor, Tensor]:
    """Finds the likeliest pieces of text by logits (B, S, V): their probabilities and ids (B, S, K), the best first."""
    probs = ops.softmax(ops.cast(logits, "float32"))
    is_text = ops.arange(model.vocabulary_size) >= model.num_control_ids
    probs, pieces = ops.top_k(ops.where(is_text, probs, 0.0), min(num_best, model.vocabulary_size))
    return probs, ops.cast(pieces, "int32")


def log_probs_of(logits: Tensor, labels: Tensor) -> Tensor:
    """Returns log P (B,) of labels (B, T) by logits (B, T, V), without padding."""
    log_probs = ops.log_softmax(ops.cast(logits, "float32"))  # (B, T, V)
    log_probs = ops.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]  # (B, T)
    return ops.sum(ops.where(labels == PAD, 0.0, log_probs), axis=-1)


class PromptForcing:
    """Makes a language model read prompts before it goes on, whatever the search emits.

    While it reads, the search can emit a placeholder alone, of the probability 1: the first id of text. So only what
    follows a prompt counts in the score of a text, and a prompt may hold any id.

    Args:
        model: the language model.
        first_ids: (B, 1) what stands at position 0, before the prompt.
        prompt_ids: (B, P), padded with 0.
    """

    def __init__(self, model: FamilyModel, first_ids: Tensor, prompt_ids: Tensor):
        self.model = model
        self.ids = ops.concatenate([first_ids, prompt_ids], axis=1)

    def init_cache(self, num_beams: int, max_length: int | Tensor) -> Cache:
        """Returns the cache of `step` at position 0: the model's own, and the prompts."""
        own = self.model.init_cache(self.ids, num_beams, max_length)
        return {"beams": own["beams"], "sentences": {"own": own["sentences"], "prompt": self.ids}}

    def read(self, num_beams: int, max_length: int | Tensor) -> tuple[Cache, Tensor | None]:
        """Prefills in one pass the positions that all prompts fill, but for the last token of the shortest.

        Returns:
            The cache of `step` behind it, and the position that comes next. Where the model cannot read at once, the
            cache at position 0, and None.
        """
        if not self.model.supports_prefill:
            return self.init_cache(num_beams, max_length), None
        ends = ops.cumsum(ops.cast(ops.any(self.ids == PAD, axis=0), "int32"), axis=0)  # (1 + P,) 0 in all prompts
        count = ops.maximum(ops.sum(ops.cast(ends == 0, ops.integers())) - 1, 0)
        cache = self.init_cache(1, max_length)
        # At least one, which the first step writes again: LiteRT and Keras's maximum fail on tensors without numbers. A
        # cache that grows cannot hold one twice.
        most = ops.maximum(count, 1) if ops.back_end() is None else count
        _, own = self.model.step(self.ids[:, :most], _own(cache), ops.arange(most))
        beams = ops.map_structure(lambda values: ops.repeat(values, num_beams, axis=1), own["beams"])
        return {**cache, "beams": beams if num_beams > 1 else own["beams"]}, count

    def step(self, token_ids: Tensor, cache: Cache, index: Tensor) -> tuple[Tensor, Cache]:
        """Takes the model's step with the ids of the prompts while they last, then with what was emitted."""
        ids = ops.cast(cache["sentences"]["prompt"], token_ids.dtype)
        here, behind = id_at(ids, index), id_at(ids, index + 1)  # (B, 1)
        logits, own = self.model.step(ops.where(here == PAD, token_ids, here), _own(cache), index)
        placeholder = ops.equal(ops.arange(self.model.vocabulary_size), self.model.num_control_ids)  # (V,)
        logits = ops.where((behind == PAD)[..., None], logits, ops.where(placeholder, 0.0, NO_HYPOTHESIS))
        return logits, {**cache, "beams": own["beams"]}


def _own(cache: Cache) -> Cache:
    """Returns the model's own part of a cache of `PromptForcing`."""
    return {"beams": cache["beams"], "sentences": cache["sentences"]["own"]}


def prompt_length(prompt_ids: Tensor) -> Tensor:
    """Counts the ids of prompts (B, P), padded with 0: (B,) int32."""
    return ops.sum(ops.cast(prompt_ids != PAD, "int32"), axis=-1)


class Prefill(NamedTuple):
    """What a search or sampling begins with."""

    step: Step
    cache: Cache
    prefix_ids: Tensor | None  # (B, L) with which its results must begin; a translator emits its beginning
    prompt_length: Tensor | None  # (B,) of what is read, and not emitted: a language model reads its beginning
    position: Tensor | None  # () behind what the cache holds of the beginnings; None for an empty cache
    read_ids: Tensor | None = None  # (B, 1 + L) what a language model reads, from position 0 on


def prefill(model: FamilyModel | Aligned, source_ids: Tensor, prefix_ids: Tensor, num_beams: int) -> Prefill:
    """Fills the cache of a search: with a source (B, S) for K beams, or with the beginnings (B, L) that a language
    model reads. A language model has no source: `source_ids` (B, 1) is the id that stands before its beginnings.
    """
    max_length = ops.shape(prefix_ids)[1]
    if not isinstance(model, Aligned) and not hasattr(model, "encode"):
        prompted = PromptForcing(model, source_ids[:, :1], prefix_ids)
        cache, index = prompted.read(num_beams, max_length)
        return Prefill(prompted.step, cache, None, prompt_length(prefix_ids), index, prompted.ids)
    cache = model.init_cache(model.encode(source_ids), source_ids, num_beams, max_length)
    return Prefill(model.step, cache, prefix_ids, None, None)
