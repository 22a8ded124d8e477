"""The forms in which transformers writes weights: whole, in several files, in halves, tied matrices once or twice."""

import itertools
import json

import numpy as np
import pytest

from export.artefacts import signature_of
from keras_transformer.core.errors import RequestError
from keras_transformer.importing.huggingface import ARCHITECTURES, read_huggingface
from keras_transformer.text.tokenizer import END
from tests.importing.theirs import KINDS, change, safetensors, split, tensors_of, write
from tests.processes import ROOT


def arrays_of(folder):
    weights = read_huggingface(folder).weights
    return [weights.read(weight) for weight in weights.table]


@pytest.mark.parametrize("kind", ["marian", "t5", "vit"])
def test_weights_in_several_files(kind, tmp_path):
    expected = arrays_of(write(kind, tmp_path))
    split(tmp_path)
    assert all(map(np.array_equal, arrays_of(tmp_path), expected))


def test_an_index_that_does_not_fit_its_files_is_refused(tmp_path):
    index = split(write("marian", tmp_path))
    whole = json.loads(index.read_text())["weight_map"]
    name = "final_logits_bias"
    moved = {**whole, name: next(home for home in whole.values() if home != whole[name])}
    lost = {each: home for each, home in whole.items() if each != name}
    for homes, message in (
        ({**whole, name: "model-9.safetensors"}, "expected a file model-9.safetensors"),
        (moved, "expected 'final_logits_bias' in .*, as it says; found none"),
        (lost, "holds 'final_logits_bias' too, which it does not say"),
        ({**whole, "more": "../model.safetensors"}, "names of files of weights; received '../model.safetensors'"),
        ({**whole, "more": "a/model.safetensors"}, "names of files of weights"),
        ({**whole, "more": 3}, "names of files of weights; received 3"),
        ({}, "expected the file of each tensor"),
    ):
        index.write_text(json.dumps({"weight_map": homes}))
        with pytest.raises(RequestError, match=message):
            read_huggingface(tmp_path)


def test_a_tensor_in_two_files_is_refused(tmp_path):
    index = split(write("gpt2", tmp_path), 2)
    homes = json.loads(index.read_text())["weight_map"]
    tensors = tensors_of(write("gpt2", tmp_path / "whole"))
    second = {name: tensors[name] for name, home in homes.items() if home == "model-1.safetensors"}
    first = next(name for name, home in homes.items() if home == "model-0.safetensors")
    (tmp_path / "model-1.safetensors").write_bytes(safetensors({**second, first: tensors[first]}))
    with pytest.raises(RequestError, match=f"model-1.safetensors holds '{first}' too"):
        read_huggingface(tmp_path)


@pytest.mark.parametrize("kind", ["marian", "marian-apart", "bart", "t5", "gpt2", "llama", "bert-tokens"])
def test_rows_of_padding_are_left_out(kind, tmp_path):
    """Logits of the rows behind would be the highest."""
    folder = write(kind, tmp_path)
    options, tensors = json.loads((folder / "config.json").read_text()), tensors_of(folder)
    if kind in ("bart", "gpt2", "llama"):  # which tests make without a tokenizer
        (folder / "vocab.json").write_text(json.dumps({f"w{id}": id for id in range(options["vocab_size"] - 3)}))
        (folder / "added_tokens.json").write_text(json.dumps({str(last := options["vocab_size"] - 1): last}))
    whole, expected = read_huggingface(folder), arrays_of(folder)
    has_all = kind in ("bart", "gpt2", "llama")
    assert not has_all or {*whole.target.ids} == {*range(options["vocab_size"])}, "the last one was added later"
    sizes = {name: options[name] + 5 for name in ("vocab_size", "decoder_vocab_size") if options.get(name)}
    for name, array in tensors.items():
        for axis, size in enumerate(array.shape):
            if size + 5 in sizes.values():
                widths = [(0, 5 * (place == axis)) for place in range(array.ndim)]
                tensors[name] = np.pad(array, widths, constant_values=99.0)
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    change(folder, "config.json", **sizes)
    padded = read_huggingface(folder)
    assert padded.config == whole.config and padded.target.ids == whole.target.ids
    assert all(map(np.array_equal, arrays_of(folder), expected))


def test_a_list_of_one_end_is_that_end_and_the_search_says_which(tmp_path):
    for kind, end in (("llama", 2), ("marian", 0)):
        folder = write(kind, tmp_path / kind)
        expected = read_huggingface(folder).target.ids
        change(folder, "config.json", eos_token_id=[end])
        change(folder, "generation_config.json", eos_token_id=[end])
        assert read_huggingface(folder).target.ids == expected
    change(tmp_path / "llama", "generation_config.json", eos_token_id=7)
    assert read_huggingface(tmp_path / "llama").target.ids[END] == 7


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["marian", "bart", "t5", "t5-gated", "gpt2", "llama-grouped", "bert-tokens", "vit"])
def test_what_transformers_writes(kind, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    expected = arrays_of(write(kind, tmp_path))
    model_class, whole = getattr(transformers, KINDS[kind][0]), tensors_of(tmp_path)
    for form in ("whole", "shards", "float16", "bfloat16", "twice", "torch"):
        model = model_class.from_pretrained(str(tmp_path))
        folder, tolerance = write(kind, tmp_path / form), 0.01 if "float" in form else 0
        (folder / "model.safetensors").unlink()
        if form == "twice":
            state = model.state_dict()
            tied = {name: state[name].numpy() for name in model.all_tied_weights_keys}
            (folder / "model.safetensors").write_bytes(safetensors({**whole, **tied}))
        elif form == "torch":
            homes = {name: f"pytorch_model-{place % 2}.bin" for place, name in enumerate(whole)}
            for home in {*homes.values()}:
                part = {name: torch.from_numpy(array) for name, array in whole.items() if homes[name] == home}
                torch.save(part, folder / home)
            (folder / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": homes}))
        else:
            made = model.to(getattr(torch, form)) if tolerance else model
            made.save_pretrained(str(folder), **({"max_shard_size": "3KB"} if form == "shards" else {}))
            assert (folder / "model.safetensors").exists() is (form != "shards")
        for array, theirs in zip(arrays_of(folder), expected, strict=True):
            np.testing.assert_allclose(array, theirs, atol=tolerance, rtol=tolerance, err_msg=form)


@pytest.mark.parametrize("kind", [*KINDS])
def test_the_table_of_architectures_says_what_is_read(kind, tmp_path):
    """In BUILD.md: each architecture, its task, and whether its text is SentencePiece's."""
    lines = (ROOT / "BUILD.md").read_text(encoding="utf-8").partition("| `model_type` |")[2].splitlines()[2:]
    table = [line.strip("|").split("|") for line in itertools.takewhile(lambda line: line.startswith("|"), lines)]
    rows = {row[0].strip(" `"): row for row in table}
    assert {*rows} == {*ARCHITECTURES}
    imported = read_huggingface(write(kind, tmp_path))
    row = rows[json.loads((tmp_path / "config.json").read_text())["model_type"]]
    assert f"`{imported.task}`" in row[2]
    vocabularies = [each.tokenizer for each in imported.vocabularies]
    assert ("SentencePiece" in row[3]) == any(each.is_sentencepiece for each in vocabularies)
    assert ("text" in row[4]) == bool(signature_of(imported.task, {"labels": ""}, vocabularies).text_stem)
