"""Defines the settings of training a model that translates, from parallel text."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

from keras_transformer.core.errors import RequestError
from keras_transformer.runs.run_folder import MAX_TAG, RunConfig
from keras_transformer.spec.presets import AUTO, PRESETS
from keras_transformer.training.common_settings import (
    DATA,
    MODEL,
    RUN,
    TRAINING,
    PairSettings,
    TextSettings,
    count,
    file,
    flag,
    rate,
    switch,
    task_settings,
)


def language(side: str) -> Any:
    """Returns a setting that names a language of the user's text."""
    help = f"the language of the {side} text, such as en; of a model between many, in its codes: eng_Latn"
    return flag(
        DATA, None, help, lambda x: x.isprintable() and 0 < len(x) <= MAX_TAG, f"a code of 1 to {MAX_TAG} characters",
        is_inherited=False, metavar="CODE",
    )  # fmt: skip


@task_settings("translation", "translator", dataset="numbers:en-de")
class Settings(TextSettings, PairSettings):
    """The settings of training a translator."""

    dataset: str | None = flag(
        DATA, None, "numbers:SRC-TGT, pronouns:en-de or en-fr, multi30k:SRC-TGT, wmt14:SRC-TGT", is_inherited=False,
        metavar="NAME",
    )  # fmt: skip
    data_dir: str | None = flag(
        DATA, None, "where the named corpus lies; it is not fetched", reads="file", is_inherited=False, metavar="FOLDER"
    )
    source_language: str | None = language("source")
    target_language: str | None = language("target")
    separate_vocabularies: bool = switch(DATA, "a vocabulary for each language, not a joint one")
    sampling: float = rate(DATA, 0.0, "subword sampling: unigram's alpha, bpe's dropout")
    more_source: str | None = file("further text, such as --more-target translated back")
    more_target: str | None = file("its translation; none of it is held out")
    more_tag: str | None = flag(
        DATA,
        None,
        "begin lines of --more-source with this tag: <bt>",
        lambda x: bool(re.fullmatch(r"<[^<>\s]+>", x)) and x.isprintable(),
        "a name in angle brackets, such as <bt>",
        is_inherited=False,
        metavar="TAG",
    )
    copies: int = count(DATA, 1, "times the corpus for each --more-source", is_inherited=False)
    both_directions: bool = switch(DATA, "translate back too; sources begin with tags: <2de>", is_inherited=False)
    preset: str = flag(
        MODEL, AUTO, f"sizes and recipe: auto (by the number of pairs), {', '.join(PRESETS)}", choices=(AUTO, *PRESETS),
        metavar="NAME",
    )  # fmt: skip
    static_shapes: int | None = count(
        TRAINING, None, "pad batches to so many shapes; 0: free widths (default: 8 with XLA, else 0)", least=0,
        is_inherited=False,
    )  # fmt: skip
    bleu_sentences: int = count(RUN, 500, "validation sentences for BLEU; 0: none", least=0)

    @property
    def has_few_shapes(self) -> bool:
        return self.static_shapes != 0

    def with_parent_defaults(self, parent: RunConfig) -> Settings:
        """With the languages of a parent between many, unless others are given."""
        if not parent.language_tags:
            return self
        from keras_transformer.tasks.translation import languages  # late: `--help` needs no tokenizer

        return replace(self, **languages.languages_of_run(parent, self.source_language, self.target_language))

    def check_together(self) -> None:
        """Raises RequestError if one setting needs or excludes another."""
        super().check_together()
        if (self.more_source is None) != (self.more_target is None):
            raise RequestError("--more-source and --more-target go together; received only one of them")
        if self.more_source is None and (self.more_tag or self.copies > 1):
            raise RequestError(
                "--more-tag and --copies are for --more-source and --more-target; received neither of these"
            )
        if self.both_directions and self.separate_vocabularies:
            raise RequestError(
                "--both-directions takes a joint vocabulary; received --separate-vocabularies too: give one"
            )
        if self.vocabulary_type == "char":
            raise RequestError("--vocabulary-type char is for tasks of one language; received --task translation")
        if self.tokenizer and self.separate_vocabularies:
            raise RequestError("--tokenizer goes neither with --separate-vocabularies nor with --init-from; give one")
        if self.patience and not self.bleu_sentences:
            raise RequestError("--patience needs validation BLEU: give --bleu-sentences of at least 1")
