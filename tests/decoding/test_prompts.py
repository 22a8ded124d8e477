"""A language model reads a prompt in one pass, and finds what it finds when it reads token by token."""

import functools
import math
from dataclasses import replace
from typing import Any
from unittest.mock import Mock

import keras
import numpy as np
import pytest

from export.artefacts import TrainedRun
from export.onnx.export import step_model
from keras_transformer import ops
from keras_transformer.decoding import onnx_graphs
from keras_transformer.decoding.computations import PromptForcing, Sampling, Search, TextLogProbs
from keras_transformer.decoding.onnx_graphs import SteppedLanguageModel
from keras_transformer.layers.attention import MultiHeadAttention, SelfAttention
from keras_transformer.layers.windowed import LocalAttention
from keras_transformer.models import LanguageModel
from keras_transformer.spec.search_options import Guards
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.text.tokenizer import END, PAD, START
from tests.export.sessions import computed, of
from tests.layer_check import randomize

SIZES: dict[str, Any] = {"vocabulary_size": 40, "context_length": 32, "num_layers": 2, "num_heads": 4, "hidden_dim": 16}
SIZES |= {"intermediate_dim": 24, "dropout": 0.0}
PARTS: dict[str, dict[str, Any]] = {
    "rotary positions and grouped heads": {
        "attention": {"name": "full", "num_key_value_heads": 2}, "positions": "rotary", "residual": "pre_norm",
        "norm": "rms", "feed_forward": "gated",
    },
    "slopes and windows": {"attention": {"name": "windowed", "width": 3}, "positions": "alibi"},
    "learned positions, universal": {"positions": "learned", "stack": "universal"},
    "buckets": {"positions": {"name": "buckets", "num_buckets": 8, "max_distance": 6}, "num_layers": 1},
    "compressed, which cannot": {"attention": {"name": "compressed", "width": 4}},
}  # fmt: skip
GUARDS = Guards(min_length=3, no_repeat_ngram_size=2, repetition_penalty=1.4)
# The lengths of the prompts of a batch, how they are continued, and the most tokens that a run of a step reads.
CASES: dict[str, tuple[list[int], Any, int]] = {
    "ragged": ([5, 9, 6], Search(3, 0.6, 3), 7),
    "one is empty": ([0, 3], Sampling(2, 0.9, 0, 0.9), 128),
    "lone": ([8], Search(1, 0.6, 1), 3),
    "guarded": ([5, 9, 6], Search(3, 0.6, 3, GUARDS), 7),
    "guarded draws": ([0, 3], Sampling(2, 0.9, 0, 0.9, GUARDS), 128),
    "guarded, greedy": ([8, 2], Search(1, 0.6, 1, GUARDS), 3),
}
MODELS = pytest.mark.parametrize("name", PARTS)


def cases(name: str) -> dict[str, tuple[list[int], Any, int]]:
    """The cases for a model: guards, which no model changes, for one of them."""
    return {case: its for case, its in CASES.items() if "guarded" not in case or name == next(iter(PARTS))}


def model_of(name: str) -> LanguageModel:
    keras.utils.set_random_seed(1)
    model = LanguageModel(**{**SIZES, **PARTS[name]})
    randomize(model)
    return model


def arrays_of(case: str) -> list[np.ndarray]:
    """The start, limits, prompts, and for draws numbers."""
    lengths, computation, _ = CASES[case]
    draws, most = np.random.default_rng(0), max(lengths) + 6
    prompts = [[*draws.integers(1, 40, length), *[0] * (most - length)] for length in lengths]
    limits = [min(length + 6 + place, most) for place, length in enumerate(lengths)]
    uniforms = [draws.random((len(lengths), 2, most)).astype("float32")] * isinstance(computation, Sampling)
    return [*(np.array(each, "int32") for each in ([[START]] * len(lengths), limits, prompts)), *uniforms]


def eagerly(computation: Any, model: LanguageModel, arrays: list[np.ndarray]) -> list[np.ndarray]:
    return [*map(keras.ops.convert_to_numpy, computation.run(model, *map(keras.ops.convert_to_tensor, arrays)))]


