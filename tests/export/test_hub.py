"""A run in Hugging Face's format is the run: for our import, and for transformers (marked `parity`)."""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import keras_transformer
from export.__main__ import main
from export.artefacts import Decoding, TrainedRun
from export.hub import export_huggingface, probes
from export.hub_text import tokenizer_json
from keras_transformer.core.errors import RequestError
from keras_transformer.importing.huggingface import import_huggingface, read_huggingface
from keras_transformer.models.model_factory import model_config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, START, Tokenizer
from tests.export.hub_models import GENERATES, MODELS, T5, TRANSLATES, json_of, make_run
from tests.golden.stored import unpack
from tests.tiny_text import lines

DECODING = Decoding(num_beams=3, length_penalty=0.8, max_length=12)
ARRAYS = "model.safetensors"


class Made(NamedTuple):
    """A run, and the folder that was written of it."""

    name: str
    run: TrainedRun
    folder: Path


@pytest.fixture(scope="module")
def made(request, tmp_path_factory) -> Made:
    run = make_run(MODELS[request.param])
    decoding = DECODING if run.pipeline.own_search is not None else None
    (folder,) = export_huggingface(run, tmp_path_factory.mktemp("hub"), decoding)
    return Made(request.param, run, folder)


def of(*names: str) -> Any:
    """The models of these architectures."""
    return pytest.mark.parametrize("made", [one for one in MODELS if one.split()[0] in names], indirect=True)


EVERY = of(*{name.split()[0] for name in MODELS})


@EVERY
def test_the_import_reads_the_model_that_was_written(made):
    """The export itself has compared the logits of ids that may be written."""
    found, config = read_huggingface(made.folder), model_config(made.run.model)
    assert json_of(made.folder / "config.json")["model_type"] == made.name.split()[0]
    assert found.labels == [*made.run.pipeline.names]
    if found.vocabularies:
        ends = [np.atleast_1d(one.get("end_ids", END)) for one in (found.config, config)]
        assert [found.target.ids[id] for id in ends[0]] == [*ends[1]]


@of("t5", "vit")
def test_a_model_that_was_imported_is_written_as_it_came(made, tmp_path):
    again = made.run.__class__(import_huggingface(made.folder))
    (folder,) = export_huggingface(again, tmp_path)
    assert (folder / ARRAYS).read_bytes() == (made.folder / ARRAYS).read_bytes()


@of("marian", "t5")
def test_pieces_and_the_search_come_back(made):
    pipeline = import_huggingface(made.folder)
    assert pipeline.search == {"num_beams": 3, "length_penalty": 0.8, "max_length": 12}
    ours = made.run.pipeline
    some = [*lines(7, 12), "", "☃ the sea"]
    assert pipeline.source_tokenizer.encode(some) == ours.source_tokenizer.encode(some)
    if made.name.startswith("marian"):
        assert (pipeline.learned_text.source_language, pipeline.target_language) == ("en", "de")


def test_an_embedding_of_its_own_scale_is_the_same_function(tmp_path):
    """GPT-2 has no factor on embeddings, so its matrix holds it, and the last norm takes it back."""
    run = make_run({**MODELS["gpt2"], "embedding_scale": 7.0})
    (folder,) = export_huggingface(run, tmp_path)
    file = read_huggingface(folder).weights.file
    np.testing.assert_allclose(file.read("transformer.wte.weight"), 7 * np.array(run.model.embedding.embeddings), 1e-6)
    np.testing.assert_allclose(file.read("transformer.ln_f.weight"), np.array(run.model.stack.norm.gamma) / 7, 1e-6)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"positions": "rotary", "residual": "pre_norm"},
            "has positions sinusoidal, not rotary; residual post_norm, not",
        ),
        ({"score": "general"}, "marian, has score scaled_dot, not general"),
        ({"attention": {"name": "windowed"}}, "marian, has attention full:num_key_value_heads=2, not windowed: train"),
        ({"embedding_scale": 3.0}, "marian, has embedding_scale 4.0, not 3.0"),
        (
            {**T5, "feed_forward": {"name": "gated", "use_bias": True}, "activation": "silu"},
            "has feed_forward gated, not gated:use_bias",
        ),
        ({**T5, "feed_forward": "plain"}, "t5 has no place for the weight .*feed_forward.*, which is not 0"),
        ({"norm": {"name": "layer", "epsilon": 0.1}}, "as marian the model has other logits.* 1e-05 there, and of 0.1"),
        ({**GENERATES}, "gpt2, has residual pre_norm, not post_norm"),
        ({**MODELS["gpt2"], "output_bias": True}, "gpt2 has no place for the weight .*bias, which is not 0"),
        ({**MODELS["llama"], "attention_bias": True}, "llama, has attention_bias False, not True"),
        ({**MODELS["vit"], "stem": "attentive"}, "vit, has stem patches, not attentive"),
        ({**MODELS["bert labels"], "head_layer": False}, "bert, has head_layer True, not False"),
        ({**MODELS["bert labels"], "head_activation": "gelu"}, "bert, has head_activation None, not gelu"),
    ],
)
def test_what_has_no_form_there_is_refused_by_name(changes, message, tmp_path):
    run = make_run(changes if "kind" in changes else {**TRANSLATES, **changes})
    with pytest.raises(RequestError, match=message):
        export_huggingface(run, tmp_path)
    assert not [*tmp_path.iterdir()]


