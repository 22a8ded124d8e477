"""From text to text: a model, its vocabularies and a search."""

from __future__ import annotations

import copy
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from keras_transformer.core.errors import RequestError
from keras_transformer.core.files import write_text
from keras_transformer.decoding.attention_maps import Attention, translation_attention
from keras_transformer.decoding.decoder import Decoder, Hypothesis, Score, scores_of
from keras_transformer.decoding.pipelines import Pipeline, decoder_of
from keras_transformer.runs.run_folder import (
    RunConfig,
    RunFolder,
    check_place,
    float32_copy,
    read_tokenizers,
    write_run,
)
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import SearchOptions, own_search, require_whole
from keras_transformer.tasks.translation.languages import SIDES, Direction, direction_of, with_languages
from keras_transformer.tasks.translation.passages import Layout, Passages, translations
from keras_transformer.text.bleu import checked_tokenizer, quality
from keras_transformer.text.lines import each_of, is_blank, plain, string_of, strings_of
from keras_transformer.text.sentences import Ids, Sentence, with_prefixes
from keras_transformer.text.splitting import LearnedText
from keras_transformer.text.tokenizer import END, Tokenizer, Unread, warn_of_cuts

if TYPE_CHECKING:
    import numpy as np

    from keras_transformer.importing.weights import Imported
    from keras_transformer.models.transformer import Transformer

# This many batches of lines are read ahead and sorted by length; with a batch size of 1 no line is read ahead.
BATCHES_AHEAD = 32
Validation = tuple[Sequence[str], Sequence[str]]
Asked = str | float | None  # the value of an option of the search


