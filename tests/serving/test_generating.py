"""Language models in the server: texts of many clients grow together, and each becomes what it becomes alone."""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import Mock

import numpy as np
import pytest

from keras_transformer.commands.graph_cache import Engine, open_model
from keras_transformer.core.errors import RequestError
from keras_transformer.decoding import onnx_graphs
from keras_transformer.decoding.onnx_graphs import Abandoned, SteppedLanguageModel
from keras_transformer.serving import generating
from keras_transformer.serving.batching import Refusal, Request, Scheduler
from keras_transformer.serving.generating import Answer, GenerationEngine, beginning_of, stopped_text
from keras_transformer.serving.growing import GrowingBatch
from keras_transformer.serving.hosting import Host
from keras_transformer.serving.service import Telemetry
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.language_modelling.pipeline import Continuation, Generator
from keras_transformer.text.tokenizer import END
from tests.decoding.test_prompts import MODELS, model_of, stepped
from tests.golden.stored import unpack

GREEDY, DRAWN = SearchOptions(num_beams=1), SearchOptions(sampling=True, seed=5)
FEW = SearchOptions(sampling=True, seed=7, n_best=2, temperature=0.7, top_k=5, top_p=0.9)
PROMPTS = ["ba do fi", "gu", "", "ka lo mi nu pa ro", "si tu ba"]
# When texts are asked for, in steps that others have taken by then.
ASKED = [(0, PROMPTS, GREEDY, 40), (2, PROMPTS[:2], DRAWN, 60), (5, PROMPTS[3:], FEW, 9), (9, ["ro"], DRAWN, 1)]


def opened(folder: Path) -> Generator:
    return Generator.of_run(*open_model(folder, "language-model", Engine("onnx", num_threads=1)))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    return unpack("language-model", tmp_path_factory.mktemp("continues") / "run")


@pytest.fixture(scope="module")
def generator(folder) -> Generator:
    """It continues texts."""
    return opened(folder)


@pytest.fixture(scope="module")
def answering(tmp_path_factory) -> Generator:
    return opened(unpack("answers", tmp_path_factory.mktemp("answers") / "run"))


class Steps:
    """Hears of the steps of an engine."""

    def __init__(self) -> None:
        self.rows: list[int] = []
        self.waited: list[float] = []  # of those in which a text was new

    def batch(self, model: str, num_items: int, num_tokens: int, waited: float | None, seconds: float) -> None:
        assert model == "texts"
        self.rows.append(num_items)
        self.waited += [] if waited is None else [waited]

    async def have_been(self, count: int) -> None:
        await until(lambda: len(self.rows) >= count)


@pytest.fixture
def steps() -> Steps:
    return Steps()


@pytest.fixture
def engine_of(steps) -> Iterator[Callable[..., GenerationEngine]]:
    before, made = threading.active_count(), list[GenerationEngine | Scheduler]()

    def make(generator: Generator, **options: Any) -> GenerationEngine:
        made.append(scheduler := Scheduler(1))
        made.append(engine := GenerationEngine("texts", generator, scheduler, observer=steps, **options))
        return engine

    yield make
    for one in reversed(made):
        one.close()
    assert threading.active_count() == before


def is_idle(engine: GenerationEngine) -> bool:
    return not (engine._growing or engine.room.waiting)


async def until(holds: Callable[[], bool], seconds: float = 5.0) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end
        await asyncio.sleep(0.001)


def run(awaitable: Awaitable[Any]) -> Any:
    async def wait() -> Any:
        return await asyncio.wait_for(awaitable, 30)

    return asyncio.run(wait())


def answers(request: Request[Answer]) -> list[Answer]:
    return run(request.answers())


def check(found: Sequence[Answer], expected: Sequence[Sequence[Continuation]]) -> None:
    assert [[one.text for one in some] for some in found] == [[one.text for one in some] for some in expected]
    for answer, continuations in zip(found, expected, strict=True):
        for one, other in zip(answer, continuations, strict=True):
            assert one.num_tokens == len(other.ids)
            assert one.finish_reason == ("stop" if other.ids[-1] == END else "length")


