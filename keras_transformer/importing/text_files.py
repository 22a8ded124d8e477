"""Reads the files of Hugging Face's tokenizers: tokenizer.json, or the older lists of words and merges."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from keras_transformer.core.errors import RequestError
from keras_transformer.importing.folder import MAX_JSON_BYTES, SPECIAL, ModelFolder, Options
from keras_transformer.importing.sentencepiece_rewrite import MAX_MODEL_BYTES, Vocabulary, steps_of
from keras_transformer.spec.options import Config
from keras_transformer.text.huggingface_tokenizer import HuggingFaceTokenizer, tokenizers_library

if TYPE_CHECKING:
    import tokenizers

WHOLE, MERGED, WORDS = "tokenizer.json", ("vocab.json", "merges.txt"), "vocab.txt"
ADDED, MAP, TOKENIZER = "added_tokens.json", "special_tokens_map.json", "tokenizer_config.json"
TEMPLATE = "chat_template.jinja"
ROLES = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
# What the older files do not say: the special tokens of BART and of GPT-2, and of BERT.
BART_TOKENS = dict(zip(ROLES, ("<s>", "</s>", "<unk>", "</s>", "<pad>", "<s>", "<mask>"), strict=True))
GPT2_TOKENS = dict.fromkeys(ROLES[:3], "<|endoftext|>")
# Classes of transformers that take the parts of a tokenizer.json as they are. Others make parts of these types anew, by
# options of tokenizer_config.json, which stand here before their names in the part.
AS_THEY_ARE = ("PreTrainedTokenizerFast", "TokenizersBackend")
PARTS = {
    "BertNormalizer": {
        "do_lower_case": "lowercase", "strip_accents": "strip_accents",
        "tokenize_chinese_chars": "handle_chinese_chars",
    },
    **dict.fromkeys(("ByteLevel", "Metaspace", "Prepend"), {"add_prefix_space": "add_prefix_space"}),
}  # fmt: skip
BERT_TOKENS = dict(zip(ROLES[2:], ("[UNK]", "[SEP]", "[PAD]", "[CLS]", "[MASK]"), strict=True))


def dicts_in(values: object) -> list[Config]:
    """Returns the objects in a list of a JSON file; none if it is no list."""
    return [each for each in values if isinstance(each, dict)] if isinstance(values, list) else []


def content_of(token: Config | str | None) -> str | None:
    """Returns the text of a token, which the files of a tokenizer spell as a text or as an object."""
    return token.get("content") if isinstance(token, dict) else token


def added_tokens(folder: ModelFolder) -> list[Config]:
    """Returns the tokens that tokenizer.json has beside those of its model; none without such a file."""
    return dicts_in(folder.json(WHOLE).get("added_tokens")) if folder.has(WHOLE) else []


def count_ids(folder: ModelFolder, size: int) -> int:
    """Counts the ids of the tokenizer, from 0 on: mostly all of the model's, unless its matrices are padded.

    No text has the ids of the rows behind, so they have no place in our vocabulary: nothing emits them, and they take
    no probability.

    Args:
        folder: the model's folder.
        size: the rows of the model's matrices, the answer where no file of the tokenizer tells.

    Raises:
        RequestError: a file of the tokenizer is damaged.
    """
    ids, vocabulary = [], None
    if folder.has(WHOLE):
        tokenizer = folder.json(WHOLE)
        model, ids = tokenizer.get("model"), [token.get("id") for token in dicts_in(tokenizer.get("added_tokens"))]
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
    elif folder.has(MERGED[0]):
        vocabulary = folder.json(MERGED[0])
    elif folder.has(WORDS):
        vocabulary = folder.read(WORDS, MAX_MODEL_BYTES).rstrip(b"\r\n").split(b"\n")
    if folder.has(ADDED):
        ids += folder.json(ADDED).values()
    if not isinstance(vocabulary, dict | list) or not vocabulary:
        return size
    ids += vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))
    return max((id for id in ids if type(id) is int and 0 <= id < size), default=size - 1) + 1


def text_vocabulary(
    folder: ModelFolder, ids: list[int], has_ends: bool, has_mask: bool = False, rewrite: Callable[[str], str] = str
) -> Vocabulary:
    """Reads the vocabulary of a model whose folder has a tokenizer of Hugging Face's.

    Args:
        folder: the model's folder.
        ids: for each of our ids, the id in the model from outside.
        has_ends: whether the model reads the end of a text, which its tokenizer must put there.
        has_mask: whether our id 4 is the mask.
        rewrite: what the run keeps in place of the text of a tokenizer.json.

    Raises:
        RequestError: there is no file of a tokenizer, or it is damaged, or does not fit the model.
    """
    name, text = _tokenizer_of(folder)
    try:
        tokenizer = HuggingFaceTokenizer.of(rewrite(text), ids, has_mask, _chat_template(folder))
        spelled = tokenizer.vocabulary_size and tokenizer.encode(["a"])
    except ValueError as error:
        raise RequestError(f"{folder.path / name}: {error}; download it again") from error
    if not spelled:
        raise RequestError(f"{folder.path / name}: expected a tokenizer of text; received one that reads nothing")
    if name == WHOLE:
        _check_same(folder, tokenizer)
    if has_ends and not tokenizer.has_end:
        raise RequestError(f"{folder.path / name}: expected a tokenizer that puts an end behind a text; it does not")
    return Vocabulary(tokenizer, ids)


def _tokenizer_of(folder: ModelFolder) -> tuple[str, str]:
    """Returns the name of the file of a tokenizer, and the text of a tokenizer.json."""
    if folder.has(WHOLE):
        try:
            return WHOLE, folder.read(WHOLE, MAX_JSON_BYTES).decode("utf-8")
        except UnicodeDecodeError as error:
            raise RequestError(f"{folder.path / WHOLE} is damaged: {error}; download it again") from error
    for name, make in ((MERGED[0], _merged), (WORDS, _words)):
        if folder.has(name):
            try:
                return name, make(folder)
            except RequestError:
                raise
            except Exception as error:  # the library raises no other
                reason = " ".join(str(error).split())[:200]
                raise RequestError(f"{folder.path / name} is damaged: {reason}; download it again") from error
    other = "; tokenizer.model alone does not do: save the tokenizer once with transformers"
    raise RequestError(
        f"expected a tokenizer, {WHOLE}, {' and '.join(MERGED)}, or {WORDS}; found none in {folder.path}: download "
        f"it too{other if folder.has('tokenizer.model') else ''}"
    )


def end_of(folder: ModelFolder) -> int | None:
    """Returns the id of the tokenizer's own end, which tokenizer_config.json names; None if a folder does not say."""
    end = content_of(tokenizer_options(folder).pop("eos_token"))
    return next((token.get("id") for token in added_tokens(folder) if token.get("content") == end), None)