class Translator(Pipeline):
    """Translates, scores and evaluates text with one model. Threads may share it.

    Args:
        model: the model, or an `OnnxDecoder` of exported graphs.
        source_tokenizer: the vocabulary of the source.
        target_tokenizer: the vocabulary of the target; by default the same.
        max_source_length: the most pieces of a source. Longer sources are cut, and a warning counts them. By default
            the `max_source_length` of the model.
        search: the model's own `num_beams`, `length_penalty` and `max_length`, which then are the defaults.
        target_language: such as "de", if it is known; `evaluate` chooses BLEU's tokenizer by it.
        source_language: such as "en", if it is known; text is split into sentences by its rules.
        sentences_per_line: how many sentences the lines hold that the model learned from. As many stay together.
        language_tags: the tag of each language, by its code, of a model between many languages; see `between`.

    Raises:
        RequestError: `max_source_length` is not positive or more than the model takes; or another option is wrong.

    Example:

    >>> translator = keras_transformer.load("runs/numbers-en-de-auto")
    >>> translator.translate("twenty-one")
    'einundzwanzig'
    """

    task, takes_target = "translation", True

    def __init__(
        self,
        model: Transformer | Decoder,
        source_tokenizer: Tokenizer,
        target_tokenizer: Tokenizer | None = None,
        max_source_length: int | None = None,
        search: Config | None = None,
        target_language: str | None = None,
        source_language: str | None = None,
        sentences_per_line: int = 1,
        language_tags: Mapping[str, str] | None = None,
    ):
        self.decoder = decoder_of(model)
        require_whole("sentences_per_line", sentences_per_line, 1)
        given = LearnedText(source_language, target_language, sentences_per_line)
        self.learned_text = self.decoder.learned_text if given == LearnedText() else given
        self.language_tags = dict(language_tags or {})
        self.search = own_search(dict(self.decoder.own_search) if search is None else search)
        self.source_tokenizer = source_tokenizer
        self.target_tokenizer = target_tokenizer or source_tokenizer
        self.max_source_length = self.decoder.max_source_length if max_source_length is None else max_source_length
        require_whole("max_source_length", self.max_source_length, 1)
        self.decoder.check_source_length(self.max_source_length)

    @classmethod
    def of_run(
        cls,
        model: Transformer | Decoder,
        folder: RunFolder,
        config: RunConfig | None = None,
        max_source_length: int | None = None,
    ) -> Translator:
        """Makes a translator of a model, with the vocabularies in a folder.

        Args:
            model: the model, or the decoder of a run or of an export.
            folder: with the vocabularies.
            config: the run's; None of an export, whose decoder tells it. A graph that a run kept for an earlier request
                has other options in its metadata.
            max_source_length: see `Translator`.

        Raises:
            RequestError: a vocabulary is missing, damaged or not the model's.
        """
        decoder = decoder_of(model)
        tokenizers = read_tokenizers(folder, *decoder.vocabulary_sizes)
        if config is None:
            return cls(decoder, *tokenizers, max_source_length)
        learned = LearnedText.of_corpus(config.corpus)
        search, tags = config.search, config.language_tags
        return cls(decoder, *tokenizers, max_source_length, search, language_tags=tags, **asdict(learned))

    @classmethod
    def imported(cls, found: Imported) -> Translator:
        own = (found.model(), found.source.tokenizer, found.target.tokenizer, None, found.search)
        return cls(*own, language_tags=found.language_tags, **asdict(LearnedText(*found.languages or ())))

    def __repr__(self) -> str:
        sizes = " → ".join(f"{each.vocabulary_size:,}" for each in dict.fromkeys(self.tokenizers))
        return f"<Translator: {self.decoder!r}, vocabulary {sizes}, sources of up to {self.max_source_length} pieces>"

    @property
    def target_language(self) -> str | None:
        """What the model writes, such as "de", if it is known."""
        return self.learned_text.target_language

    def between(self, source_language: str | None, target_language: str | None) -> Translator:
        """Returns the translator of a direction, for a model between many languages; None leaves a side as it is. The
        codes are the model's own, such as "eng_Latn"; RequestError is raised for one that it does not know."""
        other = copy.copy(self)
        other.learned_text = with_languages(self.learned_text, self.language_tags, source_language, target_language)
        return other

    @property
    def direction(self) -> Direction:
        """The tags of the languages, which an export knows. Raises RequestError if they are needed and not chosen."""
        if self.decoder.source_tags and not self.language_tags:
            return Direction(self.decoder.source_tags, self.decoder.beginning)
        return direction_of(self.learned_text, self.language_tags, self.source_tokenizer)

    @property
    def beginning(self) -> Ids:
        """The ids with which each translation begins: the language's tag, and what a tokenizer puts before a text."""
        return self.direction.target + self.target_tokenizer.encode([""])[0]

    @property
    def model(self) -> Transformer:
        """The Keras model. Raises RequestError if the translator is an export's, which has none."""
        return self.decoder.model

    @overload
    def translate(self, lines: str, *args: Any, **options: Any) -> str: ...

    @overload
    def translate(self, lines: Iterable[str], *args: Any, **options: Any) -> list[str]: ...

    def translate(
        self,
        lines: str | Iterable[str],
        num_beams: int | None = None,
        length_penalty: float | None = None,
        max_length: int | None = None,
        batch_size: int = 64,
        split: str = "sentences",
        long: str | None = None,
        **guards: Asked,
    ) -> str | list[str]:
        """Returns the best translation of each text, by beam search. The translation of a blank line is empty.

        Args:
            lines: texts, or one text, of one line or several. Line breaks, blank lines, indentation and the marks of
                lists stay as they are. A text is translated the same whatever shares its batch.
            num_beams, length_penalty, max_length, batch_size: see `SearchOptions`; the model's own are the defaults.
            split: see `SearchOptions`. Where lines are not split into sentences, a text is one line.
            long: in place of `split`.
            guards: `min_length`, `no_repeat_ngram_size`, `repetition_penalty`, see `Guards`.

        Returns:
            A list with a translation for each text; one string for one string.

        Raises:
            RequestError: an option is out of its range, or `lines` is neither a string nor a list of strings.
        """
        asked = {"num_beams": num_beams, "length_penalty": length_penalty, "max_length": max_length, **guards}
        options = self.search_options(**asked, batch_size=batch_size, split=long or split)
        texts = [lines] if isinstance(lines, str) else list(strings_of(lines))
        if options.split == "sentences":
            layouts = [Layout(text) for text in texts]
            texts = [line for layout in layouts for line in layout.lines]
        written = [hypotheses[0].text for hypotheses in self.stream(texts, options)]
        if options.split == "sentences":
            found = iter(written)
            written = [layout.filled(found) for layout in layouts]
        return written[0] if isinstance(lines, str) else written

    def n_best(
        self, lines: Iterable[str], prefixes: Iterable[str] | None = None, **options: Asked
    ) -> list[list[Hypothesis]]:
        """`stream` as a list, with the fields of `SearchOptions` as keyword arguments."""
        return list(self.stream(lines, self.search_options(**options), prefixes))

    def search_options(self, **given: Asked) -> SearchOptions:
        """`SearchOptions` with the model's own options where none are given, or None is.

        Raises:
            RequestError: an option is out of its range.
        """
        return SearchOptions(**{**self.search, **{name: value for name, value in given.items() if value is not None}})

    def stream(
        self,
        lines: Iterable[str],
        options: SearchOptions | None = None,
        prefixes: Iterable[str] | None = None,
        long: str | None = None,
    ) -> Iterator[list[Hypothesis]]:
        """Translates while it reads: only a bounded number of lines is read ahead.

        Args:
            lines: texts of one line each; a line break within one counts as a space.
            options: how to translate.
            prefixes: one for each line: the text with which the translation must begin. A blank prefix leaves the
                translation free. The translation may continue the last word of the prefix. Where the prefix has a
                character that the vocabulary lacks, any piece may stand.
            long: in place of `options.split`, see `SearchOptions`.

        Yields:
            The translations of each line, in the order of the lines. There are `options.n_best` of them, fewer where
            fewer exist. A search yields the best first, and those that were cut at their limit behind those that
            finished; samples come in the order in which they were drawn. A line that is blank, or made of control
            characters alone, has one translation: the empty text with score 0. A line that `is_copied` and has no
            prefix has itself with score 0; a warning counts such lines.

        Raises:
            RequestError: there are not as many prefixes as lines, or `lines` or `prefixes` are no list of strings.
        """
        options = options or self.search_options()
        options = replace(options, split=long or options.split)
        numbered = enumerate(with_prefixes(lines, prefixes))
        num_ahead = options.batch_size * BATCHES_AHEAD if options.batch_size > 1 else 1
        passages = Passages(self.tokenizers, self.max_source_length, options, self.learned_text, self.direction)
        while ahead := list(islice(numbered, num_ahead)):
            fitted, sentences = passages.fitted(passages.taken_apart(ahead))
            num_lines = sum(len(passage.texts) for passage in fitted)
            found = translations(self.decoder, self.target_tokenizer, num_lines, sentences, options)
            yield from passages.joined(fitted, found)
        passages.tell()

    def search_ids(self, sources: Sequence[Sequence[int]], options: SearchOptions) -> list[list[Hypothesis]]:
        """`stream` with ids: each source of at most `max_source_length`, with its tag and without an end."""
        sentences = [Sentence(place, place, list(ids), self.beginning) for place, ids in enumerate(sources) if ids]
        return translations(self.decoder, self.target_tokenizer, len(sources), sentences, options)

    def score(self, sources: Sequence[str], targets: Sequence[str], batch_size: int = 16) -> list[Score]:
        """Returns the model's probability of a given translation of each source.

        Raises:
            RequestError: the lists are not of one length, or not of strings; or `batch_size` is not positive.
        """
        require_whole("batch_size", batch_size, 1)
        source_ids, target_ids = self._source_ids(sources), self.target_tokenizer.encode(targets)
        if len(source_ids) != len(target_ids):
            raise RequestError(
                f"expected a target for each source; received {len(source_ids)} sources, {len(target_ids)} targets"
            )
        Unread(self.target_tokenizer, targets).tell()
        lengths = [max(map(len, pair)) for pair in zip(source_ids, target_ids, strict=True)]
        rows = [[*self.direction.target, *ids, END] for ids in target_ids]
        return scores_of(self.log_probs, source_ids, rows, lengths, batch_size)

    def evaluate(
        self,
        sources: Sequence[str],
        references: Sequence[str],
        options: SearchOptions | None = None,
        tokenize: str | None = None,
    ) -> Config:
        """Translates the sources and compares the translations with the references (sacreBLEU: Post 2018, 1804.08771).

        Args:
            sources, references: sentences, and a correct translation of each.
            options: how to translate.
            tokenize: sacreBLEU's tokenizer for BLEU, such as "intl"; by default the target language's, mostly "13a".

        Returns:
            bleu and chrf (0 to 100, cased, detokenised), bleu_signature and chrf_signature, sentences, seconds,
            tokens_per_second (emitted pieces, ends included), beams, length_penalty and split.

        Raises:
            RequestError: the lists are not of one length, or not of strings, or empty; or the tokenizer cannot be used.
        """
        tokenize, options = checked_tokenizer(tokenize, self.target_language), options or self.search_options()
        sources, references = list(strings_of(sources, "sources")), list(strings_of(references, "references"))
        if len(sources) != len(references) or not sources:
            raise RequestError(
                "expected a reference for each source, and one at least; received "
                f"{len(sources)} sources and {len(references)} references"
            )
        start = time.perf_counter()
        best = [hypotheses[0] for hypotheses in self.stream(sources, options)]
        seconds = time.perf_counter() - start
        return {
            **quality([hypothesis.text for hypothesis in best], references, tokenize),
            "sentences": len(best),
            "seconds": seconds,
            "tokens_per_second": sum(len(hypothesis.ids) for hypothesis in best) / seconds,
            "beams": options.num_beams,
            "length_penalty": options.length_penalty,
            "split": options.split,
        }

    def attention(self, text: str, target: str | None = None) -> dict[str, Attention]:
        """Tells where the model looks while it translates a text.

        Args:
            text: one sentence.
            target: its translation; by default the model's own.

        Returns:
            The self-attentions "encoder" and "decoder", and "cross", from the decoder to the encoder. In "decoder" the
            queries are the pieces that the decoder reads, in "cross" those that it then writes.

        Raises:
            RequestError: the text is blank, or the translator is an export's, which has no Keras model.
        """
        if is_blank(string_of(text)):
            raise RequestError("expected a text; received a blank one")
        model, (source,) = self.model, self._source_ids([text])
        if target is None:
            [[best]] = self.search_ids([source], self.search_options())
            written = [id for id in best.ids if id != END]
        else:
            written = self.direction.target + self.target_tokenizer.encode([target])[0]
            Unread(self.target_tokenizer, [target]).tell()
        return translation_attention(model, source, written, (self.source_tokenizer, self.target_tokenizer))

    @property
    def exported_model(self) -> Any:
        return self.decoder.joint

    @property
    def tokenizers(self) -> tuple[Tokenizer, Tokenizer]:
        return self.source_tokenizer, self.target_tokenizer

    @property
    def own_search(self) -> Config:
        return self.search

    def about(self) -> dict[str, str]:
        first = {"source_tags": self.direction.source, "beginning": self.beginning}
        heads = [one._asdict() for one in self.decoder.joint.alignment_heads]
        own = {
            "splits_text": "no",
            "sentences_per_line": str(self.learned_text.sentences_per_line),
            "alignment": json.dumps(heads[0] if len(heads) == 1 else heads),
        }
        return own | {name: json.dumps(ids) for name, ids in first.items() if ids}

    def save(
        self,
        folder: str | os.PathLike[str],
        languages: tuple[str, str] | None = None,
        validation: Validation | None = None,
        overwrite: bool = False,
    ) -> None:
        """Writes a run folder. Every command but `average` reads it, and train.py takes it with --init-from.

        Args:
            folder: where to write; a new or empty folder.
            languages: the languages of source and target, such as ("en", "de").
            validation: sentences and their translations, with which exports are certified.
            overwrite: whether to replace a run that is in the folder.

        Raises:
            RequestError: the translator is an export's, the folder is not empty, not every validation sentence has a
                translation, a vocabulary does not fit the model, or the configuration lacks a part of the model.
        """
        path = Path(folder)
        check_place(path, overwrite)
        twin = float32_copy(self.model)
        _check_vocabularies(twin.arguments(), self.tokenizers)
        if languages is not None and (isinstance(languages, str) or len(languages) != 2):
            raise RequestError(f"expected two languages, such as ('en', 'de'); received: {languages!r}")
        texts = _checked_validation(validation)
        corpus: Config = dict(zip(SIDES, languages or (), strict=False))
        if self.learned_text.sentences_per_line > 1:
            corpus["sentences_per_line"] = self.learned_text.sentences_per_line
        own = {"search": self.search, "language_tags": self.language_tags}
        sections = {**{name: content for name, content in own.items() if content}, "corpus": corpus}
        write_run(path, overwrite, self.task, twin, sections, lambda to: _write_text(to, twin, self.tokenizers, texts))

    def _source_ids(self, lines: Sequence[str]) -> list[Ids]:
        """Returns the pieces of sources, cut where they are too long; warnings count those, and what cannot be read."""
        encoded = [self.direction.source + ids for ids in self.source_tokenizer.encode(lines)]
        Unread(self.source_tokenizer, lines).tell()
        warn_of_cuts(sum(len(ids) > self.max_source_length for ids in encoded), self.max_source_length)
        return [ids[: self.max_source_length] for ids in encoded]

    def log_probs(self, sources: list[Ids], targets: list[Ids]) -> np.ndarray:
        """Returns log P (B,) float32 of targets in pieces; see `Decoder.log_probs`."""
        return self.decoder.log_probs(sources, targets)


