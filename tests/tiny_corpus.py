"""A parallel text that a tiny model can learn: sentences of a few syllables, and the same backwards."""

import random
from pathlib import Path

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
