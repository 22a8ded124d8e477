"""Every variant of the family × every artefact: its certificate holds, or the export refuses the variant by name. A
folder in Hugging Face's format has no certificate: it translates as the model when it is imported again.

A sample is marked `long`, the rest `full`. A new row of `part_registry.SLOTS` is a new variant here.
"""

from collections.abc import Iterator
from contextlib import nullcontext
from dataclasses import replace
from functools import lru_cache
from typing import Any

import keras
import pytest

from export.__main__ import FORMATS
from export.artefacts import NO_SUCH_PRECISION, PRECISIONS, Decoding, TrainedRun, artefacts_in
from export.certificate import comparison, execution, judgement, runner
from export.certificate.comparison import certify
from export.certificate.comparison import expected_of as expected_of_run
from export.exporting import check_parts, write_artefacts
from export.hub_forms import FORMAT
from keras_transformer.checking.certificate_texts import Texts
from keras_transformer.checking.signatures import Signature
from keras_transformer.core.errors import RequestError
from keras_transformer.importing.huggingface import import_huggingface
from keras_transformer.models import Transformer
from keras_transformer.spec import model_spec, part_registry
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.tasks.translation.signature import Translation
from keras_transformer.text.tokenizer import Tokenizer
from tests.export.sessions import keep_threads, sums_overflow
from tests.layer_check import randomize
from tests.tiny_text import lines

# Options that show a part's work in a model and in sentences so small.
SMALL = {
    "rotary": "rotary:base=100", "xpos": "xpos:scale_base=15", "buckets": "buckets:num_buckets=8,max_distance=6",
    "windowed": "windowed:width=3", "local": "local:width=3", "compressed": "compressed:width=4",
    "location": "location:max_length=6", "experts": "experts:num_experts=3",
}  # fmt: skip
STRETCHED = "rotary:base=100,interpolation=4,original_length=12"
OPTIONS = {
    "positions": ["sinusoidal:offset=2,interpolation=1.5", STRETCHED], "attention": ["full:num_key_value_heads=1"],
}  # fmt: skip
# Of a stack whose layers differ, and of one that repeats its layer.
LAYERS = {"compressed": 2, "universal": 3}
# The variants that CTranslate2 lacks a part for.
WITHOUT_CTRANSLATE2 = [
    f"positions={STRETCHED}",
    "positions=alibi", "positions=xpos:scale_base=15", "attention=windowed:width=3", "score=general", "score=additive",
    "score=location:max_length=6", "residual=sub_norm", "residual=none",
    "attention=local:width=3", "attention=compressed:width=4", "feed_forward=experts:num_experts=3", "stack=universal",
]  # fmt: skip
# The variants that an architecture of Hugging Face's holds.
WITH_HUGGING_FACE = ["positions=sinusoidal", "activation=gelu", "activation=gelu_tanh", "activation=silu"]
ARTEFACTS = [(format, one) for format in FORMATS for one in PRECISIONS if (format, one) not in NO_SUCH_PRECISION]
CERTIFIED = [artefact for artefact in ARTEFACTS if artefact[0] != FORMAT]
# Each part alone, as on a command line; tests/golden has some together. The first part of a slot is the default.
VARIANTS = ["positions=sinusoidal"] + [
    f"{slot}={text}"
    for slot, parts in part_registry.SLOTS.items()
    for text in [*(SMALL.get(name, name) for name in [*parts][1:]), *OPTIONS.get(slot, [])]
]


REFUSED = {
    "ctranslate2": WITHOUT_CTRANSLATE2,
    FORMAT: [variant for variant in VARIANTS if variant not in WITH_HUGGING_FACE],
}


def written(variant: str) -> list[tuple[str, str]]:
    """The certified artefacts of a variant that are not refused."""
    return [artefact for artefact in CERTIFIED if variant not in REFUSED.get(artefact[0], [])]


def cells() -> Iterator[Any]:
    """Variant × artefact, where it is not refused. Every ninth is in the sample, for there are ten artefacts."""
    for number, cell in enumerate((variant, *artefact) for variant in VARIANTS for artefact in written(variant)):
        yield pytest.param(*cell, marks=pytest.mark.full if number % 9 else pytest.mark.long, id="-".join(cell))


DECODING = Decoding(3, 0.8, max_length=12)
# Random weights give ids of no text much probability. CTranslate2 leaves these out of its sums, which changes the
# order of its beams, but not what is likeliest.
GREEDY = replace(DECODING, num_beams=1, n_best=1)
SENTENCES = [*lines(5, 20), ""]


