"""Models of transformers are imported: they have its logits, pieces, searches, texts, vectors and pixels.

What transformers made and computed is stored. With the marker `parity` it makes and computes everything anew.
"""

import json
import re
from collections import defaultdict
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from ml_dtypes import bfloat16

import keras_transformer
from keras_transformer.core.errors import RequestError
from keras_transformer.importing.folder import Options
from keras_transformer.importing.huggingface import ARCHITECTURES, read_huggingface
from keras_transformer.importing.weights import Imported
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.text.sentences import padded
from keras_transformer.text.tokenizer import END, START
from tests.importing.language_models import FOLDERS as OF_MANY_LANGUAGES
from tests.importing.text_models import FOLDERS
from tests.importing.theirs import (
    KINDS,
    MAX_LENGTH,
    OTHER_STARTS,
    SIZE,
    Maker,
    safetensors,
    tensors_of,
    unpack,
    words_of,
    write,
)


class Made(NamedTuple):
    """A model of theirs, what they compute with it, and ours."""

    folder: Path
    expected: dict[str, Any]
    imported: Imported
    pipeline: Any

    @property
    def ours(self) -> dict[int, int]:
        """For each id of theirs that is written, ours."""
        ids = self.imported.target.ids
        found = {id: place for place, id in reversed([*enumerate(ids)]) if place != START}
        return {ids[START]: START, **found}  # mostly a copy of another


@pytest.fixture(scope="module")
def made(request, tmp_path_factory) -> Made:
    kind, _, is_new = request.param.partition(" ")
    folder = tmp_path_factory.mktemp("models") / kind
    if is_new:
        pytest.importorskip("torch"), pytest.importorskip("transformers")
    expected = Maker(kind, folder).expected if is_new else unpack(kind, folder)
    return Made(folder, expected, read_huggingface(folder), keras_transformer.import_huggingface(folder))


def of(*names: str, with_variants: bool = True) -> Any:
    """The stored and the new models of these kinds, and of their variants, whose name goes on with a hyphen."""
    kinds = [kind for kind in KINDS if kind in names or (with_variants and kind.partition("-")[0] in names)]
    new = [pytest.param(f"{kind} anew", marks=pytest.mark.parity) for kind in kinds]
    return pytest.mark.parametrize("made", [*kinds, *new], indirect=True)


def line_of(ids: Any) -> str:
    return " ".join(map(str, ids))


def lines_of(made: Made) -> list[str]:
    """The sources as our translator takes them: without BART's start and end."""
    return made.expected.get("lines") or [line_of(row[1:-1]) for row in made.expected["sources"]]


@of("marian", "bart", "t5")
def test_logits_and_the_search_of_a_translator(made):
    ours, expected, targets = made.ours, np.array(made.expected["logits"]), made.expected["targets"]
    sources = made.pipeline.source_tokenizer.encode(lines_of(made)[: len(targets)])
    target_ids = np.array([[START, *(ours[id] for id in row)] for row in targets])
    inputs = {"source_ids": padded([[*ids, END] for ids in sources]), "target_ids": target_ids}
    logits = np.array(made.pipeline.model(inputs))
    theirs = sorted({*made.imported.target.ids})  # without the rows of T5's padding
    places = [ours[id] for id in theirs]
    np.testing.assert_allclose(logits[..., places], expected[..., theirs], rtol=1e-5, atol=2e-4)
    if copies := [place for place in range(END) if place not in ours.values()]:
        assert logits[..., copies].max() < expected.max(axis=-1).min() - 50, "copies of ids take no probability"
    assert made.imported.search == {"num_beams": 3, "length_penalty": 2.0, "max_length": MAX_LENGTH - 1}


@of("marian", "t5")
def test_pieces_and_texts(made):
    source, target = made.imported.source, made.imported.target
    for line, theirs in made.expected["pieces"].items():
        assert [source.ids[id] for id in [*source.tokenizer.encode([line])[0], END]] == theirs, line
    for line, theirs in made.expected.get("target_pieces", {}).items():
        assert [target.ids[id] for id in [*target.tokenizer.encode([line])[0], END]] == theirs, line
    for row, text in zip(made.expected["rows"], made.expected["written"], strict=True):
        assert target.tokenizer.decode([[made.ours[id] for id in row]]) == [text]


