"""WordPiece by the operators for SentencePiece, which read text as Hugging Face's tokenizer does.

Where all pieces of a SentencePiece model are the user's, it takes the longest that fits, as WordPiece does. Its rules
of normalization are what the tokenizer itself makes of each character. The operators for BERT in onnxruntime-extensions
and tensorflow-text are not used: they read Korean, `ß`, `½` or control characters otherwise, and no special tokens.

A text reads otherwise only where it holds marks that are no accents (U+302E, U+1B44) in other than Unicode's order.

Reference: Devlin et al. 2019, "BERT" (arXiv 1810.04805).
"""

from __future__ import annotations

import json
import string
from collections.abc import Iterable
from functools import cache
from itertools import chain
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import sentencepiece
from sentencepiece import sentencepiece_model_pb2

from keras_transformer.text.huggingface_tokenizer import HuggingFaceTokenizer
from keras_transformer.text.tokenizer import SPACE, UNKNOWN, Tokenizer

if TYPE_CHECKING:
    import tokenizers

PRIVATE = [*map(chr, range(0xE000, 0xF900))]  # characters that no vocabulary has
SEPARATOR = " 0 "  # between characters whose images are asked for at once: no character becomes it
AT_ONCE = 4096
CHARACTERS = range(1, 0xD800), range(0xE000, 0x40000), range(0xE0000, 0x110000)  # Unicode has none in other planes


class Pieces(NamedTuple):
    """What reads text as SentencePiece does.

    Args:
        model: a SentencePiece model.
        cleaning: what is replaced in a text before, as regular expressions, and by what.
    """

    model: bytes
    cleaning: tuple[tuple[str, str], ...] = ()


class WordPieces(NamedTuple):
    """What reads text as a WordPiece vocabulary does.

    Args:
        model: a SentencePiece model of P pieces.
        cleaning: what is replaced in a text before, as regular expressions, and by what.
        ids: (P,) int32 our ids.
        begins: (P,) whether a piece begins a word.
        lengths: (P,) int64 the characters of each piece.
        longest: the most characters of a word; a longer one is unknown.
    """

    model: bytes
    cleaning: tuple[tuple[str, str], ...]
    ids: np.ndarray
    begins: np.ndarray
    lengths: np.ndarray
    longest: int


def reason_against_text(tokenizer: Tokenizer) -> str:
    """Says why no runtime reads text as a vocabulary does; "" if one does."""
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return ""
    content = json.loads(tokenizer.library.to_str())
    model = content["model"]
    if model["type"] != "WordPiece":
        return f"no operators of runtimes read and join {model['type']} as the tokenizer does"
    parts = {name: (content[name] or {}).get("type") for name in ("normalizer", "pre_tokenizer")}
    if parts != {"normalizer": "BertNormalizer", "pre_tokenizer": "BertPreTokenizer"}:
        return f"its words are cut by {' and '.join(map(str, parts.values()))}, and only BERT's are known here"
    for token in content["added_tokens"]:
        if token["normalized"] or token["single_word"] or token["content"][0] not in string.punctuation:
            return f"its token {token['content']!r:.40} is found in text otherwise than BERT's are"
    lengths = [len(tokenizer.library.encode("a", add_special_tokens=each).ids) for each in (True, False)]
    if not (tokenizer.has_start and tokenizer.has_end and lengths[0] == lengths[1] + 2):
        return "it does not put one start and one end around a text"
    return "" if model["continuing_subword_prefix"] else "its pieces within words have no prefix"


def read_by(tokenizer: Tokenizer) -> Pieces | WordPieces:
    """What reads text as a vocabulary does that `reason_against_text` has nothing against."""
    return word_pieces(tokenizer) if isinstance(tokenizer, HuggingFaceTokenizer) else Pieces(tokenizer.model)


@cache
def word_pieces(tokenizer: HuggingFaceTokenizer) -> WordPieces:
    """Makes what reads text as WordPiece does."""
    content = json.loads(tokenizer.library.to_str())
    model, images = content["model"], _images(tokenizer.library)
    alphabet = {*"".join(model["vocab"])}
    stand_in, other = [char for char, image in images.items() if char == image != " " and char not in alphabet][:2]
    unknown, *marks = [char for char in PRIVATE if char not in alphabet][: len(content["added_tokens"]) + 1]
    rules = {
        char: "".join(each if each in alphabet or each == " " else unknown for each in image)
        for char, image in images.items()
        if char != image or char in marks
    }
    longest = model["max_input_chars_per_word"]
    unread = UNKNOWN, longest + 1  # a piece that makes its word unknown
    pieces = {SPACE: unread}  # the beginning of a word whose first character is unknown
    for token, mark in zip(content["added_tokens"], marks, strict=True):
        rules[token["content"]] = f" {mark} "
        pieces[SPACE + mark] = tokenizer.own_id(token["id"]), 1
    for text, id in model["vocab"].items():
        inner = text.removeprefix(model["continuing_subword_prefix"])
        # Pieces with other characters are in no word, and SentencePiece would keep them from the rules.
        if inner and (inner == text or all(images.get(char) == char for char in inner)):
            spelled = (SPACE if inner == text else "") + inner.replace(SPACE, stand_in)
            pieces.setdefault(spelled, (tokenizer.own_id(id), len(inner)))
    ids, lengths = np.array([unread, *pieces.values()], "int64").T
    begins = np.array([False, *(piece[0] == SPACE for piece in pieces)])
    cleaning = (stand_in, other), (SPACE, stand_in)  # for SentencePiece the sign is a space
    return WordPieces(_model(pieces, rules), cleaning, ids.astype("int32"), begins, lengths, longest)


def _images(library: tokenizers.Tokenizer) -> dict[str, str]:
    """Maps each character to what it becomes within a word, with a space where it ends the word."""
    characters = [*map(chr, chain(*CHARACTERS))]
    images: dict[str, str] = {}
    for first in range(0, len(characters), AT_ONCE):
        some = characters[first : first + AT_ONCE]
        text = library.normalizer.normalize_str(SEPARATOR.join(f"a{char}a" for char in some))
        words = " ".join(word for word, _ in library.pre_tokenizer.pre_tokenize_str(text)).split(SEPARATOR)
        images |= {char: word[1:-1] for char, word in zip(some, words, strict=True)}
    return images


def _model(pieces: Iterable[str], rules: dict[str, str]) -> bytes:
    specification: Any = sentencepiece_model_pb2
    proto, types = specification.ModelProto(), specification.ModelProto.SentencePiece
    proto.pieces.add(piece="<unk>", type=types.UNKNOWN)
    for piece in pieces:
        proto.pieces.add(piece=piece, type=types.USER_DEFINED)
    proto.trainer_spec.model_type = specification.TrainerSpec.CHAR
    sentencepiece.set_min_log_level(1)
    normalizer = sentencepiece.SentencePieceNormalizer(norm_map=[*rules.items()])
    compiled = specification.NormalizerSpec.FromString(normalizer.serialized_normalizer_spec())
    proto.normalizer_spec.precompiled_charsmap = compiled.precompiled_charsmap
    return proto.SerializeToString(deterministic=True)
