"""Lists the commands of a translator, and their options. What does a command is imported when it runs, so that `--help`
is quick.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from keras_transformer.commands.command import RUN_OR_EXPORT, Command, Importer, LazyCommand
from keras_transformer.commands.parser import (
    COUNT,
    FEW,
    add_drawing_options,
    add_engine_options,
    add_guard_options,
    add_pair_options,
    number_from,
)
from keras_transformer.commands.streams import read_both
from keras_transformer.core.errors import RequestError, command_line, say
from keras_transformer.spec.search_options import OTHER_SPELLINGS, WAYS_TO_SPLIT

if TYPE_CHECKING:
    from keras_transformer.importing.weights import Imported
    from keras_transformer.tasks.translation.pipeline import Validation


def add_translate_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `translate`."""
    parser.epilog = (
        "Lines are read 32 batches ahead and sorted by length; with --batch-size 1 each line is answered "
        "at once. An alignment has SOURCE-TARGET for each piece of the translation; pieces are counted from 0, "
        "over the whole line."
    )
    add_ensemble_option(parser)
    add_search_options(parser)
    add_guard_options(parser)
    add_translating_options(parser)
    best = "print `LINE ||| TEXT ||| SCORE` for the N best translations of each line; lines are counted from 0"
    prefix = "a file with the beginning of each line's translation; a blank line leaves it free"
    longest = "the most pieces of a source (default: the model's limit, mostly 512)"
    add = parser.add_argument
    add("--n-best", type=COUNT, metavar="N", help=best)
    add("--scores", action="store_true", help="print `SCORE <tab> TEXT`")
    add("--alignments", action="store_true", help="print the alignment with the source in one more column")
    add("--prefix", metavar="FILE", help=prefix)
    add("--max-source-length", type=COUNT, metavar="N", help=longest)
    add("--sample", action="store_true", help="draw translations at random in place of the search")
    add_drawing_options(parser, "with --sample: ")


def add_evaluate_options(parser: argparse.ArgumentParser, must_be_given: bool = False) -> None:
    """Adds the options of `evaluate`, which are those of `compare` too."""
    add = parser.add_argument
    add("--source", metavar="FILE", help="text to translate, plain or .gz", required=must_be_given)
    add(
        "--reference",
        metavar="FILE",
        help="its correct translation, line by line, plain or .gz",
        required=must_be_given,
    )
    add(
        "--tokenize",
        metavar="NAME",
        help="sacreBLEU's tokenizer for BLEU: 13a, intl, char, zh, ja-mecab, ko-mecab, none, spm, flores101, flores200 "
        "or spBLEU-1K (default: zh, ja-mecab or ko-mecab if the run's target language is one of these, else 13a)",
    )
    add_search_options(parser)
    add_guard_options(parser)
    add_translating_options(parser)


def add_compare_options(parser: argparse.ArgumentParser) -> None:
    """Adds the runs and the options of `compare`."""
    runs = "run folders, or export folders with ONNX graphs; the first is the baseline"
    parser.add_argument("runs", nargs="+", metavar="RUN", help=runs)
    add_evaluate_options(parser, must_be_given=True)


