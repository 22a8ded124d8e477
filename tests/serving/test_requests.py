"""Whatever bytes a client sends, it is told 4xx within bounds; and who may ask is checked before anything is done."""

import hashlib
import json
import re
import time
from pathlib import Path

import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.serving.batching import Refusal
from keras_transformer.serving.service import Client, Keys, new_key
from tests.serving.doors import a_client, a_host

JSON = {"Content-Type": "application/json"}


@pytest.mark.parametrize(
    ("body", "part"),
    [
        (b"", "JSON"),
        (b"[]", "an object"),
        (b"null", "an object"),
        (b'{"text": "a"', "JSON"),
        (b"[" * 4_000, "deep"),
        (b'{"text": ' * 400 + b"1" + b"}" * 400, "deep"),
        (b'{"text": "a", "text": "b"}', "two values"),
        (b'{"text": NaN}', "NaN"),
        (b'{"text": "a", "beams": ' + b"9" * 4_900 + b"}", "JSON"),
        (b'{"text": "a", "beams": 1e999}', "beams"),
        (b'{"text": "\\ud800"}', "surrogate"),
        (b'{"text": ["\\udfff\\ud83d"]}', "surrogate"),
        (b'{"text": "\xff"}', "byte 10"),
        (b'{"text": "\xed\xa0\x80"}', "byte"),
        (b"\xef\xbb\xbf{}", "JSON"),
        ('{"text": "a"}'.encode("utf-16"), "byte"),
    ],
)
def test_a_body_that_is_no_good_json_is_told(client, body, part):
    answer = client.post("/v1/translate", content=body, headers=JSON)
    assert answer.status_code == 400
    assert part in answer.json()["error"]["message"]


def test_json_is_taken_however_its_characters_are_spelled_and_no_other_type(client):
    body = b'{"text": "\\ud83d\\ude00 \\\\ud800", "source": "en"}'
    told = client.post("/v1/translate", content=body, headers=JSON).json()
    assert told["translations"][0]["text"] == "\N{GRINNING FACE} \\UD800"
    for kind in ("", "text/plain", "application/x-www-form-urlencoded"):
        assert client.post("/v1/translate", content=body, headers={"Content-Type": kind}).status_code == 415


@pytest.mark.parametrize("is_chunked", [False, True])
def test_a_body_is_bounded_before_it_is_read(client, is_chunked):
    content = (b" " * 1_000 for _ in range(6)) if is_chunked else b" " * 5_001
    answer = client.post("/v1/translate", content=content, headers=JSON)
    assert (answer.status_code, answer.headers["connection"]) == (413, "close")
    content = b'{"text":"a","source":"en"}'.ljust(5_000)
    assert client.post("/v1/translate", content=content, headers=JSON).status_code == 200


def test_the_own_hosts_are_taken_and_others_refused(client):
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:8000", "[::1]:8000"):
        assert client.get("/v1/models", headers={"Host": host}).status_code == 200
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost:x", "[::1", "", "a@localhost"):
        answer = client.get("/v1/models", headers={"Host": host})
        assert (answer.status_code, answer.json()["error"]["code"]) == (421, "wrong_host")
        assert client.get("/health/ready", headers={"Host": host}).status_code == 200  # an orchestrator asks so


def test_nothing_but_the_routes_is_there(client):
    tries = ("/../serve.py", "/..%2f..%2fkeys", "/page/../serve.py", "/%2e%2e/serve.py", "//etc/passwd", "/page.py")
    for path in (*tries, "/v1", "/index.html"):
        answer = client.get(path)
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")


def test_an_id_is_taken_from_the_client_if_it_is_one(client):
    assert client.get("/v1/models", headers={"X-Request-Id": "abc-1"}).headers["x-request-id"] == "abc-1"
    for wished in ("a b", "a\tb", "x" * 65, "ä".encode(), b"a\r\nSet-Cookie: b"):
        told = client.get("/v1/models", headers={"X-Request-Id": wished}).headers
        assert "set-cookie" not in told
        assert len(told["x-request-id"]) == 16


def test_all_answers_have_the_headers_of_security(client):
    for path in ("/v1/models", "/nothing", "/health/live"):
        headers = client.get(path, headers={"Origin": "http://evil.example"}).headers
        assert "access-control-allow-origin" not in headers
        assert headers["x-content-type-options"] == "nosniff"
        assert "default-src 'none'" in headers["content-security-policy"]
    assert client.options("/v1/translate").status_code == 405


@pytest.mark.parametrize("path", ["/v1/models", "/translator/v1/models"])
def test_a_prefix_is_taken_off_or_not(path):
    client = a_client(a_host(), prefix="/translator")
    assert client.get(path).status_code == 200
    assert client.get("/openapi.json").json()["servers"] == [{"url": "/translator"}]
    assert client.get("/translatorx/v1/models").status_code == 404
    found = client.get("/translator", follow_redirects=False)
    assert (found.status_code, found.headers["location"]) == (308, "/translator/")
    for probe, status in {"/health/ready": 200, "/translator/health/live": 200, "/v1/models": 421}.items():
        assert client.get(probe, headers={"Host": "10.0.0.5:8000"}).status_code == status


@pytest.mark.parametrize("prefix", ["", "/translator"])
def test_the_page_is_served_with_a_strict_policy_and_its_files_alone(prefix):
    client = a_client(a_host(), prefix=prefix)
    page = client.get(f"{prefix}/")
    assert page.headers["content-type"] == "text/html; charset=utf-8"
    for name in re.findall(r'(?:href|src)="([^"#]+[.](?:js|css|svg))"', page.text):
        assert not name.startswith(("/", "http"))  # it works under any prefix
        answer = client.get(f"{prefix}/{name}")
        assert answer.status_code == 200, name
        assert "script-src 'self'" in answer.headers["content-security-policy"]
        assert "unsafe" not in answer.headers["content-security-policy"]
        kind = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}[Path(name).suffix]
        assert answer.headers["content-type"].startswith(kind)


