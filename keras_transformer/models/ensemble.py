"""Several translators that write as one: the next piece has the mean of their probabilities."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from keras_transformer import ops
from keras_transformer.tensor import Tensor

if TYPE_CHECKING:
    from keras_transformer.models.transformer import Transformer


class Ensemble:
    """What search, sampling and scoring need of a model, computed with several.

    The probability of a piece is the arithmetic mean, P(y_t | y_<t, x) = 1/M · Σ P_m(y_t | y_<t, x), as Sutskever et
    al. 2014 (1409.3215) decode with several models. Its attention is the mean of the models' attention.

    Args:
        models: M translators whose vocabularies have the same sizes.

    Raises:
        ValueError: there is no model, or the sizes of the vocabularies or the numbers of control ids differ.
    """

    def __init__(self, models: Sequence[Transformer]):
        sizes = {(one.source_vocabulary_size, one.vocabulary_size, one.num_control_ids) for one in models}
        if len(sizes) != 1:
            raise ValueError(
                "expected models of one source vocabulary, one target vocabulary and one number of control ids; "
                f"received {len(models)} model(s) of the sizes {sorted(sizes, key=str)}"
            )
        self.kind = models[0].kind
        self.models = list(models)
        ((self.source_vocabulary_size, self.vocabulary_size, self.num_control_ids),) = sizes
        self.max_source_length = min(one.max_source_length for one in models)
        self.decoder_layers = min(one.decoder_layers for one in models)

    def arguments(self) -> dict[str, Any]:
        """What describes the ensemble in a file: its sizes, and the arguments of each model."""
        sizes = ("source_vocabulary_size", "vocabulary_size", "num_control_ids", "max_source_length")
        return {
            **{name: getattr(self, name) for name in sizes},
            "models": [one.arguments() for one in self.models],
        }

    @property
    def variables(self) -> list[Any]:
        """The variables of all models."""
        return [variable for one in self.models for variable in one.variables]

    def __call__(self, inputs: dict[str, Tensor], training: bool = False) -> Tensor:
        """Logits (B, T, V) float32, as of `Transformer`."""
        return self._mean([one(inputs, training=training) for one in self.models])

    def encode(self, source_ids: Tensor) -> list[Tensor]:
        """Source ids (B, S) → the memory (B, S, D) of each model."""
        return [one.encode(source_ids) for one in self.models]

    def init_cache(
        self, memory: list[Tensor], source_ids: Tensor, num_beams: int, max_length: int | Tensor
    ) -> dict[str, Any]:
        """The caches of all models at position 0; arguments as of `Transformer.init_cache`."""
        return _joined(
            [
                one.init_cache(each, source_ids, num_beams, max_length)
                for one, each in zip(self.models, memory, strict=True)
            ]
        )

    def step(self, token_ids: Tensor, cache: dict[str, Any], index: Tensor) -> tuple[Tensor, dict[str, Any]]:
        """Logits (B, K, V) float32 of the next piece, and the new cache; arguments as of `Transformer.step`."""
        steps = [
            one.step(token_ids, {"beams": beams, "sentences": sentences}, index)
            for one, beams, sentences in zip(self.models, cache["beams"], cache["sentences"], strict=True)
        ]
        return self._mean([logits for logits, _ in steps]), _joined([cache for _, cache in steps])

    def attention_scores(self, inputs: dict[str, Tensor]) -> dict[str, Tensor]:
        """ "cross" (layers, B, 1, T, S): the mean over models and heads, layers counted from the last."""
        cross = [one.attention_scores(inputs)["cross"][-self.decoder_layers :] for one in self.models]
        return {"cross": ops.mean(ops.stack([ops.mean(each, axis=2, keepdims=True) for each in cross]), axis=0)}

    def _mean(self, logits: list[Tensor]) -> Tensor:
        """The logarithm of the mean probabilities, which `log_softmax` leaves as they are."""
        log_probs = ops.stack([ops.log_softmax(ops.cast(each, "float32")) for each in logits])
        return ops.logsumexp(log_probs, axis=0)  # without the logarithm of M, which no softmax sees


def members_of(model: Transformer | Ensemble) -> list[Transformer]:
    """The models of an ensemble, or the one model."""
    return model.models if isinstance(model, Ensemble) else [model]


def _joined(caches: list[dict[str, Any]]) -> dict[str, Any]:
    return {name: [cache[name] for cache in caches] for name in ("beams", "sentences")}
