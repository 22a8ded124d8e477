"""What no importer knows is refused by its name: options, tensors and files; and what old files say is read."""

import contextlib
import json
import shutil
from typing import Any

import numpy as np
import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.importing.folder import (
    HARMLESS_OPTIONS,
    NEUTRAL_SEARCH,
    READ_SEARCH,
    SEARCH_WITHOUT_EFFECT,
    ModelFolder,
)
from keras_transformer.importing.huggingface import ADAPTER, HARMLESS, SMALL_FILES, WEIGHTS, read_huggingface
from tests.answers import refused
from tests.importing.theirs import KINDS, change, safetensors, tensors_of, unpack, write

STRETCHED = {
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 16,
}  # fmt: skip
# Of each model: changes of config.json, and what is told of them.
OPTIONS: dict[str, list[tuple[dict[str, Any], str]]] = {
    "marian": [
        ({"model_type": "electra"}, "an architecture among .*marian.*; received 'electra'"),
        ({"auto_map": {"AutoModel": "code.Model"}}, "'auto_map' asks for code"),
        ({"normalize_before": True}, "'normalize_before': expected False alone; received: True"),
        ({"activation_function": "tanh"}, "'activation_function': expected one of gelu, .*; received: 'tanh'"),
        ({"quantization_config": {}}, "'quantization_config': expected only options that this importer knows"),
        ({"encoder_layers": 3}, "model.encoder.layers.2.self_attn.q_proj.weight .* received none"),
        ({"encoder_layers": 1}, "received 'model.encoder.layers.1.fc1.bias' too"),
        ({"decoder_ffn_dim": 32}, "'decoder_ffn_dim': expected 24, as in the encoder"),
        ({"scale_embedding": 1}, "'scale_embedding': expected true or false"),
    ],
    "bart": [
        ({"max_position_embeddings": 13}, r"embed_positions.weight of the shape \(15, 16\)"),
        ({"eos_token_id": 1}, "'eos_token_id': expected another id than that of pad"),
    ],
    "t5": [
        ({"is_gated_act": True}, "'is_gated_act': expected False alone"),
        ({"d_kv": 7}, "SelfAttention.q.weight of the shape"),
        ({"vocab_size": 159}, "expected pieces for the 159 ids of config.json; received 60 and 100 others"),
    ],
    "gpt2": [
        ({"eos_token_id": 60}, "eos_token_id"), ({"activation_function": "tan"}, "activation_function"),
        ({"sliding_window": 4}, "sliding_window"), ({"n_layer": 3}, "h.2."), ({"n_embd": 20}, "of the shape"),
    ],
    "llama": [
        ({"rope_scaling": {"type": "yarn", "factor": 2.0}}, "'rope_type': expected one of default, linear, llama3"),
        ({"rope_scaling": {"type": "linear"}}, "rope_scaling: 'factor': expected a number; received: None"),
        ({"rope_scaling": {"type": "linear", "factor": 0.5}}, "interpolation` must be a number from 1"),
        ({"rope_scaling": {"type": "linear", "factor": 2.0, "beta_fast": 3}}, "rope_scaling: 'beta_fast'"),
        ({"rope_scaling": STRETCHED | {"low_freq_factor": 4.0}}, "high_freq_factor` must be greater than"),
        ({"rope_scaling": STRETCHED | {"original_max_position_embeddings": None}}, "'original_max_position_embeddi"),
        ({"rope_scaling": None, "rope_parameters": [1]}, "expected an object"),
        ({"eos_token_id": [1, 99]}, "'eos_token_id': expected whole numbers"),
        ({"attention_bias": True}, "attention_bias"), ({"num_key_value_heads": 3}, "num_key_value_heads"),
        ({"tie_word_embeddings": True}, "expected lm_head.weight to be model.embed_tokens.weight"),
    ],
    "bert-labels": [
        ({"position_embedding_type": "relative_key"}, "position_embedding"), ({"id2label": ["a", "b"]}, "id2label"),
        ({"problem_type": "multi_label_classification"}, "problem_type"), ({"id2label": {"0": "a"}}, "id2label"),
    ],
    "bert-tokens": [({"is_decoder": True}, "is_decoder"), ({"tie_word_embeddings": False}, "tie_word_embeddings")],
    "roberta-tokens": [
        ({"hidden_act": "relu"}, "'hidden_act': expected gelu, as the head has; received: 'relu'"),
        ({"pad_token_id": 99}, "pad_token_id"), ({"max_position_embeddings": 2}, "context_length"),
    ],
    "vit": [
        ({"patch_size": 4}, "patch_size"), ({"id2label": {"0": "a"}}, "id2label"),
        ({"problem_type": "multi_label_classification"}, "'problem_type': expected 'single_label_"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", OPTIONS)
def test_an_option(kind, tmp_path):
    folder = write(kind, tmp_path)
    whole = (folder / "config.json").read_text()
    for changes, message in OPTIONS[kind]:
        (folder / "config.json").write_text(json.dumps({**json.loads(whole), **changes}))
        with pytest.raises(RequestError, match=message):
            read_huggingface(folder)


GENERATION, PIXELS, PROMPTS = "generation_config.json", "preprocessor_config.json", "config_sentence_transformers.json"
# Values of all options of a search that change what a generator writes.
LACKING: dict[str, Any] = {
    name: [[3]] if value is None else True if value == 0 else 3 for name, value in NEUTRAL_SEARCH.items()
}
LACKING |= {"do_sample": None, "bad_words_ids": [[3]]}


def test_options_that_nobody_knows_are_listed_once(tmp_path, capsys):
    folder = write("marian", tmp_path)
    expected = read_huggingface(folder)
    assert not capsys.readouterr().err
    more = {"unsloth_fixed": True, "language": "en", "use_sliding_window": False, "final_logit_softcapping": None}
    change(folder, "config.json", **more, **{"transformers.js": {"a": 1}})
    change(folder, GENERATION, trained_by="me\n")
    found = read_huggingface(folder)
    assert (found.config, found.search) == (expected.config, expected.search)
    assert [line.partition(": ignored: ")[2] for line in sorted(capsys.readouterr().err.splitlines())] == [
        "'language', 'transformers.js', 'unsloth_fixed'",
        "'trained_by'",
    ]
    change(folder, "config.json", **{f"a{number}\n": number for number in range(30)})
    read_huggingface(folder)
    assert capsys.readouterr().err.count("\n") == 2
    risky: dict[str, Any] = {
        "sliding_window": 4096, "attention_multiplier": 0.5, "logit_scale": 2, "final_logit_softcapping": 30.0,
        "residual_multiplier": 0.2, "hidden_size": 8, "num_experts": 8, "use_parallel_residual": True, "quantized": {},
    }  # fmt: skip
    for name, value in risky.items():
        write("marian", tmp_path, **{name: value})
        with pytest.raises(RequestError, match=f"'{name}': expected only options that this importer knows"):
            read_huggingface(folder)


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["marian", "bart", "t5", "gpt2", "llama", "bert", "roberta", "distilbert", "vit"])
def test_every_option_that_transformers_has_is_known(kind, tmp_path, capsys):
    transformers = pytest.importorskip("transformers")
    folder = write(kind, tmp_path)
    expected = read_huggingface(folder).config
    every = transformers.AutoConfig.from_pretrained(str(folder)).to_dict()
    change(folder, "config.json", **every)
    assert read_huggingface(folder).config == expected
    assert "ignored" not in capsys.readouterr().err
    known = {*NEUTRAL_SEARCH, *SEARCH_WITHOUT_EFFECT, *READ_SEARCH, *HARMLESS_OPTIONS}
    known |= {"eos_token_id", "pad_token_id", "decoder_start_token_id"}
    assert {*transformers.GenerationConfig().to_dict()} <= known


MODULE = {"type": "sentence_transformers.models.Transformer", "path": ""}
PROMPTED: dict[str, Any] = {"prompts": {"document": "passage: ", "query": ""}, "default_prompt_name": "document"}
FILES: dict[str, list[tuple[str, dict[str, Any], str]]] = {
    "marian": [
        (GENERATION, {"num_beam_groups": 3}, "'num_beam_groups': expected 1 alone; received: 3"),
        (GENERATION, {"no_repeat_ngram_size": 10**6}, "'no_repeat_ngram_size': expected .* from 0 to 100"),
        (GENERATION, {"repetition_penalty": -1.5}, "'repetition_penalty': expected a number from .*: -1.5"),
        (GENERATION, {"num_beams": 10**6}, "'num_beams'"),
        (GENERATION, {"eos_token_id": [0, 4]}, "'eos_token_id': expected one id, for no search .*: \\[0, 4\\]"),
        ("added_tokens.json", {"</s>": 0, "<sep>": 99}, "expected pieces of vocab.json alone; .*<sep>"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"62": {"content": "<sep>"}}}, "pieces of vocab.json alone"),
        ("tokenizer_config.json", {"auto_map": {"AutoTokenizer": ["code.T", None]}}, "'auto_map' asks for code"),
        ("vocab.json", {"</s>": 1}, "vocab.json: expected ids from 0 to at most"),
    ],
    "t5": [
        (GENERATION, {"decoder_start_token_id": 4}, "decoding starts with id 4, which is no control piece"),
        ("tokenizer_config.json", {"added_tokens_decoder": {"65": {"content": "<sep>"}}}, "'added_tokens_decoder': "),
        ("tokenizer_config.json", {"additional_special_tokens": ["<sep>"]}, "'additional_special_tokens': .* '<sep>'"),
        ("added_tokens.json", {"<sep>": 160}, "'added_tokens.json': expected the sentinels of T5 alone"),
    ],
    "llama": [(GENERATION, {"eos_token_id": [2, 60]}, "'eos_token_id': expected whole numbers from 0 to 59; .*60")],
    "bert": [
        ("tokenizer.json", {"added_tokens": []}, r"tokenizer.json: expected \[PAD\] with an id of its own"),
        ("tokenizer_config.json", {"do_lower_case": False}, "'do_lower_case': expected True alone; received: False"),
        (PROMPTS, PROMPTED, "'default_prompt_name': expected null; received one that puts 'passage: '"),
    ],
    "vit": [
        (PIXELS, {"size": {"height": 8, "width": 8}}, "'size': expected 6, as in config.json"),
        ("processor_config.json", {"image_processor": {"size": 8}}, "processor_config.json too"),
        (PIXELS, {"do_center_crop": True}, "do_center_crop"), (PIXELS, {"image_mean": [0.1, 0.2]}, "for each channel"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("kind", FILES)
def test_an_entry_of_another_file(kind, tmp_path):
    for place, (name, values, message) in enumerate(FILES[kind]):
        folder = write(kind, tmp_path / str(place))
        (folder / "modules.json").write_text(json.dumps([MODULE]))
        change(folder, name, **values)
        with pytest.raises(RequestError, match=message):
            read_huggingface(folder)


def test_a_prompt_that_is_no_default_and_an_empty_list_change_nothing(tmp_path, capsys):
    expected = read_huggingface(write("bert", tmp_path / "bert")).config
    (tmp_path / "bert" / "modules.json").write_text(json.dumps([MODULE]))
    (tmp_path / "bert" / PROMPTS).write_text('{"__version__": {}}')
    assert read_huggingface(tmp_path / "bert").config == expected
    for name in (None, "query"):
        change(tmp_path / "bert", PROMPTS, **PROMPTED | {"default_prompt_name": name})
        assert read_huggingface(tmp_path / "bert").config == expected
    change(write("bart", tmp_path / "bart"), GENERATION, suppress_tokens=[], begin_suppress_tokens=[], sequence_bias={})
    read_huggingface(tmp_path / "bart")
    assert not capsys.readouterr().err


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_a_search_that_a_generator_lacks_is_told(kind, tmp_path, capsys):
    """How it draws stays silent."""
    drawing = {"do_sample": True, "temperature": 0.6, "top_p": 0.9, "suppress_tokens": []}
    for name in (GENERATION, "config.json"):  # older files have it in the latter
        change(write(kind, tmp_path), name, **drawing)
        if name == "config.json":
            (tmp_path / GENERATION).unlink()
        assert read_huggingface(tmp_path) and not capsys.readouterr().err
        change(tmp_path, name, **LACKING)
        read_huggingface(tmp_path)
        told = capsys.readouterr().err
        assert f"{name}: our search has no" in told and all(
            f" {option} " in told for option in LACKING if option != "do_sample"
        )


def test_a_refused_model_leaves_no_run(tmp_path):
    folder, run = str(write("marian", tmp_path / "model", model_type="electra")), str(tmp_path / "run")
    both = [folder, run, "--download", "a/b"]
    for words, message in (([folder, run], "error: "), ([run], "received neither"), (both, "received both")):
        assert message in refused("import", *words)
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("marian", name) for name in ("config.json", "vocab.json", "source.spm", "model.safetensors")),
        ("t5", "spiece.model"),
        ("vit", "preprocessor_config.json"),
    ],
)
def test_a_missing_file(kind, name, tmp_path):
    folder = write(kind, tmp_path)
    if kind == "t5":
        (folder / "tokenizer.json").unlink()  # which would do
    (folder / name).unlink()
    with pytest.raises(RequestError, match=name):
        read_huggingface(folder)


