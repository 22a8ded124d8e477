"""Configures each library for a device and a number of threads. Float32 is exact: TF32 is off on all sides.

`contest.set_library_environment` turns TF32 off in NVIDIA's libraries too, mainly for CTranslate2, which has no setting
of its own. A contender's process calls one of these functions before it does anything else. If something is missing,
the function raises RequestError with one line that names it.
"""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path
from typing import Any

from keras_transformer.core.errors import RequestError

NEEDS_GPU = "`--device cuda` needs a GPU, and {library} for CUDA; {found}"


def configure_keras(device: str, num_threads: int) -> str:
    """Configures Keras's backend, and returns its name: tensorflow or jax."""
    import keras

    configure = {"tensorflow": configure_tensorflow, "jax": configure_jax}
    backend = keras.config.backend()
    if backend not in configure:
        raise RequestError(f"`KERAS_BACKEND` must be tensorflow or jax. Received: {backend!r}")
    configure[backend](device, num_threads)
    return backend


def configure_tensorflow(device: str, num_threads: int) -> None:
    """Lets TensorFlow use the first GPU, or none."""
    import tensorflow as tf

    tf.config.experimental.enable_tensor_float_32_execution(False)
    tf.config.threading.set_intra_op_parallelism_threads(num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(num_threads)
    gpus = tf.config.list_physical_devices("GPU")
    if device == "cuda" and not gpus:
        raise RequestError(NEEDS_GPU.format(library="TensorFlow", found="TensorFlow found none"))
    tf.config.set_visible_devices(gpus[:1] if device == "cuda" else [], "GPU")


def configure_jax(device: str, num_threads: int) -> None:
    """Chooses JAX's device; it has no setting for threads, so `num_threads` has no effect."""
    import jax

    jax.config.update("jax_platforms", device)
    jax.config.update("jax_default_matmul_precision", "float32")
    try:
        jax.devices()
    except (RuntimeError, AssertionError) as error:  # AssertionError: JAX was built without CUDA
        found = " ".join(str(error).split()) or "JAX found none"
        raise RequestError(NEEDS_GPU.format(library="JAX", found=found)) from None


def configure_torch(device: str, num_threads: int) -> None:
    """Sets PyTorch's threads, and turns off TF32, which its convolutions would use by default."""
    import torch

    torch.set_num_threads(num_threads)
    torch.set_float32_matmul_precision("highest")
    torch.backends.cudnn.allow_tf32 = False
    if device == "cuda" and not torch.cuda.is_available():
        raise RequestError(NEEDS_GPU.format(library="PyTorch", found="PyTorch found none"))


def require_ctranslate2(device: str) -> None:
    """Raises RequestError if CTranslate2 finds no such device."""
    import ctranslate2

    if device == "cuda" and not ctranslate2.get_cuda_device_count():
        raise RequestError(NEEDS_GPU.format(library="CTranslate2", found="CTranslate2 found none"))


def onnx_session(path: Path, device: str, num_threads: int) -> Any:
    """Opens a session of ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    if device == "cpu":
        return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    session, provider = None, "CUDAExecutionProvider"
    if provider in onnxruntime.get_available_providers():
        with contextlib.redirect_stdout(sys.stderr):  # it prints the libraries that it does not find
            onnxruntime.preload_dlls()  # from the CUDA packages that pip installed, if any
        providers = [(provider, {"use_tf32": "0"}), "CPUExecutionProvider"]
        session = onnxruntime.InferenceSession(path, options, providers=providers)
    if session is None or provider not in session.get_providers():
        found = "install onnxruntime-gpu[cuda,cudnn] in place of onnxruntime" if session is None else "see above"
        raise RequestError(NEEDS_GPU.format(library="ONNX Runtime", found=found))
    return session


def peak_of_gpu(library: str) -> float:
    """Returns the peak GPU memory in MiB of the library: tensorflow, jax or torch."""
    if library == "tensorflow":
        import tensorflow as tf

        held = tf.config.experimental.get_memory_info("GPU:0")["peak"]
    elif library == "jax":
        import jax

        held = jax.devices()[0].memory_stats()["peak_bytes_in_use"]
    else:
        import torch

        held = torch.cuda.max_memory_allocated()
    return held / 2**20
