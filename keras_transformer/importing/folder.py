"""Reads a model's folder from outside: its files, which are data, bounded in size and all within the folder, and the
options that they hold, those of its search included.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from keras_transformer.core.errors import RequestError, abridged, warn
from keras_transformer.core.schema import Allowed, line, of_type, one_of, read_json, shown, whole
from keras_transformer.runs.run_folder import MAX_LICENSE
from keras_transformer.spec import model_spec
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import MAX_NGRAM, VALUES, Guards

MAX_JSON_BYTES = 64 * 2**20
FILE_NAME = line(1_000, 1)
Choice = TypeVar("Choice")
# Options of an architecture that may have one value alone, see `Options.expect`. Some of them only old files name.
Value: TypeAlias = bool | int | float | str | dict[str, str] | None
RequiredValues: TypeAlias = Mapping[str, Value]
MAX_SIZE = 4_000_000
ACTIVATIONS = {  # Hugging Face's names, and ours
    "gelu": "gelu", "gelu_new": "gelu_tanh", "gelu_pytorch_tanh": "gelu_tanh", "relu": "relu", "silu": "silu",
    "swish": "silu",
}  # fmt: skip
# Words in the names of options by which some model computes otherwise. An option that no importer knows is refused if
# it has one of them, unless it is null or false; others are ignored, as transformers ignores them, and listed.
RISKY_OPTION = re.compile(
    "act|adapt|alibi|alpha|attention|attn|beta|bias|cap|channel|chunk|conv|depth|dim|divisor|do_|embed|experts?|factor|"
    "ffn|gamma|gate|group|head|hidden|id$|ids$|kernel|layer|lora|mask|max|mlp|moe|multiplier|norm|num|offset|order|pad|"
    "parallel|patch|pos|prune|quant|ratio|rank|residual|rope|rot|router|scal|score|segment|share|size|skip|softmax|"
    "sparse|state|stride|temperature|theta|tie|tying|vocab|width|window"
)
ANY_OPTION, NO_OPTION = re.compile(""), re.compile("(?!)")
SPECIAL = ("additional_special_tokens", "extra_special_tokens")  # lists in a tokenizer's configuration, old and new
MAX_TOLD = 20  # so many options that are ignored are named
# What a configuration of any architecture may say without changing a translation.
HARMLESS_OPTIONS = {
    "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal", "_commit_hash",
    "_model_name_or_path", "_name_or_path", "_num_labels", "architectures", "attn_implementation", "bos_token_id",
    "chunk_size_feed_forward", "cls_token_id", "dtype", "finetuning_task", "gradient_checkpointing", "id2label",
    "init_std", "label2id", "license", "mask_token_id", "model_type", "num_labels", "output_attentions",
    "output_hidden_states", "prefix", "return_dict", "sep_token_id", "task_specific_params", "tf_legacy_loss",
    "tokenizer_class", "torch_dtype", "torchscript", "transformers_version", "unk_token_id", "use_bfloat16",
    "use_cache",
}  # fmt: skip
# Options that would change the search, with the values at which they do nothing.
NEUTRAL_SEARCH: RequiredValues = {
    "begin_suppress_tokens": None, "constraints": None, "diversity_penalty": 0.0, "do_sample": False,
    "dola_layers": None, "encoder_no_repeat_ngram_size": 0, "encoder_repetition_penalty": 1.0,
    "exponential_decay_length_penalty": None, "force_words_ids": None, "forced_bos_token_id": None,
    "guidance_scale": 1.0, "max_time": None, "num_beam_groups": 1, "penalty_alpha": 0.0, "sequence_bias": None,
    "stop_strings": None, "suppress_tokens": None, "token_healing": False, "use_mtp": False,
    "watermarking_config": None,
}  # fmt: skip
# Those that our search has too, see `Guards`; a language model keeps no search of its own.
GUARDS: RequiredValues = {
    "min_length": 0, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "repetition_penalty": 1.0,
}  # fmt: skip
# Options of sampling, of the form of the output, of what makes the same answer sooner, and of how their search ends:
# ours looks until nothing better is left.
SEARCH_WITHOUT_EFFECT = {
    "_from_model_config", "assistant_confidence_threshold", "assistant_early_exit", "assistant_ensemble_weight",
    "assistant_lookbehind", "cache_config", "cache_implementation", "compile_config", "continuous_batching_config",
    "disable_compile", "early_stopping", "epsilon_cutoff", "eta_cutoff", "is_assistant", "low_memory", "max_cache_len",
    "max_matching_ngram_size", "min_p", "num_assistant_tokens", "num_assistant_tokens_schedule",
    "num_return_sequences", "output_logits", "output_scores", "prefill_chunk_size", "prompt_lookup_num_tokens",
    "remove_invalid_values", "renormalize_logits", "return_dict_in_generate", "speculation_type", "target_lookbehind",
    "temperature", "top_h", "top_k", "top_p", "typical_p",
}  # fmt: skip
READ_SEARCH = {
    "bad_words_ids", "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens", "num_beams", *GUARDS,
}  # fmt: skip
MAX_LENGTH = 1_000_000
GENERATION, START_ID = "generation_config.json", "decoder_start_token_id"
NOTHING: tuple[None, list[str], dict[str, str]] = (None, [], {})  # values of an option that ask for nothing
LICENSES = ["LICENSE", "LICENSE.md", "LICENSE.txt", "LICENCE"]
MAX_LICENSE_BYTES = 64 * 2**10  # so much is read of a file that may name the licence


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
        """Returns the path of a file in the folder.

        Raises:
            RequestError: there is none, its name is not printable, or it is a link that leaves the folder.
        """
        if not FILE_NAME.holds(name):  # another file may have named it
            raise RequestError(f"expected the name of a file in {self.path}; received {shown(name)}")
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
        """Reads the content of a file.

        Raises:
            RequestError: see `file`; or it is larger than `max_bytes`.
        """
        path = self.file(name)
        if path.stat().st_size > max_bytes:
            raise RequestError(f"{self.path / name} is larger than {max_bytes:,} bytes: it is no file of such a model")
        return path.read_bytes()

    def json(self, name: str, allowed: Allowed = dict) -> Any:
        """Reads what a JSON file holds, by default any object.

        Raises:
            RequestError: see `file`; or it is too large or damaged, or holds what is not allowed.
        """
        try:
            return read_json(self.file(name), allowed, MAX_JSON_BYTES)
        except RequestError:
            raise
        except ValueError as error:
            raise RequestError(f"{self.path / name} is damaged: {str(error)[:200]}; download it again") from error


class Options:
    """The options in a file.

    Args:
        values: the options by their names.
        where: the file, for messages.
    """

    def __init__(self, values: Config, where: str):
        self.where = where
        self._values = dict(values)

    def pop(self, name: str, default: Value = None) -> Any:
        """Takes an option out; `default` if it is not there."""
        return self._values.pop(name, default)

    def take_start(self, folder: ModelFolder) -> None:
        """Puts the id with which decoding starts by generation_config.json, if it names one, in place of config.json's.
        transformers reads the former.
        """
        asked = folder.json(GENERATION) if folder.has(GENERATION) else {}
        for name in ("bos_token_id", START_ID):  # the latter wins
            if asked.get(name) is not None:
                self._values[START_ID] = asked[name]

    def has(self, name: str) -> bool:
        """Whether the option is there and not null."""
        return self._values.get(name) is not None

    def whole(self, name: str, most: int, default: int | None = None) -> int:
        """Takes a whole number from 0 to `most` out.

        Raises:
            RequestError: it is missing and has no default, or is something else.
        """
        value = self.pop(name)
        return self._checked(name, default if value is None else value, whole(0, most))

    def size(self, name: str, default: int | None = None) -> int:
        """Takes a width, a depth, or a count of at most `MAX_SIZE` out; required if there is no default."""
        return self.whole(name, MAX_SIZE, default)

    def activation(self, name: str, default: str | None = None) -> str:
        """Takes an activation out; returns our name of it."""
        return self.choice(name, ACTIVATIONS, default)

    def switch(self, name: str, default: bool) -> bool:
        """Takes true or false out.

        Raises:
            RequestError: it is something else.
        """
        return self._checked(name, self.pop(name, default), bool)

    def number(self, name: str, default: float | None = None) -> float:
        """Takes a number out; required if there is no default.

        Raises:
            RequestError: it is something else.
        """
        value = self.pop(name)
        return float(self._checked(name, default if value is None else value, float))

    def choice(self, name: str, choices: dict[str, Choice], default: str | None = None) -> Choice:
        """Takes a name out; returns what it stands for.

        Raises:
            RequestError: it is not among the choices.
        """
        return choices[self._checked(name, self.pop(name, default), one_of(tuple(choices)))]

    def _checked(self, name: str, value: Any, allowed: Allowed) -> Any:
        if not of_type(allowed).holds(value):
            raise self.refusal(name, value, of_type(allowed).expected)
        return value

    def expect(self, required: RequiredValues) -> None:
        """Takes options out that may have one value alone. Options that are missing, null, or an empty list or object
        pass: they ask for nothing.

        Raises:
            RequestError: one has another value.
        """
        for name, value in required.items():
            received = self.pop(name)
            is_same = received == value and isinstance(received, bool) == isinstance(value, bool)
            if not is_same and received not in NOTHING:
                raise self.refusal(name, received, f"{value!r} alone")

    def finish(self, harmless: set[str], risky: re.Pattern[str] = RISKY_OPTION) -> None:
        """Ignores the options that are left, and lists those that are not among the harmless ones in one warning.

        Raises:
            RequestError: the name of one has a word of `risky`, and it is neither null nor false.
        """
        left = sorted(name for name, value in self._values.items() if name not in harmless and value is not None)
        told = [name for name in left if not risky.search(name.lower())]
        for name in left:
            if name not in told and self._values[name] is not False:
                raise self.refusal(name, self._values[name], "only options that this importer knows")
        tell_ignored(self.where, told)

    def tell_lost(self, lacking: RequiredValues) -> None:
        """Takes options of a search out. One warning names those that ask for what our search does not have.

        Args:
            lacking: the options, with the values at which they do nothing.
        """
        asked = {name: self.pop(name) for name in lacking}
        lost = [f"{name} {value!r:.40}" for name, value in asked.items() if value not in (*NOTHING, lacking[name])]
        if lost:
            warn(f"{self.where}: our search has no {', no '.join(lost)}: its texts may be others than theirs")

    def refusal(self, name: str, received: object, expected: str) -> RequestError:
        """Makes the error that names an option."""
        return RequestError(f"{self.where}: {shown(name)}: expected {expected}; received: {shown(received)}")


def tell_ignored(where: str | Path, names: Sequence[str]) -> None:
    """Warns, in one line, of options or files in a place that are not read; of at most `MAX_TOLD` by their names."""
    if names:
        warn(f"{where}: ignored: {abridged((f'{name!r:.60}' for name in names), MAX_TOLD)}")


def options_of(
    folder: ModelFolder, name: str, required: RequiredValues | None = None, has_many_ends: bool = False
) -> Options:
    """Reads the options in a JSON file of a folder. A list of one end id becomes that id.

    Args:
        folder, name: the folder, and the file.
        required: options that may have one value alone, see `Options.expect`.
        has_many_ends: whether several ids may end a text.

    Raises:
        RequestError: see `ModelFolder.json` and `Options.expect`; or several ids end a text and may not.
    """
    values = folder.json(name)
    options, ends = Options(values, str(folder.path / name)), values.get("eos_token_id")
    if not has_many_ends and isinstance(ends, list):
        if not ends or ends.count(ends[0]) < len(ends):
            raise options.refusal("eos_token_id", ends, "one id, for no search here ends a text with one of several")
        options = Options({**values, "eos_token_id": ends[0]}, options.where)
    options.expect(required or {})
    return options


def read_named(options: Options, names: Mapping[str, str], norm_name: str = "layer", **defaults: Value) -> Config:
    """Arguments of our model, which an architecture has under these names. That of `norm` is the ε of a norm."""
    readers: dict[str, Callable[..., float | str]] = {
        "activation": Options.activation, "norm": Options.number, "dropout": Options.number,
        "attention_dropout": Options.number,
    }  # fmt: skip
    config = {
        ours: readers.get(ours, Options.size)(options, theirs, defaults.get(ours)) for ours, theirs in names.items()
    }
    return config | ({"norm": {"name": norm_name, "epsilon": config["norm"]}} if "norm" in names else {})


def write_named(config: Config, names: Mapping[str, str]) -> Config:
    """Returns the options that `read_named` reads as this configuration, which must be complete."""
    name = config["activation"]["name"]
    activation = next((theirs for theirs, ours in ACTIVATIONS.items() if ours == name), name)
    values = {**config, "activation": activation, "norm": config["norm"]["epsilon"]}
    return {theirs: values[ours] for ours, theirs in names.items()}


def completed(options: Options, config: Config, complete: Callable[[Config], Config] = model_spec.complete) -> Config:
    """Completes the arguments of our model. Raises RequestError, which names the file, if no model has these."""
    try:
        return complete(config)
    except ValueError as error:
        raise RequestError(f"{options.where}: {error}") from error


def license_of(folder: ModelFolder) -> str:
    """Reads the licence that a folder names, in one line: in the head of README.md, else in config.json, else in the
    first two lines of a file LICENSE; "" if it names none."""
    config = folder.json("config.json").get("license")
    names = _in_head(_beginning(folder, "README.md")) or ([config] if isinstance(config, str) else [])
    for name in LICENSES:
        names = names or [line for line in _beginning(folder, name).splitlines() if line.strip(" #")][:2]
    line = " ".join(word for name in names for word in name.strip(" #").split())
    return "".join(filter(str.isprintable, line))[:MAX_LICENSE]


def _in_head(page: str) -> list[str]:
    """Returns the licences in the head of a page, which is YAML between two lines of hyphens: a name, or a list of
    names."""
    start, *lines = page.split("\n")
    if start.rstrip() != "---":
        return []
    names, is_list = [], False
    for row in lines:
        if row.rstrip() == "---":
            break
        key, _, value = row.partition(":")
        item = row.strip().removeprefix("- ") if is_list and row.strip().startswith("- ") else ""
        is_list = bool(item) or key in ("license", "license_name")
        names += [item or value] if is_list else []
    return [name for each in names if (name := each.partition(" #")[0].strip(" []\"'"))]


def _beginning(folder: ModelFolder, name: str) -> str:
    if not folder.has(name):
        return ""
    with folder.file(name).open("rb") as file:
        return file.read(MAX_LICENSE_BYTES).decode("utf-8", "replace").replace("\r\n", "\n")


def asked_search(folder: ModelFolder, config: Options, has_many_ends: bool = False) -> Options:
    """Reads the options of a search from generation_config.json or, where there is none, from config.json, see
    `options_of`.

    Those in config.json are taken out of `config` in any case.
    """
    names = {*NEUTRAL_SEARCH, *SEARCH_WITHOUT_EFFECT, *READ_SEARCH}
    options = Options({name: config.pop(name) for name in names}, config.where)
    return options_of(folder, GENERATION, has_many_ends=has_many_ends) if folder.has(GENERATION) else options


def guards_of(options: Options) -> Config:
    """Takes the guards that are on out of the options of a search.

    Raises:
        RequestError: one has a value that our search does not take.
    """
    least = options.whole("min_length", MAX_LENGTH, 0) - 1  # it counts the start id
    penalty, allowed = options.number("repetition_penalty", 1.0), VALUES["repetition_penalty"]
    if not allowed.holds(penalty):
        raise options.refusal("repetition_penalty", penalty, allowed.expected)
    return Guards(
        min_length=max(least, options.whole("min_new_tokens", MAX_LENGTH, 0), 0),
        no_repeat_ngram_size=options.whole("no_repeat_ngram_size", MAX_NGRAM, 0),
        repetition_penalty=penalty,
    ).active_guards()


def search_of(folder: ModelFolder, config: Options, end: int, never: set[int], lacking: RequiredValues) -> Config:
    """Reads the options of our search from generation_config.json or, where there is none, from config.json.

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
    options = asked_search(folder, config)
    options.tell_lost(lacking)
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
    guards = guards_of(options)
    options.finish(HARMLESS_OPTIONS | SEARCH_WITHOUT_EFFECT | {START_ID, "pad_token_id"})
    return search | ({"max_length": longest} if longest else {}) | guards
