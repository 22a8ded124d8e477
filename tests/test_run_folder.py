"""config.json of a run: what is damaged, newer, or too large is refused by name; the rest is read whole."""

import json
import re
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest

import keras_transformer
from keras_transformer.commands.graph_cache import content_of
from keras_transformer.core.errors import RequestError
from keras_transformer.models import model_config
from keras_transformer.runs import run_folder as runs
from keras_transformer.runs.run_folder import FORMAT, MAX_CONFIG_BYTES
from keras_transformer.spec import model_spec
from tests.answers import printed, refused


def of_model(**changes: object) -> Callable[[dict], dict]:
    """A configuration with other values in its section of the model."""
    return lambda config: {**config, "model": {**config["model"], **changes}}


def beside(**changes: object) -> Callable[[dict], dict]:
    """A configuration with other sections."""
    return lambda config: {**config, **changes}


def by_version(version: str, change: Callable[[dict], dict]) -> Callable[[dict], dict]:
    """A change that another version made."""
    return lambda config: change({**config, "versions": {**config["versions"], "keras-transformer": version}})


def rewrite(run: Path, change: Callable[[dict], object] | str | bytes) -> None:
    """Changes config.json as a person would."""
    path = run / "config.json"
    value = json.dumps(change(json.loads(path.read_text(encoding="utf-8")))) if callable(change) else change
    path.write_bytes(value if isinstance(value, bytes) else value.encode())


KINDS = ", ".join(model_spec.KINDS)
# What values a model's arguments may have is tested in test_family.
DAMAGED: dict[str, tuple[Callable[[dict], object] | str | bytes, str]] = {
    "not JSON": ("{", "Expecting"),
    "too large": (b'{"format": 1, "model": {}, "settings": {}}' + b" " * MAX_CONFIG_BYTES, "larger than 1,"),
    "deeply nested": ("[" * 200_000 + "]" * 200_000, ""),
    "a list": ("[]", "expected an object with the keys"),
    "an unknown key": (beside(class_name="Lambda"), "expected only known keys; received 'class_name'"),
    "format 0": (beside(format=0), "expected a format from 2 to 3 under 'format'; received 0"),
    "true for a format": (beside(format=True), "expected a format up to 3 under 'format'; received True"),
    "a list for a section": (beside(settings=[]), "expected an object under 'settings'"),
    "a text for the versions": (beside(versions="9"), "expected an object under 'versions'"),
    "no count of parameters": (beside(parameters="many"), "expected a positive integer under 'parameters'"),
    "a text for a step": (beside(settings={"steps": "abc"}), "a whole number .*'settings.steps'; received 'abc'"),
    "a colour for a label": (beside(labels=["a\x1b[31m", "b"]), r"a line under 'labels\[0\]'; received 'a\\x1b\[31m'"),
    "a long label": (beside(labels=["a", "b" * 301]), r"at most 300 characters in a line under 'labels\[1\]'"),
    "a colour for a key": (beside(corpus={"\x1b[31m": 1}), "characters in a line under 'corpus'"),
    "a colour for a version": (beside(versions={"keras-transformer": "\x1b[31m"}), "a line under 'versions.keras-tr"),
    "a text for a search": (beside(search={"length_penalty": "1"}), "a number .* under 'search.length_penalty'"),
    "answers of a translator": (beside(answer_length=9), "expected 'answer_length' of a language model"),
    "a list for a kind": (of_model(kind=[]), rf"expected a model of the kinds {KINDS}; received \[\]"),
    "a huge size": (of_model(vocabulary_size=10**12), "`vocabulary_size` must be a whole number from 1 to 4,000,000"),
    "an unknown model key": (of_model(class_name="Lambda"), "only known keys under 'model'; received 'class_name'"),
    **{f"{modules!r} for modules": (beside(modules=modules), r"expected .* under 'modules(\[0\])?'; received")
       for modules in ("my_parts", [3], ["os; x"], [["os"]])},
    **{f"a key of version {version}": (by_version(version, of_model(drop_path=1)), "under 'model'; rec.* 'drop_path'")
       for version in ("0.0.9", keras_transformer.__version__, "dev")},
}  # fmt: skip


@pytest.mark.parametrize("name", DAMAGED)
def test_a_damaged_config_is_refused(run_folder, name):
    change, message = DAMAGED[name]
    rewrite(run_folder, change)
    path = re.escape(str(run_folder / "config.json"))
    with pytest.raises(RequestError, match=rf"^{path} is damaged or not a run's: .*{message}.*\Z"):
        runs.read_config(run_folder)


NEWER: dict[str, tuple[Callable[[dict], dict], str]] = {
    "a format, by a version that it does not tell": (beside(format=4, versions={}, model=[]), "format 4"),
    "a key of the model": (of_model(drop_path=0.1), "expected only known keys under 'model'; received 'drop_path'"),
    "a kind": (of_model(kind="seer"), f"expected a model of the kinds {KINDS}; received 'seer'"),
    "an option of a part": (of_model(positions={"name": "learned", "scale": 2}),
                            "`positions`: 'learned' has the options offset, separate. Received: scale"),
    "a key beside the model": (beside(lineage=[]), "expected only known keys; received 'lineage'"),
}  # fmt: skip


