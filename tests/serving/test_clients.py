"""Clients of other servers are understood: requests as their own code sends them, answers in the types they take."""

import json
from urllib.parse import urlencode

import pytest

from keras_transformer.serving.batching import Refusal
from tests.serving.doors import a_client, events_of
from tests.serving.test_requests import keys_of

ENGLISH = "Good morning, how are you doing today, my friend?"


def test_weblate_sends_a_list_with_an_empty_key(client):
    codes = [one["code"] for one in client.get("/languages").json()]
    assert {"en", "fr", "de"} == set(codes)
    body = {"api_key": "", "q": ["one", "two"], "source": "en", "target": "de"}
    answer = client.post("/translate", json=body).json()
    assert answer == {"translatedText": ["ONE", "TWO"]}


def test_weblate_of_older_versions_sends_a_form(client):
    data = {"api_key": "", "q": "one\r\ntwo", "source": "en", "target": "de"}
    assert client.post("/translate", data=data).json() == {"translatedText": "ONE\nTWO"}


def test_linguist_sends_a_text_and_a_list_with_a_format(client):
    for q, expected in (("one", "ONE"), (["one", "two"], ["ONE", "TWO"])):
        body = json.dumps({"q": q, "source": "auto", "target": "de", "format": "text"})
        answer = client.post("/translate", content=body, headers={"Content-Type": "application/json"}).json()
        assert answer["translatedText"] == expected


def test_subtitle_edit_accepts_json_and_reads_the_first_text(client):
    body = '{"q": "Line one\\r\\nLine \\"two\\"", "source": "en", "target": "de"}'
    headers = {"Content-Type": "application/json", "accept": "application/json"}
    answer = client.post("/translate", content=body.encode(), headers=headers)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json()["translatedText"] == 'LINE ONE\r\nLINE "TWO"'


def test_the_python_client_sends_forms_and_reads_lists(client):
    form = {"Content-Type": "application/x-www-form-urlencoded"}
    body = urlencode({"q": "größer", "source": "en", "target": "de"})
    assert client.post("/translate", content=body, headers=form).json()["translatedText"] == "GRÖSSER"
    detections = client.post("/detect", content=urlencode({"q": ENGLISH}), headers=form).json()
    assert detections[0]["language"] == "en"
    languages = client.request("GET", "/languages", content=urlencode({"api_key": "x"}), headers=form).json()
    assert languages[0] == {"code": "en", "name": "English", "targets": ["de"]}


def test_the_servers_own_test_sends_a_form(client):
    data = {"q": "Hello", "source": "en", "target": "de", "format": "text"}
    assert client.post("/translate", data=data).json() == {"translatedText": "HELLO"}
    assert client.post("/translate", files={name: (None, value) for name, value in data.items()}).json() == {
        "translatedText": "HELLO"
    }
    assert client.post(f"/translate?{urlencode(data)}").json() == {"translatedText": "HELLO"}


def test_a_detected_language_has_a_confidence_up_to_100_as_a_float(client):
    one = client.post("/translate", json={"q": ENGLISH, "source": "auto", "target": "de"}).json()["detectedLanguage"]
    assert one["language"] == "en"
    assert type(one["confidence"]) is float
    assert 90 < one["confidence"] <= 100
    body = {"q": [ENGLISH, "Bonjour, comment allez-vous, mon ami ?"], "source": "auto", "target": "de"}
    several = client.post("/translate", json=body).json()["detectedLanguage"]
    assert [one["language"] for one in several] == ["en", "fr"]


@pytest.mark.parametrize("number", [2, "2"])
def test_alternatives_are_lists_without_the_best(client, number):
    body = {"q": "a", "source": "en", "target": "de", "alternatives": number}
    assert client.post("/translate", json=body).json()["alternatives"] == ["A!", "A!!"]
    assert client.post("/translate", json={**body, "q": ["a", "b"]}).json()["alternatives"][1] == ["B!", "B!!"]


