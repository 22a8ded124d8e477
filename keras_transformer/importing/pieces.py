"""SentencePiece models from outside, rewritten so that the place of a piece is its id in our vocabulary."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NamedTuple

from keras_transformer.text.tokenizer import CONTROL_PIECES, END, PAD, SPACE, START, UNKNOWN, Tokenizer

MAX_MODEL_BYTES = 16 * 2**20
MAX_CONTROL_IDS = 10_000
NEVER = -100.0  # the logit of an id that is never emitted, less what its row gives


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
    """The biases of control ids that the model from outside does not have, so that they take no probability.

    Args:
        ids: for each of our ids, the id in the model from outside.
    """
    return {id: NEVER for id in (UNKNOWN, START) if ids.count(ids[id]) > 1}


class _Piece(NamedTuple):
    text: str
    score: float
    type: int
    id: int  # in the model from outside


def source_vocabulary(model: bytes, ids: dict[str, int], control: ControlIds) -> Vocabulary:
    """The vocabulary of sources: the pieces of a SentencePiece model, then tags of languages.

    A piece that the model from outside has no id for gets the unknown id there, and keeps a place here, so that a line
    is cut into the same pieces. A tag, such as `>>deu<<`, is a piece wherever it begins a word.

    Args:
        model: a SentencePiece model.
        ids: the vocabulary of the model from outside.
        control: its control ids.

    Raises:
        ValueError: the model is damaged, or would change the spelling of a tag.
    """
    proto, types = _parsed(model)
    kept = (types.NORMAL, types.USER_DEFINED, types.UNUSED, types.BYTE)
    pieces = [
        _Piece(each.piece, each.score, each.type, ids.get(each.piece, control.unknown))
        for each in proto.pieces
        if each.type in kept and each.piece not in CONTROL_PIECES
    ]
    known = {piece.text for piece in pieces}
    tags = sorted(text for text in ids if is_tag(text) and SPACE + text not in known)
    pieces += [_Piece(SPACE + tag, 0.0, types.USER_DEFINED, ids[tag]) for tag in tags]
    vocabulary = _rewritten(proto, types, pieces, control)
    _check_tags(vocabulary, {tag: ids[tag] for tag in tags})
    return vocabulary


def target_vocabulary(model: bytes, ids: dict[str, int], control: ControlIds) -> Vocabulary:
    """The vocabulary of translations: all that the model from outside may emit.

    Pieces that the SentencePiece model lacks are unused in it: they are decoded, and no text is cut into them.

    Args:
        model: a SentencePiece model.
        ids: the vocabulary of the model from outside.
        control: its control ids.

    Raises:
        ValueError: the model is damaged.
    """
    proto, types = _parsed(model)
    kept = (types.NORMAL, types.USER_DEFINED, types.UNUSED, types.BYTE)
    known = {each.piece: each for each in proto.pieces if each.type in kept}
    pieces = []
    for text, id in sorted(ids.items(), key=lambda item: item[1]):
        if id in control:
            continue
        if text in CONTROL_PIECES:  # a piece of text here, which must not be spelled as our control pieces are
            pieces.append(_Piece(f"{text}*", 0.0, types.UNUSED, id))
        elif text in known:
            pieces.append(_Piece(text, known[text].score, known[text].type, id))
        else:
            pieces.append(_Piece(text, 0.0, types.UNUSED, id))
    return _rewritten(proto, types, pieces, control)


def joint_vocabulary(model: bytes, size: int, tags: list[str]) -> tuple[Vocabulary, ControlIds]:
    """The vocabulary of sources and translations alike, in which the place of a piece is its id; and its control ids.

    Decoding starts with the pad id. The model's other control pieces, and ids behind the tags, are further control ids
    of ours.

    Args:
        model: a SentencePiece model.
        size: the number of ids of the model from outside.
        tags: pieces whose ids follow those of the SentencePiece model. A tag is a piece wherever it begins a word.

    Raises:
        ValueError: the model is damaged, has no pad or end, or does not fit the size, or would change the spelling of
            a tag.
    """
    proto, types = _parsed(model)
    control = _control_ids(proto, types)
    if not 0 <= size - len(proto.pieces) - len(tags) <= MAX_CONTROL_IDS:
        received = f"{len(proto.pieces):,} and {len(tags):,} others"
        raise ValueError(f"expected pieces for the {size:,} ids of config.json; received {received}")
    all_pieces = [(each.piece, each.score, each.type) for each in proto.pieces]
    all_pieces += [(SPACE + tag, 0.0, types.USER_DEFINED) for tag in tags]
    all_pieces += [("", 0.0, types.CONTROL)] * (size - len(all_pieces))
    pieces = [_Piece(*piece, id) for id, piece in enumerate(all_pieces) if id not in control]
    further = [piece._replace(text=f"<id {piece.id}>") for piece in pieces if piece.type == types.CONTROL]
    text = [piece for piece in pieces if piece.type != types.CONTROL]
    vocabulary = _rewritten(proto, types, [*further, *text], control)
    _check_tags(vocabulary, {tag: len(proto.pieces) + place for place, tag in enumerate(tags)})
    return vocabulary._replace(num_control_ids=len(CONTROL_PIECES) + len(further)), control


def _control_ids(proto: Any, types: Any) -> ControlIds:
    """The control ids of a SentencePiece model that starts with pad, as T5's."""
    places = {each.piece: id for id, each in enumerate(proto.pieces)}
    unknown = [id for id, each in enumerate(proto.pieces) if each.type == types.UNKNOWN]
    if not {"<pad>", "</s>"} <= places.keys() or len(unknown) != 1:
        raise ValueError("it has no <pad>, </s> and unknown piece")
    return ControlIds(places["<pad>"], unknown[0], places["<pad>"], places["</s>"])


