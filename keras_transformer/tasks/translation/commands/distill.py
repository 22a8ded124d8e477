"""`distill`: from teachers and a text to a smaller translator that learned from their translations.

Sequence-level knowledge distillation (Kim and Rush 2016, arXiv 1606.07947, section 3.2): the teachers translate the
text by beam search, and the student trains on it.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json

from keras_transformer.commands.streams import read_both
from keras_transformer.core.errors import RequestError, command_line, print_result, say
from keras_transformer.decoding.processes import run_in_subprocess
from keras_transformer.runs.run_folder import RunFolder, read_config
from keras_transformer.spec.options import Config, flag_of
from keras_transformer.tasks.translation.commands.distilled_text import DistilledText
from keras_transformer.tasks.translation.commands.evaluate import compared
from keras_transformer.tasks.translation.commands.translate import open_with_options
from keras_transformer.text.bleu import checked_tokenizer
from keras_transformer.text.corpora import untagged
from keras_transformer.text.lines import read_lines
from keras_transformer.training import flags

# What `distill` says itself, so that `--train` must not.
OWN_FLAGS = ("source", "target", "dataset", "data_dir", "out", "resume", "overwrite", "task")


def distill(arguments: argparse.Namespace) -> None:
    """Translates, then trains and compares, unless the text alone is asked for.

    Whatever stops the command, the same command goes on from there.
    """
    from keras_transformer.training.run import train

    text, given = distilled_text(arguments), student_flags(arguments)
    student = RunFolder(arguments.out) if arguments.out else None
    text.check()
    if student:
        check_student(student, text, arguments.source, given)
    valid = valid_sources(given)
    # Teachers and student may need TensorFlow with other threads and devices, so each has a process of its own.
    run_in_subprocess(translate_text, arguments, text)
    if not text.is_filtered(valid):
        text.filter(arguments.source, valid)
    if student:
        train({**given, "source": str(text.source), "target": str(text.target), "resume": student.is_run()})
        for row in run_in_subprocess(figures, arguments):
            print_result(json.dumps(row))


def distilled_text(arguments: argparse.Namespace) -> DistilledText:
    """Returns the text that the options ask for.

    Raises:
        RequestError: they ask neither for a student nor for a text, or train a student that has no folder.
    """
    if arguments.out:
        return DistilledText(arguments.text or f"{arguments.out.rstrip('/')}-text")
    if arguments.train is not None or not arguments.text:
        raise RequestError(
            "expected --out with a run folder for the student; or --text without --train, for the translated text alone"
        )
    return DistilledText(arguments.text)


def student_flags(arguments: argparse.Namespace) -> Config:
    """Returns the student's flags by the names of their settings. It validates on the first teacher's validation text,
    unless a flag names another.

    Raises:
        RequestError: `--train` has a flag that `distill` gives itself.
    """
    parser = flags.parser()
    parser.prog, parser.usage = command_line("distill"), "%(prog)s … --train FLAG …"
    given = vars(parser.parse_args(arguments.train or []))
    if refused := [flag_of(name) for name in OWN_FLAGS if given.get(name) not in (None, False)]:
        raise RequestError(f"{', '.join(refused)}: `distill` gives this to the student itself; leave it out of --train")
    teacher = RunFolder(arguments.run)
    if not (given["valid_source"] or given["valid_target"]) and teacher.valid_source.is_file():
        given |= {"valid_source": str(teacher.valid_source), "valid_target": str(teacher.valid_target)}
    return {**given, "out": arguments.out}


def check_student(student: RunFolder, text: DistilledText, source: str, given: Config) -> None:
    """Raises RequestError unless the student may be trained, before its teachers begin to work."""
    from keras_transformer.training.request import open_run

    if text.folder.resolve().is_relative_to(student.path.resolve()):
        raise RequestError(f"--text must not lie in the student's folder {student.path}; received: {text.folder}")
    if not student.is_run():
        with contextlib.redirect_stderr(io.StringIO()):  # what it says is said again when training begins
            open_run({**given, "source": source, "target": source})  # in place of the translations
    elif not text.is_filtered(valid_sources(given)):
        raise RequestError(
            f"{student.path} holds a run that did not learn from {text.folder}, or validates on another text: choose "
            "another --out, or give the text on which it validates"
        )


def valid_sources(given: Config) -> list[str]:
    """Returns the sources on which the student validates; none if they will be held out."""
    return list(read_lines(given["valid_source"])) if given["valid_source"] else []


def translate_text(arguments: argparse.Namespace, text: DistilledText) -> None:
    """Lets the teachers translate what is not translated yet."""
    asked = {name: getattr(arguments, name) for name in ("beams", "length_penalty", "max_length", "precision", "split")}
    making = text.making([arguments.run, *arguments.others], arguments.source, asked)
    if text.missing(making):
        translator, options = open_with_options(arguments)
        text.begin(making)
        text.translate(arguments.source, lambda lines: translator.stream(lines, options))


def figures(arguments: argparse.Namespace) -> list[Config]:
    """Figures of the teachers and figures of the student, on the student's validation text.

    The teachers read it without the tags that only the student has. The student's run does not name its languages, so
    the teachers' language chooses BLEU's tokenizer.
    """
    student = RunFolder(arguments.out)
    lines = read_both(str(student.valid_source), str(student.valid_target))
    of_student = argparse.Namespace(**{**vars(arguments), "run": arguments.out, "others": [], "precision": None})
    both = [arguments, of_student]
    translators, options = zip(*map(open_with_options, both), strict=True)
    teachers, learnt = translators
    foreign = learnt.source_tokenizer.tags.keys() - teachers.source_tokenizer.tags.keys()
    sources = [[untagged(line, foreign) for line in lines.sources], lines.sources]
    tokenize = checked_tokenizer(None, teachers.target_language)
    say(f"teachers and student on {student.valid_source}:")
    runs = [[one.run, *one.others] for one in both]
    rows = compared(translators, options, sources, lines.targets, tokenize)
    return [{"runs": some, "parameters": list(map(parameters_of, some)), **row}
            for some, row in zip(runs, rows, strict=True)]  # fmt: skip


def parameters_of(run: str) -> int | None:
    """Returns how many parameters the model of a run has; None for an export, which does not tell."""
    if not RunFolder(run).is_run():
        return None
    return read_config(run).num_parameters()
