"""How nearly a search lost its hypothesis: the narrowest choice among its steps."""

import math

import numpy as np
import pytest
from keras import ops

from export.certificate.near_ties import best_left_out
from export.certificate.searches import ExpectedTranslations
from export.forms import Translation
from export.probes import Texts
from export.signatures import Decoding
from keras_transformer.text.tokenizer import END, START
from tests.tiny_text import lines


def test_the_best_continuation_that_a_step_leaves_out():
    reached = np.log([[0.01, 0.01, 0.01, 0.2, 0.5, 0.27], [0.01, 0.01, 0.01, 0.07, 0.6, 0.3]])  # END is 3
    assert best_left_out(reached, 5) == pytest.approx(np.log(0.3))  # .6 and .5 live on
    assert best_left_out(reached, END) == pytest.approx(np.log(0.2))  # .6, .5, .3, .27 are looked at
    assert best_left_out(reached[:1], END) == pytest.approx(np.log(0.27))  # greedy: .5 alone
    assert best_left_out(reached[:1, :1], 0) == -math.inf


def test_the_narrowest_choice_is_found(translator):
    """Of greedy search, by brute force: the smallest distance between the likeliest and the second likeliest token."""
    decoding = Decoding(1, max_length=5)
    expected = ExpectedTranslations(Translation, translator, decoding, Texts([], [], lines(5, 2)))
    for place, [best, *_] in enumerate(expected.hypotheses):
        source_ids = np.array([expected.read(place)], "int32")
        inputs = {"source_ids": source_ids, "target_ids": np.array([[START, *best.ids[:-1]]])}
        log_probs = np.sort(ops.convert_to_numpy(ops.log_softmax(translator.model(inputs)))[0, :, END:], axis=-1)
        gaps = log_probs[:, -1] - log_probs[:, -2]
        assert expected.narrowest_choice(place) == (pytest.approx(gaps.min(), abs=1e-4), gaps.argmin() + 1)
