"""Turns text into ids and back, by a SentencePiece vocabulary with this project's four control ids."""

from __future__ import annotations

import io
import os
import random
import re
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any, Self

import sentencepiece

from keras_transformer.core.errors import RequestError, warn, warn_of_news
from keras_transformer.core.extras import MissingPackage
from keras_transformer.core.files import write_whole
from keras_transformer.spec.options import Config
from keras_transformer.text.lines import one_line, plain, string_of, strings_of, valid_unicode, without_rare_characters
from keras_transformer.text.normalization import DEFAULT_NORMALIZATION, NORMALIZATIONS, normalizer_of

PAD, UNKNOWN, START, END = 0, 1, 2, 3
CONTROL_PIECES = ("<pad>", "<unk>", "<s>", "</s>")
MASK, MASK_PIECE = 4, "<mask>"  # in vocabularies that are trained with a mask
SEPARATOR = END  # between a source and its target in one row: every vocabulary has this id, and no text gives it
SPACE = "▁"  # how pieces spell a space
LINE_BREAK = "\n"  # a piece of vocabularies that keep text as it is

NUM_SHOWN = 5
SAME_SCORE = 1e-3  # two divisions of a text into pieces are as likely within this, in nats
MODEL_TYPES = ("unigram", "bpe", "char")
# While it trains, SentencePiece takes about 3 KB a line: 1.4 GB for this many.
MAX_TRAINING_LINES = 400_000
# In a script with thousands of characters, the rare ones would leave no room for longer pieces: if the alphabet is
# larger than this share of the vocabulary, they are left out.
MAX_ALPHABET_SHARE = 0.25
REDUCED_COVERAGE = 0.9995
# With byte fallback the rarest characters are spelled by bytes, so that bytes are learned: those seen this often at
# most, and others up to the share that `REDUCED_COVERAGE` leaves out.
RARE, NUM_BYTES = 2, 256


class VocabularyTooLarge(RequestError):
    """The training text supports at most `most` pieces."""

    def __init__(self, size: int, most: int):
        super().__init__(
            f"a vocabulary of {size} is larger than the training text supports: it supports at most {most}; ask for "
            "that or less"
        )
        self.most = most


