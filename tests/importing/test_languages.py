"""Models of many languages are imported: they read and write as those of transformers."""

import json
import re
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_transformer
from export.artefacts import TrainedRun, between
from export.certificate.comparison import expected_of
from keras_transformer.__main__ import main
from keras_transformer.checking.certificate_texts import Texts
from keras_transformer.core.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.importing.many_languages import sinusoids
from keras_transformer.importing.sentencepiece_rewrite import fixed_logits
from keras_transformer.runs.run_folder import RunFolder, read_config
from keras_transformer.spec.search_options import Decoding, penalty
from keras_transformer.text.datasets import datasets_from_files
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import END, START, UNKNOWN
from tests.answers import answer, refused
from tests.importing.language_models import (
    FOLDERS,
    M2M_TAGS,
    NLLB_TAGS,
    TAGS,
    TEXT,
    greedy,
    logits_agree,
    tokenizer_of_m2m,
    write_m2m_tokenizer,
)
from tests.importing.theirs import SIDES, change, safetensors, tensors_of, write

LINES = [*TEXT[:4], *TEXT[-3:], "☃ snow"]
LONGEST = 12
NAMED = {"m2m": M2M_TAGS, "nllb": NLLB_TAGS}


def pieces_of(folder: Path) -> Any:
    """Their tokenizer, SentencePiece itself where the folder has its model: that of transformers 5 has no bytes."""
    sentencepiece = pytest.importorskip("sentencepiece")
    return sentencepiece.SentencePieceProcessor(model_proto=(folder / "spiece.model").read_bytes())


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["mt5", "madlad"])
def test_the_forms_of_t5_for_many_languages(kind, tmp_path, eager):
    _, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = FOLDERS[kind](tmp_path)
    imported, theirs = read_huggingface(tmp_path), pieces_of(tmp_path)
    vocabulary = imported.source
    tags = TAGS if kind == "madlad" else [""]
    texts = [f"{tags[place % len(tags)]} {line}".strip() for place, line in enumerate(LINES)]
    end = vocabulary.ids[END]
    rows = [[*theirs.encode(line), end] for line in texts]
    for line, row in zip(texts, rows, strict=True):
        assert [vocabulary.ids[id] for id in [*vocabulary.tokenizer.encode([line])[0], END]] == row, line
    logits_agree(imported, model, rows[:4])
    translator: Any = keras_transformer.import_huggingface(tmp_path)
    padding = range(theirs.vocab_size(), model.config.vocab_size)
    never = {*vocabulary.ids[: imported.config["num_control_ids"]], *padding}
    expected = greedy(model, rows, never - {end}, LONGEST)
    assert len({*map(tuple, expected)}) > 3
    for (best,), found in zip(translator.n_best(texts, num_beams=1, max_length=LONGEST), expected, strict=True):
        assert [vocabulary.ids[id] for id in best.ids][: LONGEST - 1] == found
    if kind == "madlad":
        place = {tag: vocabulary.ids.index(theirs.piece_to_id(tag)) for tag in TAGS}
        assert vocabulary.tokenizer.tags == place
        for tag in TAGS:
            assert place[tag] in vocabulary.tokenizer.encode([f"{tag} the sea"])[0][:2]
        tokenizer: Any = transformers.T5Tokenizer.from_pretrained(str(tmp_path))
        (tmp_path / "spiece.model").unlink()
        tokenizer.save_pretrained(str(tmp_path))
        alone = read_huggingface(tmp_path).source
        assert alone.ids == vocabulary.ids and alone.tokenizer.tags == place
        assert alone.tokenizer.encode(texts) == vocabulary.tokenizer.encode(texts)


