"""Translates lines of standard input with TensorFlow Serving over REST.

pip install choppa-srx
echo 'forty-two' | python rest_client.py --url http://localhost:8501 --model translator --language en
"""

from __future__ import annotations

import argparse
import json
import sys
import urllib.error
import urllib.request
from typing import Any

from sentences import translated


def predict(url: str, model: str, lines: list[str], signature: str = "serving_default") -> dict[str, Any]:
    """The outputs of a signature for lines of text, by name.

    Raises:
        urllib.error.URLError: the server cannot be reached, or refuses the request.
    """
    body = json.dumps({"signature_name": signature, "inputs": {"text": lines}}).encode()
    request = urllib.request.Request(
        f"{url}/v1/models/{model}:predict", body, {"Content-Type": "application/json"}
    )  # fmt: skip
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)["outputs"]


def main() -> int:
    """Prints the translation of each line; with --n-best a row for each translation of the whole line: line, text,
    score."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--url", default="http://localhost:8501", help="of the server (default: %(default)s)")
    parser.add_argument("--model", default="translator", help="its name in models.config (default: %(default)s)")
    parser.add_argument("--language", default="en", help="of the lines, by whose rules sentences end (default: en)")
    parser.add_argument("--n-best", action="store_true", help="print the list of the signature n_best")
    arguments = parser.parse_args()
    lines = sys.stdin.read().splitlines()
    try:
        if not arguments.n_best:

            def translate(sentences: list[str]) -> list[str]:
                return predict(arguments.url, arguments.model, sentences)["translation"]

            print(*translated(lines, arguments.language, translate), sep="\n")
            return 0
        found = predict(arguments.url, arguments.model, lines, "n_best")
    except urllib.error.HTTPError as error:
        print(f"error: {arguments.url} answered {error.code}: {error.read().decode(errors='replace')}", file=sys.stderr)
        return 1
    except urllib.error.URLError as error:
        print(f"error: cannot reach {arguments.url}: {error.reason}; is the server running?", file=sys.stderr)
        return 1
    for number, (texts, scores) in enumerate(zip(found["translations"], found["scores"], strict=True)):
        for text, score in zip(texts, scores, strict=True):
            print(f"{number}\t{text}\t{score:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
