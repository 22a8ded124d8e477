"""SentencePiece models from outside, rewritten so that the place of a piece is its id in our vocabulary."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple

from keras_transformer.importing.folder import ModelFolder
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, PAD, SPACE, START, UNKNOWN, Tokenizer

MAX_MODEL_BYTES = 16 * 2**20
OWN_TAG = re.compile(r"<2\w{2,20}>")  # MADLAD-400's tags of languages, such as <2de> and <2zh_Latn>
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


def count_ids(folder: ModelFolder, size: int) -> int:
    """How many ids the tokenizer has, from 0 on: mostly all of the model's, unless its matrices are padded.

    No text has the ids of the rows behind, so they have no place in our vocabulary: nothing emits them, and they take
    no probability.

    Args:
        folder: the model's folder.
        size: the rows of the model's matrices, the answer where no file of the tokenizer tells.

    Raises:
        RequestError: a file of the tokenizer is damaged.
    """
    vocabulary: Any = None
    added: list[Any] = []
    if folder.has("tokenizer.json"):
        tokenizer = folder.json("tokenizer.json")
        model, tokens = tokenizer.get("model"), tokenizer.get("added_tokens")
        vocabulary = model.get("vocab") if isinstance(model, dict) else None
        added += [token.get("id") for token in tokens if isinstance(token, dict)] if isinstance(tokens, list) else []
    elif folder.has("vocab.json"):
        vocabulary = folder.json("vocab.json")
    elif folder.has("vocab.txt"):
        vocabulary = folder.read("vocab.txt", MAX_MODEL_BYTES).rstrip(b"\r\n").split(b"\n")
    if folder.has("added_tokens.json"):
        added += folder.json("added_tokens.json").values()
    if not isinstance(vocabulary, dict | list) or not vocabulary:
        return size
    ids = [*(vocabulary.values() if isinstance(vocabulary, dict) else range(len(vocabulary))), *added]
    return max((id for id in ids if type(id) is int and 0 <= id < size), default=size - 1) + 1


def fixed_logits(ids: list[int]) -> dict[int, float]:
    """The biases of our ids whose rows are copies, so that they take no probability: control ids that the model from
    outside does not have, and pieces that it has no id for.

    Args:
        ids: for each of our ids, the id in the model from outside.
    """
    own = ids[PAD], ids[UNKNOWN], ids[END]
    copies = [UNKNOWN] if ids[UNKNOWN] in (ids[PAD], ids[END]) else []
    copies += [START] if ids.count(ids[START]) > 1 else []
    return dict.fromkeys(copies + [id for id in range(END + 1, len(ids)) if ids[id] in own], NEVER)


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
    proto, types = parsed(model)
    own_tags = {SPACE + text: id for text, id in ids.items() if is_tag(text)}  # those that are pieces of the model
    pieces = [
        _Piece(text, each.score, each.type, ids.get(text, own_tags.get(text, control.unknown)))
        for text, each in _pieces_of_text(proto, types).items()
    ]
    tags = _tags(proto, ids)
    pieces += [_Piece(SPACE + tag, 0.0, types.USER_DEFINED, id) for tag, id in tags.items()]
    vocabulary = _rewritten(proto, types, pieces, control)
    _check_tags(vocabulary, tags)
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
    proto, types = parsed(model)
    return _rewritten(proto, types, _emitted(proto, types, ids, control), control)


def shared_vocabularies(
    source: bytes, target: bytes, ids: dict[str, int], control: ControlIds
) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of sources and of translations with the same pieces in one order, for a model that has one
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
    (read, types), (written, _) = parsed(source), parsed(target)
    tags, known = _tags(read, ids), _pieces_of_text(read, types)
    spaced = {text for text in ids if text in tags or (is_tag(text) and SPACE + text in known)}
    if twice := sorted(tag for tag in spaced if SPACE + tag in ids):
        raise ValueError(f"the vocabulary has the tag {twice[0]!r:.40} with a space too")
    pieces = [
        piece._replace(text=SPACE + piece.text) if piece.text in spaced else piece
        for piece in _emitted(written, types, ids, control)
    ]
    texts = {piece.text for piece in pieces}
    pieces += [_Piece(text, 0.0, types.UNUSED, control.unknown) for text in known if text not in texts]
    kinds = {SPACE + tag: (0.0, types.USER_DEFINED) for tag in tags}
    kinds |= {text: (each.score, each.type) for text, each in known.items()}
    of_source = []
    for piece in pieces:
        score, type = kinds.get(piece.text, (0.0, types.CONTROL))
        of_source.append(piece._replace(score=score, type=type))
    vocabulary = _rewritten(read, types, of_source, control)
    _check_tags(vocabulary, tags)
    return vocabulary, _rewritten(written, types, pieces, control)


def tagged_vocabularies(
    model: bytes, ids: dict[str, int], special: set[str], tags: dict[str, int], control: ControlIds
) -> tuple[Vocabulary, Vocabulary]:
    """The vocabularies of sources and of translations, with the same pieces in one order, of a model with tags of
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
    proto, types = parsed(model)
    text = {piece: id for piece, id in ids.items() if piece not in special}
    pieces = _emitted(proto, types, text, control)
    more = [id for piece, id in ids.items() if piece in special and id not in control]
    pieces += [_Piece(f"<id {id}>", 0.0, types.CONTROL, id) for id in more]
    lacking = {piece: each for piece, each in _pieces_of_text(proto, types).items() if piece not in ids}
    pieces += [_Piece(piece, each.score, each.type, control.unknown) for piece, each in lacking.items()]
    source, target = (
        _rewritten(proto, types, [*pieces, *(_Piece(SPACE + tag, 0.0, type, id) for tag, id in tags.items())], control)
        for type in (types.USER_DEFINED, types.CONTROL)
    )
    _check_tags(source, tags)
    return source, target