# Files beside a model, as its page on the Hub, a training, and other libraries leave them.
BESIDE = [
    ".gitattributes", ".cache", "README.md", "LICENSE", "USE_POLICY.md", "a.png", "modeling_x.py", "requirements.txt",
    "training_args.bin", "optimizer.pt", "scheduler.pt", "rng_state_0.pth", "trainer_state.json", "all_results.json",
    "runs", "eval_results.txt", "checkpoint-5", "global_step20", "latest", "similarity_results.csv", "eval",
    "events.out.tfevents.1", "tf_model.h5", "flax_model.msgpack", "rust_model.ot", "pytorch_model.bin", "model.onnx",
    "onnx", "openvino", "openvino_model.xml", "coreml", "model.fp16.safetensors", "model-00001-of-00002.safetensors",
    "model.Q4_K_M.gguf", "consolidated.00.pth", "original", "tokenizer.model", "spiece.model", "vocab.txt",
    "1_Pooling", "2_Normalize", "preprocessor_config.json", "chat_template.json", "scaler.pt",
]  # fmt: skip


def test_files_beside_a_model_are_harmless_told_or_refused(tmp_path, capsys):
    folder = write("llama", tmp_path)
    for name in BESIDE:
        (folder / name).touch()
    (folder / "preprocessor_config.json").write_text("{}")
    read_huggingface(folder)
    assert not capsys.readouterr().err
    for number in range(30):
        (folder / f"steering_{number:02}.safetensors").touch()
    read_huggingface(folder)
    told = capsys.readouterr().err
    assert told.count("\n") == 1 and "ignored: 'steering_00.safetensors', 'steering_01" in told and "10 more" in told
    for name in ("model.safetensors", "pytorch_model.bin", "config.json"):
        (folder / name).unlink()
    with pytest.raises(RequestError, match="received 'flax_model.msgpack' alone: load it with transformers"):
        read_huggingface(folder)
    change(folder, ADAPTER, base_model_name_or_path="a/b")
    with pytest.raises(RequestError, match="received an adapter of 'a/b' .*merge_and_unload"):
        read_huggingface(folder)


