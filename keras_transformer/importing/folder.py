"""A model's folder as it came from outside: files that are data, bounded in size, none outside the folder; the options
of its configuration; and the search that it asks for.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, TypeVar

from keras_transformer.errors import RequestError, warn
from keras_transformer.options import Config

MAX_JSON_BYTES = 64 * 2**20
Choice = TypeVar("Choice")
MAX_SIZE = 4_000_000
ACTIVATIONS = {  # Hugging Face's names, and ours
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
# What a configuration of any architecture may say without changing a translation.
INERT = {
    "_commit_hash", "_name_or_path", "_num_labels", "architectures", "attn_implementation", "bos_token_id",
    "chunk_size_feed_forward", "dtype", "finetuning_task", "gradient_checkpointing", "id2label", "init_std", "label2id",
    "model_type", "num_labels", "output_attentions", "output_hidden_states", "prefix", "problem_type", "return_dict",
    "sep_token_id", "task_specific_params", "tf_legacy_loss", "tokenizer_class", "torch_dtype", "torchscript",
    "transformers_version", "use_bfloat16", "use_cache",
}  # fmt: skip
# Options that would change the search, with the values at which they do nothing.
NEUTRAL_SEARCH: Config = {
    "begin_suppress_tokens": None, "diversity_penalty": 0.0, "do_sample": False, "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0, "exponential_decay_length_penalty": None, "force_words_ids": None,
    "forced_bos_token_id": None, "min_length": 0, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1,
    "repetition_penalty": 1.0, "suppress_tokens": None,
}  # fmt: skip
# Options of sampling, of the form of the output, and of how their search ends: ours looks until nothing better is left.
SEARCH_WITHOUT_EFFECT = {
    "_from_model_config", "early_stopping", "epsilon_cutoff", "eta_cutoff", "min_p", "num_return_sequences",
    "output_logits", "output_scores", "remove_invalid_values", "renormalize_logits", "return_dict_in_generate",
    "temperature", "top_h", "top_k", "top_p", "typical_p",
}  # fmt: skip
READ_SEARCH = {"bad_words_ids", "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens", "num_beams"}
MAX_LENGTH = 1_000_000


class ModelFolder:
    """A folder from outside. Nothing in it is executed.

    Args:
        path: the folder.

    Raises:
        RequestError: there is no such folder.
    """

    def __init__(self, path: str | os.PathLike[str]):
        self.path = Path(path)
        if not self.path.is_dir():
            raise RequestError(
                f"expected a folder with a config.json; found none at {str(self.path)!r}: check the path"
            )

    def has(self, name: str) -> bool:
        """Whether the folder has an entry of this name, whatever it is."""
        return os.path.lexists(self.path / name)

    def file(self, name: str) -> Path:
        """The path of a file in the folder.

        Raises:
            RequestError: there is none, or it is a link that leaves the folder.
        """
        path = self.path / name
        try:
            found = path.resolve(strict=True)
        except (OSError, RuntimeError):  # a link in a circle raises either, by the version of Python
            raise RequestError(f"expected a file {name} in {self.path}; found none: download the whole model") from None
        if not found.is_relative_to(self.path.resolve()):
            raise RequestError(f"{path} is a link that leaves the folder: copy the files themselves, as with `cp -RL`")
        if not found.is_file():
            raise RequestError(f"expected a file at {path}; found something else")
        return found

    def read(self, name: str, max_bytes: int) -> bytes:
        """The content of a file.

        Raises:
            RequestError: see `file`; or it is larger than `max_bytes`.
        """
        path = self.file(name)
        if path.stat().st_size > max_bytes:
            raise RequestError(f"{self.path / name} is larger than {max_bytes:,} bytes: it is no file of such a model")
        return path.read_bytes()

    def json(self, name: str) -> Config:
        """The object in a JSON file.

        Raises:
            RequestError: see `file`; or it is too large, or holds no JSON object.
        """
        content = self.read(name, MAX_JSON_BYTES)
        try:
            values = json.loads(content.decode("utf-8"), parse_constant=_refuse_constant)
        except (ValueError, RecursionError) as error:
            raise RequestError(f"{self.path / name} is damaged: {str(error)[:200]}; download it again") from error
        if not isinstance(values, dict):
            raise RequestError(f"{self.path / name} is damaged: expected an object; received {values!r:.40}")
        return values


def _refuse_constant(name: str) -> None:
    raise ValueError(f"it holds {name}, which is no JSON")


class Options:
    """The options in a file.

    Args:
        values: the options by their names.
        where: the file, for messages.
    """

    def __init__(self, values: Config, where: str):
        self.where = where
        self._values = dict(values)

    def pop(self, name: str, default: object = None) -> Any:
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

    def size(self, name: str, default: int | None = None) -> int:
        """A width, a depth, or a count of at most `MAX_SIZE`; required if there is no default."""
        return self.whole(name, MAX_SIZE, default)

    def activation(self, name: str, default: str | None = None) -> str:
        """Our name of the activation."""
        return self.choice(name, ACTIVATIONS, default)

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

    def expect(self, only: Config) -> None:
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

    def refusal(self, name: str, received: object, expected: str) -> RequestError:
        """The error that names an option."""
        return RequestError(f"{self.where}: {name!r:.60}: expected {expected}; received: {received!r:.60}")


def search_of(folder: ModelFolder, config: Options, end: int, never: set[int], lacking: Mapping[str, object]) -> Config:
    """The options of our search, from generation_config.json or, where there is none, from config.json.

    Their search divides log P(y) by |y|^α, ours by ((5 + |y|) / 6)^α. α is kept: the longer a translation is, the less
    the two divisors differ but for a constant factor.

    Args:
        folder: the model's folder.
        config: the content of config.json. The options of the search are taken out of it.
        end: the id that ends a translation.
        never: the ids that our search never emits.
        lacking: options of which a warning says that our search does not have them, with the values that it has.

    Raises:
        RequestError: the search does what ours does not.
    """
    names = {*NEUTRAL_SEARCH, *SEARCH_WITHOUT_EFFECT, *READ_SEARCH}
    options = Options({name: config.pop(name) for name in names}, config.where)
    if folder.has("generation_config.json"):
        options = Options(folder.json("generation_config.json"), str(folder.path / "generation_config.json"))
    asked = {name: options.pop(name) for name in lacking}
    if lost := [f"{name} {value!r:.40}" for name, value in asked.items() if value not in (None, lacking[name])]:
        warn(f"{options.where}: our search has no {', no '.join(lost)}: its translations may be others than theirs")
    options.expect({**NEUTRAL_SEARCH, "forced_eos_token_id": end, "eos_token_id": end})
    banned = options.pop("bad_words_ids") or []
    if not isinstance(banned, list) or any(word not in [[id] for id in never] for word in banned):
        raise options.refusal("bad_words_ids", banned, "no ids but those that no translation holds")
    longest = options.whole("max_length", MAX_LENGTH, 0)  # with the start id
    longest = options.whole("max_new_tokens", MAX_LENGTH, max(longest - 1, 0))
    search = {
        "num_beams": options.whole("num_beams", 1_000, 1) or 1,
        "length_penalty": options.number("length_penalty", 1.0),
    }
    options.finish(INERT | SEARCH_WITHOUT_EFFECT | {"decoder_start_token_id", "pad_token_id"})
    return {**search, "max_length": longest} if longest else search
