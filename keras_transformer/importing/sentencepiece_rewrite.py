"""Rewrites SentencePiece models from outside, so that the place of a piece is its id in our vocabulary.

T5's folders may have a tokenizer.json in place of the model; then the model is made from it. The pieces, their scores
and the table of normalization are SentencePiece's own there. What is done with the spaces of a text is told in steps,
of which those that SentencePiece takes too are known here.
"""

from __future__ import annotations

import base64
import re
from collections.abc import Iterable, Iterator
from enum import IntEnum
from typing import NamedTuple

from keras_transformer.core.schema import having, list_of
from keras_transformer.spec.options import Config
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, PAD, SPACE, START, UNKNOWN, Tokenizer, parse_model

MAX_MODEL_BYTES = 16 * 2**20
MAX_PIECES = 4_000_000
OWN_TAG = re.compile(r"<2\w{2,20}>")  # MADLAD-400's tags of languages, such as <2de> and <2zh_Latn>
NEVER = -100.0  # the logit of an id that is never emitted, less what its row gives
T5_CONTROLS, T5_UNKNOWN = ("<pad>", "<s>", "</s>"), "<unk>"
# Steps by their types, with the options that they may have: SentencePiece takes one space for several, and none at the
# ends.
SPACES: dict[str, list[Config]] = {
    "Replace": [{"pattern": {"Regex": " {2,}"}, "content": each} for each in (" ", SPACE)],
    "Strip": [{"strip_left": left, "strip_right": True} for left in (True, False)],
    "WhitespaceSplit": [{}],
    "Metaspace": [
        {"replacement": SPACE, "prepend_scheme": "always", "split": True},
        {"replacement": SPACE, "prepend_scheme": "always"},
        {"replacement": SPACE, "add_prefix_space": True},
        {"replacement": SPACE, "add_prefix_space": True, "prepend_scheme": "always"},
    ],
}


class ControlIds(NamedTuple):
    """The ids of the control pieces in the vocabulary of the model from outside."""

    pad: int
    unknown: int
    start: int
    end: int


class Vocabulary(NamedTuple):
    """A vocabulary of ours.

    Args:
        tokenizer: with our ids.
        ids: for each of our ids, the id in the model from outside.
        num_control_ids: see `Transformer`.
    """

    tokenizer: Tokenizer
    ids: list[int]
    num_control_ids: int = len(CONTROL_PIECES)


def fixed_logits(ids: list[int]) -> dict[int, float]:
    """Returns the biases of our ids whose rows are copies, so that they take no probability: control ids that the model
    from outside does not have, and pieces that it has no id for.

    Args:
        ids: for each of our ids, the id in the model from outside.
    """
    own = ids[PAD], ids[UNKNOWN], ids[END]
    copies = [UNKNOWN] if ids[UNKNOWN] in (ids[PAD], ids[END]) else []
    copies += [START] if ids.count(ids[START]) > 1 else []
    return dict.fromkeys(copies + [id for id in range(END + 1, len(ids)) if ids[id] in own], NEVER)


class Kind(IntEnum):
    """The types of pieces, as SentencePiece numbers them."""

    NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = range(1, 7)


class _Piece(NamedTuple):
    text: str
    score: float
    kind: Kind
    id: int  # in the model from outside


