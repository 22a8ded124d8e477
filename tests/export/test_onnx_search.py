"""The search in an ONNX graph finds what the search in Python finds, over tables of logits in place of a model."""

from types import SimpleNamespace

import numpy as np
import pytest

from export.onnx.beams import Vocabulary
from export.onnx.graph import Graph, Model, Value, ValueInfo
from export.onnx.search import Cache, search
from export.signatures import Decoding
from keras_transformer.text.tokenizer import END, PAD
from tests.decoding import tables
from tests.decoding.tables import STATES, make_table
from tests.export.sessions import of

LIMITS = np.array([9, 1, 0, 7, *range(2, 18), 4, 0])


def graph_search(folder, table, limits, decoding, num_control_ids=4, num_read=None):
    """ids and scores of the graph's search over a table of logits, whose step is that of `tables.make_step`."""
    g = Graph()
    sentences = g.value(np.arange(100, 100 + len(limits))[:, None])

    def step(g: Graph, token_ids: Value, index: Value, cache: Cache) -> tuple[Value, Cache]:
        tokens = g("Mul", g("Unsqueeze", token_ids, [2]), 17)
        states = g("Mod", g("Add", g("Add", g("Mul", cache.beams[0], 31), tokens), 5), STATES)
        places = g("Mod", g("Add", states, g("Unsqueeze", cache.sentences[0], [2])), STATES)
        return g("Gather", table, g("Reshape", places, [-1])), Cache([states], [], [])

    def first_cache(g: Graph, num_active: Value, num_beams: int) -> Cache:
        states = g.zeros(g.joined(num_active, [num_beams, 1]), np.int64)
        return Cache([states], [], [g.value(np.zeros((0, 1), "int64"))])

    def encode(g: Graph, sentences: Value) -> list[Value]:
        return [g("Identity", sentences)]

    vocabulary = Vocabulary(table.shape[1], num_control_ids)
    model = SimpleNamespace(encode=encode, step=step, first_cache=first_cache)
    ids, scores = search(g, sentences, model, "limits", vocabulary, decoding, num_read)
    outputs = [
        ValueInfo(g.named(ids, "ids"), np.int64, ["batch", "n_best", "target"]),
        ValueInfo(g.named(scores, "scores"), np.float32, ["batch", "n_best"]),
    ]
    graph = Model(g, [ValueInfo("limits", np.int64, ["batch"])], outputs)
    return of(graph, folder).run(None, {"limits": np.array(limits)})


@pytest.mark.parametrize(
    ("vocabulary", "decoding", "num_control_ids", "reads"),
    [
        (5, Decoding(1, 0.0), 4, False),
        (5, Decoding(5, 2.0), 4, False),
        (7, Decoding(2, -1.0, n_best=1), 4, False),
        (40, Decoding(5, -1.0, n_best=3), 4, False),
        (12, Decoding(1), 7, False),
        (12, Decoding(3), 7, False),
        (7, Decoding(1, -1.0), 4, True),  # no token of a prompt counts
        (7, Decoding(4, 0.6), 4, True),
    ],
    ids=str,
)
def test_the_graph_finds_what_python_finds(tmp_path, vocabulary, decoding, num_control_ids, reads):
    table = make_table(vocabulary=vocabulary)
    given = {"num_control_ids": num_control_ids, "num_read": np.maximum(LIMITS - 3, 0) if reads else None}
    ids, scores = graph_search(tmp_path, table, LIMITS, decoding, **given)
    options = {"length_penalty": decoding.length_penalty, "n_best": decoding.n_best, **given}
    expected_ids, expected_scores = tables.search(table, LIMITS, decoding.num_beams, **options)
    width = expected_ids.shape[-1] - ids.shape[-1]
    np.testing.assert_array_equal(np.pad(ids, [(0, 0), (0, 0), (0, width)]), expected_ids)
    np.testing.assert_allclose(scores, expected_scores, atol=1e-5)
    assert set(np.unique(ids)) <= {PAD, END, *range(num_control_ids, vocabulary)}


def test_no_penalty_makes_a_hypothesis_of_none(tmp_path):
    """With one word a sentence has no more hypotheses than positions, and a huge divisor would hide which are none."""
    _, scores = graph_search(tmp_path, make_table(vocabulary=5), limits := [1, 2, 3], Decoding(8, 100.0))
    assert [np.isfinite(row).sum() for row in scores] == [limit + 1 for limit in limits]