class Tokenizer:
    """A SentencePiece model, unigram or BPE, over one language or, jointly, over two. Threads may share it.

    Ids: pad 0, unknown 1, start 2, end 3, then the pieces. Text is normalised by the vocabulary's own rules: in all of
    them control characters vanish, and runs of spaces become one. By default (`lossless`) a character that the
    vocabulary can write is kept as it is, and any other is read in its nearest form: a no-break space as a space, `½`
    as `1/2`. Text that spells a control symbol, such as `</s>`, stays text. A vocabulary for language models keeps text
    as it is: `encode_text` and `decode_text` then give back every space and line break. A vocabulary with byte fallback
    spells any other character by the bytes of its UTF-8, so nothing is unknown.

    Reference: Kudo and Richardson 2018, "SentencePiece" (arXiv 1808.06226).

    Args:
        model: the serialised SentencePiece model.

    Raises:
        ValueError: the bytes are not such a model, or its control ids are others.
    """

    is_sentencepiece = True  # whether `model` is SentencePiece's: runtimes have operators for such vocabularies
    suffix = ".model"  # its file's
    max_bytes = 16 * 2**20
    has_start = True  # whether a model of texts reads a start id before a text

    def __init__(self, model: bytes):
        self.model = model
        self._processor = _processor(model)
        self.vocabulary_size: int = self._processor.vocab_size()

    @cached_property
    def model_type(self) -> str:
        """ "unigram", "bpe" or "char"."""
        spec = parse_model(self.model).trainer_spec
        return spec.ModelType.Name(spec.model_type).lower()

    @cached_property
    def has_denormalizer(self) -> bool:
        """Whether decoding rewrites the joined text by rules. Vocabularies that this project trains never do."""
        return bool(parse_model(self.model).denormalizer_spec.precompiled_charsmap)

    @cached_property
    def has_unused_pieces(self) -> bool:
        """Whether text is cut into fewer pieces than are decoded. Imported vocabularies have such pieces."""
        return any(map(self._processor.is_unused, range(self.vocabulary_size)))

    @cached_property
    def alphabet(self) -> set[str]:
        """The characters that pieces spell, the space among them."""
        pieces = parse_model(self.model).pieces
        return {*"".join(one.piece for one in pieces if one.type == one.NORMAL).replace(SPACE, " "), " "}

    @cached_property
    def has_bytes(self) -> bool:
        """Whether a character without a piece is spelled by bytes."""
        return any(map(self._processor.is_byte, range(self.vocabulary_size)))

    @property
    def has_line_breaks(self) -> bool:
        """Whether a line break is a piece, as in vocabularies that keep text as it is."""
        return self._processor.piece_to_id(LINE_BREAK) != UNKNOWN

    @property
    def has_mask(self) -> bool:
        """Whether id 4 is the mask, which no text gives."""
        return self._processor.id_to_piece(MASK) == MASK_PIECE and self._processor.is_control(MASK)

    @cached_property
    def tags(self) -> dict[str, int]:
        """Words before a source that are one piece wherever they stand, such as `<2de>`, and their ids."""
        pieces = enumerate(parse_model(self.model).pieces)
        return {one.piece: id for id, one in pieces if one.type == one.USER_DEFINED and one.piece != LINE_BREAK}

    def decoding_model(self) -> bytes:
        """Makes a model that decodes as this one does, without unused pieces, which LiteRT's tokenizer refuses."""
        if not self.has_unused_pieces:
            return self.model
        specification = parse_model(self.model)
        for piece in specification.pieces:
            if piece.type == piece.UNUSED:
                piece.type = piece.NORMAL
        return specification.SerializeToString(deterministic=True)

    @classmethod
    def train(
        cls,
        lines: Iterable[str],
        vocabulary_size: int,
        model_type: str = "unigram",
        seed: int = 0,
        num_threads: int = 1,
        keeps_text: bool = False,
        has_mask: bool = False,
        tags: Sequence[str] = (),
        normalization: str = DEFAULT_NORMALIZATION,
        byte_fallback: bool = False,
    ) -> Tokenizer:
        """Trains a vocabulary of exactly `vocabulary_size` pieces, control ids included.

        A vocabulary of characters has at most as many: those that are most frequent.

        The same lines in the same order and the same number of threads give the same bytes. From more than
        `MAX_TRAINING_LINES` lines, that many are drawn with `seed`, so that they fit in memory. For a joint vocabulary,
        give the lines of both languages. With `keeps_text`, text is not normalised, and a line break is a piece.
        With `has_mask`, id 4 is the mask. Each of the `tags`, such as `<2de>`, is one piece wherever it stands.
        `normalization` is one of `NORMALIZATIONS` or a file of SentencePiece's rules. With `byte_fallback`, 256 pieces
        are bytes, which spell rare characters.

        Raises:
            RequestError: the lines cannot support this size (the message names the nearest size that they can), all
                lines are empty, a name is unknown, or `lines` or `tags` are no list of strings.
        """
        _check(vocabulary_size, model_type, tags, len(CONTROL_PIECES) + NUM_BYTES * byte_fallback)
        sample = sample_of(strings_of(lines), MAX_TRAINING_LINES, random.Random(seed))
        if not keeps_text:
            normalizer = normalizer_of(normalization)
            sample = [normalizer.normalize(line).replace(SPACE, " ") for line in sample]
        given = ((_KEEPING_TEXT, keeps_text), (_MASK, has_mask), (_BYTES, byte_fallback))
        options = {name: value for part, is_asked in given if is_asked for name, value in part.items()}
        if tags:
            options["user_defined_symbols"] = [*options.get("user_defined_symbols", []), *tags]
        trained = cls(_trained_model(sample, vocabulary_size, model_type, num_threads, options))
        return trained if keeps_text else trained.normalized_by(normalization)

    def normalized_by(self, normalization: str) -> Tokenizer:
        """Makes a vocabulary of the same pieces for text that is normalised as `normalization` says; see `train`."""
        model = parse_model(self.model)
        normalizer = normalizer_of(normalization, None if self.has_bytes else self.alphabet)
        rules = type(model.normalizer_spec).FromString(normalizer.serialized_normalizer_spec())
        model.normalizer_spec.name = normalization if normalization in NORMALIZATIONS else rules.name
        model.normalizer_spec.precompiled_charsmap = rules.precompiled_charsmap
        return Tokenizer(model.SerializeToString(deterministic=True))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Reads a model that `save` wrote.

        Raises:
            RequestError: the file is missing, unreadable, too large or damaged, or has other control ids; the message
                names the file.
        """
        path = Path(path)
        try:
            if path.stat().st_size > cls.max_bytes:
                raise ValueError(f"it is larger than {cls.max_bytes // 2**20} MiB")
            return cls(path.read_bytes())
        except FileNotFoundError:
            raise RequestError(f"no tokenizer at {path}: check the path") from None
        except OSError as error:
            raise RequestError(f"cannot read the tokenizer {path}: {error.strerror}") from None
        except MissingPackage:
            raise
        except ValueError as error:
            raise RequestError(f"{path} is not a tokenizer of this project: {error}; train a new one") from None

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the SentencePiece model, which any SentencePiece library reads; the file appears only when whole."""
        with write_whole(Path(path)) as aside:
            aside.write_bytes(self.model)

    def encode(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Ids of the pieces of each line, without start and end. A blank line has none; no text gives a control id.

        Raises RequestError unless `lines` is a list of strings.
        """
        return self._processor.encode([plain(line) for line in strings_of(lines)], num_threads=num_threads)

    def encode_masked(self, line: str) -> list[int]:
        """Encodes a line as `encode` does; each `<mask>` is the mask, for a vocabulary with `has_mask`."""
        return [id for part in self.encode(string_of(line).split(MASK_PIECE)) for id in (MASK, *part)][1:]

    def chat_text(self, messages: Sequence[Mapping[str, str]]) -> str:
        """Returns the text that a model answers, of messages that have a role, such as "user", and a content each."""
        return self.chat_texts([messages])[0]

    def chat_texts(self, chats: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
        """Returns `chat_text` of each. Raises RequestError unless the model has a template for chats, and it takes
        these."""
        raise RequestError("expected a model with a template for chats; this one has none: give it the whole text")

    def normalize(self, line: str) -> str:
        """Returns the normalised line, as pieces spell it: with `▁` for each space and at the beginning."""
        return self._processor.normalize(plain(string_of(line)))

    def unread(self, line: str) -> list[str]:
        """Returns the characters of a line that are read as unknown."""
        if self.alphabet.issuperset(line):
            return []
        unread = [char for char in self.normalize(line) if char not in self.alphabet and char != SPACE]
        # A tag has a piece, and bytes spell the rest.
        return unread if unread and UNKNOWN in self.encode([line])[0] else []

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decodes each row of ids up to its end id, without pad and start, as one line."""
        texts = self._processor.decode([until_end(row) for row in ids])
        return [one_line(text).strip() for text in texts]

    def source_spans(self, line: str) -> list[tuple[int, int]]:
        """Returns where each piece of `encode` stands in a line: its first character, and the one behind its last. The
        space before a word is in the span of its first piece."""
        return self._processor.encode(plain(string_of(line)), return_type="offset_mapping")["offsets"]

    def target_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        """Returns where each id adds characters to the line of `decode`, as `source_spans` does."""
        found = self._processor.decode(until_end(ids), return_type="offset_mapping")
        text = found["text"]
        cut, most = len(text) - len(text.lstrip()), len(text.strip())
        return [tuple(min(max(at - cut, 0), most) for at in span) for span in found["offsets"]]

    def encode_text(self, text: str) -> list[int]:
        """Ids of the pieces of a text of any number of lines, for a vocabulary with `has_line_breaks`."""
        return self._processor.encode(valid_unicode(string_of(text).replace("\0", " ")))

    def decode_text(self, ids: Sequence[int]) -> str:
        """Decodes ids into a text with its line breaks and all of its spaces. Control ids add nothing."""
        return self._processor.decode([int(id) for id in ids if int(id) not in (PAD, START, END)])

    def is_ambiguous(self, text: str) -> bool:
        """Whether the pieces of a text could as well be others: two divisions of the same probability.

        Libraries of SentencePiece then choose by rounding. Only a unigram vocabulary has probabilities.
        """
        scores = [sum(map(self._processor.get_score, ids)) for ids in self.divisions(text, 2)]
        return len(scores) > 1 and scores[0] - scores[1] < SAME_SCORE

    def divisions(self, text: str, most: int) -> list[list[int]]:
        """Returns the likeliest divisions of a text into pieces, in ids, the best first; none if the vocabulary has no
        probabilities, as BPE has none."""
        if not string_of(text) or self.model_type != "unigram":
            return []
        return self._processor.nbest_encode_as_ids(text, nbest_size=most)

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the spelling of each piece, with `▁` for a space, for pictures and alignments."""
        return [self._processor.id_to_piece(int(id)) for id in ids]

    def words(self) -> dict[str, int]:
        """Returns the words that are one piece, which begins with a space, and the ids of these pieces."""
        pieces = self.pieces(range(self.vocabulary_size))
        return {piece[1:]: id for id, piece in enumerate(pieces) if re.fullmatch(f"{SPACE}[^{SPACE}]+", piece)}

    def surfaces(self) -> list[bytes]:
        """Returns the bytes that each piece of the vocabulary adds to decoded text, in UTF-8; a byte piece adds its
        byte."""
        return [self._surface(id, piece) for id, piece in enumerate(self.pieces(range(self.vocabulary_size)))]

    def _surface(self, id: int, piece: str) -> bytes:
        if self._processor.is_control(id):
            return b""
        if self._processor.is_byte(id):
            return bytes([int(piece[1:-1], 16)])  # <0xE4>
        if self._processor.is_unknown(id):
            return self._processor.decode([id]).encode()
        return piece.replace(SPACE, " ").encode()


class Unread:
    """Counts characters without a piece, which a model reads as unknown, and the lines that hold some.

    Whatever reads text counts here, and tells behind the last line.

    Args:
        tokenizer: what reads the lines.
        lines: the first, or all.
    """

    def __init__(self, tokenizer: Tokenizer, lines: Iterable[str] = ()):
        self.tokenizer = tokenizer
        self.num_lines = self.num_characters = 0
        self.characters = dict[str, None]()  # in the order in which they came
        self.look(lines)

    def look(self, lines: Iterable[str]) -> None:
        """Looks at further lines."""
        for line in lines:
            if unread := self.tokenizer.unread(line):
                self.num_lines += 1
                self.num_characters += len(unread)
                self.characters.update(dict.fromkeys(unread))

    def tell(self) -> int:
        """Warns of the characters, if one is among them that this process has not told of; returns their number."""
        shown = ", ".join(map(repr, list(self.characters)[:NUM_SHOWN]))
        told = f"{self.num_lines} line(s) hold {self.num_characters} character(s) that the vocabulary cannot read"
        mend = "a vocabulary with --byte-fallback reads everything"
        warn_of_news(f"{told}, such as {shown}; {mend}", self.tokenizer, self.characters)
        return self.num_characters


def warn_of_cuts(num_cut: int, most: int, kind: str = "source(s)", reason: str = "") -> None:
    """Warns of sources, or of something else, that were too long."""
    if num_cut:
        warn(f"{num_cut} {kind} were over {most} pieces and were cut{reason}")


def parse_model(model: bytes) -> Any:
    """Parses a SentencePiece model: returns its `ModelProto`, a message of protobuf without types for Python.

    Raises:
        ValueError: the model is damaged.
    """
    from google.protobuf.message import DecodeError

    try:
        return import_module("sentencepiece.sentencepiece_model_pb2").ModelProto.FromString(model)
    except DecodeError as error:
        raise ValueError("it is damaged or not a SentencePiece model") from error


def _processor(model: bytes) -> sentencepiece.SentencePieceProcessor:
    if not model:
        raise ValueError("it is empty")
    try:
        processor = sentencepiece.SentencePieceProcessor(model_proto=model)
    except RuntimeError:
        raise ValueError("it is damaged or not a SentencePiece model") from None
    size = processor.vocab_size()
    pieces = [processor.id_to_piece(id) for id in range(size)]
    kinds_hold = size > END and processor.is_unknown(UNKNOWN) and all(map(processor.is_control, (PAD, START, END)))
    # If another piece had the spelling of a control id, text could produce that id.
    if not kinds_hold or tuple(pieces[: END + 1]) != CONTROL_PIECES or set(pieces[END + 1 :]) & set(CONTROL_PIECES):
        raise ValueError("its control ids must be <pad> 0, <unk> 1, <s> 2, </s> 3, each spelled once")
    return processor


def until_end(ids: Sequence[int]) -> list[int]:
    """Returns the ids up to the end id, without pad and start."""
    kept: list[int] = []
    for id in map(int, ids):
        if id == END:
            break
        if id not in (PAD, START):
            kept.append(id)
    return kept


def _check(vocabulary_size: int, model_type: str, tags: Sequence[str], num_given: int) -> None:
    """Raises RequestError if no vocabulary can be trained with such arguments."""
    if model_type not in MODEL_TYPES:
        raise RequestError(f"the vocabulary's type must be one of {', '.join(MODEL_TYPES)}; received: {model_type}")
    if vocabulary_size <= num_given:
        raise RequestError(f"vocabulary size must be over {num_given}; received: {vocabulary_size}")
    if reserved := {*strings_of(tags, "tags")} & {*CONTROL_PIECES, MASK_PIECE}:
        raise RequestError(f"a tag must be none of SentencePiece's control ids; received: {', '.join(reserved)}")


def sample_of(lines: Iterable[str], limit: int, generator: random.Random) -> list[str]:
    """Draws `limit` lines by reservoir sampling; SentencePiece can sample too, but without a seed."""
    kept: list[str] = []
    for index, line in enumerate(lines):
        if index < limit:
            kept.append(plain(line))
        elif (slot := generator.randrange(index + 1)) < limit:
            kept[slot] = plain(line)
    return kept


# Options of SentencePiece for a vocabulary that keeps text as it is.
_KEEPING_TEXT: Config = {
    "remove_extra_whitespaces": False,
    "add_dummy_prefix": False,
    "allow_whitespace_only_pieces": True,
    "user_defined_symbols": [LINE_BREAK],
}
_BYTES: Config = {"byte_fallback": True}
_MASK: Config = {"control_symbols": [MASK_PIECE]}


def _trained_model(lines: list[str], vocabulary_size: int, model_type: str, num_threads: int, options: Config) -> bytes:
    model = io.BytesIO()
    if options.get("byte_fallback"):
        lines = without_rare_characters(lines, RARE, 1 - REDUCED_COVERAGE)
    options = {
        "character_coverage": 1.0 if model_type == "char" else _character_coverage(lines, vocabulary_size),
        "normalization_rule_name": "identity",  # the lines are normalised already
        **dict(zip(("pad_id", "unk_id", "bos_id", "eos_id"), (PAD, UNKNOWN, START, END), strict=True)),
        **dict(zip(("pad_piece", "unk_piece", "bos_piece", "eos_piece"), CONTROL_PIECES, strict=True)),
        **options,
    }
    try:
        sentencepiece.SentencePieceTrainer.Train(
            sentence_iterator=iter(lines),
            model_writer=model,
            model_type=model_type,
            vocab_size=vocabulary_size,
            num_threads=num_threads,
            minloglevel=2,
            **options,
        )
    except RuntimeError as error:
        raise _training_error(str(error), vocabulary_size) from None
    return model.getvalue()


def _character_coverage(lines: Iterable[str], vocabulary_size: int) -> float:
    alphabet: set[str] = set().union(*lines)
    return 1.0 if len(alphabet) <= MAX_ALPHABET_SHARE * vocabulary_size else REDUCED_COVERAGE


def _training_error(reason: str, vocabulary_size: int) -> RequestError:
    if most := re.search(r"value <= (\d+)", reason):
        return VocabularyTooLarge(vocabulary_size, int(most[1]))
    if least := re.search(r"required_chars\D*\d+ vs (\d+)", reason):
        return RequestError(
            f"a vocabulary of {vocabulary_size} is too small for the characters of the training text: "
            f"it takes at least {least[1]}"
        )
    if "sentences_.empty()" in reason or "all_chars_count" in reason:
        return RequestError("no text to train a vocabulary from: every line is empty; check the training files")
    return RequestError(f"SentencePiece could not train a vocabulary of {vocabulary_size}: {reason}")
