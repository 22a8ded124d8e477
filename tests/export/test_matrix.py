"""Every variant of the family × every artefact: its certificate holds, or the export refuses the variant by name.

A sample is marked `long`, the rest `full`. A new row of `family.SLOTS` is a new variant here.
"""

import json
import random
from collections import Counter
from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import keras
import pytest

from export.__main__ import FORMATS, check_parts, main, write_artefacts
from export.certificate import artefacts_in, certify, comparison, judgement, outputs, runner
from export.certificate.execution import Execution
from export.certificate.searches import ExpectedTranslations
from export.forms import Form, Searching, Translation
from export.probes import Texts
from export.signatures import NO_SUCH_PRECISION, PRECISIONS, Decoding, TrainedRun, Unwritable
from keras_transformer import family
from keras_transformer.decoding.translator import Translator
from keras_transformer.models import Transformer
from keras_transformer.text.tokenizer import Tokenizer
from tests.export.planted import keep_threads
from tests.export.sessions import sums_overflow
from tests.golden.stored import unpack
from tests.layer_check import randomize
from tests.tiny_text import lines

# Options that show a part's work in a model and in sentences so small.
SMALL = {
    "rotary": "rotary:base=100", "xpos": "xpos:scale_base=15", "buckets": "buckets:num_buckets=8,max_distance=6",
    "windowed": "windowed:width=3", "local": "local:width=3", "compressed": "compressed:width=4",
    "location": "location:max_length=6", "experts": "experts:num_experts=3",
}  # fmt: skip
OPTIONS = {"positions": ["sinusoidal:offset=2,interpolation=1.5"], "attention": ["full:num_key_value_heads=1"]}
COMBINED: dict[str, dict[str, str]] = {
    "Magneto and Llama": {
        "residual": "sub_norm", "norm": "rms:epsilon=1e-05", "feed_forward": "gated:use_bias=true",
        "activation": "silu", "positions": "rotary", "attention": "full:num_key_value_heads=1",
    },
    "unlike windows": {
        "attention": "windowed:width=4", "decoder_attention": "windowed:width=2", "positions": "xpos:scale_base=15",
        "residual": "pre_norm",
    },
    "windows and slopes": {"attention": "windowed:width=3", "positions": "alibi"},
    "blocks and slopes": {"attention": "local:width=3", "decoder_attention": "local:width=2", "positions": "alibi"},
    "a compressed decoder": {"decoder_attention": SMALL["compressed"], "residual": "sub_norm", "activation": "gelu"},
    "universal experts": {
        "stack": "universal:adaptive=false", "feed_forward": "experts:num_experts=3,gated=true", "positions": "none",
    },
    "general and grouped": {"score": "general", "attention": "full:num_key_value_heads=1", "positions": "alibi"},
}  # fmt: skip
# Of a stack whose layers differ, and of one that repeats its layer.
LAYERS = {"compressed": 2, "universal": 3}
# The variants that a format lacks a part for.
REFUSED = {
    "onnx": [
        "attention=local:width=3", "attention=compressed:width=4", "feed_forward=experts:num_experts=3",
        "stack=universal", "blocks and slopes", "a compressed decoder", "universal experts",
    ],
    "ctranslate2": [
        "positions=alibi", "positions=xpos:scale_base=15", "attention=windowed:width=3", "attention=local:width=3",
        "attention=compressed:width=4", "score=general", "score=additive", "score=location:max_length=6",
        "residual=sub_norm", "residual=none", "feed_forward=experts:num_experts=3", "stack=universal",
        "Magneto and Llama", "unlike windows", "windows and slopes", "blocks and slopes", "a compressed decoder",
        "universal experts", "general and grouped",
    ],
}  # fmt: skip
ARTEFACTS = [(format, one) for format in FORMATS for one in PRECISIONS if (format, one) not in NO_SUCH_PRECISION]


def variants() -> dict[str, dict[str, str]]:
    """The arguments of each variant, spelled as on a command line: each part alone, some options, some together."""
    found: dict[str, dict[str, str]] = {"the default": {}}
    for slot, parts in family.SLOTS.items():
        others = [SMALL.get(name, name) for name in list(parts)[1:]]
        found |= {f"{slot}={text}": {slot: text} for text in [*others, *OPTIONS.get(slot, [])]}
    return found | COMBINED


def written(variant: str) -> list[tuple[str, str]]:
    """The artefacts of a variant that are not refused."""
    return [artefact for artefact in ARTEFACTS if variant not in REFUSED.get(artefact[0], [])]


def sample() -> set[tuple[str, str, str]]:
    """Cells drawn by chance: every variant once, and every format in every precision about as often as any other."""
    draw, found, counts = random.Random(1), set(), Counter(ARTEFACTS)
    for variant in draw.sample([*VARIANTS], len(VARIANTS)):
        some = written(variant)
        chosen = min(draw.sample(some, len(some)), key=counts.__getitem__)
        counts[chosen] += 1
        found.add((variant, *chosen))
    return found


