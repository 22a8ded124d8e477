"""Decodes with a model in Keras, on any of its backends. What it computes is compiled once for each set of options:
`tf.function` on TensorFlow, `jit` on JAX.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable, Iterator, Sequence
from contextlib import contextmanager
from typing import Protocol

import keras
import numpy as np
from keras import ops

from keras_transformer.core.errors import RequestError
from keras_transformer.core.lazy import tf
from keras_transformer.decoding.computations import Alignment, LogProbs, search_or_sampling
from keras_transformer.decoding.decoder import Decoder, Emitted, Found
from keras_transformer.models.base import FamilyModel
from keras_transformer.models.transformer import Ensemble, Transformer
from keras_transformer.ops import Tensor
from keras_transformer.spec.search_options import SearchOptions, longest
from keras_transformer.text.sentences import Arrays, Ids, in_few_shapes, padded
from keras_transformer.text.tokenizer import END, START

Compiled = Callable[..., Sequence[Tensor]]


class Computation(Hashable, Protocol):
    """A function of a model and arrays (B, ...) that returns tensors (B, ...).

    Its options are its fields: two computations that are equal compute the same and are compiled once.
    """

    @property
    def run(self) -> Compiled:
        """(model, *arrays) → results."""


class CompiledComputations:
    """Runs computations of one model and keeps what was compiled. Threads may share it."""

    num_listed = None  # as many choices as are asked for

    def __init__(self, model: FamilyModel | Ensemble):
        self.model = model
        self._compiled: dict[Computation, Compiled] = {}
        self._compiling = threading.Lock()

    def run(self, computation: Computation, *arrays: np.ndarray) -> list[np.ndarray]:
        """Returns the results (B, ...) of arrays (B, ...); the first call compiles the computation."""
        with self._compiling:  # other threads wait for what one compiles
            if computation not in self._compiled:
                self._compiled[computation] = compiled(computation, self.model, arrays)
        with full_float32():
            results = self._compiled[computation](*map(ops.convert_to_tensor, arrays))
            return [ops.convert_to_numpy(result) for result in results]

    def of_one_stream(self) -> CompiledComputations:
        """Returns itself, unlike `OnnxComputations`: what is compiled is for all streams."""
        return self


_switching = threading.Lock()  # all threads share TensorFlow's switch
_befores: list[bool] = []  # what each thread that needs all bits found, the first that came first


@contextmanager
def full_float32() -> Iterator[None]:
    """Keeps all bits in products of float32. By default TensorFlow and JAX round them to TF32 on a GPU, to 11 bits,
    and exported graphs, which do not, would give other scores."""
    if keras.config.backend() == "tensorflow":
        switch = tf.config.experimental
        with _switching:
            _befores.append(switch.tensor_float_32_execution_enabled())
            switch.enable_tensor_float_32_execution(False)
        try:
            yield
        finally:
            with _switching:  # whoever leaves: the last one finds what the first one found
                switch.enable_tensor_float_32_execution(_befores.pop())
    elif keras.config.backend() == "jax":
        import jax

        with jax.default_matmul_precision("highest"):
            yield
    else:
        yield  # PyTorch's default


def compiled(computation: Computation, model: FamilyModel | Ensemble, arrays: Sequence[np.ndarray]) -> Compiled:
    """Compiles the computation for arrays like these, as the backend does it; PyTorch runs it as it is."""

    def compute(*arrays: Tensor) -> Sequence[Tensor]:
        return computation.run(model, *arrays)

    if keras.config.backend() == "tensorflow":
        return traced(compute, arrays)
    if keras.config.backend() == "jax":
        return jitted(compute, model)
    return compute


def traced(compute: Compiled, arrays: Sequence[np.ndarray]) -> Compiled:
    """Traces one TensorFlow graph for arrays of these ranks and types, of all sizes."""
    signature = [tf.TensorSpec([None] * array.ndim, array.dtype) for array in arrays]
    # Concrete: TensorFlow takes the graphs of other computations for retracings of this one, and would warn of them.
    return tf.function(compute, input_signature=signature, autograph=False).get_concrete_function()


def jitted(compute: Compiled, model: FamilyModel | Ensemble) -> Compiled:
    """Compiles the function by JAX. JAX compiles anew for every size, so arrays are padded to few sizes."""
    import jax

    @jax.jit
    def program(weights: list[Tensor], *arrays: Tensor) -> Sequence[Tensor]:
        # The weights are arguments: read from the model, they would be constants of the compiled program for good.
        with keras.StatelessScope(state_mapping=zip(model.variables, weights, strict=True)):
            return compute(*arrays)

    def run(*arrays: Tensor) -> Sequence[Tensor]:
        weights = [variable.value for variable in model.variables]
        return [np.asarray(result)[: len(arrays[0])] for result in program(weights, *map(in_few_shapes, arrays))]

    return run


class KerasDecoder(Decoder):
    """Decodes with a `Transformer`, or with several as an `Ensemble`; every computation is compiled once. Threads may
    share it.

    Raises:
        RequestError: the models cannot be an ensemble.
    """

    def __init__(self, *models: Transformer):
        self._models = models
        try:
            self._joint = models[0] if len(models) == 1 else Ensemble(models)
        except ValueError as error:
            raise RequestError(str(error)) from error
        self.max_source_length = self._joint.max_source_length
        self.vocabulary_sizes = self._joint.source_vocabulary_size, self._joint.vocabulary_size
        self._computations = CompiledComputations(self._joint)

    def __repr__(self) -> str:
        return " and ".join(
            f"{one.count_params():,} parameters, {one.encoder_layers} + {one.decoder_layers} layers of width "
            f"{one.hidden_dim}"
            for one in self._models
        )

    @property
    def model(self) -> Transformer:
        """See `Decoder.model`; an ensemble has no model of its own."""
        return self._models[0] if len(self._models) == 1 else super().model

    @property
    def joint(self) -> Transformer | Ensemble:
        return self._joint

    def check_source_length(self, length: int) -> None:
        for one in self._models:
            num_positions = one.positions.max_length
            if num_positions is not None and longest(length) > num_positions:
                raise RequestError(
                    f"max_source_length must be at most {self.max_source_length}, because the model has no more "
                    f"learned positions; received: {length}"
                )

    def search(self, arrays: Arrays, options: SearchOptions) -> Found:
        return Found(*self._computations.run(search_or_sampling(options), *arrays))

    def sample(self, arrays: Arrays, uniforms: np.ndarray, options: SearchOptions) -> Found:
        return Found(*self._computations.run(search_or_sampling(options), *arrays, uniforms))

    def align(self, emitted: list[Emitted]) -> list[tuple[tuple[int, int], ...]]:
        targets = [[id for id in one.ids if id != END] for one in emitted]
        found = self.attention([one.sentence.source for one in emitted], targets)
        return [tuple((int(row.argmax()), target) for target, row in enumerate(weights)) for weights in found]

    def attention(self, sources: Sequence[Ids], targets: Sequence[Ids]) -> list[np.ndarray]:
        source_ids = padded([[*source, END] for source in sources])
        target_ids = padded([[START, *target] for target in targets])
        (weights,) = self._computations.run(Alignment(), source_ids, target_ids)  # (B, T, S)
        return [
            rows[: len(target), : len(source)] for rows, target, source in zip(weights, targets, sources, strict=True)
        ]

    def log_probs(self, sources: list[Ids], targets: list[Ids]) -> np.ndarray:
        source_ids = padded([[*source, END] for source in sources])
        labels = padded(targets)
        target_ids = np.pad(labels[:, :-1], [(0, 0), (1, 0)], constant_values=START)
        (log_probs,) = self._computations.run(LogProbs(), source_ids, target_ids, labels)
        return log_probs
