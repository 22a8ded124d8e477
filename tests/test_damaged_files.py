"""Files that a command reads: a value of another type is refused in one line, or harmless, wherever it stands."""

import argparse
import json
import random
import shutil
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from export import signatures
from keras_transformer.__main__ import main
from keras_transformer.bleu import tokenizer_for
from keras_transformer.commands.search import own_search_of
from keras_transformer.decoding import translator as translating
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.errors import exit_status
from keras_transformer.run_folder import RunFolder, read_config, write_config
from keras_transformer.training.request import open_run
from tests.tiny_corpus import write_corpus

STRANGE: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, 10**400, float("inf"), float("nan"), "", "x", "0.6", "x " * 100, "\ud800", "\0", [],
    ["de"], [1], [[]], {}, {"name": "x"},
]  # fmt: skip
KNOWN = [  # that once ended in a traceback
    (("search", "length_penalty"), "0.6"),
    (("search", "length_penalty"), None),
    (("corpus", "target_language"), ["de"]),
    (("corpus", "name"), "\ud800"),
    (("settings", "task"), "painting"),
    (("settings", "task"), []),
    (("settings", "source"), "\0"),
    (("settings", "steps"), 10**400),
    (("settings", "steps"), 0),
    (("settings", "learning_rate_factor"), 10**400),
]


def places(value: Any, place: tuple = ()) -> Iterator[tuple]:
    """The place of everything in a value of JSON, of the whole first."""
    yield place
    if isinstance(value, dict | list):
        for key, part in value.items() if isinstance(value, dict) else enumerate(value):
            yield from places(part, (*place, key))


def put(value: Any, place: tuple, new: Any) -> Any:
    """A copy with something else at a place."""
    if not place:
        return new
    copy = value.copy()
    copy[place[0]] = put(value[place[0]], place[1:], new)
    return copy


def strange(value: Any, count: int) -> Iterator[tuple[tuple, Any]]:
    """For each place in a value some strange values; the same in each run of the test."""
    for place in places(value):
        yield from ((place, new) for new in random.Random(repr(place)).sample(STRANGE, count))


@pytest.fixture
def run(built_run, tmp_path) -> RunFolder:
    """A run with every section of config.json, as if training had written it."""
    source, target = map(str, write_corpus(tmp_path, 30))
    asked = open_run({"source": source, "target": target, "preset": "tiny", "out": str(tmp_path / "run")})
    assert asked is not None
    folder = RunFolder(shutil.copytree(built_run, tmp_path / "run"))
    rest = {
        "model": read_config(folder)["model"],
        "search": {"num_beams": 2, "length_penalty": 0.6, "max_length": 9},
        "parameters": 1,
        "weights": {"kind": "mean", "at_step": 5, "asked_steps": 5, "steps": [4, 5], "val_bleu": 1.5},
    }
    write_config(folder, {**asked.config, **rest})
    return folder


@pytest.fixture
def readers(run, tiny_model, tmp_path, monkeypatch) -> dict[str, Callable[[], object]]:
    """What reads a run's config.json, up to where a model would be made."""
    monkeypatch.setattr(translating, "load_model", lambda folder, kind: read_config(folder) and tiny_model)
    path, settings = str(run.path), read_config(run)["settings"]
    text = {name: settings[name] for name in ("source", "target")}

    def evaluate() -> None:
        arguments = argparse.Namespace(run=path)
        SearchOptions(**own_search_of(arguments))
        tokenizer_for(translating.load(path).target_language)

    def export() -> None:
        trained = signatures.open_run(path)
        "".join(trained.metadata(trained.decoding(), "float32").values()).encode()

    return {
        "evaluate": evaluate,
        "export": export,
        "resume": lambda: open_run({"resume": True, "out": path, "steps": 10**9}),
        "fine-tune": lambda: open_run({**text, "init_from": path, "out": str(tmp_path / "new")}),
        "write again": lambda: write_config(RunFolder(tmp_path), read_config(run)),
    }


def test_a_strange_value_in_a_configuration_is_refused_in_one_line_or_harmless(run, readers, capfd):
    whole, refused = json.loads(run.config.read_text()), set()
    for place, new in [*KNOWN, *strange(whole, 2)]:
        run.config.write_text(json.dumps(put(whole, place, new)))
        for name, read in {**readers, "info": lambda: None}.items():
            status = main(["info", str(run.path)]) if name == "info" else exit_status(read)
            error = capfd.readouterr().err
            told = f"{name} with {new!r:.60} at {place}: {error:.500}"
            assert status in (0, 2), told
            if status:
                refused.add(name)
                assert error.splitlines()[-1].startswith("error: ") and len(error) < 2000, told
    assert refused == {*readers, "info"}
