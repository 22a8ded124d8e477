"""Files that a command reads: a value of another type is refused in one line, or harmless, wherever it stands."""

import json
from argparse import Namespace
from collections.abc import Callable
from dataclasses import replace

import pytest

from export import artefacts
from keras_transformer.commands.runs import info
from keras_transformer.core.errors import exit_status
from keras_transformer.runs.run_folder import RunFolder, load_model, read_config, write_config
from keras_transformer.spec.search_options import SearchOptions
from keras_transformer.tasks.translation import loading
from keras_transformer.tasks.translation.commands.translate import own_search_of
from keras_transformer.text.bleu import tokenizer_for
from keras_transformer.training.request import open_run
from tests.fuzz import put, strange
from tests.fuzz_kinds import KINDS, TRANSLATOR
from tests.golden.cases import write_files
from tests.golden.stored import unpack
from tests.processes import run_python

KNOWN = [  # that once ended in a traceback
    (("search", "length_penalty"), "0.6"), (("search", "length_penalty"), None), (("settings", "source"), "\0"),
    (("corpus", "target_language"), ["de"]), (("corpus", "name"), "\ud800"), (("settings", "task"), []),
    (("settings", "steps"), 10**400), (("settings", "steps"), 0), (("settings", "learning_rate_factor"), 10**400),
]  # fmt: skip


@pytest.fixture
def run(tmp_path, monkeypatch) -> RunFolder:
    """A run that was trained, with its text beside it, and with a search of its own."""
    monkeypatch.chdir(tmp_path)
    write_files("translation", tmp_path)
    run = RunFolder(unpack("translation", tmp_path / "run"))
    write_config(run, replace(read_config(run), search={"num_beams": 2, "length_penalty": 0.6, "max_length": 9}))
    return run


@pytest.fixture
def readers(run, tmp_path, monkeypatch) -> dict[str, Callable[[], object]]:
    """What reads a run's config.json, up to where a model would be made."""
    model, path = load_model(run), str(run.path)
    monkeypatch.setattr(loading, "load_model", lambda folder, kind: read_config(folder) and model)

    def export() -> None:
        trained = artefacts.open_run(path)
        "".join(trained.metadata(trained.decoding(), "float32").values()).encode()

    return {
        "search": lambda: SearchOptions(**own_search_of(Namespace(run=path))),
        "evaluate": lambda: tokenizer_for(loading.load(path, engine="keras").target_language),
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


def test_every_kind_of_file_that_is_changed_at_random_is_refused_in_one_line_or_harmless():
    """By the program; TensorFlow has no threads in its process, which forks."""
    kinds = [f"--kind={kind.name}" for kind in KINDS if kind.make is not TRANSLATOR]
    run_python("-m", "tests.fuzz", "--mutations", 4, *kinds)


@pytest.mark.full
def test_many_changes_and_those_of_exports():
    run_python("-m", "tests.fuzz", "--mutations", 10_000, seconds=None)