@pytest.mark.parity
def test_an_mt5_is_tied_if_its_matrices_are_the_same(tmp_path):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    FOLDERS["mt5"](tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    assert "lm_head.weight" in tensors_of(tmp_path) and not read_huggingface(tmp_path).config["tied_output"]
    for ties in (False, True):
        change(tmp_path, "config.json", **{**whole, "tie_word_embeddings": ties})
        imported = read_huggingface(tmp_path)
        assert not imported.config["tied_output"]
        [gain] = [each for each in imported.weights.table if each.ours == "decoder_stack.norm.scale"]
        assert gain.factor == 1, "an mT5 divides no states"


def tokenizer_of(kind: str, folder: Path) -> Any:
    """Their tokenizer, with their list of codes cut down to ours."""
    import transformers

    if not kind.startswith("m2m"):
        made: Any = transformers.MBart50Tokenizer if kind.startswith("mbart") else transformers.NllbTokenizer
        return made.from_pretrained(str(folder))
    return tokenizer_of_m2m(folder)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["m2m", "m2m-saved", "nllb", "nllb-alone", "mbart", "mbart-alone"])
def test_pieces_logits_and_translations_between_languages(kind, tmp_path, eager):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = FOLDERS[kind](tmp_path)
    theirs = tokenizer_of(kind, tmp_path)
    imported = read_huggingface(tmp_path)
    source = imported.source
    codes = [*theirs.lang_code_to_id] if "mbart" in kind else [tag.strip("_") for tag in NAMED[kind.partition("-")[0]]]
    assert [*imported.language_tags] == codes
    rows = []
    for place, line in enumerate(LINES):
        theirs.src_lang = codes[place % 3]
        rows.append(theirs(line)["input_ids"])
        tag = source.tokenizer.encode([imported.language_tags[codes[place % 3]]])[0]
        assert [source.ids[id] for id in [*tag, *source.tokenizer.encode([line])[0], END]] == rows[-1], line
    logits_agree(imported, model, rows[:4])
    translator: Any = keras_transformer.import_huggingface(tmp_path)
    translator.save(tmp_path / "run")
    never = {*source.ids[: END + 1], *range(max(source.ids) + 1, model.config.vocab_size)} - {source.ids[END]}
    for one in (translator, keras_transformer.load(tmp_path / "run", engine="keras")):
        texts = set[str]()
        for place, (line, row) in enumerate(zip(LINES, rows, strict=True)):
            languages = codes[place % 3], codes[(place + 1) % 3]
            tag = theirs.convert_tokens_to_ids(imported.language_tags[languages[1]])
            [found] = greedy(model, [row], never, LONGEST, forced_bos_token_id=tag)
            [[best]] = one.between(*languages).n_best([line], num_beams=1, max_length=LONGEST, split="off")
            assert [source.ids[id] for id in best.ids][: LONGEST - 1] == found
            text = theirs.decode([source.ids[id] for id in best.ids[1:]], skip_special_tokens=True)
            assert best.text == text.strip()
            texts.add(text)
            theirs.tgt_lang = languages[1]
            label = [*one.between(*languages).direction.target, *one.target_tokenizer.encode([line])[0], END]
            assert [source.ids[id] for id in label] == theirs(text_target=line)["input_ids"]
        assert len(texts) > 3


