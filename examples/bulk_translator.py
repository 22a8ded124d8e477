"""The callable that translates batches of rows, in any engine that runs Python on batches.

It may be pickled: each process loads the translator at its first batch, in ONNX Runtime, without TensorFlow. Ray Data's
`map_batches` takes it as it is. `docs/bulk.md` has Spark, Dask and `multiprocessing`.

>>> translate = BulkTranslator("exported/mine", column="text")
>>> batch = translate({"row_id": np.array([7]), "text": np.array(["twenty-one"])})
>>> batch["translation"]
array(['einundzwanzig'], dtype=object)
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

import keras_transformer
from keras_transformer.core.errors import RequestError
from keras_transformer.runs.export_folder import ExportFolder

Batch = dict[str, np.ndarray]


class BulkTranslator:
    """Adds to a batch of rows their translations and scores, or what is wrong with them.

    Args:
        export: a folder that `python -m export` wrote.
        column: the name of the column to translate.
        precision: "float32", "float16" or "int8"; by default the first of these that the export has.
        num_threads: of the processor, for each process.
        batch_size: how many lines are translated at once.
        search: options of `Translator.search_options`, such as `num_beams`; by default the export's own search, which
            is the fastest.

    Raises:
        RequestError: at the first batch: the folder is no export, or an option is out of its range.
    """

    def __init__(
        self,
        export: str,
        column: str = "text",
        precision: str | None = None,
        num_threads: int = 1,
        batch_size: int = 64,
        **search: Any,
    ):
        self.export = export
        self.column = column
        self.precision = precision
        self.num_threads = num_threads
        self.search = {"batch_size": batch_size, **search}
        self._loaded: tuple[Any, Any] | None = None

    def __getstate__(self) -> dict[str, Any]:
        """All but the loaded translator."""
        return {**self.__dict__, "_loaded": None}

    def __call__(self, batch: Batch) -> Batch:
        """Translates a batch.

        Args:
            batch: columns (N,) of any types, by their names. The values to translate must be strings.

        Returns:
            The columns of the batch, and three more: `translation` (N,) of strings, None where a row failed; `score`
            (N,) float64, the search's, NaN where a row failed; and `error` (N,), None where no row failed. They replace
            columns of these names.
        """
        if self.column not in batch:
            raise RequestError(f"expected a column {self.column!r} in the batch; it has {', '.join(batch) or 'none'}")
        values = list(batch[self.column])
        found: list[tuple[str | None, float, str | None]] = [
            (None, np.nan, f"expected a string; received {value!r:.60}") for value in values
        ]
        places = [place for place, value in enumerate(values) if isinstance(value, str)]
        for place, row in zip(places, self._translate([values[place] for place in places]), strict=True):
            found[place] = row
        texts, scores, errors = zip(*found, strict=True) if found else ((), (), ())
        return {
            **batch,
            "translation": np.array(texts, object),
            "score": np.array(scores, np.float64),
            "error": np.array(errors, object),
        }

    def load(self) -> tuple[Any, Any]:
        """The translator and its options, loaded once in each process."""
        if self._loaded is None:
            if not ExportFolder(self.export).is_export():
                raise RequestError(
                    f"expected an export with graphs for ONNX Runtime; {self.export} has no folder onnx: write one "
                    "with `python -m export RUN --format onnx`"
                )
            translator = keras_transformer.load(self.export, precision=self.precision, num_threads=self.num_threads)
            options = translator.search_options(**self.search)
            translator.decoder.require_checked(options)
            self._loaded = translator, options
        return self._loaded

    def files(self) -> list[Path]:
        """The files of the export that are used, by which another export is told from this one."""
        export = ExportFolder(self.export)
        graphs = [path for _, path in export.graphs(self.precision).present()]
        weights = [path.with_name(f"{path.name}.data") for path in graphs]
        return sorted([*graphs, *filter(Path.is_file, weights), *export.path.glob("tokenizer*.model")])

    def _translate(self, lines: Sequence[str]) -> list[tuple[str | None, float, str | None]]:
        """A translation, its score, and no error, of each line.

        If one line is refused, all lines beside it are. So then each half is translated by itself.
        """
        translator, options = self.load()
        try:
            best = [hypotheses[0] for hypotheses in translator.stream(lines, options)]
            return [(one.text, one.score, None) for one in best]
        except Exception as error:  # whatever it is, it is told in the row
            if len(lines) == 1:
                return [(None, np.nan, f"{type(error).__name__}: {error}")]
            middle = len(lines) // 2
            return self._translate(lines[:middle]) + self._translate(lines[middle:])
