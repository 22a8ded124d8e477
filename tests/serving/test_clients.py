"""Clients of other servers are understood: requests as their own code sends them, answers in the types they take."""

import json
from typing import Any
from urllib.parse import urlencode

import pytest

from keras_transformer.serving.batching import Refusal
from tests.serving.doors import a_client, events_of
from tests.serving.test_requests import keys_of

ENGLISH = "Good morning, how are you doing today, my friend?"


EN_DE = {"source": "en", "target": "de"}
FORM = {"Content-Type": "application/x-www-form-urlencoded"}
JSON = {"Content-Type": "application/json", "accept": "application/json"}
SUBTITLES = b'{"q": "Line one\\r\\nLine \\"two\\"", "source": "en", "target": "de"}'
SENT: dict[str, tuple[dict[str, Any], Any]] = {
    "Weblate": ({"json": {"api_key": "", "q": ["one", "two"], **EN_DE}}, ["ONE", "TWO"]),
    "Weblate before": ({"data": {"api_key": "", "q": "one\r\ntwo", **EN_DE}}, "ONE\nTWO"),
    "Linguist": ({"json": {"q": "one", **EN_DE, "format": "text"}}, "ONE"),
    "Subtitle Edit": ({"content": SUBTITLES, "headers": JSON}, 'LINE ONE\r\nLINE "TWO"'),
    "the Python client": ({"content": urlencode({"q": "größer", **EN_DE}), "headers": FORM}, "GRÖSSER"),
    "a form in parts": ({"files": {"q": (None, "Hello"), "source": (None, "en"), "target": (None, "de")}}, "HELLO"),
    "the address": ({"params": {"q": "Hello", **EN_DE, "format": "text"}}, "HELLO"),
    "values that nobody reads": ({"json": {"q": "a", **EN_DE, "x": "y", "format": None, "api_key": None}}, "A"),
}


@pytest.mark.parametrize("sender", SENT)
def test_a_client_is_understood_as_it_sends(client, sender):
    request, expected = SENT[sender]
    answer = client.post("/translate", **request)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json() == {"translatedText": expected}


def test_languages_are_told_as_weblate_and_the_python_client_ask(client):
    languages = client.request("GET", "/languages", content=urlencode({"api_key": "x"}), headers=FORM).json()
    assert languages[0] == {"code": "en", "name": "English", "targets": ["de"]}
    assert {one["code"] for one in languages} == {"en", "fr", "de"}
    assert client.post("/detect", content=urlencode({"q": ENGLISH}), headers=FORM).json()[0]["language"] == "en"


def test_a_detected_language_has_a_confidence_up_to_100_as_a_float(client):
    told = client.post("/translate", json={"q": ENGLISH, "source": "auto", "target": "de"}).json()
    one = told["detectedLanguage"]
    assert (told["translatedText"], one["language"], type(one["confidence"])) == (ENGLISH.upper(), "en", float)
    assert 90 < one["confidence"] <= 100
    body = {"q": [ENGLISH, "Bonjour, comment allez-vous, mon ami ?"], "source": "auto", "target": "de"}
    several = client.post("/translate", json=body).json()["detectedLanguage"]
    assert [one["language"] for one in several] == ["en", "fr"]


@pytest.mark.parametrize("number", [2, "2"])
def test_alternatives_are_lists_without_the_best(client, number):
    for q, expected in (("a", ["A!", "A!!"]), (["a", "b"], [["A!", "A!!"], ["B!", "B!!"]])):
        told = client.post("/translate", json={"q": q, **EN_DE, "alternatives": number}).json()
        assert told["alternatives"] == expected


@pytest.mark.parametrize("has_keys", [False, True])
def test_the_settings_of_the_frontend(host, has_keys):
    client = a_client(host, keys=keys_of("one") if has_keys else None)
    told = client.get("/frontend/settings").json()
    assert (told["charLimit"], told["keyRequired"], told["apiKeys"]) == (100, has_keys, has_keys)
    assert told["suggestions"] is told["filesTranslation"] is False
    assert told["language"]["source"] == {"code": "en", "name": "English"}
    assert client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    "change",
    [
        {"q": None}, {"source": None}, {"target": None}, {"target": "xx"}, {"q": "a" * 101}, {"q": ["a"] * 6},
        {"format": "html"}, {"alternatives": "many"}, {"alternatives": -1},
    ],
)  # fmt: skip
def test_errors_are_400_with_a_text(client, change):
    body = {name: value for name, value in {"q": "a", **EN_DE, **change}.items() if value is not None}
    answer = client.post("/translate", json=body)
    assert answer.status_code == 400
    assert isinstance(answer.json()["error"], str)


def test_keys_stand_in_the_body_and_are_403_if_they_are_wrong(host):
    client = a_client(host, keys=keys_of("one"))
    body = {"q": "a", **EN_DE}
    right = {**body, "api_key": "one"}
    for request in ({"json": right}, {"data": right}, {"json": body, "headers": {"X-API-Key": "one"}}):
        assert client.post("/translate", **request).status_code == 200
    for wrong in ({**body, "api_key": "two"}, body, {**body, "api_key": 3}):
        assert client.post("/translate", json=wrong).status_code == 403
    for key, status in {"two": 403, "one": 400, "\\u006fne": 400}.items():  # no JSON is read before the key is known
        answer = client.post("/translate", content=f'{{"api_key": "{key}", "q": [['.encode(), headers=JSON)
        assert answer.status_code == status
    assert client.post("/detect", data={"q": "a"}).status_code == 403
    assert client.get("/languages").status_code == 200


