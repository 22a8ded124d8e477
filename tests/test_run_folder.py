"""Files are written whole or not at all, and untrusted run folders are read safely."""

from __future__ import annotations

import errno
import io
import json
import os
import re
import sys
import tempfile
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import h5py
import numpy as np
import pytest

import keras_transformer
from keras_transformer import family, files, weights_file
from keras_transformer import run_folder as runs
from keras_transformer.__main__ import main
from keras_transformer.errors import RequestError, Stopped
from keras_transformer.models import count_parameters, model_config
from keras_transformer.models.transformer import Transformer

pytest_plugins = ["tests.tiny_run", "tests.format_1"]

WEIGHTS = "model.weights.h5"


def test_writing_replaces_the_whole_file(tmp_path):
    path = tmp_path / "file.txt"
    files.write_text(path, "a long text")
    files.write_text(path, "short ü")
    assert path.read_bytes() == "short ü".encode()
    assert list(tmp_path.iterdir()) == [path]


@pytest.mark.parametrize("before", [None, "before"])
def test_a_failed_write_leaves_nothing(tmp_path, before):
    path = tmp_path / "file.txt"
    if before is not None:
        path.write_text(before)
    with pytest.raises(OSError, match="full"), files.write_whole(path) as aside:
        aside.write_text("half of")
        raise OSError("the disk is full")
    assert [file.read_text() for file in tmp_path.iterdir()] == ([] if before is None else [before])


def test_a_folder_that_is_being_replaced_when_the_process_is_stopped_is_there_again(tmp_path, monkeypatch):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "old").touch()
    rename = Path.rename

    def stopped(path, target):
        if "-new-" in path.name:
            raise Stopped(15, "stopped")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", stopped)
    with pytest.raises(Stopped), files.write_folder_whole(folder) as aside:
        (aside / "new").touch()
    assert [path.name for path in tmp_path.rglob("*")] == ["folder", "old"]


def test_a_folder_must_allow_to_write_and_to_enter(tmp_path, monkeypatch):
    """Root may do both anywhere, so the system is not asked."""
    asked = []
    monkeypatch.setattr(os, "access", lambda path, mode: asked.append((path, mode)))
    with pytest.raises(RequestError, match=f"no permission to write in {tmp_path}; choose another"):
        files.check_writable(tmp_path / "new" / "run")
    assert asked == [(tmp_path, os.W_OK | os.X_OK)]


def test_a_folder_that_may_not_be_searched_is_refused(tmp_path, monkeypatch):
    closed, stat = tmp_path / "closed", os.stat
    closed.mkdir()

    def stat_outside(path, **options):
        if closed in Path(path).parents:
            raise PermissionError(13, "Permission denied", str(path))
        return stat(path, **options)

    monkeypatch.setattr(os, "stat", stat_outside)
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(RequestError, match=f"no permission to write in {closed}; choose another"):
        files.check_writable(closed / "run")


def test_writing_follows_no_link_that_lies_in_the_folder(tmp_path):
    victim, path = tmp_path / "victim", tmp_path / "run" / "file.txt"
    victim.write_text("mine")
    path.parent.mkdir()
    path.symlink_to(victim)
    with files.write_whole(path) as aside:
        aside.write_text("text")
    with files.write_whole(path) as aside:
        pass_by = aside
        aside.write_text("text")
    pass_by.symlink_to(victim)  # as if guessed
    files.write_text(path, "more text")
    assert (victim.read_text(), path.read_text()) == ("mine", "more text")


def changed(config: dict, key: str, value: object) -> dict:
    return {**config, "model": {**config["model"], key: value}}


def nested(depth: int) -> str:
    return "[" * depth + "]" * depth


