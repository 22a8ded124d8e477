"""What is recorded of a run and its exports: entries, from "part | file | what" to a value that JSON holds.

A part is "fresh" (the files of a run of two steps), "answers" (what the run answers in Python), or an export: a format,
with the precision behind a hyphen if it is not float32. How `compare` treats a value is told by the first word of the
key's last part: "answer" is a ranking, a list of [answer, number], the best first; "answers" is a list of rankings;
"vector" is a list of numbers, and "nats" one number. All other values must be equal.
"""

import json
from collections.abc import Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import keras_transformer
from export.__main__ import FORMATS
from export.artefacts import NO_SUCH_PRECISION, PRECISIONS, TrainedRun, artefacts_in, open_run, stem
from export.certificate.contents import contents_of
from export.certificate.runtimes import nothing_yet
from export.exporting import write_artefacts
from keras_transformer.models import model_config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.images.pipeline import Recognizer
from keras_transformer.tasks.language_modelling.pipeline import Generator
from keras_transformer.tasks.next_item.pipeline import Recommender
from keras_transformer.tasks.translation.pipeline import Translator
from keras_transformer.text.sentences import padded
from tests.golden.cases import IN_SAVED_MODEL, VARIANTS, task_of
from tests.golden.onnx_file import described, outputs_of, run_text, session_of
from tests.golden.stored import Entries, trained

Found = Iterator[tuple[str, Any]]
# What transformers runs is compared with transformers, in tests/export/test_hub.py.
EXPORTS = [
    stem(format, one)
    for format in FORMATS
    for one in PRECISIONS
    if format != "huggingface" and (format, one) not in NO_SUCH_PRECISION
]
SEARCHES: list[dict[str, Any]] = [
    {"num_beams": 1, "length_penalty": 0.0, "max_length": 16},
    {"num_beams": 4, "n_best": 4, "max_length": 16},
    {"num_beams": 3, "length_penalty": 1.5, "max_length": 4},
    {"sampling": True, "n_best": 2, "seed": 5, "max_length": 8},
]
START, END = 2, 3
# The names under which artefacts give answers, and those of the numbers beside them.
RANKED = {
    "target_ids": "score", "translation": "score", "translations": "scores", "added_ids": "score",
    "continuation": "score", "continuations": "scores", "item_ids": "probabilities", "items": "probabilities",
}  # fmt: skip


def parts_of(name: str) -> list[str]:
    """The parts of a case that its stored run gives: all but "fresh"; of a variant one export in float32."""
    if name in VARIANTS:
        return ["answers", "onnx", *["saved_model"] * (name in IN_SAVED_MODEL)]
    return ["answers", *(part for part in EXPORTS if name == "translation" or "ctranslate2" not in part)]


def searches_of(name: str) -> list[dict[str, Any]]:
    """The searches that a case is asked for: of variants greedy search and beams alone."""
    return SEARCHES[:2] if name in VARIANTS else SEARCHES


def recorded(name: str, run: Path, part: str, folder: Path) -> Entries:
    """The entries of a part of a case, made anew from its run; `folder` is for the export."""
    opened = open_run(run)
    questions = questions_of(name, opened.pipeline, run)
    if part == "answers":
        found = answers(opened.pipeline, questions, searches_of(name))
    else:
        format, _, precision = part.partition("-")
        decoding = opened.decoding(**task_of(name).search)
        write_artefacts(opened, folder, decoding, [(format, precision or "float32")])
        found = exported(opened, folder, format, questions)
    return {f"{part} | {key}": value for key, value in found}


def questions_of(name: str, pipeline: Any, run: Path) -> list[Any]:
    """What the case is asked: the validation images, or its questions (of variants six) and the validation sources."""
    if isinstance(pipeline, Recognizer):
        return list(np.load(run / "validation.npz")["images"])
    questions, path = task_of(name).questions, run / "validation.source"
    if name in VARIANTS:
        return questions[:6]
    return [*questions, *(path.read_text(encoding="utf-8").splitlines() if path.is_file() else [])]


def fresh_entries(name: str, folder: Path) -> Entries:
    """A new run's files and its configuration: of weights, versions and the corpus the keys alone count."""
    run = trained(name, folder, "--steps", "2", "--checkpoint-every", "1")
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


