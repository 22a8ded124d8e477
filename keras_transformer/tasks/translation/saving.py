"""The run folder of a translator, written from Python."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.core.errors import RequestError
from keras_transformer.core.files import write_text
from keras_transformer.runs.run_folder import RunFolder, check_place, float32_copy, write_run
from keras_transformer.spec.options import Config
from keras_transformer.text.lines import each_of, strings_of

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.text.tokenizer import Tokenizer


def write_translator(
    folder: str | os.PathLike[str],
    model: Transformer,
    tokenizers: tuple[Tokenizer, Tokenizer],
    languages: tuple[str, str] | None = None,
    validation: tuple[Sequence[str], Sequence[str]] | None = None,
    overwrite: bool = False,
    sections: Config | None = None,
    sentences_per_line: int = 1,
) -> None:
    """Writes the run folder of a translator; see `Translator.save`. Of the `sections` of config.json empty ones are
    left out.

    Raises:
        RequestError: see `Translator.save`.
    """
    path = Path(folder)
    check_place(path, overwrite)
    twin = float32_copy(model)
    _check_vocabularies(twin.arguments(), tokenizers)
    if languages is not None and (isinstance(languages, str) or len(languages) != 2):
        raise RequestError(f"expected two languages, such as ('en', 'de'); received: {languages!r}")
    if validation is not None:
        sides = each_of(validation, "sentences and of translations")
        sentences, translations = (list(strings_of(side, "validation sentences")) for side in sides)
        validation = sentences, translations
    if validation is not None and not len(validation[0]) == len(validation[1]) > 0:
        raise RequestError(
            f"expected a translation for each validation sentence; received {len(validation[0])} sentences and "
            f"{len(validation[1])} translations"
        )
    corpus: Config = dict(zip(("source_language", "target_language"), languages or (), strict=False))
    if sentences_per_line > 1:
        corpus["sentences_per_line"] = sentences_per_line
    sections = {**{name: content for name, content in (sections or {}).items() if content}, "corpus": corpus}
    write_run(path, overwrite, "translation", twin, sections, lambda to: _write_text(to, twin, tokenizers, validation))


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
    run: RunFolder,
    model: Transformer,
    tokenizers: tuple[Tokenizer, Tokenizer],
    validation: tuple[Sequence[str], Sequence[str]] | None,
) -> None:
    """Writes the vocabularies of a translator, and its validation text."""
    from keras_transformer.text.lines import plain

    are_two = model.arguments()["source_vocabulary_size"] is not None or tokenizers[0].model != tokenizers[1].model
    for path, tokenizer in zip(run.tokenizers(are_two), tokenizers, strict=True):
        tokenizer.save(path.with_suffix(tokenizer.suffix))
    if validation is not None:
        for path, lines in zip((run.valid_source, run.valid_target), validation, strict=True):
            write_text(path, "".join(f"{plain(line)}\n" for line in lines))
