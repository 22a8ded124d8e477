"""Opens translators: with the graphs of an export, or those that a run keeps, or with the Keras model of a run."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import cached_property, partial
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.checking.probes import as_json, chosen_probes
from keras_transformer.commands import graph_cache
from keras_transformer.commands.command import export_module
from keras_transformer.commands.graph_cache import Engine, TrainedRun, folder_of, graphs_for, start_tensorflow
from keras_transformer.core.errors import RequestError
from keras_transformer.core.files import write_text
from keras_transformer.core.schema import one_of
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.decoder import Decoder
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.runs.export_folder import ENGINES, ExportFolder, Graphs, file_name
from keras_transformer.runs.run_folder import (
    RunConfig,
    RunFolder,
    config_of_graph,
    config_of_kind,
    load_model,
    read_tokenizers,
    require_kind,
)
from keras_transformer.spec.search_options import NO_GUARDS, SearchOptions, require
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.lines import read_lines
from keras_transformer.text.splitting import LearnedText

if TYPE_CHECKING:
    from keras_transformer.decoding.keras_decoder import KerasDecoder
    from keras_transformer.models.transformer import Transformer

MOST_SOURCES = 2000  # so many validation sources are tried as probes
KIND = TASKS[Translator.task].kind
LACKING = "no random numbers, no prefixes, and no repetition penalty with several beams"


class Asked(NamedTuple):
    """What a translator will be asked for.

    Args:
        options: the search, which is inside the graph of a translator.
        with_halves: whether encoder and step are needed in its place, for random numbers, beginnings, or a penalty with
            several beams.
        sides: the languages of source and target, of a model between many.
    """

    options: SearchOptions
    with_halves: bool = False
    sides: tuple[str | None, ...] = (None, None)


def load(
    run: str | os.PathLike[str],
    max_source_length: int | None = None,
    precision: str | None = None,
    num_threads: int | None = None,
    provider: str = "auto",
    engine: str = "auto",
) -> Translator:
    """Loads the translator of a run folder or of an export folder.

    An export translates with its graphs in ONNX Runtime, and imports neither Keras nor TensorFlow. So does a run, with
    graphs that it keeps for `translate` too; they are made at the first time. Where a GPU is, or the model has no
    graphs, a run translates with its Keras model. `model` and `attention` load the Keras model when they are asked for.
    Nothing in the folder is executed, so a stranger's folder is safe to load.

    Args:
        run: a run folder, which train.py wrote, or an export, which `python -m export` wrote: see `ExportFolder`.
        max_source_length: see `Translator`.
        precision: "float32", "float16" or "int8" of the graphs; by default float32 if it is there.
        num_threads: how many threads; by default one for each core.
        provider: what graphs compute on, see `OnnxDecoder`.
        engine: "onnx", "keras", or "auto", the one that fits.

    Raises:
        RequestError: the folder holds no run, no model yet or no graphs; a file is damaged; or an option is wrong.
    """
    require("engine", engine, one_of(ENGINES))
    asked_engine = Engine(engine, precision, provider, num_threads)
    if (export := ExportFolder(run)).is_export():
        asked_engine.require_graphs(export.path)
        decoder: Decoder = OnnxDecoder(graphs_in(export, precision), num_threads, provider)
    else:
        config = config_of_kind(RunFolder(run), KIND)
        options = SearchOptions(**config.search)
        asked = Asked(options, not options.can_be_baked, probed_languages(config))
        decoder = run_decoder(os.fspath(run), asked_engine, asked)
    return translator_of(decoder, run, max_source_length)


def probed_languages(config: RunConfig) -> tuple[str | None, ...]:
    """Returns the languages of the probes of a model between many, whose graphs serve all: the run's own, or any."""
    learned, tags = LearnedText.of_corpus(config.corpus), [*config.language_tags]
    if not tags:
        return (None, None)
    own = (learned.source_language, learned.target_language)
    return tuple(code if code in tags else any_other for code, any_other in zip(own, (tags[0], tags[-1]), strict=True))


def run_decoder(run: str, engine: Engine, asked: Asked) -> Decoder:
    """Returns the decoder of a run, which is asked for its own search: of the graphs that it keeps, or of its model."""
    graphs = kept_graphs([run], engine, asked)
    if graphs is not None:
        return KeptDecoder(graphs, engine, run, asked)
    if engine.num_threads is not None:
        raise RequestError(
            f"Keras takes the threads of TensorFlow; received {engine.num_threads}: leave them out, or take "
            "engine='onnx'"
        )
    return keras_decoder([run], None)


