"""The commands of a translator."""

from keras_transformer.commands import Command
from keras_transformer.tasks.translation.commands import distill, evaluate, translate

RUN_OR_EXPORT = "a run folder, or an export folder with ONNX graphs"
COMMANDS = {
    "translate": Command(
        translate.translate, "translate standard input to standard output, a line for a line", translate.add_options,
        takes=RUN_OR_EXPORT,
    ),
    "evaluate": Command(
        evaluate.evaluate, "tell BLEU and chrF against a reference", evaluate.add_evaluate_options,
        takes=RUN_OR_EXPORT,
    ),
    "compare": Command(
        evaluate.compare, "compare runs with the first on the same text: a JSON object for each", evaluate.add_options,
        takes="",
    ),
    "distill": Command(
        distill.distill, "let translators teach a smaller one: they translate a text, and it learns from that",
        distill.add_options, takes="a teacher: " + RUN_OR_EXPORT,
    ),
    "score": Command(
        evaluate.score, "log P and perplexity of given translations", evaluate.add_score_options, takes=RUN_OR_EXPORT
    ),
}  # fmt: skip
IMPORTING = translate.IMPORTING
