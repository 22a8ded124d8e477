"""Defines what artefacts take and give, and the reference answers of the model: the base classes of all tasks.

Letters in shapes: B texts, S ids of a text, L of what is emitted, n hypotheses, C labels, I items and F pieces that are
listed, D width. B may be 0. Outputs have at least one S, and at most as many as the model reads.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple

import numpy as np

from keras_transformer import ops
from keras_transformer.checking.certificate_texts import QUICK_TEXTS, Texts, long_texts, odd_texts
from keras_transformer.checking.probes import ComputedProbe, images_of_shape, rows_of_ids
from keras_transformer.core.errors import RequestError, say
from keras_transformer.core.lazy import tf
from keras_transformer.core.schema import parse_json
from keras_transformer.ops import Tensor
from keras_transformer.runs.run_folder import LABELS, RunConfig, RunFolder
from keras_transformer.search.loop import Cache, Step
from keras_transformer.spec.search_options import Decoding, longest, times_as_long
from keras_transformer.text.lines import is_blank, read_lines
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN, Tokenizer

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel

# The text that SavedModel and ONNX clean, as regular expressions (RE2). LiteRT has no operator for them.
LINE_BREAKS = r"[\x00\n\r]"
BLANK = r"^[\p{Z}\p{Cc}\p{Cf}]*$"
ONE_LINE = (LINE_BREAKS, " ")
NUM_FILLS = 5  # pieces of a place that are listed
NUM_ITEMS = 20  # that are listed
MOST_STORED = 40  # choices of a text, where the model is not there
DIVISIONS = 8  # how many ways to divide a text into pieces are compared with what an artefact chose
Ids = tuple[int, ...]
Choice = str | int  # a label, an item, or the id of a piece
Outputs = dict[str, Tensor]
Detokenize = Callable[[Tensor], Tensor]  # ids (B, L) → strings (B,)


def valid_ids(ids: Tensor, vocabulary_size: int, max_length: int) -> Tensor:
    """Replaces ids that the vocabulary lacks by unknown; cuts rows of more than `max_length` pieces, and ends them."""
    ids = known_ids(ids, vocabulary_size)[:, : max_length + 1]
    last = ops.arange(ops.shape(ids)[1]) == max_length
    return ops.where(last & (ids != PAD), END, ids)


def known_ids(ids: Tensor, vocabulary_size: int) -> Tensor:
    """Removes pad in front of ids (B, S), and replaces those that the vocabulary lacks by unknown."""
    begun = ops.cumsum(ops.cast(ids != PAD, "int32"), axis=1)  # (B, S) 0 in front of the first id
    ids = rows_from(ids, ops.sum(ops.cast(begun == 0, "int32"), axis=1))
    return ops.where((ids >= 0) & (ids < vocabulary_size), ids, UNKNOWN)


def with_a_column(ids: Tensor) -> Tensor:
    """Gives ids (B, 0) a column of pad, because not all operators take no numbers; others (B, S) stay."""
    batch_size, width = ops.shape(ids)
    return ops.concatenate([ids, ops.full((batch_size, 1 - ops.minimum(width, 1)), PAD, "int32")], axis=1)


def rows_from(ids: Tensor, starts: Tensor) -> Tensor:
    """Shifts rows (B, S) to the left: each begins with its start (B,), and ends with pad."""
    width = ops.shape(ids)[1]
    places = ops.arange(width, dtype="int32") + starts[:, None]
    rows = ops.take_along_axis(ids, ops.minimum(places, width - 1), axis=1)
    return ops.where(places < width, rows, PAD)


def limits_of(source_ids: Tensor, decoding: Decoding | None = None) -> Tensor:
    """Returns (B,) the most ids to emit: the source's length without pad and end, + 50, or less; 0 for a blank source.

    Args:
        source_ids: (B, S).
        decoding: a search that allows fewer.
    """
    lengths = ops.sum(ops.cast((source_ids != PAD) & (source_ids != END), "int32"), axis=-1)
    limits = ops.where(lengths > 0, longest(lengths), 0)
    if decoding is not None and decoding.max_length is not None:
        limits = ops.minimum(limits, decoding.max_length)
    if decoding is not None and decoding.max_length_factor is not None:
        limits = ops.minimum(limits, times_as_long(lengths, decoding.max_length_factor))
    return limits


def longest_of(lengths: Tensor) -> Tensor:
    """Returns the largest of lengths (B,) int32; at least 1, and 1 for an empty batch."""
    return ops.max(ops.concatenate([lengths, ops.ones((1,), "int32")], axis=0))


def with_end(pieces: Tensor) -> Tensor:
    """Pads a tokenizer's ragged ids (B, pieces) to ids (B, S), with the end id."""
    ids = tf.pad(pieces.to_tensor(PAD), [[0, 0], [0, 1]])
    end = tf.range(tf.shape(ids)[1]) == tf.cast(tf.expand_dims(pieces.row_lengths(), 1), tf.int32)
    return tf.where(end, END, ids)


