"""What all formats share: the run, the options of the search, the precisions, the metadata."""

from __future__ import annotations

import importlib
import json
import os
from collections.abc import Callable, Collection, Iterator
from dataclasses import asdict, dataclass, replace
from types import ModuleType
from typing import Any

from keras_transformer.decoding.classifier import Classifier, load_classifier
from keras_transformer.decoding.ensembles import load_ensemble
from keras_transformer.decoding.generator import Generator, load_generator
from keras_transformer.decoding.recognizer import Recognizer, load_recognizer
from keras_transformer.decoding.recommender import Recommender, load_recommender
from keras_transformer.decoding.translator import SearchOptions, Translator, load
from keras_transformer.errors import RequestError
from keras_transformer.export_folder import PRECISIONS as PRECISIONS
from keras_transformer.making import make_model, model_config
from keras_transformer.models.inspection import Difference, difference, parts_of
from keras_transformer.run_folder import RunFolder, read_config
from keras_transformer.text.tokenizer import Tokenizer, plain

# (format, precision): why the format cannot be written in the precision.
NO_SUCH_PRECISION = {
    ("saved_model", "int8"): "TensorFlow multiplies no int8 matrices outside TFLite; export onnx or tflite for it",
}


Pipeline = Translator | Generator | Classifier | Recognizer | Recommender
PIPELINES: dict[str, Callable[..., Pipeline]] = {
    "translator": load,
    "language-model": load_generator,
    "encoder": load_classifier,
    "image-classifier": load_recognizer,
    "sequence-encoder": load_recommender,
}
OF_ONE_PASS = (Classifier, Recognizer, Recommender)  # they do not search
GREEDY = {"num_beams": 1, "length_penalty": 0.0}  # what the best text of a language model is, unless one asks for beams


@dataclass(frozen=True)
class Decoding:
    """How an artefact searches. The options are baked into the artefact and recorded in it.

    Args:
        num_beams: K; 1 is greedy search.
        length_penalty: α of the score log P(y) / ((5 + |y|) / 6)^α.
        max_length: the most pieces to emit, with the end; at most, and by default, the source's length + 50, what the
            context of a language model holds, or its longest answer.
        n_best: how many hypotheses of each sentence a list holds; all K by default.

    Raises:
        RequestError: a value is out of its range.
    """

    num_beams: int = 4
    length_penalty: float = 0.6
    max_length: int | None = None
    n_best: int | None = None

    def __post_init__(self) -> None:
        SearchOptions(self.num_beams, self.length_penalty, self.max_length, self.num_listed)  # raises RequestError
        object.__setattr__(self, "n_best", self.num_listed)

    @property
    def num_listed(self) -> int:
        """How many hypotheses of each sentence a list holds."""
        return self.num_beams if self.n_best is None else self.n_best

    def one_best(self) -> Decoding:
        """The same search for the best hypothesis alone, which can stop earlier."""
        return replace(self, n_best=1)


@dataclass(frozen=True)
class TrainedRun:
    """What is exported, and where it comes from.

    Args:
        pipeline: the model (in float32) with its vocabularies.
        languages: such as "en-de"; "" if the run does not say.
        name: the corpus's name.
    """

    pipeline: Pipeline
    languages: str = ""
    name: str = ""

    @property
    def model(self) -> Any:
        """The model, in float32; of several runs an `Ensemble`."""
        return self.pipeline.decoder.joint if isinstance(self.pipeline, Translator) else self.pipeline.model

    @property
    def labels(self) -> list[str]:
        """The labels of a classifier, in the order of its probabilities; no others have any."""
        return self.pipeline.labels if isinstance(self.pipeline, Classifier | Recognizer) else []

    @property
    def items(self) -> list[str]:
        """The items of a model of histories, in the order of their ids; no others have any."""
        return self.pipeline.items.names if isinstance(self.pipeline, Recommender) else []

    @property
    def answer_length(self) -> int:
        """The most tokens of an answer of a language model of pairs; 0 of all others."""
        return (self.pipeline.answer_length or 0) if isinstance(self.pipeline, Generator) else 0

    @property
    def tokenizers(self) -> tuple[Tokenizer, ...]:
        """The vocabularies of what is read and of what is written; models of images and of histories have none."""
        if isinstance(self.pipeline, Recognizer | Recommender):
            return ()
        if isinstance(self.pipeline, Translator):
            return self.pipeline.source_tokenizer, self.pipeline.target_tokenizer
        return self.pipeline.tokenizer, self.pipeline.tokenizer

    def decoding(self, n_best: int | None = None, **given: Any) -> Decoding:
        """The options of a search, the model's own where none are given, or None is.

        Raises:
            RequestError: a value is out of its range, or the model does not search.
        """
        given = {name: value for name, value in given.items() if value is not None}
        if isinstance(self.pipeline, OF_ONE_PASS) and (given or n_best is not None):
            raise RequestError(
                f"this model does not search; received {', '.join([*given, *['n_best'] * bool(n_best)])}"
            )
        own = self.pipeline.search if isinstance(self.pipeline, Translator) else GREEDY
        decoding = Decoding(**{**own, **given}, n_best=n_best)
        if not self.answer_length:
            return decoding
        return replace(decoding, max_length=min(decoding.max_length or self.answer_length, self.answer_length))

    def save_tokenizers(self, folder: str | os.PathLike[str]) -> None:
        """Writes the vocabularies into a folder, under the file names of a run folder."""
        if isinstance(self.pipeline, Recommender):
            self.pipeline.items.save(RunFolder(folder).items)
        paths = RunFolder(folder).tokenizers(separate=len({*self.tokenizers}) > 1)
        for path, tokenizer in zip(paths, self.tokenizers, strict=False):
            tokenizer.save(path)

    def metadata(self, decoding: Decoding, precision: str) -> dict[str, str]:
        """What an artefact says of itself. The same run and flags give the same metadata."""
        import keras_transformer

        return {
            "producer": f"keras_transformer {keras_transformer.__version__}",
            "corpus": self.name,
            "languages": self.languages,
            "precision": precision,
            **({} if isinstance(self.pipeline, OF_ONE_PASS) else {"decoding": json.dumps(asdict(decoding))}),
            **({"answer_length": str(self.answer_length)} if self.answer_length else {}),
            **self._about_sentences(),
            **({"labels": json.dumps(self.labels, ensure_ascii=False)} if self.labels else {}),
            "model": json.dumps(model_config(self.model), sort_keys=True),
        }

    def _about_sentences(self) -> dict[str, str]:
        """That a translator does not split text, and how many sentences its model learned from at once."""
        if not isinstance(self.pipeline, Translator):
            return {}
        return {"splits_text": "no", "sentences_per_line": str(self.pipeline.learned_text.sentences_per_line)}