def folder_without_transformers(folder: Path, is_mbart: bool = False) -> Path:
    """A folder of M2M-100 or mBART-50 with random weights: BART's tensors, some for mBART alone, and two norms more."""
    size, width = write_m2m_tokenizer(folder) + 3, SIDES["d_model"]
    shapes = {name: tensor.shape for name, tensor in tensors_of(write("bart", folder / "bart")).items()}
    shutil.rmtree(folder / "bart")
    norms = [f"model.{stack}.layer_norm.{part}" for stack in ("encoder", "decoder") for part in ("weight", "bias")]
    shapes |= {"model.shared.weight": (size, width), **dict.fromkeys(norms, (width,))}
    of_bart = "final_logits_bias" if is_mbart else "final_logits_bias|embed_positions|layernorm_embedding"
    draw = np.random.default_rng(1)
    tensors = {name: draw.normal(size=shape) for name, shape in shapes.items() if not re.search(of_bart, name)}
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    kind: Any = {"model_type": "mbart" if is_mbart else "m2m_100", "max_position_embeddings": 28 if is_mbart else 64}
    config = {**SIDES, **kind, "vocab_size": size, "activation_function": "relu"}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_that_names_no_languages_is_refused(tmp_path):
    folder = folder_without_transformers(tmp_path)
    found = read_huggingface(folder)
    assert [*found.language_tags] == ["de", "en", "ast"] and found.config["embedding_scale"] is None
    size = json.loads((folder / "config.json").read_text())["vocab_size"]
    change(folder, "special_tokens_map.json", additional_special_tokens=["<mask>"])
    with pytest.raises(RequestError, match="expected tags of languages, such as eng_Latn or __en__, in tokenizer.json"):
        read_huggingface(folder)
    change(folder, "special_tokens_map.json", additional_special_tokens=["__en__", "__fr__"])
    assert [*read_huggingface(folder).language_tags] == ["en", "fr"], "as the message says"
    for tokens in ({"__en__": 3}, {"__en__": size}, {"__en__": "9"}):
        (folder / "added_tokens.json").write_text(json.dumps(tokens))
        with pytest.raises(RequestError, match=f"expected an id below {size} for each piece and each tag"):
            read_huggingface(folder)
    (folder / "sentencepiece.bpe.model").unlink()
    with pytest.raises(RequestError, match="expected a file tokenizer.json"):
        read_huggingface(folder)


def test_the_tensors_of_mbart_50_are_read(tmp_path):
    imported = read_huggingface(folder_without_transformers(tmp_path, is_mbart=True))
    assert [*imported.language_tags] == ["de", "en", "ast"]
    positions = {"name": "learned", "offset": 2, "separate": True}
    assert imported.config["positions"] == positions and imported.config["embedding_scale"] == 1
    model, tensors = imported.model(), tensors_of(tmp_path)
    for ours, theirs in (
        (model.positions.decoder_embeddings, "model.decoder.embed_positions.weight"),
        (model.source_norm.gamma, "model.encoder.layernorm_embedding.weight"),
        (model.decoder_stack.norm.beta, "model.decoder.layer_norm.bias"),
    ):
        np.testing.assert_array_equal(np.array(ours)[: len(tensors[theirs])], tensors[theirs])


@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("config.json", {"decoder_start_token_id": 80}),
        ("generation_config.json", {"decoder_start_token_id": 80}),
        ("tokenizer_config.json", {"tokenizer_class": "MBartTokenizer"}),
        ("tokenizer_config.json", {"legacy_behaviour": True}),
    ],
)
def test_a_model_with_tags_behind_its_sources_is_refused(name, options, tmp_path):
    folder = folder_without_transformers(tmp_path, is_mbart=True)
    change(folder, "config.json", decoder_start_token_id=2)
    assert read_huggingface(folder).target.ids[START] == 2
    change(folder, name, **options)
    with pytest.raises(RequestError, match="whose sources begin with the tag .* as that of mBART for 25 languages"):
        read_huggingface(folder)


def test_only_copies_of_ids_take_no_probability():
    madlad, bart, t5 = [1, 0, 0, 2, 3], [1, 1, 2, 2, 0], [0, 2, 0, 1, 3]  # pad, unknown, start, end, and a piece
    assert [[*fixed_logits(ids)] for ids in (madlad, bart, t5)] == [[START], [UNKNOWN, START], [START]]
    assert [*fixed_logits([1, 3, 2, 2, 0, 3])] == [START, 5], "a piece without an id of its own has the unknown one's"


def test_sinusoids_begin_at_2_and_their_exponents_reach_1():
    found = sinusoids(5, 6)
    angles = np.arange(5)[:, None] * np.array([1.0, 0.01, 0.0001])
    np.testing.assert_allclose(found, np.concatenate([np.sin(angles), np.cos(angles)], axis=1), atol=1e-7)
    assert sinusoids(3, 7)[:, -1].tolist() == [0, 0, 0] and sinusoids(2, 2).shape == (2, 2)


