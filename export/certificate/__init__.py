"""The certificate: runs every artefact in a process of its own and compares it with the model, sentence by sentence."""

from ..artefacts import Artefact, artefacts_in
from .comparison import certify, check_text, kept_at, validation_text, verify
from .contents import contents_of
from .report import Certificate, Entry, markdown, write_certificate

__all__ = [
    "Artefact",
    "Certificate",
    "Entry",
    "artefacts_in",
    "certify",
    "check_text",
    "contents_of",
    "kept_at",
    "markdown",
    "validation_text",
    "verify",
    "write_certificate",
]
