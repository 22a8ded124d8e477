"""From a text to the tags of its words."""

from typing import Any

import numpy as np

from keras_transformer import ops
from keras_transformer.core.task_registry import TASKS
from keras_transformer.decoding.pipelines import Pipeline
from keras_transformer.runs.run_folder import RunFolder, load_model, read_config, read_tokenizers
from keras_transformer.tasks.classification.batches import with_ends
from tests.tagging.training import FIRST_TAG


class Tagger(Pipeline):
    """Tells the tags of words."""

    task = "tagging"

    def __init__(self, model: Any, tokenizer: Any, tags: list[str]):
        self.model, self.tokenizer, self.tags = model, tokenizer, tags

    @property
    def tokenizers(self):
        return self.tokenizer, self.tokenizer

    def ids(self, text: str) -> list[int]:
        """The ids of a text between start and end."""
        return with_ends(self.tokenizer.encode([text])[0], self.model.context_length)

    def probabilities(self, text: str) -> np.ndarray:
        """The probability (S, C) of each tag, at each piece."""
        logits = self.model({"ids": np.array([self.ids(text)])})[0, :, FIRST_TAG : FIRST_TAG + len(self.tags)]
        return ops.convert_to_numpy(ops.softmax(logits))

    def tag(self, text: str) -> list[tuple[str, str]]:
        """The words of a text, each with its likeliest tag."""
        words, found, place = text.split(), self.probabilities(text), 1
        tags = []
        for word in words:
            tags.append((word, self.tags[int(found[place].argmax())]))
            place += len(self.tokenizer.encode([word])[0])
        return tags

    def sections(self) -> dict[str, Any]:
        return {"labels": self.tags}

    def about(self) -> dict[str, str]:
        return {"tags": " ".join(self.tags)}


def load(run) -> Tagger:
    """The tagger of a run folder."""
    folder = RunFolder(run)
    model = load_model(folder, TASKS["tagging"].kind)
    return Tagger(model, read_tokenizers(folder, None, model.vocabulary_size)[1], read_config(folder).labels or [])
