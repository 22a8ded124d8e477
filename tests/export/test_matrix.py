"""Every variant of the family × every artefact: its certificate holds, or the export refuses the variant by name.

`make test MATRIX=1` runs these alone, and `PARITY=1` those that are not marked `long`. A new row of `family.SLOTS` is a
new variant here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import keras
import numpy as np
import pytest

from export.__main__ import FORMATS, main, write_artefacts
from export.certificate import artefacts_in, certify, comparison, judgement, outputs, runner
from export.certificate.execution import Execution
from export.certificate.searches import ExpectedTranslations, Known
from export.forms import Form, Searching, Translation
from export.probes import Texts
from export.signatures import NO_SUCH_PRECISION, PRECISIONS, Decoding, TrainedRun, open_run
from keras_transformer import family
from keras_transformer import run_folder as runs
from keras_transformer.decoding.translator import Translator
from keras_transformer.lengths import penalty
from keras_transformer.models import Transformer, model_config
from keras_transformer.text.tokenizer import Tokenizer
from tests.export.sessions import sums_overflow
from tests.layer_check import randomize
from tests.tiny_text import lines

pytestmark = pytest.mark.matrix

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
# (format, variant): what the message names.
REFUSED = {
    ("onnx", "attention=local:width=3"): "LocalAttention",
    ("onnx", "attention=compressed:width=4"): "LocalAttention",
    ("onnx", "feed_forward=experts:num_experts=3"): "Experts",
    ("onnx", "stack=universal"): "UniversalStack",
    ("onnx", "blocks and slopes"): "LocalAttention",
    ("onnx", "a compressed decoder"): "LocalAttention",
    ("onnx", "universal experts"): "UniversalStack",
    ("ctranslate2", "positions=alibi"): "AlibiPositions",
    ("ctranslate2", "positions=xpos:scale_base=15"): "XposPositions",
    ("ctranslate2", "attention=windowed:width=3"): "WindowedAttention",
    ("ctranslate2", "attention=local:width=3"): "LocalAttention",
    ("ctranslate2", "attention=compressed:width=4"): "LocalAttention",
    ("ctranslate2", "score=general"): "General",
    ("ctranslate2", "score=additive"): "Additive",
    ("ctranslate2", "score=location:max_length=6"): "Location",
    ("ctranslate2", "residual=sub_norm"): "SubNorm",
    ("ctranslate2", "residual=none"): "NoResidual",
    ("ctranslate2", "feed_forward=experts:num_experts=3"): "Experts",
    ("ctranslate2", "stack=universal"): "UniversalStack",
    ("ctranslate2", "Magneto and Llama"): "SubNorm",
    ("ctranslate2", "unlike windows"): "XposPositions",
    ("ctranslate2", "windows and slopes"): "AlibiPositions",
    ("ctranslate2", "blocks and slopes"): "AlibiPositions",
    ("ctranslate2", "a compressed decoder"): "SubNorm",
    ("ctranslate2", "universal experts"): "UniversalStack",
    ("ctranslate2", "general and grouped"): "AlibiPositions",
}


def variants() -> dict[str, dict[str, str]]:
    """The arguments of each variant, spelled as on a command line: each part alone, some options, some together."""
    found: dict[str, dict[str, str]] = {"the default": {}}
    for slot, parts in family.SLOTS.items():
        others = [SMALL.get(name, name) for name in list(parts)[1:]]
        found |= {f"{slot}={text}": {slot: text} for text in [*others, *OPTIONS.get(slot, [])]}
    return found | COMBINED


def cells() -> Iterator[Any]:
    """Variants × artefacts. TensorFlow's take long: of these a variant's first is one precision of each format."""
    for number, variant in enumerate(VARIANTS):
        for format in FORMATS:
            precisions = [one for one in PRECISIONS if (format, one) not in NO_SUCH_PRECISION]
            firsts = [precisions[number % len(precisions)]] if format in ("saved_model", "tflite") else precisions
            for precision in precisions:
                marks = [] if precision in firsts else [pytest.mark.long]
                yield pytest.param(variant, format, precision, marks=marks, id=f"{variant}-{format}-{precision}")


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
    """A variant's run, its folder, and its own translations, with which all its artefacts are compared."""

    name: str
    folder: Path
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


@pytest.fixture(scope="module")
def vocabulary() -> Tokenizer:
    return Tokenizer.train(lines(0), 64, "bpe")  # of BPE vocabularies LiteRT takes ids alone


@pytest.fixture(scope="module")
def subject_of(vocabulary, tmp_path_factory):
    """`subject_of(variant)` → its subject; the last one is kept, for the artefacts that come one after the other."""
    kept: list[Subject] = []

    def subject_of(name: str) -> Subject:
        if not kept or kept[0].name != name:
            kept.clear()
            keras.backend.clear_session()  # collects garbage
            kept.append(make_subject(name, vocabulary, tmp_path_factory.mktemp("matrix") / "run"))
        return kept[0]

    yield subject_of
    kept.clear()
    keras.backend.clear_session()


@pytest.fixture
def subject(request, subject_of):
    return subject_of(request.param)


def make_subject(name: str, vocabulary: Tokenizer, path: Path) -> Subject:
    """A run of the variant with random weights."""
    folder = runs.RunFolder(path)
    folder.path.mkdir()
    model = make_model(VARIANTS[name], vocabulary.vocabulary_size)
    vocabulary.save(folder.path / "tokenizer.model")
    runs.write_config(folder, {"model": model_config(model), "settings": {"seed": 1}, "versions": {}})
    runs.save_model(folder, model)
    for lines_path in (folder.valid_source, folder.valid_target):
        lines_path.write_text("".join(f"{line}\n" for line in SENTENCES), encoding="utf-8")
    run = open_run(folder.path)
    assert isinstance(run.pipeline, Translator)
    expected = expected_of(run.pipeline, DECODING)
    best = [one for one, *_ in expected.hypotheses[:-1]]
    return Subject(name, folder.path, run, expected, gap_of(run.pipeline, best))


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


@pytest.mark.usefixtures("runs_here")
@pytest.mark.parametrize(("subject", "format", "precision"), list(cells()), indirect=["subject"])
def test_it_holds_or_is_refused_by_name(subject, format, precision, tmp_path, capsys):
    if name := REFUSED.get((format, subject.name)):
        out = tmp_path / "out"
        assert main([str(subject.folder), "--format", format, "--precision", precision, "--out", str(out)]) == 2
        message = capsys.readouterr().err
        assert f"{format} in {precision} can write only" in message and f"with {name} there" in message
        assert not out.exists()
    else:
        if (format, precision) == ("ctranslate2", "int8") and sums_overflow():
            pytest.skip("this processor has no VNNI: CTranslate2's 8-bit sums overflow")
        check_certificate(subject, format, precision, tmp_path)


def test_every_refusal_is_of_a_variant():
    assert {variant for _, variant in REFUSED} <= VARIANTS.keys()


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
