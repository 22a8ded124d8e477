"""What the artefacts of a classifier of images take and give: images → the probability of each label, and a vector."""

from __future__ import annotations

import math
import re
import zipfile
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from keras_transformer import ops
from keras_transformer.checking.certificate_texts import QUICK_TEXTS, Texts
from keras_transformer.checking.signatures import (
    TEXT,
    VECTOR,
    Output,
    Outputs,
    ReferenceOutputs,
    Signature,
    likeliest_labels,
    ranking_of,
)
from keras_transformer.core.errors import RequestError
from keras_transformer.core.files import DAMAGED
from keras_transformer.ops import Tensor
from keras_transformer.runs.run_folder import RunConfig, RunFolder
from keras_transformer.tasks.images.pipeline import Recognizer

MAX_NUMBERS = 5_000_000  # in the images that an artefact is certified on


class Recognition(Signature):
    """A classifier of images: images (B, S, S, channels) uint8 → the probability of each label, and a vector."""

    ids_stem, text_stem = "classify", ""
    takes, input_type = "images", "uint8"
    ids_outputs = {"probabilities": Output("float32", "C"), "vector": VECTOR}
    text_outputs = {"label": TEXT, **ids_outputs}

    def item_shape(self) -> tuple[int, ...]:
        return self.model.image_shape

    def of_ids(self, ids: Tensor) -> Outputs:
        vector = self.model.states(ids)[:, 0]
        logits = ops.cast(self.model.head(vector), "float32")
        return {"probabilities": ops.softmax(logits), "vector": ops.cast(vector, "float32")}

    def named(self, ids: Tensor) -> Outputs:
        found = self.of_ids(ids)
        return {"label": likeliest_labels(self.pipeline.labels, found["probabilities"]), **found}

    @classmethod
    def validation(cls, folder: RunFolder, config: RunConfig) -> tuple[list[np.ndarray], list[str] | None]:
        return images_of(folder, config.model), None

    @classmethod
    def texts(cls, pipeline: Recognizer, given: Sequence[object]) -> Texts:
        return Texts([], image_probes(pipeline.model.image_shape), given)

    @classmethod
    def inputs(cls, pipeline: Recognizer, texts: Sequence[Any]) -> list[list[int]]:
        return [image.tolist() for image in texts]

    @classmethod
    def reference_outputs(cls, pipeline: Recognizer, texts: Sequence[Any]) -> list[ReferenceOutputs]:
        images = np.stack(texts)
        found = zip(pipeline.probabilities(images), pipeline.embed(images), strict=True)
        return [ReferenceOutputs([ranking_of(pipeline.labels, row)], vector) for row, vector in found]

    @classmethod
    def stored_texts(cls, stored: Sequence[Mapping[str, Any]], config: Mapping[str, Any]) -> list[np.ndarray]:
        return image_probes((config["image_size"], config["image_size"], config["channels"]))


def image_probes(shape: Sequence[int]) -> list[np.ndarray]:
    """Images of one value, of noise and of a slope, (S, S, channels) uint8 each."""
    noise = np.random.default_rng(0).integers(0, 256, shape, "uint8")
    slope = np.broadcast_to(np.linspace(0, 255, shape[1])[None, :, None], shape).astype("uint8")
    return [np.zeros(shape, "uint8"), np.full(shape, 255, "uint8"), noise, slope]


def images_of(folder: RunFolder, config: Mapping[str, int]) -> list[np.ndarray]:
    """Returns the first validation images of a run, (S, S, channels) uint8 each.

    Raises:
        RequestError: there are none, or their file is damaged.
    """
    shape = (config["image_size"], config["image_size"], config["channels"])
    most = max(1, min(QUICK_TEXTS, MAX_NUMBERS // math.prod(shape)))
    try:
        with zipfile.ZipFile(folder.valid_images) as archive:
            images = _first_of(archive, "images.npy", shape, most)
    except FileNotFoundError:
        raise RequestError(
            f"{folder.path} has no validation images, on which an export is certified: import it with --valid-images"
        ) from None
    except (*DAMAGED, zlib.error) as error:
        raise RequestError(f"{folder.valid_images} is damaged: {str(error)[:200]}") from error
    return list(images)


def _first_of(archive: zipfile.ZipFile, name: str, shape: tuple[int, ...], most: int) -> np.ndarray:
    """Reads the first images of an array, at most `most`: its header before, and nothing of what follows them.

    Raises:
        ValueError, or another of `DAMAGED`: the array holds something else.
    """
    entry = archive.getinfo(name)
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError("it is compressed in an unknown way")
    with archive.open(entry) as stream:
        length = int.from_bytes(stream.read(10)[8:], "little")
        header = stream.read(length)
        sizes = ", ".join(map(str, shape))
        whole = rf"{{'descr': '\|u1', 'fortran_order': False, 'shape': \((\d{{1,9}}), {sizes}\), }} *\n"
        found = re.fullmatch(whole.encode(), header)
        if found is None or int(found[1]) == 0:
            raise ValueError(f"expected images ({sizes}) of uint8; received {header[:80].decode('latin-1')!r}")
        count = min(int(found[1]), most)
        return np.frombuffer(stream.read(count * math.prod(shape)), "uint8").reshape(count, *shape)


SIGNATURES = (Recognition,)
