"""Classifies, fills, embeds and recommends for many clients at once: JSON in, JSON out, in the scheduler's batches.

The answers are those of the commands. What a command cuts and warns of is refused here, or told in the answer.
"""

from __future__ import annotations

import base64
import binascii
import io
import warnings
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from keras_transformer.commands.graph_cache import Engine, open_model
from keras_transformer.core.errors import RequestError
from keras_transformer.core.schema import shown
from keras_transformer.decoding.computations import LabelProbs
from keras_transformer.decoding.onnx_graphs import OnnxComputations
from keras_transformer.decoding.pipelines import Pipeline, pipeline_of
from keras_transformer.runs.export_folder import Graphs
from keras_transformer.runs.run_folder import config_of
from keras_transformer.serving.batching import Item, Refusal, Request, Scheduler
from keras_transformer.tasks.classification.pipeline import Classifier, Prediction
from keras_transformer.tasks.next_item.pipeline import Recommender
from keras_transformer.text.sentences import Ids

if TYPE_CHECKING:
    from keras_transformer.tasks.images.pipeline import Recognizer

JSON: TypeAlias = Any  # what a request has, and what an answer has
MOST_PIXELS = 2**24  # of an image
DIGITS = 4  # of a probability, as the commands print it


class Read(NamedTuple):
    """An input as the model takes it.

    Args:
        payload: such as ids.
        num_tokens: its size in a batch.
        told: what its answer tells beside what the model finds.
    """

    payload: object
    num_tokens: int
    told: dict[str, JSON]


@dataclass(frozen=True)
class Verb:
    """What a model does with its inputs, with its options: the base. It is a `batching.Batched`.

    Args:
        model: the name of the model.
        pipeline: the model.
        num_listed: how many choices its graph lists; None for all.
    """

    model: str
    pipeline: Any
    num_listed: int | None = None

    def read(self, given: JSON) -> Read:
        """Reads an input. Raises RequestError if it is none, and Refusal if it is too long."""
        raise NotImplementedError

    def run(self, payloads: Sequence[Any]) -> Sequence[dict[str, JSON]]:
        """Returns the answers of a batch."""
        raise NotImplementedError

    def _require_listed(self, name: str, count: int) -> None:
        most, model = self.num_listed, self.pipeline.model
        if most and most < min(count, model.vocabulary_size - model.num_control_ids):
            raise RequestError(f"{name} must be at most {most}, as many as the model lists; received: {count}")

    def _read_text(self, given: JSON, encode: Callable[[str], Ids]) -> Read:
        if not isinstance(given, str):
            raise RequestError(f"expected texts as inputs; received {shown(given)}")
        ids, most = encode(given), self.pipeline.model.context_length - 2
        if len(ids) > most:
            raise Refusal(413, "too_long", f"expected texts of at most {most} tokens; received one of {len(ids)}")
        return Read(ids, len(ids) + 2, {})

    def _read_history(self, given: JSON) -> Read:
        if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
            raise RequestError(f"expected histories as inputs, lists of items; received {shown(given)}")
        recommender: Recommender = self.pipeline
        ids, most = recommender.items.encode(given), recommender.model.context_length - 1
        told = {"num_unknown": len(given) - len(ids), "num_left_out": max(len(ids) - most, 0)}
        return Read(ids[-most:], min(len(ids), most) + 1, told)


@dataclass(frozen=True)
class Classify(Verb):
    """Tells the likeliest label of texts."""

    def read(self, given: JSON) -> Read:
        return self._read_text(given, lambda text: self.pipeline.tokenizer.encode([text])[0])

    def run(self, payloads: Sequence[Any]) -> Sequence[dict[str, JSON]]:
        classifier: Classifier = self.pipeline
        return [*map(_label, classifier.labels_of([*payloads]))]