def translator_of(decoder: Decoder, folder: str | os.PathLike[str], max_source_length: int | None) -> Translator:
    """Returns the translator of a decoder, with the vocabularies of its run or export."""
    if (export := ExportFolder(folder)).is_export():
        return Translator.of_run(decoder, RunFolder(export.vocabularies), None, max_source_length)
    run = RunFolder(folder)
    return Translator.of_run(decoder, run, config_of_kind(run, KIND), max_source_length)


class KeptDecoder(OnnxDecoder):
    """Decodes with the graphs that a run keeps. What needs other graphs makes them, and what needs Keras loads it.

    Args:
        graphs: the translator.
        engine: what computes.
        run: the run that keeps them.
        asked: for what they were made.
    """

    def __init__(self, graphs: Graphs, engine: Engine, run: str, asked: Asked):
        self._engine, self._run, self._asked = engine._replace(name="onnx"), run, asked
        super().__init__(graphs, engine.num_threads, engine.provider)

    @cached_property
    def _keras(self) -> KerasDecoder:
        return keras_decoder([self._run], None)

    @property
    def model(self) -> Transformer:
        return self._keras.model

    @property
    def joint(self) -> Any:
        return self._keras.joint

    def _session(self, name: str) -> Any:
        with self._checking:  # threads make the halves once
            if name in ("encoder", "step") and self.graphs.step is None:
                halves = kept_graphs([self._run], self._engine, self._asked._replace(with_halves=True))
                assert halves is not None  # this engine is no other
                self.graphs = self.graphs._replace(encoder=halves.encoder, step=halves.step)
        return super()._session(name)


def decoder_for(runs: Sequence[str], engine: Engine, asked: Asked) -> Callable[[], Decoder]:
    """Returns what opens the decoder of an export or of runs. Graphs of runs are built first if they are not there.

    Args:
        runs: one, or several that translate together; the first keeps the graphs.
        engine: what computes.
        asked: what the decoder will be asked for.

    Raises:
        RequestError: there is no such translator, or the engine cannot do what is asked for.
    """
    run = RunFolder(runs[0])
    if (export := ExportFolder(run.path)).is_export():
        if len(runs) > 1:
            raise RequestError(f"{run.path} is an export, which translates alone: give the run that was exported")
        engine.require_graphs(run.path)
        return partial(OnnxDecoder, graphs_in(export, engine.precision), engine.num_threads, engine.provider)
    graphs = kept_graphs(runs, engine, asked)
    if graphs is None:
        return partial(keras_decoder, runs, engine.num_threads)
    return partial(OnnxDecoder, graphs, engine.num_threads, engine.provider)


def graphs_in(export: ExportFolder, precision: str | None) -> Graphs:
    """Returns the graphs of an export. Raises RequestError if there are none, or they are no translator's."""
    graphs = export.graphs(precision)
    if not (graphs.translate or graphs.encoder):
        require_kind(config_of_graph(graphs.main), KIND, export.path)
    return graphs


def kept_graphs(runs: Sequence[str], engine: Engine, asked: Asked) -> Graphs | None:
    """Returns the graphs that runs keep for what is asked; they are built if they are not there. None if Keras answers.

    Raises:
        RequestError: see `graph_cache.graphs_for`.
    """
    precision = engine.precision or "float32"
    reasons = reasons_for_keras(len(runs), engine, asked)
    place = partial(graphs_of, [*map(RunFolder, runs)], asked, precision)
    own_write = partial(write, run=RunFolder(runs[0]), asked=asked, precision=precision)
    return graphs_for(engine, runs, reasons, place, own_write)


def reasons_for_keras(num_runs: int, engine: Engine, asked: Asked) -> Iterator[str]:
    """Yields why the engine must be Keras, or for `auto` should be."""
    if num_runs > 1 and asked.with_halves:
        yield f"a graph of several runs has the search inside, which has {LACKING}"
    if asked.with_halves and graph_cache.may_take_keras(engine):
        yield f"the search inside the graphs has {LACKING}"
    yield from graph_cache.reasons_for_keras(engine)


