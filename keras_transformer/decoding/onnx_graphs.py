"""Runs exported graphs in ONNX Runtime: sessions, a search in stages on a GPU, and models of which a graph is the step.

Neither Keras nor TensorFlow is imported.
"""

from __future__ import annotations

import copy
import math
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from contextvars import ContextVar
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer import ops
from keras_transformer.checking.probes import (
    ComputedProbe,
    ProbesFile,
    Runtime,
    check_computed,
    check_once,
    device_name,
)
from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.core.extras import required
from keras_transformer.core.machine import num_cores
from keras_transformer.decoding.computations import OfGraph, TextLogProbs
from keras_transformer.ops import Tensor
from keras_transformer.runs.export_folder import Graphs
from keras_transformer.search.loop import Cache
from keras_transformer.spec.options import Config

if TYPE_CHECKING:
    from onnxruntime import InferenceSession, NodeArg, RunOptions

    from keras_transformer.decoding.keras_decoder import CompiledComputations, Computation
    from keras_transformer.models.base import FamilyModel

    Provider = str | tuple[str, dict[str, int]]  # its name, perhaps with its options

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
READ_AT_ONCE = 128  # tokens of all prompts together: the graph gives the logits of each


def has_cuda() -> bool:
    """Tells whether the ONNX Runtime that is installed is one for NVIDIA's GPUs."""
    import onnxruntime

    return CUDA in onnxruntime.get_available_providers()


def open_session(path: Path, num_threads: int, provider: str = "auto", plans_memory: bool = True) -> InferenceSession:
    """Opens a session for a graph.

    Args:
        path: the path of the graph.
        num_threads: how many threads of the processor to use.
        provider: see `OnnxDecoder`.
        plans_memory: whether ONNX Runtime plans which results share memory, which takes the square of the nodes: for
            the 1,711 of a model of 30 layers 0.43 s.

    Raises:
        RequestError: onnxruntime is not installed, the graph cannot be loaded, or there is no GPU that was asked for.
    """
    onnxruntime = required("onnxruntime", "", str(path))
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 4  # fatal: what is an error is raised, and told in a line of ours
    options.enable_mem_reuse = plans_memory
    try:
        session = onnxruntime.InferenceSession(path, options, providers=_providers(provider))
    except Exception as error:  # ONNX Runtime's exceptions have no base but this
        reason = " ".join(str(error).split())[:300]
        raise RequestError(
            f"{path} is damaged, or ONNX Runtime cannot run it; export it again, or delete it if it lies in a run's "
            f"cache, where it is then built again: {reason}"
        ) from error
    if provider == "cuda" and CUDA not in session.get_providers():
        raise RequestError(
            f"--provider cuda: ONNX Runtime {onnxruntime.__version__} cannot use a GPU here; it has "
            f"{', '.join(session.get_providers())}: install onnxruntime-gpu and CUDA, or take --provider cpu"
        )
    return session


def _providers(provider: str) -> list[Provider]:
    """Returns the providers to ask for, the first before the others."""
    if provider == "cpu" or not has_cuda():
        return [CPU]
    import onnxruntime

    onnxruntime.preload_dlls()  # CUDA's libraries from pip, which the provider does not find by itself
    return [(CUDA, {"use_tf32": 0}), CPU]  # TF32 rounds float32 to 11 bits


def runtime_of(session: InferenceSession) -> Runtime:
    """Tells what runs a session."""
    import onnxruntime

    provider = session.get_providers()[0]
    return Runtime(provider, onnxruntime.__version__, device_name(provider))


class Abandoned(Exception):
    """Says that a run of graphs was ended, because nobody waits for its results any more."""


class Stop:
    """Ends the runs of graphs in one thread from another thread.

    A run that computes ends in the middle, also within a loop of its graph; the next one does not begin.
    """

    def __init__(self) -> None:
        self.is_set = False
        self._running: RunOptions | None = None
        self._lock = threading.Lock()

    def set(self) -> None:
        """Ends what runs, and what would run."""
        with self._lock:
            self.is_set = True
            if self._running is not None:
                self._running.terminate = True

    @contextmanager
    def watching(self, options: RunOptions) -> Iterator[None]:
        """Watches one run. Raises Abandoned if it was ended, or should not begin."""
        self._watch(options)
        try:
            yield
        except Exception as error:
            if self.is_set:
                raise Abandoned from error
            raise
        finally:
            with self._lock:
                self._running = None

    def _watch(self, options: RunOptions) -> None:
        with self._lock:
            if self.is_set:
                raise Abandoned
            self._running = options


_STOP: ContextVar[Stop | None] = ContextVar("stop", default=None)


@contextmanager
def stoppable(stop: Stop) -> Iterator[None]:
    """Lets another thread end the runs of graphs in this block, which then raises Abandoned."""
    token = _STOP.set(stop)
    try:
        yield
    finally:
        _STOP.reset(token)


