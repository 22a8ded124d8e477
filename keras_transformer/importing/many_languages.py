"""Imports translators between many languages: M2M-100 (Fan et al. 2020, arXiv 2010.11125), NLLB-200 (NLLB Team 2022,
arXiv 2207.04672) and mBART-50 (Tang et al. 2020, arXiv 2008.00401).

M2M-100 and NLLB-200 are the paper's model with norms before the sub-layers and behind each stack, biases in attention,
and one matrix for sources, translations and logits. Their sinusoids are those of fairseq: positions begin at 2, all
sines stand before all cosines, and the exponents of the D/2 frequencies reach from 0 to 1. They are read as learned
positions, whose table is computed here. mBART-50 is BART with norms before the sub-layers and behind each stack.

A source begins with the tag of its language, and a translation with that of its own, such as `eng_Latn`, `__en__` or
`en_XX`. Where the folder has a SentencePiece model, it cuts text, and the tags become pieces. Decoding starts with the
end id, so the row of our start id is a copy of the end's.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.core.errors import RequestError
from keras_transformer.importing.bart_models import (
    BART_REQUIRED,
    BART_WITHOUT_EFFECT,
    OFFSET,
    OUTPUT,
    SEQ2SEQ_REQUIRED,
    SEQ2SEQ_WITHOUT_EFFECT,
    SHARED,
    SOURCE,
    TARGET,
    bart_arguments,
    bart_blocks,
    bart_config,
    bart_layout,
)
from keras_transformer.importing.folder import (
    GENERATION,
    HARMLESS_OPTIONS,
    SPECIAL,
    ModelFolder,
    Options,
    RequiredValues,
    completed,
    options_of,
    search_of,
)
from keras_transformer.importing.sentencepiece_rewrite import (
    MAX_MODEL_BYTES,
    ControlIds,
    Vocabulary,
    fixed_logits,
    tagged_vocabularies,
)
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.text_files import ADDED, MAP, TOKENIZER, WHOLE, content_of, dicts_in, text_vocabulary
from keras_transformer.importing.weights import Imported, Layout, Weight, Weights, first_of, norm_weights, open_weights
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import longest
from keras_transformer.text.tokenizer import parse_model

NORMS: RequiredValues = {"add_final_layer_norm": True, "normalize_before": True}
REQUIRED: RequiredValues = {
    **SEQ2SEQ_REQUIRED, **NORMS, "normalize_embedding": False, "static_position_embeddings": True,
    "tie_word_embeddings": True,
}  # fmt: skip
MBART_REQUIRED: RequiredValues = {**SEQ2SEQ_REQUIRED, **BART_REQUIRED, **NORMS}
FINAL_NORMS = [
    *norm_weights("encoder_stack.norm", "model.encoder.layer_norm"),
    *norm_weights("decoder_stack.norm", "model.decoder.layer_norm"),
]
COPIES = [SHARED, SOURCE, TARGET, OUTPUT]
# Old files have tables of positions too.
SINUSOIDS = {"model.encoder.embed_positions.weights", "model.decoder.embed_positions.weights"}
SENTENCEPIECE, IDS = "sentencepiece.bpe.model", "vocab.json"
CONTROLS = ("<s>", "<pad>", "</s>", "<unk>")  # fairseq's, by their ids
# A tag and its language: those of NLLB and mBART are the same text, M2M-100's has the language inside.
LANGUAGE = re.compile(r"(?P<same>[a-z]{2,3}_[A-Za-z]{2,8})|__(?P<inner>\w{2,20})__")
BEHIND = ["MBartTokenizer", "MBartTokenizerFast"]  # those that put tags behind sources


class _Text(NamedTuple):
    """What a folder has for text.

    Args:
        ids: the ids of all pieces and special tokens but tags.
        special: the special tokens among them.
        tags: the ids of the tags of languages.
        model: the SentencePiece model; None where tokenizer.json stands alone.
    """

    ids: dict[str, int]
    special: set[str]
    tags: dict[str, int]
    model: bytes | None


def read(folder: ModelFolder, is_mbart: bool = False) -> Imported:
    """Reads a model of M2M-100 or NLLB-200, or one of mBART-50.

    Raises:
        RequestError: a file is missing or damaged, the folder names no languages or has tags behind sources, or the
            model has an option or a tensor that is not known.
    """
    options = options_of(folder, "config.json", MBART_REQUIRED if is_mbart else REQUIRED)
    options.take_start(folder)
    size = options.size("vocab_size")
    text = _text(folder, size)
    control = _control_ids(folder, text.ids, options)
    vocabularies = _vocabularies(folder, text, control)
    codes = {_code(tag): tag for tag in text.tags}
    forced = folder.json(GENERATION if folder.has(GENERATION) else "config.json").get("forced_bos_token_id")
    named = {"forced_bos_token_id": forced} if forced in text.tags.values() else {}
    search = search_of(folder, options, control.end, {*control} - {control.end}, named)
    ids = vocabularies[0].ids
    config = (mbart_arguments if is_mbart else arguments)(options) | {"vocabulary_size": len(ids)}
    options.finish(HARMLESS_OPTIONS | SEQ2SEQ_WITHOUT_EFFECT | BART_WITHOUT_EFFECT)
    config = completed(options, config)
    file = open_weights(folder)
    weights = Weights(file, (mbart_layout if is_mbart else layout)(file, config, ids, size))
    target = next((_code(tag) for tag, id in text.tags.items() if id == forced), None)
    return Imported(config, weights, vocabularies, search, _languages(folder, codes, target), language_tags=codes)


def arguments(options: Options) -> Config:
    """Returns the arguments of our model, but for the vocabulary."""
    scale = None if options.switch("scale_embedding", True) else 1.0
    return bart_config(options) | {
        "positions": {"name": "learned", "offset": OFFSET},
        "residual": "pre_norm",
        "embedding_scale": scale,
    }


def layout(file: TensorFile, config: Config, ids: list[int], size: int) -> Layout:
    """Returns where the weights lie; the matrix has `size` rows."""
    width, rows = config["hidden_dim"], longest(config["max_source_length"]) + OFFSET
    table = [
        Weight("target_embedding.embeddings", first_of(file, COPIES), "VD"),
        Weight("target_embedding.bias", "", "V", default=0.0, fixed=fixed_logits(ids)),
        Weight("positions.embeddings", "", "PD", default=sinusoids(rows, width)),
        *FINAL_NORMS,
        *bart_blocks(config),
    ]
    sizes = {"V": size, "D": width, "H": width, "G": width, "F": config["intermediate_dim"], "P": rows}
    return Layout(table, sizes, {"V": np.array(ids)}, {*COPIES, *SINUSOIDS})


def mbart_arguments(options: Options) -> Config:
    """Returns the arguments of our model, but for the vocabulary."""
    return bart_arguments(options) | {"residual": "pre_norm"}


def mbart_layout(file: TensorFile, config: Config, ids: list[int], size: int) -> Layout:
    """Returns where the weights lie; the matrix has `size` rows."""
    found = bart_layout(file, config, ids, size)
    return found._replace(table=[*found.table, *FINAL_NORMS])


def sinusoids(rows: int, width: int) -> np.ndarray:
    """fairseq's sinusoids of the positions from 0 on: (rows, width) float32; an odd width ends with 0."""
    half = width // 2
    frequencies = 10_000.0 ** (-np.arange(half) / max(half - 1, 1))
    angles = np.arange(rows)[:, None] * frequencies  # (rows, half)
    return np.concatenate([np.sin(angles), np.cos(angles), np.zeros((rows, width % 2))], axis=1).astype("float32")


