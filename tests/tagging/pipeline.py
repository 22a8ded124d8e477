"""From a text to the tags of its words."""

import numpy as np

from keras_transformer import ops
from keras_transformer.runs.run_folder import read_tokenizers
from keras_transformer.tasks.classification.pipeline import Classifier
from tests.tagging.training import FIRST_TAG


class Tagger(Classifier):
    """Tells the tags of words, which are its labels."""

    task = "tagging"

    @classmethod
    def of_run(cls, model, folder, config) -> "Tagger":
        return cls(model, read_tokenizers(folder, None, model.vocabulary_size)[1], config.labels or [])

    def tag_probabilities(self, text: str) -> np.ndarray:
        """The probability (S, C) of each tag, at each piece."""
        logits = self.model({"ids": np.array([self.ids(text)])})[0, :, FIRST_TAG : FIRST_TAG + len(self.labels)]
        return ops.convert_to_numpy(ops.softmax(logits))

    def tag(self, text: str) -> list[tuple[str, str]]:
        """The words of a text, each with its likeliest tag, that of its first piece."""
        words, best = text.split(), self.tag_probabilities(text).argmax(axis=1)
        firsts = np.cumsum([1, *(len(self.tokenizer.encode([word])[0]) for word in words)])
        return [(word, self.labels[best[first]]) for word, first in zip(words, firsts, strict=False)]


PIPELINE = Tagger
