"""Exports a run in Hugging Face's format: a folder that `transformers` loads, with weights, vocabularies and search.

What was written is imported again, and has to compute what the model computes.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.errors import RequestError
from keras_transformer.files import write_folder_whole
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.importing.pieces import is_tag, parsed
from keras_transformer.importing.tensors import TensorFile, write_safetensors
from keras_transformer.importing.weights import Imported
from keras_transformer.lengths import longest
from keras_transformer.making import model_config
from keras_transformer.models.base import FamilyModel
from keras_transformer.options import Config
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, PAD, SPACE, START, Tokenizer

from .artefacts import Decoding, TrainedRun, require_own_parts, require_precision
from .hub_forms import FORMAT, Form, emitted, form_of, resolved, tensors_of

TOLERANCE = 1e-4  # as a share of the range of the logits
NUM_PROBES, PROBE_LENGTH = 4, 8
MARIAN_FILES = ("source.spm", "target.spm")


def require_form(model: FamilyModel) -> None:
    """Raises RequestError, which names what the nearest architecture lacks, unless one of them holds the model."""
    require_own_parts(model, FORMAT, "float32")
    form_of(model_config(model))


def export_huggingface(
    run: TrainedRun, folder: str | os.PathLike[str], decoding: Decoding | None = None, precision: str = "float32"
) -> list[Path]:
    """Writes a folder that `transformers` loads.

    Args:
        run: what to export; `open_run` reads it from a run folder.
        folder: where to write; an older model there is replaced once the new one is whole.
        decoding: the options of the search.
        precision: "float32"; transformers itself casts weights as it loads them.

    Returns:
        The one path written, `huggingface`.

    Raises:
        RequestError: the precision does not exist, no architecture holds the model, its logits would differ there, or
            the path holds something else.
    """
    require_precision(FORMAT, precision)
    require_form(run.model)
    path = Path(folder) / FORMAT
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not (path / "config.json").is_file():
        raise RequestError(f"expected no file at {path}, or a model to replace; received something else: remove it")
    with write_folder_whole(path) as aside:
        form, read = form_of(model_config(run.model))
        layout = form.layout(TensorFile(aside, {}), read)
        write_safetensors(aside / "model.safetensors", tensors_of(run.model, form, layout))
        write_json(aside / "config.json", options_of(run, form, read))
        if run.tokenizers:
            _write_vocabularies(run, aside, form)
        if "pixel_mean" in read:
            write_json(aside / "preprocessor_config.json", processor_of(read))
        if run.pipeline.own_search is not None:
            write_json(aside / "generation_config.json", search_of(run, form, decoding or run.decoding()))
        check_logits(run.model, read_huggingface(aside), form)
    return [path]


def options_of(run: TrainedRun, form: Form, read: Config) -> Config:
    """The content of config.json."""
    config = model_config(run.model)
    sizes = {"vocab_size": config["vocabulary_size"]} if "vocabulary_size" in config else {}
    options: Config = {"model_type": form.name, "architectures": [form.class_of(config)], "dtype": "float32"}
    options |= {**sizes, **ids_of(form, config), **form.options(resolved(config))}
    if config.get("num_labels"):
        labels = [*run.pipeline.names]
        options["id2label"] = {str(number): label for number, label in enumerate(labels)}
        options["label2id"] = {label: number for number, label in enumerate(labels)}
    return options


def ids_of(form: Form, config: Config) -> Config:
    """The ids that config.json names; several may end a text of a language model."""
    return {**form.ids, **({"eos_token_id": config["end_ids"]} if "end_ids" in config else {})}


def search_of(run: TrainedRun, form: Form, decoding: Decoding) -> Config:
    """The content of generation_config.json: the run's search.

    Transformers divides log P by |y|^α, and the run by ((5 + |y|) / 6)^α. α is kept.
    """
    config = model_config(run.model)
    ids = {name: id for name, id in ids_of(form, config).items() if name.endswith("_token_id")}
    search: Config = {"num_beams": decoding.num_beams, "do_sample": False}
    if decoding.num_beams > 1:
        search["length_penalty"] = decoding.length_penalty
    search["bad_words_ids"] = [[id] for id in range(config["num_control_ids"]) if id != END]
    if "max_source_length" in config:
        most = longest(config["max_source_length"])
        search["max_length"] = 1 + min(decoding.max_length or most, most)  # with the start
    elif decoding.max_length is None:
        search["max_length"] = config["context_length"]
    else:
        search["max_new_tokens"] = decoding.max_length
    return {**ids, **search}


def processor_of(config: Config) -> Config:
    """The content of preprocessor_config.json: how images become what the model takes."""
    size, channels = config["image_size"], config["channels"]
    mean, std = (np.broadcast_to(config[name], channels).tolist() for name in ("pixel_mean", "pixel_std"))
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": size, "width": size},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }


def check_logits(model: FamilyModel, imported: Imported, form: Form) -> None:
    """Raises RequestError unless the model that was read again has the same logits."""
    config, other = model_config(model), imported.model()
    inputs = probes(config)
    if not imported.vocabularies:
        ours, theirs = (_array(one(inputs)) for one in (model, other))
    else:
        maps = dict.fromkeys(inputs, ours_of(imported.target.ids))
        maps["source_ids"] = ours_of(imported.source.ids)
        mapped = {name: maps[name][array] for name, array in inputs.items()}
        ours, theirs = _array(model(inputs)), _array(other(mapped))
        if not config.get("num_labels"):
            ids = np.array(emitted(config))
            ours, theirs = ours[..., ids], theirs[..., ours_of(imported.target.ids)[ids]]
    difference = float(np.max(np.abs(ours - theirs)) / np.ptp(ours))
    if not difference <= TOLERANCE:
        epsilons = (one["norm"]["epsilon"] for one in (imported.config, config))
        raise RequestError(
            f"{FORMAT}: as {form.name} the model has other logits, by {difference:.1e} of their range, which is more "
            "than {:g}; its norms have an ε of {:g} there, and of {:g} here".format(TOLERANCE, *epsilons)
        )


def ours_of(ids: Sequence[int]) -> np.ndarray:
    """For each id in the folder, which is the run's, that of the model that was read again."""
    found = np.zeros(max(ids) + 1, "int32")
    for place, id in reversed([*enumerate(ids)]):
        found[id] = place
    found[[PAD, START, END]] = PAD, START, END  # the first three may stand for one id
    return found