CONFIGS = {
    "not JSON": ("{", "damaged or not a run's: Expecting"),
    "not UTF-8": (b'{"format": "\xff"}', "damaged or not a run's: 'utf-8' codec"),
    "too large": (
        b'{"format": 1, "model": {}, "settings": {}}' + b" " * runs.MAX_CONFIG_BYTES,
        "larger than 1,000,000",
    ),
    "deeply nested": (nested(200_000), "damaged or not a run's"),
    "a list": ([], "expected an object with the keys"),
    "without a model": ({"format": 1, "settings": {}}, "expected an object with the keys"),
    "an unknown key": (lambda c: {**c, "class_name": "Lambda"}, "expected only known keys; received 'class_name'"),
    "no format": (lambda c: {**c, "format": "2"}, "expected a format from 1 to 2; received '2'"),
    "format 0": (lambda c: {**c, "format": 0}, "expected a format from 1 to 2; received 0"),
    "true for a format": (lambda c: {**c, "format": True}, "expected a format from 1 to 2; received True"),
    "a list for a section": (lambda config: {**config, "settings": []}, "expected an object under 'settings'"),
    "a text for the versions": (lambda config: {**config, "versions": "9"}, "expected an object under 'versions'"),
    "no count of parameters": (lambda c: {**c, "parameters": "many"}, "expected a positive integer under 'parameters'"),
    "answers of a translator": (lambda c: {**c, "answer_length": 9}, "expected 'answer_length' of a language model"),
    "another kind": (
        lambda c: changed(c, "kind", "painter"),
        "expected a model of the kinds translator, .*; received",
    ),
    "a list for a kind": (
        lambda c: changed(c, "kind", []),
        r"expected a model of the kinds translator, .*; received \[\]",
    ),
    "an unknown model key": (
        lambda c: changed(c, "class_name", "Lambda"),
        "expected only known keys; received 'class_name'",
    ),
    "an unknown model key of format 1": (
        lambda c: {**changed(c, "class_name", "Lambda"), "format": 1},
        "expected arguments among vocabulary_size, .*; received 'class_name'",
    ),
    "an unknown part": (
        lambda c: changed(c, "norm", "Lambda"),
        "`norm` must be one of layer, rms. Received: norm='Lambda'",
    ),
    "an unknown option": (
        lambda c: changed(c, "norm", {"name": "layer", "class_name": "Lambda"}),
        "`norm`: 'layer' has the options epsilon. Received: class_name",
    ),
    "a part that is a list": (lambda c: changed(c, "norm", ["layer"]), "`norm` must be a name, or a dictionary"),
    "a part whose name is a list": (lambda c: changed(c, "norm", {"name": ["layer"]}), "`norm` must be a name, or a"),
    "a text for a size": (
        lambda c: changed(c, "num_layers", "2"),
        "`num_layers` must be an integer from 1 to 512. Received: num_layers='2'",
    ),
    "a fraction for a size": (lambda c: changed(c, "num_heads", 2.0), "`num_heads` must be an integer from 1 to 1,024"),
    "true for a size": (lambda c: changed(c, "num_heads", True), "`num_heads` must be .* Received: num_heads=True"),
    "zero": (
        lambda c: changed(c, "hidden_dim", 0),
        "`hidden_dim` must be an integer from 1 to 65,536. Received: hidden_dim=0",
    ),
    "none for a size": (lambda c: changed(c, "hidden_dim", None), "`hidden_dim` must be an integer .* hidden_dim=None"),
    "a huge size": (
        lambda c: changed(c, "vocabulary_size", 10**12),
        "`vocabulary_size` must be an integer from 1 to 4,000,000",
    ),
    "a huge optional size": (lambda c: changed(c, "key_dim", 10**9), "`key_dim` must be an integer from 1 to 65,536"),
    "a huge option": (
        lambda c: changed(c, "positions", {"name": "learned", "offset": 10**9}),
        "`positions:offset` must be an integer from 0 to 1,000",
    ),
    "heads that do not divide the width": (
        lambda c: changed(c, "num_heads", 5),
        "`num_heads` must divide `hidden_dim`, or `key_dim` must be given",
    ),
    "a rate of one": (
        lambda c: changed(c, "dropout", 1),
        "`dropout` must be a number of at least 0 and less than 1. Received: dropout=1",
    ),
    "a rate that is no number": (lambda c: changed(c, "dropout", float("nan")), "`dropout` must be .* dropout=nan"),
    "true for a rate": (
        lambda c: changed(c, "attention_dropout", True),
        "`attention_dropout` must be a number of at least 0",
    ),
    "a number for a switch": (
        lambda c: changed(c, "tied_output", 1),
        "`tied_output` must be true or false. Received: tied_output=1",
    ),
    "a switch of format 1 in format 2": (
        lambda c: changed(c, "normalize_first", True),
        "expected only known keys; received 'normalize_first'",
    ),
    "a number for a switch of format 1": (
        lambda c: {**changed(c, "normalize_first", 1), "format": 1},
        "`normalize_first` must be true or false. Received: normalize_first=1",
    ),
    "a number for an old switch among the settings": (
        lambda c: {**c, "settings": {"learned_positions": 1}},
        "`learned_positions` must be true or false. Received: learned_positions=1",
    ),
}