def test_the_settings_of_the_frontend(client):
    told = client.get("/frontend/settings").json()
    assert (told["charLimit"], told["keyRequired"], told["suggestions"], told["filesTranslation"]) == (
        100,
        *[False] * 3,
    )
    assert told["language"]["source"] == {"code": "en", "name": "English"}
    assert client.get("/health").json() == {"status": "ok"}


@pytest.mark.parametrize(
    "body",
    [
        {"source": "en", "target": "de"},
        {"q": "a", "target": "de"},
        {"q": "a", "source": "en"},
        {"q": "a", "source": "en", "target": "xx"},
        {"q": "a" * 101, "source": "en", "target": "de"},
        {"q": ["a"] * 6, "source": "en", "target": "de"},
        {"q": "a", "source": "en", "target": "de", "format": "html"},
        {"q": "a", "source": "en", "target": "de", "alternatives": "many"},
        {"q": "a", "source": "en", "target": "de", "alternatives": -1},
    ],
)
def test_errors_are_400_with_a_text(client, body):
    answer = client.post("/translate", json=body)
    assert answer.status_code == 400
    assert isinstance(answer.json()["error"], str)


def test_other_values_are_not_read(client):
    body = {"q": "a", "source": "en", "target": "de", "secret": "x", "format": None, "api_key": None}
    assert client.post("/translate", json=body).status_code == 200


def test_keys_stand_in_the_body_and_are_403_if_they_are_wrong(host):
    client = a_client(host, keys=keys_of("one"))
    body = {"q": "a", "source": "en", "target": "de"}
    assert client.post("/translate", json={**body, "api_key": "one"}).status_code == 200
    assert client.post("/translate", data={**body, "api_key": "one"}).status_code == 200
    assert client.post("/translate", json=body, headers={"X-API-Key": "one"}).status_code == 200
    for wrong in ({**body, "api_key": "two"}, body, {**body, "api_key": 3}):
        assert client.post("/translate", json=wrong).status_code == 403
    for key, status in {"two": 403, "one": 400, "\\u006fne": 400}.items():  # no JSON is read before the key is known
        content = f'{{"api_key": "{key}", "q": [[['.encode()
        answer = client.post("/translate", content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == status
    assert client.post("/detect", data={"q": "a"}).status_code == 403
    assert client.get("/languages").status_code == 200
    assert client.get("/frontend/settings").json()["keyRequired"] is True


def test_too_much_is_429(host, client):
    host.models["en-de"].engine.error = Refusal(429, "overloaded", "too much waits", 1.0)
    answer = client.post("/translate", json={"q": "a", "source": "en", "target": "de"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "1")
    assert answer.json() == {"error": "too much waits"}


# OpenAI's API


def test_a_completion(client):
    told = client.post("/v1/completions", json={"model": "writer", "prompt": ["x", "y"], "max_tokens": 5}).json()
    assert told["object"] == "text_completion"
    assert told["id"].startswith("cmpl-")
    assert told["choices"][1] == {"index": 1, "text": "y a b", "logprobs": None, "finish_reason": "stop"}
    assert told["usage"] == {"prompt_tokens": 6, "completion_tokens": 4, "total_tokens": 10}


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


def test_a_completion_is_streamed(client):
    body = {"model": "writer", "prompt": "x", "stream": True}
    told = [data for _, data in events_of(client.post("/v1/completions", json=body).text)]
    assert [json.loads(data)["choices"][0]["text"] for data in told[:-1]] == ["x a", " b"]


@pytest.mark.parametrize(
    ("change", "status"),
    [
        ({"prompt": [1, 2]}, 400), ({"echo": True}, 400), ({"logprobs": 3}, 400), ({"presence_penalty": 1}, 400),
        ({"suffix": "x"}, 400), ({"temperature": -1}, 400), ({"max_tokens": 0}, 400), ({"model": "gpt"}, 404),
        ({"stop": ["."] * 17}, 413), ({"logprobs": None, "presence_penalty": 0.0, "stop": []}, 200),
        ({"metadata": {"a": "b"}, "store": True, "user": 3, "logit_bias": {}, "best_of": 1, "suffix": ""}, 200),
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
