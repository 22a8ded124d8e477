"""Runs written from Python: of a model that train.py did not train, or that was imported."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import RequestError
from keras_transformer.files import check_writable, write_folder_whole, write_text
from keras_transformer.making import count_parameters, make_model, model_config
from keras_transformer.run_folder import RunFolder, save_model, versions, write_config
from keras_transformer.text.lines import each_of, strings_of

if TYPE_CHECKING:
    import numpy as np

    from keras_transformer.models.image_classifier import ImageClassifier
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.text.tokenizer import Tokenizer


def write_translator(
    folder: str | os.PathLike[str],
    model: Transformer,
    tokenizers: tuple[Tokenizer, Tokenizer],
    languages: tuple[str, str] | None = None,
    validation: tuple[Sequence[str], Sequence[str]] | None = None,
    overwrite: bool = False,
    search: dict[str, Any] | None = None,
    sentences_per_line: int = 1,
) -> None:
    """Writes the run folder of a translator; see `Translator.save`.

    Raises:
        RequestError: see `Translator.save`.
    """
    path = Path(folder)
    check_place(path, overwrite)
    twin = _twin(model)
    _check_vocabularies(model_config(twin), tokenizers)
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
    corpus: dict[str, Any] = dict(zip(("source_language", "target_language"), languages or (), strict=False))
    if sentences_per_line > 1:
        corpus["sentences_per_line"] = sentences_per_line
    sections = {**({"search": search} if search else {}), "corpus": corpus}
    _write(path, twin, sections, lambda run: _write_text(run, twin, tokenizers, validation))


def write_recognizer(
    folder: str | os.PathLike[str],
    model: ImageClassifier,
    labels: list[str],
    images: np.ndarray | None = None,
    overwrite: bool = False,
) -> None:
    """Writes the run folder of a recognizer; see `Recognizer.save`.

    Raises:
        RequestError: see `Recognizer.save`.
    """
    import numpy as np  # late, as `import --help` needs no numbers

    path = Path(folder)
    check_place(path, overwrite)
    if images is not None and (images.dtype != np.uint8 or images.shape[1:] != model.image_shape or not len(images)):
        raise RequestError(
            f"expected images (N, {', '.join(map(str, model.image_shape))}) of uint8; received {images.dtype} "
            f"{images.shape}"
        )

    def write_images(run: RunFolder) -> None:
        if images is not None:
            np.savez_compressed(run.valid_images, images=images)

    _write(path, _twin(model), {"labels": labels, "corpus": {}}, write_images)


def _write(path: Path, model: Any, sections: dict[str, Any], write_files: Callable[[RunFolder], None]) -> None:
    """Writes a run folder, whole or not at all.

    Args:
        path: the folder.
        model: as `_twin` makes it.
        sections: of config.json, but those that every run has.
        write_files: writes the other files into the folder.
    """
    config = model_config(model)
    corpus = {"name": path.resolve().name, **sections["corpus"]}
    rest = {"settings": {}, "versions": versions(), "parameters": count_parameters(config)}
    with write_folder_whole(path) as aside:
        run = RunFolder(aside)
        write_config(run, {"model": config, **sections, "corpus": corpus, **rest})
        write_files(run)
        save_model(run, model)


def check_place(path: Path, overwrite: bool) -> None:
    """Raises RequestError unless a run may be written there.

    The folder is new or empty, or holds a run that may be replaced, and nothing else.
    """
    is_free = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if not is_free and not (overwrite and RunFolder(path).is_run()):
        raise RequestError(
            f"expected a new or empty folder, or a run and `overwrite=True` (--overwrite); {path} holds something"
        )
    if path.resolve() in (Path.cwd(), *Path.cwd().parents):
        raise RequestError(f"expected a folder that can be replaced; received {path}, in which this process works")
    parts = {part.name for part in RunFolder(path).parts()}
    entries = [] if is_free else sorted(entry.name for entry in path.iterdir())
    # A process that was killed while it wrote a part has left it under a name of its own.
    if strangers := [name for name in entries if re.sub(r"^\.\d+-", "", name) not in parts]:
        raise RequestError(
            f"expected a run and nothing else; {path} holds {strangers[0]}: move it away, or choose another folder"
        )
    for written in (path, path.resolve().parent):  # beside the old run, before the new one replaces it
        check_writable(written)


def _twin(model: Any) -> Any:
    """The model that `model`'s configuration describes, with its weights, in float32 and without an optimizer.

    Raises:
        RequestError: the configuration does not describe the whole model.
    """
    from keras_transformer.models.inspection import difference_in_kind, difference_in_parts

    found = difference_in_kind(model)
    if found is None:
        twin = make_model(model_config(model))
        found = difference_in_parts(model, twin)
    if found is not None:
        raise RequestError(
            f"expected a model that its configuration describes, with {found.expected} at {found.path}; received "
            f"{found.received} there: add the part to `keras_transformer.family`, and make the model with its name"
        )
    twin.set_weights(model.get_weights())
    return twin


def _check_vocabularies(config: dict[str, Any], tokenizers: tuple[Tokenizer, Tokenizer]) -> None:
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
    from keras_transformer.text.tokenizer import plain

    are_two = model_config(model)["source_vocabulary_size"] is not None or tokenizers[0].model != tokenizers[1].model
    for path, tokenizer in zip(run.tokenizers(are_two), tokenizers, strict=True):
        tokenizer.save(path)
    if validation is not None:
        for path, lines in zip((run.valid_source, run.valid_target), validation, strict=True):
            write_text(path, "".join(f"{plain(line)}\n" for line in lines))