@pytest.mark.parametrize("name", CONFIGS)
def test_a_damaged_config_is_refused(run_folder, name):
    value, message = CONFIGS[name]
    if callable(value):
        value = value(runs.read_config(run_folder))
    text = value if isinstance(value, str | bytes) else json.dumps(value)
    path = run_folder / "config.json"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(RequestError, match=f"^{re.escape(str(path))} is damaged or not a run's: ") as caught:
        runs.read_config(run_folder)
    assert re.search(message, str(caught.value))
    assert "\n" not in str(caught.value)


def test_a_missing_run_is_named(tmp_path):
    with pytest.raises(RequestError, match="expected a run folder, with a config.json; found none in .*nowhere"):
        runs.read_config(tmp_path / "nowhere")
    (tmp_path / "certificate.json").touch()
    with pytest.raises(RequestError, match="found none in .* it is an export: give the run"):
        runs.read_config(tmp_path)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"residual": "pre_norm"},
        {"key_dim": 5, "num_heads": 3},
        {"source_vocabulary_size": 13},
        {"positions": "learned", "max_source_length": 7, "residual": "pre_norm"},
        {"encoder_layers": 1, "tied_output": False, "output_bias": True, "attention_bias": True},
    ],
    ids=str,
)
def test_parameters_are_counted_without_a_model(options):
    sizes = {"vocabulary_size": 11, "num_layers": 3, "num_heads": 2, "hidden_dim": 14, "intermediate_dim": 17}
    model = Transformer(**{**sizes, **options})
    trainable = sum(int(np.prod(variable.shape)) for variable in model.trainable_variables)
    assert count_parameters(model_config(model)) == trainable == model.count_params()


def test_save_and_load_keep_every_weight(run_folder, tiny_model):
    loaded = runs.load_model(run_folder)
    for theirs, ours in zip(loaded.trainable_variables, tiny_model.trainable_variables, strict=True):
        np.testing.assert_array_equal(theirs, ours)


def test_a_run_without_a_model_says_how_to_finish_it(run_folder):
    (run_folder / "model.keras").unlink()
    with pytest.raises(RequestError, match=r"has no model.keras yet: finish .* with `.* train --resume --out /.*run`"):
        runs.load_model(run_folder)


# Runs of other versions.


