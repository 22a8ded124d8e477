"""Writes the certificate's files, certificate.json and CERTIFICATE.md; and says by which rule artefacts are held."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal, TypedDict

from keras_transformer.core.files import write_text
from keras_transformer.core.schema import printable
from keras_transformer.runs.export_folder import BOUNDS, LEAST_BLEU, NEAR_TIE
from keras_transformer.spec.options import Config

from .contents import Contents
from .judgement import Difference, Judgement

LISTED = 20  # CERTIFICATE.md shows so many differing sentences of an artefact; certificate.json has all of them
# What the columns of the first table mean: of models that search, and of the others.
SEARCHED = (
    "Identical: the share of answers with the model's tokens (of an artefact that gives text: with its text), in "
    "batches of 32, in the order of the text. Score: the largest difference of an artefact's log P from the model's, "
    "for the artefact's own tokens, in nats a token; probes and all trials of all signatures count. BLEU, in brackets "
    "the model's own: {bleu}. Batched, padded: how many texts are answered otherwise than alone."
)
AT_ONCE = (
    "Identical: the share of texts, images or histories with the model's label, its likeliest item, or its likeliest "
    "piece at every place, in batches of 32. Score: the largest difference of a probability; probes and all trials "
    "count. Batched, padded: how many get another label, item or piece than alone."
)
UNSPLIT = (
    "The artefacts split no text: give each sentence as a text of its own, or as many together as `sentences_per_line` "
    "says, by which the model learned."
)
UNFINISHED = "**The run is unfinished**, at {}: it may answer badly, and the artefacts as it does."
AGAINST = {
    "model": "the Keras model that it was made of",
    "stored": (
        "the answers that the certificate keeps of the Keras model, for its probes and a few texts: **the model is not "
        "there**, so other answers cannot be scored"
    ),
}


FIRST = "every output of every trial is there, finite, and of its type and shape"
CHANCE = ", or no more than two standard errors over that"


class Machine(TypedDict):
    """What the artefacts and the model ran on."""

    system: str
    processors: int | None
    threads: int  # for each runtime


@dataclass(frozen=True)
class Entry:
    """One artefact's part of the certificate.

    Args:
        name: its path in the export folder.
        format, takes, precision: as in `Artefact`.
        holds: whether the artefact passed the checks that `held_against` names.
        held_against: what it was compared with, and by which rule.
        reason: why it does not hold; where it holds by its graph alone, why it could not run here.
        contents: what it is made of; None if it cannot be read.
        judgement: what was seen when it ran; None if it did not run.
        verified: what was checked: "translations", or "answers" of other models, if the artefact ran; "graph" if no
            runtime here could run it and only its graph was checked; "nothing" if it could not be read, or broke.
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
    verified: str = "nothing"


@dataclass(frozen=True)
class Certificate:
    """What `certify` found.

    Args:
        entries: one for each artefact.
        stored: the model's answers that are kept for a comparison without the model; see `KeptCertificate`.
        probes: by which graphs check themselves where they run; see `keras_transformer.checking.probes`.
        against: "model", or "stored" if the model was not there.
        run: what is known of the run and of the search.
        versions: the versions of the packages that the model ran on.
        machine: what everything ran on.
        bleu_signature: sacreBLEU's signature; "" without references.
        kind: the kind of the model.
    """

    entries: tuple[Entry, ...]
    run: dict[str, str]
    versions: dict[str, str]
    machine: Machine
    bleu_signature: str
    kind: str = ""
    stored: Config = field(default_factory=dict)
    probes: list[Config] = field(default_factory=list)
    against: Literal["model", "stored"] = "model"

    @property
    def holds(self) -> bool:
        """Whether every artefact holds."""
        return all(entry.holds for entry in self.entries)


def rule_of(unit: str, precision: str, has_references: bool) -> str:
    """What an artefact of a precision is held against.

    Args:
        unit: "log_prob" of models that search, or "probability".
        precision: the precision of the artefact.
        has_references: whether BLEU is measured.
    """
    bounds = BOUNDS[precision]
    if unit == "probability":
        numbers = (
            f"all probabilities are within {bounds.probability:g} of the model's, and all vectors within "
            f"{bounds.vector:g} of their length"
        )
        choices = f"the model finds no label, piece or item worse than its own by more than {bounds.choice:g}"
        if precision != "float32":
            choices = f"on average the model finds them worse than its own by at most {bounds.mean_choice:g}{CHANCE}"
        return f"{FIRST}; {numbers}; {choices}"
    numbers = f"each score is within {bounds.log_prob:g} nats a token of the model's log P of the same tokens"
    if precision == "float32":
        choices = (
            f"in each trial at least {bounds.identical:.0%} of the answers are identical (of fewer than 100, all but "
            f"one); the model scores every other answer at most {bounds.choice:g} below its own, or its search chose "
            f"between hypotheses within {NEAR_TIE:g}"
        )
        return f"{FIRST}; {numbers}; {choices}"
    numbers += f", and those of a trial together within {bounds.mean_log_prob:g}{CHANCE}"
    choices = (
        f"in each trial the model scores the answers at most {bounds.mean_choice:g} below its own on average{CHANCE}"
    )
    if has_references:
        choices += (
            f"; the BLEU loss is at most {bounds.bleu:g}, or half the 95 % paired-bootstrap interval where that is "
            f"larger (not judged where the model's own BLEU is below {LEAST_BLEU:g})"
        )
    return f"{FIRST}; {numbers}; {choices}"