def add_score_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `score`."""
    add_pair_options(parser)
    add_engine_options(parser)
    add_language_options(parser)


def add_distill_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `distill`."""
    parser.epilog = (
        f"Example: {command_line('distill')} runs/a runs/b --source mono.en --out runs/student --train --preset tiny. "
        "Started again, the same command goes on where it was stopped."
    )
    add_ensemble_option(parser)
    add = parser.add_argument
    add("--source", metavar="FILE", required=True, help="text for the teachers to translate, plain or .gz")
    add("--out", metavar="RUN", help="the student's run folder; without one, no student is trained: give --text")
    add("--text", metavar="NEW_FOLDER", help="where the text is kept (default: RUN-text, beside the student)")
    add_search_options(parser)
    add_translating_options(parser)
    rest = "flags of the student's training, which `train --help` lists; whatever follows is one of them"
    add("--train", nargs=argparse.REMAINDER, metavar="FLAG", help=rest)


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `import`."""
    add = parser.add_argument
    add("--valid-source", metavar="FILE", help="sentences on which exports of the run will be certified")
    add("--valid-target", metavar="FILE", help="their translations, line by line")


def add_search_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of beam search, and of splitting lines."""
    penalty = "ALPHA of score = log P / ((5 + length) / 6)^ALPHA; a larger one favours long translations"
    longest = "the most pieces of a translation (default and maximum: the source's + 50)"
    add = parser.add_argument
    own = "default: the model's own, mostly"
    add("--beams", type=FEW, metavar="K", help=f"hypotheses that the search follows; 1: greedy ({own} 4)")
    add("--length-penalty", type=number_from(-100, 100, float), metavar="ALPHA", help=f"{penalty} ({own} 0.6)")
    add("--max-length", type=COUNT, metavar="N", help=longest)
    add("--batch-size", type=COUNT, default=64, metavar="N", help="sentences translated at once (default: 64)")
    split = (
        "translate the sentences of a line apart and join them; split only lines that are too long for the model; or "
        "off: cut those. The score of a line is the sum (default: sentences; but with a prefix a line is translated as "
        "it is)"
    )
    add("--split", choices=WAYS_TO_SPLIT, default="sentences", help=split)
    add("--long", dest="split", choices=OTHER_SPELLINGS, help="split: another spelling of --split lines; cut: of off")


def add_translating_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose what translates, and between which languages."""
    add_engine_options(parser)
    parser.add_argument(
        "--processes", type=FEW, default=1, metavar="N", help="that translate side by side (default: 1)"
    )
    add_language_options(parser)


def add_language_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options that choose the direction of a model between many languages."""
    for side in ("source", "target"):
        told = f"the language of the {side}, of a model between many, in its own codes, such as eng_Latn or en"
        parser.add_argument(f"--{side}-language", metavar="CODE", help=told)


def add_ensemble_option(parser: argparse.ArgumentParser) -> None:
    """Adds the further runs that translate together with the first."""
    others = "further runs: each piece has the mean of the probabilities of all; the first run's search options hold"
    parser.add_argument("others", nargs="*", metavar="RUN", help=others)


def validation_of(arguments: argparse.Namespace) -> Validation | None:
    """Returns the sentences to certify exports on, and their translations.

    Raises:
        RequestError: one of the files is missing, or they have not equally many lines.
    """
    files = (arguments.valid_source, arguments.valid_target)
    if (files[0] is None) != (files[1] is None):
        raise RequestError("--valid-source and --valid-target belong together; received one of them: give both")
    return None if files[0] is None else read_both(*files)


def write_translator(imported: Imported, arguments: argparse.Namespace, validation: Validation | None) -> None:
    """Writes the run of a translator."""
    from keras_transformer.tasks.translation.pipeline import Translator

    translator = Translator.imported(imported)
    translator.save(arguments.run, imported.languages, validation, arguments.overwrite)
    languages = f", {' to '.join(imported.languages)}" if imported.languages else ""
    search = ", ".join(f"{name} {value}" for name, value in translator.search.items())
    say(f"wrote {arguments.run}: {translator.model.count_params():,} parameters{languages}; its search: {search}")


COMMANDS = {
    "translate": Command(
        LazyCommand(f"{__name__}.translate:translate"),
        "translate standard input to standard output, a line for a line",
        add_translate_options,
        RUN_OR_EXPORT,
    ),
    "evaluate": Command(
        LazyCommand(f"{__name__}.evaluate:evaluate"),
        "tell BLEU and chrF against a reference",
        add_evaluate_options,
        RUN_OR_EXPORT,
    ),
    "compare": Command(
        LazyCommand(f"{__name__}.evaluate:compare"),
        "compare runs with the first on the same text: a JSON object for each",
        add_compare_options,
        run_help="",
    ),
    "distill": Command(
        LazyCommand(f"{__name__}.distill:distill"),
        "let translators teach a smaller one: they translate a text, and it learns from that",
        add_distill_options,
        run_help="a teacher: " + RUN_OR_EXPORT,
        extra="train",
    ),
    "score": Command(
        LazyCommand(f"{__name__}.evaluate:score"),
        "log P and perplexity of given translations",
        add_score_options,
        RUN_OR_EXPORT,
    ),
}
IMPORTER = Importer(add_import_options, validation_of, write_translator)