@pytest.fixture
def endless(monkeypatch) -> None:
    """Texts never end by themselves."""
    choose = generating.next_tokens

    def others(*given: Any) -> tuple[np.ndarray, np.ndarray]:
        ids, log_probs = choose(*given)
        return np.where(ids == END, 9, ids), log_probs

    monkeypatch.setattr(generating, "next_tokens", others)


async def asked(engine: GenerationEngine, steps: Steps) -> list[list[Answer]]:
    requests = []
    for after, prompts, options, max_tokens in ASKED:
        await steps.have_been(after)
        requests.append(engine.submit(prompts, max_tokens, options))
    return [await request.answers() for request in requests]


@pytest.mark.parametrize("rows", [64, 3, 1])
@pytest.mark.parametrize("pads", [True, False], ids=["a graph that pads", "a graph of before"])
def test_a_text_becomes_what_it_becomes_alone_whatever_grows_beside_it(
    generator, engine_of, monkeypatch, pads, rows, steps
):
    """Whatever grows beside it; also where its context is full, and it goes on from the last half."""
    monkeypatch.setattr(SteppedLanguageModel, "takes_starts", pads)
    engine = engine_of(generator, most_rows=rows)
    for found, (_, prompts, options, max_tokens) in zip(run(asked(engine, steps)), ASKED, strict=True):
        check(found, generator.generate(prompts, max_tokens, options))
    assert max(steps.rows) <= rows and (rows == 1 or max(steps.rows) > 1)
    run(until(lambda: is_idle(engine)))


def test_prompts_are_answered_as_alone(answering, engine_of):
    engine, prompts = engine_of(answering), [prompt for prompt in PROMPTS if prompt]
    for options in (GREEDY, DRAWN):
        found = answers(engine.submit(prompts, 100, options))
        check(found, expected := answering.generate(prompts, 100, options))
        for answer, (best,), prompt in zip(found, expected, prompts, strict=True):
            assert answer[0].num_prompt_tokens == len(answering.ids_of_prompt(prompt))
            log_prob = best.score if options.sampling else best.score * ((5 + len(best.ids)) / 6) ** 0.6
            assert answer[0].log_prob == pytest.approx(log_prob, abs=1e-4)
    assert engine.about()["answers_prompts"] and engine.about()["max_tokens"] == answering.answer_length


def test_searches_with_several_beams_are_those_of_generate(answering, engine_of):
    options, engine = SearchOptions(num_beams=3, n_best=2), engine_of(answering)
    found = answers(engine.submit(PROMPTS[:2], 5, options))
    check(found, answering.generate(PROMPTS[:2], 5, options))
    (best,) = answering.generate(PROMPTS[:1], 5, SearchOptions(num_beams=3, n_best=1, length_penalty=0.0))
    (same,) = answers(engine.submit(PROMPTS[:1], 5, SearchOptions(num_beams=3, length_penalty=0.0)))
    assert same[0].log_prob == pytest.approx(best[0].score)


@MODELS
def test_texts_that_come_and_go_in_a_batch_are_read_as_each_alone(name, tmp_path):
    """Its logits after every token are those of the whole text; also where attention keeps the last keys alone."""
    graph, random = stepped(model_of(name), tmp_path), np.random.default_rng(2)
    texts = [random.integers(4, 40, length).tolist() for length in (12, 5, 20, 9, 3)]
    expected = [graph({"ids": np.array([text], "int32")})[0] for text in texts]
    read, batches, widths = [3, 1, 6, 4, 1], list[GrowingBatch[int]](), []
    for step in range(40):
        come = [place for place in range(len(texts)) if place * 3 == step]
        batches += GrowingBatch.begun(graph, come, [texts[place][: read[place]] for place in come])
        for batch in batches:
            if (logits := batch.read()) is None:  # a graph that reads one place at a time has more to read
                continue
            widths.append(len(batch.rows))
            for place, row in zip(batch.rows, logits, strict=True):
                np.testing.assert_allclose(row, expected[place][read[place] - 1], atol=1e-5)
                read[place] += 1
            batch.next_ids(np.array([[*texts[place], 0][read[place] - 1] for place in batch.rows]))
            batch.keep([at for at, place in enumerate(batch.rows) if read[place] <= len(texts[place])])
        batches = GrowingBatch.merged(graph, [batch for batch in batches if batch.rows])
    assert read == [len(text) + 1 for text in texts] and not batches
    assert max(widths) == (3 if graph.takes_starts else 1)


