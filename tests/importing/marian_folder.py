"""A tiny Marian model in Hugging Face's format, for tests of what becomes of an imported model."""

from pathlib import Path

from tests.importing.theirs import tensors_of, write


def write_marian(folder: Path) -> Path:
    """Writes the stored model with larger embeddings, so that int8 changes few of its translations."""
    tensors = tensors_of(write("marian", folder))
    tensors["model.shared.weight"] *= 2
    tensors["final_logits_bias"][0, 0] = 0  # of the end
    return write("marian", folder, tensors)
