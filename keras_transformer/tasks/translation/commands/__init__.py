"""The commands of a translator."""

from keras_transformer.commands import Command, Deed, Importing
from keras_transformer.tasks.translation.commands import arguments

RUN_OR_EXPORT = "a run folder, or an export with ONNX graphs: its folder, its folder onnx, or a graph"
COMMANDS = {
    "translate": Command(
        Deed(f"{__name__}.translate:translate"),
        "translate standard input to standard output, a line for a line",
        arguments.add_translate_options,
        RUN_OR_EXPORT,
    ),
    "evaluate": Command(
        Deed(f"{__name__}.evaluate:evaluate"),
        "tell BLEU and chrF against a reference",
        arguments.add_evaluate_options,
        RUN_OR_EXPORT,
    ),
    "compare": Command(
        Deed(f"{__name__}.evaluate:compare"),
        "compare runs with the first on the same text: a JSON object for each",
        arguments.add_compare_options,
        takes="",
    ),
    "distill": Command(
        Deed(f"{__name__}.distill:distill"),
        "let translators teach a smaller one: they translate a text, and it learns from that",
        arguments.add_distill_options,
        takes="a teacher: " + RUN_OR_EXPORT,
    ),
    "score": Command(
        Deed(f"{__name__}.evaluate:score"),
        "log P and perplexity of given translations",
        arguments.add_score_options,
        RUN_OR_EXPORT,
    ),
}
IMPORTING = Importing(
    arguments.add_import_options,
    Deed(f"{__name__}.translate:validation_of"),
    Deed(f"{__name__}.translate:write_translator"),
)
