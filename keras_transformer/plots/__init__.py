"""Pictures of training, of certificates and of attention, as Matplotlib figures; imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer.core.lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.plots.page import WordLines, attention_page, attention_picture, word_lines_picture
    from keras_transformer.plots.pictures import (
        certificate_picture,
        learning_curves,
        masks_picture,
        positions_picture,
        schedule_picture,
    )

_NAMES = {
    "page": ["WordLines", "attention_page", "attention_picture", "word_lines_picture"],
    "pictures": ["certificate_picture", "learning_curves", "masks_picture", "positions_picture", "schedule_picture"],
}
if not TYPE_CHECKING:
    __getattr__, __dir__, __all__ = lazy_names(__name__, _NAMES, without_keras=[*_NAMES["page"], *_NAMES["pictures"]])
