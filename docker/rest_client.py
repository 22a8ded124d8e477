"""Translates lines of standard input with TensorFlow Serving over REST.

pip install choppa-srx
echo 'forty-two' | python rest_client.py --url http://localhost:8501 --model translator --language en
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import urllib.error
import urllib.request
from typing import Any

from sentences import in_batches, print_lines, read_lines, translated


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

    def translate(sentences: list[str]) -> list[str]:
        return predict(arguments.url, arguments.model, sentences)["translation"]

    def lists(lines: list[str]) -> list[tuple[list[str], list[float]]]:
        found = predict(arguments.url, arguments.model, lines, "n_best")
        return list(zip(found["translations"], found["scores"], strict=True))

    try:
        if arguments.n_best:
            printed = [
                f"{number}\t{text}\t{score:.4f}"
                for number, columns in enumerate(in_batches(read_lines(), lists))
                for text, score in zip(*columns, strict=True)
            ]
        else:
            printed = translated(read_lines(), arguments.language, translate)
    except urllib.error.HTTPError as error:
        print(f"error: {arguments.url} answered {error.code}: {error.read().decode(errors='replace')}", file=sys.stderr)
        return 1
    except (OSError, http.client.HTTPException) as error:
        reason = getattr(error, "reason", error)
        print(f"error: cannot reach {arguments.url}: {reason}; is the server running?", file=sys.stderr)
        return 1
    print_lines(printed)
    return 0


if __name__ == "__main__":
    sys.exit(main())
