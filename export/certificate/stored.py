"""What a certificate keeps of a model: the answers to its probes, by which a folder is certified without the model."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from keras_transformer.errors import RequestError
from keras_transformer.run_folder import RunFolder, read_tokenizers
from keras_transformer.text.items import Items

from ..forms import Form, Labelling, Recognition, Recommending, Searching, form_called
from ..probes import Texts, image_probes
from ..signatures import Decoding
from .arrays import stored_arrays
from .expected import Expected
from .searches import ExpectedSearch, Ids, Known, Vocabularies

NUM_STORED = 8  # of the texts that are no probes
UNREADABLE = (OSError, ValueError, TypeError, KeyError, IndexError, AttributeError, RecursionError)


def stored(expected: Sequence[Expected]) -> dict[str, Any]:
    """What certificate.json keeps: of each search what the model gave for the probes and for some texts."""
    texts = expected[0].texts
    is_image = expected[0].form is Recognition  # its probes are made again
    last = texts.first_given + (0 if is_image else min(NUM_STORED, len(texts) - texts.first_given))
    places = range(texts.num_long, last)
    return {
        "num_probes": texts.num_probes,
        "searches": [{"decoding": asdict(one.decoding), "texts": one.stored(places)} for one in expected],
    }


def float_of(name: str) -> float:
    """Raises ValueError: no number of a certificate is NaN or infinite."""
    raise ValueError(f"expected numbers; received {name}")


class StoredSearch(ExpectedSearch):
    """What a certificate keeps of a model that searches, where the model is not there.

    Args:
        form, vocabularies, decoding: as for `ExpectedSearch`.
        num_probes: how many of the texts are probes.
        stored: what `ExpectedSearch.stored` gave.
        config: of the model.
    """

    has_model = False

    def __init__(
        self,
        form: type[Form],
        vocabularies: Vocabularies,
        decoding: Decoding,
        num_probes: int,
        stored: Sequence[dict[str, Any]],
        config: dict[str, Any],
    ):
        self._stored, self._limits = stored, [int(one["limit"]) for one in stored]
        self.num_control_ids, self.context = config["num_control_ids"], config.get("context_length", 0)
        given = [one["text"] for one in stored]
        hypotheses = [
            [Known(tuple(each["ids"]), each["text"], each["score"]) for each in one["hypotheses"]] for one in stored
        ]
        if not all(hypotheses):
            raise ValueError("expected hypotheses of each text")
        texts = Texts([], given[:num_probes], given[num_probes:])
        super().__init__(form, texts, vocabularies, decoding, hypotheses)

    def ids(self, place: int) -> list[int]:
        return self._stored[place]["ids"]

    def read(self, place: int) -> list[int]:
        return self._stored[place]["read"]

    def limit(self, place: int) -> int:
        return self._limits[place]

    def log_probs(self, places: Sequence[int], rows: Sequence[Ids]) -> list[float]:
        return [math.nan] * len(rows)


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
            self.form = form_called(self.content["kind"], "labels" in self.about, "answer_length" in self.about)
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
        form, texts = self.form, kept["texts"]
        folder = RunFolder(self.folder)
        if form is Recognition:
            size = self.config["image_size"]
            images = image_probes((size, size, self.config["channels"]))
            return stored_arrays(form, images, num_probes, texts, self._labels(), 0, None)
        given = [one["text"] for one in texts]
        if form is Recommending:
            names = Items.load(folder.items).names
            return stored_arrays(form, given, num_probes, texts, names, self.config["num_control_ids"], None)
        sizes = self.config.get("source_vocabulary_size"), self.config["vocabulary_size"]
        source, target = read_tokenizers(folder, *sizes)
        if issubclass(form, Searching):
            vocabularies = Vocabularies(form, source, target)
            return StoredSearch(form, vocabularies, Decoding(**kept["decoding"]), num_probes, texts, self.config)
        labels = self._labels() if form is Labelling else []
        return stored_arrays(form, given, num_probes, texts, labels, 0, source)

    def _labels(self) -> list[str]:
        return json.loads(self.about["labels"])

    def _damaged(self, error: Exception) -> RequestError:
        return RequestError(f"{self.path} is damaged: {type(error).__name__} {str(error)[:150]}; export again")
