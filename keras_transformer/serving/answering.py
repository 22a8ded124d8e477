"""Classifies, fills, embeds and recommends for many clients at once: JSON in, JSON out, in the scheduler's batches.

The answers are those of the commands. What a command cuts and warns of is refused here, or told in the answer.
"""

from __future__ import annotations

import base64
import io
import warnings
from collections.abc import Callable, Iterable, Sequence
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


Pipe: TypeAlias = Any  # the pipeline of a model: which, its verbs know


class Verb(NamedTuple):
    """What a model does with its inputs.

    Args:
        read: reads an input. It raises RequestError if it is none, and Refusal if it is too long.
        run: returns the answers of a batch of payloads, with options by their names.
        defaults: of its options. The first is how many choices are told, which the graph must list.
    """

    read: Callable[[Pipe, JSON], Read]
    run: Callable[..., Iterable[dict[str, JSON]]]
    defaults: tuple[tuple[str, JSON], ...] = ()


@dataclass(frozen=True)
class Asked:
    """What inputs share batches: a verb and its options, for one model. It is a `batching.Batched`.

    Args:
        model: the name of the model.
        pipeline: the model.
        verb: what it does.
        options: of the verb.
    """

    model: str
    pipeline: Pipe
    verb: Verb
    options: tuple[tuple[str, JSON], ...]

    def run(self, payloads: Sequence[Any]) -> Sequence[dict[str, JSON]]:
        """Returns the answers of a batch."""
        return [*self.verb.run(self.pipeline, [*payloads], **dict(self.options))]


def _read_text(pipeline: Pipe, given: JSON) -> Read:
    return _fitting(pipeline, given, lambda text: pipeline.tokenizer.encode([text])[0])


def _read_masked(pipeline: Pipe, given: JSON) -> Read:
    return _fitting(pipeline, given, pipeline.tokenizer.encode_masked)._replace(told={"text": given})


def _fitting(pipeline: Pipe, given: JSON, encode: Callable[[str], Ids]) -> Read:
    if not isinstance(given, str):
        raise RequestError(f"expected texts as inputs; received {shown(given)}")
    ids, most = encode(given), pipeline.model.context_length - 2
    if len(ids) > most:
        raise Refusal(413, "too_long", f"expected texts of at most {most} tokens; received one of {len(ids)}")
    return Read(ids, len(ids) + 2, {})


def _read_history(pipeline: Recommender, given: JSON) -> Read:
    if not isinstance(given, list) or not all(isinstance(item, str) for item in given):
        raise RequestError(f"expected histories as inputs, lists of items; received {shown(given)}")
    ids, most = pipeline.items.encode(given), pipeline.model.context_length - 1
    told = {"num_unknown": len(given) - len(ids), "num_left_out": max(len(ids) - most, 0)}
    return Read(ids[-most:], min(len(ids), most) + 1, told)


def _read_image(pipeline: Recognizer, given: JSON) -> Read:
    try:
        content = base64.b64decode(given if isinstance(given, str) else "?", validate=True)
    except ValueError:
        raise RequestError(f"expected images as inputs, their files in base64; received {shown(given)}") from None
    _require_few_pixels(content)
    model = pipeline.model
    return Read(content, (model.image_size // model.patch_size) ** 2 + 1, {})


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


def _classify(pipeline: Classifier, payloads: list[Ids]) -> Iterable[dict[str, JSON]]:
    return map(_label, pipeline.labels_of(payloads))


def _classify_images(pipeline: Recognizer, payloads: list[bytes]) -> Iterable[dict[str, JSON]]:
    return map(_label, pipeline.classify(payloads, len(payloads)))


def _fill(pipeline: Classifier, payloads: list[Ids], n_best: int) -> Iterable[dict[str, JSON]]:
    for masks in pipeline.fills_of(payloads, n_best):
        yield {"fills": [None if best is None else _rounded(best) for best in masks]}


def _recommend(pipeline: Recommender, payloads: list[Ids], count: int, only_new: bool) -> Iterable[dict[str, JSON]]:
    return ({"items": _rounded(best)} for best in pipeline.best_of(payloads, count, only_new))


def _embed(pipeline: Classifier | Recommender, payloads: list[Ids]) -> Iterable[dict[str, JSON]]:
    return ({"vector": vector.tolist()} for vector in pipeline.vectors_of(payloads))


def verbs_of(pipeline: Pipeline) -> dict[str, Verb]:
    """Returns what a model does, the usual first.

    Raises:
        RequestError: it does nothing of this.
    """
    if pipeline.task == "images":
        return {"classify": Verb(_read_image, _classify_images)}
    if isinstance(pipeline, Recommender):
        recommend = Verb(_read_history, _recommend, (("count", 10), ("only_new", False)))
        return {"recommend": recommend, "embed": Verb(_read_history, _embed)}
    if isinstance(pipeline, Classifier):
        embed = {"embed": Verb(_read_text, _embed)}
        if pipeline.labels:
            return {"classify": Verb(_read_text, _classify), **embed}
        return {
            **({"fill": Verb(_read_masked, _fill, (("n_best", 5),))} if pipeline.tokenizer.has_mask else {}),
            **embed,
        }
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
        its = self.verbs[verb]
        options = {**dict(its.defaults), **options}
        for name in [*options][:1]:
            self._require_listed(name, options[name])
        shared = Asked(self.model, self.pipeline, its, tuple(options.items()))
        read = [its.read(self.pipeline, given) for given in inputs]

        request = Request.of_each(len(read), lambda place, found: {**read[place].told, **found})
        items = [Item(shared, one.payload, one.num_tokens, place, request) for place, one in enumerate(read)]
        self._scheduler.submit(request, items)
        return request

    def _require_listed(self, name: str, count: int) -> None:
        most, model = self._num_listed, self.pipeline.model
        if most and most < min(count, model.vocabulary_size - model.num_control_ids):
            raise RequestError(f"{name} must be at most {most}, as many as the model lists; received: {count}")


def _label(found: Prediction) -> dict[str, JSON]:
    return {"label": found.label, "probability": round(found.probability, DIGITS)}


def _rounded(best: Sequence[tuple[str, float]]) -> dict[str, float]:
    return {name: round(probability, DIGITS) for name, probability in best}
