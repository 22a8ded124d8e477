"""What is true of the batches of every plan."""

import numpy as np

from keras_transformer.text.feeding import Batch, Place, Plan
from keras_transformer.text.tokenizer import PAD


def batches_of(plan: Plan, epoch: int = 0) -> list[Batch]:
    """The batches of an epoch.

    Labels weigh the same, 1 together, and blank rows nothing; rows divide among replicas; the batches are within the
    budget, of the types that `like` says, and the same when they are asked for again.
    """
    found = []
    for place in (Place(epoch, index) for index in range(plan.num_batches(epoch))):
        batch = plan.batch(place)
        inputs, labels, weights = batch
        is_real = weights > 0
        assert same(batch, plan.batch(place))
        assert {*weights.ravel().tolist()} <= {0.0, 1.0}
        assert plan.num_tokens(place) == is_real.sum() and not labels[~is_real].any()
        assert len(labels) % plan.divisor == 0  # type: ignore[attr-defined]
        for name, array in inputs.items():
            like = plan.like.inputs[name]
            assert array.dtype == like.dtype and array.ndim == like.ndim and len(array) == len(labels)
            num_real = is_real.any(axis=1).sum() if is_real.ndim > 1 else 0  # blank rows are beyond the budget
            assert array.ndim > 2 or num_real * array.shape[1] <= getattr(plan, "token_budget", array.size)
        assert labels.dtype == np.int32 and weights.dtype == np.float32 and weights.shape == labels.shape
        found.append(batch)
    return found


def real(row: np.ndarray) -> tuple[int, ...]:
    """The ids of a row but for pad."""
    return tuple(row[row != PAD].tolist())


def pairs_of(batches: list[Batch]) -> list[tuple[tuple[int, ...], ...]]:
    """The pairs of ids in their order, without pad and blank rows."""
    return [
        (real(source), real(labels))
        for batch in batches
        for source, labels in zip(batch.inputs["source_ids"], batch.labels, strict=True)
        if labels.any()
    ]


def same(first: Batch, second: Batch) -> bool:
    """Whether two batches have the same numbers."""
    return all(map(np.array_equal, arrays(first), arrays(second)))


def arrays(batch: Batch) -> list[np.ndarray]:
    """All arrays of a batch."""
    return [*batch.inputs.values(), batch.labels, batch.weights]
