"""The server's own routes: what they take and give, and how each error is told without a text in the log."""

import json
import logging
import threading

import pytest

from keras_transformer.core.errors import JobError, RequestError
from keras_transformer.serving import choosing
from keras_transformer.serving.batching import Refusal
from keras_transformer.serving.hosting import Limits
from tests.serving.doors import a_client, a_host, events_of

ENGLISH = "Good morning, how are you doing today, my friend?"
FRENCH = "Bonjour, comment allez-vous aujourd'hui, mon ami ?"


def translate(client, **body):
    return client.post("/v1/translate", json=body)


def test_a_text_and_a_list_are_translated(client):
    one = translate(client, text="two", source="en", target="de").json()
    best = {"text": "TWO", "score": -1.0, "log_prob": -2.0, "alternatives": []}
    assert one == {"translations": [best], "model": "en-de"}
    several = translate(client, text=["b", "a"], source="en", n_best=2).json()["translations"]
    assert [each["text"] for each in several] == ["B", "A"]
    assert several[1]["alternatives"] == [{"text": "A!", "score": -2.0}]


def test_words_are_told_to_who_asks(client):
    [found] = translate(client, text="two", source="en", n_best=2, words=True).json()["translations"]
    assert found["words"] == [{"source": [0, 1], "target": [0, 1]}]
    assert [one["words"] for one in found["alternatives"]] == [[{"source": [0, 1], "target": [0, 2]}]]
    *_, (_, done) = events_of(translate(client, text="two", source="en", words=True, stream=True).text)
    assert json.loads(done)["translations"][0]["words"] == found["words"]


def test_each_text_of_a_list_has_its_own_language(client, host):
    told = translate(client, text=[FRENCH, ENGLISH, FRENCH], target="de").json()
    assert [each["text"] for each in told["translations"]] == [FRENCH.upper(), ENGLISH.upper(), FRENCH.upper()]
    assert [each["detected"]["language"] for each in told["translations"]] == ["fr", "en", "fr"]
    assert all(0.9 < each["detected"]["confidence"] <= 1 for each in told["translations"])
    assert host.models["fr-de"].engine.asked[0][0] == [FRENCH, FRENCH]
    assert set(told["model"].split(", ")) == {"fr-de", "en-de"}


def test_a_stream_tells_parts_and_then_the_whole_answer(client):
    whole = translate(client, text=["a", "b"], source="en").json()
    answer = translate(client, text=["a", "b"], source="en", stream=True)
    assert answer.headers["content-type"].startswith("text/event-stream")
    *items, (name, done) = events_of(answer.text)
    assert [(name, json.loads(data)) for name, data in items] == [
        ("item", {"index": place, "sentence": 0, "num_sentences": 1, "line": 0, "text": text})
        for place, text in enumerate("AB")
    ]
    assert (name, json.loads(done)) == ("done", whole)


def test_languages_are_understood_however_they_are_spelled(client, host):
    host.models["en-de"].pairs = [("eng_Latn", "zho_Hans"), ("eng_Latn", "zho_Hant"), ("eng_Latn", "deu_Latn")]
    engine = host.models["en-de"].engine
    for source, target, expected in [
        ("en", "de", "deu_Latn"), ("auto", "DE", "deu_Latn"), ("eng_Latn", "deu_Latn", "deu_Latn"),
        ("en-Latn", "zho_Hant", "zho_Hant"), ("eng", "zh", "zho_Hans"),
    ]:  # fmt: skip
        assert translate(client, text=ENGLISH, source=source, target=target).status_code == 200
        assert engine.asked[-1][2:] == ("eng_Latn", expected)
    assert translate(client, text="a", source="en", target="zho_Latn").status_code == 400
    assert translate(client, text="a", source="fr", target="de").json()["model"] == "fr-de"
    assert client.post("/v1/detect", json={"text": ENGLISH}).json()["language"] == "eng_Latn"
    host.models["en-de"].pairs.append(("eng_Latn", "de"))
    assert translate(client, text="a", source="en", target="de").status_code == 200
    assert engine.asked[-1][2:] == ("eng_Latn", "de"), "as it is spelled, if it is"
    english, *others = client.get("/languages").json()
    assert english == {"code": "en", "name": "English", "targets": ["zho_Hans", "zho_Hant", "de"]}
    assert [one["code"] for one in others] == ["fr", "zho_Hans", "zho_Hant", "de"]
    told = client.post("/translate", json={"q": ENGLISH, "source": "auto", "target": "de"}).json()
    assert told["detectedLanguage"]["language"] == "en"
    assert {one["language"] for one in client.post("/detect", json={"q": ENGLISH}).json()} >= {"en", "fr", "de"}
    assert client.get("/frontend/settings").json()["language"]["source"]["code"] == "en"