def between_ends(pieces: Tensor) -> Tensor:
    """Pads a tokenizer's ragged ids (B, pieces) to ids (B, S), with the start id and the end id."""
    return tf.pad(with_end(pieces), [[0, 0], [1, 0]], constant_values=START)


def pieces_of(ids: Tensor) -> Tensor:
    """Returns emitted ids (rows, L) as ragged ids for a tokenizer, without end and pad."""
    is_piece = (ids != PAD) & (ids != START) & (ids != END)
    lengths = tf.reduce_sum(
        tf.cast(is_piece, tf.int32), axis=1
    )  # LiteRT reads 64-bit integers as 32-bit ones, without an error
    # `tf.ragged.boolean_mask` does the same, with an operator that LiteRT lacks.
    return tf.RaggedTensor.from_row_lengths(tf.boolean_mask(ids, is_piece), lengths, validate=False)


class Output(NamedTuple):
    """What an artefact gives for each text."""

    type: str  # "int32", "float32" or "text"
    axes: str = ""  # behind the batch, a letter each; see this module


IDS, TEXT, SCORE, VECTOR = Output("int32", "L"), Output("text"), Output("float32"), Output("float32", "D")


class ReferenceAnswer(NamedTuple):
    """A hypothesis of the model."""

    ids: Ids  # with its end, unless it was cut
    text: str
    score: float


class SearchStart(NamedTuple):
    """A search for one text that has not taken a step.

    Args:
        step, cache: the step and cache of the model.
        prompt_length: how many positions a prompt has that stands before what is emitted.
        read_ids: (1, 1 + P) what is read from position 0 on, if there is a prompt.
    """

    step: Step
    cache: Cache
    prompt_length: int = 0
    read_ids: Tensor | None = None


class Vocabularies:
    """Converts text to ids and back, as the model's own pipeline does.

    Args:
        signature: what the model's artefacts take and give.
        source, target: the vocabularies of what is read and of what is written.
    """

    def __init__(self, signature: type[Signature], source: Tokenizer, target: Tokenizer):
        self.source, self.target = source, target
        self.signature = signature

    def read(self, text: str) -> list[int]:
        """Returns the pieces of a text that the model reads."""
        if self.signature.empties_blank and is_blank(text):
            return []
        return self.source.encode([text])[0] if self.signature.is_one_line else self.source.encode_text(text)

    def text_of(self, ids: Sequence[int]) -> str:
        """Returns the text of ids that the model writes."""
        return self.target.decode([ids])[0] if self.signature.is_one_line else self.target.decode_text(ids)

    def written(self, text: str) -> Iterator[list[int]]:
        """Returns the ids with which the model may have written a text, without an end."""
        yield self.target.encode([text])[0] if self.signature.is_one_line else self.target.encode_text(text)
        yield from self.target.divisions(text, DIVISIONS)


class ReferenceSearch(ABC):
    """What a model that searches answers to texts, each by its place."""

    vocabularies: Vocabularies
    num_control_ids: int
    context = 0  # a language model's
    beginning: Sequence[int] = ()  # the ids with which each answer begins
    has_model = True  # whether any answer can be scored

    @abstractmethod
    def hypotheses(self) -> list[list[ReferenceAnswer]]:
        """Returns the hypotheses of each text, the best first."""

    @abstractmethod
    def pieces(self, place: int) -> list[int]:
        """Returns the ids of a text as its tokenizer cuts it, without tags."""

    @abstractmethod
    def given(self, place: int) -> list[int]:
        """Returns the ids that an artefact of ids is given."""

    @abstractmethod
    def read(self, place: int) -> list[int]:
        """Returns the ids that the model reads of the text."""

    @abstractmethod
    def limit(self, place: int) -> int:
        """Returns the most ids to emit."""

    @abstractmethod
    def log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        """Returns log P of these ids as answers to the texts at these places; NaN if nobody can say."""

    def attention(self, places: Sequence[int], rows: Sequence[Ids]) -> list[np.ndarray]:
        """Returns how much each token of these answers, without ends, looks at each piece that is read: (T, S), see
        `Transformer.alignment_weights`; of a model that is not there, or tells nothing, the same for all."""
        return [np.zeros((len(row), len(self.read(place)) - 1)) for place, row in zip(places, rows, strict=True)]

    @abstractmethod
    def search_start(self, place: int) -> SearchStart | None:
        """Returns the search for a text before its first step; None if the model is not there."""