@pytest.mark.usefixtures("endless")
def test_a_text_that_ends_makes_room_and_new_ones_do_not_wait_for_those_that_grow(generator, engine_of, steps):
    engine, ended = engine_of(generator, most_rows=2), list[str]()

    async def wait(name: str, request: Request[Answer]) -> None:
        await request.answers()
        ended.append(name)

    async def ask() -> None:
        long = asyncio.create_task(wait("long", engine.submit(["ba"], 400, DRAWN)))
        others = [wait(f"short {number}", engine.submit(["do fi"], 5, DRAWN)) for number in range(3)]
        await asyncio.gather(*others, long)

    run(ask())
    assert ended == ["short 0", "short 1", "short 2", "long"]
    run(until(lambda: sum(steps.rows) == 400 + 3 * 5))
    assert set(steps.rows) == {1, 2}


@pytest.mark.usefixtures("endless")
def test_a_long_list_does_not_hold_up_a_lone_prompt(generator, engine_of, steps):
    engine = engine_of(generator, most_rows=2)

    async def ask() -> None:
        page = engine.submit(["do fi"] * 30, 20, DRAWN)
        await steps.have_been(3)
        assert len(await engine.submit(["ba"], 5, DRAWN).answers()) == 1
        assert not page.has_ended and sum(steps.rows) < 100
        assert len(await page.answers()) == 30

    run(ask())


@pytest.mark.usefixtures("endless")
@pytest.mark.parametrize("pads", [True, False], ids=["a graph that pads", "a graph of before"])
def test_the_first_token_is_told_before_the_text_is_finished(generator, engine_of, monkeypatch, pads, steps):
    monkeypatch.setattr(SteppedLanguageModel, "takes_starts", pads)
    engine = engine_of(generator)

    async def listen(prompts: Sequence[str]) -> list[str]:
        request, told, reasons = engine.submit(prompts, 50, DRAWN), [""] * len(prompts), [""] * len(prompts)
        first = dict[int, int]()
        async for part in request.parts():
            (new,) = part.answer
            assert not reasons[part.text] and (part.part, part.num_parts) == (0, 1)
            first.setdefault(part.text, new.num_tokens)
            told[part.text] += new.text
            reasons[part.text] = new.finish_reason
        assert reasons == ["length"] * len(prompts) and max(first.values()) < 25
        assert told == [answer.text for (answer,) in await request.answers()]
        return told

    async def both() -> Sequence[list[str]]:
        return await asyncio.gather(listen(PROMPTS[:2]), listen(PROMPTS[2:]))

    run(both())
    run(steps.have_been(50))


@pytest.mark.usefixtures("endless")
def test_who_leaves_ends_the_text_and_others_go_on(generator, engine_of, steps):
    engine = engine_of(generator, most_rows=2)
    alone = answers(engine.submit(["gu"], 90, DRAWN))

    async def leave() -> list[Answer]:
        gone, waits = engine.submit(["ba", "do"], 10**4, DRAWN), engine.submit(["gu"], 90, DRAWN)
        await steps.have_been(len(steps.rows) + 5)
        assert engine.room.waiting
        gone.cancel()
        found = await waits.answers()
        await until(lambda: is_idle(engine), 0.2)
        last = engine.submit(["ba"], 10**4, DRAWN)
        await steps.have_been(len(steps.rows) + 5)
        last.cancel()
        await until(lambda: is_idle(engine), 0.2)
        return found

    assert run(leave()) == alone
    count = len(steps.rows)
    time.sleep(0.05)
    assert len(steps.rows) == count


