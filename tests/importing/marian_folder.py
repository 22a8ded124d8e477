"""A tiny Marian model in Hugging Face's format, for tests that import one."""

from __future__ import annotations

from functools import partial

from tests.importing.theirs import write

write_marian = partial(write, "marian")
