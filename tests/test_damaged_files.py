"""Files that a command reads: a value of another type is refused in one line, or harmless, wherever it stands."""

import json
import random
from argparse import Namespace
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from export import artefacts
from keras_transformer.bleu import tokenizer_for
from keras_transformer.commands.runs import info
from keras_transformer.decoding.search_options import SearchOptions
from keras_transformer.errors import exit_status
from keras_transformer.run_folder import RunFolder, load_model, read_config, write_config
from keras_transformer.tasks.translation import pipeline as translating
from keras_transformer.tasks.translation.commands.translate import own_search_of
from keras_transformer.training.request import open_run
from tests.golden.cases import write_files
from tests.golden.stored import unpack

STRANGE: list[Any] = [
    None, True, -1, 0, 1.5, 10**30, 10**400, float("inf"), float("nan"), "", "x", "0.6", "x " * 100, "\ud800", "\0", [],
    ["de"], [1], [[]], {}, {"name": "x"},
]  # fmt: skip
KNOWN = [  # that once ended in a traceback
    (("search", "length_penalty"), "0.6"), (("search", "length_penalty"), None), (("settings", "source"), "\0"),
    (("corpus", "target_language"), ["de"]), (("corpus", "name"), "\ud800"), (("settings", "task"), []),
    (("settings", "steps"), 10**400), (("settings", "steps"), 0), (("settings", "learning_rate_factor"), 10**400),
]  # fmt: skip


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
def run(tmp_path, monkeypatch) -> RunFolder:
    """A run that was trained, with its text beside it, and with a search of its own."""
    monkeypatch.chdir(tmp_path)
    write_files("translation", tmp_path)
    run = RunFolder(unpack("translation", tmp_path / "run"))
    write_config(run, {**read_config(run), "search": {"num_beams": 2, "length_penalty": 0.6, "max_length": 9}})
    return run


@pytest.fixture
def readers(run, tmp_path, monkeypatch) -> dict[str, Callable[[], object]]:
    """What reads a run's config.json, up to where a model would be made."""
    model, path = load_model(run), str(run.path)
    monkeypatch.setattr(translating, "load_model", lambda folder, kind: read_config(folder) and model)

    def export() -> None:
        trained = artefacts.open_run(path)
        "".join(trained.metadata(trained.decoding(), "float32").values()).encode()

    return {
        "search": lambda: SearchOptions(**own_search_of(Namespace(run=path))),
        "evaluate": lambda: tokenizer_for(translating.load(path).target_language),
        "export": export,
        "info": lambda: info(Namespace(run=path)),
        "resume": lambda: open_run({"resume": True, "out": path, "steps": 10**9}),
        "fine-tune": lambda: open_run({"source": "source", "target": "target", "init_from": path, "out": "new"}),
        "write again": lambda: write_config(RunFolder(tmp_path), read_config(run)),
    }


def test_a_strange_value_in_a_configuration_is_refused_in_one_line_or_harmless(run, readers, capfd):
    assert {exit_status(read) for read in readers.values()} == {0}, "as long as nothing is strange"
    whole, refused = json.loads(run.config.read_text()), set()
    for place, new in [*KNOWN, *strange(whole, 2)]:
        run.config.write_text(json.dumps(put(whole, place, new)))
        for name, read in readers.items():
            status, error = exit_status(read), capfd.readouterr().err
            told = f"{name} with {new!r:.60} at {place}: {error:.500}"
            assert status in (0, 2), told
            if status:
                refused.add(name)
                assert error.splitlines()[-1].startswith("error: ") and len(error) < 2000, told
    assert refused == readers.keys()
