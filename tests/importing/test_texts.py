"""Models whose vocabulary is a tokenizer of Hugging Face's take and give text, and become runs."""

import json
import re
import shutil
from pathlib import Path
from pydoc_data.topics import topics
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

import keras_transformer
from keras_transformer.__main__ import main
from keras_transformer.core.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.runs.run_folder import RunFolder, load_model
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.text import huggingface_tokenizer
from keras_transformer.text.huggingface_tokenizer import HuggingFaceTokenizer, load_tokenizer, rendered
from keras_transformer.text.tokenizer import END, MASK, START, UNKNOWN
from tests.answers import printed
from tests.importing.text_models import (
    BART,
    ENCODERS,
    FOLDERS,
    LINES,
    SPECIAL,
    byte_bpe,
    byte_bpe_with_ends,
    piece_bpe,
    word_piece,
)
from tests.importing.theirs import SIZE, WORDS, change, tensors_of, tokenizer_of_ids, words_of, write
from tests.training.runs import begun

BERT_IDS = {"[PAD]": 0, "[UNK]": 3, "[CLS]": 4, "[SEP]": 5, "[MASK]": 6}
GREEDY = SearchOptions(num_beams=1)
ODD = [
    *LINES[-8:], "", "  two   spaces ", "\u00a0no-break", "e\u0301 combined", "½ ① ﬁ", "ｆｕｌｌ",
    "'s 't 're", "x" * 70, "# ## ###", "12345 67.8%", "THE Sea!",
]  # fmt: skip


def theirs_of(tokenizer: Any, ids: list[int]) -> list[int]:
    """The ids of the file for ours."""
    return [tokenizer.ids[id] for id in ids]


def test_ids_stand_in_our_order_and_a_run_keeps_the_vocabulary(tmp_path, monkeypatch):
    monkeypatch.setattr(huggingface_tokenizer, "_parsed", parse := Mock(side_effect=huggingface_tokenizer._parsed))
    whole = byte_bpe(special=BART)
    ids = [1, 1, 2, 2, 0, *range(3, whole.get_vocab_size())]
    tokenizer = HuggingFaceTokenizer.of(whole.to_str(), ids)
    tokenizer.save(tmp_path / "tokenizer.json")
    for one in (tokenizer, HuggingFaceTokenizer.load(tmp_path / "tokenizer.json")):
        for line in ODD:
            found = one.encode([line])[0]
            assert theirs_of(one, found) == whole.encode(line).ids and one.encode_text(line) == found
            assert one.decode([[*found, END, 11]]) == [line.strip()] and one.decode_text(found) == line
        assert not one.has_start and not one.has_end and not one.has_mask and one.has_line_breaks
        assert one.vocabulary_size == len(ids) == len(one.pieces(range(len(ids)))) == len(one.surfaces())
        assert one.pieces([START, *one.encode_text("the sea")])[0] == "<s>"
        assert "".join(one.pieces(one.encode_text("the sea"))) == "the▁sea"
        assert one.decode(one.encode(["one\ntwo\0three \ud800"])) == ["one two three \ufffd\ufffd\ufffd"]
        assert {one.text for _ in range(3)} == {whole.to_str()}
    assert parse.call_count == 4, "when each is made, and for its text"
    assert RunFolder(tmp_path).tokenizers(separate=False) == (tmp_path / "tokenizer.json",) * 2


def test_start_and_end_are_left_out_and_special_tokens_in_a_text_are_read(tmp_path):
    words = word_piece()
    place = {token: words.token_to_id(token) for token in SPECIAL}
    ids = [*place.values(), *(id for id in range(words.get_vocab_size()) if id not in place.values())]
    tokenizer = HuggingFaceTokenizer.of(words.to_str(), ids, has_mask=True)
    for line in ODD:
        assert theirs_of(tokenizer, [START, *tokenizer.encode([line])[0], END]) == words.encode(line).ids
    assert tokenizer.has_start and tokenizer.has_end
    assert tokenizer.encode_masked("the <mask> sea") == tokenizer.encode(["the [MASK] sea"])[0]
    assert tokenizer.encode_masked("<mask>") == [MASK]
    assert tokenizer.encode(["[SEP] [PAD]"]) == [[END, UNKNOWN]], "pad in a text is no padding"
    assert tokenizer.unread("the \N{SNOWMAN}") == ["\N{SNOWMAN}"] and not tokenizer.unread("the sea")
    assert tokenizer.pieces([START, MASK]) == ["<s>", "<mask>"]
    assert "".join(tokenizer.pieces(tokenizer.encode(["The seaX"])[0])) == "▁the▁seax"