def write_certificate(certificate: Certificate, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes certificate.json and CERTIFICATE.md, each whole or not at all; returns their paths."""
    paths = [Path(folder) / "certificate.json", Path(folder) / "CERTIFICATE.md"]
    values = {"holds": certificate.holds, **asdict(certificate)}
    write_text(paths[0], json.dumps(finite(values), indent=2, allow_nan=False) + "\n")
    write_text(paths[1], markdown(certificate))
    return paths


def finite(value: object) -> Any:
    """The value with None in place of the numbers that JSON lacks: infinities and NaN."""
    if isinstance(value, dict):
        return {key: finite(one) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [finite(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def markdown(certificate: Certificate) -> str:
    """CERTIFICATE.md: two tables, a section for each artefact, the versions."""
    machine = certificate.machine
    lines = [
        "# Certificate",
        "",
        f"Each artefact, run in a process of its own, against {AGAINST[certificate.against]}. {verdict(certificate)}",
        *(["", UNFINISHED.format(certificate.run["unfinished"])] if "unfinished" in certificate.run else []),
        "",
        *quality_table(certificate.entries),
        "",
        (SEARCHED if "decoding" in certificate.run else AT_ONCE).format(
            bleu=certificate.bleu_signature or "not measured, because there were no references"
        ),
        *(["", UNSPLIT] if "splits_text" in certificate.run else []),
        "",
        *cost_table(certificate.entries),
        "",
        "Latency: the median at batch 1. Speed: at batch 32. Memory: the peak of the whole process. Measured with "
        f"{machine['threads']} thread(s) on {machine['system']}, {machine['processors']} processors.",
        *(line for entry in certificate.entries for line in section(entry)),
        "",
        "## Versions",
        "",
        *(f"* {name}: {text}" for name, text in certificate.run.items() if text),
        f"* the model ran on: {listed(certificate.versions)}",
    ]
    return "\n".join(map(printable, lines)) + "\n"


def verdict(certificate: Certificate) -> str:
    """Whether every artefact holds, in a sentence; and how many hold by their graph alone."""
    if not certificate.holds:
        return "**Not every artefact holds.**"
    num_graphs = sum(entry.verified == "graph" for entry in certificate.entries)
    return f"Every artefact holds, {num_graphs} of them by the graph alone." if num_graphs else "Every artefact holds."


def holds_cell(entry: Entry) -> str:
    """Whether an artefact holds, in the table: "graph only" where no translation was checked."""
    if not entry.holds:
        return "**no**"
    return "graph only" if entry.verified == "graph" else "yes"


def quality_table(entries: Iterable[Entry]) -> Iterator[str]:
    """A row for each artefact: whether it holds, and how it compares with the model."""
    yield "| artefact | holds | sentences | identical | score | BLEU | batched | padded |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- |"
    for entry in entries:
        cells = [""] * 6
        if entry.judgement:
            seen = entry.judgement.measured
            cells = [
                str(seen.sentences),
                f"{seen.identical / seen.sentences:.1%}" if seen.sentences else "",
                f"{seen.score_difference:.1e}",
                "" if seen.bleu is None else f"{seen.bleu:.2f} ({seen.model_bleu:.2f})",
                f"{seen.batched_differ} of {seen.alone}",
                f"{seen.padded_differ} of {seen.alone}",
            ]
        yield f"| `{entry.name}` | {holds_cell(entry)} | {' | '.join(cells)} |"


def cost_table(entries: Iterable[Entry]) -> Iterator[str]:
    """A row for each artefact: what it costs to run."""
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
    """What one artefact was held against, its custom operators, known differences, and the answers that differ."""
    yield from ("", f"## {entry.name}", "")
    yield f"Held against: {entry.held_against}."
    if entry.reason:
        yield from ("", f"{'Note' if entry.holds else '**It does not hold**'}: {one_line(entry.reason)}.")
    if entry.contents:
        custom = ", ".join(f"`{name}`" for name in entry.contents.custom_operators)
        yield from ("", f"Operators beside the format's own: {custom or 'none'}.")
        if entry.contents.converter:
            yield from ("", f"Converted by {one_line(entry.contents.converter)}.")
    if entry.judgement:
        seen = entry.judgement.measured
        yield from ("", f"It ran on: {seen.provider} ({seen.device_name}), {listed(seen.versions)}.")
        if known := entry.judgement.known_differences:
            yield from ("", "Known differences of the format, which do not count:", "")
            yield from (f"* {one_line(one)}" for one in known)
        yield from differences_list(entry.judgement.differences)


def differences_list(differences: Sequence[Difference]) -> Iterator[str]:
    """The answers that differ, beside the model's."""
    if differences:
        yield from (
            "",
            f"{len(differences)} answer(s) differ; the model says how much worse they are than its own.",
            "",
        )
    for one in differences[:LISTED]:
        yield f"* {one.text}, {one.given}: {one_line(one.source)}"
        yield f"  * model, {one.model_score:.4f}: {one_line(one.model)}"
        yield f"  * artefact, {one.loss:.4f} worse: {one_line(one.artefact)}"
        if one.margin is not None:
            yield f"  * the model kept its own by {one.margin:.1e} at piece {one.piece}"
    if len(differences) > LISTED:
        yield from ("", f"… and {len(differences) - LISTED} more, in certificate.json.")


def one_line(text: str) -> str:
    """The text on one line, with Markdown's own characters escaped."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|" else char for char in " ".join(text.split()))


def listed(values: Mapping[str, str | int]) -> str:
    """`name value` pairs, with commas between."""
    return ", ".join(f"{name} {value}" for name, value in values.items())