def write_run_config(run: Path, change: Callable[[dict], dict]) -> dict:
    """Changes config.json as a person would, and returns the new configuration."""
    config = change(json.loads((run / "config.json").read_text(encoding="utf-8")))
    (run / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return config


def test_a_config_is_written_in_the_present_format(run_folder):
    before = runs.read_config(run_folder)
    runs.write_config(runs.RunFolder(run_folder), {**before, "format": 1})
    assert json.loads((run_folder / "config.json").read_text())["format"] == runs.FORMAT == 2
    assert runs.read_config(run_folder) == before


def test_a_missing_argument_has_its_default(run_folder, tiny_model):
    whole = runs.read_config(run_folder)
    needed = ("vocabulary_size", "num_layers", "num_heads", "hidden_dim", "intermediate_dim", "max_source_length")
    write_run_config(run_folder, lambda config: {**config, "model": {key: config["model"][key] for key in needed}})
    assert runs.read_config(run_folder) == whole
    assert whole["model"] == model_config(tiny_model) and whole["model"].keys() == {"kind", *family.ARGUMENTS}
    write_run_config(run_folder, lambda config: changed(config, "norm", {"name": "layer"}))
    assert runs.read_config(run_folder)["model"]["norm"] == {"name": "layer", "epsilon": 1e-6}


def test_a_config_of_version_0_1_is_translated_into_todays(format_1):
    before = json.loads((format_1 / "run" / "config.json").read_text())
    assert before["format"] == 1 and before["model"]["normalize_first"] and before["settings"]["learned_positions"]
    config = runs.read_config(format_1 / "run")
    assert (config["format"], config["model"]["kind"]) == (2, "translator")
    model = {name: value for name, value in before["model"].items() if name in family.ARGUMENTS}
    parts = {"residual": {"name": "pre_norm"}, "positions": {"name": "learned", "offset": 0}}
    assert config["model"] == {"kind": "translator", **family.complete({**model, **parts})}
    old = ("normalize_first", "learned_positions")
    settings = {name: value for name, value in before["settings"].items() if name not in old}
    assert config["settings"] == {**settings, "residual": "pre_norm", "positions": "learned"}
    for key in ("corpus", "versions", "weights"):
        assert config[key] == before[key]
    assert json.loads((format_1 / "run" / "config.json").read_text()) == before, "reading writes nothing"


def test_a_run_of_version_0_1_translates_as_it_did(format_1, monkeypatch, capfdbinary):
    source = (format_1 / "lines.txt").read_bytes()
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(source)))
    assert main(["translate", str(format_1 / "run"), "--n-best", "2"]) == 0
    out, err = capfdbinary.readouterr()
    assert (out, err) == ((format_1 / "translations.txt").read_bytes(), b"")


