"""Writes nodes that turn lines into ids, and ids into lines, as the tokenizer of `keras_transformer` does.

ONNX Runtime has strings on the CPU alone. Its CUDA provider runs every `Loop` on the GPU, so a model with strings in a
loop would not load.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import DTypeLike

from keras_transformer.checking.signatures import LINE_BREAKS
from keras_transformer.text.tokenizer import END, PAD, UNKNOWN, Tokenizer

from ..word_pieces import WordPieces, read_by
from .graph import TEXT_DOMAIN, Constant, Graph, Value, element_type

SPACE = r"[\s\p{Z}\x0b\x1c-\x1f\x85]+"  # what Python's `strip` removes, as a regular expression (RE2)
REPLACEMENT = "\ufffd".encode()
NO_BYTE = 256  # stands for a piece that is not a single byte


def tokenized(
    g: Graph,
    text: Value,
    tokenizer: Tokenizer,
    cleaning: Iterable[tuple[str, str]],
    max_length: int,
    closing: int = END,
) -> Value:
    """Text (B,) → ids (B, S) int32: at most `max_length` pieces and the id `closing`, then pad.

    Args:
        g, text, tokenizer: the graph, the text and its vocabulary.
        cleaning: what is replaced in the text, and by what.
        max_length: the most pieces.
        closing: the id behind the pieces: the end id, or pad for none.
    """
    read = read_by(tokenizer)
    for pattern, by in [*cleaning, *read.cleaning]:
        text = replaced(g, text, pattern, by)
    options: list[Constant] = [
        [0],
        [0.0],
        [False],
        [False],
        [False],
    ]  # no sampling (two numbers), no start id, no end id, not reversed
    pieces, starts = g("SentencepieceTokenizer", text, *options, outputs=2, domain=TEXT_DOMAIN, model=read.model)
    if isinstance(read, WordPieces):
        pieces, starts = of_words(g, pieces, starts, read)
    first = g("Unsqueeze", g("Slice", starts, [0], [-1]), [1])  # (B, 1) where in `pieces` each sentence begins
    last = g("Unsqueeze", g("Slice", starts, [1], [np.iinfo("int64").max]), [1])
    lengths = g("Min", g("Sub", last, first), max_length)  # so a long line does not widen the whole batch
    longest = g("ReduceMax", joined(g, lengths, [[0]]), keepdims=0)
    places = g("Range", 0, g("Add", longest, 1), 1)  # (S,)
    pieces = joined(g, pieces, np.array([PAD], "int32"))  # index -1 stands for pad
    ids = g("Gather", pieces, g("Where", g("Less", places, lengths), g("Add", first, places), -1))
    return ids if closing == PAD else g("Where", g("Equal", places, lengths), np.int32(closing), ids)


def of_words(g: Graph, pieces: Value, starts: Value, read: WordPieces) -> list[Value]:
    """SentencePiece's pieces (N,) and the starts of rows in them (B + 1,) → our ids, one for an unknown word, and the
    starts in these.
    """
    begins = g("Gather", read.begins, pieces)
    ends = g("Pad", g("CumSum", g("Gather", read.lengths, pieces), 0), [1, 0])  # (N + 1,)
    places = g("Squeeze", g("NonZero", begins), [0])  # (W,) where words begin
    reached = g("Gather", ends, joined(g, places, size(g, pieces, 0)))  # (W + 1,)
    lengths = g("Sub", g("Slice", reached, [1], [np.iinfo("int64").max]), g("Slice", reached, [0], [-1]))
    word = g("Sub", g("CumSum", cast(g, begins, np.int64), 0), 1)  # (N,) the number of each piece's word
    is_unknown = g("Greater", g("Gather", lengths, word), read.longest)
    ids = g("Where", is_unknown, np.int32(UNKNOWN), g("Gather", read.ids, pieces))
    is_kept = g("Or", begins, g("Not", is_unknown))
    counts = g("Pad", g("CumSum", cast(g, is_kept, np.int64), 0), [1, 0])
    # The certificate cuts a graph behind these two nodes.
    starts = g("Gather", counts, starts)
    return [g("Compress", ids, is_kept), starts]


def detokenized(g: Graph, ids: Value, tokenizer: Tokenizer, is_one_line: bool = True) -> Value:
    """Emitted ids (B, T), with pad only behind the end id → text (B,).

    Args:
        g, ids, tokenizer: the graph, the ids and their vocabulary.
        is_one_line: whether the text is one line without space around it; else every space and line break is kept.
    """
    if not is_one_line:
        return joined_pieces(g, ids, tokenizer, None)
    if tokenizer.has_denormalizer:
        texts = replaced(g, decoded(g, ids, tokenizer), LINE_BREAKS, " ")
    else:
        texts = joined_pieces(g, ids, tokenizer, bytes.maketrans(b"\0\n\r", b"   "))
    return replaced(g, texts, f"^{SPACE}|{SPACE}$", "")


def joined_pieces(g: Graph, ids: Value, tokenizer: Tokenizer, bytes_of: bytes | None) -> Value:
    """Ids (B, T) → text (B,), by a table of the text of each piece; the space that begins a text is still there.

    `bytes_of`, if any, tells what stands in the text for each byte.
    """
    surfaces = [surface.translate(bytes_of) for surface in tokenizer.surfaces()]
    table = np.array([*surfaces, REPLACEMENT], object)  # (V + 1,)
    bytes_of_ids = np.array([byte_of(surface) for surface in surfaces], "int32")
    if np.any(bytes_of_ids != NO_BYTE):
        ids = g("Where", is_stray(g, g("Gather", bytes_of_ids, ids)), np.int32(len(surfaces)), ids)
    ids = g("Pad", ids, [0, 0, 1, 0])  # with one more row, because `StringJoin` crashes if there is no row
    texts = g("StringJoin", g("Gather", table, ids), np.array([""], object), [1], domain=TEXT_DOMAIN)
    return g("Slice", texts, [0], [-1])


def byte_of(surface: bytes) -> int:
    """The byte of a piece that is a single byte of a longer character; `NO_BYTE` for other pieces, ASCII among them."""
    return surface[0] if len(surface) == 1 and surface[0] >= 0x80 else NO_BYTE


def is_stray(g: Graph, values: Value) -> Value:
    """Bytes (B, T) → (B, T) whether each is part of no character. SentencePiece replaces such bytes by U+FFFD.

    A byte begins a character if the bytes that follow are in the ranges that UTF-8 allows after it.
    """
    lengths, lowest, highest = utf_8()
    places = g("Add", g("Unsqueeze", g("Range", 0, g("Squeeze", size(g, values, 1)), 1), [1]), np.arange(4))  # (T, 4)
    following = g("Gather", g("Pad", values, [0, 0, 0, 3], np.int32(NO_BYTE)), places, axis=1)  # (B, T, 4)
    is_low = g("Less", following, g("Gather", lowest, values))
    is_high = g("Greater", following, g("Gather", highest, values))
    is_out = g("ReduceMax", cast(g, g("Or", is_low, is_high), np.int32), axes=[2], keepdims=0)
    lengths = g("Where", cast(g, is_out, bool), np.int32(0), g("Gather", lengths, values))
    preceding = g("Gather", g("Pad", lengths, [0, 3, 0, 0]), places, axis=1)  # (B, T, 4), each byte's own length last
    reaches = cast(g, g("Greater", preceding, np.array([3, 2, 1, 0], "int32")), np.int32)
    is_part = cast(g, g("ReduceMax", reaches, axes=[2], keepdims=0), bool)
    return g("And", g("Less", values, np.int32(NO_BYTE)), g("Not", is_part))


def utf_8() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns Table 3-7 of the Unicode standard.

    Returns:
        For each byte (257,) the length of the character that it begins, 0 if it begins none; and (257, 4) the lowest
        and (257, 4) the highest values allowed for that byte and the three after it.
    """
    lengths = np.zeros(NO_BYTE + 1, "int32")
    lengths[0xC2:0xE0], lengths[0xE0:0xF0], lengths[0xF0:0xF5] = 2, 3, 4
    is_trail = np.arange(4) < lengths[:, None]
    is_trail[:, 0] = False
    lowest, highest = np.where(is_trail, 0x80, 0), np.where(is_trail, 0xBF, NO_BYTE)
    lowest[[0xE0, 0xF0], 1] = 0xA0, 0x90
    highest[[0xED, 0xF4], 1] = 0x9F, 0x8F
    return lengths, lowest.astype("int32"), highest.astype("int32")