def _text(folder: ModelFolder, size: int) -> _Text:
    """Reads the ids of a folder's pieces, of which the matrix has `size` rows."""
    model = folder.read(SENTENCEPIECE, MAX_MODEL_BYTES) if folder.has(SENTENCEPIECE) else None
    whole = folder.json(WHOLE) if folder.has(WHOLE) or model is None else {}
    of_pieces = _ids_in(whole) if model is None else _ids_with_model(folder, model)
    added = _added(folder, whole, len(of_pieces))
    ids = {**of_pieces, **added}
    are_ids = all(type(id) is int and 0 <= id < size for id in ids.values()) and len({*ids.values()}) == len(ids)
    if not are_ids or not {*CONTROLS} <= ids.keys():
        raise RequestError(
            f"{folder.path}: expected an id below {size:,} for each piece and each tag of the tokenizer, another for "
            f"each, and those of {', '.join(CONTROLS)}; received others: download the whole model"
        )
    tags = {text: id for text, id in added.items() if LANGUAGE.fullmatch(text)}
    if not tags:
        raise RequestError(
            f"{folder.path}: expected tags of languages, such as eng_Latn or __en__, in {WHOLE}, {TOKENIZER}, {ADDED} "
            f"or {MAP}; found none: download these files too, or list the tags in the order of their ids under "
            f"{SPECIAL[0]!r} in {MAP}"
        )
    return _Text({text: id for text, id in ids.items() if text not in tags}, {*CONTROLS, *added}, tags, model)


def _ids_in(tokenizer: Config) -> dict[str, int]:
    """Returns the ids of the pieces in a tokenizer.json."""
    model = tokenizer.get("model")
    vocab = model.get("vocab") if isinstance(model, dict) else None
    if isinstance(vocab, list):  # a piece and its score in each entry
        pieces = [pair[0] if isinstance(pair, list) and pair else None for pair in vocab]
        return {text: id for id, text in enumerate(pieces) if isinstance(text, str)}
    return dict(vocab) if isinstance(vocab, dict) else {}


