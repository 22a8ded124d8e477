"""Translates in the Python backend of NVIDIA's Triton, with the graphs of an exported model repository."""

from __future__ import annotations

import importlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from keras_transformer.tasks.translation.loading import load
from keras_transformer.tasks.translation.passages import Layout


class TritonPythonModel:
    """What Triton makes of the file `model.py`, which names this class; it calls the methods by these names."""

    def initialize(self, args: Mapping[str, str]) -> None:
        """Loads the graphs that stand beside `model.py`.

        Triton tells a model ready after that, so graphs that do not answer their probes here fail now.

        Args:
            args: Triton's. "model_repository" is the folder of the model, "model_version" that of a version in it.
        """
        self.translator = load(Path(args["model_repository"]) / args["model_version"])
        self.translator.decoder.require_checked(self.translator.search_options())

    def execute(self, requests: Sequence[Any]) -> list[Any]:
        """Returns a response for each request; the texts of all that Triton brings at once are translated together.

        Args:
            requests: with `text`, strings of any shape. A response has `translation` and `score` of the same shape.
        """
        triton = importlib.import_module("triton_python_backend_utils")  # it is in Triton's own process alone
        given = [triton.get_input_tensor_by_name(request, "text").as_numpy() for request in requests]
        texts = [text.decode(errors="replace") for array in given for text in array.ravel()]
        found = self._translated(texts)
        responses = []
        for array in given:
            own = [next(found) for _ in range(array.size)]
            translations = np.array([text.encode() for text, _ in own], object)
            scores = np.array([score for _, score in own], np.float32)
            outputs = {"translation": translations, "score": scores}
            tensors = [triton.Tensor(name, value.reshape(array.shape)) for name, value in outputs.items()]
            responses.append(triton.InferenceResponse(tensors))
        return responses

    def _translated(self, texts: Sequence[str]) -> Iterator[tuple[str, float]]:
        """Yields the translation of each text, as `translate` of a translator gives it, and its lines' scores' sum."""
        layouts = [Layout(text) for text in texts]
        lines = (line for layout in layouts for line in layout.lines)
        best = (hypotheses[0] for hypotheses in self.translator.stream(lines))
        for layout in layouts:
            own = [next(best) for _ in layout.lines]
            yield layout.filled(iter([one.text for one in own])), sum(one.score for one in own)
