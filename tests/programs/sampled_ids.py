"""Prints segmentations that a seed draws of the lines of a file."""

import sys
from pathlib import Path

from keras_transformer.text.subword_sampling import SubwordSampler
from keras_transformer.text.tokenizer import Tokenizer

model, text, seed = sys.argv[1:]
sampler = SubwordSampler(Tokenizer.load(model), 0.1, seed)
print([sampler.sample(line) for line in Path(text).read_text(encoding="utf-8").splitlines()])
