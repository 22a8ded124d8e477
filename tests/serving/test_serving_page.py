"""What the page Serving tells a newcomer to type does what it says."""

import json
import re
import shutil
import subprocess
import sys
from urllib.request import urlopen

import pytest

import keras_transformer
from tests.processes import ROOT
from tests.serving.test_serve_command import serving

PORT = "8000"
PAGE = (ROOT / "docs" / "serving.md").read_text(encoding="utf-8")
TEXTS = ["forty-two", "twelve"]


def blocks(beginning: str) -> list[str]:
    """The fenced code of the page that begins so."""
    found = re.findall(r"^```\w*\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    return [code for code in found if code.startswith(beginning)]


@pytest.fixture(scope="module")
def port():
    """Where `serve demo` listens: at a free port, in place of the page's."""
    with serving("demo") as server:
        told = server.line(r"^ready: http://127\.0\.0\.1:(\d+)/ serves demo \(int8\)\n")
        assert told[0].replace(told[1], PORT) in blocks("ready"), "what the page says that it prints"
        yield told[1]


def test_curl_and_python_get_the_translations(port, tmp_path):
    expected = keras_transformer.load("demo").translate(TEXTS)
    (program,) = blocks("import json")
    command = [sys.executable, "-c", program.replace(PORT, port)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout == f"{expected}\n"
    curl = next(code for code in blocks("curl") if "/v1/translate" in code)
    if shutil.which("curl"):
        command = ["/bin/sh", "-c", f"{curl.strip()} --silent".replace(PORT, port)]
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert [one["text"] for one in json.loads(done.stdout)["translations"]] == expected


def test_the_routes_are_those_that_the_server_tells(port):
    told = set(re.findall(r"`(/[\w/.]*)`", PAGE[PAGE.index("| route |") : PAGE.index("Text is split")]))
    with urlopen(f"http://127.0.0.1:{port}/openapi.json", timeout=60) as response:
        paths = set(json.load(response)["paths"])
    assert told - {"/"} <= paths
    assert paths - told <= {"/health", "/v1/reload"}, "the others are in the document alone"