@of("marian", "bart", "t5", *OTHER_STARTS, with_variants=False)
def test_greedy_translations(made):
    """Some of theirs are forced to end."""
    lines, ids = lines_of(made), made.imported.target.ids
    is_bart = "lines" not in made.expected  # which both force to begin with 0
    num_finished, translations = 0, set()
    greedy = made.pipeline.n_best(lines, num_beams=1, max_length=MAX_LENGTH - 1)
    texts = made.expected.get("texts", lines)
    for (best,), theirs, text in zip(greedy, made.expected["greedy"], texts, strict=True):
        found, is_finished = [ids[id] for id in best.ids], best.ids[-1] == END
        num_finished += is_finished
        translations.add(best.text)
        if is_bart:
            assert best.text.split()[: len(theirs) - 1] == line_of(theirs[:-1]).split()
        elif is_finished:
            assert found == theirs
            assert re.sub(r" ?<extra_id_\d+>", "", best.text).strip() == text.strip()  # they leave sentinels out
        else:
            assert found[: MAX_LENGTH - 2] == theirs[: MAX_LENGTH - 2]
    assert num_finished > 0 and len(translations) > 3


@of("gpt2", "llama")
def test_logits_of_a_language_model(made):
    expected, ids = made.expected, made.imported.target.ids
    texts = [made.pipeline.tokenizer.encode_text(line_of(row[1:])) for row in expected["rows"]]
    logits = np.array(made.pipeline.model({"ids": np.array([[START, *row] for row in texts])}))
    places = [END if id == ids[END] else ids.index(id, START) for id in range(SIZE)]
    np.testing.assert_allclose(logits[..., places], expected["logits"], rtol=1e-5, atol=2e-4)
    copies = [place for place in range(END) if place not in places]
    assert logits[..., copies].max() < np.max(expected["logits"], axis=-1).min() - 50


@of("gpt2", "llama-grouped", with_variants=False)
def test_texts_of_a_language_model(made):
    expected = made.expected
    start = [] if made.pipeline.tokenizer.has_start else [expected["rows"][0][0]]
    prompts = [line_of([*start, *row]) for row in expected["prompts"]]
    found = made.pipeline.search(prompts, SearchOptions(num_beams=1), max_tokens=10)
    assert [best.text.strip() for best, *_ in found] == [line_of(row) for row in expected["greedy"]]
    assert len({best.text for best, *_ in found}) > 2
    score = made.pipeline.score(line_of(expected["rows"][1][1:]))
    assert score.log_prob == pytest.approx(expected["log_prob"], abs=1e-3)


@of("bert", "roberta", "distilbert")
def test_an_encoder_of_text(made):
    expected, words = made.expected, words_of(made.folder.name)
    lines = [" ".join(words[id] for id in row[1:-1]) for row in expected["rows"]]
    if "vectors" in expected:
        np.testing.assert_allclose(made.pipeline.embed(lines), expected["vectors"], atol=1e-4)
    elif made.imported.labels:
        assert made.pipeline.labels == ["crane", "dog", "owl"]
        powers = np.exp(expected["logits"])
        probabilities = powers / powers.sum(-1, keepdims=True)
        np.testing.assert_allclose(list(made.pipeline.probabilities(lines)), probabilities, atol=1e-5)
    else:
        logits = np.array(made.pipeline.model({"ids": padded([made.pipeline.ids(line) for line in lines])}))
        for found, theirs in zip(logits, expected["logits"], strict=True):
            theirs = np.array(theirs)
            np.testing.assert_allclose(found[: len(theirs)], theirs[:, made.imported.source.ids], atol=2e-4)


