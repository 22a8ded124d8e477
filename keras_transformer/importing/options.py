"""Options in a configuration from outside: each is read by name; what nobody knows is refused by its name."""

from __future__ import annotations

import sys
from typing import Any, TypeVar

from keras_transformer.errors import RequestError

Choice = TypeVar("Choice")
# What a configuration of any architecture may say without changing a translation.
INERT = {
    "_commit_hash", "_name_or_path", "_num_labels", "architectures", "attn_implementation", "bos_token_id",
    "chunk_size_feed_forward", "dtype", "finetuning_task", "gradient_checkpointing", "id2label", "init_std", "label2id",
    "model_type", "num_labels", "output_attentions", "output_hidden_states", "prefix", "problem_type", "return_dict",
    "sep_token_id", "task_specific_params", "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers_version", "use_bfloat16", "use_cache",
}  # fmt: skip


class Options:
    """The options in a file.

    Args:
        values: the options by their names.
        where: the file, for messages.
    """

    def __init__(self, values: dict[str, Any], where: str):
        self.where = where
        self._values = dict(values)

    def pop(self, name: str, default: Any = None) -> Any:
        """Takes an option out; `default` if it is not there."""
        return self._values.pop(name, default)

    def whole(self, name: str, most: int, default: int | None = None) -> int:
        """A whole number from 0 to `most`.

        Raises:
            RequestError: it is missing and has no default, or is something else.
        """
        value = self.pop(name)
        value = default if value is None else value
        if type(value) is not int or not 0 <= value <= most:
            raise self.refusal(name, value, f"a whole number from 0 to {most:,}")
        return value

    def switch(self, name: str, default: bool) -> bool:
        """True or false.

        Raises:
            RequestError: it is something else.
        """
        value = self.pop(name, default)
        if type(value) is not bool:
            raise self.refusal(name, value, "true or false")
        return value

    def number(self, name: str, default: float) -> float:
        """A number.

        Raises:
            RequestError: it is something else.
        """
        value = self.pop(name)
        value = default if value is None else value
        if type(value) not in (int, float) or not abs(value) <= sys.float_info.max:
            raise self.refusal(name, value, "a number")
        return float(value)

    def choice(self, name: str, choices: dict[str, Choice], default: str | None = None) -> Choice:
        """What a name stands for.

        Raises:
            RequestError: it is not among the choices.
        """
        value = self.pop(name, default)
        if not isinstance(value, str) or value not in choices:
            raise self.refusal(name, value, f"one of {', '.join(choices)}")
        return choices[value]

    def expect(self, only: dict[str, Any]) -> None:
        """Takes options out that may have one value alone. Options that are null or missing pass.

        Raises:
            RequestError: one has another value.
        """
        for name, value in only.items():
            received = self.pop(name)
            if received is not None and (received != value or isinstance(received, bool) != isinstance(value, bool)):
                raise self.refusal(name, received, f"{value!r} alone")

    def finish(self, inert: set[str]) -> None:
        """Raises RequestError if an option is left that is not among the inert ones."""
        left = [name for name, value in self._values.items() if name not in inert and value is not None]
        if left:
            raise self.refusal(min(left), self._values[min(left)], "only options that this importer knows")

    def refusal(self, name: str, received: Any, expected: str) -> RequestError:
        """The error that names an option."""
        return RequestError(f"{self.where}: {name!r:.60}: expected {expected}; received: {received!r:.60}")