@dataclass(frozen=True)
class ClassifyImages(Verb):
    """Tells the likeliest label of images, each a file in base64."""

    def read(self, given: JSON) -> Read:
        if not isinstance(given, str):
            raise RequestError(f"expected images as inputs, their files in base64; received {shown(given)}")
        try:
            content = base64.b64decode(given, validate=True)
        except (binascii.Error, ValueError):
            raise RequestError(f"expected images as inputs, their files in base64; received {shown(given)}") from None
        _require_few_pixels(content)
        model = self.pipeline.model
        return Read(content, (model.image_size // model.patch_size) ** 2 + 1, {})

    def run(self, payloads: Sequence[Any]) -> Sequence[dict[str, JSON]]:
        recognizer: Recognizer = self.pipeline
        return [*map(_label, recognizer.classify(payloads, len(payloads)))]


def _require_few_pixels(content: bytes) -> None:
    """Raises Refusal for an image whose pixels would take the memory of many requests; its head tells their number."""
    from PIL import Image, UnidentifiedImageError

    with suppress(UnidentifiedImageError, OSError, SyntaxError), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        width, height = Image.open(io.BytesIO(content)).size
        if width * height > MOST_PIXELS:
            raise Refusal(
                413, "too_long", f"expected images of at most {MOST_PIXELS:,} pixels; received {width}×{height}"
            )


@dataclass(frozen=True)
class Fill(Verb):
    """Tells what masks in texts stand for.

    Args:
        n_best: the most pieces for each.
    """

    n_best: int = 5

    def __post_init__(self) -> None:
        self._require_listed("n_best", self.n_best)

    def read(self, given: JSON) -> Read:
        return self._read_text(given, self.pipeline.tokenizer.encode_masked)._replace(told={"text": given})

    def run(self, payloads: Sequence[Any]) -> Sequence[dict[str, JSON]]:
        classifier: Classifier = self.pipeline
        filled = classifier.fills_of([*payloads], self.n_best)
        return [{"fills": [None if best is None else _rounded(best) for best in masks]} for masks in filled]


@dataclass(frozen=True)
class Recommend(Verb):
    """Tells what comes next in histories.

    Args:
        count: the most items for each.
        only_new: whether the items of the history itself are left out.
    """

    count: int = 10
    only_new: bool = False

    def __post_init__(self) -> None:
        self._require_listed("count", self.count)

    def read(self, given: JSON) -> Read:
        return self._read_history(given)

    def run(self, payloads: Sequence[Any]) -> Sequence[dict[str, JSON]]:
        recommender: Recommender = self.pipeline
        return [{"items": _rounded(best)} for best in recommender.best_of([*payloads], self.count, self.only_new)]


@dataclass(frozen=True)
class Embed(Verb):
    """Makes a vector of texts, or of histories."""

    def read(self, given: JSON) -> Read:
        if isinstance(self.pipeline, Recommender):
            return self._read_history(given)
        return self._read_text(given, lambda text: self.pipeline.tokenizer.encode([text])[0])

    def run(self, payloads: Sequence[Any]) -> Sequence[dict[str, JSON]]:
        pipeline: Classifier | Recommender = self.pipeline
        return [{"vector": vector.tolist()} for vector in pipeline.vectors_of([*payloads])]


def verbs_of(pipeline: Pipeline) -> dict[str, type[Verb]]:
    """Returns what a model does, the usual first.

    Raises:
        RequestError: it does nothing of this.
    """
    if pipeline.task == "images":
        return {"classify": ClassifyImages}
    if isinstance(pipeline, Recommender):
        return {"recommend": Recommend, "embed": Embed}
    if isinstance(pipeline, Classifier):
        if pipeline.labels:
            return {"classify": Classify, "embed": Embed}
        return {**({"fill": Fill} if pipeline.tokenizer.has_mask else {}), "embed": Embed}
    raise RequestError(f"expected a model that classifies, fills, embeds or recommends; received {pipeline!r}")


class AnswerEngine:
    """Answers with a model that does not search.

    Attributes:
        verbs: what it does: "classify", "fill", "embed", "recommend"; the usual first.
        graphs: of an engine that was opened, where its graphs are.

    Args:
        model: the name of the model.
        pipeline: the model, which threads share.
        scheduler: runs the batches.
        num_listed: how many choices its graph lists, see `OnnxComputations`; None for all.

    Raises:
        RequestError: it is another model.
    """

    tasks = ("classification", "masked-tokens", Recommender.task, "images")
    pairs: Sequence[tuple[str, str]] = ()
    graphs: Graphs

    def __init__(self, model: str, pipeline: Pipeline, scheduler: Scheduler, num_listed: int | None = None):
        self.model, self.pipeline, self._scheduler, self._num_listed = model, pipeline, scheduler, num_listed
        self.verbs = verbs_of(pipeline)

    @classmethod
    def open(cls, model: str, folder: str, scheduler: Scheduler) -> AnswerEngine:
        """Opens the graph of an export, or that which a run keeps, and checks it.

        Raises:
            RequestError: the folder holds no such model with a graph, or a file is damaged.
            JobError: the graph does not answer its probe as the model does.
        """
        config = config_of(folder)
        opened = open_model(folder, config.kind, Engine("onnx", num_threads=1), LabelProbs())
        assert isinstance(opened.model, OnnxComputations)
        pipeline = pipeline_of(config.task).of_run(*opened)
        engine = cls(model, pipeline, scheduler, opened.model.num_listed)
        engine.graphs = opened.model.graphs
        return engine

    def submit(self, inputs: Sequence[JSON], verb: str, **options: JSON) -> Request[dict[str, JSON]]:
        """Asks for answers.

        Args:
            inputs: texts; for a model of histories lists of items; for one of images files in base64.
            verb: what to do, one of `verbs`.
            options: of `fill` `n_best`, of `recommend` `count` and `only_new`.

        Returns:
            The request. An answer is an object of JSON: of `classify` `label` and `probability`, of `fill` `text` and
            `fills`, of `recommend` `items`, of `embed` `vector`; of a history also `num_unknown`, its items that the
            model does not know, and `num_left_out`, its first items that do not fit in the context.

        Raises:
            Refusal: too much waits, or a text is too long.
            RequestError: an input is none, or an option is more than the model lists.
        """
        shared = self.verbs[verb](self.model, self.pipeline, self._num_listed, **options)
        read = [shared.read(given) for given in inputs]

        request = Request.of_each(len(read), lambda place, found: {**read[place].told, **found})
        items = [Item(shared, one.payload, one.num_tokens, place, request) for place, one in enumerate(read)]
        self._scheduler.submit(request, items)
        return request


def _label(found: Prediction) -> dict[str, JSON]:
    return {"label": found.label, "probability": round(found.probability, DIGITS)}


def _rounded(best: Sequence[tuple[str, float]]) -> dict[str, float]:
    return {name: round(probability, DIGITS) for name, probability in best}
