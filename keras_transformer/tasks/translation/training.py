"""Trains a translator: parallel text, smoothed cross entropy, BLEU."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.models.model_factory import make_model
from keras_transformer.models.transformer import Transformer
from keras_transformer.tasks.translation.languages import SIDES, Direction, direction_of
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.tasks.translation.settings import Settings
from keras_transformer.text.bleu import bleu
from keras_transformer.text.corpora import Corpus, Pair, corpus_from_files, load_corpus, with_more
from keras_transformer.text.splitting import LearnedText
from keras_transformer.training.callbacks import BleuMonitor
from keras_transformer.training.checkpoints import present_weights, set_weights
from keras_transformer.training.preparation import Text, Tokenizers, prepare_text
from keras_transformer.training.task import Run, Show, TaskTraining

if TYPE_CHECKING:
    import keras

    from keras_transformer.training.callbacks import Progress

BATCH = 64  # sentences that a validation translates at once


class Training(TaskTraining[Settings, Text, Transformer]):
    """What a translator brings to training."""

    SCORE = "BLEU"

    def corpus(self, settings: Settings) -> Corpus[Pair]:
        """Opens the user's own parallel text, or a named corpus, with further pairs if there are some.

        Raises:
            RequestError: see `corpus_from_files` and `load_corpus`.
        """
        if settings.source is not None and settings.target is not None:
            own = (settings.source, settings.target, settings.valid_source, settings.valid_target)
            found = corpus_from_files(*own, seed=settings.seed)
        else:
            found = load_corpus(settings.name, settings.data_dir)
        known = {side: language for side in SIDES if (language := getattr(settings, side))}
        found = replace(found, **known)
        if settings.more_source is not None and settings.more_target is not None:
            return with_more(found, settings.more_source, settings.more_target)
        return found

    def prepare(self, run: Run, cache: Path, num_replicas: int) -> Text:
        """See `prepare_text`. For a model between many languages each side begins with the tag of its language."""

        def tags(tokenizers: Tokenizers) -> Direction:
            learned = LearnedText.of_corpus(run.config.corpus)
            return direction_of(learned, run.config.language_tags, tokenizers.source)

        return prepare_text(run, cache, num_replicas, tags)

    def validation(
        self, run: Run, data: Text, model: Transformer, progress: Progress, show: Show
    ) -> list[keras.callbacks.Callback]:
        """Returns BLEU of greedy translations, samples of them, and early stopping; without BLEU the validation loss is
        judged.
        """
        settings = run.settings
        if not settings.bleu_sentences:
            return super().validation(run, data, model, progress, show)
        if not (run.is_chief or settings.patience):
            return []
        sources, references = data.bleu_sentences(settings.bleu_sentences)
        twin = make_model(run.config.model)  # has the present weights (with --ema their mean), outside of any strategy
        translator = _translator(run, data, twin)

        def translate(lines: Sequence[str]) -> list[str]:
            set_weights(twin, present_weights(model))
            return translator.translate(lines, num_beams=1, split="off")

        return [BleuMonitor(progress, translate, sources, references, settings.patience, show)]

    def decoding_seconds(self, run: Run, data: Text, model: Transformer) -> float:
        """Returns how long the translation of a validation takes by a model that has learned to end its sentences.

        One batch is translated with the present weights, which would not end: so its length is bounded, and the time
        of a position is counted for the longest reference of each batch.
        """
        sources, references = data.bleu_sentences(run.settings.bleu_sentences)
        if not sources:
            return 0.0
        lengths = sorted((len(ids) + 1 for ids in data.tokenizers.target.encode(references)), reverse=True)
        translator = _translator(run, data, make_model(run.config.model))
        batch, most = sources[:BATCH], lengths[len(lengths) // 2]
        for _ in range(2):  # the first time is slower, because it traces the search
            began = time.monotonic()
            translator.translate(batch, num_beams=1, max_length=most, split="off")
            seconds = time.monotonic() - began
        return seconds * sum(lengths[::BATCH]) / most

    def final_metrics(self, run: Run, data: Text, model: Transformer) -> dict[str, float]:
        """Measures BLEU as while training."""
        if not run.settings.bleu_sentences:
            return {}
        sources, references = data.bleu_sentences(run.settings.bleu_sentences)
        translations = _translator(run, data, model).translate(sources, num_beams=1, split="off")
        return {"val_bleu": bleu(translations, references)}


def _translator(run: Run, data: Text, model: Transformer) -> Translator:
    """Returns the translator of a model of the run, between the languages of its text."""
    learned = LearnedText.of_corpus(run.config.corpus)
    tags = run.config.language_tags
    return Translator(model, *data.tokenizers, language_tags=tags, **asdict(learned))
