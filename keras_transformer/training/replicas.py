"""Where a model trains, devices and workers, and by which optimiser."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import keras

from keras_transformer.errors import RequestError
from keras_transformer.tensor import Tensor


@keras.saving.register_keras_serializable(package="keras_transformer")
class Adam(keras.optimizers.Adam):
    """Adam with the paper's β₁ 0.9, β₂ 0.98, ε 1e-9 (paper, 5.3).

    Beyond Keras's: `global_clipnorm` clips the gradient of the whole batch, where Keras clips each replica's part of
    it; with `use_ema` the moving average stays beside the weights when `fit` ends, so that training can go on; and on
    TensorFlow one kernel passes over weights, moments and gradient, where Keras's operations pass a dozen times.
    """

    def __init__(
        self,
        learning_rate: Any = 0.001,
        beta_1: float = 0.9,
        beta_2: float = 0.98,
        epsilon: float = 1e-9,
        **kwargs: Any,
    ):
        super().__init__(learning_rate, beta_1, beta_2, epsilon, **kwargs)

    def update_step(self, gradient: Tensor, variable: Any, learning_rate: Tensor) -> None:
        """As that of Keras."""
        if keras.config.backend() != "tensorflow" or self.amsgrad:
            super().update_step(gradient, variable, learning_rate)
            return
        import tensorflow as tf

        dtype, index = variable.dtype, self._get_variable_index(variable)
        step = tf.cast(self.iterations.value + 1, dtype)
        beta_1, beta_2 = tf.cast(self.beta_1, dtype), tf.cast(self.beta_2, dtype)
        tf.raw_ops.ResourceApplyAdam(
            var=variable.handle,
            m=self._momentums[index].value.handle,
            v=self._velocities[index].value.handle,
            beta1_power=beta_1**step,
            beta2_power=beta_2**step,
            lr=tf.cast(learning_rate, dtype),
            beta1=beta_1,
            beta2=beta_2,
            epsilon=tf.cast(self.epsilon, dtype),
            grad=tf.cast(gradient, dtype),
        )

    def finalize_variable_values(self, var_list: Any) -> None:
        """Leaves the weights as they are: what to write out, weights or average, is decided where a run is written."""

    def _clip_gradients(self, grads: list[Tensor]) -> list[Tensor]:
        if not self.global_clipnorm or keras.config.backend() != "tensorflow":
            return super()._clip_gradients(grads)
        import tensorflow as tf

        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return super()._clip_gradients(grads)
        whole = context.all_reduce(tf.distribute.ReduceOp.SUM, grads)
        # Keras sums over replicas next: each hands in an equal part of what is to come out.
        return [gradient / context.num_replicas_in_sync for gradient in super()._clip_gradients(whole)]


def computed_after(tensors: Sequence[Tensor]) -> AbstractContextManager:
    """Within it TensorFlow computes nothing before `tensors`; JAX and PyTorch see to the order of things themselves."""
    if keras.config.backend() != "tensorflow":
        return nullcontext()
    import tensorflow as tf

    return tf.control_dependencies(tensors)


def parse_devices(text: str) -> tuple[str, list[int]]:
    """`auto`, `cpu`, `cpu:2` (two replicas on the processor) or `0,1` (GPU numbers) → kind and numbers.

    Raises:
        RequestError: it is none of these.
    """
    if text == "auto":
        return "auto", []
    if match := re.fullmatch(r"cpu(?::([1-9]\d?))?", text):
        return "cpu", list(range(int(match[1] or 1)))
    if re.fullmatch(r"\d+(,\d+)*", text) and len(set(text.split(","))) == len(text.split(",")):
        return "gpu", [int(number) for number in text.split(",")]
    raise RequestError(
        "`devices` must be `auto`, `cpu`, `cpu:N` for N replicas on the processor, or GPU numbers such as `0,1`. "
        f"Received: {text!r}"
    )


def configure(devices: str = "auto", threads: int = 0, deterministic: bool = True) -> None:
    """Settles TensorFlow before its first operation: visible GPUs and their memory, replicas on the processor, threads.

    Args:
        devices: see `parse_devices`.
        threads: for the work inside and between operations together; 0 leaves it to TensorFlow.
        deterministic: the same run gives the same bits.

    Raises:
        RequestError: a GPU that is not there.
    """
    import tensorflow as tf

    kind, numbers = parse_devices(devices)
    gpus = tf.config.list_physical_devices("GPU")
    if kind == "gpu" and max(numbers) >= len(gpus):
        raise RequestError(f"`devices` must name GPUs that are there ({len(gpus)} found). Received: {devices!r}")
    visible = [gpus[number] for number in numbers] if kind == "gpu" else gpus if kind == "auto" else []
    tf.config.set_visible_devices(visible, "GPU")
    for gpu in visible:
        tf.config.experimental.set_memory_growth(gpu, True)
    if kind == "cpu" and len(numbers) > 1:
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * len(numbers))
    if threads:
        tf.config.threading.set_intra_op_parallelism_threads(threads)
        tf.config.threading.set_inter_op_parallelism_threads(threads)
    if deterministic:
        tf.config.experimental.enable_op_determinism()


def describe_devices(devices: str) -> str:
    """What a run trains on, for people; and why no GPU, where the driver has one that TensorFlow does not see."""
    import tensorflow as tf

    kind, numbers = parse_devices(devices)
    gpus = tf.config.get_visible_devices("GPU")
    if gpus:
        names = [tf.config.experimental.get_device_details(gpu).get("device_name", gpu.name) for gpu in gpus]
        return f"training on {len(gpus)} GPU(s): {', '.join(names)}"
    replicas = f", in {len(numbers)} replicas" if len(numbers) > 1 else ""
    if kind == "auto" and (found := gpus_of_the_driver()):
        hidden = os.environ.get("CUDA_VISIBLE_DEVICES")
        why = "Its CUDA libraries are not installed, or do not fit: pip install 'tensorflow[and-cuda]>=2.21,<2.22'"
        if hidden is not None:
            why = f"CUDA_VISIBLE_DEVICES is {hidden!r}, which may hide them"
        return f"training on the processor: the NVIDIA driver has {found} GPU(s), but TensorFlow sees none. {why}"
    return f"training on the processor{replicas}"


def gpus_of_the_driver(place: Path = Path("/proc/driver/nvidia/gpus")) -> int:
    """How many GPUs NVIDIA's driver has on this machine, whether their libraries are installed or not (Linux)."""
    return len(list(place.iterdir())) if place.is_dir() else 0