def _pieces_of_text(proto: Any, types: Any) -> dict[str, Any]:
    """The pieces that a text may be cut into, or that stand unused."""
    kept = (types.NORMAL, types.USER_DEFINED, types.UNUSED, types.BYTE)
    return {each.piece: each for each in proto.pieces if each.type in kept and each.piece not in CONTROL_PIECES}


def _tags(proto: Any, ids: dict[str, int]) -> dict[str, int]:
    """The tags of languages that a SentencePiece model lacks, and their ids."""
    known = {each.piece for each in proto.pieces}
    return {text: ids[text] for text in sorted(ids) if is_tag(text) and SPACE + text not in known}


def _emitted(proto: Any, types: Any, ids: dict[str, int], control: ControlIds) -> list[_Piece]:
    """The pieces that a model from outside may emit, by its ids. A piece that decoding starts with is one of them."""
    known, pieces = _pieces_of_text(proto, types), []
    for text, id in sorted(ids.items(), key=lambda item: item[1]):
        if id in control and (id != control.start or control.count(id) > 1 or text in CONTROL_PIECES):
            continue
        if text in CONTROL_PIECES:  # a piece of text here, which must not be spelled as our control pieces are
            pieces.append(_Piece(f"{text}*", 0.0, types.UNUSED, id))
        elif text in known:
            pieces.append(_Piece(text, known[text].score, known[text].type, id))
        else:
            pieces.append(_Piece(text, 0.0, types.UNUSED, id))
    return pieces


def joint_vocabulary(
    model: bytes, size: int, tags: list[str], start: int | None = None, pad: int | None = None
) -> tuple[Vocabulary, ControlIds]:
    """The vocabulary of sources and translations alike, in which the place of a piece is its id; and its control ids.

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
    proto, types = parsed(model)
    control = _control_ids(proto, types, start, pad)
    if size < len(proto.pieces) + len(tags):
        received = f"{len(proto.pieces):,} and {len(tags):,} others"
        raise ValueError(f"expected pieces for the {size:,} ids of config.json; received {received}")
    all_pieces = [
        (each.piece, each.score, types.USER_DEFINED if OWN_TAG.fullmatch(str(each.piece)) else each.type)
        for each in proto.pieces
    ]
    all_pieces += [(SPACE + tag, 0.0, types.USER_DEFINED) for tag in tags]
    pieces = [_Piece(*piece, id) for id, piece in enumerate(all_pieces) if id not in control]
    further = [piece._replace(text=f"<id {piece.id}>") for piece in pieces if piece.type == types.CONTROL]
    text = [piece for piece in pieces if piece.type != types.CONTROL]
    vocabulary = _rewritten(proto, types, [*further, *text], control)
    _check_tags(vocabulary, {tag: len(proto.pieces) + place for place, tag in enumerate(tags)})
    return vocabulary._replace(num_control_ids=len(CONTROL_PIECES) + len(further)), control


def _control_ids(proto: Any, types: Any, start: int | None, pad: int | None) -> ControlIds:
    """The control ids of a SentencePiece model. Decoding starts with pad, as T5's, or with another control piece."""
    places = {each.piece: id for id, each in enumerate(proto.pieces)}
    unknown = [id for id, each in enumerate(proto.pieces) if each.type == types.UNKNOWN]
    pad = places.get("<pad>", pad)
    if pad is None or "</s>" not in places or len(unknown) != 1:
        raise ValueError("it has no <pad>, </s> and unknown piece")
    start = pad if start is None else start
    for name, id in (("padding is", pad), ("decoding starts with", start)):
        if id >= len(proto.pieces) or proto.pieces[id].type not in (types.CONTROL, types.UNKNOWN):
            raise ValueError(f"{name} id {id:,}, which is no control piece")
    return ControlIds(pad, unknown[0], start, places["</s>"])


def _check_tags(vocabulary: Vocabulary, tags: dict[str, int]) -> None:
    """Raises ValueError unless each tag is cut into its one piece."""
    for (tag, id), cut in zip(tags.items(), vocabulary.tokenizer.encode([*tags]), strict=True):
        if [vocabulary.ids[place] for place in cut] != [id]:
            raise ValueError(f"its normalization changes the tag {tag!r:.40}")


def is_tag(text: str) -> bool:
    """Whether a piece is the tag of a language, as OPUS-MT writes it."""
    return text.startswith(">>") and text.endswith("<<") and len(text) > 4


def parsed(model: bytes) -> tuple[Any, Any]:
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
