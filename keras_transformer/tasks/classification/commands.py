"""The commands of a classifier of texts: `classify`, a label a line, and `embed`, a vector a line."""

from __future__ import annotations

import argparse
import sys
from typing import TYPE_CHECKING

from keras_transformer.commands import Command, add_batch_size, add_vector_options, standard_input, write_vectors
from keras_transformer.errors import load_tensorflow

if TYPE_CHECKING:
    import numpy as np


def classify(arguments: argparse.Namespace) -> None:
    """Prints the label of each line of standard input, a tab, and its probability."""
    load_tensorflow()
    from keras_transformer.tasks.classification.pipeline import load_classifier

    classifier, lines = load_classifier(arguments.run), standard_input()
    for label, probability in classifier.stream(lines, arguments.batch_size):
        sys.stdout.write(f"{label}\t{probability:.4f}\n")
        sys.stdout.flush()
    lines.tell_of_invalid()


def vectors(arguments: argparse.Namespace) -> np.ndarray:
    """The vectors (N, D) of the lines of standard input."""
    from keras_transformer.tasks.classification.pipeline import load_classifier

    classifier, lines = load_classifier(arguments.run), standard_input()
    found = classifier.embed(lines, arguments.batch_size)
    lines.tell_of_invalid()
    return found


def embed(arguments: argparse.Namespace) -> None:
    """Writes a vector for each line of standard input."""
    write_vectors(arguments, vectors)


EMBED = Command(embed, "write a vector for each line of standard input", add_vector_options)
COMMANDS = {
    "classify": Command(classify, "tell the label of each line of standard input", add_batch_size),
    "embed": EMBED,
}