def test_a_model_of_version_0_1_is_read_by_keras(format_1):
    import keras

    mine = runs.load_model(format_1 / "run")
    theirs = keras.saving.load_model(format_1 / "run" / "model.keras")
    assert type(theirs) is Transformer and theirs.arguments() == mine.arguments()
    for one, other in zip(mine.get_weights(), theirs.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
    inputs = {"source_ids": np.array([[5, 6, 3]]), "target_ids": np.array([[2, 7, 8]])}
    np.testing.assert_array_equal(*[keras.ops.convert_to_numpy(model(inputs)) for model in (mine, theirs)])
    # Weights of equal shapes, such as those of norms, must not be exchanged.
    with zipfile.ZipFile(format_1 / "run" / "model.keras") as file:
        weights = io.BytesIO(file.read(WEIGHTS))
    with h5py.File(weights) as file:
        for norm in ("encoder_norm", "decoder_norm"):
            for place, array in enumerate(getattr(mine, norm).get_weights()):
                np.testing.assert_array_equal(array, file[f"{norm}/vars/{place}"][()])


def test_info_of_a_run_of_version_0_1(format_1, capsys):
    assert main(["info", str(format_1 / "run")]) == 0
    out, err = capsys.readouterr()
    assert err == ""
    size = runs.load_model(format_1 / "run").count_params()
    for line in (f"parameters: {size:,}", '  residual: {"name": "pre_norm"}', '  keras-transformer: "0.1.0"'):
        assert f"{line}\n" in out
    assert "normalize_first" not in out


def later(change: Callable[[dict], dict], version: str) -> Callable[[dict], dict]:
    """The change, made by another version."""
    return lambda config: change({**config, "versions": {**config["versions"], "keras-transformer": version}})


NEWER = {
    "a format": (lambda c: {**c, "format": 3}, "9.1.0", "format 3"),
    "a format, by a version that it does not tell": (
        lambda c: {**c, "format": 3, "versions": {}},
        "unknown",
        "format 3",
    ),
    "a format, with keys of its own": (lambda c: {**c, "format": 7, "model": {"depth": 2}}, "9.1.0", "format 7"),
    "a key of the model": (lambda c: changed(c, "drop_path", 0.1), "0.10.1", "the key 'drop_path'"),
    "a kind": (
        lambda c: changed(c, "kind", "seer"),
        "0.10.1",
        f"expected a model of the kinds {', '.join(family.KINDS)}; received 'seer'",
    ),
    "a format, of another shape": (lambda c: {**c, "format": 3, "model": [], "weights": 1}, "9.1.0", "format 3"),
    "a part": (
        lambda c: changed(c, "positions", {"name": "absolute"}),
        "0.10.1",
        f"`positions` must be one of {', '.join(family.SLOTS['positions'])}. Received: positions='absolute'",
    ),
    "an option of a part": (
        lambda c: changed(c, "positions", {"name": "learned", "scale": 2}),
        "0.10.1",
        "`positions`: 'learned' has the options offset, separate. Received: scale",
    ),
    "a key beside the model": (lambda c: {**c, "lineage": []}, "1", "the key 'lineage'"),
}


@pytest.mark.parametrize("name", NEWER)
def test_a_config_of_a_newer_version_is_refused_with_its_number(run_folder, name, capsys):
    change, version, unknown = NEWER[name]
    write_run_config(run_folder, later(change, version))
    message = (
        f"{run_folder / 'config.json'} was written by version {version} of keras-transformer, which this version, "
        f"{keras_transformer.__version__}, cannot read: install that version ({unknown})"
    )
    with pytest.raises(RequestError, match=f"^{re.escape(message)}$"):
        runs.read_config(run_folder)
    assert main(["info", str(run_folder)]) == 2
    assert capsys.readouterr().err == f"error: {message}\n"


@pytest.mark.parametrize("version", [keras_transformer.__version__, "0.0.9", "", "dev"])
def test_an_unknown_key_of_no_newer_version_is_damage(run_folder, version):
    write_run_config(run_folder, later(lambda config: changed(config, "drop_path", 0.1), version))
    with pytest.raises(RequestError, match="is damaged or not a run's: expected only known keys; received 'drop_path'"):
        runs.read_config(run_folder)


def test_a_long_version_is_cut_in_the_message(run_folder):
    write_run_config(run_folder, later(lambda config: {**config, "format": 3}, "9" * 5000))
    with pytest.raises(RequestError) as caught:
        runs.read_config(run_folder)
    assert len(str(caught.value)) < 400 + len(str(run_folder))


# Archives: each function damages model.keras in its own way.


def entries(path: Path) -> dict[str, bytes]:
    with zipfile.ZipFile(path) as file:
        return {name: file.read(name) for name in file.namelist()}


def write_archive(path: Path, contents: dict[str, bytes], compression: int = zipfile.ZIP_STORED) -> None:
    with zipfile.ZipFile(path, "w", compression) as file:
        for name, data in contents.items():
            file.writestr(name, data)


def truncated(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def no_archive(path: Path) -> None:
    path.write_bytes(b"weights" * 1000)


def without_weights(path: Path) -> None:
    write_archive(path, {name: data for name, data in entries(path).items() if name != WEIGHTS})


def elsewhere(path: Path) -> None:
    """The weights under names that lead out of the folder."""
    weights = entries(path)[WEIGHTS]
    write_archive(path, {f"../{WEIGHTS}": weights, f"/tmp/{WEIGHTS}": weights})


def declared_too_large(path: Path) -> None:
    write_archive(path, {WEIGHTS: bytes(100_000_000)}, zipfile.ZIP_DEFLATED)


def compressed(path: Path) -> None:
    """As large as allowed, but compressed. A config.json of a large model could allow a bomb."""
    write_archive(path, entries(path), zipfile.ZIP_DEFLATED)


def larger_than_declared(path: Path) -> None:
    """A bomb of 100 MB that declares the size of the model's weights."""
    size = len(entries(path)[WEIGHTS])
    write_archive(path, {WEIGHTS: bytes(100_000_000)}, zipfile.ZIP_DEFLATED)
    path.write_bytes(path.read_bytes().replace((100_000_000).to_bytes(4, "little"), size.to_bytes(4, "little")))


def smaller_than_declared(path: Path) -> None:
    write_archive(path, {WEIGHTS: b"\x89HDF\r\n\x1a\n"})
    size, declared = (8).to_bytes(4, "little"), (200_000).to_bytes(4, "little")
    path.write_bytes(path.read_bytes().replace(size + size, declared + declared))


def listed_elsewhere(path: Path) -> None:
    """Its contents would stand before its beginning."""
    data = bytearray(path.read_bytes())
    data[-4] ^= 255
    path.write_bytes(data)


def other_bytes(path: Path) -> None:
    """Contents that do not fit the archive's checksum."""
    data = bytearray(path.read_bytes())
    data[data.index(b"\x89HDF") + 5000] ^= 255
    path.write_bytes(data)


ARCHIVES: list[Callable[[Path], None]] = [
    truncated,
    no_archive,
    without_weights,
    elsewhere,
    declared_too_large,
    compressed,
    larger_than_declared,
    smaller_than_declared,
    listed_elsewhere,
    other_bytes,
]


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EACCES, errno.EIO], ids=errno.errorcode.get)
def test_a_machine_that_fails_is_no_damage_to_the_model(run_folder, monkeypatch, number, capsys):
    def failing(*_):
        raise OSError(number, "told in other words")

    monkeypatch.setattr(weights_file.shutil, "copyfileobj", failing)
    told = f"[Errno {number}] {os.strerror(number)}, while its weights were copied to {tempfile.gettempdir()}: "
    with pytest.raises(OSError, match=f"^{re.escape(told)}'{re.escape(str(run_folder / 'model.keras'))}'$") as caught:
        runs.load_model(run_folder)
    assert caught.value.errno == number
    assert main(["translate", str(run_folder)]) == 1
    assert capsys.readouterr().err.startswith("error: [Errno ")