@pytest.mark.parametrize(
    "content",
    [
        b"", b"[]", b"{}", b"\xff", b'{"ids": [0, 1, 2, 3], "has_mask": false, "tokenizer": "{}"}', b"[" * 100_000,
        b'{"ids": [0, 1, -2, 3], "has_mask": false, "tokenizer": ""}', b'{"ids": 4, "has_mask": 0, "tokenizer": ""}',
    ],
)  # fmt: skip
def test_a_damaged_vocabulary_is_named(content, tmp_path):
    path = tmp_path / "tokenizer.json"
    path.write_bytes(content)
    with pytest.raises(RequestError, match=r"tokenizer\.json is not a tokenizer of this project"):
        load_tokenizer(path)


def test_without_the_package_its_name_is_told(tmp_path, monkeypatch):
    folder, kept = write("gpt2", tmp_path), tmp_path / "kept.json"
    read_huggingface(folder).target.tokenizer.save(kept)
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    for read, path in ((read_huggingface, folder), (load_tokenizer, kept)):
        with pytest.raises(
            RequestError, match=r"needs the package tokenizers, .*: pip install -e '.*\[import\]'"
        ) as told:
            read(path)
        assert "is not a tokenizer of this project" not in str(told.value)


def test_a_folder_without_a_tokenizer_is_refused(tmp_path):
    folder = write("gpt2", tmp_path)
    (folder / "tokenizer.json").unlink()
    (folder / "tokenizer.model").write_bytes(b"")
    with pytest.raises(RequestError, match=r"expected a tokenizer, tokenizer\.json, .*tokenizer\.model alone does not"):
        read_huggingface(folder)
    (folder / "tokenizer.json").write_text(tokenizer_of_ids("gpt2"))
    read_huggingface(folder)
    folder = write("bart", tmp_path / "bart")
    (folder / "tokenizer.json").write_text(tokenizer_of_ids("gpt2"))
    with pytest.raises(RequestError, match="expected a tokenizer that puts an end behind a text"):
        read_huggingface(folder)


def test_ids_of_a_list_of_words_and_of_a_tokenizer_in_json(tmp_path):
    folder = write("bert", tmp_path)
    expected = read_huggingface(folder).source
    for path in folder.glob("tokenizer*.json"):
        path.unlink()
    (folder / "vocab.txt").write_bytes("".join(f"{word}\r\n" for word in WORDS).encode())
    found = read_huggingface(folder).source
    assert found.ids == expected.ids and found.ids[: MASK + 1] == [*BERT_IDS.values()]
    assert found.tokenizer.encode(["The w3, dog"]) == expected.tokenizer.encode(["The w3, dog"])
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": False}))
    assert UNKNOWN in read_huggingface(folder).source.tokenizer.encode(["The"])[0]


ASKED = "{{ bos_token }} 4{% for one in messages %} {{ one.content }}{% endfor %} {{ 5 if add_generation_prompt }}"


def test_a_chat_becomes_text_by_the_models_own_template(tmp_path):
    """In a file of its own or in the tokenizer's; a start that the tokenizer puts there stands once."""
    folder, run = write("llama", tmp_path / "folder"), tmp_path / "run"
    (folder / "chat_template.jinja").write_text(ASKED)
    assert main(["import", str(folder), str(run)]) == 0
    tokenizer = load_tokenizer(run / "tokenizer.json")
    assert tokenizer.chat_text([{"role": "user", "content": "7 8"}]) == " 4 7 8 5"
    told = []
    for flags in (["--chat", "--prompt", "7 8"], ["--beams", "1", "--prompt", " 4 7 8 5"]):
        told.append(printed("generate", run, "--tokens", "5", *flags))
    assert told[1] == f" 4 7 8 5{told[0]}", "a chat shows the answer alone"
    (folder / "chat_template.jinja").unlink()
    named = [{"name": "tools", "template": "3"}, {"name": "default", "template": ASKED}]
    for template in (ASKED, named):
        change(folder, "tokenizer_config.json", chat_template=template)
        assert read_huggingface(folder).source.tokenizer.chat_text([]) == " 4 5"
    change(folder, "tokenizer_config.json", chat_template="")
    with pytest.raises(RequestError, match="this one has none"):
        read_huggingface(folder).source.tokenizer.chat_text([])


