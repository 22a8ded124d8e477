"""Every variant of the family × every artefact: its certificate holds, or the export refuses the variant by name.

A sample is marked `long`, the rest `full`. A new row of `family.SLOTS` is a new variant here.
"""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

from export.__main__ import FORMATS, check_parts, main, write_artefacts
from export.certificate import artefacts_in, certify, comparison, judgement, outputs, runner
from export.certificate.execution import Execution
from export.certificate.searches import ExpectedTranslations, Known
from export.forms import Form, Searching, Translation
from export.probes import Texts
from export.signatures import NO_SUCH_PRECISION, PRECISIONS, Decoding, TrainedRun, Unwritable
from keras_transformer import family
from keras_transformer.decoding.translator import Translator
from keras_transformer.lengths import penalty
from keras_transformer.models import Transformer
from keras_transformer.text.tokenizer import Tokenizer
from tests.export.sessions import sums_overflow
from tests.golden.stored import unpack
from tests.layer_check import randomize
from tests.tiny_text import lines

# Options that show a part's work in a model and in sentences so small.
SMALL = {
    "rotary": "rotary:base=100",
    "xpos": "xpos:scale_base=15",
    "buckets": "buckets:num_buckets=8,max_distance=6",
    "windowed": "windowed:width=3",
    "local": "local:width=3",
    "compressed": "compressed:width=4",
    "location": "location:max_length=6",
    "experts": "experts:num_experts=3",
}
OPTIONS = {
    "positions": ["sinusoidal:offset=2,interpolation=1.5"],
    "attention": ["full:num_key_value_heads=1"],
}
COMBINED: dict[str, dict[str, str]] = {
    "Magneto and Llama": {
        "residual": "sub_norm",
        "norm": "rms:epsilon=1e-05",
        "feed_forward": "gated:use_bias=true",
        "activation": "silu",
        "positions": "rotary",
        "attention": "full:num_key_value_heads=1",
    },
    "unlike windows": {
        "attention": "windowed:width=4",
        "decoder_attention": "windowed:width=2",
        "positions": "xpos:scale_base=15",
        "residual": "pre_norm",
    },
    "windows and slopes": {"attention": "windowed:width=3", "positions": "alibi"},
    "blocks and slopes": {"attention": "local:width=3", "decoder_attention": "local:width=2", "positions": "alibi"},
    "a compressed decoder": {"decoder_attention": SMALL["compressed"], "residual": "sub_norm", "activation": "gelu"},
    "universal experts": {
        "stack": "universal:adaptive=false",
        "feed_forward": "experts:num_experts=3,gated=true",
        "positions": "none",
    },
    "general and grouped": {"score": "general", "attention": "full:num_key_value_heads=1", "positions": "alibi"},
}
# Of a stack whose layers differ, and of one that repeats its layer.
LAYERS = {"compressed": 2, "universal": 3}
# What the message names, by format and variant.
REFUSED = {
    "onnx": {
        "attention=local:width=3": "LocalAttention", "attention=compressed:width=4": "LocalAttention",
        "feed_forward=experts:num_experts=3": "Experts", "stack=universal": "UniversalStack",
        "blocks and slopes": "LocalAttention", "a compressed decoder": "LocalAttention",
        "universal experts": "UniversalStack",
    },
    "ctranslate2": {
        "positions=alibi": "AlibiPositions", "positions=xpos:scale_base=15": "XposPositions",
        "attention=windowed:width=3": "WindowedAttention", "attention=local:width=3": "LocalAttention",
        "attention=compressed:width=4": "LocalAttention", "score=general": "General", "score=additive": "Additive",
        "score=location:max_length=6": "Location", "residual=sub_norm": "SubNorm", "residual=none": "NoResidual",
        "feed_forward=experts:num_experts=3": "Experts", "stack=universal": "UniversalStack",
        "Magneto and Llama": "SubNorm", "unlike windows": "XposPositions", "windows and slopes": "AlibiPositions",
        "blocks and slopes": "AlibiPositions", "a compressed decoder": "SubNorm",
        "universal experts": "UniversalStack", "general and grouped": "AlibiPositions",
    },
}  # fmt: skip
ARTEFACTS = [(format, one) for format in FORMATS for one in PRECISIONS if (format, one) not in NO_SUCH_PRECISION]