def test_a_file_that_hdf5_cannot_read_is_no_damage_to_the_model(run_folder, monkeypatch):
    checked = weights_file._check_arrays
    monkeypatch.setattr(weights_file, "_check_arrays", lambda path, *sizes: checked(path.parent, *sizes))
    with pytest.raises(IsADirectoryError):
        runs.check_model(runs.RunFolder(run_folder))


# Arrays: each changes the HDF5 file inside; `ARRAY` is one that the model has.
ARRAY = "layers/token_embedding/vars/0"


def soft_link(file: h5py.File, array: str) -> None:
    file["other"] = file[array][()]
    del file[array]
    file[array] = h5py.SoftLink("/other")


def external_link(file: h5py.File, array: str) -> None:
    del file[array]
    file[array] = h5py.ExternalLink("/etc/passwd", "/")


def external_group(file: h5py.File, array: str) -> None:
    file["elsewhere"] = h5py.ExternalLink("../other.h5", "/")


def external_storage(file: h5py.File, array: str) -> None:
    shape = file[array].shape
    del file[array]
    file.create_dataset(array, shape, "f4", external=[("/etc/passwd", 0, h5py.h5f.UNLIMITED)])


def virtual_dataset(file: h5py.File, array: str) -> None:
    shape = file[array].shape
    del file[array]
    layout = h5py.VirtualLayout(shape, "f4")
    layout[:] = h5py.VirtualSource("/etc/passwd", "data", shape)
    file.create_virtual_dataset(array, layout)


def another_shape(file: h5py.File, array: str) -> None:
    values = file[array][()]
    del file[array]
    file[array] = values.T


def a_scalar(file: h5py.File, array: str) -> None:
    del file[array]
    file[array] = 1.0


def another_name(file: h5py.File, array: str) -> None:
    file.move(array, array + "0")


def missing_array(file: h5py.File, array: str) -> None:
    del file[array]


def missing_group(file: h5py.File, array: str) -> None:
    del file[array.rpartition("/vars")[0]]


def nothing(file: h5py.File, array: str) -> None:
    """No array at all, and as many bytes."""
    for name in list(file):
        del file[name]
    file["ballast"] = np.zeros(100_000, "f4")


def extra_array(file: h5py.File, array: str) -> None:
    file.create_dataset(array.replace("0", "1"), data=np.zeros(3, "f4"))


def hidden_bomb(file: h5py.File, array: str) -> None:
    """A small file that unpacks to 400 MB."""
    file.create_dataset("bomb", (100_000_000,), "f4", compression="gzip", chunks=(1_000_000,))


def bomb_in_place(file: h5py.File, array: str) -> None:
    del file[array]
    file.create_dataset(array, (100_000_000, 16), "f4", compression="gzip", chunks=(1_000_000, 16), fillvalue=1)


