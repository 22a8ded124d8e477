"""Runs written from Python: of a model that train.py did not train, or that was imported."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from keras_transformer.errors import RequestError
from keras_transformer.files import check_writable, write_folder_whole
from keras_transformer.making import count_parameters, make_model, model_config
from keras_transformer.run_folder import RunFolder, save_model, versions, write_config
from keras_transformer.tasks import task_named


def write_run(
    path: Path, task: str, model: Any, sections: dict[str, Any], write_files: Callable[[RunFolder], None]
) -> None:
    """Writes a run folder, whole or not at all.

    Args:
        path: the folder.
        task: of the model, a key of `tasks.TASKS`.
        model: as `twin_of` makes it.
        sections: of config.json, but those that every run has.
        write_files: writes the other files into the folder.
    """
    config = model_config(model)
    corpus = {"name": path.resolve().name, **sections["corpus"]}
    usual = task_named(None, config["kind"], sections)  # what needs no word
    settings = {} if task == usual else {"task": task}
    rest = {"settings": settings, "versions": versions(), "parameters": count_parameters(config)}
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


def twin_of(model: Any) -> Any:
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
            f"{found.received} there: register the part by `keras_transformer.register_part`, and make the model with "
            "its name"
        )
    twin.set_weights(model.get_weights())
    return twin
