"""What a user holds of a run: a pipeline around its model, the base of all tasks; or the vectors of its pieces."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Self, TypeVar

import numpy as np

from keras_transformer import ops
from keras_transformer.core.errors import RequestError
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.attention_maps import Attention
from keras_transformer.decoding.decoder import Decoder
from keras_transformer.runs.run_folder import (
    RunConfig,
    RunFolder,
    check_place,
    config_of_kind,
    float32_copy,
    load_model,
    read_config,
    read_tokenizers,
    write_run,
)
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import require_whole
from keras_transformer.text.lines import string_of
from keras_transformer.text.tokenizer import SPACE, UNKNOWN, Tokenizer

if TYPE_CHECKING:
    from keras_transformer.models.base import FamilyModel
    from keras_transformer.models.transformer import Transformer


Item = TypeVar("Item")


class Pipeline:
    """Holds a model, and what turns texts, or what else it is asked, into its inputs, and its outputs into answers.

    All tasks share what is here; the rest is the task's. The module `pipeline` of a task names its class `PIPELINE`.

    Attributes:
        task: the task of its runs, a key of `TASKS`.
        model: the model that answers.
        attention: the method that tells where the model looks; its first argument is what the model takes.
        takes_target: whether `attention` takes a second argument, what the model is to write.
        labels: in the order of the model's logits; none of a model without labels.
    """

    task: str
    model: Any
    attention: Callable[..., dict[str, Attention]]
    takes_target = False
    labels: Sequence[str] = ()

    def __repr__(self) -> str:
        model = self.model
        size = f"{model.count_params():,} parameters" if hasattr(model, "count_params") else "a graph in ONNX Runtime"
        layers = f"{model.num_layers} layers of width {model.hidden_dim}"
        return f"<{type(self).__name__}: {size}, {layers}, {self.details()}>"

    def details(self) -> str:
        """Tells for `repr` what sets it apart from others of its class."""
        raise NotImplementedError

    @classmethod
    def of_run(cls, model: Any, folder: RunFolder, config: RunConfig) -> Self:
        """Makes it of a model, of what a folder holds beside the model, and of what the run's config.json said.

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
        config = config_of_kind(RunFolder(run), TASKS[cls.task].kind)
        return cls.of_run(load_model(run), RunFolder(run), config)

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
        """Returns what an artefact says of it, beside what all artefacts say."""
        return {"labels": json.dumps(self.labels, ensure_ascii=False)} if self.labels else {}

    def save_vocabularies(self, folder: Path) -> None:
        """Writes its vocabularies into a folder, under the file names of a run folder."""
        paths = RunFolder(folder).tokenizers(separate=len({*self.tokenizers}) > 1)
        for path, tokenizer in zip(paths, self.tokenizers, strict=False):
            tokenizer.save(path.with_suffix(tokenizer.suffix))

    def sections(self) -> Config:
        """Returns what a run's config.json says of it, beside what all say."""
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
        """Returns the attentions of what a command line gives.

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
        """Finds the pieces whose vectors are nearest to a word's by cosine, the nearest first, without the word itself.

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
        """Finds the id of the piece that begins with a space and is the word, or else of the piece that is spelled so.

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
    """Tells whether the model of a run's `config.json` takes text."""
    return bool(TASKS[config.task].signature(config.sections).text_stem)


def load_piece_vectors(run: str | os.PathLike[str]) -> PieceVectors:
    """Loads the vectors of the run of a model of text; of a translator those of the source. Nothing in it is executed.

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
    """Returns the decoder of a model, or the decoder that is given."""
    if isinstance(model, Decoder):
        return model
    from keras_transformer.decoding.keras_decoder import KerasDecoder  # imports Keras

    return KerasDecoder(model)
