"""The search that a model from Hugging Face asks for, as options of our search."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from keras_transformer.errors import warn
from keras_transformer.importing.folder import ModelFolder
from keras_transformer.importing.options import INERT, Options

# Options that would change the search, with the values at which they do nothing.
NEUTRAL: dict[str, Any] = {
    "begin_suppress_tokens": None, "diversity_penalty": 0.0, "do_sample": False, "encoder_no_repeat_ngram_size": 0,
    "encoder_repetition_penalty": 1.0, "exponential_decay_length_penalty": None, "force_words_ids": None,
    "forced_bos_token_id": None, "min_length": 0, "min_new_tokens": 0, "no_repeat_ngram_size": 0, "num_beam_groups": 1,
    "repetition_penalty": 1.0, "suppress_tokens": None,
}  # fmt: skip
# Options of sampling, of the form of the output, and of how their search ends: ours looks until nothing better is left.
WITHOUT_EFFECT = {
    "_from_model_config", "early_stopping", "epsilon_cutoff", "eta_cutoff", "min_p", "num_return_sequences",
    "output_logits", "output_scores", "remove_invalid_values", "renormalize_logits", "return_dict_in_generate",
    "temperature", "top_h", "top_k", "top_p", "typical_p",
}  # fmt: skip
READ = {"bad_words_ids", "forced_eos_token_id", "length_penalty", "max_length", "max_new_tokens", "num_beams"}
MAX_LENGTH = 1_000_000


def search_of(
    folder: ModelFolder, config: Options, end: int, never: set[int], lacking: Iterable[str] = ()
) -> dict[str, Any]:
    """The options of our search, from generation_config.json or, where there is none, from config.json.

    Their search divides log P(y) by |y|^α, ours by ((5 + |y|) / 6)^α. α is kept: the longer a translation is, the less
    the two divisors differ but for a constant factor.

    Args:
        folder: the model's folder.
        config: of config.json. The options of the search are taken out of it.
        end: the id that ends a translation.
        never: the ids that our search never emits.
        lacking: options of which a warning says that our search does not have them.

    Raises:
        RequestError: the search does what ours does not.
    """
    names = {*NEUTRAL, *WITHOUT_EFFECT, *READ}
    options = Options({name: config.pop(name) for name in names}, config.where)
    if folder.has("generation_config.json"):
        options = Options(folder.json("generation_config.json"), str(folder.path / "generation_config.json"))
    asked = {name: options.pop(name) for name in lacking}
    if lost := [f"{name} {value!r:.40}" for name, value in asked.items() if value not in (None, NEUTRAL[name])]:
        warn(f"{options.where}: our search has no {', no '.join(lost)}: its translations may be others than theirs")
    options.expect({**NEUTRAL, "forced_eos_token_id": end, "eos_token_id": end})
    banned = options.pop("bad_words_ids") or []
    if not isinstance(banned, list) or any(word not in [[id] for id in never] for word in banned):
        raise options.refusal("bad_words_ids", banned, "no ids but those that no translation holds")
    longest = options.whole("max_length", MAX_LENGTH, 0)  # with the start id
    longest = options.whole("max_new_tokens", MAX_LENGTH, max(longest - 1, 0))
    search = {
        "num_beams": options.whole("num_beams", 1_000, 1) or 1,
        "length_penalty": options.number("length_penalty", 1.0),
    }
    options.finish(INERT | WITHOUT_EFFECT | {"decoder_start_token_id", "pad_token_id"})
    return {**search, "max_length": longest} if longest else search