class Ranking(NamedTuple):
    """How probable the model finds the labels, the pieces of a place, or the items.

    Args:
        probabilities: that of each choice, the best first.
        others: the most that a choice has that is not among them.
    """

    probabilities: Mapping[Choice, float]
    others: float = 0.0

    @property
    def best(self) -> Choice:
        """The likeliest choice."""
        return next(iter(self.probabilities))

    def gap(self, choice: Choice, probability: float) -> float:
        """Returns how far a probability is from the model's for this choice."""
        if choice in self.probabilities:
            return abs(probability - self.probabilities[choice])
        return max(0.0, probability - self.others)

    def shortened(self) -> Ranking:
        """Returns the ranking of the best choices alone."""
        listed = [*self.probabilities.items()]
        others = max([self.others, *(probability for _, probability in listed[MOST_STORED:])])
        return Ranking(dict(listed[:MOST_STORED]), others)

    def loss(self, choice: Choice) -> float:
        """Returns how much less probable the model finds a choice than its best one."""
        return self.probabilities[self.best] - self.probabilities.get(choice, 0.0)


class ReferenceOutputs(NamedTuple):
    """What the model gives for a text: a ranking, or one for each place; and a vector (D,)."""

    rankings: list[Ranking]
    vector: np.ndarray


def ranking_of(labels: Sequence[Choice], probabilities: np.ndarray) -> Ranking:
    """Ranks choices, such as labels, by their probabilities."""
    return Ranking({labels[place]: float(probabilities[place]) for place in np.argsort(-probabilities, kind="stable")})