def seed(number: int) -> None:
    """Seeds Python, NumPy, Keras and TensorFlow."""
    keras.utils.set_random_seed(number)


def strategy(devices: str = "auto") -> Any:
    """The `tf.distribute` strategy for `devices`.

    Several workers when `TF_CONFIG` names them, mirrored replicas for several devices, else TensorFlow's default
    strategy.
    """
    import tensorflow as tf

    if num_workers() > 1:
        return tf.distribute.MultiWorkerMirroredStrategy()
    kind, numbers = parse_devices(devices)
    gpus = [gpu.name for gpu in tf.config.list_logical_devices("GPU")]
    names = [f"/cpu:{number}" for number in numbers] if kind == "cpu" else gpus
    return tf.distribute.MirroredStrategy(names) if len(names) > 1 else tf.distribute.get_strategy()


def local_replicas(strategy: Any) -> tuple[range, int]:
    """The numbers of this worker's replicas, and how many replicas there are on all workers."""
    count = strategy.num_replicas_in_sync
    each = count // num_workers()
    return range(worker_index() * each, (worker_index() + 1) * each), count


def num_workers() -> int:
    """How many workers train together, from `TF_CONFIG`; 1 without it."""
    return len(_cluster().get("cluster", {}).get("worker", [])) or 1


def worker_index() -> int:
    """This worker's number among them, from 0; worker 0 is the chief, which alone writes the run folder."""
    return int(_cluster().get("task", {}).get("index", 0))


def _cluster() -> dict[str, Any]:
    text = os.environ.get("TF_CONFIG") or "{}"
    try:
        cluster = json.loads(text)
    except json.JSONDecodeError as error:
        raise RequestError(f"`TF_CONFIG` must be JSON ({error}). Received: {text!r}") from error
    if not isinstance(cluster, dict):
        raise RequestError(f"`TF_CONFIG` must be a JSON object. Received: {text!r}")
    return cluster
