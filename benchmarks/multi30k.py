"""Computes BLEU of a Multi30k run on test_2016_flickr, in the two ways in which papers report it.

    python -m benchmarks.multi30k runs/multi30k-en-de-tiny --data-dir multi30k

Several runs are an ensemble: each piece has the mean of their probabilities. `--split val` scores the validation text
in the same ways, so that a choice needs no look at the test set.

* cased and detokenised, with sacreBLEU's default tokenisation (13a) and beam 4;
* like the published figures of this test set: both sides Moses-tokenised and lower-cased, `tok:none`, beam 5.

The command prints one JSON object with a signature for each figure. It needs sacremoses (extra `bench`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence

import sacrebleu

import keras_transformer
from benchmarks.contest import at_least_one
from keras_transformer.errors import RequestError, exit_status
from keras_transformer.run_folder import read_config
from keras_transformer.text.corpora import multi30k_file, read_lines


def main() -> None:
    """Translates the text twice, and prints sacreBLEU's scores.

    Raises:
        RequestError: there is no such run, it was not trained on Multi30k, the runs' vocabularies differ, or sacremoses
            is missing.
    """
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", metavar="RUN", nargs="+")
    parser.add_argument("--split", choices=("test_2016_flickr", "val"), default="test_2016_flickr")
    parser.add_argument("--data-dir", help="folder with the files of Multi30k (default: fetch it)")
    parser.add_argument("--lines", type=at_least_one, help="translate only the first lines, so many")
    arguments = parser.parse_args()
    corpus = read_config(arguments.runs[0]).get("corpus", {})
    if not str(corpus.get("name")).startswith("multi30k:"):
        raise RequestError(f"expected a run of `--dataset multi30k:…`; received one of {corpus.get('name')!r}")
    languages = corpus["source_language"], corpus["target_language"]
    tokenize = moses(languages[1])
    files = [multi30k_file(arguments.split, language, arguments.data_dir) for language in languages]
    sources, references = (list(read_lines(file))[: arguments.lines] for file in files)
    translator = keras_transformer.load_ensemble(arguments.runs)

    def translate(num_beams: int) -> list[str]:
        return translator.translate(sources, num_beams=num_beams)

    cased, cased_signature = bleu(translate(4), references, tokenize="13a")
    published, published_signature = bleu(tokenize(translate(5)), tokenize(references), tokenize="none")
    figures = {
        "bleu": cased,
        "signature": cased_signature,
        "tokenised_lowercased_bleu": published,
        "tokenised_lowercased_signature": published_signature,
        "sentences": len(sources),
    }
    print(json.dumps(figures, indent=2))


def bleu(translations: Sequence[str], references: Sequence[str], tokenize: str) -> tuple[float, str]:
    """Returns the score, and the signature that says how it was counted."""
    metric = sacrebleu.BLEU(tokenize=tokenize, force=True)
    score = metric.corpus_score(translations, [list(references)]).score
    return round(score, 2), str(metric.get_signature())


def moses(language: str) -> Callable[[Sequence[str]], list[str]]:
    """Returns a function that normalises, tokenises and lower-cases lines, as in the data set's own tokenised text."""
    try:
        from sacremoses import MosesPunctNormalizer, MosesTokenizer
    except ImportError as error:
        raise RequestError(f"{error}: pip install sacremoses") from None
    normalizer, tokenizer = MosesPunctNormalizer(language), MosesTokenizer(language)

    def prepare(lines: Sequence[str]) -> list[str]:
        normalized = [normalizer.normalize(line.lower()) for line in lines]
        return [tokenizer.tokenize(line, return_str=True) for line in normalized]

    return prepare


if __name__ == "__main__":
    sys.exit(exit_status(main))
