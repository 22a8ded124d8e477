"""What is recorded of a run: entries, from "part | file | what" to a value that JSON holds.

A part is "fresh" (the files of a run of two steps), "answers" (what the run answers in Python), or an export: a format,
with the precision behind a hyphen if it is not float32. How `compare` treats a value is told by the first word of the
key's last part: "answer" is a ranking, a list of [answer, number], the best first; "answers" is a list of rankings;
"vector" is a list of numbers, and "nats" one number. All other values must be equal.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import keras_transformer
from export.__main__ import write_artefacts
from export.signatures import open_run
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.decoding.recommender import Recommender
from keras_transformer.decoding.translator import Translator
from tests.golden.cases import CASES, TASKS

Entries = dict[str, Any]
Found = Iterator[tuple[str, Any]]
EXPORTS = [
    "saved_model", "saved_model-float16", "onnx", "onnx-float16", "onnx-int8", "tflite", "tflite-float16",
    "tflite-int8", "ctranslate2", "ctranslate2-float16", "ctranslate2-int8",
]  # fmt: skip
SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 1, "length_penalty": 0.0, "max_length": 16},
    {"num_beams": 4, "n_best": 4, "max_length": 16},
    {"num_beams": 3, "length_penalty": 1.5, "max_length": 4},
    {"sampling": True, "n_best": 2, "seed": 5, "max_length": 8},
]


def parts_of(name: str) -> list[str]:
    """The parts of a case that its stored run gives: all but "fresh"; of a variant one export in float32."""
    case = CASES[name]
    if case.flags:
        return ["answers", case.format]
    is_translation = case.task == "translation"
    return ["answers", *(part for part in EXPORTS if is_translation or not part.startswith("ctranslate2"))]


def searches_of(name: str) -> list[dict[str, Any]]:
    """The searches that a case is asked for: of variants greedy search and beams alone."""
    return SEARCHES[:2] if CASES[name].flags else SEARCHES


def recorded(name: str, run: Path, part: str, folder: Path) -> Entries:
    """The entries of a part of a case, made anew from its run; `folder` is for the export."""
    from tests.golden.artefacts import exported

    trained = open_run(run)
    questions = questions_of(name, trained.pipeline, run)
    if part == "answers":
        found = answers(trained.pipeline, questions, searches_of(name))
    else:
        format, _, precision = part.partition("-")
        decoding = trained.decoding(**TASKS[CASES[name].task].search)
        write_artefacts(trained, folder, decoding, [(format, precision or "float32")])
        found = exported(trained, folder, format, questions)
    return {f"{part} | {key}": value for key, value in found}


def questions_of(name: str, pipeline: Any, run: Path) -> list[Any]:
    """What the case is asked: the validation images, or its questions (of variants six) and the validation sources."""
    if isinstance(pipeline, Recognizer):
        return list(np.load(run / "validation.npz")["images"])
    path = run / "validation.source"
    lines = path.read_text(encoding="utf-8").splitlines() if path.is_file() else []
    if CASES[name].flags:
        return TASKS[CASES[name].task].questions[:6]
    return [*TASKS[CASES[name].task].questions, *lines]


def fresh(run: Path) -> Entries:
    """The files of a run, and its configuration. Of weights, versions and the corpus the keys alone count."""
    entries: Entries = {"fresh | files": files_in(run)}
    for section, value in json.loads((run / "config.json").read_text(encoding="utf-8")).items():
        value = list(value) if section in ("weights", "versions", "corpus") else value
        entries |= {f"fresh | config.json | {key}": one for key, one in flat(section, value)}
    return entries


def files_in(folder: Path) -> list[str]:
    """The files of a folder. TensorBoard's have the machine and the time in their names."""
    paths = sorted(path.relative_to(folder) for path in folder.rglob("*") if path.is_file())
    return [(path.parent / "events" if "tfevents" in path.name else path).as_posix() for path in paths]


def flat(key: str, value: Any) -> Found:
    """(key, value) for each entry of a dictionary, and of those in it; of any other value this value alone."""
    if isinstance(value, dict) and value:
        for name, one in value.items():
            yield from flat(f"{key}.{name}", one)
    else:
        yield key, value


