"""The certificate: runs every artefact in a process of its own and compares it with the model, sentence by sentence."""

from ..artefacts import Artefact, artefacts_in
from .comparison import certify, check_text, validation_text, verify, with_missing
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
    "markdown",
    "validation_text",
    "verify",
    "with_missing",
    "write_certificate",
]
