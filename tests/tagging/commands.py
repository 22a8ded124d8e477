"""The command of a tagger: `tag`."""

import argparse

from keras_transformer.commands.command import Command
from keras_transformer.commands.streams import standard_input
from keras_transformer.core.errors import print_result


def tag(arguments: argparse.Namespace) -> None:
    """Prints each line of standard input with the tags of its words."""
    from tests.tagging.pipeline import Tagger

    tagger = Tagger.load(arguments.run)
    for line in standard_input():
        print_result(" ".join(map("/".join, tagger.tag(line))))


COMMANDS = {"tag": Command(tag, "tell the tag of each word of standard input")}
