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
from keras_transformer.models.transformer import Transformer
from keras_transformer.text.tokenizer import END, START


class KerasDecoder(Decoder):
    """Decodes with a `Transformer`; every computation is compiled once."""

    def __init__(self, model: Transformer):
        self._model = model
        self.max_source_length = model.max_source_length
        self.vocabulary_sizes = model.source_vocabulary_size, model.vocabulary_size
        self._computations = CompiledComputations(model)

    def __repr__(self) -> str:
        model = self.model
        layers = f"{model.encoder_layers} + {model.decoder_layers} layers of width {model.hidden_dim}"
        return f"{model.count_params():,} parameters, {layers}"

    @property
    def model(self) -> Transformer:
        return self._model

    def check_source_length(self, length: int) -> None:
        num_positions = self.model.positions.max_length
        if num_positions is not None and longest(length) > num_positions:
            raise RequestError(
                f"max_source_length must be at most {self.max_source_length}, because the model has no more learned "
                f"positions; received: {length}"
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