def _chat_template(folder: ModelFolder) -> str:
    """Reads how chats become text, from a file of its own or from tokenizer_config.json; "" if the folder does not
    say."""
    if folder.has(TEMPLATE):
        return folder.read(TEMPLATE, MAX_JSON_BYTES).decode("utf-8", "replace")
    template = tokenizer_options(folder).pop("chat_template")
    if isinstance(template, list):  # a model may have some more, such as for tools
        named = [each for each in dicts_in(template) if each.get("name") == "default"]
        template = named[0].get("template") if named else None
    return template if isinstance(template, str) else ""


def tokenizer_options(folder: ModelFolder) -> Options:
    """Reads the options in tokenizer_config.json. Where these list no added tokens, those in special_tokens_map.json
    win, as with transformers."""
    values, more = (folder.json(name) if folder.has(name) else {} for name in (TOKENIZER, MAP))
    more = {} if "added_tokens_decoder" in values else more
    options = Options({**values, **more}, str(folder.path / TOKENIZER))
    options.expect({"sp_model_kwargs": {}})
    return options


def check_added(folder: ModelFolder, options: Options, known: Collection[str], expected: str) -> None:
    """Raises RequestError if a tokenizer has tokens that were added later.

    Args:
        folder, options: the model's folder, and the options of its tokenizer.
        known: the tokens that it may have.
        expected: what these are, for the message.
    """
    added = {name: options.pop(name) for name in ("added_tokens_decoder", *SPECIAL)}
    added[ADDED] = [*folder.json(ADDED)] if folder.has(ADDED) else None
    for name, entries in added.items():
        entries = [*entries.values()] if isinstance(entries, dict) else entries
        for entry in entries if isinstance(entries, list) else [] if entries is None else [entries]:
            text = content_of(entry)
            if not isinstance(text, str) or text not in known:
                raise options.refusal(name, text, expected)


