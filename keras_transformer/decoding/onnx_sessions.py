"""Sessions of ONNX Runtime, one for a graph; and a search in three graphs, of which a GPU runs each step at once."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from keras_transformer.checking.probes import Runtime, device_name
from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.runs.export_folder import STAGES, Graphs
from keras_transformer.text.sentences import in_few_shapes

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"
# Sources are padded to few shapes, because a GPU keeps a step for each.
MOST_SHAPES = 16  # for which buffers are kept
STEPS_UNSEEN = 4  # after so many the host looks which sentences are done: a look waits for the GPU


def has_cuda() -> bool:
    """Whether the ONNX Runtime that is installed is one for NVIDIA's GPUs."""
    import onnxruntime

    return CUDA in onnxruntime.get_available_providers()


def open_session(
    path: Path, num_threads: int, provider: str = "auto", captures: bool = False, plans_memory: bool = True
) -> InferenceSession:
    """A session for a graph.

    Args:
        path: the path of the graph.
        num_threads: how many threads of the processor to use.
        provider: see `OnnxDecoder`.
        captures: whether a GPU shall record what it computes, and then compute it in one launch.
        plans_memory: whether ONNX Runtime plans which results share memory, which takes the square of the nodes: for
            the 1,711 of a model of 30 layers 0.43 s.

    Raises:
        RequestError: onnxruntime is not installed, the graph cannot be loaded, or there is no GPU that was asked for.
    """
    try:
        import onnxruntime
    except ImportError:
        raise RequestError(
            f"{path} needs the package onnxruntime, which is not installed: pip install onnxruntime"
        ) from None
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.log_severity_level = 4  # fatal: what is an error is raised, and told in a line of ours
    options.enable_mem_reuse = plans_memory
    try:
        session = onnxruntime.InferenceSession(path, options, providers=_providers(provider, captures))
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


def _providers(provider: str, captures: bool) -> list[Any]:
    """The providers to ask for, the first before the others, with their options."""
    if provider == "cpu" or not has_cuda():
        return [CPU]
    import onnxruntime

    onnxruntime.preload_dlls()  # CUDA's libraries from pip, which the provider does not find by itself
    return [(CUDA, {"use_tf32": 0, "enable_cuda_graph": int(captures)}), CPU]  # TF32 rounds float32 to 11 bits


def runtime_of(session: InferenceSession) -> Runtime:
    """What runs a session."""
    import onnxruntime

    provider = session.get_providers()[0]
    return Runtime(provider, onnxruntime.__version__, device_name(provider))