@of("vit")
def test_a_classifier_of_images(made):
    pixels = np.stack([made.pipeline.pixels(np.array(image, "uint8")) for image in made.expected["images"]])
    normal = np.array(made.pipeline.model.pixels(pixels)).transpose(0, 3, 1, 2)
    np.testing.assert_allclose(normal, made.expected["pixels"], atol=1e-4)
    np.testing.assert_allclose(np.array(made.pipeline.model({"images": pixels})), made.expected["logits"], atol=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_options_that_are_left_out_have_the_values_of_theirs(kind, tmp_path):
    options = unpack(kind, tmp_path)["options"]
    whole = json.loads((tmp_path / "config.json").read_text())
    expected = read_huggingface(tmp_path).config
    (tmp_path / "config.json").write_text(json.dumps({name: whole[name] for name in ("model_type", *options)}))
    assert read_huggingface(tmp_path).config == expected


# Options that are read and cannot be compared: of training, of lengths and pixels, those that tensors or tokenizers
# tell too, and an older spelling.
NOT_COMPARED = {
    "attention_dropout", "attention_probs_dropout_prob", "attn_pdrop", "dropout", "dropout_rate", "hidden_dropout_prob",
    "resid_pdrop", "n_positions", "num_channels", "tie_word_embeddings", "bos_token_id", "decoder_start_token_id",
    "eos_token_id", "pad_token_id", "rope_theta",
}  # fmt: skip


@pytest.mark.parity
def test_every_option_that_is_read_is_set_where_transformers_is_compared(tmp_path, monkeypatch):
    transformers = pytest.importorskip("transformers")
    read, compared = defaultdict[str, set[str]](set), defaultdict[str, set[str]](set)
    checked = Options._checked

    def noted(self: Options, name: str, *rest: Any) -> Any:
        read[config.model_type] |= {name} if self.where.endswith("/config.json") else set()
        return checked(self, name, *rest)

    monkeypatch.setattr(Options, "_checked", noted)
    for kind, make in ({kind: partial(write, kind) for kind in KINDS} | OF_MANY_LANGUAGES).items():
        (tmp_path / kind).mkdir()
        make(tmp_path / kind)
        config = transformers.AutoConfig.from_pretrained(str(tmp_path / kind))
        default = type(config)().to_dict()
        compared[config.model_type] |= {name for name, value in config.to_dict().items() if value != default.get(name)}
        read_huggingface(tmp_path / kind)
    compared["mt5"] |= compared["t5"]  # which are read alike, as RoBERTa and XLM-R are
    assert {*ARCHITECTURES} - {*read} == {"xlm-roberta"}
    for architecture, names in read.items():
        assert names - compared[architecture] - NOT_COMPARED == set(), architecture


@pytest.mark.parity
@pytest.mark.parametrize("kind", FOLDERS)
def test_two_files_of_a_tokenizer_say_the_same_or_are_refused(kind, tmp_path):
    """transformers takes what tokenizer_config.json says, where tokenizer.json says something else."""
    transformers = pytest.importorskip("transformers")
    FOLDERS[kind](tmp_path)
    path, num_refused = tmp_path / "tokenizer_config.json", 0
    whole = json.loads(path.read_text()) | {"tokenizer_class": "LlamaTokenizer"}
    if kind != "llama":
        del whole["tokenizer_class"]  # the architecture's then
    names = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space")
    said: list[dict[str, Any]] = [{name: value} for name in names for value in (True, False)]
    for options in [{}, {"additional_special_tokens": ["<sep>"]}, *said]:
        path.write_text(json.dumps({**whole, **options}))
        theirs: Any = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
        try:
            ours: Any = read_huggingface(tmp_path).source.tokenizer
        except RequestError:
            num_refused += 1
            continue
        for line in ("the dogs", "THE Dogs", "Zürich, é", "日本語 the", "the <sep> dogs"):
            assert ours.library.encode(line).ids == theirs(line)["input_ids"], (options, line)
    assert 0 < num_refused < len(said)


@pytest.mark.parametrize("dtype", ["float64", "float16", bfloat16])
def test_types_of_numbers(dtype, tmp_path):
    arrays = tensors_of(write("gpt2", tmp_path))
    (tmp_path / "model.safetensors").write_bytes(safetensors(arrays, dtype))
    for name, array in tensors_of(tmp_path).items():
        np.testing.assert_allclose(array, arrays[name], rtol=0 if dtype == "float64" else 0.01)
