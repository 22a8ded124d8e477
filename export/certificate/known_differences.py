"""Why an artefact may answer a text otherwise than the model: what its format is known to do."""

from __future__ import annotations

from typing import NamedTuple

from keras_transformer.decoding.texts import Texts, valid
from keras_transformer.text.lines import is_blank

from ..artefacts import Artefact

ASCII_SPACE = " \t\n\v\f\r"  # what every vocabulary reads as a space


class KnownDifference(NamedTuple):
    """Why an artefact may answer a text otherwise than the model.

    Args:
        reason: in words.
        is_choice: whether its numbers are right even so: it chose another hypothesis.
    """

    reason: str
    is_choice: bool = False


def known_difference(artefact: Artefact, texts: Texts, place: int) -> KnownDifference | None:
    """Why an artefact may answer a text otherwise than the model; None if it may not."""
    text = texts[place]
    if artefact.format == "ctranslate2" and place < texts.first_given:
        reason = "CTranslate2 searches without a length penalty, which tells where the model is unsure"
        return KnownDifference(reason, is_choice=True)
    if artefact.takes != "text" or not isinstance(text, str):
        return None
    if artefact.format == "onnx" and "\x00" in text:
        return KnownDifference("ONNX Runtime's Python binding cuts a text at a NUL")
    if artefact.format != "tflite":
        return None
    if "\x00" in text:
        return KnownDifference("LiteRT drops a NUL")
    if is_blank(text) and text.strip(ASCII_SPACE):
        return KnownDifference("LiteRT reads characters that others take for a blank line")
    if valid(text) != text:
        return KnownDifference("LiteRT reads bytes that are no UTF-8 as unknown pieces, and others read U+FFFD")
    return None
