"""`import` of a translator: the sentences that exports of the run are certified on."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from keras_transformer.commands.importing import Importing
from keras_transformer.commands.lines import read_both
from keras_transformer.errors import RequestError, say

if TYPE_CHECKING:
    from keras_transformer.importing.imported import Imported
    from keras_transformer.tasks.translation.pipeline import Validation


def validation_of(arguments: argparse.Namespace) -> Validation | None:
    """The sentences to certify exports on, and their translations.

    Raises:
        RequestError: one of the files is missing, or they have not equally many lines.
    """
    files = (arguments.valid_source, arguments.valid_target)
    if (files[0] is None) != (files[1] is None):
        raise RequestError("--valid-source and --valid-target belong together; received one of them: give both")
    return None if files[0] is None else read_both(*files)


def write_translator(imported: Imported, arguments: argparse.Namespace, validation: Validation | None) -> None:
    """Writes the run of a translator."""
    from keras_transformer.tasks.translation.pipeline import imported as translator_of

    translator = translator_of(imported)
    translator.save(arguments.run, imported.languages, validation, arguments.overwrite)
    languages = f", {' to '.join(imported.languages)}" if imported.languages else ""
    search = ", ".join(f"{name} {value}" for name, value in translator.search.items())
    say(f"wrote {arguments.run}: {translator.model.count_params():,} parameters{languages}; its search: {search}")


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `import`."""
    add = parser.add_argument
    add("--valid-source", metavar="FILE", help="sentences on which exports of the run will be certified")
    add("--valid-target", metavar="FILE", help="their translations, line by line")


IMPORTING = Importing(add_import_options, validation_of, write_translator)