@pytest.mark.parametrize(
    ("template", "reason"),
    [
        ("{% if %}", "Expected an expression"), ("{{ raise_exception('two in a row') }}", "two in a row"),
        ("{{ messages.append(4) }}", "append"), ("{{ ''.__class__.__mro__[1].__subclasses__() }}", "unsafe"),
        ("{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}", "more than 2 s"),
        ("{{ 'a' * 10**9 }}", "MemoryError"), ("{{ 'a'|center(10**9) }}", "MemoryError"),
        ("{{ " + "-" * 100_000 + "1 }}", "recursion"), ("{{ raise_exception('\x1b[31m\nred') }}", r"\[31m red$"),
        ("{% set n = namespace(a='a') %}{% for b in range(50) %}{% set n.a = n.a ~ n.a %}{% endfor %}", "MemoryError"),
        ("{% for a in range(99) %}{{ 'a' * 20000 }}{% endfor %}", "more than 1,000,000 characters"),
    ],
)  # fmt: skip
def test_a_template_runs_in_a_sandbox_with_bounds_of_time_memory_and_text(template, reason):
    with pytest.raises(RequestError, match=f"^the model's template for chats refuses: .*{reason}"):
        rendered(template, [{"messages": [{"role": "user", "content": "5"}]}])


def test_ids_of_control_tokens_that_a_file_lacks_are_refused_when_it_opens():
    text, ids = tokenizer_of_ids("bert"), [*range(20)]
    HuggingFaceTokenizer.of(text, [*ids[:MASK], 999, *ids[MASK + 1 :]])
    for more in ({"has_mask": True}, {"chat_template": "4"}):
        for place in (MASK,) if "has_mask" in more else (START, END):
            lacking = [*ids[:place], 999, *ids[place + 1 :]]
            with pytest.raises(ValueError, match="the tokens of a masked line and of a chat"):
                HuggingFaceTokenizer.of(text, lacking, **more)


@pytest.mark.parametrize(("kind", "special"), [("gpt2", "<|endoftext|>"), ("bart", "</s>")])
def test_lists_of_tokens_and_merges(kind, special, tmp_path):
    first = ["<s>", "<pad>", "</s>", "<unk>"] if kind == "bart" else []
    whole = byte_bpe(special=[*first, *([] if first else [special])], alphabet=False, size=SIZE)
    folder = write(kind, tmp_path)
    (folder / "tokenizer.json").unlink()
    whole.model.save(str(folder))
    found = read_huggingface(folder).source.tokenizer
    assert whole.get_vocab_size() == SIZE
    for line in ("the dogs", "two  sea ", f"one{special}two"):
        theirs = [*([0] if first else []), *whole.encode(line).ids]
        assert theirs_of(found, found.encode([line])[0]) == theirs
    change(folder, "added_tokens.json", **{special: 11})
    with pytest.raises(RequestError, match="expected an id of its own"):
        read_huggingface(folder)
    for id in (2**31, 1, "1"):  # the library takes memory for 2^31 ids, or panics
        change(folder, "vocab.json", the=id)
        with pytest.raises(RequestError, match=r"vocab\.json is damaged: expected the ids from 0 on, each once"):
            read_huggingface(folder)


