"""A parallel text that a tiny model can learn: sentences of a few syllables, and the same backwards."""

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from keras_transformer.runs.run_folder import RunConfig
from keras_transformer.text.corpora import Corpus
from keras_transformer.training.common_settings import settings_of
from keras_transformer.training.request import as_given, resolve

WORDS = ["ba", "do", "fi", "gu", "ka", "lo", "mi", "nu", "pa", "ro", "si", "tu"]


def write_corpus(folder: Path, lines: int = 240) -> tuple[Path, Path]:
    """Writes `corpus.source` and `corpus.target` and returns their paths."""
    draw = random.Random(7)
    sentences = [draw.choices(WORDS, k=draw.randint(1, 6)) for _ in range(lines)]
    source, target = folder / "corpus.source", folder / "corpus.target"
    source.write_text("".join(" ".join(words) + "\n" for words in sentences), encoding="utf-8")
    target.write_text("".join(" ".join(reversed(words)) + "\n" for words in sentences), encoding="utf-8")
    return source, target


def tiny_flags(folder: Path, out: Path) -> list[str]:
    """train.py's flags for a model of a few hundred weights on that text."""
    source, target = write_corpus(folder)
    sizes = "--preset tiny --num-layers 1 --hidden-dim 16 --intermediate-dim 24 --num-heads 2 --vocabulary-size 32"
    training = "--token-budget 256 --warmup-steps 10 --checkpoint-every 5 --average-last 2 --bleu-sentences 0"
    return [
        *f"--source {source} --target {target} --out {out} --devices cpu".split(),
        *sizes.split(),
        *training.split(),
    ]


def corpus_with(recipe: Mapping[str, Any], num_pairs: int = 0) -> Corpus[Any]:
    """A corpus without text, which brings a recipe."""
    return Corpus("numbers:en-de", "en", "de", lambda: iter([]), lambda: iter([]), "", {**recipe}, num_pairs=num_pairs)


def resolved(
    flags: dict[str, Any], recipe: Mapping[str, Any] | None = None, num_pairs: int = 0, parent: RunConfig | None = None
) -> Any:
    """The settings of a new run with these flags on a corpus with this recipe."""
    given = as_given(flags, settings_of(flags.get("task") or (parent.task if parent else "translation")))
    given.settings.check_given(given)
    return resolve(given, corpus_with(recipe or {}, num_pairs), parent)
