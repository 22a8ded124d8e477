"""The files of the golden material: for each case NAME.zip, a run, and NAME.json, what was recorded of it."""

import contextlib
import io
import json
import zipfile
from pathlib import Path
from typing import Any

import h5py
import sentencepiece
from sentencepiece.sentencepiece_model_pb2 import ModelProto  # type: ignore[attr-defined]

import keras_transformer
import train
from keras_transformer.runs.run_folder import FORMAT
from tests.golden.cases import flags_of, write_files

Entries = dict[str, Any]
HERE = Path(__file__).resolve().parent
FROZEN = HERE.parent / "data"
LEFT_OUT = ("cache", "checkpoints", "tensorboard", "curves.png")
QUESTIONS = ["ba do fi", "gu ka", "lo mi nu pa", "ro"]  # to the frozen run
RULES = "nmt_nfkc"  # of SentencePiece: 240 KB in each vocabulary, which the library has too


def pack(name: str, run: Path) -> None:
    """Writes a run into the case's archive."""
    with zipfile.ZipFile(HERE / f"{name}.zip", "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in sorted(path for path in run.rglob("*") if path.is_file()):
            if path.relative_to(run).parts[0] not in LEFT_OUT:
                content = path.read_bytes()
                packed = with_rules(content, b"") if path.name == "tokenizer.model" else content
                archive.writestr(zipfile.ZipInfo(path.relative_to(run).as_posix()), packed, zipfile.ZIP_DEFLATED)
                assert path.name != "tokenizer.model" or with_rules(packed, rules()) == content


def freeze(folder: Path) -> None:
    """Trains a run, and writes it as one of today's format, with its last checkpoint and what it answers, for good.

    Raises:
        FileExistsError: there is one: what runs store may not change without another format.
    """
    run = trained("modern", folder, "--separate-vocabularies", "--dropout", "0.1", "--checkpoint-every", "100")
    answers = dict(zip(QUESTIONS, keras_transformer.load(run, engine="keras").translate(QUESTIONS), strict=True))
    (folder / "answers.json").write_text(json.dumps(answers))
    kept = ["config.json", "model.keras", "tokenizer.*.model", "validation.*", "checkpoints/00000300.*"]
    with zipfile.ZipFile(FROZEN / f"run-format-{FORMAT}.zip", "x", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for path in [folder / "answers.json", *(path for pattern in kept for path in sorted(run.glob(pattern)))]:
            archive.write(path, path.relative_to(folder))


def arrays_of(run: Path) -> dict[str, tuple[tuple[int, ...], str]]:
    """The shape and the type of each array in a run's model.keras."""
    with zipfile.ZipFile(run / "model.keras") as archive:
        weights = io.BytesIO(archive.read("model.weights.h5"))
    with h5py.File(weights) as file:
        names: list[str] = []
        file.visit(names.append)
        arrays = {name: file[name] for name in names if isinstance(file[name], h5py.Dataset)}
        return {name: (array.shape, str(array.dtype)) for name, array in arrays.items()}


def unpack(name: str, run: Path) -> Path:
    """Writes the case's run into a folder, which it returns."""
    with zipfile.ZipFile(HERE / f"{name}.zip") as archive:
        archive.extractall(run)
    if (path := run / "tokenizer.model").is_file():
        path.write_bytes(with_rules(path.read_bytes(), rules()))
    return run


def rules() -> bytes:
    """SentencePiece's rules of normalisation, as a vocabulary holds them."""
    model = sentencepiece.SentencePieceNormalizer(rule_name=RULES).serialized_model_proto()
    return ModelProto.FromString(model).normalizer_spec.precompiled_charsmap


def with_rules(vocabulary: bytes, rules: bytes) -> bytes:
    """A vocabulary with other rules of normalisation; one that normalises nothing as it is."""
    model = ModelProto.FromString(vocabulary)
    if model.normalizer_spec.name != RULES:
        return vocabulary
    model.normalizer_spec.precompiled_charsmap = rules
    return model.SerializeToString(deterministic=True)


def write(name: str, entries: Entries) -> None:
    """Writes what was recorded, an entry a line."""
    lines = [f"{json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}" for key, value in entries.items()]
    (HERE / f"{name}.json").write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read(name: str, part: str = "") -> Entries:
    """What was recorded of a part; of all parts by default, and nothing of a case that is new."""
    path = HERE / f"{name}.json"
    entries = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}
    return {key: value for key, value in entries.items() if not part or key.startswith(f"{part} | ")}


def trained(name: str, folder: Path, *flags: str) -> Path:
    """Trains a case in a folder, and returns the run."""
    write_files(name, folder)
    with contextlib.chdir(folder):
        status = train.main([*flags_of(name), *flags, "--out", "run"])
    assert status == 0, f"{name}: train.py ended with exit status {status}"
    return folder / "run"
