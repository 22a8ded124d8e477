"""The commands of any run: `info`, `average`, `neighbours`, `attention`; and `import`, which makes a run of a trained
model in Hugging Face's format.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer import plots
from keras_transformer.commands.command import Importer, add_shared_options, refuse_options_of_others
from keras_transformer.commands.parser import COUNT
from keras_transformer.core.errors import JobError, RequestError, print_result, say, warn
from keras_transformer.core.extras import load_tensorflow
from keras_transformer.core.files import check_writable, write_whole
from keras_transformer.core.schema import having, list_of, object_of, parse_json, printable, read_json
from keras_transformer.core.task_registry import TASKS
from keras_transformer.runs.export_folder import ExportFolder, Graphs, metadata_of
from keras_transformer.runs.run_folder import RunFolder, as_json, check_place, read_config, read_metrics, resume_command
from keras_transformer.spec.options import Config

if TYPE_CHECKING:
    from keras_transformer.decoding.attention_maps import Attention

SUFFIXES = (".html", ".png", ".svg", ".pdf")
CERTIFIED = object_of({}, {"entries": list_of(having(name=str, holds=bool))}, others=object)
MAX_CERTIFICATE = 2**26  # bytes


def average(arguments: argparse.Namespace) -> None:
    """Writes the mean of the last checkpoints as model.keras."""
    load_tensorflow()
    from keras_transformer.training.checkpoints import average

    steps = average(arguments.run, arguments.last)
    say(f"model.keras is now the mean of {len(steps)} checkpoints, of steps {', '.join(map(str, steps))}")


def add_average_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of `average`."""
    parser.add_argument("--last", type=COUNT, default=5, metavar="N", help="how many checkpoints (default: 5)")


def info(arguments: argparse.Namespace) -> None:
    """Prints the run's configuration and its last metrics; a part that is missing is left out. Of an export it prints
    what its graphs say, and what its certificate found."""
    if (export := ExportFolder(arguments.run)).is_export():
        print_export(export)
        return
    run = RunFolder(arguments.run)
    config = read_config(run)
    print_result(f"run: {run.path}")
    print_result(f"parameters: {config.num_parameters():,}")
    if config.license:
        print_result(f"license: {config.license}")
    if config.answer_length is not None:
        print_result(f"answers: up to {config.answer_length:,} tokens, with the end")
    if config.settings.get("source"):  # a run of the user's own text; older runs name the default corpus too
        config.settings["dataset"] = None
    if None not in (config.model.get("encoder_layers"), config.model.get("decoder_layers")):
        del config.model["num_layers"]  # both sides have a depth of their own
    for section in ("model", "search", "corpus", "settings", "versions", "weights"):
        print_section(section, config.sections.get(section, {}))
    print_result(f"model.keras: {'there' if run.model.is_file() else 'not yet'}{unfinished_hint(run)}")
    print_metrics(metrics_of(run))


def print_export(export: ExportFolder) -> None:
    """Prints what the graphs of an export say of themselves, and what its certificate found of each artefact."""
    graphs = export.graphs()
    told = metadata_of(graphs.main)
    print_result(f"export: {export.path}")
    try:
        sections = {name: parse_json(told[name], dict) for name in ("model", "decoding") if name in told}
    except ValueError as error:
        raise RequestError(f"{graphs.main} is not a graph that an export has: {error}") from error
    for name, text in told.items():
        if name in sections:
            print_section(name, sections[name])
        else:
            print_result(f"{printable(name)}: {printable(text)}")
    entries = certified(graphs)
    print_result("certificate:" if entries else "certificate: none")
    for name, holds in entries.items():
        print_result(f"  {name}: {'holds' if holds else 'does not hold'}")


def certified(graphs: Graphs) -> dict[str, bool]:
    """Returns what the certificate beside graphs says of each artefact: whether it holds; nothing without one.

    Raises:
        RequestError: the certificate is damaged.
    """
    try:
        entries = read_json(graphs.probes, CERTIFIED, MAX_CERTIFICATE, has_constants=True).get("entries", [])
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise RequestError(f"{graphs.probes} is damaged: {error}") from error
    return {printable(entry["name"]): entry["holds"] for entry in entries}


def unfinished_hint(run: RunFolder) -> str:
    """How to go on with a run that has not come to its end; empty for one that has, and for an export."""
    is_unfinished = run.is_run() and (read_config(run).unfinished() or not run.model.is_file())
    return f"; the run is unfinished: `{resume_command(run)}` goes on" if is_unfinished else ""


