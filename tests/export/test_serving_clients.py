"""The clients for TensorFlow Serving, against servers on this machine that run the exported SavedModel.

The servers stand in for TensorFlow Serving: they speak its protocol, and the model behind them is the real one.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  (it registers the vocabulary's operators)

pytest_plugins = ["tests.tiny_run"]

CLIENTS = Path(__file__).resolve().parents[2] / "docker"
LINES = ["a dog runs to the sea", "", "one hundred and two dogs"]


@pytest.fixture(scope="module")
def model(exported):
    return tf.saved_model.load(str(exported / "saved_model"))


def client(name: str, *options: object) -> subprocess.CompletedProcess[str]:
    """Runs a client with the lines on its standard input."""
    command = [sys.executable, str(CLIENTS / name), *map(str, options)]
    return subprocess.run(command, input="".join(f"{line}\n" for line in LINES), capture_output=True, text=True)


@pytest.fixture(scope="module")
def rest(model) -> Iterator[str]:
    """The address of a server that answers as TensorFlow Serving's REST API does, in columns."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known = self.path == "/v1/models/translator:predict"
            answer = self.outputs(body) if known else {"error": f"no such model: {self.path}"}
            self.send_response(200 if known else 404)
            self.end_headers()
            self.wfile.write(json.dumps(answer).encode())

        def outputs(self, body):
            signature = model.signatures[body.get("signature_name", "serving_default")]
            found = signature(**{name: tf.constant(value) for name, value in body["inputs"].items()})
            return {"outputs": {name: texts_of(tensor) for name, tensor in found.items()}}

        def log_message(self, *_):
            pass

    def texts_of(tensor):
        array = tensor.numpy()
        return np.char.decode(array.astype(bytes), "utf-8").tolist() if array.dtype == object else array.tolist()

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def translations(translator) -> list[str]:
    return translator.translate(LINES, num_beams=3, length_penalty=0.8, max_length=12)


def test_the_rest_client_prints_a_translation_a_line(rest, translator):
    done = client("rest_client.py", "--url", rest)
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout.split("\n") == [*translations(translator), ""]


def test_the_rest_client_prints_lists(rest, translator):
    rows = [row.split("\t") for row in client("rest_client.py", "--url", rest, "--n-best").stdout.splitlines()]
    lists = translator.n_best(LINES, num_beams=3, length_penalty=0.8, max_length=12, n_best=3)
    for number, expected in enumerate(lists):
        found = [(text, float(score)) for line, text, score in rows if line == str(number)]
        assert [text for text, _ in found][: len(expected)] == [one.text for one in expected]
        assert [score for _, score in found][: len(expected)] == pytest.approx(
            [one.score for one in expected], abs=1e-3
        )


def test_the_rest_client_tells_what_the_server_refuses(rest):
    done = client("rest_client.py", "--url", rest, "--model", "other")
    assert done.returncode == 1 and "answered 404: " in done.stderr and "/v1/models/other:predict" in done.stderr
    done = client("rest_client.py", "--url", "http://127.0.0.1:1")
    assert done.returncode == 1 and done.stderr.startswith("error: cannot reach http://127.0.0.1:1: ")


@pytest.mark.parity
def test_the_grpc_client_prints_a_translation_a_line(model, translator):
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            if request.model_spec.name != "translator":
                context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
            inputs = {name: tf.constant(tf.make_ndarray(value)) for name, value in request.inputs.items()}
            answer = predict_pb2.PredictResponse()
            for name, tensor in model.signatures["serving_default"](**inputs).items():
                answer.outputs[name].CopyFrom(tf.make_tensor_proto(tensor))
            return answer

    server = grpc.server(ThreadPoolExecutor(1))
    prediction_service_pb2_grpc.add_PredictionServiceServicer_to_server(Service(), server)
    address = f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}"
    server.start()
    try:
        done = client("grpc_client.py", "--address", address)
        assert done.returncode == 0, done.stderr
        assert done.stdout.split("\n") == [*translations(translator), ""]
        done = client("grpc_client.py", "--address", address, "--model", "other")
        assert done.returncode == 1 and done.stderr.endswith(f"error: {address}: NOT_FOUND: no such model\n")
    finally:
        server.stop(None)
