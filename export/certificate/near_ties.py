"""How nearly the model's own search chose another translation: a near tie explains why an artefact chose the other."""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.decoding import search
from keras_transformer.decoding.loop import Cache, Step, permit
from keras_transformer.decoding.options import Decoding
from keras_transformer.text.tokenizer import END


class Choice(NamedTuple):
    """A choice of the search: its margin in log-probability, and the piece where it was made, from 1."""

    margin: float
    piece: int


def narrowest_choice(
    step: Step,
    cache: Cache,
    limit: int,
    ids: tuple[int, ...],
    decoding: Decoding,
    num_control_ids: int,
    num_read: int = 0,
) -> Choice:
    """Finds the step at which the search came closest to losing the translation that it found.

    Args:
        step: the model's step.
        cache: for one sentence, before the first step.
        limit: the most ids to emit.
        ids: the translation that the model's search found.
        decoding: how the search ran.
        num_control_ids: of the model.
        num_read: how many of the ids are placeholders for a prompt.

    Returns:
        The smallest difference in log-probability, over all steps, between the beginning of the translation and the
        best hypothesis that the step left out.
    """
    num_beams, narrowest = decoding.num_beams, Choice(math.inf, 0)
    bounds = search.Bounds(np.array([limit], "int32"), limit, None, np.array([num_read], "int32"))
    state = search.start_beams(cache, bounds, num_beams, decoding.num_listed)
    for index, id in enumerate(ids):
        logits, cache = step(state.token_ids, state.cache, state.index)  # (1, K, V)
        log_probs = permit(ops.log_softmax(ops.cast(logits, "float32")), None, state.index, num_control_ids)
        reached = ops.convert_to_numpy(state.live_log_probs[..., None] + log_probs)[0]  # (K, V)
        live_ids = ops.convert_to_numpy(state.live_ids)[0, :, :index]  # (K, index)
        own = reached[np.all(live_ids == ids[:index], axis=1), id]
        if not own.size:
            break  # for this sentence alone, rounding dropped the translation: the step before was the near tie
        narrowest = min(narrowest, Choice(abs(float(own.max()) - best_left_out(reached, id)), index + 1))
        likeliest = search.continuations(logits, state, None, num_beams, num_control_ids)
        state = search.next_beams(state, likeliest, cache, bounds, num_beams, decoding.length_penalty)
    return narrowest


def best_left_out(reached: np.ndarray, id: int) -> float:
    """The log-probability of the best continuation that a step of the search leaves out when it takes this id.

    Args:
        reached: (K, V) the log-probabilities of all continuations of K hypotheses.
        id: what is taken. For an end, the step looks at the 2K best; otherwise it keeps the K best without an end.
    """
    num_kept = len(reached)
    if num_kept > 1 and id == END:
        num_kept *= 2
    elif num_kept > 1:
        reached = np.delete(reached, END, axis=1)
    ranked = np.sort(reached, axis=None)[::-1]
    return float(ranked[num_kept]) if num_kept < ranked.size else -math.inf
