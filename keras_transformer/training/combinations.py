"""Which settings of a training run go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer.errors import RequestError
from keras_transformer.presets import AUTO

if TYPE_CHECKING:
    from keras_transformer.training.settings import Settings


def check_together(settings: Settings) -> None:
    """Raises RequestError for settings of which one needs or excludes another."""
    _check_data(settings)
    _check_more(settings)
    _check_model(settings)


def _check_data(settings: Settings) -> None:
    if (settings.source is None) != (settings.target is None):
        raise RequestError("--source and --target go together; received only one of them")
    if settings.source is None and (settings.valid_source or settings.valid_target):
        raise RequestError("--valid-source and --valid-target need --source and --target; received none")
    if settings.source and settings.text:
        raise RequestError("--text is one text, and --source and --target are pairs of texts; received both: give one")
    if settings.clean and settings.source is None and settings.task != "translation":
        raise RequestError("--clean is for pairs: give --source and --target too; received none")
    if settings.valid_text and settings.text is None:
        raise RequestError("--valid-text needs --text; received none")
    if settings.valid_images and settings.images is None:
        raise RequestError("--valid-images needs --images; received none")
    if settings.random_shift >= settings.image_size:
        raise RequestError(
            f"--random-shift must be less than --image-size, {settings.image_size}; received: {settings.random_shift}"
        )


def _check_more(settings: Settings) -> None:
    if (settings.more_source is None) != (settings.more_target is None):
        raise RequestError("--more-source and --more-target go together; received only one of them")
    if settings.more_source is None and (settings.more_tag or settings.copies > 1):
        raise RequestError("--more-tag and --copies are for --more-source and --more-target; received neither of these")
    if settings.both_directions and settings.separate_vocabularies:
        raise RequestError("--both-directions takes a joint vocabulary; received --separate-vocabularies too: give one")


def _check_model(settings: Settings) -> None:
    if settings.preset == AUTO and settings.task != "translation":
        raise RequestError(
            f"--preset {AUTO} goes by pairs of translation; received --task {settings.task}: leave it out, or give "
            "another"
        )
    if settings.hours and settings.xla:
        raise RequestError("--hours times the first steps, in which --xla compiles; received both: give --steps")
    if settings.vocabulary_type == "char" and settings.task == "translation":
        raise RequestError("--vocabulary-type char is for tasks of one language; received --task translation")
    if "," in (settings.normalization or "") and settings.task != "translation":
        raise RequestError(
            f"--normalization SOURCE,TARGET is for --task translation; received: {settings.normalization} with --task "
            f"{settings.task}"
        )
    if settings.tokenizer and (settings.separate_vocabularies or settings.init_from):
        raise RequestError("--tokenizer goes neither with --separate-vocabularies nor with --init-from; give one")
    if settings.word_vectors and settings.init_from:
        raise RequestError(
            "--word-vectors begins an embedding, and --init-from brings a whole model; received both: give one"
        )
    if settings.task == "translation" and settings.patience and not settings.bleu_sentences:
        raise RequestError("--patience needs validation BLEU: give --bleu-sentences of at least 1")