def test_too_much_is_429(host, client):
    host.models["en-de"].engine.error = Refusal(429, "overloaded", "too much waits", 1.0)
    answer = client.post("/translate", json={"q": "a", **EN_DE})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json() == {"error": "too much waits"}


# OpenAI's API


def test_a_completion(client):
    told = client.post("/v1/completions", json={"model": "writer", "prompt": ["x", "y"], "max_tokens": 5}).json()
    assert told["object"] == "text_completion"
    assert told["id"].startswith("cmpl-")
    assert told["choices"][1] == {"index": 1, "text": "y a b", "logprobs": None, "finish_reason": "stop"}
    assert told["usage"] == {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}
    stream = client.post("/v1/completions", json={"model": "writer", "prompt": "x", "stream": True})
    *events, _ = [data for _, data in events_of(stream.text)]
    assert [json.loads(data)["choices"][0]["text"] for data in events] == ["x a", " b"]


def test_a_chat(client, host):
    parts = [{"type": "text", "text": "Hel"}, {"type": "text", "text": "lo"}]
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": parts}]
    body = {"model": "writer", "messages": messages, "temperature": 0.7, "n": 2, "user": "me", "stop": "."}
    told = client.post("/v1/chat/completions", json=body).json()
    assert told["object"] == "chat.completion"
    assert [choice["index"] for choice in told["choices"]] == [0, 1]
    text = "system:Be brief.|user:Hello a b"
    assert told["choices"][0]["message"] == {"role": "assistant", "content": text}
    assert told["usage"] == {"prompt_tokens": 3, "completion_tokens": 4, "total_tokens": 7}
    assert host.models["writer"].engine.asked[0][3] == ["."]


@pytest.mark.parametrize("has_usage", [False, True])
def test_a_chat_is_streamed_token_by_token(client, has_usage):
    messages = [{"role": "user", "content": "x"}]
    body = {"model": "writer", "messages": messages, "stream": True, "stream_options": {"include_usage": has_usage}}
    *events, last = [data for _, data in events_of(client.post("/v1/chat/completions", json=body).text)]
    assert last == "[DONE]"
    chunks = [*map(json.loads, events)]
    assert {chunk["object"] for chunk in chunks} == {"chat.completion.chunk"}
    assert len({chunk["id"] for chunk in chunks}) == 1
    choices = [chunk["choices"][0] for chunk in chunks if chunk["choices"]]
    assert [choice["delta"] for choice in choices] == [{"role": "assistant", "content": "user:x a"}, {"content": " b"}]
    assert [choice["finish_reason"] for choice in choices] == [None, "stop"]
    if has_usage:
        assert chunks[-1]["choices"] == []
        assert chunks[-1]["usage"] == {"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5}
        assert chunks[0]["usage"] is None


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"prompt": [1, 2]}, 400), ({"echo": True}, 400), ({"logprobs": 3}, 400), ({"presence_penalty": 1}, 400),
        ({"suffix": "x"}, 400), ({"temperature": -1}, 400), ({"max_tokens": 0}, 400), ({"model": "gpt"}, 404),
        ({"stop": ["."] * 17}, 413), ({"logprobs": None, "presence_penalty": 0.0, "stop": [], "echo": False}, 200),
        ({"metadata": {"a": "b"}, "store": True, "user": 3, "logit_bias": {}, "frequency_penalty": 0}, 200),
        ({"logit_bias": {"3": 1}}, 400), ({"response_format": {"type": "json_object"}}, 400), ({"tools": [{}]}, 400),
    ],
)  # fmt: skip
def test_what_is_not_understood_is_refused(client, change, status):
    answer = client.post("/v1/completions", json={"model": "writer", "prompt": "x", **change})
    assert answer.status_code == status
    if status != 200:
        assert {"message", "type", "param", "code"} == set(answer.json()["error"])
        assert next(iter(change)) in answer.json()["error"]["message"] or status == 404


@pytest.mark.parametrize("content", ["untold", [{"type": "image_url", "image_url": {"url": "x"}}], None])
def test_a_chat_that_the_model_does_not_take_is_refused(client, content):
    body = {"model": "writer", "messages": [{"role": "user", "content": content}]}
    assert client.post("/v1/chat/completions", json=body).status_code == 400


def test_translations_as_vllm_proposes_them(client):
    body = {"model": "en-de", "text": "two", "source_language": "en", "target_language": "de"}
    told = client.post("/v1/translations", json=body).json()
    assert (told["object"], told["text"], told["model"]) == ("translation", "TWO", "en-de")
    several = {"text": ["a", "b"], "target_language": "de", "source_language": "fr"}
    assert client.post("/v1/translations", json=several).json()["text"] == ["A", "B"]
    *sentences, done = [
        data for _, data in events_of(client.post("/v1/translations", json={**body, "stream": True}).text)
    ]
    assert [json.loads(one)["text"] for one in sentences] == ["TWO"]
    assert done == "[DONE]"
    assert client.post("/v1/translations", json={**several, "stream": True}).status_code == 400
