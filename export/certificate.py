"""The certificate: every artefact is run in a process of its own and compared with the model, sentence by sentence."""

from __future__ import annotations

import json
import math
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any

from export.judgement import BATCH_SIZE, RULES, BrokenArtefact, Difference, Judge, Judgement
from export.signatures import PRECISIONS, Decoding, TrainedRun, import_optional, stem
from keras_transformer.bleu import bleu_signature
from keras_transformer.errors import RequestError, say
from keras_transformer.files import write_text
from keras_transformer.run_folder import RunFolder
from keras_transformer.text.corpora import read_lines

RUNNER = Path(__file__).with_name("runner.py")
QUICK_SENTENCES = 200  # they show whether an artefact is the model; what a low precision costs takes all
NUM_PROBES = 64  # sentences that are run alone and padded as well, unless it takes longer than
PROBE_SECONDS = 5.0
PAD_COLUMNS = 16
LISTED = 20  # differing sentences of an artefact that CERTIFICATE.md shows; certificate.json has them all
NAMES = [  # (name, suffix, format, takes)
    ("saved_model", "", "saved_model", "text"),
    ("onnx/translate", ".onnx", "onnx", "ids"),
    ("onnx/translate_text", ".onnx", "onnx", "text"),
    ("onnx/encoder", ".onnx", "onnx", "halves"),
    ("tflite/translate", ".tflite", "tflite", "ids"),
    ("tflite/translate_text", ".tflite", "tflite", "text"),
]


@dataclass(frozen=True)
class Artefact:
    """A translator that an export wrote.

    Args:
        path: its file or folder; of two halves the encoder's.
        format: "saved_model", "onnx" or "tflite".
        takes: "text", "ids", or "halves" for encoder and step, which work in a loop of their caller's.
        precision: "float32", "float16" or "int8".
    """

    path: Path
    format: str
    takes: str
    precision: str

    @property
    def paths(self) -> list[Path]:
        """Its path, or those of both halves."""
        step = self.path.with_name(self.path.name.replace("encoder", "step"))
        return [self.path, step] if self.takes == "halves" else [self.path]

    def search(self, decoding: Decoding) -> Decoding:
        """The search that it is run with: of its own, or around two halves a greedy one."""
        return replace(decoding, num_beams=1, n_best=1) if self.takes == "halves" else decoding


@dataclass(frozen=True)
class Contents:
    """What an artefact is made of.

    Args:
        bytes: of all its files.
        operators: how many of each name.
        custom_operators: those that are not the format's own.
        opset: versions of the sets of operators that it asks for.
    """

    bytes: int
    operators: dict[str, int]
    custom_operators: list[str]
    opset: dict[str, int]


@dataclass(frozen=True)
class Entry:
    """One artefact's part of the certificate.

    Args:
        name: its path in the export folder.
        format, takes, precision: as of `Artefact`.
        holds: whether it translates as the model does.
        held_against: what that means here.
        reason: why it does not hold.
        contents: what it is made of; None if it cannot be read.
        judgement: what was seen when it ran; None if it did not.
    """

    name: str
    format: str
    takes: str
    precision: str
    holds: bool
    held_against: str
    reason: str = ""
    contents: Contents | None = None
    judgement: Judgement | None = None


@dataclass(frozen=True)
class Certificate:
    """What `certify` found.

    Args:
        entries: one for each artefact.
        run: what is known of the run and of the search.
        versions: of what the model ran on.
        machine: where, and with how many threads.
        bleu_signature: sacreBLEU's; "" without references.
    """

    entries: tuple[Entry, ...]
    run: dict[str, str]
    versions: dict[str, str]
    machine: dict[str, Any]
    bleu_signature: str

    @property
    def holds(self) -> bool:
        """Whether every artefact holds."""
        return all(entry.holds for entry in self.entries)


def artefacts_in(folder: str | os.PathLike[str]) -> list[Artefact]:
    """The artefacts of an export folder, known by their names."""
    candidates = [
        Artefact(Path(folder) / f"{stem(name, precision)}{suffix}", format, takes, precision)
        for name, suffix, format, takes in NAMES
        for precision in PRECISIONS
    ]
    return [artefact for artefact in candidates if artefact.path.exists()]


def validation_text(run: str | os.PathLike[str]) -> tuple[list[str], list[str]]:
    """The validation sentences of a run folder, and their references.

    Raises:
        RequestError: the run has none.
    """
    folder = RunFolder(run)
    if not (folder.valid_source.is_file() and folder.valid_target.is_file()):
        raise RequestError(f"{folder.path} has no validation sentences: give some by --sentences and --references")
    return list(read_lines(folder.valid_source)), list(read_lines(folder.valid_target))