def test_commands_name_the_languages(tmp_path, eager):
    folder = folder_without_transformers(tmp_path / "model")
    assert main(["import", str(folder), str(tmp_path / "run")]) == 0
    translator: Any = keras_transformer.import_huggingface(folder)
    run, lines = str(tmp_path / "run"), ["the dogs", "", "the sea"]
    assert read_config(tmp_path / "run").language_tags == translator.language_tags
    expected = translator.between("en", "de").translate(lines, max_length=6)

    def answered(*flags: str) -> tuple[int, str, str]:
        return answer("translate", run, "--max-length", 6, *flags, stdin="\n".join(lines))

    for engine in ("keras", "onnx"):
        code, out, _ = answered("--source-language", "en", "--target-language", "de", "--engine", engine)
        assert code == 0 and out.splitlines() == expected
    graphs = {*(tmp_path / "run").rglob("*.onnx")}
    for source, target in (("de", "ast"), ("ast", "en")):
        others = translator.between(source, target).translate(lines, max_length=6)
        code, out, _ = answered("--source-language", source, "--target-language", target, "--engine", "onnx")
        assert code == 0 and out.splitlines() == others
    assert len(graphs) == 1 and {*(tmp_path / "run").rglob("*.onnx")} == graphs, "one graph serves all languages"
    loaded = keras_transformer.load(run)
    assert "in ONNX Runtime" in repr(loaded)
    for num_beams in (1, None):
        pair = (each.between("en", "ast") for each in (loaded, translator))
        one, other = (each.translate(lines, max_length=6, num_beams=num_beams) for each in pair)
        assert one == other != expected
    with pytest.raises(RequestError, match="name those that are meant by --source-language and --target-language"):
        loaded.translate("sea")
    code, _, told = answered("--source-language", "en")
    assert code == 2 and "this model translates between 3 languages, such as de, en, ast: name those" in told
    assert "by --target-language" in told
    code, _, told = answered("--source-language", "eng", "--target-language", "de")
    assert code == 2 and "one of the model's 3 languages, such as en, de, ast; received 'eng'" in told
    for name, text in (("s", lines), ("t", ["die hunde", "", "das meer"])):
        (tmp_path / name).write_text("".join(f"{line}\n" for line in text))
    sides = ["--source-language", "en", "--target-language", "de", "--source", str(tmp_path / "s")]
    assert main(["evaluate", run, *sides, "--reference", str(tmp_path / "t"), "--engine", "keras"]) == 0
    assert main(["score", run, *sides, "--target", str(tmp_path / "t")]) == 0
    assert main(["score", run, *sides[4:], "--target", str(tmp_path / "t")]) == 2


def test_tags_stand_before_sources_and_translations(tmp_path, eager):
    translator: Any = keras_transformer.import_huggingface(folder_without_transformers(tmp_path))
    both = translator.between("ast", "en")
    tokenizer = translator.source_tokenizer
    (ast,), (en,) = tokenizer.encode(["__ast__", "__en__"])
    assert both.direction == ([ast], [en]) and both.learned_text.target_language == "en"
    given: list[Any] = []
    search = both.decoder.search

    def kept(arrays: Any, options: Any) -> Any:
        given.append(arrays)
        return search(arrays, options)

    both.decoder.search = kept
    [[best]] = both.n_best(["the dogs"], prefixes=["sea"], num_beams=2)
    [row] = given[0].source_ids.tolist()
    assert row == [ast, *tokenizer.encode(["the dogs"])[0], END]
    prefix = [en, *translator.target_tokenizer.encode(["sea"])[0]]
    assert [*best.ids[: len(prefix)]] == prefix and best.text.startswith("sea")
    assert translator.target_tokenizer.decode([[en, *prefix]]) == ["sea"], "a tag is no text of a translation"
    [short] = both.n_best(["the dogs " * 400], num_beams=1, max_length=3, split="off")
    assert given[1].source_ids.shape[1] == both.max_source_length + 1 and short
    looked_at = both.attention("the dogs", "sea")["cross"].keys.labels
    assert [*looked_at] == tokenizer.pieces(row)
    with pytest.raises(RequestError, match="such as de, en, ast: name those .* --source-language and --target-lang"):
        translator.translate("the dogs")
    plain = keras_transformer.Translator(translator.model, tokenizer)
    with pytest.raises(RequestError, match="--target-language 'en' is for .* this one .* from one language to another"):
        plain.between(None, "en")
    plain = keras_transformer.Translator(translator.model, tokenizer, source_language="en", target_language="de")
    with pytest.raises(RequestError, match="--source-language 'de' is for .* from en to de alone: leave it out"):
        plain.between("de", None)
    assert plain.between("en", None).learned_text == plain.learned_text, "it is what it does"