def test_biases_that_an_architecture_lacks_may_be_there_if_they_are_0(tmp_path):
    run = make_run({**T5, "feed_forward": "plain"})
    for stack in (run.model.encoder_stack, run.model.decoder_stack):
        for block in stack.blocks:
            for bias in (block.feed_forward.bias_in, block.feed_forward.bias_out):
                bias.assign(0 * bias)
    assert json_of(export_huggingface(run, tmp_path)[0] / "config.json")["feed_forward_proj"] == "relu"


def test_the_command_writes_the_folder_without_a_certificate_and_refuses_first(tmp_path, capsys):
    run, out = unpack("translation", tmp_path / "run"), tmp_path / "out"
    flags = ["--format", "huggingface", "--out", str(out)]
    assert main([str(run), *flags, "--beams", "2", "--max-length", "9"]) == 0
    assert {path.name for path in out.iterdir()} == {"huggingface", "tokenizer.model"}
    search = json_of(out / "huggingface" / "generation_config.json")
    assert (search["num_beams"], search["length_penalty"], search["max_length"]) == (2, 0.6, 10)
    assert search["bad_words_ids"] == [[0], [1], [2]] and search["decoder_start_token_id"] == START
    some = ["one hundred and two", "seven"]
    expected = keras_transformer.load(run, engine="keras").translate(some, num_beams=2, max_length=9)
    assert import_huggingface(out / "huggingface").translate(some) == expected
    for other, more, message in (
        ("universal", [], "has stack layers, not universal"),
        ("next-item", [], "none is a sequence-encoder"),
        ("translation", ["--precision", "int8"], "huggingface has no int8: transformers casts"),
    ):
        assert main([str(unpack(other, tmp_path / other)), "--format", "huggingface", *more, "--out", f"{out}2"]) == 2
        assert message in capsys.readouterr().err and not Path(f"{out}2").exists()


# Below, what transformers and tokenizers make of it.


@pytest.fixture(scope="module")
def theirs(made) -> Any:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    torch.set_num_threads(1)
    name = json_of(made.folder / "config.json")["architectures"][0]
    return getattr(transformers, name).from_pretrained(str(made.folder)).eval()


def tokenizer_of(folder: Path) -> Any:
    return pytest.importorskip("transformers").AutoTokenizer.from_pretrained(str(folder))


def close(found: Any, expected: np.ndarray) -> None:
    np.testing.assert_allclose(found.detach().numpy(), expected, atol=1e-4 * np.ptp(expected))


@pytest.mark.parity
@of("marian", "bart", "t5")
def test_transformers_translates_as_the_run(made, theirs):
    import torch

    some, pipeline, tokenizer = lines(7, 12), made.run.pipeline, tokenizer_of(made.folder)
    batch = tokenizer(some, return_tensors="pt", padding=True)
    sources = pipeline.source_tokenizer.encode(some)
    assert [row[: row.index(END) + 1] for row in batch["input_ids"].tolist()] == [[*ids, END] for ids in sources]
    targets = np.random.default_rng(0).integers(4, 60, (len(some), 9))
    targets[:, 0] = START
    expected = np.array(made.run.model({"source_ids": batch["input_ids"].numpy(), "target_ids": targets}))
    close(theirs(**batch, decoder_input_ids=torch.from_numpy(targets)).logits, expected)
    assert theirs.generation_config.decoder_start_token_id == START
    greedy = theirs.generate(**batch, num_beams=1, length_penalty=1.0)[:, 1:].tolist()
    ours = [best.ids for (best,) in pipeline.n_best(some, split="off", num_beams=1, max_length=12)]
    assert [row[: len(ids)] for row, ids in zip(greedy, ours, strict=True)] == [[*ids] for ids in ours]
    texts = [tokenizer.decode(row, skip_special_tokens=True).strip() for row in greedy]
    assert texts == pipeline.translate(some, num_beams=1, max_length=12) and len({*texts}) > 1
    beams = theirs.generate(**batch, num_beams=3)[:, 1:].tolist()  # by the search in the folder
    written = {id for row in beams for id in (row[: row.index(END)] if END in row else row)}
    assert len(beams[0]) <= 12 and not written & {0, 1, 2}


