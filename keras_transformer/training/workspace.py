"""The folder of a run that begins: whether it is free, made, and removed again."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.errors import RequestError
from keras_transformer.files import check_writable
from keras_transformer.run_folder import RunFolder, read_config, write_config

if TYPE_CHECKING:
    from keras_transformer.training.request import Run


def check_free(folder: RunFolder, overwrite: bool) -> None:
    """Raises RequestError unless a run may be written into the folder."""
    path = folder.path
    if folder.is_run() and not overwrite:
        raise RequestError(
            f"{path} holds a run already: go on with --resume, remove it with --overwrite, or choose another --out"
        )
    if folder.is_run():
        read_config(folder)  # --overwrite removes runs alone, and other programs write a config.json too.
    elif path.is_dir() and any(path.iterdir()):
        raise RequestError(f"{path} holds files that are not a run's; choose an empty or a new folder with --out")
    check_writable(path)


@contextmanager
def begun(run: Run) -> Iterator[Path]:
    """Makes the run folder and yields the folder for this worker's tokenised text.

    A new run that is refused within (a RequestError) leaves nothing behind.
    """
    if not run.is_chief:
        with tempfile.TemporaryDirectory() as folder:
            yield Path(folder)
        return
    existed = run.folder.path.exists()
    try:
        if run.settings.overwrite and run.folder.is_run():
            _remove_run(run.folder)
        run.folder.path.mkdir(parents=True, exist_ok=True)
        write_config(run.folder, run.config)
        yield run.folder.cache
    except RequestError:
        if not run.is_resumed:
            _remove_run(run.folder)
            if not existed:
                shutil.rmtree(run.folder.path, ignore_errors=True)
        raise


def _remove_run(folder: RunFolder) -> None:
    for path in (folder.checkpoints, folder.cache, folder.tensorboard):
        shutil.rmtree(path, ignore_errors=True)
    tokenizers = {*folder.tokenizers(False), *folder.tokenizers(True)}
    records = {folder.curves, folder.samples, folder.metrics, folder.valid_source, folder.valid_target}
    for path in {folder.model, *tokenizers, *records, folder.config}:
        path.unlink(missing_ok=True)
