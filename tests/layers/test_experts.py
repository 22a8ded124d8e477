"""A mixture of experts: the router, the experts, and the load-balancing loss, beside NumPy and Mixtral."""

import numpy as np
import pytest
from scipy.special import softmax

from keras_transformer.layers import auxiliary_losses
from keras_transformer.layers.feed_forward import Experts, FeedForward
from tests.layer_check import array, assert_close, built, random, weights_of

X = random(3, 5, 7)


def experts(**options):
    return built(Experts(11, **{"num_experts": 4, **options}), X.shape)


@pytest.mark.parametrize(("top_k", "gated"), [(1, True), (2, False), (4, True)])
def test_equals_numpy_that_computes_the_chosen_experts_alone(top_k, gated):
    layer = experts(top_k=top_k, gated=gated)
    weights = weights_of(layer)
    rows, expected = X.reshape(-1, 7), np.zeros((15, 7), "float32")
    for place, (row, probabilities) in enumerate(zip(rows, softmax(rows @ weights["router"], axis=-1), strict=True)):
        best = np.argsort(-probabilities)[:top_k]
        total = 1.0 if top_k == 1 else probabilities[best].sum()
        for one in best:
            inner, bias = row @ weights["kernel_in"][one], 0.0
            if gated:
                inner = inner * np.maximum(row @ weights["kernel_gate"][one], 0)
            else:
                inner, bias = np.maximum(inner + weights["bias_in"][one, 0], 0), weights["bias_out"][one, 0]
            expected[place] += probabilities[one] / total * (inner @ weights["kernel_out"][one] + bias)
    assert_close(layer(X), expected.reshape(X.shape))
    assert_close(array(layer(X[1:2, 2:3]))[0, 0], expected[7])  # a position alone gives what it gives in a batch


def test_one_expert_is_a_plain_network():
    layer = experts(num_experts=1, top_k=1, inner_norm="layer")
    plain = built(FeedForward(11, inner_norm="layer"), X.shape)
    values = layer.get_weights()[1:]  # without the router's
    plain.set_weights([value.reshape(old.shape) for value, old in zip(values, plain.get_weights(), strict=True)])
    assert_close(layer(X), plain(X))


def test_the_router_computes_in_float32():
    """Two experts whose probabilities differ by less than bfloat16 can tell."""
    layer = Experts(11, num_experts=2, top_k=1, dtype="mixed_bfloat16")
    layer.build(X.shape)
    layer.router.assign(np.array([[1.0, 1.0001]] * 7))
    layer.kernel_out.assign(0 * layer.kernel_out)
    assert layer.bias_out is not None
    layer.bias_out.assign(np.array([[[0.0] * 7], [[1.0] * 7]]))
    assert (array(layer(np.ones((1, 1, 7), "float32"))) == 0.5).all(), "the second, weighed by its probability"


@pytest.mark.parametrize("gated", [True, False])
def test_each_expert_begins_as_a_network_of_its_own(gated):
    layer = Experts(127, num_experts=5, gated=gated, gain=0.25)
    layer.build((None, None, 61))
    for name, weight in weights_of(layer).items():
        most = 0.25 * np.sqrt(6 / (61 + 127)) if name.startswith("kernel") else 0
        largest = np.abs(weight).max(axis=tuple(range(1, weight.ndim)))  # of each expert
        assert name == "router" or ((0.99 * most <= largest) & (largest <= most)).all(), name


def balance(layer, x=X, mask=None):
    """The load-balancing loss."""
    with auxiliary_losses.collected() as found, auxiliary_losses.of_stack(None, mask, training=True):
        layer(x, training=True)
    return float(array(auxiliary_losses.total(found)))


def test_the_load_balancing_loss_is_that_of_the_real_tokens():
    layer, real = experts(alpha=0.1), np.arange(5) < np.array([[5], [2], [0]])
    probabilities = softmax(X[real] @ array(layer.router), axis=-1)
    best = np.argsort(-probabilities, axis=-1)[:, :2]
    shares = np.bincount(best.ravel(), minlength=4) / len(best)
    expected = 0.1 * 4 * (shares * probabilities.mean(axis=0)).sum()
    assert balance(layer, mask=real[:, None]) == pytest.approx(expected, rel=1e-5)
    causal = np.tril(np.ones((5, 5), bool)) & real[:, None]
    assert balance(layer, mask=causal) == pytest.approx(expected, rel=1e-5), "a decoder's mask tells the same"
    assert balance(layer) != pytest.approx(expected, rel=1e-4), "padding would count"
    assert not experts(alpha=0.0).has_auxiliary_loss and not experts(num_experts=1, top_k=1).has_auxiliary_loss


def test_parts_of_a_batch_share_the_loss_of_the_whole():
    layer, parts = experts(alpha=0.1), []
    for rows in (slice(0, 1), slice(1, 3)):
        with auxiliary_losses.collected() as found:
            layer(X[rows], training=True)
        parts.append(found)
    counts = sum(auxiliary_losses.counts_of(found) for found in parts)
    assert array(counts)[-1] == 15 and array(counts)[:-1].sum() == 2 * 15
    shares = [float(array(auxiliary_losses.total(found, counts))) for found in parts]
    assert sum(shares) == pytest.approx(balance(layer), rel=1e-5)


@pytest.mark.parity
def test_equals_the_block_of_mixtral():
    torch = pytest.importorskip("torch")
    mixtral = pytest.importorskip("transformers.models.mixtral.modeling_mixtral")
    sizes = {"hidden_size": 7, "intermediate_size": 11, "num_local_experts": 4, "num_experts_per_tok": 2}
    config = mixtral.MixtralConfig(**sizes, hidden_act="relu")
    layer, theirs = experts(gated=True), mixtral.MixtralSparseMoeBlock(config).eval()
    weights = weights_of(layer)
    first = np.concatenate([weights["kernel_gate"], weights["kernel_in"]], axis=-1)
    with torch.no_grad():
        theirs.gate.weight.copy_(torch.tensor(weights["router"].T))
        theirs.experts.gate_up_proj.copy_(torch.tensor(first.swapaxes(1, 2)))
        theirs.experts.down_proj.copy_(torch.tensor(weights["kernel_out"].swapaxes(1, 2)))
        expected = theirs(torch.tensor(X)).numpy()
        real = np.arange(5) < np.array([[5], [2], [1]])
        logits = (torch.tensor(X.reshape(-1, 7) @ weights["router"]),)
        loss = mixtral.load_balancing_loss_func(logits, 4, 2, torch.tensor(real.astype("int64")))
    assert_close(layer(X), expected)
    assert balance(layer, mask=real[:, None]) == pytest.approx(0.01 * float(loss), rel=1e-5)