def certify(
    run: TrainedRun,
    folder: str | os.PathLike[str],
    artefacts: Sequence[Artefact],
    decoding: Decoding,
    sentences: Sequence[str],
    references: Sequence[str] | None = None,
    threads: int = 1,
) -> Certificate:
    """Runs artefacts and compares them with the model that they were made of.

    Args:
        run: what was exported.
        folder: the export folder.
        artefacts: which of its artefacts; see `artefacts_in`.
        decoding: the search that was baked into them.
        sentences: float32 is compared over the first 200, lower precisions over all.
        references: their translations, for BLEU. float32 is held without them.
        threads: for each runtime.

    Raises:
        RequestError: there are no artefacts, `check_text` refuses the sentences, or a runtime is not installed.
    """
    if not artefacts:
        raise RequestError(f"expected an artefact at least to certify; found none in {folder}")
    precisions = {artefact.precision for artefact in artefacts}
    check_text(sentences, references, precisions)
    count = QUICK_SENTENCES if precisions <= {"float32"} else len(sentences)
    searches = {artefact.search(decoding) for artefact in artefacts}
    judges = {search: Judge(run.translator, search, sentences[:count], references) for search in searches}
    about = run.metadata(decoding, "float32")
    return Certificate(
        entries=tuple(certified(judges[one.search(decoding)], Path(folder), one, threads) for one in artefacts),
        run={name: about[name] for name in about if name != "precision"},
        versions={name: metadata.version(name) for name in ("tensorflow", "keras", "sentencepiece", "sacrebleu")},
        machine={"system": platform.platform(), "processors": os.cpu_count(), "threads": threads},
        bleu_signature="" if references is None else bleu_signature(),
    )


def check_text(sentences: Sequence[str], references: Sequence[str] | None, precisions: Iterable[str]) -> None:
    """Raises RequestError unless artefacts of these precisions can be certified on this text."""
    if not sentences:
        raise RequestError("expected at least one sentence to certify on; received none")
    if references is not None and len(references) != len(sentences):
        raise RequestError(
            f"expected a reference for each sentence; received {len(sentences)} sentences and "
            f"{len(references)} references: align them"
        )
    if references is None and (low := sorted({*precisions} - {"float32"})):
        raise RequestError(f"{' and '.join(low)} are held by BLEU, which needs references: give --references too")


def certified(judge: Judge, folder: Path, artefact: Artefact, threads: int) -> Entry:
    """Runs one artefact and judges what it gave."""
    name = " + ".join([artefact.path.relative_to(folder).as_posix(), *(path.name for path in artefact.paths[1:])])
    rule = RULES[artefact.precision] + "; the model's greedy search" * (artefact.takes == "halves")
    entry = Entry(name, artefact.format, artefact.takes, artefact.precision, False, rule)
    say(f"certifying {name}")
    try:
        entry = replace(entry, contents=contents_of(artefact))
        result = run_artefact(artefact, job_of(judge, artefact, threads))
        judgement = judge.judge(artefact.precision, result)
    except BrokenArtefact as broken:
        entry = replace(entry, reason=str(broken))
        if artefact.format == "onnx" and artefact.precision == "float16" and "NOT_IMPLEMENTED" in entry.reason:
            graph = "the graph alone, which is valid: the runtime here, without a GPU, lacks operators in half"
            return replace(entry, holds=True, held_against=graph)
        return entry
    rule = "; ".join([rule, *about_the_gpu(artefact, judgement.measured.device, result["log"])])
    return replace(entry, held_against=rule, holds=judgement.holds, reason=judgement.reason, judgement=judgement)


def about_the_gpu(artefact: Artefact, device: str, log: str) -> Iterator[str]:
    """What a reader has to know of where an artefact ran that may use a GPU; `log` is what its runtime said."""
    is_float32 = artefact.precision == "float32"
    if not may_use_gpu(artefact):
        return
    if device == "GPU":
        yield from ["run on the GPU, with TF32 off"] * is_float32
    elif why := why_no_gpu(log):
        yield f"run on the CPU, for the runtime could not use a GPU: {why}"
    elif not is_float32:
        yield "run on the CPU: the runtime found no GPU, for which this precision is meant"


