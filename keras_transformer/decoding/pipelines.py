"""The base of what a user holds of a run, and what it returns: hypotheses, scores, attentions, vectors of pieces."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from keras_transformer import ops
from keras_transformer.core.errors import RequestError
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.decoder import Decoder
from keras_transformer.runs.run_folder import (
    RunConfig,
    RunFolder,
    check_place,
    float32_copy,
    load_model,
    read_config,
    read_tokenizers,
    write_run,
)
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import require_whole
from keras_transformer.text.lines import string_of
from keras_transformer.text.sentences import Ids, batches_by_length, padded
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, LINE_BREAK, SPACE, START, UNKNOWN, Tokenizer

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel
    from keras_transformer.models.transformer import Transformer


Item = TypeVar("Item")


class Tokens(NamedTuple):
    """The tokens of a text.

    Args:
        labels: what each token is called.
        words: for each token the number of its word, from 0. Tokens of a word stand side by side.
    """

    labels: tuple[str, ...]
    words: tuple[int, ...]

    @classmethod
    def of_pieces(cls, pieces: Iterable[str]) -> Tokens:
        """Pieces of a vocabulary. A word begins with a space, so a script without spaces has words of many pieces."""
        labels = tuple(pieces)
        alone = {CONTROL_PIECES[START], CONTROL_PIECES[END], LINE_BREAK}
        begins = [
            place == 0 or piece.startswith(SPACE) or not alone.isdisjoint((piece, labels[place - 1]))
            for place, piece in enumerate(labels)
        ]
        return cls(labels, tuple((np.cumsum(begins, dtype=int) - 1).tolist()))

    @classmethod
    def of_whole(cls, labels: Iterable[str]) -> Tokens:
        """Tokens that are words by themselves, such as the items of a history."""
        labels = tuple(labels)
        return cls(labels, tuple(range(len(labels))))

    def joined(self) -> Tokens:
        """The words."""
        words = [""] * (self.words[-1] + 1 if self.words else 0)
        for label, word in zip(self.labels, self.words, strict=True):
            words[word] += label
        return Tokens.of_whole(word.removeprefix(SPACE) or word for word in words)

    def place_of(self, word: str) -> int:
        """The place, from 0, of the first token that is a word: as it stands, or between signs, as in `tired.`.

        Raises:
            RequestError: no token is this word.
        """
        plain = [label.removeprefix(SPACE) for label in self.labels]
        bare = [re.sub(r"^\W+|\W+$", "", label) for label in plain]
        parts = [word if word in re.split(r"\W+", label) else "" for label in plain]
        for names in (plain, bare, parts):
            if word in names:
                return names.index(word)
        raise RequestError(f"expected one of the words {' '.join(plain)}; received: {word}")


class Attention(NamedTuple):
    """One of a model's attentions: how much each query looks at each key.

    Args:
        queries: T tokens, those that look.
        keys: S tokens, those that are looked at.
        scores: (layers, heads, T, S) float32. A row sums to 1, or to 0 where a query sees no key.
    """

    queries: Tokens
    keys: Tokens
    scores: np.ndarray

    def joined(self) -> Attention:
        """The attention between words: a word's keys are added up, its queries are averaged.

        Reference: Clark et al. 2019, "What Does BERT Look At?" (arXiv 1906.04341), section 4.1.
        """
        by_key = np.add.reduceat(self.scores, _starts(self.keys), axis=3)
        by_word = np.add.reduceat(by_key, _starts(self.queries), axis=2)
        by_word /= np.bincount(self.queries.words)[:, None]
        return Attention(self.queries.joined(), self.keys.joined(), by_word.astype("float32"))

    def mean_distances(self) -> np.ndarray:
        """How far each head looks, (layers, heads), in tokens: near-sighted heads have small numbers.

        It has a meaning only in self-attention, where queries and keys are places of the same text.
        """
        distances = np.abs(np.arange(len(self.queries.labels))[:, None] - np.arange(len(self.keys.labels)))
        return (self.scores * distances).sum((2, 3)) / np.maximum(self.scores.sum((2, 3)), 1e-9)


def translation_attention(
    model: FamilyModel, source: Ids, target: Ids, tokenizers: tuple[Tokenizer, Tokenizer]
) -> dict[str, Attention]:
    """The attentions of a translator for a source and its translation in pieces, see `Translator.attention`."""
    encoded, read, written = [*source, END], [START, *target], [*target, END]
    sources, reads, writes = (
        Tokens.of_pieces(tokenizer.pieces(ids))
        for tokenizer, ids in zip((tokenizers[0], tokenizers[1], tokenizers[1]), (encoded, read, written), strict=True)
    )
    inputs = {"source_ids": padded([encoded]), "target_ids": padded([read])}
    return attention_of(
        model, inputs, {"encoder": (sources, sources), "decoder": (reads, reads), "cross": (writes, sources)}
    )


def text_attention(model: FamilyModel, ids: Ids, tokenizer: Tokenizer) -> dict[str, Attention]:
    """The attention of a model of one stack for a text in pieces."""
    tokens = Tokens.of_pieces(tokenizer.pieces(ids))
    return attention_of(model, {"ids": padded([ids])}, {"self": (tokens, tokens)})


def attention_of(
    model: FamilyModel, inputs: Mapping[str, np.ndarray], tokens: Mapping[str, tuple[Tokens, Tokens]]
) -> dict[str, Attention]:
    """The attentions of a model for one text.

    Args:
        model: a model of the family.
        inputs: as its `call` takes them, a batch of one.
        tokens: for each of its attentions the queries and the keys; for the only one of a stack under "self".
    """
    scores = model.attention_scores({name: ops.convert_to_tensor(array) for name, array in inputs.items()})
    by_name = scores if isinstance(scores, dict) else {"self": scores}
    arrays = {name: ops.convert_to_numpy(ops.cast(one, "float32"))[:, 0] for name, one in by_name.items()}
    return {name: Attention(*named, arrays[name]) for name, named in tokens.items()}


def _starts(tokens: Tokens) -> np.ndarray:
    """The place of the first token of each word."""
    return np.unique(tokens.words, return_index=True)[1]


@dataclass(frozen=True)
class Hypothesis:
    """One translation.

    Args:
        text: the translation, always one line.
        score: log P(y) / ((5 + |y|) / 6)^α, by which a search ranks its hypotheses.
        log_prob: log P(y), the natural logarithm of the model's probability.
        ids: the pieces that were emitted. The last is the end id, unless the translation was cut at its limit.
        alignment: empty unless `SearchOptions.alignments` is set. Otherwise one pair (source piece, target piece) for
            each target piece but the end, both counted from 0. The source piece is the one to which the model
            attends most when it predicts the target piece: in the encoder-decoder attention of the last decoder
            block but one, averaged over its heads (Garg et al. 2019, arXiv 1909.02074). The end of the source
            is never chosen.
    """

    text: str
    score: float
    log_prob: float
    ids: tuple[int, ...] = (END,)
    alignment: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True)
class Score:
    """The model's probability of a given translation.

    Args:
        log_prob: log P(y), the natural logarithm.
        num_tokens: |y| in pieces, the end included.
    """

    log_prob: float
    num_tokens: int

    def __repr__(self) -> str:
        return f"Score(log_prob={self.log_prob:.4f}, num_tokens={self.num_tokens}, perplexity={self.perplexity:.4g})"

    @property
    def perplexity(self) -> float:
        """exp(-log P(y) / |y|)."""
        return math.exp(min(-self.log_prob / self.num_tokens, 700.0))


def scores_of(
    log_probs: Callable[[list[Ids], list[Ids]], Iterable[float]],
    read: Sequence[Ids],
    written: Sequence[Ids],
    lengths: Sequence[int],
    batch_size: int,
) -> list[Score]:
    """The model's probability of what is written for each text that it reads.

    Args:
        log_probs: log P of each text of a batch.
        read, written: ids; those that are written have an end.
        lengths: texts of similar length are one batch.
        batch_size: the most texts in a batch.
    """
    scores = [Score(0.0, 1)] * len(lengths)
    for places in batches_by_length(lengths, batch_size):
        found = log_probs([read[place] for place in places], [written[place] for place in places])
        for place, log_prob in zip(places, found, strict=True):
            scores[place] = Score(float(log_prob), len(written[place]))
    return scores


class Pipeline:
    """A model with what stands between it and the world: the base of what a user holds of a run.

    The module `pipeline` of a task names its class `PIPELINE`.

    Attributes:
        task: the task of its runs, a key of `TASKS`.
        model: the model that answers.
        attention: the method that tells where the model looks; its first argument is what the model takes.
        takes_target: whether `attention` takes a second argument, what the model is to write.
        labels: in the order of the model's logits; none of a model without labels.
    """

    task: str
    model: Any
    attention: Any
    takes_target = False
    labels: Sequence[str] = ()

    def __repr__(self) -> str:
        model = self.model
        return (
            f"<{type(self).__name__}: {model.count_params():,} parameters, {model.num_layers} layers of width "
            f"{model.hidden_dim}, {self.details()}>"
        )

    def details(self) -> str:
        """Tells for `repr` what sets it apart from others of its class."""
        raise NotImplementedError

    @classmethod
    def of_run(cls, model: Any, folder: RunFolder) -> Self:
        """Makes it of a model, and of what a run folder holds beside the model.

        Raises:
            RequestError: a file is missing, damaged or not the model's.
        """
        raise NotImplementedError

    @classmethod
    def load(cls, run: str | os.PathLike[str]) -> Self:
        """Reads it from a run folder. Nothing in the folder is executed.

        Raises:
            RequestError: the folder holds no run of such a model, no model yet, or a file is damaged.
        """
        return cls.of_run(load_model(run, TASKS[cls.task].kind), RunFolder(run))

    @classmethod
    def imported(cls, found: Any) -> Self:
        """Makes it of a model that was read from another format, an `importing.weights.Imported`."""
        raise NotImplementedError

    @property
    def exported_model(self) -> FamilyModel:
        """The model that artefacts are made of."""
        return self.model

    @property
    def tokenizers(self) -> tuple[Tokenizer, ...]:
        """The vocabularies of what is read and of what is written; none without text."""
        return ()

    @property
    def names(self) -> Sequence[str]:
        """What the model chooses among, such as labels, in the order of its probabilities; none if among pieces."""
        return self.labels

    @property
    def own_search(self) -> Mapping[str, Any] | None:
        """The options of the search that the model brings; None if it does not search."""
        return None

    @property
    def longest_answer(self) -> int | None:
        """The most tokens that it ever adds; None if its context, or the source, sets the bound."""
        return None

    def about(self) -> dict[str, str]:
        """What an artefact says of it, beside what all artefacts say."""
        return {"labels": json.dumps(self.labels, ensure_ascii=False)} if self.labels else {}

    def save_vocabularies(self, folder: Path) -> None:
        """Writes its vocabularies into a folder, under the file names of a run folder."""
        paths = RunFolder(folder).tokenizers(separate=len({*self.tokenizers}) > 1)
        for path, tokenizer in zip(paths, self.tokenizers, strict=False):
            tokenizer.save(path.with_suffix(tokenizer.suffix))

    def sections(self) -> Config:
        """What a run's config.json says of it, beside what all say."""
        return {"labels": self.labels} if self.labels else {}

    def save(self, folder: str | os.PathLike[str], *, overwrite: bool = False) -> None:
        """Writes a run folder. The commands read it, and train.py takes it with --init-from.

        Args:
            folder: where to write; a new or empty folder.
            overwrite: whether to replace a run that is in the folder.

        Raises:
            RequestError: the folder is not empty, or the configuration lacks a part of the model.
        """
        path = Path(folder)
        check_place(path, overwrite)
        sections = {"corpus": {}, **self.sections()}
        write_run(
            path, overwrite, self.task, float32_copy(self.model), sections, lambda to: self.save_vocabularies(to.path)
        )

    def read(self, line: str) -> str | list[str]:
        """Returns what `attention` takes of a command line's text."""
        return line

    def attention_of_line(self, line: str, target: str | None = None) -> dict[str, Attention]:
        """The attentions of what a command line gives.

        Raises:
            RequestError: the model takes no target.
        """
        if self.takes_target:
            return self.attention(self.read(line), target)
        if target is not None:
            raise RequestError(f"--target is for models that write texts; a model of --task {self.task} writes none")
        return self.attention(self.read(line))


