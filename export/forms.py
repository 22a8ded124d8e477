"""What each kind of model is as an artefact: its files, what they take and give, and the function that is traced.

Letters in shapes: B texts, S ids of a text, P of a prompt, L of what is emitted, n hypotheses, C labels, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar

from keras import ops

from keras_transformer.decoding.computations import likeliest_pieces
from keras_transformer.decoding.prompts import prompted
from keras_transformer.decoding.search import beam_search
from keras_transformer.lengths import longest
from keras_transformer.models.encoder import Encoder, mean_state
from keras_transformer.models.language_model import LanguageModel
from keras_transformer.models.transformer import Transformer
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN

from .signatures import Decoding, TrainedRun

# The text that SavedModel and ONNX clean, as regular expressions (RE2). LiteRT has no operator for them.
LINE_BREAKS = r"[\x00\n\r]"
BLANK = r"^[\p{Z}\p{Cc}\p{Cf}]*$"
ONE_LINE = (LINE_BREAKS, " ")
NUM_FILLS = 5

Outputs = dict[str, Tensor]
Texts = Callable[[Tensor], Tensor]  # ids (B, L) → strings (B,)


class Form:
    """The base of the forms.

    Args:
        run: what is exported.
        model: the run's model, perhaps in another precision.
        decoding: the options of the search, for models that search.
        index_dtype: as for `beam_search`.
    """

    kind: ClassVar[str]  # of the model
    ids_stem: ClassVar[str]  # of the file that takes ids
    text_stem: ClassVar[str]  # of the file that takes text
    takes = "source_ids"
    cleaning: ClassVar[tuple[tuple[str, str], ...]] = (ONE_LINE,)  # of text: what is replaced, and by what
    is_one_line = True  # whether texts that it gives are of one line
    ids_outputs: ClassVar[tuple[str, ...]]  # the names of what the file that takes ids gives
    text_outputs: ClassVar[tuple[str, ...]]

    def __init__(self, run: TrainedRun, model: Any, decoding: Decoding | None = None, index_dtype: str | None = None):
        self.run = run
        self.model = model
        self.decoding = decoding or run.decoding()
        self.index_dtype = index_dtype

    def signatures(self) -> dict[str, Callable[[Any, Texts], Outputs]]:
        """The functions of a SavedModel, by the names of its signatures; each is as `of_pieces`."""
        return {"serving_default": self.of_pieces}

    def spec(self) -> Any:
        """What the file that takes ids takes, for TensorFlow."""
        import tensorflow as tf

        return tf.TensorSpec([None, None], tf.int32, name=self.takes)

    def padded(self, ids: Tensor) -> Tensor:
        """Ids (B, S) → (B, S + 1), with pad behind them."""
        return ops.pad(ids, [[0, 0], [0, 1]])

    def of_ids(self, ids: Tensor) -> Outputs:
        """What the file that takes ids gives for ids (B, S), padded with 0."""
        raise NotImplementedError

    def of_pieces(self, pieces: Any, texts: Texts) -> Outputs:
        """What the file that takes text gives for the ragged ids (B, pieces) of a tokenizer."""
        raise NotImplementedError


class Searching(Form):
    """The base of the forms of models that search.

    The outputs are the ids of the best hypothesis, or its text, and its score; or the texts of all and their scores.
    """

    def signatures(self) -> dict[str, Callable[[Any, Texts], Outputs]]:
        return {**super().signatures(), "n_best": self.n_best}

    def of_ids(self, ids: Tensor) -> Outputs:
        ids, scores = self.search(ids, self.decoding.one_best())
        return {self.ids_outputs[0]: ids[:, 0], "score": scores[:, 0]}

    def of_pieces(self, pieces: Any, texts: Texts) -> Outputs:
        ids, scores = self.search(self.ids_of(pieces), self.decoding.one_best())
        # LiteRT's detokenizer reports one text, however many it gives; `take` sets the right shape.
        best = ops.take(texts(ids[:, 0]), ops.arange(ops.shape(scores)[0]))
        return {self.text_outputs[0]: best, "score": scores[:, 0]}

    def n_best(self, pieces: Any, texts: Texts) -> Outputs:
        """The texts (B, n) and scores (B, n) of the best hypotheses."""
        ids, scores = self.search(self.ids_of(pieces), self.decoding)
        rows = ops.reshape(ids, (-1, ops.shape(ids)[2]))
        return {f"{self.text_outputs[0]}s": ops.reshape(texts(rows), ops.shape(scores)), "scores": scores}

    def ids_of(self, pieces: Any) -> Tensor:
        """What the search takes of ragged ids (B, pieces)."""
        raise NotImplementedError

    def search(self, ids: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
        """ids (B, n, L) and scores (B, n)."""
        raise NotImplementedError


class Translation(Searching):
    """A translator: source ids → target ids and their score."""

    kind, ids_stem, text_stem = "translator", "translate", "translate_text"
    cleaning = (ONE_LINE, (BLANK, ""))

    ids_outputs, text_outputs = ("target_ids", "score"), ("translation", "score")

    def ids_of(self, pieces: Any) -> Tensor:
        return with_end(pieces)

    def search(self, ids: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
        return translate_ids(self.model, ids, decoding, self.index_dtype)


class Continuation(Searching):
    """A language model: prompt ids → the ids that continue them, and their score."""

    kind, ids_stem, text_stem = "language-model", "generate", "generate_text"
    takes = "prompt_ids"
    cleaning = ((r"\x00", " "),)
    is_one_line = False
    ids_outputs, text_outputs = ("added_ids", "score"), ("continuation", "score")

    def ids_of(self, pieces: Any) -> Tensor:
        return pieces.to_tensor(PAD)

    def search(self, ids: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
        return continue_ids(self.model, ids, decoding, self.index_dtype)


class Labelling(Form):
    """An encoder with labels: ids → the probability of each label, and a vector."""

    kind, ids_stem, text_stem = "encoder", "classify", "classify_text"
    takes = "ids"
    ids_outputs = ("probabilities", "vector")
    text_outputs = ("label", *ids_outputs)

    def of_ids(self, ids: Tensor) -> Outputs:
        ids, states = encoded(self.model, ids)
        logits = ops.cast(self.model.logits_of(states), "float32")
        return {"probabilities": ops.softmax(logits), "vector": mean_state(states, ids)}

    def of_pieces(self, pieces: Any, texts: Texts) -> Outputs:
        found = self.of_ids(between_ends(pieces))
        return {"label": likeliest(self.run.labels, found["probabilities"]), **found}


class Filling(Form):
    """An encoder of masked tokens: ids → the likeliest pieces at each place, and a vector; text → a vector."""

    kind, ids_stem, text_stem = "encoder", "fill", "embed_text"
    takes = "ids"
    ids_outputs, text_outputs = ("piece_ids", "probabilities", "vector"), ("vector",)

    def of_ids(self, ids: Tensor) -> Outputs:
        ids, states = encoded(self.model, ids)
        probabilities, pieces = likeliest_pieces(self.model, self.model.logits_of(states), NUM_FILLS)
        return {"piece_ids": pieces, "probabilities": probabilities, "vector": mean_state(states, ids)}

    def of_pieces(self, pieces: Any, texts: Texts) -> Outputs:
        ids, states = encoded(self.model, between_ends(pieces))
        return {"vector": mean_state(states, ids)}


class Recognition(Form):
    """A classifier of images: images (B, S, S, channels) uint8 → the probability of each label, and a vector."""

    kind, ids_stem, text_stem = "image-classifier", "classify", ""
    takes = "images"
    ids_outputs = ("probabilities", "vector")
    text_outputs = ("label", *ids_outputs)

    def spec(self) -> Any:
        import tensorflow as tf

        return tf.TensorSpec([None, *self.model.image_shape], tf.uint8, name=self.takes)

    def padded(self, ids: Tensor) -> Tensor:
        return ids

    def of_ids(self, ids: Tensor) -> Outputs:
        vector = self.model.states(ids)[:, 0]
        logits = ops.cast(self.model.head(vector), "float32")
        return {"probabilities": ops.softmax(logits), "vector": ops.cast(vector, "float32")}

    def with_label(self, images: Tensor) -> Outputs:
        """`of_ids`, and the likeliest label (B,)."""
        found = self.of_ids(images)
        return {"label": likeliest(self.run.labels, found["probabilities"]), **found}


def form_of(run: TrainedRun) -> type[Form]:
    """The form of a run's model."""
    if run.model.kind == "encoder":
        return Labelling if run.model.num_labels else Filling
    return {form.kind: form for form in (Translation, Continuation, Recognition)}[run.model.kind]


