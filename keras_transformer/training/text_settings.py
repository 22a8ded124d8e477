"""The settings that several tasks of text share."""

from __future__ import annotations

from dataclasses import dataclass, replace

from keras_transformer.errors import RequestError
from keras_transformer.options import Config
from keras_transformer.training.common_settings import DATA, Settings, count, file, flag, flag_of, switch


@dataclass(frozen=True)
class TextSettings(Settings):
    """The settings of tasks that learn a vocabulary."""

    vocabulary_size: int = count(DATA, 8_000, "pieces of the vocabulary, with the control ids")
    vocabulary_type: str = flag(
        DATA, "unigram", "unigram, bpe or char: how SentencePiece learns", choices=("unigram", "bpe", "char"),
        metavar="TYPE",
    )  # fmt: skip
    normalization: str | None = flag(
        DATA,
        "lossless",
        "how text is read: lossless, identity, nfc, nfkc, nmt_nfkc, or a file of rules",
        metavar="NAME",
    )
    byte_fallback: bool = switch(DATA, "spell rare and unseen characters by bytes", is_inherited=False)
    tokenizer: str | None = file("a SentencePiece model; none is learned then")
    word_vectors: str | None = file("vectors that words begin with: word2vec or GloVe")

    def settled(self) -> TextSettings:
        # A vocabulary that is not learned here has its own.
        return replace(self, normalization=None) if self.tokenizer or self.init_from else self

    @classmethod
    def check_given(cls, given: Config) -> None:
        """Raises RequestError if a flag that was given makes another senseless."""
        super().check_given(given)
        brought = [flag_of(name) for name in ("tokenizer", "init_from") if name in given]
        if brought and (learned := [flag_of(name) for name in ("normalization", "byte_fallback") if given.get(name)]):
            raise RequestError(
                f"{learned[0]} is for a vocabulary that the run learns, and {brought[0]} brings one: give one of them"
            )

    def check_together(self) -> None:
        """Raises RequestError if one setting needs or excludes another."""
        super().check_together()
        if self.tokenizer and self.init_from:
            raise RequestError("--tokenizer does not go with --init-from, which brings a vocabulary: give one")
        if self.word_vectors and self.init_from:
            raise RequestError(
                "--word-vectors begins an embedding, and --init-from brings a whole model; received both: give one"
            )


@dataclass(frozen=True)
class PairSettings(Settings):
    """The settings of tasks that learn from pairs of texts."""

    source: str | None = file("your own text, a line each: UTF-8, plain or .gz", own="text")
    target: str | None = file("its translation or answer, line by line")
    valid_source: str | None = file("validation text (default: lines of --source)")
    valid_target: str | None = file("its translation or answer")
    max_length: int = count(DATA, 250, "leave out pairs with more pieces on a side")
    clean: bool = switch(
        DATA, "leave out duplicates, copies, other scripts, and pairs of validation; cleaning.json tells",
        is_inherited=False,
    )  # fmt: skip

    def check_together(self) -> None:
        """Raises RequestError if one setting needs or excludes another."""
        super().check_together()
        if (self.source is None) != (self.target is None):
            raise RequestError("--source and --target go together; received only one of them")
        if self.source is None and (self.valid_source or self.valid_target):
            raise RequestError("--valid-source and --valid-target need --source and --target; received none")


@dataclass(frozen=True)
class OneLanguageSettings(TextSettings):
    """The settings of tasks that learn from text of one language."""

    text: str | None = file("your own text: UTF-8, plain or .gz", own="text")
    valid_text: str | None = file("validation text (default: a tenth of --text)")

    def check_together(self) -> None:
        """Raises RequestError if one setting needs or excludes another."""
        super().check_together()
        if self.valid_text and self.text is None:
            raise RequestError("--valid-text needs --text; received none")
        if "," in (self.normalization or ""):
            raise RequestError(
                f"--normalization SOURCE,TARGET is for text in two languages; received: {self.normalization} with "
                f"--task {self.task}"
            )
