"""What is recorded of an export: its files, what each takes and gives, its metadata, and what it answers."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from export.certificate import artefacts_in, contents_of
from export.signatures import TrainedRun
from keras_transformer.decoding.generator import Generator
from keras_transformer.decoding.recognizer import Recognizer
from keras_transformer.decoding.recommender import Recommender
from keras_transformer.decoding.translator import Translator
from keras_transformer.models import model_config
from tests.golden.onnx_file import described, outputs_of, run_text, session_of
from tests.golden.record import Found, by_label, files_in, flat, nats_of, number, ranking, vectors, without_version

START, END = 2, 3
# The names under which artefacts give answers, and those of the numbers beside them.
RANKED = {
    "target_ids": "score", "translation": "score", "translations": "scores", "added_ids": "score",
    "continuation": "score", "continuations": "scores", "item_ids": "probabilities", "items": "probabilities",
}  # fmt: skip


def exported(run: TrainedRun, folder: Path, format: str, questions: list[Any]) -> Found:
    """What an export of a run in one format and precision is, and what its artefacts answer."""
    yield "files", files_in(folder)
    for artefact in artefacts_in(folder):
        contents = contents_of(artefact)
        # TensorFlow's own change with the version of TensorFlow, and there are many.
        yield (
            f"{artefact.name_in(folder)} | operators",
            (contents.custom_operators if format == "saved_model" else [*contents.operators]),
        )
    for path in sorted(folder.glob("*/**/metadata.json")):
        yield from metadata(run, "metadata.json", json.loads(path.read_text(encoding="utf-8")))
    read = {"saved_model": saved_model, "onnx": onnx, "tflite": tflite, "ctranslate2": ctranslate2}[format]
    yield from read(run, folder, questions)


def metadata(run: TrainedRun, file: str, found: Mapping[str, Any]) -> Found:
    """The metadata of a file, an entry for each key."""
    for key, value in found.items():
        if key == "model" and json.loads(value) == json.loads(json.dumps(model_config(run.model))):
            value = "the run's"
        value = json.loads(value) if isinstance(value, str) and value[:1] in ("{", "[") else value
        for name, one in flat(key, value):
            yield f"{file} | metadata {name}", without_version(one) if isinstance(one, str) else one


def takes_text(name: str) -> bool:
    """Whether a file takes text."""
    return name.partition("-")[0].endswith("_text")


def batch_of(run: TrainedRun, questions: list[Any], as_text: bool) -> np.ndarray:
    """Questions as artefacts take them: texts (B,), images (B, S, S, channels), or ids (B, S) with pad behind them."""
    pipeline = run.pipeline
    if isinstance(pipeline, Recognizer):
        return np.stack(questions)
    if as_text:
        return np.array(questions, object)
    if isinstance(pipeline, Translator):
        lines = [line if line.strip() else "" for line in questions]
        rows = [[*ids, END] for ids in pipeline.source_tokenizer.encode(lines)]
    elif isinstance(pipeline, Recommender):
        rows = [[START, *pipeline.items.encode(history)] for history in questions]
    else:
        rows = [*map(pipeline.ids_of_prompt if isinstance(pipeline, Generator) else pipeline.ids, questions)]
    ids = np.zeros((len(rows), max(map(len, rows))), "int32")
    for row, some in zip(ids, rows, strict=True):
        row[: len(some)] = some
    return ids


def given(run: TrainedRun, file: str, batch: np.ndarray, outputs: Mapping[str, Any], questions: list[Any]) -> Found:
    """What an artefact gave for a batch of questions."""
    found = {name: plain(np.asarray(rows).tolist()) for name, rows in outputs.items()}
    yield from vectors(file, found.get("vector", []))
    best: list[Any] = []
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
                    best += texts
                yield f"{file} {name} | answer {place}", ranking(zip(texts, numbers, strict=True))
        elif "probabilities" in row:
            yield f"{file} | answer {place}", (labels := by_label(run.labels, row["probabilities"]))
            assert row.get("label", labels[0][0]) == labels[0][0]
    if best:
        yield from nats(run, file, questions, best if isinstance(best[0], str) else texts_of(run, best))


def plain(value: Any) -> Any:
    """A value with text in place of bytes."""
    if isinstance(value, list):
        return [*map(plain, value)]
    return value.decode("utf-8") if isinstance(value, bytes) else value


def texts_of(run: TrainedRun, rows: list[Any]) -> list[str]:
    """The texts of ids that a search gave."""
    if isinstance(run.pipeline, Translator):
        return run.pipeline.target_tokenizer.decode(rows)
    return [run.pipeline.text_of(row) for row in rows]  # type: ignore[union-attr]


def nats(run: TrainedRun, file: str, questions: list[Any], texts: list[str]) -> Found:
    """Of float16 and int8: what a token of the texts costs, by the model in float32."""
    if "-" in file:
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
        file, batch = path.name, batch_of(run, questions, takes_text(path.stem))
        outputs: Mapping[str, Any] | None = None
        if takes_text(path.stem):
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
            kind = "float16" if "float16" in info.type else "float32"
            feeds[info.name] = np.zeros((len(batch), info.shape[1], 0, info.shape[3]), kind)
    for index, token in enumerate((START, 5)):
        tokens = np.full((len(batch), 1), token, "int32")
        outputs = outputs_of(step, {**feeds, "token_ids": tokens, "index": np.array(index, "int32")})
        logits = outputs.pop("logits")[:, 0]
        feeds |= {name.replace("present", "past"): value for name, value in outputs.items()}
        logits = logits - logits.max(axis=1, keepdims=True)
        yield from vectors(f"{file} index {index}", logits - np.log(np.exp(logits).sum(axis=1, keepdims=True)))


def tflite(run: TrainedRun, folder: Path, questions: list[Any]) -> Found:
    """TFLite files, by LiteRT."""
    from ai_edge_litert import interpreter as litert
    from tensorflow_text.core.pybinds import tflite_registrar

    of_text = partial(litert.InterpreterWithCustomOps, custom_op_registerers=tflite_registrar.SELECT_TFTEXT_OPS)
    for path in sorted(folder.glob("tflite/*.tflite")):
        make = of_text if takes_text(path.stem) else litert.Interpreter
        interpreter = make(model_path=str(path), num_threads=1)
        for signature in interpreter.get_signature_list():
            file, runner = f"{path.name} {signature}", interpreter.get_signature_runner(signature)
            for side, infos in {"input": runner.get_input_details(), "output": runner.get_output_details()}.items():
                for key, info in sorted(infos.items()):
                    shape = info["shape_signature"].tolist()
                    yield f"{file} | {side} {key}", f"{np.dtype(info['dtype']).name} {shape}"
            (key,) = runner.get_input_details()
            batch = batch_of(run, questions, takes_text(path.stem))
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
