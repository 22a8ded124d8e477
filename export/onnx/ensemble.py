"""Several models in one search: the ONNX form of `keras_transformer.models.ensemble.Ensemble`.

The letters in shapes are those of `search`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import chain, islice

import numpy as np

from .graph import Graph, Value
from .search import Cache, CacheSizes, SearchedModel


class JointModel:
    """Several models as one `SearchedModel`: each piece has the mean of their probabilities.

    Args:
        members: M models of one vocabulary.
    """

    def __init__(self, members: Sequence[SearchedModel]):
        self.members = members
        self._sizes: list[CacheSizes] = []  # of each member's cache; `first_cache` is called before any step

    def encode(self, g: Graph, ids: Value) -> list[Value]:
        """Ids (A, S) → what each member needs of them, one member after the other."""
        return [value for one in self.members for value in one.encode(g, ids)]

    def step(self, g: Graph, token_ids: Value, index: Value, cache: Cache) -> tuple[Value, Cache]:
        """One position of every member: the logarithms (A · k, V) of the mean probabilities, and the joint cache."""
        parts = zip(self.members, self._parts(cache), strict=True)
        steps = [one.step(g, token_ids, index, part) for one, part in parts]
        mean = g("Mean", *(g("Softmax", logits) for logits, _ in steps))
        # Where float32 rounds a probability to 0, its logarithm would be -inf, which the search may not meet.
        least = np.finfo("float32").tiny
        return g("Log", g("Max", mean, least)), joint([cache for _, cache in steps])

    def first_cache(self, g: Graph, num_active: Value, num_first_beams: int) -> Cache:
        """The caches of all members before the first step."""
        caches = [one.first_cache(g, num_active, num_first_beams) for one in self.members]
        self._sizes = [CacheSizes.of(cache) for cache in caches]
        return joint(caches)

    def _parts(self, cache: Cache) -> Iterator[Cache]:
        """The caches of the members."""
        tensors = [iter(each) for each in cache]
        for sizes in self._sizes:
            yield Cache(*(list(islice(each, size)) for each, size in zip(tensors, sizes, strict=True)))


def joint(caches: Sequence[Cache]) -> Cache:
    """The members' caches as one."""
    return Cache(*(list(chain.from_iterable(each)) for each in zip(*caches, strict=True)))
