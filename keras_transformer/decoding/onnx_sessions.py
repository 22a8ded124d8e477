"""Opens sessions of ONNX Runtime, one for a graph, and runs them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from keras_transformer.checking.probes import Runtime, device_name
from keras_transformer.core.errors import JobError, RequestError

if TYPE_CHECKING:
    from onnxruntime import InferenceSession

CPU, CUDA = "CPUExecutionProvider", "CUDAExecutionProvider"


def has_cuda() -> bool:
    """Whether the ONNX Runtime that is installed is one for NVIDIA's GPUs."""
    import onnxruntime

    return CUDA in onnxruntime.get_available_providers()


def open_session(path: Path, num_threads: int, provider: str = "auto", plans_memory: bool = True) -> InferenceSession:
    """A session for a graph.

    Args:
        path: the path of the graph.
        num_threads: how many threads of the processor to use.
        provider: see `OnnxDecoder`.
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


def _providers(provider: str) -> list[Any]:
    """The providers to ask for, the first before the others, with their options."""
    if provider == "cpu" or not has_cuda():
        return [CPU]
    import onnxruntime

    onnxruntime.preload_dlls()  # CUDA's libraries from pip, which the provider does not find by itself
    return [(CUDA, {"use_tf32": 0}), CPU]  # TF32 rounds float32 to 11 bits


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