def probes(config: Config) -> Config:
    """Inputs of a model, drawn at random: ids of text, or pixels."""
    draw = np.random.default_rng(0)
    if "image_size" in config:
        shape = (NUM_PROBES, config["image_size"], config["image_size"], config["channels"])
        return {"images": draw.integers(0, 256, shape).astype("uint8")}

    def rows(size: int, begins: bool, ends: bool) -> np.ndarray:
        most = min(PROBE_LENGTH, config.get("context_length", PROBE_LENGTH) - begins - ends)
        text = draw.integers(config["num_control_ids"], size, (NUM_PROBES, most))
        sides = [np.full((NUM_PROBES, 1), id) for id in (START, END)]
        return np.concatenate([*sides[:begins], text, *sides[1:][:ends]], axis=1).astype("int32")

    size = config["vocabulary_size"]
    if "max_source_length" not in config:
        return {"ids": rows(size, begins=True, ends="num_labels" in config)}
    source = rows(config["source_vocabulary_size"] or size, begins=False, ends=True)
    return {"source_ids": source, "target_ids": rows(size, begins=True, ends=False)}


def _array(values: object) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(values), "float32")


def _write_vocabularies(run: TrainedRun, folder: Path, form: Form) -> None:
    config = model_config(run.model)
    if form.name == "marian":
        write_marian(folder, run.tokenizers, [*filter(None, run.languages.split("-"))], config["max_source_length"] + 1)
        return
    tokenizer = run.tokenizers[0]
    if tokenizer.has_unused_pieces:
        raise RequestError(f"{FORMAT}: tokenizer.json cannot hold a vocabulary with pieces that no text is cut into")
    if tags := [tag for tag in tokenizer.tags if not tag.startswith(SPACE)]:
        raise RequestError(f"{FORMAT}: tokenizer.json cannot hold the tag {tags[0]}, before which a space is a piece")
    if form.name == "t5":
        (folder / "spiece.model").write_bytes(tokenizer.model)
    before, after = form.around
    after = after or ([CONTROL_PIECES[END]] if run.pipeline.longest_answer else [])  # a question ends with it
    most = config.get("context_length") or config["max_source_length"] + 1
    control = {**form.control, **({"mask_token": form.mask} if tokenizer.has_mask else {})}
    write_tokenizer(folder, tokenizer, control, before, after, most)


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


def write_tokenizer(
    folder: Path, tokenizer: Tokenizer, control: Config, before: Sequence[str], after: Sequence[str], longest: int
) -> None:
    """Writes tokenizer.json, and tokenizer_config.json with the names of the control ids.

    Args:
        folder: where to write.
        tokenizer: the vocabulary.
        control: the names of the first ids, by what transformers calls them, such as "pad_token".
        before, after: the names that stand before and after a text.
        longest: the most ids of a text.
    """
    write_json(folder / "tokenizer.json", tokenizer_json(tokenizer, [*control.values()], before, after))
    options = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": longest,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "extra_ids": 0,  # T5 has some beside its vocabulary, unless told
    }
    write_json(folder / "tokenizer_config.json", {**options, **control})


def tokenizer_json(
    tokenizer: Tokenizer, control: Sequence[str], before: Sequence[str] = (), after: Sequence[str] = ()
) -> Config:
    """The content of tokenizer.json, by which Hugging Face's tokenizers cut text as SentencePiece does.

    Args:
        tokenizer: the vocabulary.
        control: the names of its first ids, which are no text.
        before, after: those that stand before and after a text.
    """
    proto, types = parsed(tokenizer.model)
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


def _normalizers(rules: Any) -> Iterator[Config]:
    """What becomes of a line before it is cut; the spaces of text that is kept as it is stay."""

    def replaced(pattern: str, content: str) -> Config:
        return {"type": "Replace", "pattern": {"Regex": pattern}, "content": content}

    yield replaced("[\\x00\\r\\n]" if rules.remove_extra_whitespaces else "\\x00", " ")
    if rules.precompiled_charsmap:
        yield {"type": "Precompiled", "precompiled_charsmap": base64.b64encode(rules.precompiled_charsmap).decode()}
    if rules.remove_extra_whitespaces:
        yield replaced(" {2,}", " ")
        yield replaced("^ | $", "")


def _decoders(rules: Any) -> Iterator[Config]:
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


def _model(tokenizer: Tokenizer, proto: Any, types: Any, names: Sequence[str]) -> Config:
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