def _check_tags(vocabulary: Vocabulary, tags: dict[str, int]) -> None:
    """Raises ValueError unless each tag is cut into its one piece."""
    for (tag, id), cut in zip(tags.items(), vocabulary.tokenizer.encode([*tags]), strict=True):
        if [vocabulary.ids[place] for place in cut] != [id]:
            raise ValueError(f"its normalization changes the tag {tag!r:.40}")


def is_tag(text: str) -> bool:
    """Whether a piece is the tag of a language, as OPUS-MT writes it."""
    return text.startswith(">>") and text.endswith("<<") and len(text) > 4


def _parsed(model: bytes) -> tuple[Any, Any]:
    """The model's specification, and the types of pieces.

    Raises:
        ValueError: the model is damaged.
    """
    from google.protobuf.message import DecodeError
    from sentencepiece import sentencepiece_model_pb2

    specification: Any = sentencepiece_model_pb2
    try:
        return specification.ModelProto.FromString(model), specification.ModelProto.SentencePiece
    except DecodeError as error:
        raise ValueError("it is damaged or not a SentencePiece model") from error


def _rewritten(proto: Any, types: Any, pieces: Iterable[_Piece], control: ControlIds) -> Vocabulary:
    """The vocabulary of our control pieces and then these."""
    all_control = [types.CONTROL] * len(CONTROL_PIECES)
    all_control[UNKNOWN] = types.UNKNOWN
    first = [_Piece(text, 0.0, type, id) for text, type, id in zip(CONTROL_PIECES, all_control, control, strict=True)]
    pieces = [*first, *pieces]
    model = type(proto)()  # not a copy of all fields: tests in the model would fail with other ids
    for part in ("trainer_spec", "normalizer_spec", "denormalizer_spec"):
        getattr(model, part).CopyFrom(getattr(proto, part))
    for piece in pieces:
        model.pieces.add(piece=piece.text, score=piece.score, type=piece.type)
    trainer = model.trainer_spec
    trainer.vocab_size = len(pieces)
    trainer.pad_id, trainer.unk_id, trainer.bos_id, trainer.eos_id = PAD, UNKNOWN, START, END
    trainer.pad_piece, trainer.unk_piece, trainer.bos_piece, trainer.eos_piece = CONTROL_PIECES
    return Vocabulary(Tokenizer(model.SerializeToString(deterministic=True)), [piece.id for piece in pieces])