class Signature:
    """What an artefact takes and gives, and what its model answers: the base of the signatures of the tasks.

    Args:
        pipeline: what is exported.
        model: its model, perhaps in another precision.
        decoding: the options of the search, for models that search.
        index_dtype: as for `beam_search`.
        num_listed: how many choices are listed, of models that list some; by default as many as the task lists.
    """

    mark: ClassVar[str | None] = None  # a key that the configuration of such a run has, where a task has several
    ids_stem: ClassVar[str]  # the name of the file that takes ids
    text_stem: ClassVar[str]  # the name of the file that takes text
    aligned_stem = ""  # the name of the ONNX file that takes ids and tells alignments too
    takes = "source_ids"  # the name of its input
    input_type = "int32"
    cleaning: ClassVar[tuple[tuple[str, str], ...]] = (ONE_LINE,)  # what is replaced in a text, and by what
    empties_blank = False  # whether a text of white space alone counts as empty
    has_start = False  # whether the start id stands before the pieces of a text that it takes
    closing = END  # the id behind them
    is_one_line = True  # whether texts that it gives are of one line
    halves: ClassVar[tuple[str, ...]] = ()  # the ONNX graphs for callers with a loop of their own
    noun = "answers"  # what it gives, in certificates
    has_references = False  # whether references tell how good its texts are
    ids_outputs: ClassVar[dict[str, Output]]  # what the file that takes ids gives
    text_outputs: ClassVar[dict[str, Output]]

    def __init__(
        self,
        pipeline: Any,
        model: FamilyModel,
        decoding: Decoding | None = None,
        index_dtype: str | None = None,
        num_listed: int | None = None,
    ):
        self.pipeline = pipeline
        self.model = model
        self.decoding = decoding or Decoding.of(pipeline)
        self.index_dtype = index_dtype
        self.num_listed = num_listed

    def signatures(self) -> dict[str, Callable[[Tensor, Detokenize], Outputs]]:
        """Returns the functions of a SavedModel, by the names of its signatures; each is as `of_pieces`."""
        return {"serving_default": self.of_pieces}

    def ids_signatures(self) -> dict[str, Callable[[Tensor], Outputs]]:
        """Returns the functions of a SavedModel without text, and of a TFLite file of ids, beside the main one."""
        return {}

    @classmethod
    def names_of_signatures(cls, takes_text: bool) -> list[str]:
        """Returns the names of the signatures that a SavedModel has beside "serving_default"."""
        return []

    @classmethod
    def outputs(cls, signature: str, takes_text: bool) -> dict[str, Output]:
        """Returns what a signature gives; one without a name is the only one of its file."""
        return cls.text_outputs if takes_text else cls.ids_outputs

    @property
    def max_pieces(self) -> int:
        """The most pieces of a text that an artefact reads; it cuts the others."""
        return self.most_read(self.model)

    def item_shape(self) -> tuple[int, ...] | None:
        """Returns the shape of one input behind the batch; None for rows of ids, of any length."""
        return None

    def spec(self) -> Any:
        """Returns TensorFlow's description of the input of the file that takes ids."""
        return tf.TensorSpec([None, *(self.item_shape() or [None])], self.input_type, name=self.takes)

    def opened(self, ids: Tensor) -> Tensor:
        """Ids (B, S) of the pieces of texts, each with the id that closes them → what `of_ids` takes."""
        return ops.pad(ids, [[0, 0], [1, 0]], constant_values=START) if self.has_start else ids

    def taken(self, ids: Tensor) -> Tensor:
        """Turns what an artefact is given into what `of_ids` takes."""
        return ids if self.item_shape() else with_a_column(ids)

    def of_ids(self, ids: Tensor) -> Outputs:
        """Returns what the file that takes ids gives for ids (B, S), padded with 0; S is at least 1."""
        raise NotImplementedError

    def of_pieces(self, pieces: Tensor, texts: Detokenize) -> Outputs:
        """Returns what the file that takes text gives for the ragged ids (B, pieces) of a tokenizer."""
        raise NotImplementedError

    def named(self, ids: Tensor) -> Outputs:
        """Returns what a SavedModel without text gives: `of_ids`, and the names of labels or items if it has some."""
        return self.of_ids(self.taken(ids))

    def probe(self) -> ComputedProbe:
        """Returns what the model gives for a few inputs that are made up, by which graphs check themselves."""
        shape, model = self.item_shape(), self.model
        if shape:
            inputs = images_of_shape((2, *shape))
        else:
            inputs = rows_of_ids(model.num_control_ids, model.vocabulary_size, model.context_length)
        found = self.of_ids(self.taken(ops.convert_to_tensor(inputs)))
        return ComputedProbe([inputs], [ops.convert_to_numpy(found[name]) for name in self.ids_outputs])

    @classmethod
    def validation(cls, folder: RunFolder, config: RunConfig) -> tuple[list[Any], list[str] | None]:
        """Returns what the artefacts of a run are certified on, and references; the first lines of its text.

        Raises:
            RequestError: the run has none.
        """
        return first_lines(folder.valid_text), None

    @classmethod
    def texts(cls, pipeline: Any, given: Sequence[Any]) -> Texts:
        """Returns the texts to certify on: the probes that every run of the task gets, and those that are given.

        A text that a runtime's SentencePiece may read in other pieces is left out, unless it has a reference. A message
        counts the texts that are left out.
        """
        tokenizer = pipeline.tokenizers[0]
        kept = [text for text in given if cls.has_references or not tokenizer.is_ambiguous(text)] or list(given)
        if num_left := len(given) - len(kept):
            say(f"{num_left} text(s) can be read in other pieces as well, so they are not certified on")
        line = next((line for line in kept if line.strip()), "")
        most = cls.most_read(pipeline.exported_model)
        return Texts(long_texts(line, most, lambda text: len(tokenizer.encode([text])[0])), odd_texts(tokenizer), kept)

    @classmethod
    def most_read(cls, model: FamilyModel) -> int:
        """Returns the most pieces of a text that a model reads."""
        return model.context_length - 2

    @classmethod
    def inputs(cls, pipeline: Any, texts: Sequence[object]) -> list[Any]:
        """Returns the input of an artefact of ids for each text; for models that do not search."""
        raise NotImplementedError

    @classmethod
    def reference_outputs(cls, pipeline: Any, texts: Sequence[object]) -> list[ReferenceOutputs]:
        """Returns the answers of a model that does not search."""
        raise NotImplementedError

    @classmethod
    def reference_search(cls, pipeline: Any, texts: Sequence[str], decoding: Decoding) -> ReferenceSearch:
        """Returns the answers of a model that searches."""
        raise NotImplementedError

    @classmethod
    def names_in(cls, folder: RunFolder, about: Mapping[str, str]) -> list[str]:
        """Returns what the model of an export chooses among, see `Pipeline.names`."""
        return parse_json(about.get("labels", "[]"), LABELS)

    @classmethod
    def names_file(cls, folder: RunFolder) -> Path | None:
        """Returns the file of an export with the names that the model chooses among, if it has one."""
        return None

    @classmethod
    def stored_texts(cls, stored: Sequence[Mapping[str, object]], config: Mapping[str, object]) -> list[Any]:
        """Returns the texts that a certificate keeps."""
        return [one["text"] for one in stored]


