"""Models that do not search, in the server: the answers are those of their pipelines, in batches of many clients."""

import asyncio
import base64
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from keras_transformer.commands.graph_cache import Engine, open_model
from keras_transformer.core.errors import RequestError
from keras_transformer.decoding.pipelines import pipeline_of
from keras_transformer.runs.run_folder import config_of
from keras_transformer.serving.answering import AnswerEngine
from keras_transformer.serving.batching import Refusal, Scheduler
from tests.golden.stored import unpack

TEXTS = ["cat hen", "", "red gold blue red", "oak"]
MASKED = ["ba <mask> fi", "<mask> gu <mask>", "", "ka lo"]


class Batches:
    """Hears of the batches of a scheduler."""

    def __init__(self) -> None:
        self.sizes: list[int] = []

    def batch(self, model: str, num_items: int, num_tokens: int, waited: float | None, seconds: float) -> None:
        self.sizes.append(num_items)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[Scheduler]:
    scheduler = Scheduler(1)
    yield scheduler
    scheduler.close()


@pytest.fixture(scope="module")
def engines(tmp_path_factory, scheduler) -> dict[str, AnswerEngine]:
    found = {}
    for case in ("classification", "masked-tokens", "next-item", "images"):
        config = config_of(folder := unpack(case, tmp_path_factory.mktemp(case) / "run"))
        opened = open_model(folder, config.kind, Engine("onnx", num_threads=1), computation_of(case))
        pipeline: Any = pipeline_of(config.task).of_run(*opened)
        found[case] = AnswerEngine(case, pipeline, scheduler, opened.model.num_listed)  # type: ignore[union-attr]
    return found


def computation_of(case: str) -> Any:
    """What a run keeps a graph for: all outputs, with as many choices as an export lists."""
    from keras_transformer.decoding.computations import Fills, LabelProbs, NextItems

    return {"masked-tokens": Fills(5), "next-item": NextItems(10)}.get(case, LabelProbs())


def answers(engine: AnswerEngine, inputs: Sequence[Any], verb: str | None = None, **options: Any) -> list[Any]:
    return asyncio.run(engine.submit(inputs, verb or next(iter(engine.verbs)), **options).answers())


def test_texts_are_classified_and_embedded_as_by_the_pipeline(engines):
    engine = engines["classification"]
    pipeline = engine.pipeline
    expected = [{"label": one.label, "probability": round(one.probability, 4)} for one in pipeline.classify(TEXTS)]
    assert answers(engine, TEXTS) == answers(engine, TEXTS, "classify") == expected
    vectors = [one["vector"] for one in answers(engine, TEXTS, "embed")]
    np.testing.assert_allclose(vectors, pipeline.embed(TEXTS), atol=1e-5)
    assert tuple(engine.verbs) == ("classify", "embed")


def test_masks_are_filled_as_by_the_pipeline(engines):
    engine = engines["masked-tokens"]
    for n_best in (1, 5):
        filled = engine.pipeline.fill(MASKED, n_best)
        expected = [[{piece: round(one, 4) for piece, one in best} for best in masks] for masks in filled]
        found = answers(engine, MASKED, n_best=n_best)
        assert found == [{"text": text, "fills": fills} for text, fills in zip(MASKED, expected, strict=True)]
    assert [len(one["fills"]) for one in found] == [1, 2, 0, 0]
    assert tuple(engine.verbs) == ("fill", "embed")
    with pytest.raises(RequestError, match=r"n_best must be at most \d+, as many as the model lists"):
        engine.submit(MASKED, "fill", n_best=99)


def test_items_are_recommended_as_by_the_pipeline_and_what_does_not_count_is_told(engines):
    engine = engines["next-item"]
    pipeline = engine.pipeline
    items, most = pipeline.items.names, pipeline.model.context_length - 1
    histories = [items[:2], [], [items[1], "never seen"], [items[0]] * (most + 3)]
    cases: list[dict[str, Any]] = [{}, {"count": 2, "only_new": True}]
    for options in cases:
        expected = pipeline.recommend(histories, **{"count": 10, **options})
        found = answers(engine, histories, **options)
        rounded = [{name: round(probability, 4) for name, probability in best} for best in expected]
        assert [one["items"] for one in found] == rounded
        assert [one["num_unknown"] for one in found] == [0, 0, 1, 0]
        assert [one["num_left_out"] for one in found] == [0, 0, 0, 3]
    vectors = [one["vector"] for one in answers(engine, histories, "embed")]
    np.testing.assert_allclose(vectors, pipeline.embed(histories), atol=1e-5)


def test_images_are_files_in_base64(engines, tmp_path):
    engine, files = engines["images"], list[Path]()
    for place in range(3):
        pixels = np.random.default_rng(place).integers(0, 256, (5, 6, 3)).astype("uint8")
        Image.fromarray(pixels).save(path := tmp_path / f"{place}.png")
        files.append(path)
    expected = [
        {"label": one.label, "probability": round(one.probability, 4)} for one in engine.pipeline.classify(files)
    ]
    encoded = [base64.b64encode(path.read_bytes()).decode() for path in files]
    assert answers(engine, encoded) == expected
    for wrong in ("no base64!", 7):
        with pytest.raises(RequestError, match="their files in base64"):
            engine.submit([wrong], "classify")
    with pytest.raises(RequestError, match="cannot be read: it is no image"):
        answers(engine, [base64.b64encode(b"no image").decode()])
    Image.new("1", (5_000, 5_000)).save(large := tmp_path / "large.png")
    with pytest.raises(Refusal, match="expected images of at most 16,777,216 pixels; received 5000×5000"):
        engine.submit([base64.b64encode(large.read_bytes()).decode()], "classify")
    assert answers(engine, encoded) == expected


def test_clients_share_batches(engines):
    scheduler = Scheduler(1, observer=(batches := Batches()))
    engine = AnswerEngine("classification", engines["classification"].pipeline, scheduler)

    async def ask() -> list[Any]:
        with scheduler._changed:  # the worker waits until all have asked
            requests = [engine.submit([text], "classify") for text in TEXTS * 6]
        return [answer for request in requests for answer in await request.answers()]

    found = asyncio.run(ask())
    scheduler.close()
    assert found == answers(engines["classification"], TEXTS * 6)
    assert sum(batches.sizes) == 24 and len(batches.sizes) < 6


def test_what_is_asked_wrongly_is_refused(engines, scheduler):
    with pytest.raises(RequestError, match="expected a model that classifies, fills, embeds or recommends"):
        AnswerEngine("other", type("Other", (), {"task": "translation"})(), scheduler)
    cases: list[tuple[str, str, Any, str]] = [
        ("classification", "classify", 3, "expected texts as inputs"),
        ("next-item", "recommend", "a\tb", "expected histories as inputs"),
        ("next-item", "embed", ["a", 3], "expected histories as inputs"),
    ]
    for case, verb, given, message in cases:
        with pytest.raises(RequestError, match=message):
            engines[case].submit([given], verb)
    with pytest.raises(Refusal, match=r"expected texts of at most \d+ tokens") as error:
        engines["classification"].submit(["cat " * 999], "embed")
    assert (error.value.status, error.value.code) == (413, "too_long")