@pytest.mark.parametrize(
    "sampling", [pytest.param([], marks=pytest.mark.long), ["--sampling", "0.1", "--max-length", "40"]]
)
def test_fine_tuning_puts_the_tags_before_its_text(sampling, tmp_path, eager, monkeypatch, capsys):
    assert main(["import", str(folder_without_transformers(tmp_path / "model")), str(tmp_path / "run")]) == 0
    run: Any = keras_transformer.load(tmp_path / "run", engine="keras").between("en", "ast")
    sides = ["the dogs " * 3, "the sea", "a dog"] * 9, ["die hunde " * 3, "das meer", "ein hund"] * 9
    for name, side in zip("st", sides, strict=True):
        (tmp_path / name).write_text("".join(f"{line.strip()}\n" for line in side))
    monkeypatch.chdir(tmp_path)
    data = "--init-from run --source s --target t --out tuned --steps 2 --devices cpu --token-budget 64"

    def train(flags: str) -> tuple[int, str]:
        return main(["train", *f"{data} --bleu-sentences 2 {flags}".split(), *sampling]), capsys.readouterr().err

    status, told = train("--source-language en")
    assert status == 2 and "name those that are meant by --target-language" in told
    status, told = train("--source-language en --target-language xx")
    assert status == 2 and "one of the model's 3 languages" in told and not Path("tuned").exists()
    status, told = train("--source-language en --target-language ast")
    assert status == 0, told
    tokens = TokenizedCorpus.open(RunFolder("tuned").cache / "train")
    rows = np.arange(len(tokens))
    for ids, tags in zip((tokens.source_ids, tokens.labels), run.direction, strict=True):
        assert ids(rows, len(rows), 99)[:, 0].tolist() == tags * len(rows)
    pairs = datasets_from_files("s", "t", *run.tokenizers, first_ids=run.direction, cache="cache")
    plain = datasets_from_files("s", "t", *run.tokenizers, cache="cache")
    for batches, tags in ((pairs, run.direction), (plain, ([], []))):
        for inputs, labels, weights in batches[0]:
            for ids, tag in zip((inputs["source_ids"], labels), tags, strict=True):
                first = np.array(ids)[np.array(weights)[:, 0] > 0, 0]
                assert {*first.tolist()} == {*tag} if tag else not {*first.tolist()} & {*map(int, run.direction.source)}
    tuned: Any = keras_transformer.load("tuned", engine="keras")
    expected = tuned.translate(["the sea"], max_length=6)
    assert tuned.between("en", "ast").translate(["the sea"], max_length=6) == expected
    assert tuned.language_tags == run.language_tags
    score = read_config("tuned").weights
    assert train("--source-language en --target-language ast --resume --steps 3")[0] == 0, score


