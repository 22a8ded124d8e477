"""A text that grows, and where it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np

from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.decoding.sentences import Ids
from keras_transformer.errors import RequestError
from keras_transformer.lengths import penalty
from keras_transformer.text.tokenizer import END, PAD


@dataclass
class Row:
    """A text that grows.

    Args:
        ids: the prompt's, and those that were added.
        ends: the ids that end a text.
        num_added: how many were added.
        log_prob: log P of those.
        random: where draws come from.
    """

    ids: Ids
    ends: Sequence[int] = (END,)
    num_added: int = 0
    log_prob: float = 0.0
    random: np.random.Generator = field(default_factory=np.random.default_rng)

    @property
    def added(self) -> Ids:
        """The ids behind the prompt's."""
        return self.ids[len(self.ids) - self.num_added :]

    def is_done(self, max_tokens: int) -> bool:
        """Whether the text has ended, or has as many tokens more as were asked for."""
        return self.num_added >= max_tokens or (self.num_added > 0 and self.ids[-1] in self.ends)


def require_one_hypothesis(ends: Sequence[int], options: SearchOptions) -> None:
    """Raises RequestError if a search follows several hypotheses, of which it knows one end, and the model has more."""
    if len(ends) > 1 and options.num_beams > 1 and not options.sampling:
        raise RequestError(
            f"any of {len(ends)} ids ends a text of this model, and a search with several beams knows one; received "
            f"{options.num_beams} beams: ask for one, or draw"
        )


def cut_at_ends(
    ends: Sequence[int],
    starts: Sequence[tuple[int, Ids]],
    found: Sequence[np.ndarray],
    log_probs: Callable[[Sequence[tuple[int, Ids]], Sequence[Ids]], list[float]],
    length_penalty: float,
) -> list[np.ndarray]:
    """What one hypothesis of each text adds, up to the first id that ends a text: a search knows the first of them.

    Args:
        ends: the ids that end a text.
        starts: what the model reads at position 0, and what follows.
        found: ids (B, 1, L), in which placeholders stand where the model reads, and scores (B, 1).
        log_probs: log P of what is added, from starts and what is added to each.
        length_penalty: α of the scores.

    Returns:
        ids and scores of the same shapes, without what stands behind the end.
    """
    ids, scores = map(np.array, found)
    for start, row, score in zip(starts, ids[:, 0], scores, strict=True):
        added = row[len(start[1]) :]
        places = np.flatnonzero(np.isin(added, ends[1:]))
        if len(places) and added[places[0] + 1 :].any():
            length = int(places[0]) + 1
            added[length:] = PAD
            score[0] = log_probs([start], [added[:length].tolist()])[0] / penalty(length, length_penalty)
    return [ids, scores]
