"""Tables in place of a model, with the search by brute force and the greedy one, in NumPy.

A table holds logits for each of `STATES` states. The state of a prefix is a hash of all its tokens and of the
sentence, so what comes next depends on all that came before.
"""

import itertools

import numpy as np

from keras_transformer import ops
from keras_transformer.search.beam_search import beam_search
from keras_transformer.search.sampling import sample
from keras_transformer.text.tokenizer import END, PAD, START, UNKNOWN

STATES = 997
VOCABULARY = 7  # pad, unknown, start, end and three words


def make_table(seed=0, scale=2.0, vocabulary=VOCABULARY):
    return np.random.default_rng(seed).normal(0, scale, (STATES, vocabulary)).astype("float32")


def next_state(state, token):
    return (state * 31 + token * 17 + 5) % STATES


def make_step(table):
    """A step whose cache holds the state of each beam, and for each sentence the number that marks it."""
    table = ops.convert_to_tensor(table)

    def step(token_ids, cache, index):
        (states,), (sentences,) = cache["beams"], cache["sentences"]
        states = next_state(states, ops.cast(token_ids, "int32"))
        logits = ops.take(table, (states + sentences[:, None]) % STATES, axis=0)
        return logits, {"beams": [states], "sentences": [sentences]}

    return step


def make_cache(sentences, num_beams):
    states = ops.zeros((len(sentences), num_beams), dtype="int32")
    return {"beams": [states], "sentences": [ops.convert_to_tensor(np.asarray(sentences, "int32"))]}


def search(table, limits, num_beams, sentences=None, **options):
    """ids and scores of the search; by default the sentences are 100, 101, ..."""
    cache = make_cache(sentences or range(100, 100 + len(limits)), num_beams)
    limits = ops.convert_to_tensor(np.asarray(limits, "int32"))
    found = beam_search(make_step(table), cache, limits, num_beams=num_beams, **options)
    return [ops.convert_to_numpy(each) for each in found]


def draws(table, limits, uniforms, sentences=None, **options):
    """ids and log P of samples, one for each row of uniform numbers."""
    num_samples, uniforms = uniforms.shape[1], ops.convert_to_tensor(uniforms.astype("float32"))
    cache = make_cache(sentences or range(100, 100 + len(limits)), num_samples)
    limits = ops.convert_to_tensor(np.asarray(limits, "int32"))
    found = sample(make_step(table), cache, limits, uniforms, num_samples, **options)
    return [ops.convert_to_numpy(each) for each in found]


def log_softmax(logits):
    logits = logits.astype("float64")
    return logits - np.log(np.sum(np.exp(logits)))


def log_prob(table, sentence, tokens):
    """log P of the tokens, by hand."""
    total, state = 0.0, 0
    for previous, token in zip([START, *tokens], tokens, strict=False):
        state = next_state(state, previous)
        total += log_softmax(table[(state + sentence) % STATES])[token]
    return total


def score_of(table, tokens, sentence=100, length_penalty=0.6):
    return log_prob(table, sentence, tokens) / ((5 + len(tokens)) / 6) ** length_penalty


def brute_force(table, sentence, limit, num_beams, length_penalty):
    """(score, tokens), best first: all that end, and, in places left free, what is cut at the limit."""

    def ranked(some):
        return sorted(((score_of(table, y, sentence, length_penalty), y) for y in some), reverse=True)[:num_beams]

    words = range(END + 1, table.shape[1])
    best = ranked((*y, END) for length in range(limit) for y in itertools.product(words, repeat=length))
    return best + ranked(itertools.product(words, repeat=limit))[: num_beams - len(best)]


def tokens_of(row):
    return tuple(int(token) for token in row if token != PAD)


def greedy(table, sentence, limit):
    tokens: list[int] = []
    state = 0
    while len(tokens) < limit and END not in tokens:
        state = next_state(state, tokens[-1] if tokens else START)
        logits = table[(state + sentence) % STATES].copy()
        logits[[PAD, UNKNOWN, START]] = -np.inf
        tokens.append(int(np.argmax(logits)))
    return tuple(tokens)