def number(value: Any) -> float:
    """A number with seven digits."""
    return float(f"{float(value):.7g}")


def ranking(pairs: Iterable[Any]) -> list[list[Any]]:
    """Answers and their numbers."""
    return [[answer, number(one)] for answer, one in pairs]


def by_label(labels: list[str], probabilities: Any) -> list[list[Any]]:
    """Labels and their probabilities, the likeliest first."""
    return ranking(sorted(zip(labels, probabilities, strict=True), key=lambda one: -one[1]))


def vectors(what: str, rows: Any) -> Found:
    """An entry for each row of numbers."""
    yield from ((f"{what} | vector {place}", [*map(number, row)]) for place, row in enumerate(rows))


def answers(pipeline: Any, questions: list[Any], searches: list[dict[str, Any]]) -> Found:
    """What a run answers in Python."""
    if isinstance(pipeline, Translator | Generator):
        yield from searched(pipeline, questions, searches)
        return
    asked = np.stack(questions) if isinstance(pipeline, Recognizer) else questions
    yield from vectors("questions", pipeline.embed(asked))
    if isinstance(pipeline, Recommender):
        for what, only_new in (("items", False), ("new items", True)):
            for place, found in enumerate(pipeline.recommend(questions, 20, only_new)):
                yield f"{what} | answer {place}", ranking(found)
        yield "ranks", pipeline.ranks([one for one in questions if one]).tolist()
        yield from vectors("item vectors", pipeline.item_vectors())
    elif pipeline.labels:
        for place, row in enumerate(pipeline.probabilities(asked)):
            yield f"labels | answer {place}", by_label(pipeline.labels, row)
    else:
        for place, fills in enumerate(pipeline.fill(questions, num_best=1)):
            yield f"fills | answers {place}", [ranking(best) for best in fills]


def searched(pipeline: Translator | Generator, questions: list[str], searches: list[dict[str, Any]]) -> Found:
    """What a translator or a language model answers by searches, and its scores of given texts."""
    for search in searches:
        what = ", ".join(f"{key}={value}" for key, value in search.items())
        for place, hypotheses in enumerate(hypotheses_of(pipeline, questions, dict(search))):
            rows = [([one.text, [*one.ids]], one.score) for one in hypotheses]
            yield f"{what} | answer {place}", ranking(rows)
    if isinstance(pipeline, Translator):
        yield "long=split", pipeline.translate(questions, num_beams=1, long="split")
        prefixes = [line[:2] for line in questions]
        found = pipeline.n_best(questions, prefixes, num_beams=1, max_length=16, alignments=True)
        for place, [one] in enumerate(found):
            yield (
                f"prefixes, alignments | answer {place}",
                ranking([([one.text, [*map(list, one.alignment)]], one.score)]),
            )
    yield "score | vector", [*map(number, nats_of(pipeline, questions, [line[:12] for line in questions]))]


def hypotheses_of(pipeline: Translator | Generator, questions: list[str], search: dict[str, Any]) -> list[Any]:
    """The hypotheses of each question, by one search."""
    if isinstance(pipeline, Translator):
        return pipeline.n_best(questions, **search)
    most = search.pop("max_length")
    answer = pipeline.generate if search.get("sampling") else pipeline.search
    return answer(questions, options=SearchOptions(**search), max_tokens=most)


def nats_of(pipeline: Translator | Generator, questions: list[str], texts: list[str]) -> list[float]:
    """What a token of a text costs behind each question, by the model in float32."""
    if isinstance(pipeline, Translator):
        scores = pipeline.score(questions, texts)
    elif pipeline.answer_length is None:
        scores = [pipeline.score(f"{one}{other}") for one, other in zip(questions, texts, strict=True)]
    else:
        scores = pipeline.score_answers(questions, texts)
    return [-one.log_prob / one.num_tokens for one in scores]


def without_version(text: str) -> str:
    """What names the producer, whatever the version is."""
    return text.replace(keras_transformer.__version__, "VERSION")
