"""Pictures of training, of certificates and of attention, as Matplotlib figures; imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer.lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.plots.attention import attention_picture as attention_picture
    from keras_transformer.plots.certificate import certificate_picture as certificate_picture
    from keras_transformer.plots.curves import learning_curves as learning_curves
    from keras_transformer.plots.masks import masks_picture as masks_picture
    from keras_transformer.plots.page import attention_page as attention_page
    from keras_transformer.plots.positions import positions_picture as positions_picture
    from keras_transformer.plots.schedule import schedule_picture as schedule_picture
    from keras_transformer.plots.word_lines import WordLines as WordLines
    from keras_transformer.plots.word_lines import word_lines_picture as word_lines_picture

_HOMES = {
    "WordLines": "keras_transformer.plots.word_lines",
    "attention_page": "keras_transformer.plots.page",
    "attention_picture": "keras_transformer.plots.attention",
    "certificate_picture": "keras_transformer.plots.certificate",
    "learning_curves": "keras_transformer.plots.curves",
    "masks_picture": "keras_transformer.plots.masks",
    "positions_picture": "keras_transformer.plots.positions",
    "schedule_picture": "keras_transformer.plots.schedule",
    "word_lines_picture": "keras_transformer.plots.word_lines",
}
__all__ = sorted(_HOMES)
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, without_keras=_HOMES)
