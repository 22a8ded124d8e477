"""The import of GPT-2's and Llama's models: weights, lines of ids, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import keras_transformer
from keras_transformer.__main__ import main
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.text.tokenizer import END, START
from tests.importing.causal_folders import CONTEXT, SIZE, WIDTH, tensors, write_causal


def imported(folder, kind, *arrays, **changes):
    return keras_transformer.import_huggingface(write_causal(folder, kind, *arrays, **changes))


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
def test_lines_are_ids_and_texts_go_on(kind, tmp_path):
    generator = imported(tmp_path / "model", kind)
    assert generator.model.context_length == CONTEXT
    ids = read_huggingface(tmp_path / "model").source.ids
    assert len(ids) == (SIZE + 3 if kind == "gpt2" else SIZE + 2) and {*ids} == {*range(SIZE)}
    assert generator.tokenizer.decode_text(generator.tokenizer.encode_text("5 28 7")) == "5 28 7"
    start, end, again = ids[START], ids[END], END if kind == "gpt2" else START
    line = f"{start} 5 {end} {start} 7 {end}"  # the model puts one start before
    assert generator.tokenizer.encode_text(line) == [ids.index(5), END, again, ids.index(7), END]
    [[continuation, *_]] = generator.search(["5 28 7"], SearchOptions(num_beams=1), max_tokens=4)
    assert all(word.isdecimal() for word in continuation.text.split()) and continuation.ids
    with pytest.raises(RequestError, match="expected a line of ids from 0 to 29"):
        generator.generate(["the dog"])


def test_queries_keys_and_values_of_gpt2_lie_side_by_side(tmp_path):
    attention = imported(tmp_path / "model", "gpt2").model.stack.blocks[1].self_attention
    whole = tensors("gpt2")["h.1.attn.c_attn.weight"]
    for place, kernel in enumerate([attention.query_kernel, attention.key_kernel, attention.value_kernel]):
        expected = whole[:, place * WIDTH : (place + 1) * WIDTH]
        np.testing.assert_array_equal(np.array(kernel).reshape(WIDTH, WIDTH), expected)


def test_copies_of_ids_take_no_probability(tmp_path):
    for kind, copies in (("gpt2", [0, 1, START]), ("llama", [0, 1])):
        model = imported(tmp_path / kind, kind).model
        logits = np.array(model({"ids": np.array([[START, 7, END]])}))
        others = np.delete(logits, copies, axis=-1)
        assert logits[..., copies].max() < others.min() - 50


def test_the_command_refuses_to_write_a_run(tmp_path, capsys):
    folder = write_causal(tmp_path / "model", "llama")
    assert main(["import", str(folder), str(tmp_path / "run")]) == 2
    assert "no run can be written of it" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


REFUSED: dict[str, tuple[str, dict[str, Any], str]] = {
    "a rotation that is stretched": ("llama", {"rope_scaling": {"type": "linear", "factor": 2.0}}, "rope_scaling"),
    "a rotation of another type": ("llama", {"rope_parameters": {"rope_type": "llama3"}}, "rope_type"),
    "parameters that are a list": ("llama", {"rope_parameters": [1]}, "expected an object"),
    "biases": ("llama", {"attention_bias": True}, "attention_bias"),
    "several ends": ("llama", {"eos_token_id": [1, 2]}, "eos_token_id"),
    "an end outside": ("gpt2", {"eos_token_id": SIZE}, "eos_token_id"),
    "groups that do not divide": ("llama", {"num_key_value_heads": 3}, "num_key_value_heads"),
    "no activation": ("gpt2", {"activation_function": "tan"}, "activation_function"),
    "unknown options": ("gpt2", {"sliding_window": 4}, "sliding_window"),
    "scores by layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx"),
    "more layers than tensors": ("gpt2", {"n_layer": 3}, "h.2."),
    "fewer layers than tensors": ("llama", {"num_hidden_layers": 1}, "received 'model.layers.1."),
    "another width": ("gpt2", {"n_embd": 10}, "of the shape"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_known_is_refused_by_name(case, tmp_path):
    kind, changes, message = REFUSED[case]
    with pytest.raises(RequestError, match=message):
        read_huggingface(write_causal(tmp_path / "model", kind, **changes))


def test_a_tied_output_that_differs_is_refused(tmp_path):
    with pytest.raises(RequestError, match="expected lm_head.weight to be model.embed_tokens.weight"):
        read_huggingface(write_causal(tmp_path / "model", "llama", tie_word_embeddings=True))
    arrays = tensors("llama")
    arrays["lm_head.weight"] = arrays["model.embed_tokens.weight"]
    assert read_huggingface(write_causal(tmp_path / "tied", "llama", arrays, tie_word_embeddings=True)).config[
        "tied_output"
    ]
