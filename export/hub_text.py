"""The vocabularies of a run in the files of Hugging Face's tokenizers, and those of sentence-transformers."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, TypeAlias

from keras_transformer.core.errors import RequestError
from keras_transformer.importing.encoders import LONGEST, MODULES
from keras_transformer.importing.sentencepiece_rewrite import is_tag
from keras_transformer.models.model_factory import model_config
from keras_transformer.spec.options import Config
from keras_transformer.text.huggingface_tokenizer import HuggingFaceTokenizer
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, PAD, SPACE, START, UNKNOWN, Tokenizer, parse_model

from .artefacts import TrainedRun
from .hub_forms import FORMAT, Form

# A message of SentencePiece, which has no types, or a part of one.
Message: TypeAlias = Any
MARIAN_FILES = ("source.spm", "target.spm")
POOLING = "1_Pooling"


def write_vocabularies(run: TrainedRun, folder: Path, form: Form) -> None:
    """Writes the files of the tokenizer that the architecture has, and how a model of vectors makes them of states.

    Raises:
        RequestError: they cannot hold a vocabulary.
    """
    config, tokenizer = model_config(run.model), run.tokenizers[0]
    most = config.get("context_length") or config["max_source_length"] + 1
    if "first_state" in config and not config["head_layer"]:
        write_pooling(config, folder)
    if form.name == "marian":
        write_marian(folder, run.tokenizers, [*filter(None, run.languages.split("-"))], most)
        return
    if isinstance(tokenizer, HuggingFaceTokenizer):
        (folder / "tokenizer.json").write_text(tokenizer.text, encoding="utf-8")
        write_tokenizer_config(folder, most, special_tokens(run, tokenizer, form))
        return
    if tokenizer.has_unused_pieces:
        raise RequestError(f"{FORMAT}: tokenizer.json cannot hold a vocabulary with pieces that no text is cut into")
    if tags := [tag for tag in tokenizer.tags if not tag.startswith(SPACE)]:
        raise RequestError(f"{FORMAT}: tokenizer.json cannot hold the tag {tags[0]}, before which a space is a piece")
    if form.name == "t5":
        (folder / "spiece.model").write_bytes(tokenizer.model)
    before, after = form.around
    after = after or ([CONTROL_PIECES[END]] if run.pipeline.longest_answer else [])  # a question ends with it
    control = {**form.control, **({"mask_token": form.mask} if tokenizer.has_mask else {})}
    write_json(folder / "tokenizer.json", tokenizer_json(tokenizer, [*control.values()], before, after))
    write_tokenizer_config(folder, most, control)


def special_tokens(run: TrainedRun, tokenizer: HuggingFaceTokenizer, form: Form) -> Config:
    """What transformers calls the special tokens of a run's own tokenizer.json, and its template for chats.

    A token that the file reads as text has no name: with one, text that spells the token would be cut otherwise.
    """
    named = named_ids(run, form, tokenizer.ids)
    names = [*form.control, *(["mask_token"] if tokenizer.has_mask else [])]
    ids = dict(zip(names, tokenizer.ids, strict=False))
    ids |= {name: named[f"{name}_id"] for name in ids if name != "eos_token" and f"{name}_id" in named}
    tokens = {name: tokenizer.library.id_to_token(id) for name, id in ids.items()}
    if tokenizer.ids[UNKNOWN] == tokenizer.ids[PAD]:  # the model has none
        tokens["unk_token"] = json.loads(tokenizer.text)["model"].get("unk_token")
    special = {token.content for token in tokenizer.library.get_added_tokens_decoder().values() if token.special}
    found = {name: token for name, token in tokens.items() if token in special}
    return {**found, "chat_template": tokenizer.chat_template} if tokenizer.chat_template else found


def named_ids(run: TrainedRun, form: Form, ids: Sequence[int]) -> Config:
    """The ids that config.json names, and its other options of this kind.

    Args:
        run, form: the run, and its architecture.
        ids: for each id of the run the one in the folder.
    """
    found = {name: ids[value] if type(value) is int else value for name, value in form.ids.items()}
    ends = model_config(run.model).get("end_ids", END)
    if isinstance(ends, list):
        found["eos_token_id"] = [ids[end] for end in ends]
    if beginning := beginning_of(run, form):
        found["bos_token_id"] = ids[beginning[0]]
    if "decoder_start_token_id" not in found and ids[PAD] == ids[START]:  # it has no pad, and the end does as well
        found["pad_token_id"] = ids[END]
    return found


def beginning_of(run: TrainedRun, form: Form) -> Sequence[int]:
    """The ids with which each translation begins.

    Raises:
        RequestError: they are several, and a search of transformers is forced to begin with one.
    """
    pipeline: Any = run.pipeline
    ids = pipeline.beginning if "decoder_start_token_id" in form.ids else []
    if len(ids) > 1:
        raise RequestError(f"{FORMAT}: a translation begins with one id there; this run has {len(ids)}")
    return ids


def write_pooling(config: Config, folder: Path) -> None:
    """Writes how the states of a text become its vector, as sentence-transformers reads it."""
    names = {"Transformer": "", "Pooling": POOLING, **({"Normalize": "2_Normalize"} if config["unit_vectors"] else {})}
    modules = [
        {"idx": place, "name": str(place), "path": path, "type": f"sentence_transformers.models.{name}"}
        for place, (name, path) in enumerate(names.items())
    ]
    (folder / MODULES).write_text(json.dumps(modules, indent=2) + "\n", encoding="utf-8")
    (folder / POOLING).mkdir()
    modes = {"cls_token": config["first_state"], "mean_tokens": not config["first_state"], "max_tokens": False}
    options = {f"pooling_mode_{name}": is_on for name, is_on in modes.items()}
    write_json(folder / POOLING / "config.json", {"word_embedding_dimension": config["hidden_dim"], **options})
    write_json(folder / LONGEST[0], {"max_seq_length": config["context_length"], "do_lower_case": False})


def write_json(path: Path, content: Config) -> None:
    """Writes a JSON file."""
    path.write_text(json.dumps(content, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def write_marian(folder: Path, tokenizers: Sequence[Tokenizer], languages: Sequence[str], longest: int) -> None:
    """Writes what `MarianTokenizer` reads: SentencePiece's models of both sides, and the ids of their pieces.

    Args:
        folder: where to write.
        tokenizers: those of source and target.
        languages: those of source and target, or none.
        longest: the most ids of a source, with its end.
    """
    is_shared = tokenizers[0].model == tokenizers[1].model
    for name, vocabulary, tokenizer in zip(MARIAN_FILES, ("vocab.json", "target_vocab.json"), tokenizers, strict=True):
        (folder / name).write_bytes(tokenizer.model)
        if name == MARIAN_FILES[0] or not is_shared:
            pieces = tokenizer.pieces(range(tokenizer.vocabulary_size))
            # Marian's tokenizer cuts a tag off before SentencePiece reads the line.
            names = [piece[1:] if piece.startswith(SPACE) and is_tag(piece[1:]) else piece for piece in pieces]
            write_json(folder / vocabulary, {name: id for id, name in enumerate(names)})
    sides = dict(zip(("source_lang", "target_lang"), languages, strict=False))
    pad, unknown, start, end = CONTROL_PIECES
    control = {"pad_token": pad, "unk_token": unknown, "bos_token": start, "eos_token": end}
    options = {"tokenizer_class": "MarianTokenizer", "separate_vocabs": not is_shared, "model_max_length": longest}
    write_json(folder / "tokenizer_config.json", {**options, **control, **sides})


def write_tokenizer_config(folder: Path, longest: int, named: Config) -> None:
    """Writes tokenizer_config.json.

    Args:
        folder: where to write.
        longest: the most ids of a text.
        named: the special tokens, by what transformers calls them, such as "pad_token"; and a template for chats.
    """
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "extra_ids": 0,  # T5 has some beside its vocabulary, unless told
    }
    write_json(folder / "tokenizer_config.json", {**options, **named})


def tokenizer_json(
    tokenizer: Tokenizer, control: Sequence[str], before: Sequence[str] = (), after: Sequence[str] = ()
) -> Config:
    """The content of tokenizer.json, by which Hugging Face's tokenizers cut text as SentencePiece does.

    Args:
        tokenizer: the vocabulary.
        control: the names of its first ids, which are no text.
        before, after: those that stand before and after a text.
    """
    proto = parse_model(tokenizer.model)
    types = proto.SentencePiece
    names = [*control, *(piece.piece for piece in proto.pieces[len(control) :])]
    added = [_added(id, name, is_special=True) for id, name in enumerate(control)]
    for id, piece in enumerate(proto.pieces[len(control) :], len(control)):
        if piece.type == types.USER_DEFINED:
            added.append(_added(id, piece.piece.removeprefix(SPACE), follows_space=piece.piece.startswith(SPACE)))
            names[id] = piece.piece.removeprefix(SPACE)
    rules = proto.normalizer_spec
    prepended = "always" if rules.add_dummy_prefix else "never"
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": added,
        "normalizer": {"type": "Sequence", "normalizers": [*_normalizers(rules)]},
        "pre_tokenizer": {"type": "Metaspace", "replacement": SPACE, "prepend_scheme": prepended, "split": False},
        "post_processor": _template(names, before, after),
        "decoder": {"type": "Sequence", "decoders": [*_decoders(rules)]},
        "model": _model(tokenizer, proto, types, names),
    }


def _added(id: int, content: str, is_special: bool = False, follows_space: bool = False) -> Config:
    return {
        "id": id, "content": content, "single_word": False, "lstrip": follows_space, "rstrip": False,
        "normalized": False, "special": is_special,
    }  # fmt: skip


def _normalizers(rules: Message) -> Iterator[Config]:
    """What becomes of a line before it is cut; the spaces of text that is kept as it is stay."""

    def replaced(pattern: str, content: str) -> Config:
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}

    yield replaced("[\\x00\\r\\n]" if rules.remove_extra_whitespaces else "\\x00", " ")
    if rules.precompiled_charsmap:
        yield {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules.precompiled_charsmap).decode()}
    if rules.remove_extra_whitespaces:
        yield replaced(" {2,}", " ")
        yield replaced("^ | $", "")


def _decoders(rules: Message) -> Iterator[Config]:
    yield {"type": "Replace", "pattern": {"String": SPACE}, "content": " "}
    yield {"type": "ByteFallback"}
    yield {"type": "Fuse"}
    if rules.add_dummy_prefix:
        yield {"type": "Strip", "content": " ", "start": 1, "stop": 0}


def _template(names: Sequence[str], before: Sequence[str], after: Sequence[str]) -> Config:
    """The control ids around a text, and behind the second of two texts."""

    def special(names: Sequence[str]) -> list[Config]:
        return [{"SpecialToken": {"id": name, "type_id": 0}} for name in names]

    single = [*special(before), {"Sequence": {"id": "A", "type_id": 0}}, *special(after)]
    pair = [*single, {"Sequence": {"id": "B", "type_id": 0}}, *special(after)]
    tokens = {
        name: {"id": name, "ids": [names.index(name)], "tokens": [name]} for name in dict.fromkeys([*before, *after])
    }
    return {"type": "TemplateProcessing", "single": single, "pair": pair, "special_tokens": tokens}


def _model(tokenizer: Tokenizer, proto: Message, types: Message, names: Sequence[str]) -> Config:
    """The pieces: with their scores, or of BPE with what is merged, the best first."""
    unknown = next(id for id, piece in enumerate(proto.pieces) if piece.type == types.UNKNOWN)
    if tokenizer.model_type == "unigram":
        scored = [[name, piece.score] for name, piece in zip(names, proto.pieces, strict=True)]
        return {"type": "Unigram", "unk_id": unknown, "vocab": scored, "byte_fallback": tokenizer.has_bytes}
    scores = {piece.piece: piece.score for piece in proto.pieces if piece.type == types.NORMAL}
    ranked = sorted(scores, key=lambda piece: -scores[piece]) if tokenizer.model_type == "bpe" else []
    halves = ((piece[:place], piece[place:]) for piece in ranked for place in range(1, len(piece)))
    return {
        "type": "BPE", "dropout": None, "unk_token": names[unknown], "continuing_subword_prefix": None,
        "end_of_word_suffix": None, "fuse_unk": True, "byte_fallback": tokenizer.has_bytes, "ignore_merges": False,
        "vocab": {name: id for id, name in enumerate(names)},
        "merges": [[one, two] for one, two in halves if one in scores and two in scores],
    }  # fmt: skip