def numbered(what: str, values: Iterable[Any]) -> Found:
    """An entry for each value."""
    yield from ((f"{what} {place}", value) for place, value in enumerate(values))


def vectors(what: str, rows: Any) -> Found:
    """An entry for each row of numbers."""
    yield from numbered(f"{what} | vector", ([*map(number, row)] for row in rows))


def answers(pipeline: Any, questions: list[Any], searches: list[dict[str, Any]]) -> Found:
    """What a run answers in Python."""
    if isinstance(pipeline, Translator | Generator):
        yield from searched(pipeline, questions, searches)
        return
    asked = np.stack(questions) if isinstance(pipeline, Recognizer) else questions
    yield from vectors("questions", pipeline.embed(asked))
    if isinstance(pipeline, Recommender):
        yield "ranks", pipeline.ranks([one for one in questions if one]).tolist()
        yield from vectors("item vectors", pipeline.item_vectors())
        yield from numbered("items | answer", map(ranking, pipeline.recommend(questions, 20, False)))
        yield from numbered("new items | answer", map(ranking, pipeline.recommend(questions, 20, True)))
    elif pipeline.labels:
        rows = pipeline.probabilities(asked)
        yield from numbered("labels | answer", (by_label(pipeline.labels, row) for row in rows))
    else:
        fills = pipeline.fill(questions, num_best=1)
        yield from numbered("fills | answers", ([*map(ranking, some)] for some in fills))


def searched(pipeline: Translator | Generator, questions: list[str], searches: list[dict[str, Any]]) -> Found:
    """What a translator or a language model answers by searches, and its scores of given texts."""
    for search in searches:
        what, options = ", ".join(f"{key}={value}" for key, value in search.items()), dict(search)
        lists: Iterable[Any]
        if isinstance(pipeline, Translator):
            lists = pipeline.n_best(questions, **options)
        else:
            answer: Any = pipeline.generate if "sampling" in search else pipeline.search
            most = options.pop("max_length")
            lists = answer(questions, options=SearchOptions(**options), max_tokens=most)
        for place, hypotheses in enumerate(lists):
            yield f"{what} | answer {place}", ranking(([one.text, [*one.ids]], one.score) for one in hypotheses)
    if isinstance(pipeline, Translator):
        yield "long=split", pipeline.translate(questions, num_beams=1, long="split")
        prefixes = [line[:2] for line in questions]
        found = pipeline.n_best(questions, prefixes, num_beams=1, max_length=16, alignments=True)
        for place, [one] in enumerate(found):
            aligned = [one.text, [*map(list, one.alignment)]]
            yield f"prefixes, alignments | answer {place}", ranking([(aligned, one.score)])
    yield "score | vector", [*map(number, nats_of(pipeline, questions, [line[:12] for line in questions]))]


def nats_of(pipeline: Translator | Generator, questions: list[str], texts: list[str]) -> list[float]:
    """What a token of a text costs behind each question, by the model in float32."""
    if isinstance(pipeline, Translator):
        scores = pipeline.score(questions, texts)
    elif pipeline.answer_length is None:
        scores = [pipeline.score(f"{one}{other}") for one, other in zip(questions, texts, strict=True)]
    else:
        scores = pipeline.score_answers(questions, texts)
    return [-one.log_prob / one.num_tokens for one in scores]


def exported(run: TrainedRun, folder: Path, format: str, questions: list[Any]) -> Found:
    """What an export of a run in one format and precision is, and what its artefacts answer: see `README.md`."""
    yield "files", files_in(folder)
    for artefact in artefacts_in(folder):
        contents = contents_of(artefact)
        yield f"{artefact.name_in(folder)} | operators", contents.custom_operators
    for path in sorted(folder.glob("*/**/metadata.json")):
        yield from metadata(run, "metadata.json", json.loads(path.read_text(encoding="utf-8")))
    read = {"saved_model": saved_model, "onnx": onnx, "tflite": tflite, "ctranslate2": ctranslate2}[format]
    yield from read(run, folder, questions)


