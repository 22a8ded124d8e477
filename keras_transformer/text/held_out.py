"""Draws what is held out of training: a share, of each label alike, with all that equals it.

Tasks whose lines stand in no order of their own take their share here; `corpora` draws pairs in the same way. Where
text stands in an order, as by label or by time, its last lines are like nothing else in it.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from typing import TypeVar

import numpy as np

from keras_transformer.core.errors import abridged, warn
from keras_transformer.text.lines import sha256_of

One = TypeVar("One", bound=Hashable)


def whole_groups(candidates: Iterable[One], counts: Mapping[One, int], most: int) -> set[One]:
    """Chooses which candidates to hold out, each with everything that equals it: so what is held out is never trained
    on.

    The rarest come first, so that little is lost where some items are frequent, and at most `most` items are held out.
    But one candidate always is.

    Args:
        candidates: what may be held out, in the order of preference among equally frequent ones.
        counts: how often each candidate occurs in all.
        most: how many items to hold out.
    """
    chosen, total = set[One](), 0
    for candidate in sorted(dict.fromkeys(candidates), key=counts.__getitem__):
        total += counts[candidate]
        if chosen and total > most:
            break
        chosen.add(candidate)
    return chosen


def stratified(items: Sequence[tuple[str, One]], share: float, seed: int) -> set[tuple[str, One]]:
    """Draws what to hold out: of each label the same share, as near as whole items allow, but at least one.

    Items that are equal stay together; see `whole_groups`. A label of one item alone, or of copies of it, stays in
    training.

    Args:
        items: the label of each, and what tells whether two of them are equal.
        share: from 0 to 1.
        seed: the same seed draws the same items.
    """
    of_label, held_out, random = defaultdict[str, list](list), set[tuple[str, One]](), np.random.default_rng(seed)
    for item in items:
        of_label[item[0]].append(item)
    for _, some in sorted(of_label.items()):
        counts = Counter(some)
        if len(counts) > 1:
            drawn = (some[place] for place in random.permutation(len(some)))
            held_out |= whole_groups(drawn, counts, round(share * len(some)))
    return held_out


def tell_of_single_labels(items: Iterable[tuple[str, Hashable, str]], path: str | os.PathLike[str]) -> None:
    """Warns of labels that one item alone has, or copies of it, such as a misspelt one.

    Args:
        items: the label of each, what tells whether two are equal, and its name, such as "line 7".
        path: where they are.
    """
    last = {(label, key): name for label, key, name in items}
    counts = Counter(label for label, _ in last)
    if alone := [f"{label!r:.60} ({name})" for (label, _), name in last.items() if counts[label] == 1]:
        warn(f"{path}: {len(alone):,} label(s) have one item alone, which is not held out: {abridged(alone)}")


def drawn(count: int, most: int) -> list[int]:
    """Draws the places of at most so many of `count` items, sorted: all, or a share, the same in every process."""
    return sorted(np.random.default_rng(0).choice(count, min(count, most), replace=False).tolist())


def drawn_identity(identity: str, seed: int | None) -> str:
    """Returns the identity of a text of which a seed draws what is held out; without a seed that of the text."""
    return identity if seed is None else sha256_of([identity, f"drawn {seed}"])
