"""Writes a certificate: certificate.json for programs, CERTIFICATE.md for people."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keras_transformer.files import write_text

from .records import Certificate, Entry
from .rules import Difference

LISTED = 20  # CERTIFICATE.md shows so many differing sentences of an artefact; certificate.json has all of them


# What the columns of the first table mean, by the kind of model.
LEGENDS = {
    "translator": (
        "Identical: the share of translations with the model's tokens (of an artefact that gives text: with its text), "
        "in batches of 32, in the order of the text. Score: the largest difference over identical translations. BLEU, "
        "in brackets the model's own: {bleu}. Batched, padded: how many sentences are translated otherwise than alone."
    ),
    "language-model": (
        "Identical: the share of continuations with the model's tokens (of an artefact that gives text: with its "
        "text), in batches of 32, in the order of the prompts. Score: the largest difference over identical "
        "continuations. Batched, padded: how many prompts are continued otherwise than alone."
    ),
    "image-classifier": (
        "Identical: the share of images with the model's label, in batches of 32. Score: the largest difference of a "
        "probability, or of a vector in units of its largest number. Batched, padded: how many images have another "
        "label than alone (padded: beside another image)."
    ),
    "sequence-encoder": (
        "Identical: the share of histories with the model's likeliest item, in batches of 32; the histories are made. "
        "Score: the largest difference of a probability, or of a vector in units of its largest number. Batched, "
        "padded: how many histories have another likeliest item than alone."
    ),
    "encoder": (
        "Identical: the share of texts with the model's label, or the model's likeliest piece at every place, in "
        "batches of 32, in the order of the text. Score: the largest difference of a probability, or of a vector in "
        "units of its largest number. Batched, padded: how many texts have another label or piece than alone."
    ),
}


def write_certificate(certificate: Certificate, folder: str | os.PathLike[str]) -> list[Path]:
    """Writes certificate.json and CERTIFICATE.md, each whole or not at all; returns their paths."""
    paths = [Path(folder) / "certificate.json", Path(folder) / "CERTIFICATE.md"]
    values = {"holds": certificate.holds, **asdict(certificate)}
    write_text(paths[0], json.dumps(finite(values), indent=2, ensure_ascii=False, allow_nan=False) + "\n")
    write_text(paths[1], markdown(certificate))
    return paths


def finite(value: Any) -> Any:
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
        "Each artefact, run in a process of its own, against the Keras model that it was made of. "
        + verdict(certificate),
        "",
        *quality_table(certificate.entries),
        "",
        LEGENDS[certificate.kind].format(
            bleu=certificate.bleu_signature or "not measured, because there were no references"
        ),
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
    return "\n".join(lines) + "\n"


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
                f"{seen.identical / seen.sentences:.1%}",
                f"{seen.score_difference:.1e}",
                "" if seen.bleu is None else f"{seen.bleu:.2f} ({seen.model_bleu:.2f})",
                f"{seen.batched_differ} of {seen.probes}",
                f"{seen.padded_differ} of {seen.probes}",
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
    """What one artefact was held against, its custom operators, and the sentences that differ."""
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
    """The sentences that differ, with both translations."""
    if differences:
        yield f"\n{len(differences)} translation(s) differ. The model scored both.\n"
    for one in differences[:LISTED]:
        yield f"* line {one.line}, {one.given}: {one_line(one.source)}"
        yield f"  * model, {one.model_score:.4f}: {one_line(one.model)}"
        yield f"  * artefact, {one.artefact_score:.4f}: {one_line(one.artefact)}"
        if one.margin is not None:
            yield f"  * the model kept its own by {one.margin:.1e} at piece {one.piece}"
    if len(differences) > LISTED:
        yield f"\n… and {len(differences) - LISTED} more, in certificate.json."


def one_line(text: str) -> str:
    """The text on one line, with Markdown's own characters escaped."""
    return "".join(f"\\{char}" if char in "\\`*_[]<>#|" else char for char in " ".join(text.split()))


def listed(values: Mapping[str, object]) -> str:
    """`name value` pairs, with commas between."""
    return ", ".join(f"{name} {value}" for name, value in values.items())
