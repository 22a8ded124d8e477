"""Computes the feed-forward network: activations, one network, or several of which a router chooses."""

from __future__ import annotations

import math
from typing import Unpack

import keras

from keras_transformer import ops
from keras_transformer.core.errors import require_positive, require_rates
from keras_transformer.layers import auxiliary_losses
from keras_transformer.layers.layer import Layer, LayerArguments, glorot, make_part
from keras_transformer.ops import Tensor
from keras_transformer.spec.options import PartConfig


class Activation(Layer):
    """The base of activations: a function of each number, without weights: (...) → (...)."""

    def __init__(self, **kwargs: Unpack[LayerArguments]):
        super().__init__(**kwargs)
        self.supports_masking = True
        self.built = True

    def call(self, x: Tensor) -> Tensor:
        raise NotImplementedError

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class Relu(Activation):
    """max(0, x) (paper, equation 2): (...) → (...)."""

    def call(self, x: Tensor) -> Tensor:
        return ops.relu(x)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Gelu(Activation):
    """x Φ(x) = x (1 + erf(x / √2)) / 2: (...) → (...) (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2)."""

    def call(self, x: Tensor) -> Tensor:
        return ops.gelu(x, approximate=False)


@keras.saving.register_keras_serializable(package="keras_transformer")
class GeluTanh(Activation):
    """GELU by a hyperbolic tangent: (...) → (...) (Hendrycks and Gimpel 2016, arXiv 1606.08415, section 2).

    0.5 x (1 + tanh(√(2/π) (x + 0.044715 x³))). GPT-2 and T5 1.1 have it.
    """

    def call(self, x: Tensor) -> Tensor:
        return ops.gelu(x, approximate=True)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Silu(Activation):
    """x σ(x), also called swish: (...) → (...) (Elfwing et al. 2017, arXiv 1702.03118, equation 5)."""

    def call(self, x: Tensor) -> Tensor:
        return ops.silu(x)