def may_use_gpu(artefact: Artefact) -> bool:
    """int8 is for processors, and LiteRT's Python package runs on them alone."""
    return artefact.precision != "int8" and artefact.format != "tflite"


def why_no_gpu(log: str) -> str:
    """The line in which ONNX Runtime says why it does not use CUDA, without time and place; "" if it says nothing."""
    plain = re.sub(r"\x1b\[[\d;]*m", "", log)  # in a terminal's colours
    failed = r"\[[EW]:onnxruntime:[^]]*\] (?=.*Failed to (?:load|create).*CUDA)|^EP Error "
    found = re.search(f"(?:{failed})(.*)", plain, re.MULTILINE | re.IGNORECASE)
    return " ".join(found[1].split())[:500] if found else ""


def job_of(judge: Judge, artefact: Artefact, threads: int) -> dict[str, Any]:
    """What the runner is told: see there."""
    count = QUICK_SENTENCES if artefact.precision == "float32" else None
    sentences = judge.sentences if artefact.takes == "text" else judge.source_ids
    return {
        "paths": [str(path.resolve()) for path in artefact.paths],
        "format": artefact.format,
        "takes": artefact.takes,
        "gpu": may_use_gpu(artefact),
        "threads": threads,
        "sentences": sentences[:count],
        "batch_size": BATCH_SIZE,
        "num_probes": NUM_PROBES,
        "probe_seconds": PROBE_SECONDS,
        "pad_columns": PAD_COLUMNS,
        "max_length": judge.decoding.max_length,
        "length_penalty": judge.decoding.length_penalty,
    }


def run_artefact(artefact: Artefact, job: dict[str, Any]) -> dict[str, Any]:
    """What the runner says of an artefact, from a process of its own that knows nothing of this project.

    Beside the runner's result, `log`: what its runtime wrote to standard output and error.

    Raises:
        BrokenArtefact: it raised an error, crashed or hung.
        RequestError: a package that runs it is missing.
    """
    with tempfile.TemporaryDirectory() as place:
        to, back = Path(place, "job.json"), Path(place, "result.json")
        to.write_text(json.dumps(job), encoding="utf-8")
        command = [sys.executable, "-P", str(RUNNER), str(to), str(back)]
        seconds = 300 + 10 * len(job["sentences"])
        try:
            done = subprocess.run(
                command,
                cwd=place,
                env=environment(job),
                timeout=seconds,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
            )
        except subprocess.TimeoutExpired:
            raise BrokenArtefact(f"it was not done after {seconds} seconds") from None
        log = done.stdout.decode("utf-8", "replace")
        if done.returncode or not back.is_file():
            last = log.strip().split("\n")[-1][:200]
            raise BrokenArtefact(f"its process ended with exit status {done.returncode}: {last}")
        result = json.loads(back.read_text(encoding="utf-8"))
    if "missing" in result:
        raise RequestError(
            f"certifying {artefact.path.name} needs the package of {result['missing']}, which is not installed: "
            "install the extra from the repository's root: pip install -e '.[export]'"
        )
    if "error" in result:
        raise BrokenArtefact("; ".join(filter(None, [result["error"], why_no_gpu(log)])))
    return {**result, "log": log}


def environment(job: dict[str, Any]) -> dict[str, str]:
    """That of the runner: nothing that leads Python to this project; no GPU unless the job may use it."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    # The model stands in the GPU's memory already: TensorFlow must not ask for all of it.
    device = {"TF_FORCE_GPU_ALLOW_GROWTH": "true"} if job["gpu"] else {"CUDA_VISIBLE_DEVICES": "-1"}
    return clean | device | {"TF_CPP_MIN_LOG_LEVEL": "3", "OMP_NUM_THREADS": str(job["threads"])}


def contents_of(artefact: Artefact) -> Contents:
    """What an artefact is made of, from its files.

    Raises:
        BrokenArtefact: they cannot be read, or are not what their format says.
    """
    read = {"saved_model": saved_model_contents, "onnx": onnx_contents, "tflite": tflite_contents}[artefact.format]
    try:
        first, *rest = [read(path) for path in artefact.paths]
    except RequestError:
        raise
    except Exception as error:  # each library has its own for a damaged file
        raise BrokenArtefact(f"it cannot be read: {' '.join(str(error).split())[:200]}") from error
    for more in rest:
        operators = Counter(first.operators) + Counter(more.operators)
        custom = {*first.custom_operators, *more.custom_operators}
        first = Contents(first.bytes + more.bytes, dict(sorted(operators.items())), sorted(custom), first.opset)
    return first


def saved_model_contents(path: Path) -> Contents:
    """Operators of the signatures' functions; those that TensorFlow itself lacks are custom."""
    import tensorflow as tf
    from tensorflow.core.protobuf.saved_model_pb2 import SavedModel

    model = SavedModel.FromString((path / "saved_model.pb").read_bytes())
    graph = model.meta_graphs[0].graph_def
    nodes = [*graph.node, *(node for function in graph.library.function for node in function.node_def)]
    operators = Counter(node.op for node in nodes)
    functions = {function.signature.name for function in graph.library.function}
    custom = [name for name in operators if not hasattr(tf.raw_ops, name) and name not in functions]
    files = [file for file in path.rglob("*") if file.is_file()]
    return contents(files, operators, custom, {"GraphDef": graph.versions.producer})