def test_texts_that_have_no_room_are_refused_before_they_are_read(client, host):
    host.models["writer"].engine.room.waiting = host.scheduler.room.waiting = 996
    for text, status in (("a" * 19, 200), ("a" * 20, 429), (["a" * 10] * 2, 429)):
        assert translate(client, text=text, source="en").status_code == status
    assert client.post("/v1/generate", json={"prompt": "a" * 80}).status_code == 429
    assert client.post("/v1/classify", json={"inputs": ["a" * 90]}).status_code == 200
    assert len(host.models["en-de"].engine.asked) == 1 and not host.models["writer"].engine.asked
    host.scheduler.room.waiting, host.scheduler.room.most = 0, 5
    for text, status in (("a" * 95, 200), ("a" * 96, 413)):  # at most 5 tokens, however long each is; or surely more
        assert translate(client, text=text, source="en").status_code == status


def test_a_text_in_none_of_many_languages_is_refused_and_of_one_it_is_taken(client, host):
    host.models["en-de"].pairs = [("ppp", "de"), ("qqq", "de")]
    host.models["fr-de"].pairs = []
    assert "give source" in translate(client, text=["a"], target="de").json()["error"]["message"]
    host.models["en-de"].pairs = [("qqq", "de")]
    [found] = translate(client, text="a", source="auto").json()["translations"]
    assert found["detected"] == {"language": "qqq", "confidence": 0.0}
    assert "detected" not in translate(client, text="a").json()["translations"][0], "the only source was not asked for"


@pytest.mark.parity
def test_lingua_tells_languages_of_short_texts_that_are_served_however_they_are_spelled():
    assert choosing.detected("Schönes Haus", ["eng_Latn", "deu_Latn"]).candidates[0][0] == "deu_Latn"
    assert choosing.detected("hyggelig hus", ["no", "en"]).candidates[0][0] == "no"
    assert choosing._lingua(frozenset({"no", "en"})) is choosing._lingua(frozenset({"en", "no"})) is not None
    assert choosing._lingua(frozenset({"en"})) is None is choosing._lingua(frozenset({"en", "an"}))
    assert choosing.detected("", ["en", "de"]).candidates == []
    assert choosing.detected("Questa casa è molto bella, amico mio.", ["en", "de"]).language is None


def test_long_texts_are_read_in_a_thread():
    host, threads = a_host(Limits(max_characters=10_000)), []
    engine = host.models["en-de"].engine
    submit = engine.submit

    def noted(*given):
        threads.append(threading.current_thread())
        return submit(*given)

    engine.submit = noted
    with a_client(host) as client:
        for text in ("a", "a" * 5_000):
            translate(client, text=text, source="en")
    assert threads[0] is not threads[1]


def test_options_go_to_the_engine_and_beams_are_not_streamed(client, host):
    translate(client, text="a", source="en", beams=7, n_best=3)
    options = host.models["en-de"].engine.asked[0][1]
    assert (options.num_beams, options.n_best) == (7, 3)
    client.post("/v1/generate", json={"prompt": "x", "max_tokens": 9, "temperature": 0.5, "seed": 4, "stop": ["."]})
    prompts, max_tokens, options, stop = host.models["writer"].engine.asked[0]
    assert (prompts, max_tokens, options.temperature, options.seed, stop) == (["x"], 9, 0.5, 4, ["."])
    assert client.post("/v1/generate", json={"prompt": "x", "beams": 4, "stream": True}).status_code == 400