def variants() -> dict[str, dict[str, str]]:
    """The arguments of each variant, spelled as on a command line: each part alone, some options, some together."""
    found: dict[str, dict[str, str]] = {"the default": {}}
    for slot, parts in family.SLOTS.items():
        others = [SMALL.get(name, name) for name in list(parts)[1:]]
        found |= {f"{slot}={text}": {slot: text} for text in [*others, *OPTIONS.get(slot, [])]}
    return found | COMBINED


def sample() -> set[tuple[str, str, str]]:
    """Cells drawn by chance: every variant once, and every format in every precision about as often as any other."""
    draw, found, counts = random.Random(1), set(), Counter(ARTEFACTS)
    for variant in draw.sample([*VARIANTS], len(VARIANTS)):
        written = [one for one in ARTEFACTS if variant not in REFUSED.get(one[0], {})]
        chosen = min(draw.sample(written, len(written)), key=counts.__getitem__)
        counts[chosen] += 1
        found.add((variant, *chosen))
    return found


def cells() -> Iterator[Any]:
    """Variant × artefact, where it is not refused."""
    sampled = sample()
    for variant in VARIANTS:
        for cell in ((variant, *artefact) for artefact in ARTEFACTS if variant not in REFUSED.get(artefact[0], {})):
            yield pytest.param(
                *cell, marks=pytest.mark.long if cell in sampled else pytest.mark.full, id="-".join(cell)
            )


VARIANTS = variants()
# The most that a precision may change the score of a translation, as a share of what random pieces lose. A search that
# rounding leads elsewhere may lose more, but in few sentences.
SHARE = {"float16": 0.01, "int8": 0.05}
SHARE_IN_7_BITS = 0.1  # of int8 in ONNX where 8-bit sums overflow
DECODING = Decoding(3, 0.8, max_length=12)
# Random weights give ids of no text much probability. CTranslate2 leaves these out of its sums, which changes the
# order of its beams, but not what is likeliest.
GREEDY = replace(DECODING, num_beams=1, n_best=1)
SENTENCES = [*lines(5, 20), ""]


class Subject(NamedTuple):
    """A variant's run, and its own translations, with which all its artefacts are compared."""

    name: str
    run: TrainedRun
    expected: ExpectedTranslations
    gap: float  # see `gap_of`

    def expected_of(self, decoding: Decoding) -> ExpectedTranslations:
        """What the model gives if it searches so."""
        return self.expected if decoding == DECODING else expected_of(self.run.pipeline, decoding)


def expected_of(translator: Any, decoding: Decoding) -> ExpectedTranslations:
    """What a model gives for the sentences."""
    return ExpectedTranslations(Translation, translator, decoding, Texts([], [], SENTENCES), SENTENCES)


def make_model(parts: dict[str, str], vocabulary_size: int) -> Transformer:
    """A small model with random weights."""
    config: dict[str, Any] = {
        argument: family.parse(text, family.ARGUMENTS[argument].slot, argument) for argument, text in parts.items()
    }
    num_layers = max([1, *(LAYERS.get(part["name"], 1) for part in config.values())])
    keras.utils.set_random_seed(3)
    model = Transformer(vocabulary_size, num_layers, 2, 16, 32, max_source_length=40, **config)
    randomize(model)
    return model


@cache
def vocabulary() -> Tokenizer:
    return Tokenizer.train(lines(0), 64, "bpe")  # of BPE vocabularies LiteRT takes ids alone


@lru_cache(1)  # the artefacts of a variant come one after the other
def subject_of(name: str) -> Subject:
    """A run of the variant with random weights."""
    keras.backend.clear_session()  # collects garbage
    translator = Translator(make_model(VARIANTS[name], vocabulary().vocabulary_size), vocabulary())
    expected = expected_of(translator, DECODING)
    best = [one for one, *_ in expected.hypotheses[:-1]]
    return Subject(name, TrainedRun(translator), expected, gap_of(translator, best))


@pytest.fixture
def subject(request):
    return subject_of(request.param)


def gap_of(translator: Translator, best: list[Known]) -> float:
    """What a sentence's score loses, on average, if its translation becomes as many pieces drawn at random."""
    lengths, generator = [len(one.ids) for one in best], np.random.default_rng(1)
    others = [generator.integers(4, translator.target_tokenizer.vocabulary_size, length).tolist() for length in lengths]
    log_probs = translator.log_probs(translator.source_tokenizer.encode(SENTENCES[:-1]), others)
    scores = log_probs / penalty(np.array(lengths), DECODING.length_penalty)
    return float(np.mean([one.score for one in best] - scores))