def test_a_run_with_damaged_tags_is_refused(tmp_path, eager):
    folder = folder_without_transformers(tmp_path / "model")
    assert main(["import", str(folder), str(tmp_path / "run")]) == 0
    for tags in (["de"], {"de": 1}, {"de": ""}, {"de": "x" * 41}):
        change(tmp_path / "run", "config.json", language_tags=tags)
        with pytest.raises(RequestError, match="expected (an object|1 to 40 char.*) under 'language_tags"):
            read_config(tmp_path / "run")
    change(tmp_path / "run", "config.json", language_tags={"de": "the dogs"})
    with pytest.raises(RequestError, match="no piece for the tag of de"):
        keras_transformer.load(tmp_path / "run", engine="keras").between("de", "de").translate("sea")


@pytest.mark.parity
def test_a_folder_may_name_the_languages_that_are_meant(tmp_path):
    pytest.importorskip("torch"), pytest.importorskip("transformers")
    FOLDERS["nllb-alone"](tmp_path)
    assert read_huggingface(tmp_path).languages is None
    tag = next(each["id"] for each in json.loads((tmp_path / "tokenizer.json").read_text())["added_tokens"][::-1])
    change(tmp_path, "generation_config.json", forced_bos_token_id=tag)
    assert read_huggingface(tmp_path).languages == ("eng_Latn", "zho_Hans")
    change(tmp_path, "tokenizer_config.json", src_lang="zho_Hans")  # which transformers writes where none was meant
    assert read_huggingface(tmp_path).languages is None, "no translation is into its own language"
    change(tmp_path, "generation_config.json", forced_bos_token_id=5)
    with pytest.raises(RequestError, match="forced_bos_token_id"):
        read_huggingface(tmp_path)


@pytest.mark.long
def test_an_export_translates_in_the_direction_that_is_named(tmp_path, eager, capsys):
    translator: Any = keras_transformer.import_huggingface(folder_without_transformers(tmp_path / "model"))
    translator.save(tmp_path / "run")
    (tmp_path / "lines").write_text("".join(f"{line}\n" for line in LINES))
    flags = [str(tmp_path / "run"), "--out", str(tmp_path / "out"), "--sentences", str(tmp_path / "lines")]
    assert "name those that are meant by --source-language and --target-language" in refused("export", *flags)
    sides = ["--source-language", "en", "--target-language", "ast"]
    options = ["--format", "saved_model", "onnx", "tflite", "--beams", "2", "--max-length", "5", "--n-best", "2"]
    assert main(["export", *flags, *sides, *options]) == 0, capsys.readouterr().err
    between = translator.between("en", "ast")
    found = keras_transformer.load(tmp_path / "out")
    assert found.direction == between.direction and found.learned_text.target_language == "ast"
    expected = between.n_best(LINES, num_beams=2, max_length=5)
    for ours, theirs in zip(expected, found.n_best(LINES, num_beams=2, max_length=5), strict=True):
        assert [one.ids for one in ours] == [one.ids for one in theirs] and ours[0].text == theirs[0].text
    assert {row[0].ids[0] for row in expected if row[0].text} == {*between.direction.target}
    assert main(["export", "--verify", str(tmp_path / "out"), str(tmp_path / "run"), *flags[3:]]) == 0
    assert main(["export", "--verify", str(tmp_path / "out")]) == 0


def test_a_certificate_counts_the_tag_of_a_translation_that_the_model_did_not_find(tmp_path, eager):
    translator: Any = keras_transformer.import_huggingface(folder_without_transformers(tmp_path))
    run, decoding = between(TrainedRun(translator), "en", "ast"), Decoding(2, 0.6, 5, n_best=2)
    expected: Any = expected_of(run, decoding, Texts([], [], ["the dogs", "the sea"]), None)
    assert all(expected.narrowest_choice(place).piece > 1 for place in (0, 1)), "the tag is no choice"
    pipeline: Any = run.pipeline
    [scored] = pipeline.score(["the dogs"], ["sea"])
    assert "sea" not in [one.text for one in expected.hypotheses[0]]
    score = scored.log_prob / penalty(scored.num_tokens, 0.6)
    [compared] = expected.compare([0], [{"translation": "sea", "score": score}])
    assert compared.is_known and abs(compared.score_error) + compared.guess_error < 1e-5