@cache
def of_ids_alone(signature: type[Signature]) -> type[Signature]:
    """Returns the signature of a model whose vocabulary no runtime reads: no artefact takes its text."""
    return type(signature.__name__, (signature,), {"text_stem": "", "__doc__": signature.__doc__})


class Searching(Signature):
    """The base of the signatures of models that search.

    The outputs are the ids of the best hypothesis, or its text, and its score; or the texts of all and their scores.
    """

    def signatures(self) -> dict[str, Callable[[Tensor, Detokenize], Outputs]]:
        return {**super().signatures(), "n_best": self.n_best}

    @classmethod
    def names_of_signatures(cls, takes_text: bool) -> list[str]:
        return ["n_best"] if takes_text else []

    @classmethod
    def outputs(cls, signature: str, takes_text: bool) -> dict[str, Output]:
        if signature != "n_best":
            return super().outputs(signature, takes_text)
        return {f"{next(iter(cls.text_outputs))}s": Output("text", "n"), "scores": Output("float32", "n")}

    def of_ids(self, ids: Tensor) -> Outputs:
        ids, scores = self.search(ids, self.decoding.one_best())
        return {next(iter(self.ids_outputs)): ids[:, 0], "score": scores[:, 0]}

    def of_pieces(self, pieces: Tensor, texts: Detokenize) -> Outputs:
        ids, scores = self.search(self.ids_of(pieces), self.decoding.one_best())
        # LiteRT's detokenizer reports one text, however many it gives; `take` sets the right shape.
        best = ops.take(texts(ids[:, 0]), ops.arange(ops.shape(scores)[0]))
        return {next(iter(self.text_outputs)): best, "score": scores[:, 0]}

    def n_best(self, pieces: Tensor, texts: Detokenize) -> Outputs:
        """Returns the texts (B, n) and scores (B, n) of the best hypotheses."""
        ids, scores = self.search(self.ids_of(pieces), self.decoding)
        rows = ops.reshape(ids, (-1, ops.shape(ids)[2]))
        found = ops.reshape(texts(rows), ops.shape(scores)), scores
        return dict(zip(self.outputs("n_best", True), found, strict=True))

    def ids_of(self, pieces: Tensor) -> Tensor:
        """Returns what the search takes of ragged ids (B, pieces)."""
        raise NotImplementedError

    def search(self, ids: Tensor, decoding: Decoding) -> tuple[Tensor, Tensor]:
        """ids (B, n, L) and scores (B, n)."""
        raise NotImplementedError


def likeliest_labels(labels: Sequence[str], probabilities: Tensor) -> Tensor:
    """Returns the likeliest label (B,) of probabilities (B, C)."""
    # Keras's own `argmax` takes bits, which LiteRT cannot.
    return tf.gather(labels, tf.argmax(probabilities, axis=-1, output_type=tf.int32))


def first_lines(path: Path, text_of: Callable[[str], str] = str) -> list[str]:
    """Reads the first texts of a run's validation text that are not blank.

    Args:
        path: the file.
        text_of: what of a line is the text.

    Raises:
        RequestError: there is no such file.
    """
    if not path.is_file():
        raise RequestError(f"{path.parent} has no validation text: give some lines by --sentences")
    return list(islice((text for text in map(text_of, read_lines(path)) if text.strip()), QUICK_TEXTS))
