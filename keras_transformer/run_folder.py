"""A run on disk: where its files are, and how a stranger's are read without trust."""

from __future__ import annotations

import contextlib
import importlib.metadata
import io
import json
import math
import os
import platform
import re
import shutil
import tempfile
import zipfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.files import check_writable, write_folder_whole, write_text, write_whole
from keras_transformer.models import count_parameters, make_model, model_config
from keras_transformer.version import __version__

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.text.tokenizer import Tokenizer

CONFIG_KEYS = {"format", "model", "settings", "corpus", "versions", "weights", "parameters"}
FORMAT = 2  # 1 is that of version 0.1, which is read too
MAX_CONFIG_BYTES = 1_000_000
# What HDF5 and the dropout layers' seeds may take beside the weights themselves.
SLACK_BYTES = 16_000_000
# The arrays and groups of a layer and the few beside the layers are fewer.
ENTRIES_PER_LAYER = 100


class RunFolder:
    """The paths of a run (all of them, whether they exist or not)."""

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        self.config = self.path / "config.json"
        self.model = self.path / "model.keras"
        self.checkpoints = self.path / "checkpoints"
        self.cache = self.path / "cache"
        self.valid_source = self.path / "validation.source"
        self.valid_target = self.path / "validation.target"
        self.metrics = self.path / "metrics.csv"
        self.curves = self.path / "curves.png"
        self.samples = self.path / "samples.txt"
        self.tensorboard = self.path / "tensorboard"

    def tokenizers(self, separate: bool) -> tuple[Path, Path]:
        """Where the source's and the target's tokenizer are: one file unless the vocabularies are separate."""
        if separate:
            return self.path / "tokenizer.source.model", self.path / "tokenizer.target.model"
        return self.path / "tokenizer.model", self.path / "tokenizer.model"

    def is_run(self) -> bool:
        """Whether there is a run here, finished or not."""
        return self.config.is_file()


def write_config(run: RunFolder, config: dict[str, Any]) -> None:
    """Writes `config.json`, in the present format and by this version."""
    by = {"versions": {**config.get("versions", {}), "keras-transformer": __version__}}
    present = {"format": FORMAT} | config | {"format": FORMAT} | by
    write_text(run.config, json.dumps(present, indent=2, ensure_ascii=False) + "\n")


def read_config(run: str | os.PathLike[str] | RunFolder) -> dict[str, Any]:
    """Reads `config.json` of any folder, a stranger's included: known keys, bounded sizes, data alone.

    Returns:
        The configuration in the present format, the model's complete, whatever version wrote it.

    Raises:
        RequestError: there is no run, its `config.json` is damaged or asks for what no run has, or a newer version
            wrote it (it is named).
    """
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    path = run.config
    if not path.is_file():
        raise RequestError(
            f"expected a run folder, with a config.json; found none in {str(run.path)!r}: train one with train.py"
        )
    try:
        if path.stat().st_size > MAX_CONFIG_BYTES:
            raise ValueError(f"it is larger than {MAX_CONFIG_BYTES:,} bytes")
        config = json.loads(path.read_bytes().decode("utf-8"))
        _check_config(config)
        return {
            **config,
            "format": FORMAT,
            "model": _complete(config["model"], config),
            "settings": family.modern(config["settings"]),
        }
    except NewerVersion as error:
        raise RequestError(f"{path} was {error}") from error
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is damaged or not a run's: {error}") from error


def _complete(model: dict[str, Any], config: dict[str, Any]) -> dict[str, Any]:
    """The model's configuration with its kind, complete."""
    model = dict(model)
    kind = model.pop("kind", "translator")
    try:
        if kind not in list(family.KINDS):  # a list: it may be of any type, and not all can be looked up
            raise family.Unknown(f"expected a model of the kinds {', '.join(family.KINDS)}; received {kind!r:.40}")
        return {"kind": kind, **family.complete(model)}
    except family.Unknown as error:
        if _is_newer(writer(config)):
            raise NewerVersion(_by_whom(config, str(error))) from error
        raise


class NewerVersion(Exception):
    """A version after this one wrote the file."""


