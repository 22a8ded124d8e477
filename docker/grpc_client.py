"""Translates lines of standard input with TensorFlow Serving over gRPC.

pip install tensorflow-serving-api choppa-srx
echo 'forty-two' | python grpc_client.py --address localhost:8500 --model translator --language en
"""

from __future__ import annotations

import argparse
import sys
from functools import partial

import grpc
import tensorflow as tf
from sentences import print_lines, read_lines, translated
from tensorflow_serving.apis import predict_pb2, prediction_service_pb2_grpc


def translate(address: str, model: str, lines: list[str]) -> list[str]:
    """The translation of each line.

    Raises:
        grpc.RpcError: the server cannot be reached, or refuses the request.
    """
    request = predict_pb2.PredictRequest()
    request.model_spec.name = model
    request.inputs["text"].CopyFrom(tf.make_tensor_proto(lines, dtype=tf.string, shape=[len(lines)]))
    with grpc.insecure_channel(address) as channel:
        answer = prediction_service_pb2_grpc.PredictionServiceStub(channel).Predict(request, timeout=60)
    return [text.decode() for text in tf.make_ndarray(answer.outputs["translation"])]


def main() -> int:
    """Prints the translation of each line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--address", default="localhost:8500", help="of the server (default: %(default)s)")
    parser.add_argument("--model", default="translator", help="its name in models.config (default: %(default)s)")
    parser.add_argument("--language", default="en", help="of the lines, by whose rules sentences end (default: en)")
    arguments = parser.parse_args()
    try:
        translate_some = partial(translate, arguments.address, arguments.model)
        lines = translated(read_lines(), arguments.language, translate_some)
    except grpc.RpcError as error:
        print(f"error: {arguments.address}: {error.code().name}: {error.details()}", file=sys.stderr)
        return 1
    print_lines(lines)
    return 0


if __name__ == "__main__":
    sys.exit(main())
