"""The commands of a language model: `generate` continues prompts, or answers them; `score` tells log P of texts."""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import TYPE_CHECKING

from keras_transformer.commands.command import RUN_OR_EXPORT, Command
from keras_transformer.commands.parser import (
    COUNT,
    FEW,
    add_drawing_options,
    add_engine_options,
    add_guard_options,
    add_pair_options,
    guards_of,
)
from keras_transformer.core.errors import RequestError, print_result
from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.run_folder import config_of, require_kind
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.text.lines import read_lines

if TYPE_CHECKING:
    from keras_transformer.tasks.language_modelling.pipeline import Generator


def generate(arguments: argparse.Namespace) -> None:
    """Prints the prompt and its continuation as it grows, or its answer; of a file of prompts a JSON object each."""
    config = require_kind(config_of(arguments.run), TASKS["language-model"].kind, Path(arguments.run))
    answers = config.answer_length is not None or arguments.chat
    options = options_of(arguments, answers)
    prompts = prompts_of(arguments, answers)
    generator = opened(arguments)
    chats = [[{"role": "user", "content": each}] for each in prompts]
    texts = generator.tokenizer.chat_texts(chats) if arguments.chat else prompts
    if arguments.prompts is None and options.n_best == 1 and (options.sampling or options.num_beams == 1):
        print_result("" if answers else prompts[0], end="")
        for text in generator.stream(texts[0], arguments.tokens, options):
            print_result(text, end="")
        print_result("")
        return
    for prompt, found in zip(prompts, generator.generate(texts, arguments.tokens, options), strict=True):
        for continuation in found:
            if arguments.prompts is None:
                print_result(continuation.text if answers else f"{prompt}{continuation.text}")
            else:
                print_result(json.dumps({"prompt": prompt, "text": continuation.text}, ensure_ascii=False))


def prompts_of(arguments: argparse.Namespace, answers: bool) -> list[str]:
    """Returns the prompts that are asked for.

    Raises:
        RequestError: a prompt and a file were given, or none for a model that answers; or the file cannot be read or
            is empty.
    """
    if answers and arguments.prompts is None and arguments.prompt is None:
        raise RequestError(f"{arguments.run} answers prompts; received none: give --prompt or --prompts")
    if arguments.prompts is None:
        return [arguments.prompt or ""]
    if arguments.prompt is not None:
        raise RequestError("--prompt is one prompt, and --prompts a file of them; received both: give one")
    prompts = list(read_lines(arguments.prompts))
    if not prompts:
        raise RequestError(f"{arguments.prompts} is empty; expected a prompt a line")
    return prompts


def options_of(arguments: argparse.Namespace, answers: bool) -> SearchOptions:
    """Returns the options of sampling, or of a search with `--beams`; answers are searched for unless an option of
    drawing is given.

    Raises:
        RequestError: an option is out of its range, or is for sampling and `--beams` was given too.
    """
    drawing = {"temperature": arguments.temperature, "top_k": arguments.top_k, "top_p": arguments.top_p,
               "seed": arguments.seed}  # fmt: skip
    given = {name: value for name, value in drawing.items() if value is not None}
    guards = guards_of(arguments)
    if arguments.beams is None and (given or not answers):
        return SearchOptions(sampling=True, n_best=arguments.n_best, **given, **guards)
    if given:
        flag = "--" + next(iter(given)).replace("_", "-")
        raise RequestError(f"{flag} is for drawing, and --beams searches; received both: give one")
    num_beams = 1 if arguments.beams is None else arguments.beams
    return SearchOptions(num_beams=num_beams, n_best=arguments.n_best, **guards)


def score(arguments: argparse.Namespace) -> None:
    """Prints log P and perplexity: a line for each answer, or one JSON object for a text.

    Raises:
        RequestError: a text and pairs are given, or neither.
    """
    given = [value is not None for value in (arguments.text, arguments.source, arguments.target)]
    if given not in ([True, False, False], [False, True, True]):
        raise RequestError("expected --text alone, or for a model of pairs --source and --target")
    if arguments.text is None:
        from keras_transformer.tasks.translation.commands.evaluate import score_pairs

        score_pairs(arguments, lambda: opened(arguments).score_answers)
    else:
        score_text(arguments)


def opened(arguments: argparse.Namespace) -> Generator:
    """Returns the generator of the run or export that a command names."""
    from keras_transformer.commands.graph_cache import Engine, open_model
    from keras_transformer.tasks.language_modelling.pipeline import Generator

    return Generator.of_run(*open_model(arguments.run, TASKS[Generator.task].kind, Engine.of(arguments)))


def score_text(arguments: argparse.Namespace) -> None:
    """Prints what a language model says of a whole text.

    Raises:
        RequestError: the text is empty, or the model answers texts.
    """
    from keras_transformer.text.tokenizer import Unread

    lines = list(read_lines(arguments.text))
    if not lines:
        raise RequestError(f"{arguments.text} is empty; expected a text to score")
    text, generator = "".join(f"{line}\n" for line in lines), opened(arguments)
    if generator.answer_length is not None:
        raise RequestError(f"{arguments.run} answers texts: score pairs with it, by --source and --target")
    num_unread = Unread(generator.tokenizer, lines).tell()
    score = generator.score(text)
    loss, bits = -score.log_prob / score.num_tokens, -score.log_prob / math.log(2) / len(text)
    figures = {
        "log_prob": score.log_prob,
        "tokens": score.num_tokens,
        "characters": len(text),
        "unread_characters": num_unread,
        "nats_per_token": loss,
        "perplexity": score.perplexity,
        "bits_per_character": None if num_unread else bits,  # many characters may be one unknown token
    }
    print_result(json.dumps(figures))


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `generate`."""
    add = parser.add_argument
    add("--prompt", metavar="TEXT", help="the text to continue or to answer (default: the model begins)")
    add("--prompts", metavar="FILE", help="a file with a prompt a line; prints one JSON object for each text")
    add("--chat", action="store_true", help="a prompt is a question, put by the model's own template for chats")
    add("--tokens", type=COUNT, default=200, metavar="N", help="the most tokens to add (default: 200)")
    add("--n-best", type=COUNT, default=1, metavar="N", help="continuations of each prompt (default: 1)")
    add(
        "--beams",
        type=FEW,
        metavar="K",
        help="search with this many beams in place of drawing; 1: greedy (for answers the default)",
    )
    add_drawing_options(parser)
    add_guard_options(parser, has_source=False)
    add_engine_options(parser)


def add_score_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `score`."""
    add_pair_options(parser)
    add_engine_options(parser)
    help = "for a model that continues texts: text, plain or .gz, in windows of the context"
    parser.add_argument("--text", metavar="FILE", help=help)


COMMANDS = {
    "generate": Command(generate, "continue prompts with a language model", add_options, RUN_OR_EXPORT),
    "score": Command(score, "log P and perplexity of a text, or of given answers", add_score_options, RUN_OR_EXPORT),
}