def _check_config(config: Any) -> None:
    if not isinstance(config, dict) or not {"format", "model", "settings"} <= config.keys():
        raise ValueError(f"expected an object with the keys {sorted(CONFIG_KEYS)}")
    if type(config["format"]) is not int or config["format"] < 1:
        raise ValueError(f"expected a format from 1 to {FORMAT}; received {config['format']!r:.40}")
    if config["format"] > FORMAT:
        raise NewerVersion(_by_whom(config, f"format {config['format']}"))
    for key in ("model", "settings", "corpus", "versions", "weights"):
        if not isinstance(config.get(key, {}), dict):
            raise ValueError(f"expected an object under {key!r}")
    known = family.ARGUMENTS.keys() | {"kind"} if config["format"] == FORMAT else config["model"].keys()
    unknown = sorted((config.keys() - CONFIG_KEYS) | (config["model"].keys() - known))
    if unknown and _is_newer(writer(config)):
        raise NewerVersion(_by_whom(config, f"the key {unknown[0]!r:.40}"))
    if unknown:
        raise ValueError(f"expected known keys alone; received {unknown[0]!r:.40}")
    if "parameters" in config and not (type(config["parameters"]) is int and config["parameters"] > 0):
        raise ValueError(f"expected a positive integer under 'parameters'; received {config['parameters']!r:.40}")


def _by_whom(config: dict[str, Any], what: str) -> str:
    return (
        f"written by version {writer(config)!s:.20} of keras-transformer, with what this version, {__version__}, does "
        f"not know: install that version ({what})"
    )


def writer(config: dict[str, Any]) -> str:
    """The version that wrote a configuration."""
    versions = config.get("versions")
    return str(versions.get("keras-transformer", "unknown")) if isinstance(versions, dict) else "unknown"


def _is_newer(version: str) -> bool:
    """Whether a version comes after this one."""

    def numbers(text: str) -> list[int]:
        return [int(number) for number in re.findall(r"\d{1,9}", text)[:3]]

    return numbers(version) > numbers(__version__)


def write_run(
    folder: str | os.PathLike[str],
    model: Transformer,
    tokenizers: tuple[Tokenizer, Tokenizer],
    languages: tuple[str, str] | None = None,
    validation: tuple[Sequence[str], Sequence[str]] | None = None,
    overwrite: bool = False,
) -> None:
    """Writes a run folder of a model that train.py did not train; see `Translator.save`.

    Raises:
        RequestError: see `Translator.save`.
    """
    from keras_transformer.models.inspection import difference
    from keras_transformer.text.tokenizer import plain

    path = Path(folder)
    is_free = not path.exists() or (path.is_dir() and not any(path.iterdir()))
    if not is_free and not (overwrite and RunFolder(path).is_run()):
        raise RequestError(f"expected a new or empty folder, or a run and `overwrite=True`; {path} holds something")
    if found := difference(model):
        raise RequestError(
            f"a run can hold only what its configuration tells: {found.expected} at {found.path}; received a model "
            f"with {found.received} there: enter the part in `keras_transformer.family`, and make the model of its name"
        )
    config = model_config(model)
    sizes = (config["source_vocabulary_size"] or config["vocabulary_size"], config["vocabulary_size"])
    for tokenizer, size in zip(tokenizers, sizes, strict=True):
        if tokenizer.vocabulary_size != size:
            raise RequestError(f"expected a vocabulary of {size} pieces; received {tokenizer.vocabulary_size}")
    if config["source_vocabulary_size"] is None and tokenizers[0].model != tokenizers[1].model:
        raise RequestError("expected one vocabulary, for the model has one matrix for both; received two")
    if languages is not None and (isinstance(languages, str) or len(languages) != 2):
        raise RequestError(f"expected two languages, such as ('en', 'de'); received: {languages!r}")
    if validation is not None and not len(validation[0]) == len(validation[1]) > 0:
        raise RequestError(
            f"expected a translation for each validation sentence; received {len(validation[0])} sentences and "
            f"{len(validation[1])} translations"
        )
    check_writable(path)
    with write_folder_whole(path) as aside:
        run = RunFolder(aside)
        named = dict(zip(("source_language", "target_language"), languages or (), strict=bool(languages)))
        corpus = {"corpus": {"name": path.resolve().name, **named}}
        parameters = {"parameters": count_parameters(config)}
        write_config(run, {"model": config, "settings": {}, **corpus, "versions": versions(), **parameters})
        for to, tokenizer in zip(run.tokenizers(config["source_vocabulary_size"] is not None), tokenizers, strict=True):
            tokenizer.save(to)
        for to, lines in zip((run.valid_source, run.valid_target), validation or ((), ()), strict=True):
            if len(lines):
                write_text(to, "".join(f"{plain(line)}\n" for line in lines))
        twin = make_model(config)  # in float32, and without the optimizer of a model that was compiled
        twin.set_weights(model.get_weights())
        save_model(run, twin)