class _Model:
    """A SentencePiece model from outside.

    Args:
        model: its bytes.

    Raises:
        ValueError: it is damaged.
    """

    def __init__(self, model: bytes):
        self._proto = parse_model(model)
        self.pieces = [_Piece(one.piece, one.score, Kind(one.type), id) for id, one in enumerate(self._proto.pieces)]
        # The pieces that a text may be cut into, or that stand unused.
        kept = {piece.text: piece for piece in self.pieces if piece.kind not in (Kind.UNKNOWN, Kind.CONTROL)}
        self.of_text = {text: piece for text, piece in kept.items() if text not in CONTROL_PIECES}

    def tags(self, ids: dict[str, int]) -> dict[str, int]:
        """Returns the tags of languages that the model lacks, and their ids."""
        known = {piece.text for piece in self.pieces}
        return {text: ids[text] for text in sorted(ids) if is_tag(text) and SPACE + text not in known}

    def emitted(self, ids: dict[str, int], control: ControlIds) -> list[_Piece]:
        """Returns the pieces that the model from outside may emit, by its ids. One that decoding starts with is among
        them."""
        pieces = []
        for text, id in sorted(ids.items(), key=lambda item: item[1]):
            if id in control and (id != control.start or control.count(id) > 1 or text in CONTROL_PIECES):
                continue
            if text in CONTROL_PIECES:  # a piece of text here, which must not be spelled as our control pieces are
                pieces.append(_Piece(f"{text}*", 0.0, Kind.UNUSED, id))
            elif text in self.of_text:
                pieces.append(self.of_text[text]._replace(id=id))
            else:
                pieces.append(_Piece(text, 0.0, Kind.UNUSED, id))
        return pieces

    def control_ids(self, start: int | None, pad: int | None) -> ControlIds:
        """Finds the control ids. Decoding starts with pad, as T5's, or with another control piece.

        Raises:
            ValueError: there is no pad, end or unknown piece, or pad or start is no control piece.
        """
        places = {piece.text: piece.id for piece in self.pieces}
        unknown = [piece.id for piece in self.pieces if piece.kind == Kind.UNKNOWN]
        pad = places.get("<pad>", pad)
        if pad is None or "</s>" not in places or len(unknown) != 1:
            raise ValueError("it has no <pad>, </s> and unknown piece")
        start = pad if start is None else start
        for name, id in (("padding is", pad), ("decoding starts with", start)):
            if id >= len(self.pieces) or self.pieces[id].kind not in (Kind.CONTROL, Kind.UNKNOWN):
                raise ValueError(f"{name} id {id:,}, which is no control piece")
        return ControlIds(pad, unknown[0], start, places["</s>"])

    def rewritten(self, pieces: Iterable[_Piece], control: ControlIds) -> Vocabulary:
        """Makes the vocabulary of our control pieces and then these, which cuts text by the rules of this model."""
        first = [_Piece(text, 0.0, Kind.CONTROL, id) for text, id in zip(CONTROL_PIECES, control, strict=True)]
        first[UNKNOWN] = first[UNKNOWN]._replace(kind=Kind.UNKNOWN)
        pieces = [*first, *pieces]
        model = parse_model(b"")  # not a copy of all fields: tests in the model would fail with other ids
        for part in ("trainer_spec", "normalizer_spec", "denormalizer_spec"):
            getattr(model, part).CopyFrom(getattr(self._proto, part))
        for piece in pieces:
            model.pieces.add(piece=piece.text, score=piece.score, type=piece.kind)
        trainer = model.trainer_spec
        trainer.vocab_size = len(pieces)
        trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = PAD, UNKNOWN, START, END
        trainer.pad_piece, trainer.unk_piece, trainer.bos_piece, trainer.eos_piece = CONTROL_PIECES
        return Vocabulary(Tokenizer(model.SerializeToString(deterministic=True)), [piece.id for piece in pieces])


def source_vocabulary(model: bytes, ids: dict[str, int], control: ControlIds) -> Vocabulary:
    """Makes the vocabulary of sources: the pieces of a SentencePiece model, then tags of languages.

    A piece that the model from outside has no id for gets the unknown id there, and keeps a place here, so that a line
    is cut into the same pieces. A tag, such as `>>deu<<`, is a piece wherever it begins a word.

    Args:
        model: a SentencePiece model.
        ids: the vocabulary of the model from outside.
        control: its control ids.

    Raises:
        ValueError: the model is damaged, or would change the spelling of a tag.
    """
    cut = _Model(model)
    own_tags = {SPACE + text: id for text, id in ids.items() if is_tag(text)}  # those that are pieces of the model
    pieces = [
        piece._replace(id=ids.get(text, own_tags.get(text, control.unknown))) for text, piece in cut.of_text.items()
    ]
    tags = cut.tags(ids)
    pieces += [_Piece(SPACE + tag, 0.0, Kind.USER_DEFINED, id) for tag, id in tags.items()]
    return _with_whole_tags(cut.rewritten(pieces, control), tags)


def target_vocabulary(model: bytes, ids: dict[str, int], control: ControlIds) -> Vocabulary:
    """Makes the vocabulary of translations: all that the model from outside may emit.

    Pieces that the SentencePiece model lacks are unused in it: they are decoded, and no text is cut into them.

    Args:
        model: a SentencePiece model.
        ids: the vocabulary of the model from outside.
        control: its control ids.

    Raises:
        ValueError: the model is damaged.
    """
    cut = _Model(model)
    return cut.rewritten(cut.emitted(ids, control), control)