def make_model(variant: str, vocabulary_size: int) -> Transformer:
    """A small model with random weights."""
    slot, _, text = variant.partition("=")
    part: Any = model_spec.parse(text, slot, slot)
    keras.utils.set_random_seed(3)
    num_layers = LAYERS.get(part["name"], 1)
    model = Transformer(vocabulary_size, num_layers, 2, 16, 32, max_source_length=40, **{slot: part})
    randomize(model)
    return model


@lru_cache(1)  # the artefacts of a variant come one after the other
def translator_of(variant: str) -> Translator:
    """A translator with random weights."""
    keras.backend.clear_session()  # collects garbage
    vocabulary = Tokenizer.train(lines(0), 64, "bpe")  # of BPE vocabularies LiteRT takes ids alone
    return Translator(make_model(variant, vocabulary.vocabulary_size), vocabulary)


@lru_cache(2)
def expected_of(translator: Translator, decoding: Decoding) -> Any:
    """What a model gives for the sentences, with which all its artefacts are compared."""
    return expected_of_run(TrainedRun(translator), decoding, Texts([], [], SENTENCES), SENTENCES)


@pytest.fixture
def run(request, monkeypatch) -> TrainedRun:
    """A variant's run, whose artefacts run in this process, which has set its threads already."""
    keep_threads(monkeypatch)
    monkeypatch.setattr(comparison, "expected_of", lambda run, decoding, *_: expected_of(run.pipeline, decoding))
    monkeypatch.setattr(comparison, "run_artefact", lambda artefact, task: (runner.run(task), ""))
    # Other signatures are the same model in another search, and take as long to trace. ONNX has graphs that align.
    for name in ("signatures", "ids_signatures"):
        monkeypatch.setattr(Translation, name, getattr(Signature, name))
    monkeypatch.setattr(execution, "signatures_of", lambda artefact, form: [artefact.signature])
    # Random weights write words in pieces that nobody would guess from the text.
    monkeypatch.setitem(judgement.MOST_UNKNOWN, True, 0.25)
    if "experts" in request.param:  # rounding may send a position to another expert, in float16 too
        int8 = judgement.BOUNDS["int8"]
        monkeypatch.setitem(judgement.BOUNDS, "float16", int8)
        monkeypatch.setitem(judgement.BOUNDS, "int8", int8._replace(log_prob=2 * int8.log_prob))
    return TrainedRun(translator_of(request.param))


def test_a_part_that_a_format_lacks_is_refused():
    vocabulary = Tokenizer.train(lines(0), 64)
    for variant in VARIANTS:
        run = TrainedRun(Translator(make_model(variant, 64), vocabulary))
        for format, refused in REFUSED.items():
            message = f"{format} (in float16|has no architecture for this model)"
            with pytest.raises(RequestError, match=message) if variant in refused else nullcontext():
                check_parts(run, [(format, "float16")])


@pytest.mark.parametrize("variant", WITH_HUGGING_FACE)
def test_a_folder_for_transformers_translates_as_the_model(variant, tmp_path):
    translator = translator_of(variant)
    write_artefacts(TrainedRun(translator), tmp_path, GREEDY, [(FORMAT, "float32")])
    found = import_huggingface(tmp_path / FORMAT).translate(SENTENCES)
    assert found == translator.translate(SENTENCES, num_beams=1, max_length=12) and len({*found}) > 5


@pytest.mark.parametrize(("run", "format", "precision"), list(cells()), indirect=["run"])
def test_its_certificate_holds(run, format, precision, tmp_path):
    if (format, precision) == ("ctranslate2", "int8") and sums_overflow():
        pytest.skip("this processor has no VNNI: CTranslate2's 8-bit sums overflow")
    decoding = GREEDY if format == "ctranslate2" else DECODING
    write_artefacts(run, tmp_path, decoding, [(format, precision)])
    takes = {"saved_model": "text", "ctranslate2": "pieces"}.get(format, "ids")
    artefacts = [one for one in artefacts_in(tmp_path) if one.interface == takes]
    assert len(artefacts) == 1 + (format == "onnx")
    for entry in certify(run, tmp_path, artefacts, decoding, SENTENCES, SENTENCES).entries:
        assert entry.holds, entry.reason
        assert entry.verified == "translations" and entry.judgement is not None
        assert entry.judgement.measured.identical >= len(SENTENCES) / 3