def metadata(run: TrainedRun, file: str, found: Mapping[str, Any]) -> Found:
    """The metadata of a file, an entry for each key; what names the producer, whatever the version is."""
    for key, value in found.items():
        if key == "model" and json.loads(value) == json.loads(json.dumps(model_config(run.model))):
            value = "the run's"
        value = json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value
        for name, one in flat(key, value):
            text = one.replace(keras_transformer.__version__, "VERSION") if isinstance(one, str) else one
            yield f"{file} | metadata {name}", text


def batch_of(run: TrainedRun, questions: list[Any], as_text: bool) -> np.ndarray:
    """Questions as artefacts take them: texts (B,), images (B, S, S, channels), or ids (B, S) with pad behind them."""
    pipeline = run.pipeline
    if isinstance(pipeline, Recognizer):
        return np.stack(questions)
    if as_text:
        return np.array(questions, object)
    if isinstance(pipeline, Translator):
        lines = [line if line.strip() else "" for line in questions]
        return padded([[*ids, END] for ids in pipeline.source_tokenizer.encode(lines)])
    if isinstance(pipeline, Recommender):
        return padded([[START, *pipeline.items.encode(history)] for history in questions])
    reads: Any = pipeline
    return padded([*map(reads.ids_of_prompt if isinstance(pipeline, Generator) else reads.ids, questions)])


def given(run: TrainedRun, file: str, batch: np.ndarray, outputs: Mapping[str, Any], questions: list[Any]) -> Found:
    """What an artefact gave for a batch of questions."""
    lists = {name: np.asarray(rows).tolist() for name, rows in outputs.items()}
    found: dict[str, list[Any]] = json.loads(json.dumps(lists, default=bytes.decode))
    yield from vectors(file, found.get("vector", []))
    answers: dict[str, list[Any]] = {}
    for place in range(len(batch)):
        row = {name: rows[place] for name, rows in found.items()}
        if "piece_ids" in row:
            length = np.count_nonzero(batch[place])
            places = zip(row["piece_ids"][:length], row["probabilities"][:length], strict=True)
            yield f"{file} | answers {place}", [ranking(zip(*one, strict=True)) for one in places]
        elif names := RANKED.keys() & row.keys():
            for name in sorted(names):
                texts, numbers = row[name], row[RANKED[name]]
                if RANKED[name] == "score":
                    texts, numbers = [np.trim_zeros(texts, "b") if isinstance(texts, list) else texts], [numbers]
                    answers.setdefault(name, []).extend(texts)
                yield f"{file} {name} | answer {place}", ranking(zip(texts, numbers, strict=True))
            if "alignment" in row and "-" not in file:  # in low precision the certificate judges them
                yield f"{file} | alignment {place}", row["alignment"][: np.count_nonzero(row["target_ids"])]
        elif "probabilities" in row:
            yield f"{file} | answer {place}", (labels := by_label([*run.pipeline.names], row["probabilities"]))
            assert row.get("label", labels[0][0]) == labels[0][0]
    best = answers[max(answers)] if answers else []  # a translation before its ids
    if best and isinstance(best[0], list):
        pipeline: Any = run.pipeline
        is_translator = isinstance(pipeline, Translator)
        best = pipeline.target_tokenizer.decode(best) if is_translator else [*map(pipeline.text_of, best)]
    yield from nats(run, file, questions, best)


def nats(run: TrainedRun, file: str, questions: list[Any], texts: list[str]) -> Found:
    """Of float16 and int8: what a token of the texts costs, by the model in float32."""
    if texts and "-" in file:
        yield f"{file} | nats a token", number(np.mean(nats_of(run.pipeline, questions, texts)))  # type: ignore[arg-type]