def bomb_beyond_64_bits(file: h5py.File, array: str) -> None:
    """Its size in bytes, in 64 bits, is 0."""
    del file[array]
    file.create_dataset(array, (2**32, 2**32), "f4", chunks=(1024, 16))


def many_small_arrays(file: h5py.File, array: str) -> None:
    for number in range(20):
        file.create_dataset(f"more/{number}", (1_000_000,), "f4", compression="gzip")


def strings(file: h5py.File, array: str) -> None:
    shape = file[array].shape
    del file[array]
    file.create_dataset(array, shape, h5py.string_dtype())


def references(file: h5py.File, array: str) -> None:
    file.create_dataset("references", (3,), h5py.ref_dtype)


def records(file: h5py.File, array: str) -> None:
    file.create_dataset("records", (3,), np.dtype([("a", "f4"), ("b", "i8")]))


def complex_numbers(file: h5py.File, array: str) -> None:
    values = file[array][()]
    del file[array]
    file[array] = values.astype("c8")


def empty_dataset(file: h5py.File, array: str) -> None:
    del file[array]
    file[array] = h5py.Empty("f4")


def array_for_a_group(file: h5py.File, array: str) -> None:
    group = array.rpartition("/")[0]
    del file[group]
    file[group] = np.zeros(3, "f4")


def named_type(file: h5py.File, array: str) -> None:
    file["type"] = np.dtype("f4")


def groups_without_end(file: h5py.File, array: str) -> None:
    """Ways through it: 64 to the power of 15."""
    deepest = file.create_group("deepest")
    for depth in range(15):
        group = file.create_group(f"depth {depth}")
        for number in range(64):
            group[str(number)] = deepest
        deepest = group


def circle(file: h5py.File, array: str) -> None:
    file["circle"] = file["/"]


ARRAYS: list[Callable[[h5py.File, str], None]] = [
    soft_link,
    external_link,
    external_group,
    external_storage,
    virtual_dataset,
    another_shape,
    a_scalar,
    another_name,
    missing_array,
    missing_group,
    nothing,
    extra_array,
    hidden_bomb,
    bomb_in_place,
    bomb_beyond_64_bits,
    many_small_arrays,
    strings,
    references,
    records,
    complex_numbers,
    empty_dataset,
    array_for_a_group,
    named_type,
    groups_without_end,
    circle,
]


def rewrite_weights(path: Path, change: Callable[[h5py.File, str], None], array: str = ARRAY) -> None:
    contents = entries(path)
    weights = io.BytesIO(contents[WEIGHTS])
    with h5py.File(weights, "r+") as file:
        change(file, array)
    write_archive(path, {**contents, WEIGHTS: weights.getvalue()})


def assert_refused(run: Path, message: str = "") -> None:
    path = run / "model.keras"
    with pytest.raises(RequestError, match=f"^{re.escape(str(path))} is damaged or not this run's: .") as caught:
        runs.load_model(run)
    assert "\n" not in str(caught.value)
    assert re.search(message, str(caught.value))


@pytest.mark.parametrize("make", ARCHIVES, ids=lambda make: make.__name__)
def test_a_damaged_or_hostile_archive_is_refused(run_folder, make):
    make(run_folder / "model.keras")
    before = sorted(run_folder.parent.rglob("*"))
    assert_refused(run_folder)
    assert sorted(run_folder.parent.rglob("*")) == before


