"""What a translator computes with a model: search, sampling, alignment, and the probability of a given translation.

Each is a frozen record of its options, so equal ones are compiled once (see `keras_decoder`). Letters of the shapes are
those of `loop`, and S source and T target pieces.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from keras_transformer import ops
from keras_transformer.decoding.computations import PromptForcing, prompt_length
from keras_transformer.ops import Tensor
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.loop import Cache, Step, merge_end_ids, merge_end_labels
from keras_transformer.search.sampling import sample
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.text.tokenizer import PAD

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

    def run(self, model: Transformer, source_ids: Tensor, limits: Tensor, prefix_ids: Tensor) -> tuple[Tensor, Tensor]:
        """ids (B, n_best, L) and scores (B, n_best); see `beam_search`."""
        step, cache, beginning, num_prompted, index = start_of(model, source_ids, prefix_ids, self.num_beams)
        return beam_search(
            step,
            cache,
            limits,
            self.num_beams,
            self.length_penalty,
            ops.shape(prefix_ids)[1],
            beginning,
            self.n_best,
            num_control_ids=model.num_control_ids,
            prompt_length=num_prompted,
            index=index,
        )


@dataclass(frozen=True)
class Sampling:
    """Random translations."""

    num_samples: int
    temperature: float
    top_k: int
    top_p: float

    def run(
        self, model: Transformer, source_ids: Tensor, limits: Tensor, prefix_ids: Tensor, uniforms: Tensor
    ) -> tuple[Tensor, Tensor]:
        """ids (B, K, L) and log-probabilities (B, K) of K samples; see `sample`."""
        step, cache, beginning, _, index = start_of(model, source_ids, prefix_ids, self.num_samples)
        return sample(
            step,
            cache,
            limits,
            uniforms,
            self.num_samples,
            self.temperature,
            self.top_k,
            self.top_p,
            beginning,
            model.num_control_ids,
            index,
        )


def search_or_sampling(options: SearchOptions) -> Search | Sampling:
    """The search, or the drawing, that the options ask for."""
    if options.sampling:
        return Sampling(options.n_best, options.temperature, options.top_k, options.top_p)
    return Search(options.num_beams, options.length_penalty, options.n_best)


@dataclass(frozen=True)
class Alignment:
    """The encoder-decoder attention from which an alignment is read."""

    def run(self, model: Transformer, source_ids: Tensor, target_ids: Tensor) -> tuple[Tensor]:
        """Weights (B, T, S): the last decoder block but one, averaged over its heads."""
        layer = max(model.decoder_layers - 2, 0)
        cross = model.attention_scores({"source_ids": source_ids, "target_ids": target_ids})["cross"]
        return (ops.mean(cross[layer], axis=1),)


@dataclass(frozen=True)
class LogProbs:
    """The probability of given translations."""

    def run(self, model: Transformer, source_ids: Tensor, target_ids: Tensor, labels: Tensor) -> tuple[Tensor]:
        """log P (B,) of the labels (B, T)."""
        logits = model({"source_ids": source_ids, "target_ids": target_ids}, training=False)
        return (log_probs_of(logits, labels),)


@dataclass(frozen=True)
class TokenLogProbs:
    """The probability of labels by a model of tokens, as in training."""

    def run(self, model: FamilyModel, ids: Tensor, labels: Tensor) -> tuple[Tensor]:
        """log P (B,) of the labels (B, T) of the ids (B, T)."""
        return (log_probs_of(model({"ids": ids}, training=False), labels),)


@dataclass(frozen=True)
class TextLogProbs:
    """The probability of texts by a language model. As in a search, all ids that end a text count as one."""

    def run(self, model: LanguageModel, ids: Tensor, labels: Tensor) -> tuple[Tensor]:
        """log P (B,) of the labels (B, T) that follow the ids (B, T)."""
        logits = merge_end_ids(model({"ids": ids}, training=False), model.end_ids)
        return (log_probs_of(logits, merge_end_labels(labels, model.end_ids)),)


@dataclass(frozen=True)
class LabelProbs:
    """The probabilities of labels."""

    def run(self, model: Encoder, ids: Tensor) -> tuple[Tensor]:
        """(B, C) float32 for texts (B, S)."""
        return (ops.softmax(ops.cast(model.logits_of(model.states(ids)), "float32")),)


@dataclass(frozen=True)
class ImageLabelProbs:
    """The probabilities of the labels of images."""

    def run(self, model: ImageClassifier, images: Tensor) -> tuple[Tensor]:
        """(B, C) float32 for images (B, S, S, channels)."""
        return (ops.softmax(ops.cast(model({"images": images}, training=False), "float32")),)


@dataclass(frozen=True)
class ImageEmbedding:
    """The vectors of images."""

    def run(self, model: ImageClassifier, images: Tensor) -> tuple[Tensor]:
        """(B, D) float32 for images (B, S, S, channels)."""
        return (ops.cast(model.states(images)[:, 0], "float32"),)


@dataclass(frozen=True)
class Fills:
    """The likeliest pieces of text at each place."""

    num_best: int

    def run(self, model: Encoder, ids: Tensor) -> tuple[Tensor, Tensor]:
        """Probabilities and ids (B, S, K) for texts (B, S), the best first."""
        return likeliest_pieces(model, model.logits_of(model.states(ids)), self.num_best)


@dataclass(frozen=True)
class Embedding:
    """The vectors of texts or of histories."""

    def run(self, model: Encoder | SequenceEncoder, ids: Tensor) -> tuple[Tensor]:
        """(B, D) float32 for ids (B, S)."""
        return (model.embed(ids),)


@dataclass(frozen=True)
class NextItemProbs:
    """The probabilities of the item that comes next."""

    def run(self, model: SequenceEncoder, ids: Tensor) -> tuple[Tensor]:
        """(B, V) float32 for histories (B, T); 0 for ids that are no items."""
        is_item = ops.arange(model.vocabulary_size) >= model.num_control_ids
        return (ops.softmax(ops.where(is_item, model.scores(ids), -math.inf)),)


@dataclass(frozen=True)
class Ranks:
    """Where the item that came next stands among all items."""

    def run(self, model: SequenceEncoder, ids: Tensor, targets: Tensor) -> tuple[Tensor]:
        """(B,) int32 from 1, for histories (B, T) and the items (B,) that followed."""
        from keras_transformer.metrics import ranks_of  # imports Keras

        return (ranks_of(targets, model.scores(ids)),)


def likeliest_pieces(model: Encoder, logits: Tensor, num_best: int) -> tuple[Tensor, Tensor]:
    """Logits (B, S, V) → probabilities and ids (B, S, K) of the likeliest pieces of text, the best first."""
    probs = ops.softmax(ops.cast(logits, "float32"))
    is_text = ops.arange(model.vocabulary_size) >= model.num_control_ids
    probs, pieces = ops.top_k(ops.where(is_text, probs, 0.0), min(num_best, model.vocabulary_size))
    return probs, ops.cast(pieces, "int32")


def log_probs_of(logits: Tensor, labels: Tensor) -> Tensor:
    """log P (B,) of labels (B, T) by logits (B, T, V), without padding."""
    log_probs = ops.log_softmax(ops.cast(logits, "float32"))  # (B, T, V)
    log_probs = ops.take_along_axis(log_probs, labels[..., None], axis=-1)[..., 0]  # (B, T)
    return ops.sum(ops.where(labels == PAD, 0.0, log_probs), axis=-1)


class Start(NamedTuple):
    """What a search or sampling begins with."""

    step: Step
    cache: Cache
    prefix_ids: Tensor | None  # (B, L) with which its results must begin; a translator emits its beginning
    prompt_length: (
        Tensor | None
    )  # (B,) how much of a beginning is read, and not emitted: a language model reads its prompt
    position: Tensor | None  # () behind what the cache holds of the beginnings; None for an empty cache


def start_of(model: FamilyModel, source_ids: Tensor, prefix_ids: Tensor, num_beams: int) -> Start:
    """The start over source ids (B, S) with beginnings (B, L) and K beams.

    A language model has no source. It takes (B, 1) in its place, what stands before the beginnings.
    """
    max_length = ops.shape(prefix_ids)[1]
    if not hasattr(model, "encode"):
        prompted = PromptForcing(model, source_ids[:, :1], prefix_ids)
        cache, index = prompted.read(num_beams, max_length)
        return Start(prompted.step, cache, None, prompt_length(prefix_ids), index)
    cache = model.init_cache(model.encode(source_ids), source_ids, num_beams, max_length)
    return Start(model.step, cache, prefix_ids, None, None)