def likeliest(labels: Sequence[str], probabilities: Tensor) -> Tensor:
    """The likeliest label (B,) of probabilities (B, C)."""
    import tensorflow as tf

    # Keras's own `argmax` takes bits, which LiteRT cannot.
    return tf.gather(labels, tf.argmax(probabilities, axis=-1, output_type=tf.int32))


def translate_ids(
    model: Transformer, source_ids: Tensor, decoding: Decoding, index_dtype: str | None = None
) -> tuple[Tensor, Tensor]:
    """The translator's search, from ids to ids.

    Args:
        model: the model.
        source_ids: (B, S) int32, pieces and the end id, then pad.
        decoding: the options of the search.
        index_dtype: as for `beam_search`.

    Returns:
        ids (B, n_best, L) int32, the best first, each with its end id (none if cut at its limit), then pad; and scores
        (B, n_best) float32. L is the limit of the batch's longest sentence.
    """
    source_ids = permitted(source_ids, model.source_vocabulary_size or model.vocabulary_size, model.max_source_length)
    limits = limits_of(source_ids, decoding.max_length)
    max_length = ops.maximum(ops.max(limits), 1)
    cache = model.init_cache(model.encode(source_ids), source_ids, decoding.num_beams, max_length)
    num_beams, length_penalty, n_best = decoding.num_beams, decoding.length_penalty, decoding.n_best
    return beam_search(
        model.step, cache, limits, num_beams, length_penalty, max_length, n_best=n_best, index_dtype=index_dtype,
        num_control_ids=model.num_control_ids,
    )  # fmt: skip


