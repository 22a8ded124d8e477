"""The SentencePiece model that `tokenizer.json` describes, for T5's folders in which it stands alone.

The pieces, their scores and the table of normalization are SentencePiece's own there; what is done with the spaces of a
text is told in steps, of which those that SentencePiece takes too are known here.
"""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

from keras_transformer.spec.options import Config

MAX_PIECES = 4_000_000
CONTROLS, UNKNOWN = ("<pad>", "<s>", "</s>"), "<unk>"
SPACE = "▁"
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


def sentencepiece_model(tokenizer: Config, others: list[str]) -> bytes:
    """The SentencePiece model that a tokenizer describes.

    Args:
        tokenizer: the content of `tokenizer.json`.
        others: the pieces with the last ids, which are no pieces of the SentencePiece model.

    Raises:
        ValueError: the tokenizer is damaged, or SentencePiece would cut a text otherwise.
    """
    from sentencepiece import sentencepiece_model_pb2

    specification: Any = sentencepiece_model_pb2
    proto, types = specification.ModelProto(), specification.ModelProto.SentencePiece
    entries, unknown = _entries(tokenizer)
    texts = [text for text, _ in entries]
    texts += [text for text in _added(tokenizer, len(entries)) if text not in {*texts}]
    if texts[len(texts) - len(others) :] != others:
        raise ValueError(f"expected the pieces {', '.join(others[:2])} and so on with the last ids; it has others")
    for place, (text, score) in enumerate(entries[: len(texts) - len(others)]):
        type = types.UNKNOWN if place == unknown else types.CONTROL if text in CONTROLS else types.NORMAL
        proto.pieces.add(piece=text, score=score, type=type)
    for step in [*steps_of(tokenizer.get("normalizer")), *steps_of(tokenizer.get("pre_tokenizer"))]:
        kind, options = step.get("type"), {name: value for name, value in step.items() if name != "type"}
        if kind == "Precompiled" and isinstance(table := options.get("precompiled_charsmap"), str):
            proto.normalizer_spec.precompiled_charsmap = base64.b64decode(table, validate=True)
        elif options not in SPACES.get(str(kind), []):
            raise ValueError(f"it asks for {kind!r:.40} with {options!r:.80}, which SentencePiece does not do")
    return proto.SerializeToString(deterministic=True)


def _entries(tokenizer: Config) -> tuple[list[tuple[str, float]], int]:
    """The pieces with their scores, and the place of the unknown one."""
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
    if texts[unknown] in CONTROLS and UNKNOWN in texts:  # transformers 5 writes T5's place for every model
        unknown = texts.index(UNKNOWN)
    return [(text, float(score)) for text, score in entries], unknown


def _added(tokenizer: Config, count: int) -> list[str]:
    """The pieces that were added, those behind the `count` pieces of the model in the order of their ids."""
    tokens = tokenizer.get("added_tokens") or []
    is_list = isinstance(tokens, list) and all(isinstance(each, dict) for each in tokens)
    pairs: list[Any] = [(each.get("id"), each.get("content")) for each in tokens] if is_list else [(None, None)]
    if any(type(id) is not int or not isinstance(text, str) for id, text in pairs):
        raise ValueError("expected added tokens with ids and texts")
    behind = sorted(pair for pair in pairs if pair[0] >= count)
    if [id for id, _ in behind] != [*range(count, count + len(behind))]:
        raise ValueError("expected the ids of added tokens behind those of the pieces, without a gap")
    return [text for _, text in sorted(pairs)]


def steps_of(part: object) -> Iterator[Config]:
    """The steps of a normalizer or of a pre-tokenizer; a sequence holds others."""
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
