"""On real sockets: whoever leaves ends the work, slow senders are left, and bytes that are no HTTP harm nobody."""

import contextlib
import gc
import socket
import time

import pytest
from uvicorn.protocols.http.h11_impl import RequestResponseCycle

from keras_transformer.serving import serve, wire
from tests.serving.doors import a_request, served, until


def connected(port):
    return socket.create_connection(("127.0.0.1", port), timeout=5)


def answer_of(client):
    """What the server sends until it closes; nothing if it closed before."""
    with contextlib.suppress(ConnectionError):
        return b"".join(iter(lambda: client.recv(10_000), b""))
    return b""


REQUESTS = [
    ("en-de", "/v1/translate", '{"text": "a", "source": "en"}'),
    ("en-de", "/v1/translate", '{"text": "a", "source": "en", "stream": true}'),
    ("en-de", "/translate", '{"q": "a", "source": "en", "target": "de"}'),
    ("writer", "/v1/generate", '{"prompt": "a"}'),
    ("writer", "/v1/completions", '{"model": "writer", "prompt": "a", "stream": true}'),
    ("labels", "/v1/classify", '{"inputs": ["a"]}'),
]


@pytest.mark.parametrize(("model", "path", "body"), REQUESTS)
@pytest.mark.parametrize("how", ["close", "reset"])
def test_who_leaves_ends_the_work(host, model, path, body, how):
    engine = host.models[model].engine
    engine.never = True
    with served(host) as port:
        client = connected(port)
        client.sendall(a_request(path, body))
        until(lambda: engine.works)
        time.sleep(0.05)
        assert not engine.works[0].is_cancelled  # while the client waits, the work goes on
        if how == "reset":
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        client.close()
        assert until(lambda: engine.works[0].is_cancelled) < 0.2


def test_a_connection_answers_several_requests_and_tells_the_first_event_before_the_last(host):
    with served(host) as port, connected(port) as client:
        for more, part in (("", b'"text":"A"'), ("", b'"text":"A"'), (', "stream": true', b"event: item")):
            host.models["en-de"].engine.never = bool(more)
            client.sendall(a_request("/v1/translate", f'{{"text": "a", "source": "en"{more}}}'))
            told = b""
            while part not in told:
                told += client.recv(4_096)
            assert b"200 OK" in told


def test_what_a_request_held_is_let_go_with_its_answer(host):
    with served(host) as port, connected(port) as client:
        for _ in range(20):
            client.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            while b"live" not in client.recv(10_000):
                pass  # its head came alone
        gc.collect()
        assert sum(type(one) is RequestResponseCycle for one in gc.get_objects()) < 5


def test_slow_headers_and_slow_bodies_are_left(host, monkeypatch):
    monkeypatch.setattr(serve, "HEADER_SECONDS", 0.2)
    monkeypatch.setattr(wire, "BODY_SECONDS", 0.2)
    with served(host) as port:
        with connected(port) as client:
            client.sendall(b"GET /v1/models HTTP/1.1\r\nHost: loc")
            assert client.recv(1_000) == b""
        with connected(port) as client:
            client.sendall(a_request("/v1/translate", "{}")[:-1])
            answer = answer_of(client)
            assert answer.startswith(b"HTTP/1.1 408 ") and b"too_slow" in answer


def test_connections_are_bounded(host, monkeypatch):
    monkeypatch.setattr(serve, "MOST_CONNECTIONS", 3)
    with served(host) as port, connected(port), connected(port) as second, connected(port) as third:
        for client in (third, second):
            client.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            assert answer_of(client).startswith(b"HTTP/1.1 503 " if client is third else b"HTTP/1.1 200 ")


def test_a_body_that_is_too_large_is_not_read(host):
    with served(host) as port, connected(port) as client:
        client.sendall(a_request("/v1/translate", "", f"X: {'y' * 100}\r\n").replace(b"Length: 0", b"Length: 99999999"))
        assert answer_of(client).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize(
    "sent",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + bytes(200),
        b"GET / HTTP/9.9\r\n\r\n",
        b"\r\n" * 100,
        b"GET /%00%ff/..;/%0d%0aSet-Cookie:a HTTP/1.1\r\nHost: localhost\r\n\r\n",
        b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n",
        b"POST /v1/translate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nHost: evil\r\n\r\n",
        b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 400_000 + b"\r\n\r\n",
    ],
)
def test_bytes_that_are_no_http_harm_nobody(host, sent, caplog):
    with served(host) as port:
        with connected(port) as client:
            with contextlib.suppress(OSError):  # the server may have closed already
                client.sendall(sent)
                client.shutdown(socket.SHUT_WR)
            answer = answer_of(client)
            assert (not answer or answer.startswith(b"HTTP/1.1 4")) and b"Set-Cookie" not in answer
        with connected(port) as client:
            client.sendall(b"GET /health/live HTTP/1.1\r\nHost: localhost\r\n\r\n")
            assert b"200 OK" in client.recv(10_000)
    assert "LocalProtocolError" not in caplog.text


def test_no_part_of_an_answer_waits_until_the_client_confirms_another():
    with serve.listening("127.0.0.1", 0) as listener, connected(listener.getsockname()[1]), listener.accept()[0] as one:
        assert one.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)