@pytest.mark.parity
@of("gpt2", "llama")
def test_transformers_continues_texts_as_the_run(made, theirs):
    import torch

    prompts, tokenizer, pipeline = [*lines(7, 6), "a  b"], tokenizer_of(made.folder), made.run.pipeline
    for prompt in prompts:
        batch = tokenizer(prompt, return_tensors="pt")
        assert batch["input_ids"].tolist() == [[START, *pipeline.ids_of(prompt)]]
        close(theirs(**batch).logits, np.array(made.run.model({"ids": batch["input_ids"].numpy()})))
        with torch.no_grad():
            found = theirs.generate(**batch, num_beams=1, length_penalty=1.0, max_new_tokens=8)[
                0, batch["input_ids"].shape[1] :
            ].tolist()
        found = [END if id in np.atleast_1d(made.run.model.end_ids) else id for id in found]
        ((best,),) = pipeline.search([prompt], SearchOptions(num_beams=1), max_tokens=8)
        assert found == [*best.ids], prompt
        assert tokenizer.decode(found, skip_special_tokens=True) == best.text


@pytest.mark.parity
@of("bert", "distilbert")
def test_transformers_reads_texts_as_the_run(made, theirs):
    some, tokenizer, pipeline = lines(7, 6), tokenizer_of(made.folder), made.run.pipeline
    batch = tokenizer(some, return_tensors="pt", padding=True)
    found = theirs(**batch).logits
    close(found, np.array(made.run.model({"ids": batch["input_ids"].numpy()})))
    if pipeline.labels:
        best = [theirs.config.id2label[place] for place in found.argmax(-1).tolist()]
        assert best == [one.label for one in pipeline.classify(some)]
    else:
        masked = "the <mask> and dog"
        assert tokenizer(masked.replace("<mask>", tokenizer.mask_token))["input_ids"] == [
            START, *pipeline.tokenizer.encode_masked(masked), END,
        ]  # fmt: skip


@pytest.mark.parity
@of("vit")
def test_transformers_sees_images_as_the_run(made, theirs):
    processor = pytest.importorskip("transformers").ViTImageProcessor.from_pretrained(str(made.folder))
    images = probes(model_config(made.run.model))["images"]
    pixels = processor([*images], return_tensors="pt", input_data_format="channels_last")
    close(theirs(**pixels).logits, np.array(made.run.model({"images": images})))
    assert [*theirs.config.id2label.values()] == [*made.run.pipeline.names]


@pytest.mark.parity
@pytest.mark.parametrize("keeps_text", [False, True])
@pytest.mark.parametrize(
    "options",
    [{}, {"model_type": "bpe"}, {"model_type": "char"}, {"byte_fallback": True}, {"normalization": "nfkc"}],
    ids=lambda options: "".join(map(str, options.values())),
)
def test_tokenizers_cuts_and_joins_text_as_sentencepiece_does(options, keeps_text):
    from pydoc_data.topics import topics

    library = pytest.importorskip("tokenizers")
    text = [line for topic in topics.values() for line in topic.split("\n") if line.strip()]
    ours = Tokenizer.train([*text[:2500], *["Größe über Straße naïve café"] * 3], 600, keeps_text=keeps_text, **options)
    theirs = library.Tokenizer.from_str(json.dumps(tokenizer_json(ours, CONTROL_PIECES)))
    odd = [
        "",
        " ",
        "  two   spaces  ",
        "你好 世界",
        "Ｆｕｌｌ　ｗｉｄｔｈ",
        "x 😀😀 y",
        "a\u00a0b\tc",
        "½ ﬁ…",
        "e\u0301\u200b",
    ]
    whole = ["one\ntwo\n\n three", "\n".join(text[:20])] if keeps_text else ["\0"]
    compared = 0
    for line in [*text[2500:3500], *odd, *whole]:
        if ours.is_ambiguous(line):  # libraries choose by rounding
            continue
        ids = ours.encode_text(line) if keeps_text else ours.encode([line])[0]
        assert theirs.encode(line).ids == ids, line
        if 1 not in ids:
            decoded = ours.decode_text(ids) if keeps_text else ours.decode([ids])[0]
            assert theirs.decode(ids) == decoded
            compared += 1
    assert compared > 900