def test_a_translator_begins_as_bart_is_forced_to(tmp_path, eager):
    translator: Any = keras_transformer.import_huggingface(write("bart", tmp_path))
    assert read_huggingface(tmp_path).source.ids == [1, 1, 2, 2, 0, *range(3, SIZE)]
    assert translator.source_tokenizer.encode(["4 49 3", "", "5 2 5 1"]) == [
        [4, 6, 51, 5],
        [4],
        [4, 7, END, 7, UNKNOWN],
    ]
    assert all(line.split()[0] == "0" for line in translator.translate(["4 49 3", "9 8 7"]))
    for stack, table in zip(("encoder", "decoder"), translator.model.positions.get_weights(), strict=True):
        theirs = tensors_of(tmp_path)[f"model.{stack}.embed_positions.weight"]
        np.testing.assert_array_equal(table[: len(theirs)], theirs)
        assert (table[len(theirs) :] == theirs[-1]).all(), "positions beyond the last have the last vector"
    assert translator.max_source_length == 27
    assert main(["import", str(tmp_path), str(tmp_path / "run")]) == 0
    told = printed("translate", tmp_path / "run", "--engine", "onnx", stdin="4 49 3\n9 8 7\n")
    assert told.splitlines() == translator.translate(["4 49 3", "9 8 7"])


@pytest.mark.parametrize(("kind", "start"), [("gpt2", 59), ("llama", 1)])
def test_the_start_of_a_text_is_the_tokenizers(kind, start, tmp_path, eager):
    generator: Any = keras_transformer.import_huggingface(write(kind, tmp_path))
    ids = generator.tokenizer.encode_text("5 28 7")
    assert theirs_of(generator.tokenizer, ids) == [5, 28, 7] and generator.model.context_length == 20
    assert generator.begun_by(ids) == ((START, ids) if kind == "llama" else (ids[0], ids[1:]))
    assert generator.begun_by(generator.ids_of_prompt("")) == (START, [])
    [[best]] = generator.search(["5 28 7"], GREEDY, max_tokens=6)
    [[same]] = generator.generate(["5 28 7"], 6, GREEDY)
    assert best.ids == same.ids and "".join(generator.stream("5 28 7", 6, GREEDY)) == same.text
    [log_prob] = generator.log_probs([ids], [best.ids])
    first, rest = generator.begun_by(ids)
    logits = np.array(generator.model({"ids": np.array([[first, *rest, *best.ids][:-1]])}))[0, len(rest) :]
    expected = sum(row[id] - np.log(np.exp(row).sum()) for row, id in zip(logits, best.ids, strict=True))
    assert log_prob == pytest.approx(expected, abs=1e-4)


def test_a_text_ends_at_any_of_several_ids(tmp_path, eager, capsys):
    """Which of them the search knows changes nothing: the first, or the tokenizer's own."""
    folder, run = write("llama", tmp_path / "model"), tmp_path / "run"
    alone: Any = keras_transformer.import_huggingface(folder)
    prompts = ["5 28 7", "9 30", "41"]
    whole = [best.ids for [best] in alone.search(prompts, GREEDY, max_tokens=9)]
    end = whole[0][3]
    theirs = alone.tokenizer.ids[end]
    change(folder, "generation_config.json", eos_token_id=[2, theirs, 59])
    assert main(["import", str(folder), str(run)]) == 0
    several = keras_transformer.load_generator(run)
    assert several.model.end_ids == [END, end, SIZE + 1] and alone.model.end_ids == END

    def cut(ids: tuple[int, ...]) -> tuple[int, ...]:
        """What stands before an end, and our end."""
        places = [place for place, id in enumerate(ids) if id in several.model.end_ids]
        return (*ids[: places[0]], END) if places else ids

    assert len(cut(whole[0])) <= 4 and len(whole[0]) == 9
    for found in (several.search(prompts, GREEDY, max_tokens=9), several.generate(prompts, 9, GREEDY)):
        assert [best.ids for [best] in found] == [cut(ids) for ids in whole]
    (folder / "chat_template.jinja").write_text("5 {{ messages[0].content }} 7")
    flags = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    turn = {"id": theirs, "content": str(theirs), "special": True, **flags}
    change(folder, "tokenizer.json", added_tokens=[turn])
    change(folder, "tokenizer_config.json", eos_token={"content": str(theirs)})
    again = read_huggingface(folder)
    assert again.target.ids[END] == theirs and [again.target.ids[id] for id in again.config["end_ids"][1:]] == [2, 59]
    assert main(["import", str(folder), str(tmp_path / "again")]) == 0
    capsys.readouterr()
    assert main(["generate", str(tmp_path / "again"), "--chat", "--prompt", "28", "--tokens", "9"]) == 0
    words = [str(alone.tokenizer.ids[id]) for id in cut(whole[0])[:-1]]
    assert capsys.readouterr().out.split() == words, "the answer alone, without an end"


