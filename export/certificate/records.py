"""The records of a certificate, as certificate.json holds them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal, TypedDict

from .contents import Contents
from .judgement import Judgement


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
        stored: of the model's answers, what is compared with where the model is not there; see `stored`.
        probes: by which graphs check themselves where they run; see `keras_transformer.decoding.probes`.
        against: "model", or "stored" if the model was not there.
        run: what is known of the run and of the search.
        versions: of the packages that the model ran on.
        machine: what everything ran on.
        bleu_signature: sacreBLEU's signature; "" without references.
        kind: of the model.
    """

    entries: tuple[Entry, ...]
    run: dict[str, str]
    versions: dict[str, str]
    machine: Machine
    bleu_signature: str
    kind: str = ""
    stored: dict[str, Any] = field(default_factory=dict)
    probes: list[dict[str, Any]] = field(default_factory=list)
    against: Literal["model", "stored"] = "model"

    @property
    def holds(self) -> bool:
        """Whether every artefact holds."""
        return all(entry.holds for entry in self.entries)