def test_what_importers_look_for_is_what_a_download_fetches(tmp_path, monkeypatch):
    asked: list[str] = []
    for name in ("has", "file"):
        plain = getattr(ModelFolder, name)

        def noted(self: ModelFolder, file: str, plain: Any = plain) -> Any:
            asked.append(file)
            return plain(self, file)

        monkeypatch.setattr(ModelFolder, name, noted)
    for kind in KINDS:
        folder = write(kind, tmp_path / kind)
        if kind == "bert":
            modules = [MODULE, {"type": "a.Pooling", "path": "1_Pooling"}]
            (folder / "modules.json").write_text(json.dumps(modules))
            (folder / "1_Pooling").mkdir()
            change(folder, "1_Pooling/config.json", pooling_mode="mean")
        if kind in ("gpt2", "distilbert"):  # older files
            (folder / "tokenizer.json").unlink()
        if kind == "gpt2":
            change(folder, "vocab.json", a=0)
        with contextlib.suppress(RequestError):
            read_huggingface(folder)
    of_many_languages, told_of = "sentencepiece.bpe.model", "tokenizer.model"
    assert {*asked} - {*WEIGHTS, told_of} == {*SMALL_FILES} - {of_many_languages, ADAPTER}


@pytest.mark.parity
def test_every_file_that_transformers_looks_for_is_known():
    transformers = pytest.importorskip("transformers")
    names = {value for name, value in vars(transformers.utils).items() if name.endswith("_NAME") and "." in str(value)}
    for kind in ("Bert", "Roberta", "XLMRoberta", "GPT2", "Llama", "T5", "Marian", "M2M100", "Nllb", "MBart50"):
        names |= {*getattr(transformers, f"{kind}Tokenizer").vocab_files_names.values()}
    of_an_adapter = {"adapter_model.bin", "adapter_model.safetensors"}
    unknown = {name for name in names - {*SMALL_FILES, *WEIGHTS} if not HARMLESS.fullmatch(name)}
    assert len(names) > 15 and unknown == of_an_adapter