def test_a_step_that_runs_for_nobody_is_ended(generator, engine_of, monkeypatch):
    engine, running = engine_of(generator), threading.Event()

    def slow(*given: Any) -> None:
        running.set()
        stop = onnx_graphs._STOP.get()
        while stop and not stop.is_set:
            time.sleep(0.001)
        raise Abandoned

    async def leave() -> None:
        request = engine.submit(["ba"], 9, DRAWN)
        await until(running.is_set)
        request.cancel()
        await until(lambda: is_idle(engine), 0.2)

    with monkeypatch.context() as patch:
        patch.setattr(generator.model, "next_places", slow, raising=False)
        run(leave())
    check(answers(engine.submit(["ba"], 9, DRAWN)), generator.generate(["ba"], 9, DRAWN))


@pytest.mark.usefixtures("endless")
def test_a_text_ends_before_what_it_shall_stop_at_and_no_part_of_that_is_told(generator, engine_of):
    engine = engine_of(generator)
    ((whole,),) = answers(engine.submit(["ba"], 60, DRAWN))
    stop = whole.text[20:32]  # of several tokens
    place = whole.text.index(stop)

    async def listen() -> list[str]:
        request = engine.submit(["ba"], 60, DRAWN, ["never", stop])
        return [part.answer[0].text async for part in request.parts()]

    ((found,),) = answers(engine.submit(["ba"], 60, DRAWN, ["never", stop]))
    assert (found.text, found.finish_reason) == (whole.text[:place], "stop") and found.num_tokens < 60
    assert "".join(run(listen())) == found.text
    assert stopped_text("abcabc", ["ca", "b"]) == ("a", True) and stopped_text("abc", ["d"]) == ("abc", False)
    assert [beginning_of(["cab"], text) for text in ("abc", "abca", "ab", "")] == [1, 2, 0, 0]


@pytest.mark.usefixtures("endless")
def test_what_is_too_much_is_refused_at_once(generator, answering, engine_of, steps):
    engine = engine_of(generator, max_waiting_tokens=300, most_rows=1)
    context = generator.model.context_length

    def refused(status: int, *given: Any) -> Refusal:
        with pytest.raises(Refusal) as error:
            engine.submit(*given)
        assert error.value.status == status
        return error.value

    async def fill() -> None:
        assert "divide it" in str(refused(413, ["ba"] * 3, 10**4, DRAWN))
        requests = [engine.submit(["ba"], 150, DRAWN)]
        await steps.have_been(1)
        endless, *others = [engine.submit(["ba"], many, DRAWN) for many in (10**4, 150)]  # a part of the most counts
        assert (refused(429, ["ba"], 10**4, DRAWN).retry_after or 0) >= 1
        endless.cancel()
        requests += others
        for request in requests:
            await request.answers()

    run(fill())
    assert len(steps.waited) == 2 and steps.waited[1] > steps.waited[0]
    assert f"at most {context - 1} tokens" in str(refused(413, ["ba do " * context], 5, DRAWN))
    with pytest.raises(Refusal, match=f"at most {answering.model.context_length - answering.answer_length} tokens"):
        engine_of(answering).submit(["ba do " * 99], 5, GREEDY)
    for given, message in [
        ((["a"], 1, DRAWN, [""]), "received an empty one"),
        ((["a"], 999, SearchOptions(num_beams=2)), "takes place in one context"),
    ]:
        with pytest.raises(RequestError, match=message):
            engine.submit(*given)
    growing = engine.submit(["ba"], 200, DRAWN)
    engine.retire()
    refused(503, ["ba"], 1, DRAWN)
    assert len(answers(growing)) == 1


