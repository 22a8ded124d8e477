"""The clients print what an exported SavedModel answers, from servers that stand in for TensorFlow Serving."""

import json
import os
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
import tensorflow as tf
import tensorflow_text  # noqa: F401  (it registers the vocabulary's operators)

from tests.export.conftest import SEARCH
from tests.processes import ROOT

SPLIT = "ba\x0bdo\u2028fi\x0cgu"  # a line: only \n ends one
LINES = [SPLIT, "", "lo lo mi", *["ka"] * 30]
SPACED = ["ba do fi gu", *LINES[1:]]
MOST = 32  # texts in a request


@pytest.fixture(scope="module")
def model(exported):
    return tf.saved_model.load(str(exported / "saved_model"))


def client(name: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Runs a client with the lines on its standard input, where UTF-8 is not the encoding of the environment."""
    command, environment = (
        [sys.executable, str(ROOT / "docker" / name), *options],
        {**os.environ, "PYTHONIOENCODING": "ascii"},
    )
    stdin = "".join(f"{line}\n" for line in LINES)
    return subprocess.run(command, input=stdin, capture_output=True, encoding="utf-8", env=environment)


def test_the_rest_client_prints_translations_or_lists_or_what_the_server_refuses(model, trained):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            known, fits = self.path == "/v1/models/translator:predict", len(body["inputs"]["text"]) <= MOST
            self.send_response(200 if known and fits else 400 if known else 404)
            self.end_headers()
            if known and fits:
                signature = model.signatures[body.get("signature_name", "serving_default")]
                found = signature(**{name: tf.constant(value) for name, value in body["inputs"].items()})
                columns = {name: tensor.numpy().tolist() for name, tensor in found.items()}
                self.wfile.write(json.dumps({"outputs": columns}, default=bytes.decode).encode())

        def log_message(self, *_):
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        url = f"http://127.0.0.1:{server.server_port}"
        lines, lists, refused = (client("rest_client.py", "--url", url, *more) for more in
                                 ([], ["--n-best"], ["--model", "other"]))  # fmt: skip
        server.shutdown()
    assert (lines.returncode, lines.stderr) == (0, "")
    assert lines.stdout.split("\n") == [*trained.pipeline.translate(SPACED, **SEARCH), ""]
    rows = [row.split("\t") for row in lists.stdout.splitlines()]
    for number, expected in enumerate(trained.pipeline.n_best(SPACED, n_best=3, **SEARCH)):
        found = [(text, float(score)) for line, text, score in rows if line == str(number)]
        assert found[: len(expected)] == [(one.text, pytest.approx(one.score, abs=1e-3)) for one in expected]
    assert refused.returncode == 1 and "answered 404: " in refused.stderr
    nobody = client("rest_client.py", "--url", "http://127.0.0.1:1")
    assert nobody.returncode == 1 and nobody.stderr.startswith("error: cannot reach http://127.0.0.1:1: ")


@pytest.mark.parity
def test_the_grpc_client_prints_a_translation_a_line(model, trained):
    import grpc
    from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc

    class Service(prediction_service_pb2_grpc.PredictionServiceServicer):
        def Predict(self, request, context):
            if request.model_spec.name != "translator":
                context.abort(grpc.StatusCode.NOT_FOUND, "no such model")
            assert request.inputs["text"].tensor_shape.dim[0].size <= MOST
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
        done, other = (client("grpc_client.py", "--address", address, *more) for more in ([], ["--model", "other"]))
    finally:
        server.stop(None)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n") == [*trained.pipeline.translate(SPACED, **SEARCH), ""]
    assert other.returncode == 1 and other.stderr.endswith(f"error: {address}: NOT_FOUND: no such model\n")
