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

__all__ = [
    "WordLines", "attention_page", "attention_picture", "certificate_picture", "learning_curves", "masks_picture",
    "positions_picture", "schedule_picture", "word_lines_picture",
]  # fmt: skip
_OF_PAGE = ["WordLines", "attention_page", "attention_picture", "word_lines_picture"]
_NAMES = {"page": _OF_PAGE, "pictures": sorted({*__all__} - {*_OF_PAGE})}
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _NAMES, without_keras=__all__)