def test_a_link_out_of_the_folder(tmp_path):
    folder = write("marian", tmp_path / "model")
    for name in ("config.json", "source.spm", "model.safetensors"):
        path = folder / name
        shutil.move(path, tmp_path / name)
        path.symlink_to(tmp_path / name)
        with pytest.raises(RequestError, match="is a link that leaves the folder"):
            read_huggingface(folder)
        path.unlink()
        shutil.move(tmp_path / name, folder / f"other {name}")
        path.symlink_to(f"other {name}")
        read_huggingface(folder)


FIRST = "model.encoder.layers.0"
NUMBERS = np.ones((24, 16), "float32")
TENSORS: list[tuple[str, str, np.ndarray | None, str]] = [
    ("marian", f"{FIRST}.fc1.weight", NUMBERS.T, r"fc1.weight of the shape \(24, 16\), .* \(16, 24\)"),
    ("marian", f"{FIRST}.fc1.bias", None, r"fc1.bias of the shape \(24,\), .* received none"),
    ("marian", "lm_head.weight", NUMBERS, "expected lm_head.weight to be model.shared"),
    ("marian", "model.encoder.embed_positions.weight", NUMBERS, "other positions"),
    ("t5", "decoder.embed_tokens.weight", NUMBERS, "decoder.embed_tokens.weight to be shared.weight"),
]