def continue_ids(
    model: LanguageModel, prompt_ids: Tensor, decoding: Decoding, index_dtype: str | None = None
) -> tuple[Tensor, Tensor]:
    """The generator's search in one context, from ids to ids.

    Args:
        model: the model.
        prompt_ids: (B, P) int32, pieces, then pad. Of a prompt that fills the context, the last half of the context
            counts.
        decoding: the options of the search; `max_length` counts what is added, by default as much as the context holds.
        index_dtype: as for `beam_search`.

    Returns:
        ids (B, n_best, L) int32 of what is added, as from `translate_ids`; and scores (B, n_best) float32.
    """
    context = model.context_length
    prompt_ids = known(ops.pad(prompt_ids, [[0, 0], [0, 1]]), model.vocabulary_size)
    lengths = ops.sum(ops.cast(prompt_ids != PAD, "int32"), axis=-1)  # (B,)
    prompt_ids = moved(prompt_ids, ops.where(lengths < context, 0, lengths - context // 2))[..., :context]
    lengths = ops.where(lengths < context, lengths, context // 2)
    limits = ops.minimum(lengths + (decoding.max_length or context), context)
    max_length = ops.max(ops.concatenate([limits, ops.ones((1,), "int32")]))
    cache = model.init_cache(prompt_ids, decoding.num_beams, max_length)
    ids, scores = beam_search(
        prompted(model, prompt_ids), cache, limits, decoding.num_beams, decoding.length_penalty, max_length,
        n_best=decoding.n_best, index_dtype=index_dtype, num_control_ids=model.num_control_ids,
    )  # fmt: skip
    rows = ops.reshape(ids, (-1, max_length))
    return ops.reshape(moved(rows, ops.repeat(lengths, decoding.num_listed)), ops.shape(ids)), scores


def encoded(model: Encoder, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Ids (B, S) from outside → ids that the model takes, and their states."""
    ids = permitted(ids, model.vocabulary_size, model.context_length - 1)
    return ids, model.states(ids)


def permitted(ids: Tensor, vocabulary_size: int, max_length: int) -> Tensor:
    """Replaces ids that the vocabulary lacks by unknown; cuts rows of more than `max_length` pieces, and ends them."""
    ids = known(ids, vocabulary_size)[:, : max_length + 1]
    last = ops.arange(ops.shape(ids)[1]) == max_length
    return ops.where(last & (ids != PAD), END, ids)


def known(ids: Tensor, vocabulary_size: int) -> Tensor:
    """Ids, those that the vocabulary lacks replaced by unknown."""
    return ops.where((ids >= 0) & (ids < vocabulary_size), ids, UNKNOWN)


def moved(ids: Tensor, starts: Tensor) -> Tensor:
    """Rows (B, S) from their starts (B,) on, then pad."""
    width = ops.shape(ids)[1]
    places = ops.arange(width, dtype="int32") + starts[:, None]
    rows = ops.take_along_axis(ids, ops.minimum(places, width - 1), axis=1)
    return ops.where(places < width, rows, PAD)


def limits_of(source_ids: Tensor, max_length: int | None) -> Tensor:
    """(B,) The most ids to emit: the source's length without pad and end, + 50; 0 for a blank source."""
    lengths = ops.sum(ops.cast((source_ids != PAD) & (source_ids != END), "int32"), axis=-1)
    limits = ops.where(lengths > 0, longest(lengths), 0)
    return limits if max_length is None else ops.minimum(limits, max_length)


def with_end(pieces: Any) -> Tensor:
    """A tokenizer's ragged ids (B, pieces) → ids (B, S), with the end id, padded."""
    import tensorflow as tf

    ids = tf.pad(pieces.to_tensor(PAD), [[0, 0], [0, 1]])
    end = tf.range(tf.shape(ids)[1]) == tf.cast(tf.expand_dims(pieces.row_lengths(), 1), tf.int32)
    return tf.where(end, END, ids)


def between_ends(pieces: Any) -> Tensor:
    """A tokenizer's ragged ids (B, pieces) → ids (B, S), with the start id and the end id, padded."""
    import tensorflow as tf

    return tf.pad(with_end(pieces), [[0, 0], [1, 0]], constant_values=START)


def pieces_of(ids: Tensor) -> Any:
    """Emitted ids (rows, L) → ragged ids for a tokenizer, without end and pad."""
    import tensorflow as tf

    is_piece = (ids != PAD) & (ids != START) & (ids != END)
    lengths = tf.reduce_sum(
        tf.cast(is_piece, tf.int32), axis=1
    )  # LiteRT reads 64-bit integers as 32-bit ones, without an error
    # `tf.ragged.boolean_mask` does the same, with an operator that LiteRT lacks.
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(ids, is_piece), lengths, validate=False)