def _checked_validation(validation: Validation | None) -> Validation | None:
    """Returns the validation text, as lists. Raises RequestError unless each sentence has a translation."""
    if validation is None:
        return None
    sides = each_of(validation, "sentences and of translations")
    sentences, translations = (list(strings_of(side, "validation sentences")) for side in sides)
    if not len(sentences) == len(translations) > 0:
        raise RequestError(
            f"expected a translation for each validation sentence; received {len(sentences)} sentences and "
            f"{len(translations)} translations"
        )
    return sentences, translations


def _check_vocabularies(config: Config, tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
    """Raises RequestError unless the vocabularies of source and target are the model's."""
    source, target = tokenizers
    target_size = config["vocabulary_size"]
    source_size = config["source_vocabulary_size"] or target_size
    for tokenizer, size in ((source, source_size), (target, target_size)):
        if tokenizer.vocabulary_size != size:
            raise RequestError(f"expected a vocabulary of {size} pieces; received {tokenizer.vocabulary_size}")
    sources, targets = (tokenizer.pieces(range(tokenizer.vocabulary_size)) for tokenizer in tokenizers)
    if config["source_vocabulary_size"] is None and sources != targets:
        raise RequestError("expected one vocabulary, for the model has one matrix for both; received two")


def _write_text(
    run: RunFolder, model: Transformer, tokenizers: tuple[Tokenizer, Tokenizer], validation: Validation | None
) -> None:
    """Writes the vocabularies of a translator, and its validation text."""
    are_two = model.arguments()["source_vocabulary_size"] is not None or tokenizers[0].model != tokenizers[1].model
    for path, tokenizer in zip(run.tokenizers(are_two), tokenizers, strict=True):
        tokenizer.save(path.with_suffix(tokenizer.suffix))
    if validation is not None:
        for path, lines in zip((run.valid_source, run.valid_target), validation, strict=True):
            write_text(path, "".join(f"{plain(line)}\n" for line in lines))


PIPELINE = Translator