def test_a_tensor(tmp_path):
    for kind, name, array, message in TENSORS:
        arrays = tensors_of(write(kind, tmp_path / kind))
        arrays.pop(name, None)
        arrays |= {} if array is None else {name: array}
        (tmp_path / kind / "model.safetensors").write_bytes(safetensors(arrays))
        with pytest.raises(RequestError, match=message):
            read_huggingface(tmp_path / kind)


def test_a_file_of_tensors_that_is_damaged_or_huge_or_of_other_numbers(tmp_path):
    path = write("gpt2", tmp_path) / "model.safetensors"
    whole, header = path.read_bytes(), b'{"a":{"dtype":"F8_E4M3","shape":[1],"data_offsets":[0,1]}}'
    for content, message in (
        (b"", "header too small"), (whole[:-4], "not fully covered"), (whole + b"more", "not fully covered"),
        ((2**24 + 1).to_bytes(8, "little") + b"{" * 2**25, "a header of at most 16,777,216 bytes; it says 16,777,217"),
        (len(header).to_bytes(8, "little") + header + b"1", "'a' has numbers of the type F8_E4M3"),
    ):  # fmt: skip
        path.write_bytes(content)
        with pytest.raises(RequestError, match=f"model.safetensors is damaged or not a file of weights: .*{message}"):
            read_huggingface(tmp_path)