def run(
    session: InferenceSession, names: list[str] | None, feeds: dict[str, np.ndarray], needed_alone: bool = False
) -> list[np.ndarray]:
    """Runs a graph and returns its outputs, all of them if `names` is None.

    Args:
        session, names, feeds: as ONNX Runtime takes them.
        needed_alone: whether nothing is computed that other outputs need.

    Raises:
        JobError: ONNX Runtime could not compute them.
        Abandoned: see `stoppable`.
    """
    import onnxruntime

    options, stop = onnxruntime.RunOptions(), _STOP.get()
    options.only_execute_path_to_fetches = needed_alone
    try:
        with stop.watching(options) if stop else nullcontext():
            return session.run(names, feeds, options)
    except Abandoned:
        raise
    except Exception as error:  # ONNX Runtime's exceptions have no base but this
        raise failure(error) from error


def failure(error: Exception) -> JobError:
    """Makes a JobError of a failure of ONNX Runtime."""
    reason = " ".join(str(error).split())[:300]
    return JobError(f"ONNX Runtime stopped; if memory ran out, take smaller batches: {reason}")


class NeedsKeras(RequestError, AttributeError):
    """Something was asked of a model that is a graph, which a Keras model alone has."""


class GraphModel:
    """A model that is a graph. It has the arguments of the model as attributes.

    Args:
        config: the arguments of the model, `num_control_ids` among them.
    """

    def __init__(self, config: Config):
        vars(self).update(config)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """The shape of what a classifier of images takes."""
        return self.image_size, self.image_size, self.channels

    def __getattr__(self, name: str) -> Any:
        raise NeedsKeras(f"expected a Keras model, which has `{name}`; received a graph: give the run in its place")


class SteppedModel(GraphModel):
    """A model whose step is a graph: the base.

    Args:
        session_of: gives the session of a graph by its name.
        config: see `GraphModel`.
    """

    def __init__(self, session_of: Callable[[str], InferenceSession], config: Config):
        super().__init__(config)
        self._session_of = session_of

    def step(self, token_ids: np.ndarray, cache: Cache, index: Tensor) -> tuple[np.ndarray, Cache]:
        """Takes the `Step` of a search: one position for the hypotheses (B, K) of each sentence."""
        logits, behind, _ = self._step(token_ids, cache, index, [])
        return logits, behind

    def _step(
        self, token_ids: np.ndarray, cache: Cache, index: Tensor, beside: list[str]
    ) -> tuple[np.ndarray, Cache, list[np.ndarray]]:
        """Takes `step`, and returns outputs besides."""
        feeds = {"token_ids": token_ids.astype("int32"), "index": np.array(index, "int32"), **cache["sentences"]}
        for argument, past in zip(self._past, cache["beams"], strict=True):
            rows = past.shape[:2]  # B, K
            feeds[argument.name] = past.reshape(math.prod(rows), *past.shape[2:])
        names = ["logits", *(argument.name.replace("past_", "present_", 1) for argument in self._past), *beside]
        logits, *found = run(self._session_of("step"), names, feeds, needed_alone=True)
        present, others = found[: len(found) - len(beside)], found[len(found) - len(beside) :]
        return logits, {**cache, "beams": [values.reshape(*rows, *values.shape[1:]) for values in present]}, others

    def no_positions(self, batch_size: int, num_beams: int) -> list[np.ndarray]:
        """Returns an empty cache of keys and values."""
        return [
            np.zeros((batch_size, num_beams, *sizes_before(argument)), element_type(argument.type))
            for argument in self._past
        ]

    @property
    def _past(self) -> list[NodeArg]:
        return [argument for argument in self._session_of("step").get_inputs() if argument.name.startswith("past_")]


class EncoderStepModel(SteppedModel):
    """A translator in two graphs, encoder and step."""

    @property
    def tells_alignments(self) -> bool:
        """Whether the step tells where it looks, as it does not in exports of older versions."""
        return any(output.name == "alignment" for output in self._session_of("step").get_outputs())

    def aligned_step(self, token_ids: np.ndarray, cache: Cache, index: Tensor) -> tuple[np.ndarray, Cache, np.ndarray]:
        """Takes a step that tells where it looks; see `Transformer.aligned_step`."""
        logits, behind, [places] = self._step(token_ids, cache, index, ["alignment"])
        return logits, behind, places

    def encode(self, source_ids: np.ndarray) -> Mapping[str, np.ndarray]:
        """Returns what the step takes of sources (B, S), end included."""
        encoder = self._session_of("encoder")
        names = [output.name for output in encoder.get_outputs() if output.name != "limit"]
        return dict(zip(names, run(encoder, names, {"source_ids": source_ids}), strict=True))

    def init_cache(
        self, memory: Mapping[str, np.ndarray], source_ids: np.ndarray, num_beams: int, max_length: int
    ) -> Cache:
        """Returns the cache before the first step."""
        return {"beams": self.no_positions(len(source_ids), num_beams), "sentences": memory}


