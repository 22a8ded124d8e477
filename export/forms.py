"""What each kind of model is as an artefact: its files, what they take and give, and the function that is traced.

Letters in shapes: B texts, S ids of a text, P of a prompt, L of what is emitted, n hypotheses, C labels, I items and F
pieces that are listed, D width.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from keras_transformer import ops
from keras_transformer.decoding.computations import likeliest_pieces
from keras_transformer.layers.attention import HIDDEN
from keras_transformer.models.encoder import mean_state
from keras_transformer.tensor import Tensor
from keras_transformer.text.tokenizer import END, PAD, SEPARATOR

from .signatures import Decoding, TrainedRun
from .traced import between_ends, continue_ids, encoded, known, moved, permitted, translate_ids, with_end

# The text that SavedModel and ONNX clean, as regular expressions (RE2). LiteRT has no operator for them.
LINE_BREAKS = r"[\x00\n\r]"
BLANK = r"^[\p{Z}\p{Cc}\p{Cf}]*$"
ONE_LINE = (LINE_BREAKS, " ")
NUM_FILLS = 5
NUM_ITEMS = 20

Outputs = dict[str, Tensor]
Texts = Callable[[Tensor], Tensor]  # ids (B, L) → strings (B,)


class Output(NamedTuple):
    """What an artefact gives for each text."""

    type: str  # "int32", "float32" or "text"
    axes: str = ""  # behind the batch, a letter each; see this module


IDS, TEXT, SCORE, VECTOR = Output("int32", "L"), Output("text"), Output("float32"), Output("float32", "D")


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
    has_start = False  # whether the start id stands before the pieces of a text that it takes
    closing = END  # the id behind them
    is_one_line = True  # whether texts that it gives are of one line
    ids_outputs: ClassVar[dict[str, Output]]  # what the file that takes ids gives
    text_outputs: ClassVar[dict[str, Output]]

    def __init__(self, run: TrainedRun, model: Any, decoding: Decoding | None = None, index_dtype: str | None = None):
        self.run = run
        self.model = model
        self.decoding = decoding or run.decoding()
        self.index_dtype = index_dtype

    def signatures(self) -> dict[str, Callable[[Any, Texts], Outputs]]:
        """The functions of a SavedModel, by the names of its signatures; each is as `of_pieces`."""
        return {"serving_default": self.of_pieces}

    @classmethod
    def outputs(cls, signature: str, takes_text: bool) -> dict[str, Output]:
        """What a signature gives; one without a name is the only one of its file."""
        return cls.text_outputs if takes_text else cls.ids_outputs

    @property
    def max_pieces(self) -> int:
        """The most pieces of a text that it reads."""
        return np.iinfo("int32").max

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

    def named(self, ids: Tensor) -> Outputs:
        """What the SavedModel of a model without text gives: `of_ids`, and the names of labels or items."""
        raise NotImplementedError


class Searching(Form):
    """The base of the forms of models that search.

    The outputs are the ids of the best hypothesis, or its text, and its score; or the texts of all and their scores.
    """

    def signatures(self) -> dict[str, Callable[[Any, Texts], Outputs]]:
        return {**super().signatures(), "n_best": self.n_best}

    @classmethod
    def outputs(cls, signature: str, takes_text: bool) -> dict[str, Output]:
        if signature != "n_best":
            return super().outputs(signature, takes_text)
        return {f"{next(iter(cls.text_outputs))}s": Output("text", "n"), "scores": Output("float32", "n")}

    def of_ids(self, ids: Tensor) -> Outputs:
        ids, scores = self.search(ids, self.decoding.one_best())
        return {next(iter(self.ids_outputs)): ids[:, 0], "score": scores[:, 0]}

    def of_pieces(self, pieces: Any, texts: Texts) -> Outputs:
        ids, scores = self.search(self.ids_of(pieces), self.decoding.one_best())
        # LiteRT's detokenizer reports one text, however many it gives; `take` sets the right shape.
        best = ops.take(texts(ids[:, 0]), ops.arange(ops.shape(scores)[0]))
        return {next(iter(self.text_outputs)): best, "score": scores[:, 0]}

    def n_best(self, pieces: Any, texts: Texts) -> Outputs:
        """The texts (B, n) and scores (B, n) of the best hypotheses."""
        ids, scores = self.search(self.ids_of(pieces), self.decoding)
        rows = ops.reshape(ids, (-1, ops.shape(ids)[2]))
        found = ops.reshape(texts(rows), ops.shape(scores)), scores
        return dict(zip(self.outputs("n_best", True), found, strict=True))

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

    ids_outputs, text_outputs = {"target_ids": IDS, "score": SCORE}, {"translation": TEXT, "score": SCORE}

    @property
    def max_pieces(self) -> int:
        return self.model.max_source_length

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
    closing = PAD
    ids_outputs, text_outputs = {"added_ids": IDS, "score": SCORE}, {"continuation": TEXT, "score": SCORE}

    def ids_of(self, pieces: Any) -> Tensor:
        return pieces.to_tensor(PAD)

    def search(self, ids: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
        return continue_ids(self.model, ids, decoding, self.index_dtype)


class Answering(Continuation):
    """A language model of pairs: prompt ids, pieces and the separator (the end id) → the ids of the answer, the score.

    Of a prompt that leaves no room for the longest answer the beginning counts.
    """

    cleaning = (ONE_LINE,)
    is_one_line = True
    closing = SEPARATOR

    def ids_of(self, pieces: Any) -> Tensor:
        return with_end(pieces)

    def search(self, ids: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
        return super().search(permitted(ids, self.model.vocabulary_size, longest_prompt(self.run)), decoding)


def longest_prompt(run: TrainedRun) -> int:
    """The most pieces of a prompt that a model answers."""
    return run.model.context_length - run.answer_length - 1


class Reading(Form):
    """The base of the forms of encoders, whose texts stand between start and end."""

    kind, takes, has_start = "encoder", "ids", True

    @property
    def max_pieces(self) -> int:
        return self.model.context_length - 2


class Labelling(Reading):
    """An encoder with labels: ids → the probability of each label, and a vector."""

    ids_stem, text_stem = "classify", "classify_text"
    ids_outputs = {"probabilities": Output("float32", "C"), "vector": VECTOR}
    text_outputs = {"label": TEXT, **ids_outputs}

    def of_ids(self, ids: Tensor) -> Outputs:
        ids, states = encoded(self.model, ids)
        logits = ops.cast(self.model.logits_of(states), "float32")
        return {"probabilities": ops.softmax(logits), "vector": mean_state(states, ids)}

    def of_pieces(self, pieces: Any, texts: Texts) -> Outputs:
        found = self.of_ids(between_ends(pieces))
        return {"label": likeliest(self.run.labels, found["probabilities"]), **found}


class Filling(Reading):
    """An encoder of masked tokens: ids → the likeliest pieces at each place, and a vector; text → a vector."""

    ids_stem, text_stem = "fill", "embed_text"
    ids_outputs = {"piece_ids": Output("int32", "SF"), "probabilities": Output("float32", "SF"), "vector": VECTOR}
    text_outputs = {"vector": VECTOR}

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
    ids_outputs = {"probabilities": Output("float32", "C"), "vector": VECTOR}
    text_outputs = {"label": TEXT, **ids_outputs}

    def spec(self) -> Any:
        import tensorflow as tf

        return tf.TensorSpec([None, *self.model.image_shape], tf.uint8, name=self.takes)

    def padded(self, ids: Tensor) -> Tensor:
        return ids

    def of_ids(self, ids: Tensor) -> Outputs:
        vector = self.model.states(ids)[:, 0]
        logits = ops.cast(self.model.head(vector), "float32")
        return {"probabilities": ops.softmax(logits), "vector": ops.cast(vector, "float32")}

    def named(self, ids: Tensor) -> Outputs:
        found = self.of_ids(ids)
        return {"label": likeliest(self.run.labels, found["probabilities"]), **found}


class Recommending(Form):
    """A model of histories: ids, the start id and then items, the oldest first → the likeliest next items, a vector.

    Of a history that is longer than the context the last items count.
    """

    kind, ids_stem, text_stem = "sequence-encoder", "recommend", ""
    takes = "ids"
    ids_outputs = {"item_ids": Output("int32", "I"), "probabilities": Output("float32", "I"), "vector": VECTOR}
    text_outputs = {"items": Output("text", "I"), **ids_outputs}

    def of_ids(self, ids: Tensor) -> Outputs:
        model = self.model
        ids = known(self.padded(ids), model.vocabulary_size)
        last = model.context_length - 1
        count = ops.sum(ops.cast(ids[:, 1:] != PAD, "int32"), axis=-1)  # (B,)
        ids = ops.concatenate([ids[:, :1], moved(ids[:, 1:], ops.maximum(count - last, 0))[:, :last]], axis=1)
        vector = model.embed(ids)
        scores = ops.cast(model.output_embedding.logits(vector), "float32")
        is_item = ops.arange(model.vocabulary_size) >= model.num_control_ids
        probabilities, items = ops.top_k(ops.softmax(ops.where(is_item, scores, HIDDEN)), num_listed(model))
        return {"item_ids": ops.cast(items, "int32"), "probabilities": probabilities, "vector": vector}

    def named(self, ids: Tensor) -> Outputs:
        import tensorflow as tf

        found = self.of_ids(ids)
        return {"items": tf.gather(self.run.items, found["item_ids"] - self.model.num_control_ids), **found}


def num_listed(model: Any) -> int:
    """How many items a model of histories lists."""
    return min(NUM_ITEMS, model.vocabulary_size - model.num_control_ids)


def form_of(run: TrainedRun) -> type[Form]:
    """The form of a run's model."""
    return form_called(run.model.kind, bool(run.labels), bool(run.answer_length))


def form_called(kind: str, has_labels: bool, has_answers: bool) -> type[Form]:
    """The form of models of a kind, with labels or not, and of pairs or not."""
    if kind == "encoder":
        return Labelling if has_labels else Filling
    if has_answers:
        return Answering
    return {form.kind: form for form in (Translation, Continuation, Recognition, Recommending)}[kind]


def likeliest(labels: Sequence[str], probabilities: Tensor) -> Tensor:
    """The likeliest label (B,) of probabilities (B, C)."""
    import tensorflow as tf

    # Keras's own `argmax` takes bits, which LiteRT cannot.
    return tf.gather(labels, tf.argmax(probabilities, axis=-1, output_type=tf.int32))