def print_section(name: str, values: Config) -> None:
    """Prints a part of the configuration, unless it is empty."""
    if values:
        print_result(f"{name}:")
    for key, value in values.items():
        print_result(f"  {printable(key)}: {as_json(value)}")


def print_metrics(rows: list[dict[str, str]]) -> None:
    """Prints the last row of the metrics, and the best BLEU."""
    if not rows:
        print_result("metrics: none yet")
        return
    print_result("last metrics:")
    for name, value in rows[-1].items():
        print_result(f"  {name}: {value}")
    best = max(rows, key=lambda row: number(row.get("val_bleu")))
    if best.get("val_bleu"):
        print_result(f"best val_bleu: {best['val_bleu']}, at step {best.get('step', 'unknown')}")


def metrics_of(run: RunFolder) -> list[dict[str, str]]:
    """Returns the rows of metrics.csv, as they can be printed; none if the file cannot be read."""
    try:
        return [{printable(name): printable(value) for name, value in row.items()} for row in read_metrics(run)]
    except OSError as error:
        warn(f"{run.metrics} cannot be read: {error}")
        return []


def number(text: str | None) -> float:
    """Returns the number in the text; -inf if there is none."""
    try:
        value = float(text or "")
    except ValueError:
        return -math.inf
    return -math.inf if math.isnan(value) else value


def neighbours(arguments: argparse.Namespace) -> None:
    """Prints a JSON object for each word: the pieces with the nearest vectors, and their cosines.

    Raises:
        RequestError: the only word is no piece of the vocabulary.
        JobError: one of several words is none; the others were answered.
    """
    load_tensorflow()
    from keras_transformer.decoding.pipelines import load_piece_vectors

    vectors = load_piece_vectors(arguments.run)
    num_unknown = 0
    for word in arguments.words:
        try:
            nearest = vectors.neighbours(word, arguments.count)
        except RequestError as error:
            if len(arguments.words) == 1:
                raise
            num_unknown += 1
            warn(str(error))
            continue
        cosines = {piece: round(cosine, 4) for piece, cosine in nearest}
        print_result(json.dumps({"word": word, "neighbours": cosines}, ensure_ascii=False))
    if num_unknown:
        raise JobError(f"{num_unknown} of {len(arguments.words)} words are no pieces; the others are answered")


def add_neighbours_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments and options of `neighbours`."""
    add = parser.add_argument
    add("words", nargs="+", metavar="WORD", help="a word that is one piece of the vocabulary, or a piece")
    add("--count", type=COUNT, default=10, metavar="N", help="neighbours of each word (default: 10)")


def attention(arguments: argparse.Namespace) -> None:
    """Draws the attentions of a text.

    Raises:
        RequestError: the options do not go together, or the picture cannot be written there.
    """
    out = Path(arguments.out)
    _check(arguments, out)
    load_tensorflow()
    found = attentions_of(arguments.run, arguments.text, arguments.target)
    if arguments.attention is not None:
        found = {arguments.attention: _named(arguments.attention, found)}
    if out.suffix == ".html":
        with write_whole(out) as aside:
            aside.write_text(plots.attention_page(found, title=arguments.text), encoding="utf-8")
    else:
        if not arguments.pieces:
            found = {name: one.joined() for name, one in found.items()}
        picture = _picture(found, arguments)
        with write_whole(out) as aside:
            picture.savefig(aside, dpi=150)
    say(f"wrote {out}")


def attentions_of(run: str, text: str, target: str | None) -> dict[str, Attention]:
    """Returns the attentions of a run of any kind for a text.

    Args:
        run: the run folder.
        text: what the model takes: a sentence, a history with tabs between its items, or the path of an image.
        target: a translation, or an answer of a language model of pairs; by default the model's own.

    Raises:
        RequestError: the folder holds no run, or its model takes no target.
    """
    from keras_transformer.decoding.pipelines import pipeline_of

    return pipeline_of(read_config(run).task).load(run).attention_of_line(text, target)


def _check(arguments: argparse.Namespace, out: Path) -> None:
    """Refuses options that do not go together, and files that cannot be written."""
    if out.suffix not in SUFFIXES or not out.parent.is_dir() or out.is_dir():
        raise RequestError(
            f"--out must be a file that ends in {', '.join(SUFFIXES[:-1])} or {SUFFIXES[-1]}, in a folder that is "
            f"there; received: {out}"
        )
    check_writable(out.parent, "choose another file with --out")
    given = [name for name in ("layers", "heads", "word", "pieces") if getattr(arguments, name)]
    if out.suffix == ".html" and given:
        raise RequestError(f"the page has all layers, heads and words to choose from: leave out --{given[0]}")


def _named(name: str, found: dict[str, Attention]) -> Attention:
    if name not in found:
        raise RequestError(f"--attention must be {' or '.join(found)} for this model; received: {name}")
    return found[name]


def _picture(found: dict[str, Attention], arguments: argparse.Namespace) -> Any:
    from keras_transformer.plots.page import chosen

    try:
        if arguments.word is None:
            return plots.attention_picture(found, arguments.layers, arguments.heads)
        one, query = _looking(found, arguments.word)
        layers, heads = chosen(one, arguments.layers, arguments.heads)
        return plots.word_lines_picture(
            [plots.WordLines(one, query, layer, head) for layer in layers for head in heads]
        )
    except IndexError as error:
        raise RequestError(str(error)) from None


def _looking(found: dict[str, Attention], word: str) -> tuple[Attention, int]:
    """Returns the first attention in which a word looks, and its place.

    Raises:
        RequestError: no attention has the word.
    """
    *others, last = found.values()
    for one in others:
        with contextlib.suppress(RequestError):
            return one, one.queries.place_of(word)
    return last, last.queries.place_of(word)


def add_attention_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments and options of `attention`."""
    add = parser.add_argument
    add("text", help="what the run takes: a sentence, a history with its items by tabs, or an image file")
    add("--target", help="its translation, or the answer of a model of pairs (default: the model's own)")
    add("--out", required=True, metavar="FILE", help="an .html page, or a picture: .png, .svg or .pdf")
    add("--attention", metavar="NAME", help="only this one: encoder, decoder or cross, of a translator (default: all)")
    add("--layers", type=COUNT, nargs="+", metavar="N", help="of a picture: only these layers, from 1 (default: all)")
    add("--heads", type=COUNT, nargs="+", metavar="N", help="of a picture: only these heads, from 1 (default: all)")
    add("--word", help="of a picture: lines from this word, in place of heat maps")
    add("--pieces", action="store_true", help="of a picture: show pieces, and do not join them to words")


