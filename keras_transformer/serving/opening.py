"""Opens models that do not translate for the server, by their graphs: each becomes the engine that answers with it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from keras_transformer.checking.signatures import NUM_FILLS, NUM_ITEMS
from keras_transformer.commands.graph_cache import Engine, open_model
from keras_transformer.core.machine import num_cores
from keras_transformer.decoding.computations import Fills, LabelProbs, NextItems, OfGraph
from keras_transformer.decoding.onnx_graphs import OnnxComputations
from keras_transformer.decoding.pipelines import pipeline_of
from keras_transformer.runs.run_folder import config_of
from keras_transformer.serving.answering import AnswerEngine
from keras_transformer.serving.batching import Observer, Scheduler
from keras_transformer.serving.generating import GenerationEngine

if TYPE_CHECKING:
    from keras_transformer.runs.export_folder import Graphs

# What graphs of a run are kept for, by what its pipeline can do: all their outputs, as an export has them.
USUAL: dict[str, OfGraph | None] = {
    "generate": None, "recommend": NextItems(NUM_ITEMS), "fill": Fills(NUM_FILLS), "classify": LabelProbs()
}  # fmt: skip


class Served(NamedTuple):
    """A model that is open: what answers with it, its graphs and their precision."""

    engine: GenerationEngine | AnswerEngine
    graphs: Graphs
    precision: str


def open_engine(
    model: str, folder: str, scheduler: Scheduler, num_threads: int | None = None, observer: Observer | None = None,
    max_waiting_tokens: int = 200_000, batch_tokens: int = 8_192,
) -> Served:  # fmt: skip
    """Opens the graphs of an export, or those that a run keeps, which answer their probes.

    Args:
        model: the name of the model.
        folder: the export or the run.
        scheduler: runs its batches.
        num_threads: how many threads the steps of a large language model take; by default one for each core. Others
            compute with one in each worker of the scheduler.
        observer, max_waiting_tokens, batch_tokens: of a language model, see `GenerationEngine`.

    Raises:
        RequestError: the folder holds no such model, or a file is damaged.
        JobError: a graph does not answer as the model does.
    """
    config = config_of(folder)
    kind = pipeline_of(config.task)
    usual = next(computation for name, computation in USUAL.items() if hasattr(kind, name))
    threads = num_threads or num_cores() if usual is None else 1
    opened = open_model(folder, config.kind, Engine("onnx", num_threads=threads), usual)
    assert isinstance(opened.model, OnnxComputations)
    pipeline: Any = kind.of_run(*opened)
    graphs, precision = opened.model.graphs, opened.model.precision
    if usual is None:
        engine = GenerationEngine(model, pipeline, scheduler, batch_tokens, max_waiting_tokens, observer=observer)
        return Served(engine, graphs, precision)
    return Served(AnswerEngine(model, pipeline, scheduler, opened.model.num_listed), graphs, precision)
