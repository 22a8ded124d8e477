"""Compares what encoders give: labels, pieces or items with their probabilities, and vectors."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from keras_transformer.checking.certificate_texts import Texts, valid
from keras_transformer.checking.signatures import NUM_FILLS, NUM_ITEMS, Ranking, ReferenceOutputs, Signature
from keras_transformer.decoding.pipelines import Pipeline
from keras_transformer.spec.options import Config
from keras_transformer.text.tokenizer import Tokenizer

from ..artefacts import Artefact, BrokenArtefact
from .expected import Compared, Expected, Input, Row


class ExpectedArrays(Expected):
    """What an encoder gives.

    Args:
        signature, texts: as for `Expected`.
        seen: what the model gives for each text.
        inputs: what an artefact of ids is given for each text.
        names: the names of labels, or of items; empty for masked tokens.
        first: the id of the first item.
        tokenizer: the tokenizer of texts.
        context: the most ids that the model reads; 0 if it reads none.
    """

    unit = "probability"

    def __init__(
        self,
        signature: type[Signature],
        texts: Texts,
        seen: Sequence[ReferenceOutputs],
        inputs: Sequence[Input],
        names: Sequence[str] = (),
        first: int = 0,
        tokenizer: Tokenizer | None = None,
        context: int = 0,
    ):
        super().__init__(signature, texts)
        self.seen, self.given, self.names, self.first, self.tokenizer = seen, inputs, names, first, tokenizer
        self.tokenizers, self.context = [tokenizer] if tokenizer else [], context

    def inputs(self, artefact: Artefact) -> list[Input]:
        if self.tokenizer is None or artefact.interface != "text":
            return list(self.given)
        return [text if artefact.takes_bytes else valid(text) for text in self.texts]

    def pieces(self, place: int) -> list[int] | None:
        return None if self.tokenizer is None else self.tokenizer.encode([valid(self.texts[place])])[0]

    def sizes(self) -> dict[str, int]:
        num_names, fills = len(self.names), min(NUM_FILLS, len(self.seen[0].rankings[0].probabilities))
        listed = {"C": num_names, "I": min(NUM_ITEMS, num_names), "F": fills}
        return {"D": len(self.seen[0].vector), "S": self.context, **listed}

    def answer(self, place: int) -> str:
        return self._named(ranking.best for ranking in self.seen[place].rankings)

    def score(self, place: int) -> float:
        return max(ranking.probabilities[ranking.best] for ranking in self.seen[place].rankings)

    def source(self, place: int) -> str:
        text = self.texts[place]
        if isinstance(text, str):
            return valid(text)
        return ", ".join(text) if isinstance(text, list) else f"image {place + 1}"

    def stored(self, places: Sequence[int]) -> list[Config]:
        return [
            {
                "text": None if isinstance(self.texts[place], np.ndarray) else self.texts[place],
                "ids": [] if isinstance(self.texts[place], np.ndarray) else self.given[place],
                "rankings": [
                    {"choices": [*one.probabilities.items()], "others": one.others}
                    for one in map(Ranking.shortened, self.seen[place].rankings)
                ],
                "vector": [float(f"{number:.7g}") for number in self.seen[place].vector],
            }
            for place in places
        ]

    def compare(self, places: Sequence[int], rows: Sequence[Row]) -> list[Compared]:
        return [self._compared(place, row) for place, row in zip(places, rows, strict=True)]

    def _compared(self, place: int, row: Row) -> Compared:
        seen, name = self.seen[place], self.texts.name(place)
        listed = self._listed(row, len(seen.rankings), name)
        errors, regrets = [0.0], [0.0]
        for ranking, (choices, probabilities) in zip(seen.rankings, listed, strict=False):
            own = [*ranking.probabilities.values()][: len(choices)]
            # By choice, and by rank: neither other choices nor another order go unseen.
            errors += [ranking.gap(*one) for one in zip(choices, probabilities, strict=True)]
            errors += np.abs(np.subtract(own, probabilities[: len(own)])).tolist()
            regrets.append(ranking.loss(choices[0]))
        best = [choices[0] for choices, _ in listed]
        if "label" in row:
            [(labels, probabilities)] = listed
            if row["label"] not in labels or probabilities[labels.index(row["label"])] < probabilities[0]:
                raise BrokenArtefact(
                    f"{name}: its label {row['label']!r} is not the likeliest by its own probabilities"
                )
        if "items" in row and [*row["items"]] != (items := [self._item(id, name) for id in row["item_ids"]]):
            raise BrokenArtefact(f"{name}: its items are named {row['items'][:3]}, and their ids are of {items[:3]}")
        return Compared(
            place=place,
            answer=self._named(best),
            is_same=best == [ranking.best for ranking in seen.rankings][: len(best)],
            score_error=max(errors),
            regret=max(regrets),
            vector=distance(row["vector"], seen.vector),
        )

    def _listed(self, row: Row, num_places: int, name: str) -> list[tuple[Sequence[str | int], list[float]]]:
        """The choices of an artefact and their probabilities, the likeliest first; for each place if there are many."""
        if "probabilities" not in row:
            return []
        probabilities = row["probabilities"]
        if "piece_ids" in row:
            size = self.tokenizer.vocabulary_size if self.tokenizer else 0
            pairs = list(zip(row["piece_ids"], probabilities, strict=False))[:num_places]
            if len(pairs) < num_places:
                raise BrokenArtefact(f"{name}: it gave pieces at {len(pairs)} places of {num_places}")
            if strange := [id for ids, _ in pairs for id in ids if not 0 <= id < size]:
                raise BrokenArtefact(f"{name}: it gave the id {strange[0]}, which the vocabulary lacks")
            return pairs
        if "item_ids" in row:
            return [([self._item(id, name) for id in row["item_ids"]], probabilities)]
        order = np.argsort(-np.array(probabilities), kind="stable")
        return [([self.names[place] for place in order], [probabilities[place] for place in order])]

    def _item(self, id: int, name: str) -> str:
        if not 0 <= id - self.first < len(self.names):
            raise BrokenArtefact(f"{name}: it gave the id {id}, which is no item")
        return self.names[id - self.first]

    def _named(self, choices: Iterable[Any]) -> str:
        choices = list(choices)
        if choices and not isinstance(choices[0], str) and self.tokenizer:
            choices = self.tokenizer.pieces(choices)
        return " ".join(choices)


def distance(one: Sequence[float], other: np.ndarray) -> float:
    """The length of the difference of two vectors, in lengths of the second."""
    return float(np.linalg.norm(np.subtract(one, other)) / max(float(np.linalg.norm(other)), 1e-9))


def expected_arrays(signature: type[Signature], pipeline: Pipeline, texts: Texts) -> ExpectedArrays:
    """What a model gives that does not search."""
    first, context = (getattr(pipeline.model, name, 0) for name in ("num_control_ids", "context_length"))
    seen, inputs = signature.reference_outputs(pipeline, texts), signature.inputs(pipeline, texts)
    tokenizer = next(iter(pipeline.tokenizers), None)
    return ExpectedArrays(signature, texts, seen, inputs, pipeline.names, first, tokenizer, context)


def restored(stored: Sequence[Config], texts: Sequence[Input]) -> tuple[list[ReferenceOutputs], list[Input]]:
    """Reads what `ExpectedArrays.stored` gave for texts: what the model gave, and what an artefact of ids is given."""
    seen = [
        ReferenceOutputs(
            [
                Ranking({choice: float(number) for choice, number in each["choices"]}, float(each["others"]))
                for each in one["rankings"]
            ],
            np.array(one["vector"], "float32"),
        )
        for one in stored
    ]
    return seen, [
        text.tolist() if isinstance(text, np.ndarray) else one["ids"] for text, one in zip(texts, stored, strict=True)
    ]