def test_texts_are_continued(client):
    told = client.post("/v1/generate", json={"prompt": ["x", "y"]}).json()
    text = {"text": "y a b", "finish_reason": "stop", "log_prob": -1.5, "num_prompt_tokens": 3, "num_tokens": 2}
    assert told["texts"][1] == text
    stream = events_of(client.post("/v1/generate", json={"prompt": "x", "stream": True}).text)
    assert [json.loads(data)["text"] for name, data in stream if name == "item"] == ["x a", " b"]
    assert json.loads(stream[-1][1])["texts"] == told["texts"][:1]


def test_other_tasks_have_a_route(client, host):
    told = client.post("/v1/classify", json={"inputs": ["x", "y"]}).json()
    assert told == {"answers": [{"label": "x"}, {"label": "y"}], "model": "labels"}
    assert host.models["labels"].engine.asked[0][1:] == ("classify", {})
    assert client.post("/v1/recommend", json={"inputs": [["x"]]}).status_code == 404


def test_the_language_of_a_text_is_told_or_unsure(client):
    told = client.post("/v1/detect", json={"text": FRENCH}).json()
    assert (told["language"], told["unsure_below"]) == ("fr", 0.8)
    assert [one["language"] for one in told["candidates"]][0] == "fr"
    assert sum(one["confidence"] for one in told["candidates"]) == pytest.approx(1, abs=0.001)
    assert client.post("/v1/detect", json={"text": "12"}).json()["language"] is None
    italian = "La tua password non è corretta"  # which nobody serves here
    assert client.post("/v1/detect", json={"text": italian}).json()["language"] is None


def test_models_are_told_to_clients_of_both_kinds(client):
    told = client.get("/v1/models").json()
    first = told["models"][0]
    assert (first["source_language"], first["target_language"], first["pairs"]) == ("en", "de", [["en", "de"]])
    assert first["certificate"] == {"holds": True, "artefacts": [{"name": "onnx/x.onnx", "holds": True}]}
    assert [one["id"] for one in told["data"]] == ["en-de", "fr-de", "writer", "labels"]
    of_engines = first["beams"], told["models"][2]["context_length"], told["models"][3]["does"]
    assert of_engines == (4, 64, ["classify", "embed"])


@pytest.mark.parametrize(
    ("body", "status", "code", "part"),
    [
        ({}, 400, "invalid", "text"),
        ({"text": 3}, 400, "invalid", "a text, or a list of texts"),
        ({"text": []}, 400, "invalid", "a list of texts"),
        ({"text": ["a", None]}, 400, "invalid", "a text"),
        ({"text": "a", "txet": 1}, 400, "invalid", "known keys"),
        ({"text": "a", "beams": 17}, 400, "invalid", "from 1 to 16"),
        ({"text": "a", "beams": True}, 400, "invalid", "from 1 to 16"),
        ({"text": "a", "source": "en", "beams": 2, "n_best": 3}, 400, "invalid", "n_best"),
        ({"text": "a", "source": "en", "target": "fr"}, 400, "invalid", "en-de, fr-de"),
        ({"text": "a", "model": "nothing"}, 404, "not_found", "en-de, fr-de"),
        ({"text": "a", "model": "writer"}, 404, "not_found", "en-de, fr-de"),
        ({"text": "a" * 101, "source": "en"}, 413, "too_long", "100 characters"),
        ({"text": ["a"] * 6, "source": "en"}, 413, "too_long", "5 items"),
    ],
)
def test_a_wrong_request_is_told_why(client, body, status, code, part):
    answer = translate(client, **body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (status, code), error
    assert part in error["message"]
    assert error["request_id"] == answer.headers["x-request-id"]


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (Refusal(429, "overloaded", "too much waits", 2.2), 429, "overloaded"),
        (Refusal(503, "unavailable", "the server ends", 1.0), 503, "unavailable"),
        (RequestError("wrong"), 400, "invalid"),
        (JobError("secret path"), 500, "inference"),
        (ValueError("secret text"), 500, "internal"),
    ],
)
@pytest.mark.parametrize("when", ["error", "late"])
def test_what_an_engine_raises_has_a_status(client, host, caplog, when, error, status, code):
    setattr(host.models["en-de"].engine, when, error)
    with caplog.at_level(logging.INFO, "keras_transformer.serving"):
        answer = translate(client, text="a", source="en")
    assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
    assert "secret" not in answer.text
    assert "secret text" not in caplog.text
    assert answer.headers["x-request-id"] in caplog.text
    assert answer.headers.get("retry-after") == {429: "3", 503: "1"}.get(status)


