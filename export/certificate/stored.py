"""What a certificate keeps of a model: the answers to its probes, by which a folder is certified without the model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.decoding.answers import Ids, Known, Searched, Vocabularies
from keras_transformer.decoding.options import Decoding
from keras_transformer.decoding.signature import Searching
from keras_transformer.decoding.texts import Texts, valid
from keras_transformer.errors import RequestError
from keras_transformer.run_folder import RunFolder, read_tokenizers
from keras_transformer.tasks import TASKS, task_named
from keras_transformer.text.tokenizer import Tokenizer

from .arrays import stored_arrays
from .expected import Expected
from .searches import ExpectedSearch

NUM_STORED = 8  # of the texts that are no probes
UNREADABLE = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


def stored(expected: Sequence[Expected]) -> dict[str, Any]:
    """What certificate.json keeps: of each search what the model gave for the probes and for some texts."""
    texts = expected[0].texts
    # What is no text, such as images, is not kept: its probes are made again.
    num_kept = 0 if isinstance(texts[0], np.ndarray) else min(NUM_STORED, len(texts) - texts.first_given)
    last = texts.first_given + num_kept
    places = range(texts.num_long, last)
    return {
        "num_probes": texts.num_probes,
        "searches": [{"decoding": asdict(one.decoding), "texts": one.stored(places)} for one in expected],
    }


def float_of(name: str) -> float:
    """Raises ValueError: no number of a certificate is NaN or infinite."""
    raise ValueError(f"expected numbers; received {name}")


class StoredSearch(Searched):
    """What a certificate keeps of a model that searches, where the model is not there.

    Args:
        vocabularies: of the model.
        stored: what `ExpectedSearch.stored` gave.
        config: of the model.
    """

    has_model = False

    def __init__(self, vocabularies: Vocabularies, stored: Sequence[dict[str, Any]], config: dict[str, Any]):
        self.vocabularies, self._stored = vocabularies, stored
        self._limits = [int(one["limit"]) for one in stored]
        self.num_control_ids, self.context = config["num_control_ids"], config.get("context_length", 0)

    def hypotheses(self) -> list[list[Known]]:
        found = [
            [Known(tuple(each["ids"]), each["text"], each["score"]) for each in one["hypotheses"]]
            for one in self._stored
        ]
        if not all(found):
            raise ValueError("expected hypotheses of each text")
        return found

    def pieces(self, place: int) -> list[int]:
        return self.vocabularies.read(valid(self._stored[place]["text"]))

    def given(self, place: int) -> list[int]:
        return self._stored[place]["ids"]

    def read(self, place: int) -> list[int]:
        return self._stored[place]["read"]

    def limit(self, place: int) -> int:
        return self._limits[place]

    def log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        return [math.nan] * len(rows)

    def begun(self, place: int) -> None:
        return None


class KeptCertificate:
    """The certificate of an export folder, and what it keeps of the model.

    Args:
        folder: an export folder, perhaps a stranger's.

    Raises:
        RequestError: it has no certificate, or a damaged one.
    """

    def __init__(self, folder: Path):
        self.folder, self.path = folder, folder / "certificate.json"
        if not self.path.is_file():
            raise RequestError(f"expected an export; {folder} has no certificate.json: export again")
        try:
            self.content = json.loads(self.path.read_text(encoding="utf-8"), parse_constant=float_of)
            self.about: dict[str, str] = self.content["run"]
            self.names = [str(entry["name"]) for entry in self.content["entries"]]
            self.config = json.loads(self.about["model"])
            self.decoding = Decoding(**json.loads(self.about.get("decoding", "{}")))
            task = task_named(self.about.get("task"), self.content["kind"], self.about)
            self.signature = TASKS[task].signature(self.about)
        except RequestError:
            raise
        except UNREADABLE as error:
            raise self._damaged(error) from None

    def expected(self) -> dict[Decoding, Expected]:
        """What the model gave for the texts that the certificate keeps, by the search.

        Raises:
            RequestError: the certificate keeps none, or is damaged; or a vocabulary is missing.
        """
        if not self.content.get("stored"):
            raise RequestError(f"{self.path} keeps nothing of the model: give the run too, or export again")
        try:
            kept = self.content["stored"]
            found = {Decoding(**one["decoding"]): self._restored(kept["num_probes"], one) for one in kept["searches"]}
            if not found or not all(len(one.texts) for one in found.values()):
                raise ValueError("it keeps no answers")
            return found
        except RequestError:
            raise
        except UNREADABLE as error:
            raise self._damaged(error) from None

    def _restored(self, num_probes: int, kept: dict[str, Any]) -> Expected:
        signature, stored, folder = self.signature, kept["texts"], RunFolder(self.folder)
        given = signature.stored_texts(stored, self.config)
        tokenizers: tuple[Tokenizer, ...] = ()
        if signature.text_stem:
            sizes = self.config.get("source_vocabulary_size"), self.config["vocabulary_size"]
            tokenizers = read_tokenizers(folder, *sizes)
        if issubclass(signature, Searching):
            model = StoredSearch(Vocabularies(signature, *tokenizers), stored, self.config)
            texts = Texts([], given[:num_probes], given[num_probes:])
            return ExpectedSearch(signature, texts, model, Decoding(**kept["decoding"]))
        names, first = signature.names_in(folder, self.about), self.config.get("num_control_ids", 0)
        return stored_arrays(signature, given, num_probes, stored, names, first, next(iter(tokenizers), None))

    def _damaged(self, error: Exception) -> RequestError:
        return RequestError(f"{self.path} is damaged: {type(error).__name__} {str(error)[:150]}; export again")
