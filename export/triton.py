"""Writes a model repository for NVIDIA's Triton beside the ONNX graphs of a translator."""

from __future__ import annotations

import os
import shutil
from collections.abc import Collection
from contextlib import suppress
from pathlib import Path

from keras_transformer.checking.signatures import Signature
from keras_transformer.core.errors import RequestError
from keras_transformer.runs.export_folder import ONNX, TRITON, ExportFolder

TEXT, IDS = "translate_text", "translate"  # the models of the repository, named as graphs that take the same
MODEL = "from keras_transformer.serving.triton_model import TritonPythonModel  # noqa: F401  (Triton calls it)\n"
# Triton gives what waits when the model is free, and waits for nothing.
BATCHES = "max_batch_size: 64\ndynamic_batching { }\n"
TEXT_CONFIG = f"""# Text to text, by this project's own package; graphs on a GPU take the first one.
backend: "python"
{BATCHES}instance_group [ {{ count: 1 kind: KIND_CPU }} ]
input [ {{ name: "text" data_type: TYPE_STRING dims: [ 1 ] }} ]
output [
  {{ name: "translation" data_type: TYPE_STRING dims: [ 1 ] }},
  {{ name: "score" data_type: TYPE_FP32 dims: [ 1 ] }}
]
"""
IDS_CONFIG = f"""# Ids to ids, by Triton's ONNX Runtime. Requests of one length share a batch; 0 pads behind a sentence.
backend: "onnxruntime"
{BATCHES}input [ {{ name: "source_ids" data_type: TYPE_INT32 dims: [ -1 ] }} ]
output [
  {{ name: "target_ids" data_type: TYPE_INT32 dims: [ -1 ] }},
  {{ name: "score" data_type: TYPE_FP32 dims: [ 1 ] reshape: {{ shape: [ ] }} }}
]
"""


def require_translator(signature: type[Signature], formats: Collection[str]) -> None:
    """Raises RequestError unless a repository can be made of the graphs that formats give of such a model."""
    if ONNX not in formats:
        raise RequestError("triton is made of ONNX graphs: add onnx to --format, or leave it out")
    if signature.ids_stem != IDS:
        raise RequestError("triton takes translators: leave it out")


def write_repository(export: Path) -> Path:
    """Writes `triton` into an export folder: two models, of the graphs in their first precision.

    Its graphs are the export's own files under a second name, where the file system has that, and take no room. Each
    model is whole, so that it may be copied elsewhere alone.

    Args:
        export: with `onnx` in it, whole.

    Returns:
        The repository.
    """
    repository, graphs = export / TRITON, ExportFolder(export).graphs()
    of_text, of_ids = (repository / name / "1" for name in (TEXT, IDS))
    for version, config in ((of_text, TEXT_CONFIG), (of_ids, IDS_CONFIG)):
        version.mkdir(parents=True)
        (version.parent / "config.pbtxt").write_text(config, encoding="utf-8")
    (of_text / "model.py").write_text(MODEL, encoding="utf-8")
    (of_text / ONNX).mkdir()
    weights = [path.with_name(f"{path.name}.data") for _, path in graphs.present()]
    beside = [path for path in (export / ONNX).iterdir() if path.suffix not in (".onnx", ".data")]
    for path in (*dict(graphs.present()).values(), *weights, *beside):
        if path.is_file():
            _name_again(path, of_text / ONNX / path.name)
    assert graphs.translate is not None, "an export of a translator has it"
    _name_again(graphs.translate, of_ids / "model.onnx")
    with suppress(FileNotFoundError):  # the graph names its weights, where they are not inside
        name = f"{graphs.translate.name}.data"
        _name_again(graphs.translate.with_name(name), of_ids / name)
    return repository


def _name_again(path: Path, new: Path) -> None:
    """Gives a file a second name, or copies it where the file system has no such thing."""
    try:
        os.link(path, new)
    except FileNotFoundError:
        raise
    except OSError:
        shutil.copy(path, new)