def shared_vocabularies(
    source: bytes, target: bytes, ids: dict[str, int], control: ControlIds
) -> tuple[Vocabulary, Vocabulary]:
    """Makes the vocabularies of sources and of translations with the same pieces in one order, for a model that has one
    matrix for both.

    The pieces are those of `target_vocabulary`, then those of the source that the model from outside has no id for. A
    piece that is not the source's is a control piece on its side: no text is cut into it.

    Args:
        source, target: the SentencePiece models.
        ids: the vocabulary of the model from outside.
        control: its control ids.

    Raises:
        ValueError: see `source_vocabulary`; or the model has an id for a tag with a space before it too.
    """
    read, written = _Model(source), _Model(target)
    tags = read.tags(ids)
    spaced = {text for text in ids if text in tags or (is_tag(text) and SPACE + text in read.of_text)}
    if twice := sorted(tag for tag in spaced if SPACE + tag in ids):
        raise ValueError(f"the vocabulary has the tag {twice[0]!r:.40} with a space too")
    pieces = [
        piece._replace(text=SPACE + piece.text) if piece.text in spaced else piece
        for piece in written.emitted(ids, control)
    ]
    texts = {piece.text for piece in pieces}
    pieces += [_Piece(text, 0.0, Kind.UNUSED, control.unknown) for text in read.of_text if text not in texts]
    kinds = {SPACE + tag: (0.0, Kind.USER_DEFINED) for tag in tags}
    kinds |= {text: (piece.score, piece.kind) for text, piece in read.of_text.items()}
    of_source = []
    for piece in pieces:
        score, kind = kinds.get(piece.text, (0.0, Kind.CONTROL))
        of_source.append(piece._replace(score=score, kind=kind))
    return _with_whole_tags(read.rewritten(of_source, control), tags), written.rewritten(pieces, control)


def tagged_vocabularies(
    model: bytes, ids: dict[str, int], special: set[str], tags: dict[str, int], control: ControlIds
) -> tuple[Vocabulary, Vocabulary]:
    """Makes the vocabularies of sources and of translations, with the same pieces in one order, of a model with tags of
    languages.

    A tag is a piece of a source wherever it begins a word. In a translation it is no text, as other special tokens.

    Args:
        model: the SentencePiece model of both sides.
        ids: the vocabulary of the model from outside, without tags.
        special: those of it that are no text.
        tags: the ids of the tags.
        control: its control ids.

    Raises:
        ValueError: the model is damaged, or would change the spelling of a tag.
    """
    cut = _Model(model)
    pieces = cut.emitted({text: id for text, id in ids.items() if text not in special}, control)
    more = [id for text, id in ids.items() if text in special and id not in control]
    pieces += [_Piece(f"<id {id}>", 0.0, Kind.CONTROL, id) for id in more]
    pieces += [piece._replace(id=control.unknown) for text, piece in cut.of_text.items() if text not in ids]
    source, target = (
        cut.rewritten([*pieces, *(_Piece(SPACE + tag, 0.0, kind, id) for tag, id in tags.items())], control)
        for kind in (Kind.USER_DEFINED, Kind.CONTROL)
    )
    return _with_whole_tags(source, tags), target


def joint_vocabulary(
    model: bytes, size: int, tags: list[str], start: int | None = None, pad: int | None = None
) -> tuple[Vocabulary, ControlIds]:
    """Makes the vocabulary of sources and translations alike, in which the place of a piece is its id; returns it and
    its control ids.

    The model's other control pieces are further control ids of ours, but for tags such as `<2de>`.

    Args:
        model: a SentencePiece model.
        size: the rows of the model's matrices, of which those behind the tags are padding.
        tags: pieces whose ids follow those of the SentencePiece model. A tag is a piece wherever it begins a word.
        start: the id with which decoding starts, that of a control piece or the unknown one; by default pad.
        pad: the id of pad in a model without a piece `<pad>`.

    Raises:
        ValueError: the model is damaged, has no pad or end, or does not fit the size, or would change the spelling of
            a tag.
    """
    cut = _Model(model)
    control, count = cut.control_ids(start, pad), len(cut.pieces)
    if size < count + len(tags):
        raise ValueError(
            f"expected pieces for the {size:,} ids of config.json; received {count:,} and {len(tags):,} others"
        )
    ids = {tag: count + place for place, tag in enumerate(tags)}
    pieces = [
        piece._replace(kind=Kind.USER_DEFINED) if OWN_TAG.fullmatch(piece.text) else piece
        for piece in cut.pieces
        if piece.id not in control
    ]
    pieces += [_Piece(SPACE + tag, 0.0, Kind.USER_DEFINED, id) for tag, id in ids.items()]
    further = [piece._replace(text=f"<id {piece.id}>") for piece in pieces if piece.kind == Kind.CONTROL]
    text = [piece for piece in pieces if piece.kind != Kind.CONTROL]
    vocabulary = _with_whole_tags(cut.rewritten([*further, *text], control), ids)
    return vocabulary._replace(num_control_ids=len(CONTROL_PIECES) + len(further)), control


