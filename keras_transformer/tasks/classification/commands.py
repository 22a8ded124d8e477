"""The commands of a classifier of texts: `classify`, a label a line, and `embed`, a vector a line."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from keras_transformer.commands.command import RUN_OR_EXPORT, Command
from keras_transformer.commands.parser import add_batch_size, add_engine_options, add_vector_options
from keras_transformer.commands.streams import standard_input, write_vectors
from keras_transformer.core.errors import print_result
from keras_transformer.core.task_registry import TASKS

if TYPE_CHECKING:
    import numpy as np

    from keras_transformer.decoding.computations import OfGraph
    from keras_transformer.tasks.classification.pipeline import Classifier


def open_classifier(arguments: argparse.Namespace, computation: OfGraph) -> Classifier:
    """Returns the classifier of the run or export that a command names, to compute one thing."""
    from keras_transformer.commands.graph_cache import Engine, open_model
    from keras_transformer.tasks.classification.pipeline import Classifier

    kind = TASKS[Classifier.task].kind
    return Classifier.of_run(*open_model(arguments.run, kind, Engine.of(arguments), computation))


def classify(arguments: argparse.Namespace) -> None:
    """Prints the label of each line of standard input, a tab, and its probability."""
    from keras_transformer.decoding.computations import LabelProbs

    lines, classifier = standard_input(), open_classifier(arguments, LabelProbs())
    for label, probability in classifier.stream(lines, arguments.batch_size):
        print_result(f"{label}\t{probability:.4f}")
    lines.tell_of_invalid()


def vectors(arguments: argparse.Namespace) -> np.ndarray:
    """Returns the vectors (N, D) of the lines of standard input."""
    from keras_transformer.decoding.computations import Embedding

    lines, classifier = standard_input(), open_classifier(arguments, Embedding())
    found = classifier.embed(lines, arguments.batch_size)
    lines.tell_of_invalid()
    return found


def embed(arguments: argparse.Namespace) -> None:
    """Writes a vector for each line of standard input."""
    write_vectors(arguments, vectors)


def add_classify_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `classify`."""
    add_batch_size(parser)
    add_engine_options(parser)


def add_embed_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `embed`."""
    add_vector_options(parser)
    add_engine_options(parser)


EMBED = Command(embed, "write a vector for each line of standard input", add_embed_options, RUN_OR_EXPORT)
COMMANDS = {
    "classify": Command(classify, "tell the label of each line of standard input", add_classify_options, RUN_OR_EXPORT),
    "embed": EMBED,
}
