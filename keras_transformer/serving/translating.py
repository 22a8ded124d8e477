"""Translates what clients ask for: texts become sentences, which share batches with those of other clients."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import NamedTuple

from keras_transformer.core.errors import RequestError
from keras_transformer.decoding.decoder import Hypothesis
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.runs.export_folder import Graphs
from keras_transformer.serving.batching import Item, Part, Refusal, Request, Scheduler
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.loading import load
from keras_transformer.tasks.translation.passages import Layout, Passage, Passages, translations
from keras_transformer.tasks.translation.pipeline import Asked, Translator
from keras_transformer.text.lines import is_blank
from keras_transformer.text.sentences import Sentence

NBest = list[Hypothesis]
ONE_BATCH = 2**20  # the scheduler has divided what waits
MOST_OPTIONS = 256  # that are remembered


@dataclass(frozen=True)
class Sentences:
    """What sentences share batches: a translator, and how to translate. It is a `batching.Batched`.

    Args:
        model: the name of the model.
        translator: the translator, with one thread.
        options: how to translate.
    """

    model: str
    translator: Translator
    options: SearchOptions

    def run(self, payloads: Sequence[object]) -> Sequence[NBest]:
        """Translates sentences in one batch."""
        sentences = [replace(one, place=place) for place, one in enumerate(payloads) if isinstance(one, Sentence)]
        decoder, target = self.translator.decoder, self.translator.target_tokenizer
        return translations(decoder, target, len(sentences), sentences, self.options)


class TranslationEngine:
    """Translates texts for many clients at once.

    Args:
        model: the name of the model.
        translator: the translator, which threads share; its own work takes one thread.
        scheduler: runs the batches.
    """

    tasks = (Translator.task,)

    def __init__(self, model: str, translator: Translator, scheduler: Scheduler):
        self.model, self.translator, self._scheduler = model, translator, scheduler
        self._options = lru_cache(MOST_OPTIONS)(translator.search_options)  # which checks them

    @classmethod
    def open(cls, model: str, folder: str, scheduler: Scheduler) -> TranslationEngine:
        """Opens the graphs of an export or of a run, and checks them.

        Raises:
            RequestError: the folder holds no translator with graphs, or a file is damaged.
            JobError: the graphs do not answer their probes as the model does.
        """
        translator = load(folder, num_threads=1, engine="onnx")
        engine, own = cls(model, translator, scheduler), translator.search_options()
        # All graphs of this very export are opened before clients ask for them.
        for asked in (own, replace(own, words=engine.tells_words), replace(own, sampling=bool(engine.graphs.step))):
            translator.decoder.require_checked(asked)
        return engine

    @property
    def graphs(self) -> Graphs:
        """Where the graphs are."""
        assert isinstance(self.translator.decoder, OnnxDecoder)
        return self.translator.decoder.graphs

    def _require_served(self, options: SearchOptions) -> None:
        """Raises RequestError if the graphs have another search inside, and no halves for one around them."""
        decoder = self.translator.decoder
        assert isinstance(decoder, OnnxDecoder)
        if options.words and not self.tells_words:
            raise RequestError(
                f"the model {self.model} does not tell where words come from, because an older version exported it: "
                "leave words out, or export the run again"
            )
        if not (decoder.graphs.step or (decoder.serves(options) and not options.sampling)):
            own = self.translator.search_options()
            raise RequestError(
                f"the model {self.model} has one search, with {own.num_beams} beams and the best translation alone; "
                f"received beams {options.num_beams} and n_best {options.n_best}: leave them out"
            )

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """The languages that it translates between, as far as they are known."""
        if tags := self.translator.language_tags:
            return [(one, other) for one in tags for other in tags if one != other]
        learned = self.translator.learned_text
        source, target = learned.source_language, learned.target_language
        return [(source, target)] if source and target else []

    def options(self, **given: Asked) -> SearchOptions:
        """Returns the options of a search; the model's own where none are given.

        Raises:
            RequestError: an option is out of its range.
        """
        return self._options(**given)

    @property
    def tells_words(self) -> bool:
        """Whether translations may tell where their words come from."""
        return self.translator.decoder.tells_alignments

    def submit(
        self, texts: Sequence[str], options: SearchOptions, source: str | None = None, target: str | None = None
    ) -> Request[NBest]:
        """Asks for the translations of texts, each of any number of lines and sentences.

        A text is translated as `Translator.translate` translates it, whatever shares its batches.

        Args:
            texts: the texts.
            options: how to translate.
            source, target: the languages, for a model between many.

        Returns:
            The request. An answer has the best translations of a text, the best first; a part those of a sentence.

        Raises:
            Refusal: too much waits, or a text cannot be divided into parts that fit the model.
            RequestError: the model does not know a language, or has no such search.
        """
        translator = self.translator if source is target is None else self.translator.between(source, target)
        self._require_served(options)
        most, learned = translator.max_source_length, translator.learned_text
        passages = Passages(translator.tokenizers, most, options, learned, translator.direction)
        layouts = [*map(Layout, texts)]
        lines = [(number, (line, "")) for number, line in enumerate(line for one in layouts for line in one.lines)]
        fitted, sentences = passages.fitted(passages.taken_apart(lines))
        if passages.num_cut:
            raise Refusal(413, "too_long", _too_long_message(passages))
        places = _places(layouts, fitted)
        request: Request[NBest] = Request(
            len(sentences),
            lambda found: _joined(layouts, passages, fitted, sentences, found),
            lambda place, found: _part(places[sentences[place].place], found),
        )
        shared = Sentences(self.model, self.translator, _in_one_batch(options))
        self._scheduler.submit(
            request,
            [Item(shared, one, _num_tokens(one, options), place, request) for place, one in enumerate(sentences)],
        )
        return request


@lru_cache(MOST_OPTIONS)
def _in_one_batch(options: SearchOptions) -> SearchOptions:
    return replace(options, batch_size=ONE_BATCH)


def _too_long_message(passages: Passages) -> str:
    return (
        f"{passages.num_cut} text(s) have a part that is over {passages.most} tokens, the most that the model reads, "
        "and cannot be divided: send shorter ones"
    )


def _num_tokens(sentence: Sentence, options: SearchOptions) -> int:
    """Returns the size of a sentence: a translation is about as long as its source, and each beam has one."""
    rows = options.n_best if options.sampling else options.num_beams
    expected = len(sentence.source) + 1
    return (expected + min(expected, options.max_length or expected)) * rows


class _Place(NamedTuple):
    """Where a sentence belongs: the text, its number there, how many the text has, and its line; see `Part`."""

    text: int
    part: int
    num_parts: int
    line: int


def _places(layouts: Sequence[Layout], fitted: Sequence[Passage]) -> list[_Place]:
    """Returns where each sentence belongs."""
    places, passages = list[_Place](), iter(fitted)
    for text, layout in enumerate(layouts):
        counts = [len(next(passages).texts) for line in layout.lines]
        filled = [count for count, line in zip(counts, layout.lines, strict=True) if not is_blank(line)]
        lines = [line for line, count in enumerate(filled) for _ in range(count)]
        places += [_Place(text, part, len(lines), line) for part, line in enumerate(lines)]
    return places


def _joined(
    layouts: Sequence[Layout],
    passages: Passages,
    fitted: Sequence[Passage],
    sentences: Sequence[Sentence],
    found: Sequence[object],
) -> list[NBest]:
    """Returns the translations of each text, from those of its sentences; a text without tokens has the empty one."""
    all_found: list[NBest] = [[Hypothesis("", 0.0, 0.0)] for passage in fitted for _ in passage.texts]
    for sentence, nbest in zip(sentences, found, strict=True):
        all_found[sentence.place] = _nbest(nbest)
    lines = passages.joined(fitted, all_found)
    return [layout.joined(lines, passages.options) for layout in layouts]


def _part(place: _Place, found: object) -> Part[NBest]:
    return Part(place.text, place.part, place.num_parts, _nbest(found), place.line)


def _nbest(found: object) -> NBest:
    assert isinstance(found, list)
    return found
