"""Sentences of a few English words, for vocabularies and models too small for real ones."""

import numpy as np

WORDS = """a the one two three four five six seven eight nine ten hundred and dog dogs cat sea beach run to
along mountain river yellow green quick brown jumps over lazy window garden""".split()  # noqa: SIM905


def lines(seed: int, count: int = 300) -> list[str]:
    """Sentences of these words."""
    generator = np.random.default_rng(seed)
    return [" ".join(generator.choice(WORDS, generator.integers(1, 9))) for _ in range(count)]