class SteppedLanguageModel(SteppedModel):
    """A language model in one graph. A cache has the ids (B, K, T) that beams read, and what the graph made of them.

    Args:
        session_of, config: see `SteppedModel`.
        of_one_stream: whether the model keeps the last cache of a lone text, so that a text which goes on is not read
            again. Then streams and threads may not share the model.
    """

    supports_prefill = True  # many positions in one run of the graph, unless it takes one alone

    def __init__(self, session_of: Callable[[str], InferenceSession], config: Config, of_one_stream: bool = False):
        super().__init__(session_of, config)
        self._of_one_stream = of_one_stream
        self._last: list[np.ndarray] = []  # the beams of a cache

    def init_cache(self, ids: np.ndarray, num_beams: int, max_length: int) -> Cache:
        """Returns the cache before the first step, for prompts (B, P), padded with 0."""
        read = np.zeros((len(ids), num_beams, 0), "int32")
        return {"beams": [read, *self.no_positions(len(ids), num_beams)], "sentences": {}}

    def step(self, token_ids: np.ndarray, cache: Cache, index: Tensor) -> tuple[np.ndarray, Cache]:
        """Takes a step as the base does; or reads the first positions (T,) of ids (B, T) at once, without logits."""
        if np.ndim(index):
            cache = {**cache, "beams": self._known(token_ids) or cache["beams"]}
            for _, behind in self._runs(token_ids, cache):
                cache = behind
            logits = np.zeros((*token_ids.shape, 0), "float32")
        else:
            logits, cache = self._extended(token_ids, cache, token_ids[..., None])
        if self._of_one_stream and cache["beams"][0].shape[:2] == (1, 1):
            self._last = cache["beams"]
        return logits, cache

    def __call__(self, inputs: Mapping[str, np.ndarray], training: bool = False) -> np.ndarray:
        """Logits (B, T, V) of the token that follows each position, for {"ids": (B, T)}."""
        ids = inputs["ids"]
        return np.concatenate([logits for logits, _ in self._runs(ids, self.init_cache(ids, 1, 0))], axis=1)

    @property
    def takes_starts(self) -> bool:
        """Whether rows may begin at places of their own in a cache, so that texts of any lengths step together."""
        names = [given.name for given in self._session_of("step").get_overridable_initializers()]
        return "start" in names

    @property
    def takes_many(self) -> bool:
        """Whether one run of the graph takes several positions of a text."""
        return self._session_of("step").get_inputs()[0].shape[1] != "beams"

    @property
    def growing_axes(self) -> list[int | None]:
        """Of each part of the cache, the axis along which it grows with the places; None where it does not."""
        return [[*past.shape].index("past") if "past" in past.shape else None for past in self._past]

    def empty(self, num_rows: int) -> list[np.ndarray]:
        """Returns what `next_places` takes before the first place of rows."""
        return [values[:, 0] for values in self.no_positions(num_rows, 1)]

    def next_places(
        self, token_ids: np.ndarray, past: Sequence[np.ndarray], index: int, starts: np.ndarray
    ) -> tuple[np.ndarray, list[np.ndarray]]:
        """Reads the next places of rows that step together.

        Args:
            token_ids: (rows, T) what stands there.
            past: what the graph keeps of the places before, (rows, ...) each.
            index: the first of the places.
            starts: (rows,) the place where the text of each row begins; 0 unless the graph `takes_starts`.

        Returns:
            Logits (rows, T, V) of the tokens that follow, and the past of the next run.
        """
        feeds = {"token_ids": token_ids.astype("int32"), "index": np.array(index, "int32")}
        feeds |= {"start": starts.astype("int32")} if self.takes_starts else {}
        feeds |= zip((argument.name for argument in self._past), past, strict=True)
        logits, *present = run(self._session_of("step"), None, feeds)
        return logits, present

    def _known(self, ids: np.ndarray) -> list[np.ndarray]:
        """Returns the beams of the last cache, if ids (B, T) go on from what it has read."""
        read = self._last[0][0] if self._last else ids[:, :0]
        return self._last if np.array_equal(read, ids[:, : read.shape[-1]]) else []

    def _runs(self, ids: np.ndarray, cache: Cache) -> Iterator[tuple[np.ndarray, Cache]]:
        """The logits of those positions of ids (B, T) that a cache lacks, run by run, and the cache behind each run."""
        count = max(READ_AT_ONCE // len(ids), 1) if self.takes_many else 1
        for index in range(cache["beams"][0].shape[-1], ids.shape[1], count):
            some = ids[:, index : index + count]
            logits, cache = self._extended(some, cache, some[:, None])
            yield logits, cache

    def _extended(self, token_ids: np.ndarray, cache: Cache, new: np.ndarray) -> tuple[np.ndarray, Cache]:
        """Runs the graph once: returns the logits, and the cache behind the new ids (B, K, T) of its beams."""
        read, *beams = cache["beams"]
        logits, behind = super().step(token_ids, {**cache, "beams": beams}, read.shape[-1])
        return logits, {**behind, "beams": [np.concatenate([read, new], axis=-1), *behind["beams"]]}


class OnnxComputations:
    """Runs computations by a graph in ONNX Runtime, as `CompiledComputations` does by Keras. Threads may share it.

    The graph first answers its probes. A language model has one graph, its step: NumPy computes the rest. Other models
    that do not search have one graph with all their outputs, of which a computation takes its own.

    Args:
        graphs: where the graph is: of the outputs, or of the step.
        config: the arguments of the model, which `model` has as attributes.
        precision: the precision of the graph.
        num_threads, provider: as for `OnnxDecoder`.

    Raises:
        RequestError: the graph or its probes are missing or damaged, or there is no such provider.
        JobError: the graph does not answer as the model does.
    """

    def __init__(
        self,
        graphs: Graphs,
        config: Config,
        precision: str = "float32",
        num_threads: int | None = None,
        provider: str = "auto",
    ):
        self.graphs = graphs
        self._is_step, self._path = graphs.step is not None, graphs.main
        # A step has small results. What many positions have at once shares memory without a plan as well.
        self._session = open_session(graphs.main, num_threads or num_cores(), provider, plans_memory=not self._is_step)
        self._config = config
        self.model: Any = GraphModel(config)
        if self._is_step:
            self.model = SteppedLanguageModel(self._session_of, config)
        file = ProbesFile.read(graphs.probes, ComputedProbe.read)

        def compare() -> None:
            for probe in file.probes:
                found = self.run(TextLogProbs(), *probe.inputs) if self._is_step else self._found(None, probe.inputs[0])
                check_computed(probe, found, precision)

        check_once(file, [graphs.main], runtime_of(self._session), compare)

    def of_one_stream(self) -> OnnxComputations:
        """Returns the same for one stream alone: a text that goes on is not read again."""
        other = copy.copy(self)
        other.model = SteppedLanguageModel(self._session_of, self._config, of_one_stream=True)
        return other

    def run(self, computation: Computation, *arrays: np.ndarray) -> list[np.ndarray]:
        """Returns the results (B, ...) of arrays (B, ...).

        Raises:
            RequestError: the graph lists fewer choices than are asked for.
        """
        if self._is_step:
            with ops.on(ops.NUMPY):
                return [*computation.run(self.model, *arrays)]
        assert isinstance(computation, OfGraph)  # others are a step's
        asked, listed = computation.num_best, self.num_listed
        if asked and listed and listed < min(asked, self.model.vocabulary_size - self.model.num_control_ids):
            raise RequestError(
                f"expected at most {listed} choices, as many as {self._path} lists; received {asked}: ask for fewer, "
                "or give the run"
            )
        return computation.of_graph(self._found([*computation.outputs], arrays[0]), *arrays)

    @property
    def num_listed(self) -> int | None:
        """How many choices the graph lists, of those that have too many to give the probabilities of all; else None."""
        sizes = {output.name: output.shape[-1] for output in self._session.get_outputs()}
        return sizes["probabilities"] if {"piece_ids", "item_ids"} & sizes.keys() else None

    def _found(self, names: list[str] | None, inputs: np.ndarray) -> list[np.ndarray]:
        """Returns outputs of the graph; what they do not need is not computed."""
        return run(self._session, names, {self._session.get_inputs()[0].name: inputs}, needed_alone=True)

    def _session_of(self, name: str) -> InferenceSession:
        return self._session


def computations_of(model: FamilyModel | OnnxComputations) -> CompiledComputations | OnnxComputations:
    """Returns what runs the computations of a model: an `OnnxComputations` itself, or for a Keras model Keras."""
    if isinstance(model, OnnxComputations):
        return model
    from keras_transformer.decoding.keras_decoder import CompiledComputations  # imports Keras

    return CompiledComputations(model)


def sizes_before(argument: NodeArg) -> list[int]:
    """Returns the sizes of a part of the cache before the first step, behind the rows: axes that grow have names."""
    return [size if isinstance(size, int) else 0 for size in argument.shape[1:]]


def element_type(name: str) -> str:
    """Returns NumPy's name of a type that ONNX Runtime calls "tensor(float)" or "tensor(float16)"."""
    return "float16" if "float16" in name else "float32"
