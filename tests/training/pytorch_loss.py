"""The loss beside PyTorch's cross-entropy, in a process of its own."""

from __future__ import annotations

import numpy as np
import torch

from keras_transformer.training.losses import SmoothedCrossEntropy


def compare() -> None:
    """Loss and gradient are PyTorch's, padding ignored."""
    generator = np.random.default_rng(0)
    labels = torch.tensor([[4, 10, 3, 7, 3], [1, 9, 3, 0, 0]])
    start = generator.normal(0, 3, (2, 5, 11)).astype("float32")
    for label_smoothing in (0.0, 0.1, 0.7):
        ours, theirs = (torch.tensor(start, requires_grad=True) for _ in range(2))
        loss = SmoothedCrossEntropy(label_smoothing)(labels, ours)
        expected = torch.nn.functional.cross_entropy(
            theirs.flatten(0, 1), labels.flatten(), ignore_index=0, label_smoothing=label_smoothing
        )
        loss.backward()
        expected.backward()
        torch.testing.assert_close(loss, expected, atol=1e-6, rtol=1e-6)
        torch.testing.assert_close(ours.grad, theirs.grad, atol=1e-6, rtol=1e-6)