def _ids_with_model(folder: ModelFolder, model: bytes) -> dict[str, int]:
    """Returns the ids of the pieces of a SentencePiece model: those in vocab.json, or fairseq's: four of its own, and
    behind them those of the pieces but the first three."""
    if folder.has(IDS):
        return folder.json(IDS)
    try:
        proto = parse_model(model)
    except ValueError as error:
        raise RequestError(f"{folder.path / SENTENCEPIECE}: {error}; download it again") from error
    pieces = [each.piece for each in proto.pieces][len(CONTROLS) - 1 :]
    return {text: id for id, text in enumerate([*CONTROLS, *pieces])}


def _added(folder: ModelFolder, tokenizer: Config, first: int) -> dict[str, Any]:
    """Reads the special tokens and their ids, from all files that name some.

    Args:
        folder: the model's folder.
        tokenizer: the content of tokenizer.json.
        first: the id of the first tag in a list of tags without ids.
    """
    config, names = (folder.json(name) if folder.has(name) else {} for name in (TOKENIZER, MAP))
    decoder = config.get("added_tokens_decoder")
    entries = [*dicts_in(tokenizer.get("added_tokens"))]
    if isinstance(decoder, dict):
        ids = [int(id) if id.isdecimal() and len(id) < 10 else None for id in decoder]
        entries += [
            {**each, "id": id} for id, each in zip(ids, decoder.values(), strict=True) if isinstance(each, dict)
        ]
    found = {each["content"]: each.get("id") for each in entries if isinstance(each.get("content"), str)}
    found |= folder.json(ADDED) if folder.has(ADDED) else {}
    if not any(map(LANGUAGE.fullmatch, found)):
        lists = [each.get(name) for each in (config, names) for name in SPECIAL]
        listed = next((each for each in lists if isinstance(each, list) and each), [])
        texts = [content_of(each) for each in listed]
        tags = [text for text in texts if isinstance(text, str) and LANGUAGE.fullmatch(text)]
        found |= {tag: first + place for place, tag in enumerate(dict.fromkeys(tags))}
    return found


def _control_ids(folder: ModelFolder, ids: dict[str, int], options: Options) -> ControlIds:
    pad, end, unknown = (ids[text] for text in ("<pad>", "</s>", "<unk>"))
    options.expect({"pad_token_id": pad, "eos_token_id": end})
    tokenizer = folder.json(TOKENIZER) if folder.has(TOKENIZER) else {}
    is_behind = tokenizer.get("legacy_behaviour") is True or tokenizer.get("tokenizer_class") in BEHIND
    if is_behind or options.pop("decoder_start_token_id") not in (None, end):
        raise RequestError(
            f"{folder.path}: expected a model whose sources begin with the tag of their language, and whose decoding "
            f"starts with {end}, as those of mBART-50, M2M-100 and NLLB-200; received one with tags behind sources or "
            "with another start, as that of mBART for 25 languages, which a run has no form for"
        )
    return ControlIds(pad, unknown, end, end)


def _vocabularies(folder: ModelFolder, text: _Text, control: ControlIds) -> tuple[Vocabulary, ...]:
    """Returns the vocabularies of sources and of translations, or one for both."""
    if text.model is None:
        ids = [*control, *sorted({*text.ids.values(), *text.tags.values()} - {*control})]
        return (text_vocabulary(folder, ids, has_ends=True, rewrite=partial(_without_tag, end=control.end)),)
    try:
        return tagged_vocabularies(text.model, text.ids, text.special, text.tags, control)
    except ValueError as error:
        raise RequestError(f"{folder.path / SENTENCEPIECE}: {error}; download it again") from error


def _without_tag(text: str, end: int) -> str:
    """Rewrites a tokenizer.json so that it puts an end behind a text, and no tag before it: who translates names the
    language."""
    parts = [{"Sequence": {"id": "A", "type_id": 0}}, {"SpecialToken": {"id": "</s>", "type_id": 0}}]
    tokens = {"</s>": {"id": "</s>", "ids": [end], "tokens": ["</s>"]}}
    template = {"type": "TemplateProcessing", "single": parts, "pair": parts, "special_tokens": tokens}
    return json.dumps({**json.loads(text), "post_processor": template}, ensure_ascii=False)


def _code(tag: str) -> str:
    """Returns the language of a tag."""
    found = LANGUAGE.fullmatch(tag)
    return (found and found["inner"]) or tag


def _languages(folder: ModelFolder, codes: Mapping[str, str], target: str | None) -> tuple[str, str] | None:
    """Returns the languages that are meant where none are named."""
    config = folder.json(TOKENIZER) if folder.has(TOKENIZER) else {}
    source, target = config.get("src_lang"), target or config.get("tgt_lang")
    known = [each for each in (source, target) if isinstance(each, str) and each in codes]
    return (known[0], known[1]) if len({*known}) == 2 else None