def _with_whole_tags(vocabulary: Vocabulary, tags: dict[str, int]) -> Vocabulary:
    """Returns the vocabulary. Raises ValueError unless it cuts each tag into its one piece."""
    for (tag, id), cut in zip(tags.items(), vocabulary.tokenizer.encode([*tags]), strict=True):
        if [vocabulary.ids[place] for place in cut] != [id]:
            raise ValueError(f"its normalization changes the tag {tag!r:.40}")
    return vocabulary


def is_tag(text: str) -> bool:
    """Whether a piece is the tag of a language, as OPUS-MT writes it."""
    return text.startswith(">>") and text.endswith("<<") and len(text) > 4


def sentencepiece_model(tokenizer: Config, others: list[str]) -> bytes:
    """Makes the SentencePiece model that a tokenizer.json describes.

    Args:
        tokenizer: the content of `tokenizer.json`.
        others: the pieces with the last ids, which are no pieces of the SentencePiece model.

    Raises:
        ValueError: the tokenizer is damaged, or SentencePiece would cut a text otherwise.
    """
    proto, (entries, unknown) = parse_model(b""), _entries(tokenizer)
    texts = [text for text, _ in entries]
    texts += [text for text in _added(tokenizer, len(entries)) if text not in {*texts}]
    if texts[len(texts) - len(others) :] != others:
        raise ValueError(f"expected the pieces {', '.join(others[:2])} and so on with the last ids; it has others")
    for place, (text, score) in enumerate(entries[: len(texts) - len(others)]):
        kind = Kind.UNKNOWN if place == unknown else Kind.CONTROL if text in T5_CONTROLS else Kind.NORMAL
        proto.pieces.add(piece=text, score=score, type=kind)
    for step in [*steps_of(tokenizer.get("normalizer")), *steps_of(tokenizer.get("pre_tokenizer"))]:
        name, options = step.get("type"), {name: value for name, value in step.items() if name != "type"}
        if name == "Precompiled" and isinstance(table := options.get("precompiled_charsmap"), str):
            proto.normalizer_spec.precompiled_charsmap = base64.b64decode(table, validate=True)
        elif options not in SPACES.get(str(name), []):
            raise ValueError(f"it asks for {name!r:.40} with {options!r:.80}, which SentencePiece does not do")
    return proto.SerializeToString(deterministic=True)


def _entries(tokenizer: Config) -> tuple[list[tuple[str, float]], int]:
    """Returns the pieces with their scores, and the place of the unknown one."""
    model = tokenizer.get("model")
    if not isinstance(model, dict) or model.get("type") != "Unigram" or model.get("byte_fallback"):
        raise ValueError("expected a model of the type Unigram without bytes")
    entries, unknown = model.get("vocab"), model.get("unk_id")
    if not isinstance(entries, list) or not 0 < len(entries) <= MAX_PIECES:
        raise ValueError("expected a list of pieces")
    for entry in entries:
        is_pair = isinstance(entry, list) and len(entry) == 2 and isinstance(entry[0], str)
        if not is_pair or type(entry[1]) not in (int, float) or not abs(entry[1]) < 1e30:
            raise ValueError(f"expected a piece and its score; received {entry!r:.60}")
    if type(unknown) is not int or not 0 <= unknown < len(entries):
        raise ValueError(f"expected the place of the unknown piece; received {unknown!r:.40}")
    texts = [text for text, _ in entries]
    if texts[unknown] in T5_CONTROLS and T5_UNKNOWN in texts:  # transformers 5 writes T5's place for every model
        unknown = texts.index(T5_UNKNOWN)
    return [(text, float(score)) for text, score in entries], unknown


def _added(tokenizer: Config, count: int) -> list[str]:
    """Returns the pieces that were added, those behind the `count` pieces of the model in the order of their ids."""
    tokens = tokenizer.get("added_tokens") or []
    try:
        list_of(having(id=int, content=str)).checked(tokens)
    except ValueError:
        raise ValueError("expected added tokens with ids and texts") from None
    pairs = sorted((token["id"], token["content"]) for token in tokens)
    behind = [pair for pair in pairs if pair[0] >= count]
    if [id for id, _ in behind] != [*range(count, count + len(behind))]:
        raise ValueError("expected the ids of added tokens behind those of the pieces, without a gap")
    return [text for _, text in pairs]


def steps_of(part: Config | None) -> Iterator[Config]:
    """Yields the steps of a normalizer or of a pre-tokenizer; a sequence holds others."""
    if part is None:
        return
    if not isinstance(part, dict):
        raise ValueError(f"expected a step; received {part!r:.60}")
    if part.get("type") != "Sequence":
        yield part
        return
    steps = part.get("normalizers", part.get("pretokenizers"))
    for step in steps if isinstance(steps, list) else [steps]:
        yield from steps_of(step)
