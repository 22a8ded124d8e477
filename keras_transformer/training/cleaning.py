"""`--clean`: a run's pairs without those that harm; what was left out goes to standard error and the run folder."""

from __future__ import annotations

import json
import textwrap
from dataclasses import asdict, replace
from pathlib import Path

from keras_transformer.errors import say, warn
from keras_transformer.files import write_text
from keras_transformer.text.cleaning import Cleaning, Overlap, cleaned
from keras_transformer.training.task import Run
from keras_transformer.training.text_settings import PairSettings

EXAMPLE_CHARACTERS = 60  # of an example on standard error


def clean(run: Run) -> None:
    """Leaves pairs out of the run's training text and its further pairs, if the run has `--clean`.

    The text is read when the run first asks for it. A run that goes on with text that is tokenised already does not.
    """
    if not (isinstance(run.settings, PairSettings) and run.settings.clean):
        return
    corpus, folder = run.corpus, run.folder
    run.corpus = cleaned(corpus, lambda found: _tell(run, corpus.name, found, folder.cleaning))
    if more := corpus.more:
        further = cleaned(more, lambda found: _tell(run, more.name, found, folder.cleaning_more))
        run.corpus = replace(run.corpus, more=further)


def tell_of_overlap(overlap: Overlap) -> None:
    """Warns of validation lines that are in the training text."""
    if overlap.num_lines:
        warn(
            f"{overlap.num_lines:,} of {overlap.num_all:,} validation sources are in the training text too, so "
            "validation tells less of new text: --clean leaves them out of training"
        )


def _tell(run: Run, name: str, found: Cleaning, report_path: Path) -> None:
    say(f"{name}: --clean keeps {found.num_kept:,} of {len(found.reasons):,} pairs")
    for reason, examples in found.examples.items():
        first = examples[0]
        place = f"line {first.line:,}" + (f" as line {first.like:,}" if first.like else "")
        shown = textwrap.shorten(f"{first.source} ||| {first.target}", EXAMPLE_CHARACTERS, placeholder=" …")
        say(f"  {found.counts[reason]:>9,}  {reason:<36}  {place}: {shown}")
    if run.is_chief:
        source, target = found.scripts
        report = {
            "pairs": len(found.reasons),
            "kept": found.num_kept,
            "source_scripts": source,
            "target_scripts": target,
            "left_out": found.counts,
            "examples": {reason: [asdict(one) for one in examples] for reason, examples in found.examples.items()},
        }
        write_text(report_path, json.dumps(report, ensure_ascii=False, indent=1) + "\n")
        say(f"{report_path} has more examples")
