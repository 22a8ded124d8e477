"""A run with a tokenizer.json of its own goes back to Hugging Face's format: it is the run, for our import and for
transformers (marked `parity`)."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import keras_transformer
from export.__main__ import main as export
from export.artefacts import TrainedRun, open_run
from export.hub import export_huggingface
from export.hub_forms import emitted
from keras_transformer.__main__ import main
from keras_transformer.core.errors import RequestError
from keras_transformer.models.model_factory import model_config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.text.huggingface_tokenizer import HuggingFaceTokenizer
from keras_transformer.text.tokenizer import END, START
from tests.export.hub_models import json_of
from tests.importing.text_models import ENCODERS, FOLDERS, LINES, piece_bpe
from tests.importing.theirs import SIZE, change, tensors_of, write
from tests.training.runs import trained

KINDS = [
    "bart", "gpt2", "gpt2-inner", "llama", "llama-grouped", "llama-stretched", "bert", "bert-tokens", "bert-labels",
    "roberta", "roberta-tokens", "roberta-labels", "distilbert-labels",
]  # fmt: skip
ODD = [*LINES[-8:], "", "  two   spaces ", "e\u0301 combined", "½ ① ﬁ", "'s 't 're", "THE Sea! 67.8%", "x" * 70]
CHAT = "{{ bos_token }}{% for one in messages %}{{ one.content }}{{ eos_token }}{% endfor %}"
NUM_TOKENS = 12


def change_weights(model: Any, share: float = 0.05) -> None:
    """Moves each weight that training moves: copies of a row are then no copies any more."""
    draw, output = np.random.default_rng(5), getattr(model, "output_embedding", None)
    for variable in model.trainable_variables:
        if output is None or variable is not output.bias or not output.fixed_bias:
            noise = draw.normal(0, share * (np.std(variable) or 1), variable.shape)
            variable.assign(np.array(variable) + noise * (np.array(variable) > -50))  # a search bans some logits


def written(pipeline: Any, folder: Path) -> Path:
    return export_huggingface(TrainedRun(pipeline), folder)[0]


@pytest.mark.parametrize("kind", KINDS)
def test_an_imported_model_is_written_as_it_came(kind, tmp_path):
    """Under the same names and in the same order, but for what the import does not read."""
    folder = write(kind, tmp_path / "model")
    again = written(keras_transformer.import_huggingface(folder), tmp_path)
    expected, found = tensors_of(folder), tensors_of(again)
    if kind == "bart":  # the logits of pad are banned
        assert found.pop("final_logits_bias")[0, 1] == -100 and expected.pop("final_logits_bias") is not None
    segments = [name for name in found if "token_type" in name]
    table = next((name for name in found if "position_embeddings" in name), "")
    for name in segments:
        found[table] = found[table] + found.pop(name)[0]
        expected[table] = expected[table] + expected.pop(name)[0]
    for name in [name for name in found if "position" in name and kind.startswith(("bart", "roberta"))]:
        found[name], expected[name] = found[name][2:], expected[name][2:]  # no text has the positions before
    missing = [name for name in expected if name not in found]
    assert found.keys() <= expected.keys() and all("pooler" in name for name in missing), missing
    for name, array in found.items():
        np.testing.assert_allclose(array, expected[name], rtol=1e-6, atol=1e-7, err_msg=name)
    old, new = json_of(folder / "config.json"), json_of(again / "config.json")
    for name in ("model_type", "architectures", "vocab_size", "eos_token_id", "max_position_embeddings"):
        assert new.get(name) == old.get(name), name


@pytest.mark.parametrize("kind", KINDS)
def test_a_changed_run_comes_back_from_its_folder(kind, tmp_path):
    pipeline: Any = keras_transformer.import_huggingface(write(kind, tmp_path / "model"))
    change_weights(pipeline.model)
    again: Any = keras_transformer.import_huggingface(written(pipeline, tmp_path))
    if kind != "bart":  # its start has become another vector, and is that of pad there; and its last positions have
        assert model_config(again.model) == model_config(pipeline.model)
        assert again.tokenizers[0].model == pipeline.tokenizers[0].model
    ids = np.array([[START, 8, 9, 11, END]]) if pipeline.tokenizers[0].has_start else np.array([[8, 9, END, 11]])
    inputs = {"source_ids": ids, "target_ids": ids} if kind == "bart" else {"ids": ids}
    ours, theirs = (np.array(one.model(inputs)) for one in (pipeline, again))
    kept = slice(None) if kind.endswith("labels") else emitted(model_config(pipeline.model))
    np.testing.assert_allclose(theirs[..., kept], ours[..., kept], atol=1e-4 * np.ptp(ours))


def test_a_run_of_vectors_is_one_of_sentence_transformers(tmp_path):
    folder = write("bert", tmp_path / "model")
    for name, content in {
        "modules.json": [{"path": name, "type": f"models.{name}"} for name in ("Transformer", "Pooling", "Normalize")],
        "Pooling/config.json": {"pooling_mode": "cls"},
        "sentence_bert_config.json": {"max_seq_length": 9},
    }.items():
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text(json.dumps(content))
    pipeline: Any = keras_transformer.import_huggingface(folder)
    again = written(pipeline, tmp_path)
    assert [each["path"] for each in json_of(again / "modules.json")] == ["", "1_Pooling", "2_Normalize"]
    assert json_of(again / "1_Pooling" / "config.json")["pooling_mode_cls_token"]
    assert json_of(again / "sentence_bert_config.json")["max_seq_length"] == 9
    text = ["w1 w2 " * 9]
    np.testing.assert_array_equal(keras_transformer.import_huggingface(again).embed(text), pipeline.embed(text))


def test_the_command_writes_special_tokens_ends_and_the_template(tmp_path, capsys):
    folder, run, out = write("llama", tmp_path / "model"), tmp_path / "run", tmp_path / "out"
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    added = [{"id": id, "content": str(id), "special": True, **flags} for id in (1, 2)]
    change(folder, "tokenizer.json", added_tokens=added)
    change(folder, "tokenizer_config.json", chat_template=CHAT)
    change(folder, "generation_config.json", eos_token_id=[2, 59])
    assert main(["import", str(folder), str(run)]) == 0
    capsys.readouterr()
    assert export([str(run), "--format", "huggingface", "--out", str(out)]) == 0
    assert "left out" not in capsys.readouterr().err
    again = out / "huggingface"
    assert (again / "tokenizer.json").read_bytes() == (folder / "tokenizer.json").read_bytes()
    found = json_of(again / "tokenizer_config.json")
    assert {name: found.get(f"{name}_token") for name in ("bos", "eos", "pad", "unk")} == {
        "bos": "1", "eos": "2", "pad": "2", "unk": None,
    }  # fmt: skip
    assert found["chat_template"] == CHAT and found["model_max_length"] == 20
    search = json_of(again / "generation_config.json")
    assert search["eos_token_id"] == [2, 59] and search["bad_words_ids"] == [[1]]
    assert main(["import", str(again), str(tmp_path / "again")]) == 0
    assert (tmp_path / "again" / "tokenizer.json").read_bytes() == (run / "tokenizer.json").read_bytes()


@pytest.mark.parametrize(
    ("kind", "task", "name"),
    [
        ("bert-tokens", "classification", "BertForSequenceClassification"),
        ("roberta-tokens", "classification", "RobertaForSequenceClassification"),
        ("bert", "classification --head-layer", "BertForSequenceClassification"),
        ("llama", "language-model", "LlamaForCausalLM"),
    ],
)
def test_a_run_that_was_fine_tuned_is_written(kind, task, name, tmp_path):
    """The bias on the logits, for which Llama has no place, stays as it is in training."""
    folder = write(kind, tmp_path / "model")
    if kind == "llama":  # with a tokenizer that reads line breaks
        tokenizer = piece_bpe()
        size = tokenizer.get_vocab_size()
        rows = {name: np.resize(each, (size, 16)) for name, each in tensors_of(folder).items() if len(each) == SIZE}
        write(kind, folder, {**tensors_of(folder), **rows}, vocab_size=size)
        tokenizer.save(str(folder / "tokenizer.json"))
    assert main(["import", str(folder), str(tmp_path / "parent")]) == 0
    labelled = "".join(f"yes\tthe dog w{place}\nno\tw3 w{place}\n" for place in range(40))
    (tmp_path / "text").write_text("4 5 6 7\n" * 200 if kind == "llama" else labelled)
    trained(tmp_path, f"--task {task} --text text --steps 3 --devices cpu --init-from parent --out run")
    pipelines: Any = [open_run(tmp_path / each).pipeline for each in ("run", "parent")]
    new, old = (np.array(one.model.embedding.embeddings) for one in pipelines)
    assert not np.allclose(new, old, atol=1e-6)
    folder = written(pipelines[0], tmp_path / "out")
    config = json_of(folder / "config.json")
    assert config["architectures"] == [name]
    if kind != "llama":
        assert [*config["id2label"].values()] == ["no", "yes"]
        again: Any = keras_transformer.import_huggingface(folder)
        some = ["the dog w3", "w3 w4"]
        found, expected = (
            [(one.label, round(one.probability, 4)) for one in each.classify(some)] for each in (again, pipelines[0])
        )
        assert found == expected


def test_what_a_folder_cannot_hold_is_refused_by_name(tmp_path):
    encoder: Any = keras_transformer.import_huggingface(write("bert-tokens", tmp_path / "bert"))
    ids = {"ids": [0, 3, 4, 5, 6, 2_000_000_000]}
    encoder.tokenizer = HuggingFaceTokenizer(json.dumps({**json.loads(encoder.tokenizer.model), **ids}).encode())
    answers: Any = keras_transformer.import_huggingface(write("gpt2", tmp_path / "gpt2"))
    answers.answer_length = 5
    tokenizer = answers.tokenizer
    begins: Any = keras_transformer.import_huggingface(write("gpt2", tmp_path / "gpt2"))
    change_weights(begins.model)
    begins.tokenizer.has_start = True
    for pipeline, message in (
        (encoder, "expected the ids in the run's tokenizer.json to be all from 0 on"),
        (answers, "answers prompts behind a separator"),
        (begins, "start and end are one id .* training gave them two vectors"),
    ):
        with pytest.raises(RequestError, match=message):
            written(pipeline, tmp_path / "out")
        assert not [*(tmp_path / "out").glob("*")]
    assert tokenizer.ids[START] == tokenizer.ids[END]


# Below, what transformers makes of it.


@pytest.mark.parity
@pytest.mark.parametrize("is_changed", [False, True])
@pytest.mark.parametrize("kind", FOLDERS)
def test_transformers_computes_as_the_run(kind, is_changed, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    FOLDERS[kind](tmp_path / "model")
    pipeline: Any = keras_transformer.import_huggingface(tmp_path / "model")
    if is_changed:
        change_weights(pipeline.model)
    folder = written(pipeline, tmp_path)
    config, tokenizer = model_config(pipeline.model), pipeline.tokenizers[0]
    name = json_of(folder / "config.json")["architectures"][0]
    model = getattr(transformers, name).from_pretrained(str(folder)).eval()
    auto, old = (transformers.AutoTokenizer.from_pretrained(str(one)) for one in (folder, tmp_path / "model"))
    for line in [*ODD, *(f"a {token} b" for token in old.all_special_tokens)]:
        assert auto(line)["input_ids"] == old(line)["input_ids"], line
        assert auto.decode(auto(line)["input_ids"]) == old.decode(old(line)["input_ids"])
    assert auto.eos_token == old.eos_token or kind in ENCODERS
    written_ids = emitted(config)
    for line in LINES[-6:]:
        inputs = auto(line, return_tensors="pt")
        ids = tokenizer.encode([line])[0] if tokenizer.has_end else tokenizer.encode_text(line)
        own = np.array([[*[START] * (tokenizer.has_start and kind != "bart"), *ids, *[END] * tokenizer.has_end]])
        assert [tokenizer.ids[id] for id in own[0]] == inputs["input_ids"][0].tolist()
        if kind == "bart":
            target = np.array([[START, *own[0, :-1]]])
            begun = [[model.config.decoder_start_token_id, *inputs["input_ids"][0, :-1].tolist()]]
            inputs["decoder_input_ids"] = torch.tensor(begun)
            ours = np.array(pipeline.model({"source_ids": own, "target_ids": target}))
        else:
            ours = np.array(pipeline.model({"ids": own}))
        with torch.no_grad():
            theirs = model(**inputs).logits.numpy()
        theirs = theirs[..., [tokenizer.ids[id] for id in written_ids]]
        np.testing.assert_allclose(theirs, ours[..., written_ids], atol=1e-4 * np.ptp(ours))
        if kind not in ENCODERS:
            assert_greedy_alike(kind, pipeline, auto, model, line)


def assert_greedy_alike(kind: str, pipeline: Any, auto: Any, model: Any, line: str) -> None:
    """Ids and text are the run's; the search is that of the folder."""
    inputs = auto(line, return_tensors="pt")
    found = model.generate(**inputs, max_new_tokens=NUM_TOKENS)[0]
    if kind == "bart":
        text = pipeline.translate(line, num_beams=1, max_length=NUM_TOKENS, split="off")
        assert auto.decode(found, skip_special_tokens=True).strip() == text
        return
    [[best]] = pipeline.search([line], SearchOptions(num_beams=1), max_tokens=NUM_TOKENS)
    found = found[inputs["input_ids"].shape[1] :].tolist()
    assert found == [pipeline.tokenizer.ids[id] for id in best.ids]
    if "\N{REPLACEMENT CHARACTER}" not in best.text:  # a character may have begun in the line
        assert auto.decode(found, skip_special_tokens=True).strip() == best.text.strip()