@pytest.fixture
def runs_here(subject, monkeypatch):
    """Runs artefacts in this process, whose threads are set already, and compares all with one search of the model."""
    import tensorflow as tf

    for name in ("set_intra_op_parallelism_threads", "set_inter_op_parallelism_threads"):
        monkeypatch.setattr(tf.config.threading, name, lambda count: None)
    monkeypatch.setattr(comparison, "expected_of", lambda run, decoding, *_: subject.expected_of(decoding))
    monkeypatch.setattr(comparison, "run_artefact", lambda artefact, task: Execution(runner.run(task), ""))
    # A SavedModel's other signature, `n_best`, is the same model in another search, and takes as long to trace.
    monkeypatch.setattr(Searching, "signatures", Form.signatures)
    monkeypatch.setattr(outputs, "signatures_of", lambda artefact, form: [artefact.signature])
    # Random weights write words in pieces that nobody would guess from the text.
    monkeypatch.setitem(judgement.MOST_UNKNOWN, True, 0.25)
    if "experts" in str(VARIANTS[subject.name]):  # rounding may send a position to another expert, in float16 too
        monkeypatch.setitem(judgement.BOUNDS, "float16", judgement.BOUNDS["int8"])


@pytest.mark.parametrize("variant", VARIANTS)
def test_a_part_that_a_format_lacks_is_refused_by_name(variant):
    model = make_model(VARIANTS[variant], 64)
    for format in FORMATS:
        if name := REFUSED.get(format, {}).get(variant):
            with pytest.raises(Unwritable, match=f"{format} in float16 can write only .*with {name} there"):
                check_parts(model, [(format, "float16")])
        else:
            check_parts(model, [(format, "float16")])


def test_every_variant_and_every_artefact_is_in_the_sample():
    assert {cell[0] for cell in sample()} == VARIANTS.keys()
    assert {cell[1:] for cell in sample()} == {*ARTEFACTS}
    assert {variant for some in REFUSED.values() for variant in some} <= VARIANTS.keys()


@pytest.mark.usefixtures("runs_here")
@pytest.mark.parametrize(("subject", "format", "precision"), list(cells()), indirect=["subject"])
def test_its_certificate_holds(subject, format, precision, tmp_path):
    if (format, precision) == ("ctranslate2", "int8") and sums_overflow():
        pytest.skip("this processor has no VNNI: CTranslate2's 8-bit sums overflow")
    check_certificate(subject, format, precision, tmp_path)


def check_certificate(subject: Subject, format: str, precision: str, folder: Path) -> None:
    """Exports, certifies, and looks at what the certificate measured."""
    decoding = GREEDY if format == "ctranslate2" else DECODING
    write_artefacts(subject.run, folder, decoding, [(format, precision)])
    takes = {"saved_model": "text", "ctranslate2": "pieces"}.get(format, "ids")
    (artefact,) = [one for one in artefacts_in(folder) if one.takes == takes]
    (entry,) = certify(subject.run, folder, [artefact], decoding, SENTENCES, SENTENCES).entries
    assert entry.holds, entry.reason
    assert entry.verified == "translations" and entry.judgement is not None
    if precision != "float32":
        measured, differences = entry.judgement.measured, entry.judgement.differences
        # Rounding may send a position to another expert, in float16 too.
        share = SHARE["int8" if "experts" in str(VARIANTS[subject.name]) else precision]
        is_in_7_bits = (format, precision) == ("onnx", "int8") and sums_overflow()
        most = (SHARE_IN_7_BITS if is_in_7_bits else share) * subject.gap
        assert measured.identical >= len(SENTENCES) / 3
        assert measured.score_difference < most
        losses = np.array([one.loss for one in differences if one.given == "batched"])
        assert takes == "text" or np.isfinite(losses).all(), "half a translation scores -inf"
        assert (losses > most).sum() <= len(SENTENCES) / 4


@pytest.mark.full
def test_every_artefact_of_a_trained_variant_holds(tmp_path):
    """Weights that were learned, by which BLEU can be lost, and all files of each format."""
    flags = f"--format saved_model onnx tflite --precision float16 int8 --beams 2 --out {tmp_path}/out"
    assert main([str(unpack("modern", tmp_path / "run")), *flags.split()]) == 0
    entries = json.loads((tmp_path / "out" / "certificate.json").read_text(encoding="utf-8"))["entries"]
    assert len(entries) == 1 + 2 * 3 + 2 * 2
    assert min(entry["judgement"]["measured"]["model_bleu"] for entry in entries) > 5
