"""Decodes with a model in Keras, on any of its backends."""

from __future__ import annotations

import numpy as np

from keras_transformer.decoding.compiling import CompiledComputations
from keras_transformer.decoding.computations import Alignment, LogProbs, Sampling, Search
from keras_transformer.decoding.decoder import Decoder, Emitted, Found
from keras_transformer.decoding.options import SearchOptions
from keras_transformer.decoding.sentences import Arrays, Ids, padded
from keras_transformer.errors import RequestError
from keras_transformer.lengths import longest
from keras_transformer.models.ensemble import Ensemble
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import END, START


class KerasDecoder(Decoder):
    """Decodes with a `Transformer`, or with several as an `Ensemble`; every computation is compiled once.

    Raises:
        RequestError: the models cannot be an ensemble.
    """

    def __init__(self, *models: Transformer):
        self._models = models
        try:
            self._joint = models[0] if len(models) == 1 else Ensemble(models)
        except ValueError as error:
            raise RequestError(str(error)) from error
        self.max_source_length = self._joint.max_source_length
        self.vocabulary_sizes = self._joint.source_vocabulary_size, self._joint.vocabulary_size
        self._computations = CompiledComputations(self._joint)

    def __repr__(self) -> str:
        return " and ".join(
            f"{one.count_params():,} parameters, {one.encoder_layers} + {one.decoder_layers} layers of width "
            f"{one.hidden_dim}"
            for one in self._models
        )

    @property
    def model(self) -> Transformer:
        """See `Decoder.model`; an ensemble has no model of its own."""
        return self._models[0] if len(self._models) == 1 else super().model

    @property
    def joint(self) -> Transformer | Ensemble:
        return self._joint

    def check_source_length(self, length: int) -> None:
        for one in self._models:
            num_positions = one.positions.max_length
            if num_positions is not None and longest(length) > num_positions:
                raise RequestError(
                    f"max_source_length must be at most {self.max_source_length}, because the model has no more "
                    f"learned positions; received: {length}"
                )

    def search(self, arrays: Arrays, options: SearchOptions) -> Found:
        search = Search(options.num_beams, options.length_penalty, options.n_best)
        return Found(*self._computations.run(search, *arrays))

    def sample(self, arrays: Arrays, uniforms: np.ndarray, options: SearchOptions) -> tuple[np.ndarray, np.ndarray]:
        sampling = Sampling(options.n_best, options.temperature, options.top_k, options.top_p)
        ids, log_probs = self._computations.run(sampling, *arrays, uniforms)
        return ids, log_probs

    def align(self, emitted: list[Emitted]) -> list[tuple[tuple[int, int], ...]]:
        targets = [[id for id in one.ids if id != END] for one in emitted]
        source_ids = padded([[*one.sentence.source, END] for one in emitted])
        target_ids = padded([[START, *target] for target in targets])
        (weights,) = self._computations.run(Alignment(), source_ids, target_ids)  # (B, T, S)
        attended = [
            np.argmax(rows[: len(target), : len(one.sentence.source)], axis=-1)
            for rows, target, one in zip(weights, targets, emitted, strict=True)
        ]
        return [tuple((int(source), target) for target, source in enumerate(sources)) for sources in attended]

    def log_probs(self, sources: list[Ids], targets: list[Ids]) -> np.ndarray:
        source_ids = padded([[*source, END] for source in sources])
        labels = padded(targets)
        target_ids = np.pad(labels[:, :-1], [(0, 0), (1, 0)], constant_values=START)
        (log_probs,) = self._computations.run(LogProbs(), source_ids, target_ids, labels)
        return log_probs