@pytest.mark.parity
def test_a_language_model_is_fine_tuned_with_all_its_ends(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    FOLDERS["llama"](tmp_path / "model")
    change(tmp_path / "model", "generation_config.json", eos_token_id=[2, 12, 30])
    assert main(["import", "model", "parent"]) == 0
    Path("text").write_text("the sea\ntwo dogs and a cat\n" * 40)
    made: Any = begun(tmp_path, "--text text --steps 1 --devices cpu --out run --init-from parent")
    parent: Any = load_model("parent")
    assert made.model.end_ids == parent.end_ids and len(parent.end_ids) == 3


@pytest.mark.parity
@pytest.mark.parametrize("ends", [[2, 12, 30], [12, 2, 44, 9]])
def test_several_ends_are_those_of_transformers(ends, tmp_path, eager):
    """Greedy texts are the same. A search with beams finds texts as likely as theirs, by the probability of any end."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = write("llama", tmp_path)
    change(folder, "generation_config.json", eos_token_id=ends)
    generator: Any = keras_transformer.import_huggingface(folder)
    model = transformers.LlamaForCausalLM.from_pretrained(str(folder))
    num_ended = 0
    for prompt in np.random.default_rng(2).integers(3, SIZE - 1, (5, 4)).tolist():
        ids = torch.tensor([[1, *prompt]])
        given = {"attention_mask": ids * 0 + 1, "pad_token_id": 0, "bad_words_ids": [[1]], "max_new_tokens": 6}
        read = [*map(generator.tokenizer.own_id, prompt)]

        def ours_of(found: Any, ids: Any = ids, generator: Any = generator) -> list[int]:
            added = found[0, ids.shape[1] :].tolist()
            return [END if id in ends else generator.tokenizer.own_id(id) for id in added if id]

        theirs = ours_of(model.generate(ids, do_sample=False, num_beams=1, **given))
        [[best]] = generator.search_ids([read], GREEDY, 6)
        assert list(best.ids) == theirs
        wide = SearchOptions(num_beams=5, length_penalty=0.0)
        [[best]] = generator.search_ids([read], wide, 6)
        theirs = ours_of(model.generate(ids, do_sample=False, num_beams=5, length_penalty=0.0, **given))
        if theirs[-1] == END:  # our search prefers a text that ends to one that is cut
            assert best.score > generator.log_probs([read], [theirs])[0] - 1e-4
            num_ended += 1
    assert num_ended > 1


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_a_classifier_and_its_run(kind, tmp_path, capsys):
    labels, words = {"0": "crane", "1": "dog", "2": "crane"}, words_of(kind)
    folder, unknown = write(f"{kind}-labels", tmp_path / "model", id2label=labels), words[3]
    classifier: Any = keras_transformer.import_huggingface(folder)
    own = [read_huggingface(folder).source.ids.index(words.index(word)) for word in ("w2", "w0")]
    assert classifier.ids(f"w2 w0 {unknown}") == [START, *own, UNKNOWN, END]
    assert classifier.labels == ["crane", "dog", "crane (2)"], "labels of the same name get their number"
    assert main(["import", str(tmp_path / "model"), str(tmp_path / "run")]) == 0
    assert "a run of --task classification" in capsys.readouterr().err
    again = keras_transformer.load_classifier(tmp_path / "run")
    assert (
        again.classify(["the dog", "w3"]) == classifier.classify(["the dog", "w3"])
        and again.labels == classifier.labels
    )


@pytest.mark.parametrize(("kind", "spelled"), [("bert", "[MASK]"), ("roberta", "<mask>"), ("distilbert", "[MASK]")])
def test_masks_are_filled_and_a_model_without_a_head_gives_vectors_alone(kind, spelled, tmp_path):
    write(f"{kind}-tokens", tmp_path / "model")
    assert main(["import", str(tmp_path / "model"), str(tmp_path / "run")]) == 0
    classifier = keras_transformer.load_classifier(tmp_path / "run")
    [by_name], [by_token] = (classifier.fill([f"the {mask} w3"]) for mask in ("<mask>", spelled))
    assert by_name == by_token and len(by_name) == 1
    assert all(one.label.removeprefix("▁") in words_of(kind) for one in by_name[0] or ())
    vectors: Any = keras_transformer.import_huggingface(write(kind, tmp_path / "vectors"))
    with pytest.raises(RequestError, match="fills masks"):
        vectors.fill(["the dog"])


def assert_fills_alike(classifier: Any, model: Any, auto: Any, line: str) -> None:
    """The likeliest piece of a mask behind the line is that of transformers."""
    inputs = auto(f"{line} {auto.mask_token}", return_tensors="pt")
    logits = model(**inputs).logits[0, -2].detach().numpy()  # before the end
    [[[best, *_]]] = classifier.fill([f"{line} <mask>"])
    own = classifier.tokenizer.ids[5:]  # ours are no control ids
    assert best.label == classifier.tokenizer.pieces([5 + int(logits[own].argmax())])[0]


def assert_logits_are_close(kind: str, pipeline: Any, model: Any, given: Any) -> None:
    """At each position of a text, as a share of the range of the logits; ours before the end may be copies."""
    theirs, ids = np.array(pipeline.tokenizers[0].ids), given["input_ids"]
    expected = model(input_ids=ids, **({"decoder_input_ids": ids} if kind == "bart" else {})).logits[0]
    expected = expected.detach().numpy()[:, theirs[END:]]
    places = {id: place for place, id in enumerate(theirs.tolist())}
    own = np.array([[places[id] for id in ids[0].tolist()]])
    inputs = {"source_ids": own, "target_ids": own} if kind == "bart" else {"ids": own}
    found = np.array(pipeline.model(inputs))[0, :, END:]
    np.testing.assert_allclose(found, expected, atol=1e-4 * np.ptp(expected), rtol=0)


WIDE = 512
TOKENIZERS: dict[str, Any] = {
    "bert": word_piece, "distilbert": word_piece, "roberta": byte_bpe_with_ends, "bart": byte_bpe_with_ends,
    "gpt2": byte_bpe, "llama": piece_bpe,
}  # fmt: skip


@pytest.mark.parity
@pytest.mark.parametrize("width", [16, pytest.param(WIDE, marks=pytest.mark.long)])
@pytest.mark.parametrize("kind", FOLDERS)
def test_text_in_and_out_is_that_of_transformers(kind, width, tmp_path, eager, capsys):
    """Wide models have a vocabulary of real size, trained on English and code: the pages of Python's help."""
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder, tokenizer, lines = tmp_path / "model", None, ODD
    if width == WIDE and kind in TOKENIZERS:
        pages = [line.strip() for page in topics.values() for line in page.split("\n") if len(line.split()) > 5]
        tokenizer, lines = TOKENIZERS[kind](6_000, text=pages), [*pages[::10], *ODD]
    model = FOLDERS[kind](folder, tokenizer, width)
    auto = transformers.AutoTokenizer.from_pretrained(str(folder))
    pipeline: Any = keras_transformer.import_huggingface(folder)
    assert main(["import", str(folder), str(tmp_path / "run")]) == 0
    assert "warning" not in capsys.readouterr().err
    load = {"bart": "load", **dict.fromkeys(ENCODERS, "load_classifier")}.get(kind, "load_generator")
    for one in (pipeline, getattr(keras_transformer, load)(tmp_path / "run")):
        tokenizer = one.tokenizers[0]
        around = ([START] * (tokenizer.has_start and kind != "bart"), [END] * tokenizer.has_end)
        for line in lines:
            ids = tokenizer.encode([line])[0] if tokenizer.has_end else tokenizer.encode_text(line)
            assert theirs_of(tokenizer, [*around[0], *ids, *around[1]]) == auto(line)["input_ids"], line
        for line in [*lines[: 10 * (width == WIDE)], *LINES[-5:]]:
            inputs = auto(line, return_tensors="pt")
            assert_logits_are_close(kind, one, model, inputs)
            if kind in ENCODERS:
                states = model.base_model(**inputs).last_hidden_state[0]
                np.testing.assert_allclose(one.embed([line])[0], states.mean(0).detach(), atol=1e-4)
                assert_fills_alike(one, model, auto, line)
                continue
            # At its limit BART is forced to end.
            options = {"max_new_tokens": 12 + (kind == "bart"), "do_sample": False, "num_beams": 1}
            with torch.no_grad():
                found = model.generate(**inputs, **options)[0]
            text = auto.decode(found, skip_special_tokens=True)
            if kind == "bart":
                assert one.translate(line, num_beams=1, max_length=12, split="off") == text.strip()
            else:
                [[best]] = one.search([line], GREEDY, max_tokens=12)
                assert line + best.text == text


@pytest.mark.parity
@pytest.mark.parametrize("kind", ["gpt2", "bart", "bert"])
def test_older_files_of_a_tokenizer_are_read_as_transformers_reads_them(kind, tmp_path):
    transformers = pytest.importorskip("transformers")
    FOLDERS[kind](tmp_path)
    whole = json.loads((tmp_path / "tokenizer.json").read_text())["model"]
    for path in tmp_path.glob("tokenizer*"):
        path.unlink()
    if kind == "bert":
        (tmp_path / "vocab.txt").write_text(
            "".join(f"{word}\n" for word in sorted(whole["vocab"], key=whole["vocab"].get))
        )
    else:
        (tmp_path / "vocab.json").write_text(json.dumps(whole["vocab"]))
        (tmp_path / "merges.txt").write_text(
            "#version: 0.2\n" + "".join(f"{' '.join(pair)}\n" for pair in whole["merges"])
        )
    auto = transformers.AutoTokenizer.from_pretrained(str(tmp_path))
    found = read_huggingface(tmp_path).source.tokenizer
    for line in [*ODD, "the </s> [MASK] <|endoftext|> sea"]:
        around = {"bart": ([], [END]), "bert": ([START], [END])}.get(kind, ([], []))
        assert theirs_of(found, [*around[0], *found.encode([line])[0], *around[1]]) == auto(line)["input_ids"], line


def test_a_tokenizer_that_is_damaged_is_named(tmp_path):
    folder = write("bart", tmp_path)
    without_unknown = tokenizer_of_ids("bart").replace('"unk_token": "3"', '"unk_token": "x"').encode()
    for content in (b"{}", b"\xff", b'{"model": {"type": "BPE", "vocab": {}, "merges": [["a"]]}}', without_unknown):
        (folder / "tokenizer.json").write_bytes(content)
        with pytest.raises(RequestError, match=re.escape(str(folder / "tokenizer.json"))):
            read_huggingface(folder)
    shutil.rmtree(folder)
    assert not Path(folder).exists()


@pytest.mark.parametrize(("mode", "is_unit"), [("mean_tokens", True), ("cls_token", False)])
def test_vectors_are_as_the_files_of_sentence_transformers_say(mode, is_unit, tmp_path):
    folder = write("bert", tmp_path / "model")
    plain: Any = keras_transformer.import_huggingface(folder)
    types = ["Transformer", "Pooling", *["Normalize"] * is_unit]
    home = "sentence_transformers.models"
    modules = [{"path": f"{place}_{type}", "type": f"{home}.{type}"} for place, type in enumerate(types)]
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "1_Pooling").mkdir()
    modes = {"word_embedding_dimension": 8, f"pooling_mode_{mode}": True, "pooling_mode_max_tokens": False}
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
    assert main(["import", str(folder), str(tmp_path / "run")]) == 0
    texts = ["the dog", "w1 w2 w3 w4 w5"]
    states = [np.array(plain.model.states(np.array([plain.ids(text)])))[0] for text in texts]
    expected = [each.mean(0) if mode == "mean_tokens" else each[0] for each in states]
    expected = [each / np.linalg.norm(each) if is_unit else each for each in expected]
    found = keras_transformer.load_classifier(tmp_path / "run").embed(texts)
    np.testing.assert_allclose(found, expected, atol=1e-5)
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({**modes, "pooling_mode_max_tokens": True}))
    with pytest.raises(RequestError, match="expected the mean or the first state alone; received .*max_tokens"):
        read_huggingface(folder)
    (folder / "modules.json").write_text(json.dumps([*modules, {"path": "3", "type": f"{home}.Dense"}]))
    with pytest.raises(RequestError, match="expected no modules but pooling; received 'Dense'"):
        read_huggingface(folder)
    for content in ("{}x", "[1]", '[{"type": 1, "path": ""}]', "[" * 100_000, '[{"type": "a"}]'):
        (folder / "modules.json").write_text(content)
        with pytest.raises(RequestError, match="is damaged"):
            read_huggingface(folder)
    for path in ("\0", "\ud800", "\x1b[31m", "x" * 1_000, "../.."):
        (folder / "modules.json").write_text(json.dumps([{"type": "a.Pooling", "path": path}]))
        with pytest.raises(RequestError, match=r"^expected (the name of )?a file.*[^\n\x1b]$"):
            read_huggingface(folder)