@pytest.mark.usefixtures("endless")
def test_a_step_that_fails_tells_its_clients_and_the_next_are_answered(generator, engine_of, monkeypatch):
    engine, graph = engine_of(generator), generator.model
    expected = answers(engine.submit(["gu"], 5, DRAWN))
    with monkeypatch.context() as patch:
        patch.setattr(graph, "next_places", Mock(side_effect=MemoryError("gu")), raising=False)
        with pytest.raises(MemoryError):
            answers(engine.submit(["gu"], 5, DRAWN))
    assert answers(engine.submit(["gu"], 5, DRAWN)) == expected
    spell = engine.generator.text_of

    def failing(ids: Any) -> str:
        return spell(ids if len(ids) != 3 else 1 / 0)

    async def beside() -> None:
        long, short = engine.submit(["gu"], 20, DRAWN, ["never"]), engine.submit(["gu"], 5, DRAWN)
        assert await short.answers() == expected  # spelled at its end alone
        with pytest.raises(ZeroDivisionError):
            await long.answers()

    with monkeypatch.context() as patch:
        patch.setattr(Generator, "text_of", lambda _, ids: failing(ids))
        run(beside())
    growing = engine.submit(["gu"], 10**4, DRAWN)
    engine.close()
    with pytest.raises(Refusal, match="the server ended"):
        answers(growing)


@pytest.mark.usefixtures("endless")
def test_a_host_replaces_a_model_whose_texts_grow_to_their_end(generator, folder):
    before = threading.active_count()
    telemetry = Telemetry()
    telemetry.host = host = Host({"texts": str(folder)}, num_threads=1, observer=telemetry)
    host.load()
    hosted, count = host.models["texts"], threading.active_count()
    old = hosted.engine
    assert isinstance(old, GenerationEngine) and (hosted.task, hosted.pairs) == ("language-model", [])

    async def replace() -> list[Answer]:
        request = old.submit(["ba"], 200, DRAWN)
        host.load()
        with pytest.raises(Refusal):
            old.submit(["ba"], 1, DRAWN)
        return await request.answers()

    ((found,),) = run(replace())
    assert found.num_tokens == 200 and host.models["texts"].engine is not old
    old._thread.join(1)
    assert threading.active_count() == count
    new = host.models["texts"].engine
    assert isinstance(new, GenerationEngine)
    host.named["missing"] = "no such folder"
    with pytest.raises(RequestError):
        host.load()
    assert host.models["texts"].engine is new
    assert answers(new.submit(["ba"], 200, DRAWN)) == [[found]]
    new.room.waiting = 7
    metrics = telemetry.text().decode()
    assert "keras_transformer_queue_tokens 7.0" in metrics
    assert 'keras_transformer_queue_duration_count{model="texts"} 2.0' in metrics, "once for each text, not each step"
    host.close()
    assert threading.active_count() == before


def test_options_are_those_of_the_command_and_a_chat_is_a_prompt_where_there_is_a_template(
    generator, answering, engine_of, monkeypatch
):
    continues, answers = engine_of(generator), engine_of(answering)
    assert continues.options() == SearchOptions(sampling=True) and answers.options() == GREEDY
    assert continues.options(temperature=0, seed=3) == SearchOptions(num_beams=1)
    assert answers.options(temperature=0.5, seed=None) == SearchOptions(num_beams=1, sampling=True, temperature=0.5)
    assert not continues.options(num_beams=3, n_best=2).sampling
    with pytest.raises(RequestError, match="top_k is for drawing"):
        continues.options(num_beams=3, top_k=2)
    with pytest.raises(RequestError, match="top_p must be"):
        continues.options(top_p=2)

    messages = [{"role": "user", "content": "ba"}]
    with pytest.raises(RequestError, match="this one has none"):
        continues.prompt_of(messages)
    monkeypatch.setattr(generator.tokenizer, "chat_texts", lambda chats: [f"<{chats[0][0]['content']}>"])
    assert continues.prompt_of(messages) == "<ba>"