def cells() -> Iterator[Any]:
    """Variant × artefact, where it is not refused."""
    sampled = sample()
    for cell in ((variant, *artefact) for variant in VARIANTS for artefact in written(variant)):
        yield pytest.param(*cell, marks=pytest.mark.long if cell in sampled else pytest.mark.full, id="-".join(cell))


VARIANTS = variants()
DECODING = Decoding(3, 0.8, max_length=12)
# Random weights give ids of no text much probability. CTranslate2 leaves these out of its sums, which changes the
# order of its beams, but not what is likeliest.
GREEDY = replace(DECODING, num_beams=1, n_best=1)
SENTENCES = [*lines(5, 20), ""]


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


@lru_cache(1)  # the artefacts of a variant come one after the other
def translator_of(variant: str) -> Translator:
    """A translator with random weights."""
    keras.backend.clear_session()  # collects garbage
    vocabulary = Tokenizer.train(lines(0), 64, "bpe")  # of BPE vocabularies LiteRT takes ids alone
    return Translator(make_model(VARIANTS[variant], vocabulary.vocabulary_size), vocabulary)


@lru_cache(2)
def expected_of(translator: Translator, decoding: Decoding) -> ExpectedTranslations:
    """What a model gives for the sentences, with which all its artefacts are compared."""
    return ExpectedTranslations(Translation, translator, decoding, Texts([], [], SENTENCES), SENTENCES)


@pytest.fixture
def run(request, monkeypatch) -> TrainedRun:
    """A variant's run, whose artefacts run in this process, which has set its threads already."""
    keep_threads(monkeypatch)
    monkeypatch.setattr(comparison, "expected_of", lambda run, decoding, *_: expected_of(run.pipeline, decoding))
    monkeypatch.setattr(comparison, "run_artefact", lambda artefact, task: Execution(runner.run(task), ""))
    # A SavedModel's other signature, `n_best`, is the same model in another search, and takes as long to trace.
    monkeypatch.setattr(Searching, "signatures", Form.signatures)
    monkeypatch.setattr(outputs, "signatures_of", lambda artefact, form: [artefact.signature])
    # Random weights write words in pieces that nobody would guess from the text.
    monkeypatch.setitem(judgement.MOST_UNKNOWN, True, 0.25)
    if "experts" in str(VARIANTS[request.param]):  # rounding may send a position to another expert, in float16 too
        monkeypatch.setitem(judgement.BOUNDS, "float16", judgement.BOUNDS["int8"])
    return TrainedRun(translator_of(request.param))


def test_a_part_that_a_format_lacks_is_refused():
    for variant in {*REFUSED["onnx"], *REFUSED["ctranslate2"]}:
        model = make_model(VARIANTS[variant], 64)
        for format, refused in REFUSED.items():
            with pytest.raises(Unwritable, match=f"{format} in float16") if variant in refused else nullcontext():
                check_parts(model, [(format, "float16")])


def test_every_variant_and_every_artefact_is_in_the_sample():
    assert {cell[0] for cell in sample()} == VARIANTS.keys()
    assert {cell[1:] for cell in sample()} == {*ARTEFACTS}


@pytest.mark.parametrize(("run", "format", "precision"), list(cells()), indirect=["run"])
def test_its_certificate_holds(run, format, precision, tmp_path):
    if (format, precision) == ("ctranslate2", "int8") and sums_overflow():
        pytest.skip("this processor has no VNNI: CTranslate2's 8-bit sums overflow")
    decoding = GREEDY if format == "ctranslate2" else DECODING
    write_artefacts(run, tmp_path, decoding, [(format, precision)])
    takes = {"saved_model": "text", "ctranslate2": "pieces"}.get(format, "ids")
    (artefact,) = [one for one in artefacts_in(tmp_path) if one.takes == takes]
    (entry,) = certify(run, tmp_path, [artefact], decoding, SENTENCES, SENTENCES).entries
    assert entry.holds, entry.reason
    assert entry.verified == "translations" and entry.judgement is not None
    assert entry.judgement.measured.identical >= len(SENTENCES) / 3


@pytest.mark.full
def test_every_artefact_of_a_trained_variant_holds(tmp_path):
    """Weights that were learned, by which BLEU can be lost, and all files of each format."""
    flags = f"--format saved_model onnx tflite --precision float16 int8 --beams 2 --out {tmp_path}/out"
    assert main([str(unpack("modern", tmp_path / "run")), *flags.split()]) == 0
    entries = json.loads((tmp_path / "out" / "certificate.json").read_text(encoding="utf-8"))["entries"]
    assert len(entries) == 1 + 2 * 3 + 2 * 2
    assert min(entry["judgement"]["measured"]["model_bleu"] for entry in entries) > 5
