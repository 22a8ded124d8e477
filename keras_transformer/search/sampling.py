"""Draws random hypotheses over any `step(token_ids, cache, index)`. Letters of the shapes: see `loop`."""

from __future__ import annotations

from typing import NamedTuple

from keras_transformer import ops
from keras_transformer.ops import Tensor
from keras_transformer.search import loop
from keras_transformer.search.guards import guarded
from keras_transformer.search.loop import Bounds, Cache, Step
from keras_transformer.spec.search_options import Guards
from keras_transformer.text.tokenizer import END


class SampleState(NamedTuple):
    """The state of sampling between two steps."""

    index: Tensor  # () the position that is fed to `step`; the start id stands at 0
    token_ids: Tensor  # (B, K) what stands at that position
    ids: Tensor  # (B, K, L) emitted so far, then pad
    log_probs: Tensor  # (B, K)
    done: Tensor  # (B, K) True: this sample is complete
    cache: Cache


def sample(
    step: Step, cache: Cache, limits: Tensor, uniforms: Tensor, num_samples: int = 1, temperature: float = 1.0,
    top_k: int = 0, top_p: float = 1.0, prefix_ids: Tensor | None = None, num_control_ids: int = 4,
    index: Tensor | None = None, ids_dtype: str = "int32", guards: Guards | None = None,
    prompt_length: Tensor | None = None, read_ids: Tensor | None = None,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Draws K independent translations of each sentence.

    The random numbers are an argument, one for each token. So a draw depends neither on the generator of the backend
    nor on the other sentences in the batch.

    Args:
        step, cache, limits, prefix_ids, num_control_ids, index, ids_dtype, guards, prompt_length, read_ids: as for
            `beam_search`.
        uniforms: (B, K, L) float32 in [0, 1).
        num_samples: K.
        temperature: divides the logits.
        top_k: only the `top_k` likeliest tokens can be drawn; 0 permits all.
        top_p: draws from the likeliest alone, as many as together reach this probability (Holtzman et al. 2020).

    Returns:
        ids (B, K, L) as `beam_search` returns them, in the order of drawing; and log P(y) (B, K) by the model as it is.
    """
    bounds = loop.make_bounds(limits, ops.shape(uniforms)[-1], prefix_ids, ops.integers(), prompt_length, read_ids)
    bounds = bounds._replace(uniforms=ops.reshape(uniforms, (-1, num_samples, bounds.max_length)))

    def advance(state: SampleState, bounds: Bounds) -> SampleState:
        logits, cache = step(state.token_ids, state.cache, state.index)
        logits = ops.cast(logits, "float32")
        log_probs = ops.log_softmax(logits)  # (B, K, V)
        scores = guarded(log_probs if guards is None else logits, state.ids, state.index, bounds, guards)
        permitted = loop.mask_forbidden(scores / temperature, bounds.prefix_ids, state.index, num_control_ids)
        token_ids = draw(permitted, loop.select_entries(bounds.uniforms, state.index), top_k, top_p)
        return append(state, token_ids, loop.select_entries(log_probs, token_ids), bounds.limits, cache)

    first = loop.initial_state(bounds, num_samples, index)  # a sentence with the limit 0 is done, with an end alone
    start = SampleState(*first._replace(ids=loop.fill_prompt(first.ids, index, num_control_ids)), cache)
    state = loop.run_loop(advance, start, lambda state: state.done, bounds)
    return ops.cast(state.ids, ids_dtype), state.log_probs


def append(state: SampleState, token_ids: Tensor, log_probs: Tensor, limits: Tensor, cache: Cache) -> SampleState:
    """Appends the tokens (B, K) that were drawn, each with its log-probability (B, K)."""
    here = ops.equal(ops.arange(ops.shape(state.ids)[-1]), state.index)  # (L,)
    offsets, cache = loop.without_offsets(cache)
    written = token_ids if offsets is None else token_ids + offsets
    return SampleState(
        index=state.index + 1,
        token_ids=token_ids,
        ids=ops.where(here & ~state.done[..., None], written[..., None], state.ids),
        log_probs=state.log_probs + ops.where(state.done, 0.0, log_probs),
        done=state.done | (token_ids == END) | (state.index + 1 >= limits)[:, None],
        cache=cache,
    )


def draw(logits: Tensor, uniforms: Tensor, top_k: int, top_p: float) -> Tensor:
    """Draws tokens (B, K): the first, in falling order, at which the summed probabilities pass the uniform number."""
    vocabulary_size = ops.shape(logits)[-1]
    logits, token_ids = loop.k_best(logits, min(top_k, vocabulary_size) if top_k else vocabulary_size, ops.integers())
    probs = ops.exp(ops.log_softmax(logits))  # `softmax` warns where one token is left
    sums = ops.cumsum(probs, axis=-1)
    kept = (sums - probs < top_p) & (probs > 0)
    mass = ops.sum(ops.where(kept, probs, 0.0), axis=-1)  # (B, K)
    place = loop.count_true(sums <= (uniforms * mass)[..., None], token_ids.dtype)
    return loop.select_entries(token_ids, ops.minimum(place, loop.count_true(kept, token_ids.dtype) - 1))