@pytest.mark.parametrize("kind", ["bert-tokens", "roberta-tokens"])
def test_an_imported_encoder_is_fine_tuned_with_its_vocabulary_and_its_layers(kind, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["import", str(write(kind, tmp_path / "model")), "filling"]) == 0
    Path("text").write_text("the dog w1 w2\nw3 w4 the w5\n" * 40)
    Path("labelled").write_text("".join(f"yes\tthe dog w{place}\nno\tw3 w{place}\n" for place in range(40)))
    parent: Any = load_model("filling")
    for task, text in (("masked-tokens", "text"), ("classification", "labelled")):
        flags = f"--task {task} --text {text} --steps 1 --devices cpu --out {task} --init-from filling"
        made: Any = begun(tmp_path, flags)
        assert Path(task, "tokenizer.json").read_bytes() == Path("filling/tokenizer.json").read_bytes()
        ids = np.array([[START, 8, 9, END]])
        np.testing.assert_allclose(made.model.states(ids), parent.states(ids), atol=1e-6)
        assert made.model.head_layer is not None
        is_same = np.array_equal(made.model.head_layer.kernel, parent.head_layer.kernel)
        assert is_same == (task == "masked-tokens"), "before labels stands another layer"


@pytest.mark.parametrize(
    ("files", "most"),
    [
        ({"sentence_bert_config.json": {"max_seq_length": 6, "do_lower_case": False}}, 6),
        ({"sentence_roberta_config.json": {"max_seq_length": 5}, "tokenizer_config.json": {"model_max_length": 7}}, 5),
        ({"sentence_bert_config.json": {"max_seq_length": None}, "tokenizer_config.json": {"model_max_length": 7}}, 7),
        ({"tokenizer_config.json": {"model_max_length": 10**30}}, 20),
        ({"sentence_bert_config.json": {"max_seq_length": 512}}, 20),
    ],
)
def test_a_text_is_cut_where_sentence_transformers_cuts_it(files, most, tmp_path):
    """The vector is that of the first tokens, between start and end; the positions that are left keep their vectors."""
    folder = write("roberta", tmp_path)
    whole: Any = keras_transformer.import_huggingface(folder)
    (folder / "modules.json").write_text(json.dumps([{"path": "", "type": "models.Transformer"}]))
    for name, values in files.items():
        (folder / name).write_text(json.dumps(values))
    cut: Any = keras_transformer.import_huggingface(folder)
    text = [f"w{number}" for number in range(30)]
    assert cut.model.context_length == len(cut.ids(" ".join(text))) == most
    np.testing.assert_allclose(
        cut.embed([" ".join(text)]), whole.embed([" ".join(text[: most - 2])]), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"do_lower_case": True}, "'do_lower_case'"),
        ({"max_seq_length": 1}, "context_length"),
        ({"max_seq_length": "x"}, "a number"),
    ],
)
def test_a_longest_text_that_cannot_be_is_refused(values, message, tmp_path):
    folder = write("bert", tmp_path)
    (folder / "modules.json").write_text("[]")
    (folder / "sentence_bert_config.json").write_text(json.dumps(values))
    with pytest.raises(RequestError, match=message):
        read_huggingface(folder)