OLD_SIDES: dict[str, Any] = {
    "_num_labels": 3, "add_bias_logits": False, "add_final_layer_norm": False, "classif_dropout": 0.0,
    "extra_pos_embeddings": 2, "id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}, "normalize_before": False,
    "num_hidden_layers": 2,
}  # fmt: skip
OLD: dict[str, dict[str, Any]] = {
    "marian": {**OLD_SIDES, "normalize_embedding": False, "static_position_embeddings": True},
    "bart": {
        **OLD_SIDES, "normalize_embedding": True, "static_position_embeddings": False, "output_past": True,
        "force_bos_token_to_be_generated": True,
    },
    "t5": {"output_past": True, "task_specific_params": {"summarization": {"prefix": "summarize: "}}},
    "gpt2": {"n_ctx": 20, "summary_type": "cls_index", "task_specific_params": {"text-generation": {"max_length": 9}}},
    "llama": {"rope_theta": 1e4, "rope_parameters": None, "pretraining_tp": 1, "rope_scaling": None},
    "bert": {"pooler_type": "first_token_transform", "position_embedding_type": "absolute"},
    "roberta": {"output_past": True},
    "distilbert": {"tie_weights_": True},
    "vit": {"encoder_stride": 16},
}  # fmt: skip
# Names of tensors that old files have in place of these, and tensors that they have besides.
OLD_NORM = (".LayerNorm.weight", ".LayerNorm.gamma")
OLD_NAMES = {**dict.fromkeys(("bert", "roberta", "distilbert"), OLD_NORM), "gpt2": ("transformer.", "")}
OLD_TENSORS = {
    "bart": ["model.encoder.version"], "t5": ["decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight"],
    "gpt2": ["h.0.attn.bias", "h.1.attn.masked_bias"], "bert": ["cls.seq_relationship.weight"],
    "roberta": ["embeddings.position_ids"],
    "llama": ["model.layers.0.self_attn.rotary_emb.inv_freq"],
}  # fmt: skip


@pytest.mark.parametrize("kind", OLD)
def test_what_old_files_say_changes_nothing(kind, tmp_path):
    unpack(kind, tmp_path / "new")
    arrays = tensors_of(tmp_path / "new")
    old, new = OLD_NAMES.get(kind, ("", ""))
    arrays = {
        name.replace(old, new).replace(".LayerNorm.bias", ".LayerNorm.beta"): each for name, each in arrays.items()
    }
    arrays |= {name: np.ones(3, "float32") for name in OLD_TENSORS.get(kind, [])}
    write(kind, tmp_path / "old", arrays, **OLD[kind])
    one, other = (read_huggingface(tmp_path / name) for name in ("new", "old"))
    assert one.config == other.config and one.search == other.search
    for weight, like in zip(one.weights.table, other.weights.table, strict=True):
        np.testing.assert_array_equal(one.weights.read(weight), other.weights.read(like))


def test_the_search_of_old_files_stands_in_their_configuration(tmp_path, capsys):
    folder = write("bart", tmp_path, num_beams=3, max_length=9, min_length=5, no_repeat_ngram_size=3)
    (folder / "generation_config.json").unlink()
    guards = {"min_length": 4, "no_repeat_ngram_size": 3}  # theirs count the start
    assert read_huggingface(folder).search == {"num_beams": 3, "length_penalty": 1.0, "max_length": 8, **guards}
    assert not capsys.readouterr().err
    newer = {"num_beams": 5, "max_new_tokens": 20, "transformers_version": "5"}
    (folder / "generation_config.json").write_text(json.dumps(newer))
    assert read_huggingface(folder).search == {"num_beams": 5, "length_penalty": 1.0, "max_length": 20}
    assert json.loads((folder / "config.json").read_text())["num_beams"] == 3, "which is not read then"


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_labels_of_tokens_are_refused_by_name(kind, tmp_path):
    arrays = tensors_of(write(kind, tmp_path))
    head = {"classifier.weight": np.ones((2, 8), "float32"), "classifier.bias": np.ones(2, "float32")}
    write(kind, tmp_path, {**arrays, **head})
    with pytest.raises(RequestError, match="received one for a label of each token, for which there is no task here"):
        read_huggingface(tmp_path)