def run(session: InferenceSession, names: list[str] | None, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """The outputs of a graph, all of them if `names` is None.

    Raises:
        JobError: ONNX Runtime could not compute them.
    """
    try:
        return session.run(names, feeds)
    except Exception as error:  # ONNX Runtime's exceptions have no base but this
        raise stopped(error) from error


def stopped(error: Exception) -> JobError:
    """The error that ONNX Runtime could not compute something."""
    reason = " ".join(str(error).split())[:300]
    return JobError(f"ONNX Runtime stopped; if memory ran out, take smaller batches: {reason}")


class _Buffers(NamedTuple):
    """What the steps for batches of one shape read and write."""

    values: tuple[dict[str, Any], dict[str, Any]]  # by the names of the inputs of a step: the two share what is given
    steps: list[tuple[Any, Any]]  # bindings and options of a step from the first to the second, and back


class StagedSearch:
    """A search in three graphs, see `export.onnx.stages`, with its loop here. A step goes from one of two buffers to
    the other: a GPU that captured both directions repeats each in one launch.

    Args:
        graphs: where the graphs are.
        num_threads, provider: as for `open_session`.

    Raises:
        RequestError: a graph cannot be loaded or captured, or is not the graph of its name.
    """

    def __init__(self, graphs: Graphs, num_threads: int, provider: str):
        begin, advance, end = (
            open_session(getattr(graphs, name), num_threads, provider, captures=name == "advance") for name in STAGES
        )
        self._begin, self._advance, self._end = begin, advance, end
        self._on_cuda = advance.get_providers()[0] == CUDA
        self._outputs = [one.name for one in advance.get_outputs()]
        inputs = {one.name: one.shape for one in advance.get_inputs()}
        self._states = [*inputs][-len(self._outputs) :]
        try:
            self._done = self._states[self._outputs.index("done")]
            self._length = next((one, inputs[one].index("length")) for one in self._states if "length" in inputs[one])
            if [(one.name, len(one.shape)) for one in end.get_outputs()] != [("ids", 3), ("scores", 2)]:
                raise ValueError(end)
        except (ValueError, IndexError, StopIteration):
            raise RequestError(f"{graphs.advance} is not the step of a search") from None
        self._kept: dict[tuple[int, int], _Buffers] = {}
        self._graph_ids = count(1)
        # ONNX Runtime captures anew for each thread, and permits no two at once.
        self._thread = ThreadPoolExecutor(1)

    def search(self, source_ids: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The hypotheses of sources (B, S): ids (B, n, L) int32 and scores (B, n), the best first.

        Raises:
            JobError: ONNX Runtime could not compute them.
        """
        rows = in_few_shapes(source_ids.astype("int32", copy=False))
        try:
            ids, scores = self._thread.submit(self._found, rows).result()
        except Exception as error:  # ONNX Runtime's exceptions have no base but this
            raise stopped(error) from error
        return ids[: len(source_ids)], scores[: len(source_ids)]

    def _found(self, rows: np.ndarray) -> list[np.ndarray]:
        values, steps = self._buffers(rows)
        name, axis = self._length
        now = 0
        for step in range(1, values[0][name].shape()[axis] + 1):
            self._advance.run_with_iobinding(*steps[now])
            now = 1 - now
            if step % STEPS_UNSEEN == 0 and values[now][self._done].numpy().all():
                break
        binding = self._end.io_binding()
        for one in self._end.get_inputs():
            binding.bind_ortvalue_input(one.name, values[now][one.name])
        for one in self._end.get_outputs():
            binding.bind_output(one.name)
        self._end.run_with_iobinding(binding)
        return binding.copy_outputs_to_cpu()

    def _buffers(self, rows: np.ndarray) -> _Buffers:
        """The buffers for batches like this one, the first with the state before its first step."""
        if rows.shape in self._kept:
            self._begun(rows, self._kept[rows.shape].values[0])
            return self._kept[rows.shape]
        if len(self._kept) == MOST_SHAPES:
            self._kept.clear()
        one, other = self._begun(rows), self._begun(rows)
        other = {**one, **{name: other[name] for name in self._states}}
        steps = [self._step(*pair) for pair in ((one, other), (other, one))]
        return self._kept.setdefault(rows.shape, _Buffers((one, other), steps))

    def _begun(self, rows: np.ndarray, values: dict[str, Any] | None = None) -> dict[str, Any]:
        """The state before the first step, and what all steps are given; in the values, by default in new ones."""
        binding, names = self._begin.io_binding(), [one.name for one in self._begin.get_outputs()]
        binding.bind_cpu_input("source_ids", rows)
        for name in names:
            if values is None:
                binding.bind_output(name, "cuda" if self._on_cuda else "cpu")
            else:
                binding.bind_ortvalue_output(name, values[name])
        self._begin.run_with_iobinding(binding)
        return values or dict(zip(names, binding.get_outputs(), strict=True))

    def _step(self, before: dict[str, Any], after: dict[str, Any]) -> tuple[Any, Any]:
        """The binding and the options of a step."""
        import onnxruntime

        binding, options = self._advance.io_binding(), onnxruntime.RunOptions()
        for one in self._advance.get_inputs():
            binding.bind_ortvalue_input(one.name, before[one.name])
        for output, name in zip(self._outputs, self._states, strict=True):
            binding.bind_ortvalue_output(output, after[name])
        if self._on_cuda:  # what is captured has its addresses
            options.add_run_config_entry("gpu_graph_id", str(next(self._graph_ids)))
        return binding, options