def decoded(g: Graph, ids: Value, tokenizer: Tokenizer) -> Value:
    """Ids (B, T) → text (B,), by SentencePiece itself, a row at a time; a model with this loop does not load on a GPU.

    Only vocabularies that rewrite what they decode need this, because their rules match across pieces. A NUL that byte
    pieces spell ends its text here.
    """

    inner = Graph(g)
    index = inner.new_name("index")
    row = cast(inner, inner("Gather", ids, index), np.int64)
    text = inner("SentencepieceDecoder", row, domain=TEXT_DOMAIN, model=tokenizer.model)
    # `Where`, because ONNX's checker takes the type of the result from its first choice.
    text = inner("Where", np.array(False), np.array([""], object), text)
    outputs = inner.distinct([inner.value(np.array(True)), text])
    (texts,) = g.loop(inner, [], [g.value(np.array(True))], outputs, g("Squeeze", size(g, ids, 0)), index)
    return g("Reshape", texts, [-1])


def replaced(g: Graph, text: Value, pattern: str, by: str) -> Value:
    """The text with the matches of a regular expression (RE2) replaced."""
    strings = [np.array([part], dtype=object) for part in (pattern, by)]
    return g("StringRegexReplace", text, *strings, domain=TEXT_DOMAIN)


def cast(g: Graph, value: Value, dtype: DTypeLike) -> Value:
    """The value in another type."""
    return g("Cast", value, to=element_type(dtype))


def size(g: Graph, value: Value, axis: int) -> Value:
    """(1,) The size of one axis."""
    return g("Shape", value, start=axis, end=axis + 1)


def joined(g: Graph, *values: Value | Constant, axis: int = 0) -> Value:
    """The values, concatenated along an axis."""
    return g("Concat", *values, axis=axis)