@pytest.mark.parametrize("name", NEWER)
def test_a_config_of_a_newer_version_is_refused_with_its_number(run_folder, name):
    change, unknown = NEWER[name]
    rewrite(run_folder, by_version("0.10.1", change))
    version = "unknown" if "not tell" in name else "0.10.1"
    message = (
        f"{run_folder / 'config.json'} was written by version {version} of keras-transformer, which this version, "
        f"{keras_transformer.__version__}, cannot read: install that version ({unknown})"
    )
    assert refused("info", run_folder) == f"error: {message}\n"


def test_a_config_of_an_older_format_is_refused_with_its_format_and_version(run_folder):
    rewrite(run_folder, by_version("0.1.3", beside(format=1, model=[])))
    message = (
        f"has the format 1 of version 0.1.3 of keras-transformer, which this version, {keras_transformer.__version__}"
    )
    with pytest.raises(RequestError, match=f"config.json {re.escape(message)}, no longer reads: use that version$"):
        runs.read_config(run_folder)


def test_a_run_that_could_not_be_read_again_is_not_written(run_folder):
    config, before = runs.read_config(run_folder), (run_folder / "config.json").read_bytes()
    for change in ({"labels": ["a", "b\nc"]}, {"labels": ["a", "a"]}, {"corpus": {"source_language": "\x1b[31m"}}):
        with pytest.raises(RequestError, match="under '(labels|corpus).*: choose another name$"):
            runs.write_config(runs.RunFolder(run_folder), replace(config, **change))
    assert (run_folder / "config.json").read_bytes() == before


def test_modules_that_no_part_needs_are_not_asked_for(run_folder):
    run = runs.RunFolder(run_folder)
    before = content_of(run)
    rewrite(run_folder, beside(modules=["nope", "sys"]))
    assert content_of(run) == before


def test_info_tells_the_depth_of_both_sides_only_where_it_holds(run_folder):
    config = runs.read_config(run_folder)
    for sides in ({"encoder_layers": 3}, {"encoder_layers": 3, "decoder_layers": 3}):
        runs.write_config(runs.RunFolder(run_folder), replace(config, model={**config.model, **sides}))
        assert ("  num_layers: " in printed("info", run_folder)) == (len(sides) == 1)


def test_info_prints_what_a_stranger_wrote_without_what_acts_on_a_terminal(run_folder):
    rewrite(run_folder, beside(corpus={"name": "a\x1b[31m\x9b\u202e\ud800"}, settings={"task": "unknown", "steps": 5}))
    (run_folder / "metrics.csv").write_text("step,\x1b[31m\n5,\x9b1\n")
    told = printed("info", run_folder)
    assert {*"\x1b\x9b\u202e\ud800"}.isdisjoint(told) and r"a\u001b[31m\u009b\u202e\ud800" in told


def test_a_missing_run_is_named(run_folder, tmp_path):
    with pytest.raises(RequestError, match="expected a run folder, with a config.json; found none in .*nowhere"):
        runs.read_config(tmp_path / "nowhere")
    with pytest.raises(RequestError, match=f"give a run in it, such as {run_folder}$"):
        runs.read_config(run_folder.parent)
    (tmp_path / "certificate.json").touch()
    with pytest.raises(RequestError, match="found none in .* it is an export: give the run"):
        runs.read_config(tmp_path)


def test_a_damaged_tokenizer_is_named(run_folder):
    (run_folder / "tokenizer.model").write_bytes(b"\x0a\xff\xff")
    assert "tokenizer.model" in refused("translate", run_folder)


def test_a_config_is_written_in_the_present_format_with_the_version_that_wrote_it_last(run_folder):
    before = runs.read_config(run_folder)
    versions = {"keras": "3", "keras-transformer": "0.1.0"}
    runs.write_config(runs.RunFolder(run_folder), replace(before, versions=versions))
    assert json.loads((run_folder / "config.json").read_text())["format"] == FORMAT == 3
    versions["keras-transformer"] = keras_transformer.__version__
    assert runs.read_config(run_folder) == replace(before, versions=versions)


def test_a_missing_argument_has_its_default(run_folder, tiny_model):
    whole = runs.read_config(run_folder)
    needed = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "max_source_length")
    rewrite(run_folder, lambda config: {**config, "model": {key: config["model"][key] for key in needed}})
    assert runs.read_config(run_folder) == whole
    assert whole.model == model_config(tiny_model) and whole.model.keys() == {"kind", *model_spec.ARGUMENTS}


@pytest.mark.parametrize(("length", "holds"), [(6, True), (7, False), (0, False), (True, False)])
def test_the_length_of_answers_is_one_that_the_context_holds(tmp_path, length, holds):
    model = {"kind": "language-model", "vocabulary_size": 20, "context_length": 8, "num_layers": 1}
    run = runs.RunFolder(tmp_path)
    runs.write_config(run, runs.RunConfig(model, {}, answer_length=length))
    error = "expected a whole number from 1( to 6)? under 'answer_length'; received"
    with nullcontext() if holds else pytest.raises(RequestError, match=error):
        assert runs.read_config(run).answer_length == length