def importers() -> dict[str, Importer]:
    """Returns how tasks write runs, those with a way of their own."""
    modules = {task: its.module("commands") for task, its in TASKS.items()}
    return {task: module.IMPORTER for task, module in modules.items() if hasattr(module, "IMPORTER")}


def import_model(arguments: argparse.Namespace) -> None:
    """Reads a folder, or downloads one, and writes a run. A wrong request is refused before anything is written."""
    if (arguments.folder is None) == (arguments.download is None):
        received = "neither" if arguments.folder is None else "both"
        raise RequestError(f"expected a FOLDER or --download NAME; received {received}: give one")
    check_place(Path(arguments.run), arguments.overwrite)
    validation = {task: its.validation_of(arguments) for task, its in importers().items()}
    if arguments.download is None:
        write_imported(arguments.folder, arguments, validation)
        return
    from keras_transformer.importing.huggingface import download

    with tempfile.TemporaryDirectory() as folder:
        download(arguments.download, Path(folder))
        write_imported(folder, arguments, validation)


def write_imported(folder: str, arguments: argparse.Namespace, validation: Config) -> None:
    """Writes the model in a folder as a run."""
    from keras_transformer.decoding.pipelines import pipeline_of
    from keras_transformer.importing.huggingface import read_huggingface

    imported, several = read_huggingface(folder), importers()
    task = imported.task
    refuse_options_of_others(arguments, task, {one: its.add_options for one, its in several.items()})
    if task in several:
        several[task].write(imported, arguments, validation[task])
        return
    pipeline = pipeline_of(task).imported(imported)
    pipeline.save(arguments.run, overwrite=arguments.overwrite)
    say(f"wrote {arguments.run}: {pipeline.model.count_params():,} parameters, a run of --task {task}")


def add_import_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments and options of `import`."""
    add = parser.add_argument
    add("folder", nargs="?", metavar="FOLDER", help="the model: config.json, weights, and the tokenizer's files")
    add("run", metavar="NEW_RUN", help="the run folder to write")
    download = "fetch the model NAME from the Hugging Face Hub, in place of FOLDER (needs the package huggingface_hub)"
    add("--download", metavar="NAME[@REVISION]", help=download)
    add_shared_options(parser, [its.add_options for its in importers().values()])
    add("--overwrite", action="store_true", help="replace a run that is there")
