"""A run on disk: where its files are, how they are written whole, and how a stranger's are read without trust."""

from __future__ import annotations

import contextlib
import io
import json
import math
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import RequestError

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Transformer

# What `Transformer` is made of, and the largest value of each that a run may ask for.
MODEL_BOUNDS: dict[str, int] = {
    "vocabulary_size": 4_000_000,
    "num_layers": 512,
    "num_heads": 1024,
    "hidden_dim": 65_536,
    "intermediate_dim": 1_048_576,
    "key_dim": 65_536,
    "source_vocabulary_size": 4_000_000,
    "max_source_length": 1_000_000,
}
MODEL_RATES = ("dropout", "attention_dropout")
MODEL_SWITCHES = ("normalize_first", "learned_positions")
OPTIONAL_SIZES = ("key_dim", "source_vocabulary_size")
CONFIG_KEYS = {"format", "model", "settings", "corpus", "versions", "weights"}
FORMAT = 1
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


@contextlib.contextmanager
def write_whole(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to; it takes the name of `path` when all went well, and is gone when it did not."""
    aside = path.with_name(f".{os.getpid()}-{path.name}")  # keeps the suffix: Keras and NumPy go by it
    aside.unlink(missing_ok=True)  # in a stranger's folder it may be a link to somewhere else
    try:
        yield aside
        with aside.open("rb") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    except OSError as error:
        # Of a full disk it does not say which file was being written; of the others it is the one aside.
        raise OSError(error.errno, error.strerror or str(error), str(path)) from error
    finally:
        aside.unlink(missing_ok=True)


def check_writable(path: Path) -> None:
    """Raises RequestError unless files can be written into the folder, which may have to be made."""
    above = path
    while not above.exists():
        above = above.parent
    if not above.is_dir() or not os.access(above, os.W_OK | os.X_OK):
        problem = "no permission to write in" if above.is_dir() else "not a folder:"
        raise RequestError(f"{problem} {above}; choose another folder with --out")


@contextlib.contextmanager
def write_folder_whole(path: Path) -> Iterator[Path]:
    """An empty folder beside `path` to write to; it takes the place of `path` when all went well, and is gone when it
    did not."""
    path = path.resolve()  # "." has no name, and a link stays one
    aside, old = (path.with_name(f".{os.getpid()}-{word}-{path.name}") for word in ("new", "old"))
    shutil.rmtree(aside, ignore_errors=True)
    aside.mkdir(parents=True)
    try:
        yield aside
        if path.exists():
            path.rename(old)
        aside.rename(path)
    finally:
        if old.exists() and not path.exists():  # stopped between the two
            old.rename(path)
        shutil.rmtree(aside, ignore_errors=True)
        shutil.rmtree(old, ignore_errors=True)


def write_text(path: Path, text: str) -> None:
    """Writes a UTF-8 file whole or not at all."""
    with write_whole(path) as aside:
        aside.write_text(text, encoding="utf-8")


def write_config(run: RunFolder, config: dict[str, Any]) -> None:
    """Writes `config.json`, in the present format."""
    write_text(
        run.config, json.dumps({"format": FORMAT} | config | {"format": FORMAT}, indent=2, ensure_ascii=False) + "\n"
    )


def read_config(run: str | os.PathLike[str] | RunFolder) -> dict[str, Any]:
    """Reads `config.json` of any folder, a stranger's included: known keys, bounded sizes, data alone.

    Raises:
        RequestError: there is no run, or its `config.json` is damaged or asks for what no run has.
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
    except (ValueError, RecursionError) as error:
        raise RequestError(f"{path} is damaged or not a run's: {error}") from error
    return config


def _check_config(config: Any) -> None:
    if not isinstance(config, dict) or not {"format", "model", "settings"} <= config.keys() <= CONFIG_KEYS:
        raise ValueError(f"expected an object with the keys {sorted(CONFIG_KEYS)}")
    if config["format"] != FORMAT:
        raise ValueError(f"expected format {FORMAT}; received {config['format']!r:.40}")
    for key in CONFIG_KEYS - {"format"}:
        if not isinstance(config.get(key, {}), dict):
            raise ValueError(f"expected an object under {key!r}")
    check_model_config(config["model"])


def check_model_config(model: dict[str, Any]) -> None:
    """Raises ValueError unless `model` is what `Transformer` takes, of sizes that a model can have."""
    expected = {*MODEL_BOUNDS, *MODEL_RATES, *MODEL_SWITCHES}
    if model.keys() != expected:
        raise ValueError(f"expected the model's keys {sorted(expected)}; received {sorted(model)!r:.200}")
    for name, bound in MODEL_BOUNDS.items():
        size = model[name]
        if size is None and name in OPTIONAL_SIZES:
            continue
        if type(size) is not int or not 0 < size <= bound:
            raise ValueError(f"expected {name} between 1 and {bound}; received {size!r:.40}")
    for name in MODEL_RATES:
        rate = model[name]
        if type(rate) not in (int, float) or not 0 <= rate < 1:
            raise ValueError(f"expected {name} of at least 0 and less than 1; received {rate!r:.40}")
    heads, width = model["num_heads"], model["hidden_dim"]
    if model["key_dim"] is None and width % heads:
        raise ValueError(f"expected num_heads to divide hidden_dim; received {heads} and {width}")
    if width % 2 and not model["learned_positions"]:
        raise ValueError(f"expected an even hidden_dim, for sinusoidal positions; received {width}")
    for name in MODEL_SWITCHES:
        if type(model[name]) is not bool:
            raise ValueError(f"expected {name} to be true or false; received {model[name]!r:.40}")


def count_parameters(model: dict[str, Any]) -> int:
    """Parameters of the `Transformer` that a checked model configuration describes, without making it."""
    hidden, intermediate, layers = model["hidden_dim"], model["intermediate_dim"], model["num_layers"]
    attention = 4 * hidden * model["num_heads"] * (model["key_dim"] or hidden // model["num_heads"])
    feed_forward, norm = 2 * hidden * intermediate + intermediate + hidden, 2 * hidden
    blocks = layers * (3 * attention + 2 * feed_forward + 5 * norm)
    embeddings = model["vocabulary_size"] + (model["source_vocabulary_size"] or 0)
    positions = model["max_source_length"] + 50 if model["learned_positions"] else 0
    return blocks + (embeddings + positions) * hidden + (2 * norm if model["normalize_first"] else 0)


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
    """Raises RequestError unless `model.keras` is there and whole. No model is made, and TensorFlow not touched."""
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
            _check_weights(weights, num_bytes, ENTRIES_PER_LAYER * (config["num_layers"] + 1))
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
    from keras_transformer.models.transformer import Transformer

    model = Transformer(**config, dtype="float32")
    with contextlib.redirect_stdout(io.StringIO()):
        model.load_weights(weights)
    return model
