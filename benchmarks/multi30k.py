"""Computes BLEU of a Multi30k run on test_2016_flickr, in the two ways in which papers report it.

    python -m benchmarks.multi30k runs/multi30k-en-de-auto --data-dir multi30k

Several runs are an ensemble: each piece has the mean of their probabilities. `--part val` scores the validation text
in the same ways, so that a choice needs no look at the test set. `--beams`, `--length-penalty` and the other options of
`translate` hold for both figures, and `--out` keeps the translations of the first, for sacreBLEU's `--paired-bs`.

* cased and detokenised, with sacreBLEU's default tokenisation (13a) and beam 4, unless `--beams` says another;
* like the published figures of this test set: both sides Moses-tokenised and lower-cased, `tok:none`, beam 5.

The command prints one JSON object with a signature for each figure. It needs sacremoses (extra `bench`).
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

import sacrebleu

from benchmarks.contest import at_least_one
from keras_transformer.commands.parser import add_engine_options
from keras_transformer.core.errors import RequestError, exit_status
from keras_transformer.core.files import write_text
from keras_transformer.runs.run_folder import read_config
from keras_transformer.tasks.translation.commands import add_ensemble_option, add_search_options
from keras_transformer.tasks.translation.commands.translate import open_translator, own_search_of, search_options
from keras_transformer.text.lines import read_lines
from keras_transformer.text.named_corpora import multi30k_file


def main() -> None:
    """Translates the text twice, and prints sacreBLEU's scores.

    Raises:
        RequestError: there is no such run, it was not trained on Multi30k, the runs' vocabularies differ, or sacremoses
            is missing.
    """
    arguments = options().parse_args()
    corpus = read_config(arguments.run).corpus
    if not str(corpus.get("name")).startswith("multi30k:"):
        raise RequestError(f"expected a run of `--dataset multi30k:…`; received one of {corpus.get('name')!r}")
    languages = str(corpus["source_language"]), str(corpus["target_language"])
    tokenize = moses(languages[1])
    files = [multi30k_file(arguments.part, language, arguments.data_dir) for language in languages]
    sources, references = (list(read_lines(file))[: arguments.lines] for file in files)

    @cache
    def translations(num_beams: int) -> list[str]:
        searching = argparse.Namespace(**{**vars(arguments), "beams": num_beams})
        options = search_options(searching, own_search_of(searching))
        return [best.text for best, *_ in open_translator(searching, options).stream(sources, options)]

    first, second = (num_beams if arguments.beams is None else arguments.beams for num_beams in (4, 5))
    cased, cased_signature = bleu(translations(first), references, tokenize="13a")
    published, published_signature = bleu(tokenize(translations(second)), tokenize(references), tokenize="none")
    if arguments.out:
        write_text(arguments.out, "".join(f"{line}\n" for line in translations(first)))
    figures = {
        "bleu": cased,
        "signature": cased_signature,
        "tokenised_lowercased_bleu": published,
        "tokenised_lowercased_signature": published_signature,
        "sentences": len(sources),
    }
    print(json.dumps(figures, indent=2))


def options() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", metavar="RUN")
    add_ensemble_option(parser)
    parser.add_argument("--part", choices=("test_2016_flickr", "val"), default="test_2016_flickr")
    parser.add_argument("--data-dir", help="folder with the files of Multi30k (default: fetch it)")
    parser.add_argument("--lines", type=at_least_one, help="translate only the first lines, so many")
    add_search_options(parser)
    add_engine_options(parser)
    parser.add_argument("--out", type=Path, help="a file for the translations of the first figure, a line each")
    return parser


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
