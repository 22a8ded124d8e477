"""What the benchmark of pronouns counts, with a translator whose heads are known."""

import itertools
import re

import numpy as np
import pytest

from benchmarks.pronouns import LOOKS, figures, looking
from keras_transformer.decoding.attention import Attention, Tokens
from keras_transformer.decoding.translator import Translator
from keras_transformer.text.pronouns import known_examples, pronoun_examples


class Told(Translator):
    """A stand-in for a translator, which knows the translations of examples.

    Head 2.1 looks where `look` tells: (attention, word that looks, word that is looked at). Others look at the start.
    """

    def __init__(self, examples, look=None):  # without a model
        self.examples = {example.source: example for example in examples}
        self.look = look

    def translate(self, lines, *args, **options):
        return [self.examples[line].target for line in lines]

    def attention(self, text, target=None):
        target = re.findall(r"[^ ']+'?", self.examples[text].target)  # as pieces: `qu'` and `il`
        source, reads = text.split(), ["<s>", *target]
        sides = {"encoder": (source, source), "decoder": (reads, reads), "cross": ([*reads[1:], "</s>"], source)}
        return {name: self._attention(name, queries, keys) for name, (queries, keys) in sides.items()}

    def _attention(self, name, queries, keys):
        scores = np.zeros((2, 1, len(queries), len(keys)), "float32")
        scores[..., 0] = 0.5
        attention = Attention(Tokens.of_whole(queries), Tokens.of_whole(keys), scores)
        if self.look and self.look[0] == name:
            row, column = attention.queries.place_of(self.look[1]), attention.keys.place_of(self.look[2])
            scores[1, 0, row, column] = 1
        return attention


LOOK_FOR_LOOK = [
    ("de", ("encoder", "it", "animal"), 0), ("de", ("encoder", "it", "tired"), 1),
    ("de", ("decoder", "weil", "Das"), 2), ("fr", ("decoder", "qu'", "L'"), 2),
    ("de", ("cross", "es", "animal"), 3), ("fr", ("cross", "qu'", "tired"), 6),
]  # fmt: skip


def test_a_head_that_looks_there_is_found():
    for language, look, expected in LOOK_FOR_LOOK:
        tired, _ = known_examples(language)
        shares = [np.mean(looks, axis=0) for looks in looking(Told([tired], look), [tired])]
        assert [share[1, 0] for share in shares] == [float(place == expected) for place in range(len(LOOKS))], look
        assert all(share[0, 0] == 0 for share in shares)


def test_right_pronouns_are_told_from_wrong_ones(language="fr"):
    examples = pronoun_examples("en", language)[2][:50]
    assert set(figures(Told(examples), examples, language).values()) == {1.0}
    pairs = list(itertools.pairwise(examples))
    others = [one._replace(target=two.target, pronoun=one.pronoun) for one, two in pairs]
    expected = np.mean([one.pronoun == two.pronoun for one, two in pairs])
    assert figures(Told(others), others, language)["right pronouns"] == pytest.approx(expected) != 1