@pytest.mark.parametrize("change", ARRAYS, ids=lambda change: change.__name__)
def test_arrays_that_the_model_does_not_predict_are_refused(run_folder, change):
    rewrite_weights(run_folder / "model.keras", change)
    assert_refused(run_folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (soft_link, "it holds a link"),
        (external_link, "it holds a link"),
        (external_group, "it holds a link"),
        (external_storage, "it holds something other than a plain array"),
        (virtual_dataset, "it holds something other than a plain array"),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_data_of_other_places_is_refused_before_it_is_read(run_folder, change, message):
    rewrite_weights(run_folder / "model.keras", change)
    assert_refused(run_folder, message)


def test_arrays_of_every_kind_must_be_there(run_folder):
    path = run_folder / "model.keras"
    whole, names = path.read_bytes(), []
    with h5py.File(io.BytesIO(entries(path)[WEIGHTS])) as file:
        file.visititems(lambda name, item: names.append(name) if isinstance(item, h5py.Dataset) else None)
    assert ARRAY in names
    for name in names[:: len(names) // 7]:
        rewrite_weights(path, missing_array, name)
        assert_refused(run_folder)
        path.write_bytes(whole)


class Trap:
    """Registered by no one: were a configuration's word taken for it, this would run."""

    sprung = False

    def __init__(self, *_: object, **__: object):
        Trap.sprung = True

    from_config = __init__


@pytest.mark.parametrize(
    "config",
    [
        {"module": "tests.test_run_folder", "class_name": "Trap", "config": {}, "registered_name": "Trap"},
        {
            "module": "keras.layers",
            "class_name": "Lambda",
            "config": {"function": {"class_name": "__lambda__", "config": {"code": "4wEAAAA="}}},
        },
        {"module": "builtins", "class_name": "exec", "config": "import os; os._exit(3)"},
    ],
    ids=lambda config: config["class_name"],
)
def test_the_configuration_inside_is_never_deserialised(run_folder, config, monkeypatch):
    path = run_folder / "model.keras"
    write_archive(path, {**entries(path), "config.json": json.dumps(config).encode()})
    opened, open_entry = [], zipfile.ZipFile.open

    def watched(self, name, *arguments, **options):
        opened.append(getattr(name, "filename", name))
        return open_entry(self, name, *arguments, **options)

    monkeypatch.setattr(zipfile.ZipFile, "open", watched)
    assert runs.load_model(run_folder).count_params() > 0
    assert opened == [WEIGHTS], "config.json was not even read"
    assert not Trap.sprung


def test_a_config_that_asks_for_more_than_the_file_holds_is_refused(run_folder):
    config = changed(runs.read_config(run_folder), "hidden_dim", 65_536)
    (run_folder / "config.json").write_text(json.dumps(config))
    assert_refused(run_folder, r"expected about [\d,]+ bytes of weights; it holds")


@pytest.mark.parametrize("make", [truncated, elsewhere, missing_array, external_link], ids=lambda make: make.__name__)
def test_translate_tells_it_in_one_line(run_folder, monkeypatch, capfdbinary, make):
    path = run_folder / "model.keras"
    if make in ARCHIVES:
        make(path)
    else:
        rewrite_weights(path, make)
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"two dogs\n")))
    assert main(["translate", str(run_folder)]) == 2
    out, err = capfdbinary.readouterr()
    assert out == b""
    assert err.decode().startswith(f"error: {path} is damaged or not this run's: ")
    assert err.count(b"\n") == 1


def test_a_damaged_tokenizer_is_named(run_folder, monkeypatch, capfdbinary):
    (run_folder / "tokenizer.model").write_bytes(b"\x0a\xff\xff")
    monkeypatch.setattr(sys, "stdin", SimpleNamespace(buffer=io.BytesIO(b"two dogs\n")))
    assert main(["translate", str(run_folder)]) == 2
    assert b"tokenizer.model" in capfdbinary.readouterr().err


def test_a_configuration_says_which_version_wrote_it_last(run_folder):
    folder, config = runs.RunFolder(run_folder), runs.read_config(run_folder)
    runs.write_config(folder, {**config, "versions": {"keras": "3", "keras-transformer": "0.1.0"}})
    assert runs.read_config(folder)["versions"] == {"keras": "3", "keras-transformer": keras_transformer.__version__}


@pytest.mark.parametrize(
    ("length", "holds"), [(1, True), (6, True), (7, False), (0, False), (True, False), ("5", False)]
)
def test_the_length_of_answers_is_one_that_the_context_holds(tmp_path, length, holds):
    model = {"kind": "language-model", "vocabulary_size": 20, "context_length": 8, "num_layers": 1}
    run = runs.RunFolder(tmp_path)
    runs.write_config(run, {"model": model, "settings": {}, "answer_length": length})
    if holds:
        assert runs.read_config(run)["answer_length"] == length
    else:
        with pytest.raises(RequestError, match="expected an integer from 1 to 6 under 'answer_length'; received"):
            runs.read_config(run)