class TextPipeline(Pipeline):
    """The base of pipelines whose texts are of one vocabulary.

    Attributes:
        tokenizer: the vocabulary.
    """

    tokenizer: Tokenizer

    @property
    def tokenizers(self) -> tuple[Tokenizer, ...]:
        return self.tokenizer, self.tokenizer


def pipeline_of(task: str) -> type[Pipeline]:
    """Returns the class of what a user holds of a run of a task."""
    pipeline: type[Pipeline] = import_module(TASKS[task].pipeline).PIPELINE
    return pipeline


def in_batches(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    """Yields lists of `size` items, the last one perhaps shorter.

    Raises:
        RequestError: the size is not a whole number from 1.
    """
    require_whole("batch_size", size, 1)
    while some := list(islice(items, size)):
        yield some


class Neighbour(NamedTuple):
    """A piece, and the cosine between its vector and the one in question."""

    piece: str
    cosine: float


class PieceVectors:
    """The vectors of the pieces of a vocabulary. Threads may share them:

        vectors = keras_transformer.load_piece_vectors("runs/reviews")
        vectors.neighbours("good", 5)

    Args:
        vectors: (V, D), a row for each id.
        tokenizer: the vocabulary.
    """

    def __init__(self, vectors: np.ndarray, tokenizer: Tokenizer):
        self.vectors = vectors
        self.tokenizer = tokenizer
        lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
        self._directions = vectors / np.where(lengths > 0, lengths, 1)
        self._spellings = tokenizer.pieces(range(len(vectors)))
        # Without the control ids, which add nothing to a text, and the unknown.
        self._text = [id for id, surface in enumerate(tokenizer.surfaces()) if surface and id != UNKNOWN]

    def neighbours(self, word: str, count: int = 10) -> list[Neighbour]:
        """The pieces whose vectors are nearest to a word's by cosine, the nearest first, without the word itself.

        Args:
            word: a word that is one piece, or a piece as the vocabulary spells it.
            count: the most neighbours.

        Raises:
            RequestError: the vocabulary has no such piece, or the count is not a whole number from 1.
        """
        require_whole("count", count, 1)
        id = self.id(word)
        others = np.array([other for other in self._text if other != id], "int64")
        cosines = self._directions[others] @ self._directions[id]
        nearest = np.argsort(-cosines, kind="stable")[:count]
        return [Neighbour(self._spellings[others[place]], float(cosines[place])) for place in nearest]

    def id(self, word: str) -> int:
        """The id of the piece that begins with a space and is the word, or else of the piece that is spelled so.

        Raises:
            RequestError: there is none, or `word` is no string.
        """
        string_of(word)
        ids = {self._spellings[id]: id for id in self._text}
        for spelled in (SPACE + word, word):
            if word and spelled in ids:
                return ids[spelled]
        pieces = self.tokenizer.pieces(self.tokenizer.encode([word])[0])
        raise RequestError(
            f"expected a word that is one piece of the vocabulary; received {word!r:.60}, which is cut into "
            f"{' '.join(pieces) or 'nothing':.60}: give one of its pieces, or another word"
        )


def takes_text(config: RunConfig) -> bool:
    """Whether the model of a run's `config.json` takes text."""
    return bool(TASKS[config.task].signature(config.sections).text_stem)


def load_piece_vectors(run: str | os.PathLike[str]) -> PieceVectors:
    """The vectors of a run folder of a model of text; of a translator those of the source. Nothing in it is executed.

    Raises:
        RequestError: the folder holds no run of a model of text, no model yet, or a file is damaged.
    """
    folder = RunFolder(run)
    if not takes_text(whole := read_config(folder)):
        raise RequestError(
            f"{folder.path}: expected a model of text, with a vocabulary of pieces; received "
            f"{whole.kind}, which `{whole.main_command}` takes"
        )
    config = whole.model
    tokenizer, _ = read_tokenizers(folder, config.get("source_vocabulary_size"), config["vocabulary_size"])
    return PieceVectors(ops.convert_to_numpy(load_model(folder).input_embedding().embeddings), tokenizer)


def decoder_of(model: Transformer | Decoder) -> Decoder:
    """The decoder of a model, or the decoder that is given."""
    if isinstance(model, Decoder):
        return model
    from keras_transformer.decoding.keras_decoder import KerasDecoder  # imports Keras

    return KerasDecoder(model)