def saved_model(run: TrainedRun, folder: Path, questions: list[Any]) -> Found:
    """A SavedModel, by TensorFlow."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401

    (path,) = folder.glob("saved_model*")
    loaded = tf.saved_model.load(str(path))
    for name, signature in sorted(loaded.signatures.items()):
        file, inputs = f"{path.name} {name}", signature.structured_input_signature[1]
        for side, specs in {"input": inputs, "output": signature.structured_outputs}.items():
            for key, spec in sorted(specs.items()):
                yield f"{file} | {side} {key}", f"{spec.dtype.name} {spec.shape.as_list()}"
        ((key, spec),) = inputs.items()
        batch = batch_of(run, questions, spec.dtype == tf.string)
        outputs = signature(**{key: tf.constant(batch)})
        yield from given(run, file, batch, {key: value.numpy() for key, value in outputs.items()}, questions)


def onnx(run: TrainedRun, folder: Path, questions: list[Any]) -> Found:
    """ONNX files, by ONNX Runtime."""
    sessions: dict[str, Any] = {}
    for path in sorted(folder.glob("onnx/*.onnx")):
        file, batch = path.name, batch_of(run, questions, "_text" in path.stem)
        outputs: Mapping[str, Any] | None = None
        if "_text" in path.stem:
            about, outputs = run_text(path, questions)
        else:
            sessions[file] = session = session_of(path)
            about = described(session)
            if not file.startswith(("encoder", "step")):
                outputs = outputs_of(session, {session.get_inputs()[0].name: batch})
        yield from metadata(run, file, about.pop("metadata"))
        yield from ((f"{file} | {key}", value) for key, value in about.items())
        if outputs is not None:
            yield from given(run, file, batch, outputs, questions)
        elif file.startswith("step"):
            yield from stepped(file, batch[:3], sessions.get(file.replace("step", "encoder")), session)


def stepped(file: str, batch: np.ndarray, encoder: Any, step: Any) -> Found:
    """Log-probabilities after the first two tokens, by the halves of a translator or the step of a language model."""
    feeds = outputs_of(encoder, {"source_ids": batch}) if encoder else {}
    if encoder:
        yield f"{file} | limit", feeds.pop("limit").tolist()
    for info in step.get_inputs():
        if info.name.startswith("past_"):
            feeds[info.name] = nothing_yet(info, len(batch))
    for index, token in enumerate((START, 5)):
        tokens = np.full((len(batch), 1), token, "int32")
        outputs = outputs_of(step, {**feeds, "token_ids": tokens, "index": np.array(index, "int32")})
        logits = outputs.pop("logits")[:, 0]
        outputs.pop("alignment", None)
        feeds |= {name.replace("present", "past"): value for name, value in outputs.items()}
        logits = logits - logits.max(axis=1, keepdims=True)
        yield from vectors(f"{file} index {index}", logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def tflite(run: TrainedRun, folder: Path, questions: list[Any]) -> Found:
    """TFLite files, by LiteRT."""
    from ai_edge_litert import interpreter as litert
    from tensorflow_text.core.pybinds import tflite_registrar

    of_text = partial(litert.InterpreterWithCustomOps, custom_op_registerers=tflite_registrar.SELECT_TFTEXT_OPS)
    for path in sorted(folder.glob("tflite/*.tflite")):
        make = of_text if "_text" in path.stem else litert.Interpreter
        interpreter = make(model_path=str(path), num_threads=1)
        for signature in interpreter.get_signature_list():
            file, runner = f"{path.name} {signature}", interpreter.get_signature_runner(signature)
            for side, infos in {"input": runner.get_input_details(), "output": runner.get_output_details()}.items():
                for key, info in sorted(infos.items()):
                    shape = info["shape_signature"].tolist()
                    yield f"{file} | {side} {key}", f"{np.dtype(info['dtype']).name} {shape}"
            (key,) = runner.get_input_details()
            batch = batch_of(run, questions, "_text" in path.stem)
            yield from given(run, file, batch, runner(**{key: batch}), questions)


def ctranslate2(run: TrainedRun, folder: Path, questions: list[Any]) -> Found:
    """A translator of pieces, by CTranslate2."""
    import ctranslate2 as library

    (path,) = folder.glob("ctranslate2*")
    search = json.loads((path / "metadata.json").read_text(encoding="utf-8"))["search"]
    translator = library.Translator(str(path), device="cpu", inter_threads=1, intra_threads=1)
    source, best = run.tokenizers[0], []
    for place, line in enumerate(questions):
        pieces = source.pieces(source.encode([line])[0])[: search["max_source_length"]]
        limit = min(len(pieces) + search["extra_length"], search["max_length"])
        [found] = translator.translate_batch([pieces], max_decoding_length=limit, **search["options"])
        yield f"{path.name} | answer {place}", ranking(zip(map(" ".join, found.hypotheses), found.scores, strict=True))
        best.append("".join(piece for piece in found.hypotheses[0] if piece != "</s>").replace("▁", " ").strip())
    yield from nats(run, path.name, questions, best)
