"""Translates standard input with CTranslate2 and SentencePiece: the program that `benchmarks.translate` times.

Arguments: the model's folder, the vocabulary, compute type, beams, translations side by side, threads of each.
"""

from __future__ import annotations

import sys

import ctranslate2
import sentencepiece

folder, vocabulary, compute_type, *numbers = sys.argv[1:]
num_beams, inter_threads, intra_threads = map(int, numbers)
pieces = sentencepiece.SentencePieceProcessor(model_file=vocabulary)
translator = ctranslate2.Translator(
    folder, compute_type=compute_type, inter_threads=inter_threads, intra_threads=intra_threads
)
sources = pieces.encode(sys.stdin.read().splitlines(), out_type=str)
results = translator.translate_batch(sources, beam_size=num_beams, length_penalty=0, max_batch_size=64)
for text in pieces.decode([result.hypotheses[0] for result in results]):
    print(text)
