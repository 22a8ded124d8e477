"""The graphs that a run keeps in its cache: built at the first translation, and used by later ones."""

from __future__ import annotations

import hashlib
import shutil
import zipfile
from typing import Any

from keras_transformer.commands.exporting import export_module
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.export_folder import Graphs, file_name
from keras_transformer.run_folder import RunFolder, read_config, reading_model
from keras_transformer.version import __version__

TrainedRun = Any  # of the export's module `signatures`, which is imported late


def graphs_of(run: RunFolder, options: SearchOptions, precision: str, with_halves: bool) -> Graphs:
    """Where the graphs for these options belong; they need not be there yet.

    Args:
        run: the run.
        options: the search, which is inside the graph of a translator.
        precision: of the graphs.
        with_halves: whether encoder and step are needed, in place of the translator.
    """
    folder = run.cache / f"onnx-{key_of(run)}"
    if with_halves:
        return Graphs(None, folder / file_name("encoder", precision), folder / file_name("step", precision))
    name = f"translate-beams{options.num_beams}-penalty{options.length_penalty!r}"
    name += f"-longest{options.max_length}" if options.max_length else ""
    name += f"-best{options.n_best}" if options.n_best > 1 else ""
    return Graphs(folder / file_name(name, precision), None, None)


def key_of(run: RunFolder) -> str:
    """A key that changes with the content of model.keras and with the version of this package.

    It is made of the sizes and checksums in the archive's list of files, so it does not read the weights.

    Raises:
        RequestError: there is no run or no model yet, or its file is damaged.
    """
    read_config(run)
    with reading_model(run), zipfile.ZipFile(run.model) as archive:
        content = [(entry.filename, entry.file_size, entry.CRC) for entry in archive.infolist()]
    return hashlib.sha256(repr((__version__, content)).encode()).hexdigest()[:16]


def build(run: RunFolder, trained: TrainedRun, graphs: Graphs, options: SearchOptions, precision: str) -> None:
    """Writes the graphs of the run, and removes those of other weights or versions.

    Raises:
        Unwritable: the model has a part that ONNX graphs cannot have.
        OSError: the cache cannot be written.
    """
    onnx, signatures = export_module("onnx"), export_module("signatures")
    decoding = signatures.Decoding(options.num_beams, options.length_penalty, options.max_length, options.n_best)
    for name, path in graphs.present():
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.write_graph(trained, path, name, decoding, precision)
    for other in run.cache.glob("onnx-*"):
        if other != graphs.main.parent:
            shutil.rmtree(other, ignore_errors=True)