def keys_of(*keys, per_minute=None, clock=lambda: 0.0):
    clients = [Client(key, hashlib.sha256(key.encode()).hexdigest(), per_minute) for key in keys]
    return Keys(clients, clock)


def test_a_key_opens_the_routes_and_without_one_nothing_is_done(host):
    client, body = a_client(host, keys=keys_of("one", "two")), {"text": "a", "source": "en"}
    for headers in ({"Authorization": "Bearer one"}, {"authorization": "bearer two"}, {"X-API-Key": "one"}):
        assert client.post("/v1/translate", json=body, headers=headers).status_code == 200
        assert client.get("/metrics", headers=headers).status_code == 200
    assert client.get("/v1/models").status_code == 200  # as the languages, for all
    for headers in ({}, {"Authorization": "Bearer three"}, {"Authorization": "Basic one"}, {"X-API-Key": ""}):
        for path in ("/v1/translate", "/v1/reload", "/v1/completions"):
            answer = client.post(path, json=body, headers=headers)
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
            assert answer.json()["error"]["code"] == "unauthorized"
        assert client.get("/metrics", headers=headers).status_code == 401
    assert host.num_reloads == 0 and len(host.models["en-de"].engine.asked) == 3


def test_a_key_has_a_rate():
    now = [0.0]
    keys = keys_of("one", per_minute=2, clock=lambda: now[0])
    assert keys.admit("one")
    assert keys.admit("one")
    with pytest.raises(Refusal) as refused:
        keys.admit("one")
    assert (refused.value.status, refused.value.retry_after) == (429, 30.0)
    now[0] = 30.0
    assert keys.admit("one")
    client = a_client(a_host(), keys=keys)
    answer = client.post("/v1/detect", json={"text": "a"}, headers={"X-API-Key": "one"})
    assert (answer.status_code, answer.headers["retry-after"]) == (429, "30")


def test_models_are_loaded_again_by_whoever_has_a_key():
    host = a_host()
    assert a_client(host).post("/v1/reload").status_code == 403
    answer = a_client(host, keys=keys_of("one")).post("/v1/reload", headers={"X-API-Key": "one"})
    assert answer.json() == {"models": ["en-de", "fr-de", "writer", "labels"], "is_done": True}
    assert host.num_reloads == 1


def test_a_file_has_the_keys(tmp_path):
    path = tmp_path / "keys"
    key, line = new_key("me")
    path.write_text(f"# who may ask\n\n{line} 60\n{new_key('you')[1]}\n")
    keys = Keys.read(path)
    assert [(client.name, client.per_minute) for client in keys.clients] == [("me", 60), ("you", None)]
    assert keys.admit(key)
    assert not keys.admit(line.split()[1])  # the hash opens nothing
    assert key not in path.read_text()


@pytest.mark.parametrize("text", ["", "# nobody\n", "me secret\n", f"me {'a' * 64} 0\n", f"me {'a' * 64} 1 1\n"])
def test_a_file_that_has_none_is_refused_and_not_quoted(tmp_path, text):
    (tmp_path / "keys").write_text(text)
    with pytest.raises(RequestError, match="--new-key") as refused:
        Keys.read(tmp_path / "keys")
    assert "secret" not in str(refused.value)
    with pytest.raises(RequestError, match="letters"):
        new_key("a b")


def test_a_form_may_be_any_bytes(client):
    kinds = ["application/x-www-form-urlencoded", "multipart/form-data", "multipart/form-data; boundary=x"]
    for kind in kinds:
        for body in (b"", b"q=%ff&source=en&target=de", b"&" * 3_000, b"\x00\xff", b"--x\r\n\r\n--x--"):
            answer = client.post("/translate", content=body, headers={"Content-Type": kind})
            assert answer.status_code == 400
            assert set(json.loads(answer.content)) == {"error"}


def test_parts_of_a_form_hold_no_parts(client):
    """Reading parts within parts takes the square of their number."""
    head = (
        b'--%d\r\nContent-Type: multipart/mixed; boundary=%d\r\nContent-Disposition: form-data; name="q"' + b";" * 900
    )
    body = b"\r\n\r\n".join(head % (depth, depth + 1) for depth in range(1_500))
    begun = time.monotonic()
    answer = client.post("/translate", content=body, headers={"Content-Type": "multipart/form-data; boundary=0"})
    assert answer.status_code == 400
    assert time.monotonic() - begun < 2