def _check_same(folder: ModelFolder, tokenizer: HuggingFaceTokenizer) -> None:
    """Raises RequestError if the other files say something else than tokenizer.json, for transformers takes what they
    say.
    """
    options, content = tokenizer_options(folder), json.loads(tokenizer.text)
    check_added(folder, options, tokenizer.library.get_vocab(), "a token of tokenizer.json")
    if options.pop("tokenizer_class") in AS_THEY_ARE:
        return
    for part in (*steps_of(content.get("normalizer")), *steps_of(content.get("pre_tokenizer"))):
        said = {"add_prefix_space": part.get("prepend_scheme") != "never", **part}
        options.expect({name: said.get(theirs) for name, theirs in PARTS.get(str(said.get("type")), {}).items()})


def _special(options: Options, usual: Config) -> dict[str, str]:
    """Returns the special tokens by their names in tokenizer_config.json."""
    found = {}
    for name, token in usual.items():
        value = content_of(options.pop(name) or token)
        if not isinstance(value, str):
            raise options.refusal(name, value, "a text")
        found[name] = value
    return found


def _merged(folder: ModelFolder) -> str:
    """Makes a tokenizer.json of byte-level BPE (Radford et al. 2019, section 2.2) from a list of tokens and one of
    merges."""
    library, options = tokenizers_library(), tokenizer_options(folder)
    vocab = folder.json(MERGED[0])
    if {*vocab.values()} != {*range(len(vocab))}:  # the library takes memory for every id below the largest
        raise RequestError(f"{folder.path / MERGED[0]} is damaged: expected the ids from 0 on, each once")
    merges = folder.read(MERGED[1], MAX_JSON_BYTES).decode("utf-8").splitlines()
    pairs = [tuple(line.split(" ")) for line in merges if line and not line.startswith("#version")]
    tokenizer = library.Tokenizer(library.models.BPE(vocab=vocab, merges=pairs, fuse_unk=False))
    space = options.switch("add_prefix_space", False)
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=space)
    tokenizer.decoder = library.decoders.ByteLevel()
    is_bart = BART_TOKENS["eos_token"] in vocab
    tokens = _special(options, BART_TOKENS if is_bart else GPT2_TOKENS)
    if is_bart:
        sides = [(tokens[name], vocab.get(tokens[name], 0)) for name in ("sep_token", "cls_token")]
        tokenizer.post_processor = library.processors.RobertaProcessing(*sides, True, space)
    return _with_tokens(tokenizer, folder, tokens, vocab.get)


def _words(folder: ModelFolder) -> str:
    """Makes a tokenizer.json of WordPiece (Devlin et al. 2018) from a list of words."""
    library, options = tokenizers_library(), tokenizer_options(folder)
    lines = folder.read(WORDS, MAX_JSON_BYTES).decode("utf-8").removesuffix("\n").split("\n")
    vocab = {line.rstrip("\r"): number for number, line in enumerate(lines)}
    tokens = _special(options, BERT_TOKENS)
    tokenizer = library.Tokenizer(library.models.WordPiece(vocab, unk_token=tokens["unk_token"]))
    accents = options.pop("strip_accents")
    tokenizer.normalizer = library.normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=options.switch("tokenize_chinese_chars", True),
        strip_accents=accents if type(accents) is bool else None,
        lowercase=options.switch("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = library.pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = library.decoders.WordPiece()
    first, last = tokens["cls_token"], tokens["sep_token"]
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single=f"{first} $A {last}", special_tokens=[(token, vocab.get(token, 0)) for token in (first, last)]
    )
    return _with_tokens(tokenizer, folder, tokens, vocab.get)


def _with_tokens(
    tokenizer: tokenizers.Tokenizer, folder: ModelFolder, tokens: dict[str, str], place: Callable[[str], int | None]
) -> str:
    """Returns the text of a tokenizer.json of the tokenizer with its special tokens, and those of added_tokens.json."""
    library = tokenizers_library()
    more = folder.json(ADDED) if folder.has(ADDED) else {}
    mask = tokens.get("mask_token")
    for token in dict.fromkeys([*tokens.values(), *sorted(more, key=lambda token: str(more[token]).zfill(10))]):
        if (id := more.get(token, place(token))) is None:
            continue  # a model may lack some, such as a mask
        is_mask = token == mask and token == BART_TOKENS["mask_token"]
        tokenizer.add_special_tokens([library.AddedToken(token, normalized=False, special=True, lstrip=is_mask)])
        if tokenizer.token_to_id(token) != id:
            raise RequestError(f"{folder.path}: expected an id of its own of {token!r:.40}; received {id!r:.20}")
    return tokenizer.to_str()