def test_an_error_within_a_stream_is_its_last_event(client, host):
    host.models["en-de"].engine.late = JobError("broken")
    told = events_of(translate(client, text="a", source="en", stream=True).text)
    assert [name for name, _ in told] == ["item", "error"]
    assert json.loads(told[-1][1])["error"]["code"] == "inference"


@pytest.mark.parametrize("stream", [False, True])
def test_time_outs_are_told_and_end_the_work(stream):
    host = a_host(Limits(seconds=0.05))
    engine = host.models["en-de"].engine
    engine.never = True
    answer = translate(a_client(host), text="a", source="en", stream=stream)
    assert "timed_out" in answer.text
    assert answer.status_code == (200 if stream else 504)
    assert engine.works[0].is_cancelled


def test_where_one_model_refuses_no_other_works_on(client, host):
    host.models["en-de"].engine.error = Refusal(429, "overloaded", "too much waits", 1.0)
    assert translate(client, text=[FRENCH, ENGLISH], target="de").status_code == 429
    assert host.models["fr-de"].engine.works[0].is_cancelled


def test_a_model_of_unknown_languages_answers_under_its_name_alone(host):
    host.models["en-de"].pairs = []
    client = a_client(host)
    assert translate(client, text="a", model="en-de").status_code == 200
    assert "does not tell" in translate(client, text="a", model="en-de", target="de").json()["error"]["message"]
    assert translate(client, text="a", source="en", target="de").status_code == 400


def test_while_models_are_loaded_requests_are_refused(client, host):
    host.is_ready = False
    answer = translate(client, text="a")
    assert (answer.status_code, answer.headers["retry-after"]) == (503, "1")
    for path in ("/health/ready", "/v1/models", "/languages"):
        assert client.get(path).status_code == 503
    assert client.get("/health/live").json() == {"status": "live"}
    host.is_ready = True
    assert client.get("/health/ready").json() == {"status": "ready"}


def test_a_log_line_and_the_metrics_have_no_text(client, caplog):
    with caplog.at_level(logging.INFO, "keras_transformer.serving"):
        answer = client.post("/v1/translate?secret", json={"text": ["secret", "b"], "source": "en"})
        client.get("/secret")
    line, other = [record.getMessage() for record in caplog.records]
    assert line.startswith("POST /v1/translate 200 ")
    assert line.endswith(f"ms inputs=2 id={answer.headers['x-request-id']}")
    assert other.startswith("GET other 404 ")
    metrics = client.get("/metrics").text
    assert 'keras_transformer_request_count_total{route="/v1/translate",status="200"} 1.0' in metrics
    assert 'keras_transformer_request_failure_total{err="not_found"} 1.0' in metrics
    assert "keras_transformer_queue_tokens 7.0" in metrics
    assert 'keras_transformer_model_info{model="en-de",sha="abc123"} 1.0' in metrics
    assert "secret" not in caplog.text + metrics