class _Network(Layer):
    """The base of networks: the width, the activation and the norm within."""

    def __init__(
        self,
        intermediate_dim: int,
        activation: PartConfig = "relu",
        inner_norm: PartConfig | None = None,
        gain: float = 1.0,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(**kwargs)
        require_positive(intermediate_dim=intermediate_dim)
        self.intermediate_dim = intermediate_dim
        self.activation_config = activation
        self.inner_norm_config = inner_norm
        self.gain = gain
        self.supports_masking = True
        self.activation = make_part("activation", activation, self.dtype_policy, {})
        self.inner_norm = None if inner_norm is None else make_part("norm", inner_norm, self.dtype_policy, {})

    def _build_parts(self, inner_shape: tuple) -> None:
        if not self.activation.built:
            self.activation.build(inner_shape)
        if self.inner_norm is not None:
            self.inner_norm.build(inner_shape)

    def _normed(self, x: Tensor) -> Tensor:
        return x if self.inner_norm is None else self.inner_norm(x)

    def compute_output_shape(self, input_shape: tuple) -> tuple:
        return input_shape


@keras.saving.register_keras_serializable(package="keras_transformer")
class FeedForward(_Network):
    """max(0, x W₁ + b₁) W₂ + b₂, applied to each position separately (paper, equation 2).

    Args:
        intermediate_dim: F, the paper's d_ff.
        activation: the function in place of max(0, ·), a part.
        inner_norm: the norm before W₂, a part; None for no norm.
        gain: factor on the initial W₁ and W₂.

    Call arguments:
        x: (..., D).

    Returns:
        (..., D).

    Raises:
        ValueError: `intermediate_dim` is not positive.
    """

    _has_biases = True

    def build(self, input_shape: tuple) -> None:
        hidden_dim, intermediate_dim = input_shape[-1], self.intermediate_dim
        self.kernel_in, self.bias_in = self._product("in", hidden_dim, intermediate_dim, self.gain)
        self.kernel_out, self.bias_out = self._product("out", intermediate_dim, hidden_dim, self.gain)
        self._build_parts((*input_shape[:-1], intermediate_dim))

    def _product(self, name: str, inputs: int, outputs: int, gain: float = 1.0) -> tuple[Tensor, Tensor | None]:
        """Makes a kernel and its bias; None for no bias."""
        kernel = self.add_weight(name=f"kernel_{name}", shape=(inputs, outputs), initializer=glorot(gain))
        if not self._has_biases:
            return kernel, None
        return kernel, self.add_weight(name=f"bias_{name}", shape=(outputs,), initializer="zeros")

    def call(self, x: Tensor) -> Tensor:
        x = self._normed(self.activation(ops.product(x, self.kernel_in, self.bias_in)))
        return ops.product(x, self.kernel_out, self.bias_out)


@keras.saving.register_keras_serializable(package="keras_transformer")
class GatedFeedForward(FeedForward):
    """(activation(x W_gate) ⊙ x W_in) W_out (Shazeer 2020, arXiv 2002.05202, equation 6).

    With the activation `silu` it is SwiGLU, with `gelu` or `gelu_tanh` GEGLU, with `relu` ReGLU. It has three kernels.
    With two thirds of the F of a plain network, it has about as many parameters.

    Args:
        intermediate_dim: F, the width of gate and value.
        activation: the activation of the gate, a part.
        inner_norm: the norm before W_out, a part; None for no norm.
        gain: factor on the initial W_in and W_out. It leaves W_gate as it is, because a gate selects, as queries and
            keys do.
        use_bias: whether each of the three products has a bias. The paper has none (section 2).

    Call arguments:
        x: (..., D).

    Returns:
        (..., D).

    Raises:
        ValueError: `intermediate_dim` is not positive.
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: PartConfig = "relu",
        inner_norm: PartConfig | None = None,
        gain: float = 1.0,
        use_bias: bool = False,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(intermediate_dim, activation, inner_norm, gain, **kwargs)
        self.use_bias = self._has_biases = use_bias

    def build(self, input_shape: tuple) -> None:
        self.kernel_gate, self.bias_gate = self._product("gate", input_shape[-1], self.intermediate_dim)
        super().build(input_shape)

    def call(self, x: Tensor) -> Tensor:
        gate = self.activation(ops.product(x, self.kernel_gate, self.bias_gate))
        x = self._normed(ops.multiply(gate, ops.product(x, self.kernel_in, self.bias_in)))
        return ops.product(x, self.kernel_out, self.bias_out)


@keras.saving.register_keras_serializable(package="keras_transformer")
class Experts(_Network):
    """Each position goes through the k of E feed-forward networks to which a router gives the highest probabilities.

    The router is a softmax over E logits, in float32. For k > 1 the k probabilities are divided by their sum, and
    weigh the outputs of their experts (Mixtral, arXiv 2401.04088, section 2.1). For k = 1 the probability itself is
    the weight (Switch, arXiv 2101.03961, equation 2): divided by itself, it would teach the router nothing.

    No expert has a limit of positions. So a position alone gives what it gives in a batch.

    All experts are computed for all positions, and those not chosen get the weight 0. The shapes are static, for
    every backend, XLA and export. The cost is that of E experts, where only k of them count.

    In training, the loss gets the load-balancing loss α · E · Σ f · P over the experts: f is the share of the real
    tokens that go through an expert, P is the mean of its probability over the real tokens. The shares sum to k, as in
    Mixtral, so equal probabilities give k · α. For k = 1 this is the loss of Switch (section 2.2). Each layer adds a
    loss of its own. f and P are those of the whole batch, over all replicas and micro-batches. In a model of your own
    without a `Stack` the layer adds its loss by `add_loss`, as layers of Keras do.

    Args:
        intermediate_dim: F of each expert.
        activation: the activation of the experts, a part.
        num_experts: E.
        top_k: k.
        gated: False for experts as `FeedForward`, with biases. True for gated experts without biases, as in Mixtral:
            (activation(x W₁) · x W₃) W₂ (arXiv 2002.05202, section 2).
        alpha: α, the weight of the load-balancing loss.
        inner_norm: the norm before the second product, a part, which the experts share; None for no norm.
        gain: factor on the initial kernels of the experts.

    Call arguments:
        x: (..., D).

    Returns:
        (..., D).

    Raises:
        ValueError: a size is not positive, `top_k` is more than `num_experts`, or `alpha` is not at least 0 and less
            than 1.
    """

    def __init__(
        self,
        intermediate_dim: int,
        activation: PartConfig = "relu",
        num_experts: int = 8,
        top_k: int = 2,
        gated: bool = False,
        alpha: float = 0.01,
        inner_norm: PartConfig | None = None,
        gain: float = 1.0,
        **kwargs: Unpack[LayerArguments],
    ):
        super().__init__(intermediate_dim, activation, inner_norm, gain, **kwargs)
        require_positive(num_experts=num_experts, top_k=top_k)
        require_rates(alpha=alpha)
        if top_k > num_experts:
            raise ValueError(
                f"`top_k` must be at most `num_experts`. Received: top_k={top_k}, num_experts={num_experts}"
            )
        self.num_experts = num_experts
        self.top_k = top_k
        self.gated = gated
        self.alpha = alpha

    @property
    def has_auxiliary_loss(self) -> bool:
        """Whether it adds to the loss in training."""
        return self.alpha > 0 and self.num_experts > 1

    def build(self, input_shape: tuple) -> None:
        hidden_dim, intermediate_dim = input_shape[-1], self.intermediate_dim
        self.router = self.add_weight(
            name="router", shape=(hidden_dim, self.num_experts), initializer=glorot(), autocast=False
        )
        self.kernel_in = self._kernel("kernel_in", hidden_dim, intermediate_dim)
        self.kernel_gate = self._kernel("kernel_gate", hidden_dim, intermediate_dim) if self.gated else None
        self.bias_in = None if self.gated else self._bias("bias_in", intermediate_dim)
        self.kernel_out = self._kernel("kernel_out", intermediate_dim, hidden_dim)
        self.bias_out = None if self.gated else self._bias("bias_out", hidden_dim)
        self._build_parts((*input_shape[:-1], intermediate_dim))

    def _kernel(self, name: str, inputs: int, outputs: int) -> Tensor:
        # Keras takes the fans of (E, inputs, outputs) for E times as large as those of each expert.
        initializer = glorot(self.gain * math.sqrt(self.num_experts))
        return self.add_weight(name=name, shape=(self.num_experts, inputs, outputs), initializer=initializer)

    def _bias(self, name: str, size: int) -> Tensor:
        return self.add_weight(name=name, shape=(self.num_experts, 1, size), initializer="zeros")

    def call(self, x: Tensor, training: bool = False) -> Tensor:
        rows = ops.reshape(x, (-1, x.shape[-1]))  # (R, D)
        probabilities = self.probabilities(rows)
        chosen = self.chosen(probabilities)
        weights = self.weights_of(probabilities, chosen)  # (R, E)
        outputs = self._outputs(rows)  # (E, R, D)
        if training and self.has_auxiliary_loss:
            self._report(x, probabilities, chosen)
        weights = ops.expand_dims(ops.cast(ops.transpose(weights), outputs.dtype), -1)  # (E, R, 1)
        return ops.reshape(ops.sum(outputs * weights, axis=0), ops.shape(x))

    def probabilities(self, x: Tensor) -> Tensor:
        """Computes the router's probabilities (..., E) float32 of states (..., D)."""
        logits = ops.matmul(ops.cast(x, "float32"), ops.cast(self.router, "float32"))
        return 0.0 * logits + 1.0 if self.num_experts == 1 else ops.softmax(logits)

    def chosen(self, probabilities: Tensor) -> Tensor:
        """Marks the k experts with the highest probabilities by 1, the others by 0: (..., E) → (..., E) float32."""
        _, places = ops.top_k(probabilities, self.top_k)
        return ops.sum(ops.one_hot(places, self.num_experts, dtype="float32"), axis=-2)

    def weights_of(self, probabilities: Tensor, chosen: Tensor) -> Tensor:
        """Returns the weights (..., E) of the experts' outputs."""
        weights = probabilities * chosen
        return weights if self.top_k == 1 else weights / ops.sum(weights, axis=-1, keepdims=True)

    def _report(self, x: Tensor, probabilities: Tensor, chosen: Tensor) -> None:
        """Reports the load-balancing loss of states (..., D), from what the router gives for each of them (R, E)."""
        real = ops.reshape(auxiliary_losses.real_tokens(x), (-1, 1))  # (R, 1)
        sums = ops.sum(probabilities * real, axis=0)  # (E,)

        def share(counts: Tensor) -> Tensor:
            tokens, num_tokens = counts[:-1], ops.maximum(counts[-1], 1.0)
            return self.alpha * self.num_experts * ops.sum(tokens / num_tokens * sums / num_tokens)

        tokens = ops.sum(chosen * real, axis=0)  # (E,)
        auxiliary_losses.report(self, ops.concatenate([tokens, ops.reshape(ops.sum(real), (1,))]), share)

    def _outputs(self, rows: Tensor) -> Tensor:
        """Computes each row by each expert: (R, D) → (E, R, D)."""
        rows = ops.expand_dims(rows, 0)
        if self.kernel_gate is None:
            inner = self.activation(ops.matmul(rows, self.kernel_in) + self.bias_in)  # (E, R, F)
        else:
            inner = self.activation(ops.matmul(rows, self.kernel_gate)) * ops.matmul(rows, self.kernel_in)
        outputs = ops.matmul(self._normed(inner), self.kernel_out)
        return outputs if self.bias_out is None else outputs + self.bias_out
