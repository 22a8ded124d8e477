"""Cuts text by the vocabularies of models that were trained elsewhere, with Hugging Face's tokenizers; loads a
vocabulary of either kind.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from functools import cached_property
from itertools import accumulate, pairwise
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

from keras_transformer.core.errors import RequestError, silent
from keras_transformer.core.extras import missing, required
from keras_transformer.core.schema import list_of, object_of, parse_json, whole
from keras_transformer.text.lines import one_line, plain, string_of, strings_of, valid_unicode
from keras_transformer.text.tokenizer import (
    CONTROL_PIECES,
    END,
    MASK,
    MASK_PIECE,
    PAD,
    SPACE,
    START,
    UNKNOWN,
    Tokenizer,
    until_end,
)

if TYPE_CHECKING:
    import tokenizers

MAX_ID = 2**31 - 1
MAX_TEMPLATE = 200_000  # characters
# What a template may take for a chat.
MAX_CHAT = 1_000_000  # characters
CHAT_SECONDS = 2  # the processor's
CHAT_BYTES = 2**28  # more memory than the process has at its beginning
UNKNOWN_TEXT = "\N{REPLACEMENT CHARACTER} a \N{SNOWMAN}\N{COMET}"
NO_CHARACTER = "\N{REPLACEMENT CHARACTER}"  # stands for bytes that are no UTF-8, such as a part of a character
STORED = object_of({"ids": list_of(whole(0, MAX_ID)), "has_mask": bool, "tokenizer": str}, {"chat_template": str})


class HuggingFaceTokenizer(Tokenizer):
    """A tokenizer.json, whose ids are put in our order: pad, unknown, start, end, perhaps a mask, then the others.
    Threads may share it.

    It cuts text as `tokenizers` of Hugging Face does, by byte-level BPE, WordPiece or what else the file says. Unlike
    SentencePiece it reads a special token that a text spells, such as `[MASK]`, as that token. What the tokenizer puts
    around a text is left out where the model puts its own start and end there.

    Args:
        model: what `HuggingFaceTokenizer.of` writes. `ids` are then its ids for each of ours.

    Raises:
        ValueError: the bytes are no such vocabulary.
        RequestError: the package tokenizers is not installed.
    """

    is_sentencepiece = False
    suffix = ".json"
    max_bytes = 160 * 2**20
    model_type = "huggingface"
    has_denormalizer = has_unused_pieces = has_bytes = False
    has_mask = False

    def __init__(self, model: bytes):
        self.model = model
        text, self.ids, self.has_mask, self.chat_template = _parsed(model)
        self.library = library_tokenizer(text)
        self.vocabulary_size = len(self.ids)
        spelled = [MASK] * self.has_mask + [START, END] * bool(self.chat_template)
        if any(self.library.id_to_token(self.ids[place]) is None for place in spelled):
            raise ValueError("expected the tokens of a masked line and of a chat in the tokenizer.json")
        own = {id: place for place, id in reversed([*enumerate(self.ids)]) if place > END}
        # Some control ids of ours may be copies of one id. A text has the last of these, which a model reads and emits.
        self._ours = {self.ids[place]: place for place in (UNKNOWN, START, END)} | own
        around = [*self.library.encode("a").ids]  # with a text inside, because start and end may be one id
        self.has_start = around[:1] == [self.ids[START]] and self.ids[START] not in own
        self.has_end = len(around) > self.has_start and around[-1] == self.ids[END]

    @classmethod
    def of(
        cls, tokenizer: str, ids: Sequence[int], has_mask: bool = False, chat_template: str = ""
    ) -> HuggingFaceTokenizer:
        """Makes the vocabulary of a model.

        Args:
            tokenizer: the text of a tokenizer.json.
            ids: for each of our ids, the id in the file. Several of ours may be one of the file's.
            has_mask: whether our id 4 is the mask.
            chat_template: how a chat becomes a text, in the language of Jinja; "" for a model that does not chat.

        Raises:
            ValueError, RequestError: see the class.
        """
        content = {"ids": [*ids], "has_mask": has_mask, "tokenizer": tokenizer}
        content |= {"chat_template": chat_template} if chat_template else {}
        return cls(json.dumps(content, ensure_ascii=False, separators=(",", ":")).encode())

    @cached_property
    def text(self) -> str:
        """The text of the tokenizer.json."""
        return _parsed(self.model)[0]

    @cached_property
    def has_line_breaks(self) -> bool:
        """Whether a text keeps its line breaks."""
        return self.decode_text(self.encode_text("a\na")).endswith("a\na")

    @property
    def tags(self) -> dict[str, int]:
        """Returns no tags: the library handles special tokens itself."""
        return {}

    def encode(self, lines: Sequence[str], num_threads: int = 1) -> list[list[int]]:
        """Ids of the pieces of each line, without the start and the end that the model puts around it.

        Raises RequestError unless `lines` is a list of strings.
        """
        rows = self.library.encode_batch([plain(line) for line in strings_of(lines)])
        return [self._read(row.ids)[: -1 if self.has_end else None] for row in rows]

    def source_spans(self, line: str) -> list[tuple[int, int]]:
        offsets = self.library.encode(plain(string_of(line))).offsets
        return offsets[self.has_start : len(offsets) - self.has_end]

    def target_spans(self, ids: Sequence[int]) -> list[tuple[int, int]]:
        kept = until_end(ids)
        (text, *beginnings) = self.decode([kept, *(kept[: 1 + place] for place in range(len(kept)))])
        # What is no whole character yet is a character of replacement. The last beginning is the whole.
        ends = [min(len(one.rstrip(NO_CHARACTER)), len(text)) for one in beginnings[:-1]] + [len(text)] * bool(kept)
        return [*pairwise(accumulate([0, *ends], max))]

    def encode_masked(self, line: str) -> list[int]:
        """Encodes a line as `encode` does; each `<mask>` is the mask, for a vocabulary with `has_mask`."""
        return self.encode([string_of(line).replace(MASK_PIECE, self._token(MASK))])[0]

    def encode_text(self, text: str) -> list[int]:
        """Ids of a text of any number of lines, without the start that the model puts before it."""
        return self._read(self.library.encode(valid_unicode(string_of(text))).ids)

    def chat_texts(self, chats: Sequence[Sequence[Mapping[str, str]]]) -> list[str]:
        if not self.chat_template:
            return super().chat_texts(chats)
        start, end = map(self._token, (START, END))
        values = {"add_generation_prompt": True, "bos_token": start, "eos_token": end}
        texts = rendered(self.chat_template, [{"messages": [*messages], **values} for messages in chats])
        return [text.removeprefix(start) for text in texts] if self.has_start else texts  # the model puts its own there

    def normalize(self, line: str) -> str:
        """Returns the line as `encode` hands it on."""
        return plain(string_of(line))

    def unread(self, line: str) -> list[str]:
        """Returns the characters of a line that are read as unknown."""
        line, unknown = self.normalize(line), self.ids[UNKNOWN]
        found = self.library.encode(line)
        spans = [span for id, span in zip(found.ids, found.offsets, strict=True) if id == unknown]
        return [char for first, last in spans for char in line[first:last]]

    def decode(self, ids: Sequence[Sequence[int]]) -> list[str]:
        """Decodes each row of ids up to its end id, without special tokens, as one line."""
        return [one_line(self._text([self.ids[id] for id in until_end(row)])).strip() for row in ids]

    def decode_text(self, ids: Sequence[int]) -> str:
        """Decodes ids that follow others: the text has the space before its first word. Special tokens add nothing."""
        kept = [self.ids[id] for id in map(int, ids) if id not in (PAD, START, END)]
        before = self.library.encode("a", add_special_tokens=False).ids
        return self._text([*before, *kept])[len(self._text(before)) :]

    def is_ambiguous(self, text: str) -> bool:
        """Returns False: this tokenizer is deterministic."""
        return False

    def divisions(self, text: str, most: int) -> list[list[int]]:
        """Returns none: the library tells one division alone."""
        return []

    def pieces(self, ids: Sequence[int]) -> list[str]:
        """Returns the spelling of each piece, with `▁` for a space."""
        return [self._spellings[int(id)] for id in ids]

    def surfaces(self) -> list[bytes]:
        """Returns the bytes that each piece of the vocabulary adds to decoded text, in UTF-8, as its spelling has
        them."""
        first = MASK + 1 if self.has_mask else END + 1
        return [b""] * first + [piece.replace(SPACE, " ").encode() for piece in self._spellings[first:]]

    def own_id(self, id: int) -> int:
        """Maps a file id to ours. A pad token in text, and ids unknown to the model, become UNKNOWN."""
        return self._ours.get(id, UNKNOWN)

    def _token(self, place: int) -> str:
        """Returns how the file spells one of our ids; "" if it lacks the id."""
        return self.library.id_to_token(self.ids[place]) or ""

    def _read(self, theirs: Sequence[int]) -> list[int]:
        return [*map(self.own_id, theirs[self.has_start :])]

    def _text(self, theirs: Sequence[int]) -> str:
        return self.library.decode(theirs, skip_special_tokens=True)

    @cached_property
    def _spellings(self) -> list[str]:
        control = [*CONTROL_PIECES, *([MASK_PIECE] if self.has_mask else [])]
        tokens = [self.library.id_to_token(id) or f"<id {id}>" for id in self.ids[len(control) :]]
        special = {token.content for token in self.library.get_added_tokens_decoder().values()}
        return control + [token if token in special else self._spelled(token) for token in tokens]

    def _spelled(self, token: str) -> str:
        """Spells a token with `▁` for a space: of byte-level BPE its text, of WordPiece without `##`."""
        decoder = type(self.library.decoder).__name__
        if decoder == "ByteLevel":
            text = self.library.decoder.decode([token])
            return token if NO_CHARACTER in text else text.replace(" ", SPACE)
        if decoder == "WordPiece":
            return token[2:] if token.startswith("##") else SPACE + token
        return token


def library_tokenizer(text: str) -> tokenizers.Tokenizer:
    """Parses a tokenizer.json as a `tokenizers.Tokenizer`, which neither cuts texts nor pads them.

    Raises:
        ValueError: it is damaged.
        RequestError: the package tokenizers is not installed.
    """
    library = tokenizers_library()
    try:
        with silent():
            tokenizer = library.Tokenizer.from_str(text)
            tokenizer.encode(UNKNOWN_TEXT)  # which it may not know, and then it must know what is unknown
    except BaseException as error:  # the library raises no other class, and a panic, which is no `Exception`
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise ValueError(f"it is damaged or no tokenizer.json: {' '.join(str(error).split())[:200]}") from error
    tokenizer.no_truncation()
    tokenizer.no_padding()
    return tokenizer


def rendered(template: str, chats: Sequence[Mapping[str, object]]) -> list[str]:
    """Renders the text that a template makes of each chat.

    It may be a stranger's. No code but its own language runs, in a sandbox, and that in a process of its own, whose
    time and memory have bounds: no sandbox bounds what a loop, `'a' * 10**9` or `|center` takes.

    Args:
        template: in the language of Jinja.
        chats: the values of the template's variables, as JSON has them.

    Raises:
        RequestError: the template is damaged, refuses the values or takes too much, or the package jinja2 is not
            installed.
    """
    if importlib.util.find_spec("jinja2") is None:
        raise missing("jinja2", "import", "a chat")
    # The process imports this package from where it is, installed or not, and nothing from the folder of the work.
    paths = filter(None, (str(Path(__file__).resolve().parents[2]), os.environ.get("PYTHONPATH")))
    job = f"from {__name__} import render; render()"
    done = subprocess.run(
        [sys.executable, "-P", "-c", job],
        input=json.dumps([template, chats]).encode(),
        capture_output=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths)},
    )
    if done.returncode == 0:
        return json.loads(done.stdout)
    told = done.stderr.decode(errors="replace").splitlines()[-1:] if done.returncode > 0 else []
    reason = "".join(filter(str.isprintable, "".join(told))) or f"it takes more than {CHAT_SECONDS} s"
    raise RequestError(f"the model's template for chats refuses: {reason[:200]}")


def render() -> None:
    """Runs as the process of `rendered`: reads a template and chats from standard input, and writes the texts as
    JSON."""
    import resource  # which is not on all systems

    from jinja2 import TemplateError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    def refuse(reason: str) -> None:
        raise TemplateError(str(reason))

    template, chats = json.load(sys.stdin)
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.globals |= {"raise_exception": refuse, "strftime_now": datetime.now().strftime}
    with contextlib.suppress(OSError, ValueError):  # systems other than Linux
        taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (taken + CHAT_BYTES, taken + CHAT_BYTES))
    texts = []
    try:
        signal.setitimer(signal.ITIMER_PROF, CHAT_SECONDS)  # the processor's; then a signal ends the process
        parsed = environment.from_string(template)
        for chat in chats:
            signal.setitimer(signal.ITIMER_PROF, CHAT_SECONDS)
            texts.append("")
            for part in parsed.generate(chat):
                texts[-1] += part
                if len(texts[-1]) > MAX_CHAT:
                    sys.exit(f"it writes more than {MAX_CHAT:,} characters")
    except Exception as error:  # a template may raise any
        sys.exit(" ".join(str(error).split())[:200] or type(error).__name__)
    json.dump(texts, sys.stdout)


def tokenizers_library() -> ModuleType:
    """Imports the package tokenizers.

    Raises:
        RequestError: it is not installed.
    """
    return required("tokenizers", "import", "the vocabulary of this model")


def _parsed(model: bytes) -> tuple[str, list[int], bool, str]:
    """Returns the text of the tokenizer.json, the ids, whether there is a mask, and the template for chats."""
    content = parse_json(model, STORED)
    template = content.get("chat_template", "")
    if len(template) > MAX_TEMPLATE:
        raise ValueError(f"expected a template for chats of at most {MAX_TEMPLATE:,} characters")
    if len(content["ids"]) <= END + content["has_mask"]:
        raise ValueError("expected an id for each of ours")
    return content["tokenizer"], content["ids"], content["has_mask"], template


def load_tokenizer(path: str | os.PathLike[str]) -> Tokenizer:
    """Reads a vocabulary of either kind, which its file's suffix tells.

    Raises:
        RequestError: see `Tokenizer.load`.
    """
    kinds: Iterable[type[Tokenizer]] = (Tokenizer, HuggingFaceTokenizer)
    return {kind.suffix: kind for kind in kinds}.get(Path(path).suffix, Tokenizer).load(path)
