"""What a user holds of a run: the base of translators, generators, classifiers and their like."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from keras_transformer.errors import RequestError
from keras_transformer.run_folder import RunFolder

if TYPE_CHECKING:
    from keras_transformer.decoding.attention import Attention
    from keras_transformer.text.tokenizer import Tokenizer


class Pipeline:
    """A model with what stands between it and the world. The house asks of it what is here; the rest is its task's."""

    model: Any
    attention: Any  # the method that tells where the model looks: its first argument is what the model takes
    takes_target = False  # whether `attention` takes a second one, what the model is to write

    @property
    def task(self) -> str:
        """Its task, a key of `tasks.TASKS`."""
        raise NotImplementedError

    @property
    def exported_model(self) -> Any:
        """The model that artefacts are made of."""
        return self.model

    @property
    def tokenizers(self) -> tuple[Tokenizer, ...]:
        """The vocabularies of what is read and of what is written; none without text."""
        return ()

    @property
    def names(self) -> Sequence[str]:
        """What the model chooses among, such as labels, in the order of its probabilities; none if among pieces."""
        return ()

    @property
    def own_search(self) -> Mapping[str, Any] | None:
        """The options of the search that the model brings; None if it does not search."""
        return None

    @property
    def longest_answer(self) -> int | None:
        """The most tokens that it ever adds; None if its context, or the source, sets the bound."""
        return None

    def about(self) -> dict[str, str]:
        """What an artefact says of it, beside what all artefacts say."""
        return {}

    def save_vocabularies(self, folder: Path) -> None:
        """Writes its vocabularies into a folder, under the file names of a run folder."""
        paths = RunFolder(folder).tokenizers(separate=len({*self.tokenizers}) > 1)
        for path, tokenizer in zip(paths, self.tokenizers, strict=False):
            tokenizer.save(path)

    def attention_of_line(self, line: str, target: str | None = None) -> dict[str, Attention]:
        """The attentions of what a command line gives.

        Raises:
            RequestError: the model takes no target.
        """
        if self.takes_target:
            return self.attention(line, target)
        if target is not None:
            raise RequestError(f"--target is for models that write texts; a model of --task {self.task} writes none")
        return self.attention(line)