def onnx_contents(path: Path) -> Contents:
    """Operators, those of inner graphs too, `domain::name` where the domain is not ONNX's; and these are custom."""
    onnx = import_optional("onnx")
    onnx.checker.check_model(str(path))
    model = onnx.load(path, load_external_data=False)
    functions = {(function.domain, function.name) for function in model.functions}
    graphs = [model.graph, *(graph for function in model.functions for graph in inner_graphs(function.node))]
    graphs += inner_graphs(model.graph.node)
    nodes = [node for graph in (*graphs, *model.functions) for node in graph.node]
    operators = Counter(f"{node.domain}::{node.op_type}".removeprefix("::") for node in nodes)
    custom = [
        f"{node.domain}::{node.op_type}"
        for node in nodes
        if node.domain and (node.domain, node.op_type) not in functions
    ]
    arrays = [array for graph in graphs for array in graph.initializer]
    data = {item.value for array in arrays for item in array.external_data if item.key == "location"}
    opset = {entry.domain or "ai.onnx": entry.version for entry in model.opset_import}
    return contents([path, *(path.parent / name for name in data)], operators, custom, opset)


def inner_graphs(nodes: Iterable[Any]) -> Iterator[Any]:
    """The graphs inside nodes, and inside theirs: bodies of loops, branches of conditions."""
    for node in nodes:
        for attribute in node.attribute:
            for graph in [*([attribute.g] if attribute.HasField("g") else []), *attribute.graphs]:
                yield graph
                yield from inner_graphs(graph.node)


def tflite_contents(path: Path) -> Contents:
    """Operators of all subgraphs; those with a name of their own are custom, TensorFlow's (Flex) among them."""
    schema = import_optional("ai_edge_litert.schema_py_generated")
    model = schema.Model.GetRootAs(path.read_bytes())
    names = {value: name for name, value in vars(schema.BuiltinOperator).items() if not name.startswith("_")}
    codes = [model.OperatorCodes(place) for place in range(model.OperatorCodesLength())]
    kinds = [max(code.BuiltinCode(), code.DeprecatedBuiltinCode()) for code in codes]
    used = [(code.CustomCode() or b"").decode() or names[kind] for code, kind in zip(codes, kinds, strict=True)]
    graphs = [model.Subgraphs(place) for place in range(model.SubgraphsLength())]
    places = [graph.Operators(index).OpcodeIndex() for graph in graphs for index in range(graph.OperatorsLength())]
    custom = [name for code, name in zip(codes, used, strict=True) if code.CustomCode()]
    return contents([path], Counter(used[place] for place in places), custom, {"schema": model.Version()})


def contents(files: Iterable[Path], operators: Counter[str], custom: Iterable[str], opset: dict[str, int]) -> Contents:
    """Files measured, names in order."""
    size = sum(file.stat().st_size for file in files)
    return Contents(size, dict(sorted(operators.items())), sorted(set(custom)), opset)