def versions() -> dict[str, str]:
    """What is installed of what a run depends on."""
    packages = ("tensorflow", "keras", "numpy", "sentencepiece", "sacrebleu")
    found = {"python": platform.python_version(), "keras-transformer": __version__}
    for package in packages:
        try:
            found[package] = importlib.metadata.version(package)
        except ImportError:
            continue
    return found


def save_model(run: RunFolder, model: Transformer) -> None:
    """Writes `model.keras`, whole or not at all."""
    with write_whole(run.model) as aside:
        model.save(aside)


def load_model(run: str | os.PathLike[str] | RunFolder) -> Transformer:
    """The run's model in float32, made from `config.json`, with the weights in `model.keras`.

    The configuration inside `model.keras` is never looked at: of a stranger's file only arrays are read whose names
    and shapes this model predicts.

    Raises:
        RequestError: there is no run or no model yet, or a file of it is damaged.
    """
    run = run if isinstance(run, RunFolder) else RunFolder(run)
    config = read_config(run)["model"]
    with _checked_weights(run, config) as weights:
        return _model_with_weights(config, weights)


def check_model(run: RunFolder) -> None:
    """Raises RequestError unless `model.keras` is there and whole. No model is made."""
    with _checked_weights(run, read_config(run)["model"]):
        pass


@contextlib.contextmanager
def _checked_weights(run: RunFolder, config: dict[str, Any]) -> Iterator[Path]:
    """The file of weights in `model.keras`, checked; what is wrong with it, here or within, is a RequestError."""
    if not run.model.is_file():
        raise RequestError(
            f"expected a trained model; {run.path} has no model.keras yet: finish its training with train.py --resume"
        )
    num_bytes = 4 * count_parameters(config)
    with tempfile.TemporaryDirectory() as folder:
        weights = Path(folder) / "model.weights.h5"
        try:
            _extract_weights(run.model, weights, num_bytes)
            _check_weights(weights, num_bytes, ENTRIES_PER_LAYER * (sum(family.depths(config)) + 2))
            yield weights
        except (ValueError, KeyError, OSError, EOFError, RuntimeError, zipfile.BadZipFile) as error:
            reason = " ".join(str(error).split())[:200] or type(error).__name__
            raise RequestError(f"{run.model} is damaged or not this run's: {reason}") from error


def _extract_weights(archive: Path, to: Path, num_bytes: int) -> None:
    """Copies the weights out of a `.keras` archive, no more of them than the model can have."""
    with zipfile.ZipFile(archive) as files:
        entry = files.getinfo("model.weights.h5")
        if not num_bytes <= entry.file_size <= num_bytes + SLACK_BYTES:
            raise ValueError(f"expected about {num_bytes:,} bytes of weights; it holds {entry.file_size:,}")
        # As Keras writes it. So a file that is small holds little, however large a model config.json asks for.
        if entry.compress_type != zipfile.ZIP_STORED or entry.compress_size != entry.file_size:
            raise ValueError("expected weights that are not compressed")
        with files.open(entry) as source, to.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)


def _check_weights(path: Path, num_bytes: int, max_entries: int) -> None:
    """Raises ValueError unless the file holds plain arrays alone: no links, no data of other files, no more than
    expected."""
    import h5py

    with h5py.File(path, "r") as file:
        groups: list[h5py.Group] = [file]
        num_entries = total = 0
        while groups:
            group = groups.pop()
            num_entries += len(group)
            if num_entries > max_entries:  # groups may hold one another, and then there is no end of them
                raise ValueError(f"it holds more than {max_entries:,} arrays and groups")
            for name in group:
                if not isinstance(group.get(name, getlink=True), h5py.HardLink):
                    raise ValueError(f"it holds a link, {name!r:.60}")
                item = group[name]
                if isinstance(item, h5py.Group):
                    groups.append(item)
                    continue
                if not _is_plain_array(item):
                    raise ValueError(f"it holds something other than a plain array, {name!r:.60}")
                total += math.prod(item.shape) * item.dtype.itemsize  # `item.nbytes` wraps around at 2^64
                if total > num_bytes + SLACK_BYTES:
                    raise ValueError("it holds more arrays than the model has")


def _is_plain_array(item: Any) -> bool:
    import h5py

    return (
        isinstance(item, h5py.Dataset)
        and item.shape is not None
        and item.dtype.kind in "fiu"
        and not item.external
        and not item.is_virtual
    )


def _model_with_weights(config: dict[str, Any], weights: Path) -> Transformer:
    model = make_model(config)
    with contextlib.redirect_stdout(io.StringIO()):
        model.load_weights(weights)
    return model
