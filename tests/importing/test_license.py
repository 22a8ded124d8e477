"""The licence that a folder names: it is kept in the run, shown by `info`, and told by exports and by runs after it."""

import json

import pytest

import keras_transformer
from export.artefacts import open_run
from keras_transformer.__main__ import main
from keras_transformer.core.errors import RequestError
from keras_transformer.importing.folder import ModelFolder, license_of
from keras_transformer.runs.run_folder import read_config
from keras_transformer.training.request import open_run as open_training
from tests.importing.theirs import change, write
from tests.tiny_corpus import write_corpus

PAGES = [
    ("---\nlanguage: en\nlicense: apache-2.0\ntags:\n- translation\n---\n# Model", "apache-2.0"),
    ("---\r\nlicense: 'cc-by-4.0'  # see below\r\n---\r\n", "cc-by-4.0"),
    ("---\nlicense:\n- mit\n- apache-2.0\nlanguage:\n- en\n---\n", "mit apache-2.0"),
    ("---\nlicense: other\nlicense_name: llama3\nlicense_link: LICENSE\n---\n", "other llama3"),
    ("---\nlicense: a\x1b[31mb\n---\n", "a[31mb"),
    ("---\nlicense: " + 70_000 * "x" + "\n", 200 * "x"),
    ("# license: mit\nlicense: mit\n", ""), ("---\nlicense:\n---\nlicense: mit", ""), ("", ""),
]  # fmt: skip


@pytest.mark.parametrize(("page", "license"), PAGES)
def test_the_head_of_a_page_names_it(page, license, tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "README.md").write_bytes(page.encode())
    assert license_of(ModelFolder(tmp_path)) == license


def test_then_the_configuration_then_a_file(tmp_path):
    (tmp_path / "config.json").write_text("{}")
    (tmp_path / "LICENSE").write_bytes(b"\n  MIT License\n\nCopyright (c) 2019 One \xff\n\nPermission is\n")
    assert license_of(ModelFolder(tmp_path)) == "MIT License Copyright (c) 2019 One \ufffd"
    change(tmp_path, "config.json", license="cc0-1.0")
    assert license_of(ModelFolder(tmp_path)) == "cc0-1.0"
    change(tmp_path, "config.json", license={"a": 1})
    assert license_of(ModelFolder(tmp_path)).startswith("MIT")


def test_it_is_kept_and_told(tmp_path, capsys):
    folder, run = write("marian", tmp_path / "model"), tmp_path / "run"
    (folder / "README.md").write_text(PAGES[0][0])
    assert main(["import", str(folder), str(run)]) == 0
    assert read_config(run).license == "apache-2.0"
    assert main(["info", str(run)]) == 0
    assert "\nlicense: apache-2.0\n" in capsys.readouterr().out
    keras_transformer.load(run, engine="keras").save(tmp_path / "again")
    assert read_config(tmp_path / "again").license == "apache-2.0"
    exported = open_run(run)
    assert exported.metadata(exported.decoding(), "float32")["license"] == "apache-2.0"
    source, target = write_corpus(tmp_path, 60)
    tuned = open_training({
        "init_from": str(run), "source": str(source), "target": str(target), "out": str(tmp_path / "tuned"), "steps": 5,
    })  # fmt: skip
    assert tuned is not None and tuned.config.license == "apache-2.0"
    for wrong in (3, "x" * 201, "a\nb"):
        text = json.dumps({**json.loads((run / "config.json").read_text()), "license": wrong})
        (run / "config.json").write_text(text)
        with pytest.raises(RequestError, match="characters in a line under 'license'"):
            read_config(run)