@functools.cache
def token_by_token(name: str, case: str) -> list[np.ndarray]:
    """What the search finds that feeds prompts to the step, one position after the other."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(PromptForcing, "read", lambda prompted, *sizes: (prompted.init_cache(*sizes), None))
        return eagerly(CASES[case][1], model_of(name), arrays_of(case))


def check(found: list[np.ndarray], name: str, case: str) -> None:
    expected = token_by_token(name, case)
    np.testing.assert_array_equal(found[0], expected[0])
    np.testing.assert_allclose(found[1], expected[1], atol=1e-5)


def stepped(model: LanguageModel, folder: Any) -> SteppedLanguageModel:
    """The model of the graph of its step."""
    session = of(step_model(TrainedRun(Generator(model, Mock(other_ends=()))), "float32"), folder)
    return SteppedLanguageModel(lambda _: session, model.arguments())


@MODELS
def test_searches_and_draws_find_the_same_in_keras_and_in_a_graph_that_holds_them(name):
    model = model_of(name)
    for case, (_, computation, _) in cases(name).items():
        check(eagerly(computation, model, arrays_of(case)), name, case)
        check(computed(lambda *arrays: computation.run(model, *arrays), *arrays_of(case)), name, case)  # noqa: B023


@pytest.mark.parametrize("case", ["ragged", "one is empty"])
def test_guards_count_what_was_read(case):
    """No token of a prompt comes again."""
    arrays, guards = arrays_of(case), Guards(no_repeat_ngram_size=1)
    computation = replace(CASES[case][1], guards=guards)
    found = eagerly(computation, model_of(next(iter(PARTS))), arrays)[0]
    for prompt, rows in zip(arrays[2], found, strict=True):
        read = [id for id in prompt.tolist() if id]
        for row in rows.tolist():
            added = [id for id in row[len(read) :] if id not in (PAD, END)]
            assert added and len({*added, *read}) == len(added) + len({*read})


@MODELS
def test_searches_and_draws_around_the_graph_of_a_step_find_the_same(name, tmp_path, monkeypatch):
    """A long prompt takes several runs."""
    model = model_of(name)
    graph = stepped(model, tmp_path)
    monkeypatch.setattr(onnx_graphs, "run", runs := Mock(side_effect=onnx_graphs.run))
    for case, (lengths, computation, at_once) in cases(name).items():
        monkeypatch.setattr(onnx_graphs, "READ_AT_ONCE", at_once)
        runs.reset_mock()
        arrays = arrays_of(case)
        with ops.on(ops.NUMPY):
            found = [*computation.run(graph, *arrays)]
        check(found, name, case)  # what it compares with is computed in Keras
        many = at_once // len(lengths) if model.supports_prefill else 1
        assert runs.call_count <= math.ceil(min(lengths) / many) + max(arrays[1]) - min(lengths)
    text = np.arange(4, 13, dtype="int32")[None]
    with ops.on(ops.NUMPY):
        (log_probs,) = TextLogProbs().run(graph, text, text)  # type: ignore[arg-type]
    (expected,) = eagerly(TextLogProbs(), model, [text, text])
    np.testing.assert_allclose(log_probs, expected, rtol=1e-5)


@MODELS
def test_it_is_one_pass(name, monkeypatch):
    """The layers see all that the prompts share, and then single positions."""
    model, step, seen = model_of(name), LanguageModel.step, []

    def spied(model: LanguageModel, token_ids: Any, *others: Any) -> Any:
        seen.append(token_ids.shape[1])
        return step(model, token_ids, *others)

    monkeypatch.setattr(LanguageModel, "step", spied)
    eagerly(Search(1, 0.0, 1), model, arrays_of("lone"))
    assert seen[0] == (8 if model.supports_prefill else 1) and {1}.issuperset(seen[1:])  # JAX traces a step once
    assert model.supports_prefill == (name != "compressed, which cannot" and keras.config.backend() != "jax")


def test_an_attention_with_a_step_of_its_own_reads_token_by_token():
    class Own(MultiHeadAttention):
        def step(self, *given: Any, **named: Any) -> Any:
            return super().step(*given, **named)

    assert MultiHeadAttention(2, 4).supports_prefill and not Own(2, 4).supports_prefill
    assert not SelfAttention().supports_prefill and not LocalAttention(2, 4).supports_prefill


@MODELS
def test_rows_that_begin_at_places_of_their_own_give_the_logits_of_each_text_alone(name, tmp_path):
    """Whatever stands before them: no token sees it. A graph that has no such input says so."""
    model = model_of(name)
    graph = stepped(model, tmp_path)
    assert graph.takes_starts == model.supports_prefill
    if not graph.takes_starts:
        return
    texts = [[START, *row] for row in np.random.default_rng(3).integers(4, 40, (3, 9)).tolist()]
    lengths = [10, 4, 7]
    ids = np.array([[5] * (10 - length) + text[:length] for text, length in zip(texts, lengths, strict=True)], "int32")
    starts, past = 10 - np.array(lengths, "int32"), graph.empty(3)
    found = []
    for first, last in ((0, 2), (2, 8), (8, 9), (9, 10)):
        logits, past = graph.next_places(ids[:, first:last], past, first, starts)
        found.append(logits)
    for row, (text, length) in enumerate(zip(texts, lengths, strict=True)):
        (expected,) = graph({"ids": np.array([text[:length]], "int32")})
        np.testing.assert_allclose(np.concatenate(found, axis=1)[row, starts[row] :], expected, atol=1e-5)