def write_certificate(certificate: Certificate, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes certificate.json, for machines, and CERTIFICATE.md, for people; each whole or not at all."""
    paths = [Path(folder) / "certificate.json", Path(folder) / "CERTIFICATE.md"]
    machine = {"holds": certificate.holds, **asdict(certificate)}
    write_text(paths[0], json.dumps(finite(machine), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(paths[1], markdown(certificate))
    return paths


def finite(value: Any) -> Any:
    """The value with null for the numbers that JSON lacks: infinities, and what is no number."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def markdown(certificate: Certificate) -> str:
    """CERTIFICATE.md: two tables, what was held against what, the sentences that differ, the versions."""
    verdict = "Every artefact holds." if certificate.holds else "**Not every artefact holds.**"
    machine = certificate.machine
    lines = [
        "# Certificate",
        "",
        f"Each artefact, run in a process of its own, against the Keras model that it was made of. {verdict}",
        "",
        *quality_table(certificate.entries),
        "",
        "Identical: tokens, or text where an artefact gives text, in batches of 32, in the order of the text. Score: "
        "the largest difference over identical translations. In brackets the model's own BLEU, "
        f"{certificate.bleu_signature or 'not measured: there were no references'}. Batched, padded: how many "
        "sentences are translated otherwise than alone.",
        "",
        *cost_table(certificate.entries),
        "",
        "Latency: the median at batch 1. Speed: at batch 32. Memory: of the whole process, at its peak. Measured with "
        f"{machine['threads']} thread(s) on {machine['system']}, {machine['processors']} processors.",
        *(line for entry in certificate.entries for line in section(entry)),
        "",
        "## Versions",
        "",
        *(f"* {name}: {text}" for name, text in certificate.run.items() if text),
        f"* the model ran on: {listed(certificate.versions)}",
    ]
    return "\n".join(lines) + "\n"


def quality_table(entries: Iterable[Entry]) -> Iterator[str]:
    """A row for each artefact: whether it holds, and how it compares with the model."""
    yield "| artefact | holds | sentences | identical | score | BLEU | batched | padded |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for entry in entries:
        holds = "yes" if entry.holds else "**no**"
        cells = [""] * 6
        if entry.judgement:
            seen = entry.judgement.measured
            cells = [
                str(seen.sentences),
                f"{seen.identical / seen.sentences:.1%}",
                f"{seen.score_difference:.1e}",
                "" if seen.bleu is None else f"{seen.bleu:.2f} ({seen.model_bleu:.2f})",
                f"{seen.batched_differ} of {seen.probes}",
                f"{seen.padded_differ} of {seen.probes}",
            ]
        yield f"| `{entry.name}` | {holds} | {' | '.join(cells)} |"


def cost_table(entries: Iterable[Entry]) -> Iterator[str]:
    """A row for each artefact: what it takes to run."""
    yield "| artefact | MB | opset | load, s | memory, MB | latency, ms | sentences/s | device |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for entry in entries:
        cells = [""] * 7
        if entry.contents:
            cells[:2] = [f"{entry.contents.bytes / 1e6:.1f}", listed(entry.contents.opset)]
        if entry.judgement:
            seen = entry.judgement.measured
            cells[2:] = [
                f"{seen.load_seconds:.2f}",
                f"{seen.peak_bytes / 1e6:.0f}",
                f"{1000 * seen.latency_seconds:.1f}",
                f"{seen.sentences_per_second:.1f}",
                seen.device,
            ]
        yield f"| `{entry.name}` | {' | '.join(cells)} |"


def section(entry: Entry) -> Iterator[str]:
    """What one artefact was held against, what it asks for, and the sentences that differ."""
    yield from ("", f"## {entry.name}", "")
    yield f"Held against: {entry.held_against}."
    if entry.reason:
        yield f"\n{'Note' if entry.holds else '**It does not hold**'}: {one_line(entry.reason)}."
    if entry.contents:
        custom = ", ".join(f"`{name}`" for name in entry.contents.custom_operators)
        yield f"\nOperators beside the format's own: {custom or 'none'}."
    if entry.judgement:
        yield f"\nIt ran on: {listed(entry.judgement.measured.versions)}."
        yield from differences_list(entry.judgement.differences)


def differences_list(differences: Sequence[Difference]) -> Iterator[str]:
    """The sentences that differ, the model's translation and the artefact's."""
    if differences:
        yield f"\n{len(differences)} translation(s) differ. Both scores are the model's.\n"
    for one in differences[:LISTED]:
        yield f"* line {one.line}, {one.given}: {one_line(one.source)}"
        yield f"  * model, {one.model_score:.4f}: {one_line(one.model)}"
        yield f"  * artefact, {one.artefact_score:.4f}: {one_line(one.artefact)}"
        if one.margin is not None:
            yield f"  * the model kept its own by {one.margin:.1e} at piece {one.piece}"
    if len(differences) > LISTED:
        yield f"\n… and {len(differences) - LISTED} more, in certificate.json."


def one_line(text: str) -> str:
    """Text in which Markdown finds nothing of its own."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|" else char for char in " ".join(text.split()))


def listed(values: dict[str, Any]) -> str:
    """`name value` of each."""
    return ", ".join(f"{name} {value}" for name, value in values.items())