def graphs_of(runs: Sequence[RunFolder], asked: Asked, precision: str) -> Graphs:
    """Returns the paths of the graphs for what is asked; they need not be there yet.

    Args:
        runs: one, or several that translate together; the first keeps the graphs.
        asked: what they will be asked for.
        precision: the precision of the graphs.
    """
    folder, options = folder_of(runs), asked.options
    if asked.with_halves:
        return Graphs(None, folder / file_name("encoder", precision), folder / file_name("step", precision))
    search = f"beams{options.num_beams}-penalty{options.length_penalty!r}"
    search += f"-longest{options.max_length}" if options.max_length else ""
    search += f"-best{options.n_best}" if options.n_best > 1 else ""
    search += "".join(f"-{name}{value}" for name, value in options.active_guards().items())
    if options.alignments:
        path = folder / file_name(f"translate-{search}-aligned", precision)
        return Graphs(None, None, None, translate_aligned=path)
    return Graphs(folder / file_name(f"translate-{search}", precision), None, None)


def write(trained: TrainedRun, graphs: Graphs, run: RunFolder, asked: Asked, precision: str) -> None:
    """Writes the graphs and their probes, between the languages that are asked for.

    Args:
        trained: what is written.
        graphs, asked, precision: see `graphs_of`.
        run: the run that keeps them; its validation text gives probes.

    Raises:
        Unwritable: the model has a part that ONNX graphs cannot have.
        OSError: the cache cannot be written.
        JobError: the model's weights hold NaN or infinity.
    """
    onnx, artefacts, options = export_module("onnx.export"), export_module("artefacts"), asked.options
    if asked.with_halves:  # they serve any search
        options = replace(options, **vars(NO_GUARDS))
    # A graph that serves all languages names those alone that the run means where none are named.
    trained = replace(artefacts.between(trained, *asked.sides), languages=trained.languages)
    decoding = artefacts.Decoding(
        options.num_beams, options.length_penalty, options.max_length, options.n_best, **options.active_guards()
    )
    for name, path in graphs.present():
        onnx.write_graph(trained, path, name, decoding, precision)
    chosen = chosen_probes(trained.pipeline, validation_sources(run), options)
    write_text(graphs.probes, json.dumps({"probes": as_json(chosen)}))


def validation_sources(run: RunFolder) -> list[str]:
    """Returns the sources of a run's validation text; none if it has none that can be read."""
    try:
        return list(islice(read_lines(run.valid_source), MOST_SOURCES))
    except RequestError:
        return []


def keras_decoder(runs: Sequence[str], num_threads: int | None) -> KerasDecoder:
    """Returns a decoder of the runs' Keras models."""
    start_tensorflow(num_threads)
    return ensemble_decoder(runs)


def load_ensemble(runs: Sequence[str | os.PathLike[str]], max_source_length: int | None = None) -> Translator:
    """Loads the translator of several runs: each piece has the mean of their probabilities, see `Ensemble`.

    Args:
        runs: run folders whose vocabularies are the same, as those of runs that differ in their seeds are. The options
            of the search are the first run's.
        max_source_length: see `Translator`.

    Raises:
        RequestError: a folder holds no trained translator, or the vocabularies differ.

    Example:

    >>> translator = keras_transformer.load_ensemble(["runs/numbers-en-de-auto", "runs/numbers-en-de-auto"])
    >>> translator.translate("twenty-one")
    'einundzwanzig'
    """
    decoder = ensemble_decoder(runs)
    return translator_of(decoder, runs[0], max_source_length)


def ensemble_decoder(runs: Sequence[str | os.PathLike[str]]) -> KerasDecoder:
    """Loads the decoder of the runs' models, or of the one run's.

    Raises:
        RequestError: see `load_ensemble`.
    """
    if not runs or isinstance(runs, str | os.PathLike):
        raise RequestError(f"expected a list of run folders; received {runs!r}")
    from keras_transformer.decoding.keras_decoder import KerasDecoder  # imports Keras

    models = [load_model(run, KIND) for run in runs]
    if len(runs) > 1:
        _require_one_vocabulary(runs, models)
    return KerasDecoder(*models)


def _require_one_vocabulary(runs: Sequence[str | os.PathLike[str]], models: Sequence[Transformer]) -> None:
    first, *others = (
        [each.model for each in read_tokenizers(RunFolder(run), model.source_vocabulary_size, model.vocabulary_size)]
        for run, model in zip(runs, models, strict=True)
    )
    for run, vocabulary in zip(runs[1:], others, strict=True):
        if vocabulary != first:
            raise RequestError(
                f"expected runs with one vocabulary; {run} has another than {runs[0]}, so their pieces cannot be "
                "averaged: train the two on one text with the same --seed and vocabulary, or give both "
                "one joint vocabulary by --tokenizer"
            )
