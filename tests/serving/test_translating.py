"""The translators of a server: with the export that comes with the package."""

import asyncio
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

import keras_transformer
from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.decoding.onnx_decoder import OnnxDecoder
from keras_transformer.runs.export_folder import OF_DEMO
from keras_transformer.serving.batching import Refusal
from keras_transformer.serving.hosting import Host, named_folders
from keras_transformer.serving.translating import TranslationEngine
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation.words import moved
from tests.serving.doors import until

NUMBERS = [f"{tens}-{ones}" for tens in ("twenty", "forty", "seventy", "ninety") for ones in ("one", "three", "eight")]


@contextmanager
def hosting(named: dict[str, str], num_threads: int = 1) -> Iterator[Host]:
    """A host, which ends."""
    host = Host(named, num_threads=num_threads)
    try:
        host.load()
        yield host
    finally:
        host.close()


@pytest.fixture(scope="module")
def alone() -> keras_transformer.Translator:
    return keras_transformer.load("demo")


def engine_of(host: Host) -> TranslationEngine:
    engine = host.models["demo"].engine
    assert isinstance(engine, TranslationEngine)
    return engine


@pytest.fixture(scope="module")
def host() -> Iterator[Host]:
    with hosting({"demo": "demo"}, 2) as host:
        yield host


@pytest.fixture(scope="module")
def engine(host: Host) -> TranslationEngine:
    return engine_of(host)


def texts_of(engine: TranslationEngine, texts: list[str], **options: int) -> list[str]:
    """The best translations of texts."""
    found = asyncio.run(engine.submit(texts, engine.options(**options)).answers())
    return [nbest[0].text for nbest in found]


def test_a_text_is_translated_as_without_a_server(engine, alone) -> None:
    texts = ["forty-two", "- seven\n\nnine. eleven.  two", "", " \n ", "12", "one\r\ntwo"]
    assert texts_of(engine, texts) == alone.translate(texts)


def test_clients_share_batches_and_get_what_they_get_alone(engine, alone) -> None:
    async def together() -> list[str]:
        requests = [engine.submit([text], engine.options()) for text in NUMBERS]
        return [(await request.answers())[0][0].text for request in requests]

    found = asyncio.run(together())
    assert found == alone.translate(NUMBERS) and len(set(found)) == len(NUMBERS)


def test_lists_begin_with_the_translation(engine, alone) -> None:
    texts = ["forty-two", "- forty-two. seven. nine.\n\neleven"]
    one, several = asyncio.run(engine.submit(texts, engine.options(n_best=3)).answers())
    assert [each.text for each in one] == [each.text for each in alone.n_best(texts[:1], n_best=3)[0]]
    assert several[0].text == alone.translate(texts[1]) and len(several) == 3
    assert [each.score for each in several] == sorted((each.score for each in several), reverse=True)


def test_words_stand_where_they_do_in_the_whole_text(engine: TranslationEngine) -> None:
    text = "forty-two\n\n- seven\neleven. nine"
    [[found]] = asyncio.run(engine.submit([text], engine.options(words=True)).answers())
    [[last, *_]] = keras_transformer.load("demo").n_best(["eleven. nine"], words=True)
    source, target = text.index("eleven"), found.text.index("elf")
    assert found.words[-len(last.words) :] == tuple(moved(last.words, source, target))
    assert engine.tells_words and last.words
    told = [(text[slice(*word.source)], found.text[slice(*word.target)]) for word in found.words]
    assert ("seven", "sieben") in told


def test_words_are_refused_where_an_older_version_exported(
    engine: TranslationEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(OnnxDecoder, "tells_alignments", False)
    with pytest.raises(RequestError, match="leave words out, or export the run again"):
        engine.submit(["one"], engine.options(words=True))


def test_a_search_that_the_graphs_lack_is_refused_without_a_path(tmp_path: Path) -> None:
    shutil.copytree(OF_DEMO, tmp_path / "onnx", ignore=shutil.ignore_patterns("encoder*", "step*"))
    with hosting({"demo": str(tmp_path)}) as host:
        engine = engine_of(host)
        with pytest.raises(RequestError, match="the model demo has one search, with 4 beams") as refused:
            engine.submit(["one"], engine.options(num_beams=2))
        assert str(tmp_path) not in str(refused.value)
        assert texts_of(engine, ["one"]) == ["eins"]


def test_sentences_are_told_one_by_one_with_their_places(engine, alone) -> None:
    async def parts() -> list[tuple[int, int, int, int, str]]:
        request = engine.submit(["one\n \n12\ntwo. three.", "", "four"], engine.options())
        return [(*part[:3], part.line, part.answer[0].text) async for part in request.parts()]

    places = [(0, 0, 3, 0), (0, 1, 3, 2), (0, 2, 3, 2), (2, 0, 1, 0)]
    texts = alone.translate(["one", "two.", "three.", "four"])
    assert sorted(asyncio.run(parts())) == [(*place, text) for place, text in zip(places, texts, strict=True)]


def test_what_cannot_be_divided_is_refused_and_not_cut(engine: TranslationEngine) -> None:
    with pytest.raises(Refusal, match="cannot be divided") as refused:
        engine.submit(["a" * 20_000], engine.options())
    assert refused.value.status == 413


def test_a_search_that_runs_for_nobody_is_ended_and_the_worker_goes_on(host: Host, engine: TranslationEngine) -> None:
    request = engine.submit([" ".join(NUMBERS)] * 60, engine.options(num_beams=16))  # over the halves
    until(lambda: bool(host.scheduler._running))
    request.cancel()
    until(lambda: not host.scheduler._running and not host.scheduler.room.waiting, 2)
    assert texts_of(engine, ["forty-two"]) == ["zweiundvierzig"]


def test_a_host_tells_what_it_holds_and_replaces_it_while_requests_run(host: Host, engine: TranslationEngine) -> None:
    before = host.models["demo"]
    assert (before.pairs, before.precision, before.holds, before.task) == ([("en", "de")], "int8", True, "translation")
    request = engine.submit(NUMBERS, engine.options())
    host.load()
    assert host.models["demo"] is not before
    assert host.models["demo"].identity == before.identity
    assert len(asyncio.run(request.answers())) == len(NUMBERS)


def test_every_graph_is_opened_before_clients_ask(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = list[SearchOptions]()
    monkeypatch.setattr(OnnxDecoder, "require_checked", lambda self, options: asked.append(options))
    with hosting({"demo": "demo"}):
        assert any(one.words for one in asked) and any(one.sampling for one in asked)
        assert any(not (one.words or one.sampling) for one in asked)


def test_a_model_that_does_not_answer_its_probes_is_not_served(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("keras_transformer.decoding.onnx_decoder.check", lambda *given: 1 / 0)
    host = Host({"demo": "demo"}, num_threads=1)
    with pytest.raises((JobError, ZeroDivisionError)):
        host.load()
    assert not host.is_ready
    host.close()


def test_names_are_of_one_model_and_cannot_leave_their_place_in_an_address() -> None:
    for words in (["a=x", "a=y"], ["demo", "demo=x"]):
        with pytest.raises(RequestError, match="two models have the name"):
            named_folders(words)
    with pytest.raises(RequestError, match="expected names of letters"):
        Host({"../x": "demo"})
    assert named_folders(["runs/one/onnx", "en-de=two"]) == {"one": "runs/one/onnx", "en-de": "two"}
