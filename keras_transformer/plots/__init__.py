"""Pictures of training, of certificates and of attention, as Matplotlib figures; imported when first used."""

from __future__ import annotations

from typing import TYPE_CHECKING

from keras_transformer.lazy import lazy_names

if TYPE_CHECKING:
    from keras_transformer.plots.page import WordLines as WordLines
    from keras_transformer.plots.page import attention_page as attention_page
    from keras_transformer.plots.page import attention_picture as attention_picture
    from keras_transformer.plots.page import word_lines_picture as word_lines_picture
    from keras_transformer.plots.pictures import certificate_picture as certificate_picture
    from keras_transformer.plots.pictures import learning_curves as learning_curves
    from keras_transformer.plots.pictures import masks_picture as masks_picture
    from keras_transformer.plots.pictures import positions_picture as positions_picture
    from keras_transformer.plots.pictures import schedule_picture as schedule_picture

_HOMES = {
    "WordLines": "keras_transformer.plots.page",
    "attention_page": "keras_transformer.plots.page",
    "attention_picture": "keras_transformer.plots.page",
    "certificate_picture": "keras_transformer.plots.pictures",
    "learning_curves": "keras_transformer.plots.pictures",
    "masks_picture": "keras_transformer.plots.pictures",
    "positions_picture": "keras_transformer.plots.pictures",
    "schedule_picture": "keras_transformer.plots.pictures",
    "word_lines_picture": "keras_transformer.plots.page",
}
__all__ = sorted(_HOMES)
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, _HOMES, without_keras=_HOMES)