def open_run(run: str | os.PathLike[str], *others: str | os.PathLike[str]) -> TrainedRun:
    """Reads a run folder, or several that translate together. They may be a stranger's: nothing in them is executed.

    Raises:
        RequestError: there is no run, it has no model yet, or a file is damaged; the message names the file. Or several
            runs cannot translate together, see `load_ensemble`.
    """
    config = read_config(run)
    pipeline = load_ensemble([run, *others]) if others else PIPELINES[config["model"]["kind"]](run)
    corpus = config.get("corpus", {})
    name, *languages = (plain(corpus.get(key) or "") for key in ("name", "source_language", "target_language"))
    return TrainedRun(pipeline, "-".join(languages) if all(languages) else "", name)


def import_optional(module: str) -> ModuleType:
    """Imports a module that only exporting needs.

    Raises:
        RequestError: it is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise RequestError(
            f"exporting needs the package of {module}, which is not installed ({error}): {install_extra(module)}"
        ) from None


def install_extra(module: str) -> str:
    """How to install what holds a module."""
    extra = "ctranslate2" if module == "ctranslate2" else "export"
    return (
        f"install the extra: pip install 'keras-transformer[{extra}]', or from a checkout: pip install -e '.[{extra}]'"
    )


def stem(name: str, precision: str) -> str:
    """The name of an artefact's file or folder, without suffix."""
    return name if precision == "float32" else f"{name}-{precision}"


def require_precision(format: str, precision: str) -> None:
    """Raises RequestError unless the format can be written in the precision."""
    if precision not in PRECISIONS:
        raise RequestError(f"expected a precision among {', '.join(PRECISIONS)}; received: {precision}")
    if reason := NO_SUCH_PRECISION.get((format, precision)):
        raise RequestError(f"{format} has no {precision}: {reason}")


def require_own_parts(model: Any, format: str, precision: str) -> None:
    """Raises RequestError unless the model is what its configuration makes.

    An exporter that builds the model again, in another precision, would lose a part that was put in by hand.
    """
    if found := difference(model):
        raise unwritable(format, precision, found)


def parts_without_writer(model: Any, writable: Collection[type]) -> Iterator[Difference]:
    """The parts of a model that are of no writable type."""
    for path, part in parts_of(model, "model"):
        if type(part) not in writable:
            known = [each.__name__ for each in writable if isinstance(part, each)]
            expected = known[0] if known else "parts that it has"
            yield Difference(path, expected, type(part).__name__)


class Unwritable(RequestError):
    """A format cannot write a part of the model, or an option of a part."""


def unwritable(format: str, precision: str, found: Difference) -> Unwritable:
    """The error that names the part."""
    return Unwritable(
        f"{format} in {precision} can write only {found.expected} at {found.path}; received a model with "
        f"{found.received} there: export saved_model in float32, or tflite in float32 or float16, which trace any "
        "model as it is"
    )


def model_of_precision(model: Any, precision: str) -> Any:
    """For float32 the model itself; for float16 a copy that computes in half, except for softmax, norms and search."""
    if precision == "float32":
        return model
    require_own_parts(model, "saved_model", precision)
    half = make_model(model_config(model), "float16")
    half.set_weights(model.get_weights())
    return half
