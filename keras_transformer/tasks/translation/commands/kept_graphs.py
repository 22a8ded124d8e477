"""The graphs that a run keeps in its cache: built at the first translation, and used by later ones."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import shutil
import sys
import zipfile
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from types import ModuleType
from typing import Any

from keras_transformer import version
from keras_transformer.commands.exporting import export_module
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import RequestError
from keras_transformer.export_folder import Graphs, file_name
from keras_transformer.files import write_text
from keras_transformer.run_folder import RunFolder, read_config, reading_model
from keras_transformer.text.lines import read_lines, sha256_of_source

PACKAGES = ("onnx", "onnxruntime")  # what building and running a graph needs
MOST_SOURCES = 2000  # of a run's validation text, which probes are chosen of
TrainedRun = Any  # of the export's module `signatures`, which is imported late


def graphs_of(runs: Sequence[RunFolder], options: SearchOptions, precision: str, with_halves: bool) -> Graphs:
    """Where the graphs for these options belong; they need not be there yet.

    Args:
        runs: one, or several that translate together; the first keeps the graphs.
        options: the search, which is inside the graph of a translator.
        precision: of the graphs.
        with_halves: whether encoder and step are needed, in place of the translator.
    """
    key = digest((writers(), *map(content_of, runs)))
    folder = runs[0].cache / f"{'onnx' if len(runs) == 1 else 'ensemble'}-{key}"
    if with_halves:
        return Graphs(None, folder / file_name("encoder", precision), folder / file_name("step", precision))
    name = f"translate-beams{options.num_beams}-penalty{options.length_penalty!r}"
    name += f"-longest{options.max_length}" if options.max_length else ""
    name += f"-best{options.n_best}" if options.n_best > 1 else ""
    return Graphs(folder / file_name(name, precision), None, None)


def content_of(run: RunFolder) -> list[tuple[Any, ...]]:
    """The sizes and checksums of the parts of model.keras, from the archive's list: the weights are not read. And the
    source of the modules that register parts of the run: of a package all its files.

    Raises:
        RequestError: there is no run or no model yet, or its file is damaged.
    """
    own = [(name, source_of(sys.modules[name])) for name in read_config(run).get("modules", [])]
    with reading_model(run), zipfile.ZipFile(run.model) as archive:
        return [*own, *((entry.filename, entry.file_size, entry.CRC) for entry in archive.infolist())]


def source_of(module: ModuleType) -> str:
    """A short name for the source of an imported module; of a package for all its Python files."""
    path = Path(str(module.__file__))
    return sha256_of_source(path.parent) if hasattr(module, "__path__") else digest(path.read_bytes())


def writers() -> tuple[str, list[str]]:
    """What a graph depends on besides the model: the source of this package and of the export, and the versions of the
    packages that write it and run it."""
    folders = {Path(str(module.__file__)).parent for module in (version, export_module("__main__"))}
    return sha256_of_source(*folders), sorted({name for package in PACKAGES for name in installed(package)})


def installed(package: str) -> Iterator[str]:
    """The folders in which pip describes a package; their names have the version. `importlib.metadata` takes 15 ms."""
    spec = importlib.util.find_spec(package)
    if spec and spec.origin:
        yield from (path.name for path in Path(spec.origin).parents[1].glob(f"{package}*-info"))


def digest(content: object) -> str:
    """A short name for the content, for its `repr`."""
    return hashlib.sha256(repr(content).encode()).hexdigest()[:16]


def build(run: RunFolder, trained: TrainedRun, graphs: Graphs, options: SearchOptions, precision: str) -> None:
    """Writes the graphs and their probes; of ensembles the last one is kept.

    Graphs of other weights or of another export are removed.

    Args:
        run: the run that keeps them.
        trained: what is written.
        graphs, options, precision: see `graphs_of`.

    Raises:
        Unwritable: the model has a part that ONNX graphs cannot have.
        OSError: the cache cannot be written.
        JobError: the model's weights hold NaN or infinity.
    """
    from keras_transformer.decoding.probes import as_json, chosen_probes

    onnx, signatures = export_module("onnx"), export_module("signatures")
    decoding = signatures.Decoding(options.num_beams, options.length_penalty, options.max_length, options.n_best)
    for name, path in graphs.present():
        path.parent.mkdir(parents=True, exist_ok=True)
        onnx.write_graph(trained, path, name, decoding, precision)
    chosen = chosen_probes(trained.pipeline, validation_sources(run), options)
    write_text(graphs.probes, json.dumps({"probes": as_json(chosen)}))
    kept = graphs.main.parent
    for other in run.cache.glob(f"{kept.name.partition('-')[0]}-*"):
        if other != kept:
            shutil.rmtree(other, ignore_errors=True)


def validation_sources(run: RunFolder) -> list[str]:
    """The sources of a run's validation text; none if it has none that can be read."""
    try:
        return list(islice(read_lines(run.valid_source), MOST_SOURCES))
    except RequestError:
        return []
