"""Which architecture of Hugging Face's holds a model, and its options and tensors there.

An architecture holds a model if the import reads its options as the model's own arguments. The import's tables of names
and tensors are read backwards, and there are no others.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from keras import ops

from keras_transformer.core.errors import RequestError
from keras_transformer.importing import bart_models, bert_models, causal_models, layouts, t5, vit
from keras_transformer.importing.folder import Options
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.weights import Layout
from keras_transformer.models.base import FamilyModel
from keras_transformer.models.inspection import Difference
from keras_transformer.models.model_factory import model_config
from keras_transformer.spec import model_spec, part_registry
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import longest
from keras_transformer.text.huggingface_tokenizer import HuggingFaceTokenizer
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, MASK_PIECE, PAD, START, Tokenizer

FORMAT = "huggingface"
# What decides no logit, or what a folder has beside config.json.
TAKEN_OVER = (
    "vocabulary_size", "source_vocabulary_size", "num_control_ids", "end_ids", "pixel_mean", "pixel_std", "first_state",
    "unit_vectors",
)  # fmt: skip
NOT_COMPARED = {"dropout", "attention_dropout", "max_source_length", "num_layers", "fixed_output_bias"}
ADDED = ("sinusoidal", "learned", "none")  # positions that a table of vectors can stand for


class Form:
    """An architecture of Hugging Face's, which holds some models. By default it translates."""

    name: str  # its `model_type`
    class_name: str  # its class in transformers
    own_argument = "encoder_layers"  # which models of other kinds lack
    first_position: int | None = None  # the row of the first position, of architectures with a table of positions
    last_norm = ""  # the norm before the output, of architectures that do not multiply embeddings by a factor
    # The ids that config.json names. At the longest translation Marian and BART force an end, unless told otherwise.
    ids: Config = {
        "pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": START,
        "forced_eos_token_id": None, "is_encoder_decoder": True,
    }  # fmt: skip
    # The names of our control ids, by what transformers calls them; and those that stand around a text.
    control: Config = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), CONTROL_PIECES, strict=True))
    mask = MASK_PIECE
    around: tuple[list[str], list[str]] = ([], [CONTROL_PIECES[END]])

    def reads(self, tokenizer: Tokenizer | None) -> bool:
        """Whether the folder holds such a vocabulary."""
        return True

    def class_of(self, config: Config) -> str:
        """The class in transformers for a model of this configuration."""
        return self.class_name

    def options(self, config: Config, ids: Sequence[int]) -> Config:
        """The options of config.json that are not ids, from the resolved configuration of a model.

        Args:
            config: the configuration.
            ids: for each id of the run the one in the folder.
        """
        raise NotImplementedError

    def arguments(self, options: Options, config: Config) -> Config:
        """What the import reads from these options, a complete configuration."""
        raise NotImplementedError

    def layout(self, file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
        """Where the weights lie, see `Layout`. `ids` are as in `options`."""
        raise NotImplementedError


def _taken_over(config: Config) -> Config:
    return {name: config[name] for name in TAKEN_OVER if name in config}


class OfPieces(Form):
    """An architecture whose folder has SentencePiece's own files."""

    def reads(self, tokenizer: Tokenizer | None) -> bool:
        return tokenizer is not None and tokenizer.is_sentencepiece


class Marian(OfPieces):
    """The paper's model with sinusoids and biases, and with vocabularies of SentencePiece."""

    name, class_name = "marian", "MarianMTModel"

    def options(self, config: Config, ids: Sequence[int]) -> Config:
        most = longest(config["max_source_length"])
        sizes = {"vocab_size": config["source_vocabulary_size"] or config["vocabulary_size"]}
        sizes["decoder_vocab_size"] = config["vocabulary_size"]
        is_shared = config["source_vocabulary_size"] is None
        options = bart_models.marian_options({**config, "max_source_length": most - 1})
        return {**options, **sizes, "share_encoder_decoder_embeddings": is_shared}

    def arguments(self, options: Options, config: Config) -> Config:
        return model_spec.complete({**bart_models.marian_arguments(options), **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
        count = config["vocabulary_size"]
        counts = config["source_vocabulary_size"] or count, count
        is_shared = config["source_vocabulary_size"] is None
        return bart_models.marian_layout(file, config, is_shared, ([*range(counts[0])], [*range(count)]), counts)


class Bart(Form):
    """Learned positions of encoder and decoder apart, a norm after the embedding, biases, one vocabulary."""

    name, class_name, first_position = "bart", "BartForConditionalGeneration", bart_models.OFFSET

    def options(self, config: Config, ids: Sequence[int]) -> Config:
        return layouts.bart_options({**config, "max_source_length": config["num_positions"] - 1})

    def arguments(self, options: Options, config: Config) -> Config:
        one = {"source_vocabulary_size": None}
        return model_spec.complete({**bart_models.bart_arguments(options), **_taken_over(config), **one})

    def layout(self, file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
        found = bart_models.bart_layout(file, config, [*ids], 1 + max(ids))
        return found._replace(orders={"V": found.orders["V"]})  # no position is a copy there


class T5(OfPieces):
    """Buckets of distances, RMS norms before the sub-layers, no biases, one vocabulary."""

    name, class_name, last_norm = "t5", "T5ForConditionalGeneration", "decoder_stack.norm"

    def options(self, config: Config, ids: Sequence[int]) -> Config:
        return {**t5.t5_options(config), "scale_decoder_outputs": config["tied_output"]}

    def arguments(self, options: Options, config: Config) -> Config:
        own = {"source_vocabulary_size": None, "tied_output": options.switch("tie_word_embeddings", True)}
        return model_spec.complete({**t5.arguments(options), **_taken_over(config), **own})

    def layout(self, file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
        return t5.layout(file, config, [*ids], 1 + max(ids), is_scaled=config["tied_output"])


class Gpt2(Form):
    """A decoder alone with norms before its sub-layers, learned positions and biases."""

    name, class_name, last_norm = "gpt2", "GPT2LMHeadModel", "stack.norm"
    first_position: int | None = 0
    own_argument, ids = "context_length", {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    around = ([CONTROL_PIECES[START]], [])

    def options(self, config: Config, ids: Sequence[int]) -> Config:
        return causal_models.gpt2_options(config)

    def arguments(self, options: Options, config: Config) -> Config:
        return layouts.complete_language_model({**causal_models.gpt2_arguments(options), **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
        return causal_models.gpt2_layout(file, config, [*ids], 1 + max(ids))


class Llama(Gpt2):
    """A decoder alone with RMS norms, rotary positions and gated networks, without biases."""

    name, class_name, first_position = "llama", "LlamaForCausalLM", None

    def options(self, config: Config, ids: Sequence[int]) -> Config:
        return causal_models.llama_options(config)

    def arguments(self, options: Options, config: Config) -> Config:
        return layouts.complete_language_model({**causal_models.llama_arguments(options), **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
        return causal_models.llama_layout(file, config, [*ids], 1 + max(ids))


class Bert(Form):
    """An encoder with learned positions, a norm after the embedding, biases, and a head for labels or masked tokens.

    Args:
        has_head: False for a model that makes vectors alone.
    """

    name, class_name, first_position = "bert", "Bert", 0
    own_argument = "context_length"
    ids: Config = {"pad_token_id": PAD}
    control = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), bert_models.SPECIAL, strict=False))
    mask = bert_models.SPECIAL[-1]
    around = (["[CLS]"], ["[SEP]"])
    architecture = bert_models.BERT

    def __init__(self, has_head: bool = True):
        self.has_head = has_head
        self.last_norm = "head_layer.norm" if has_head else ""

    def reads(self, tokenizer: Tokenizer | None) -> bool:
        return not _is_of_roberta(tokenizer)

    def class_of(self, config: Config) -> str:
        head = "ForSequenceClassification" if config["num_labels"] else "ForMaskedLM" if self.has_head else "Model"
        return self.class_name + head

    def options(self, config: Config, ids: Sequence[int]) -> Config:
        segments = {"type_vocab_size": self.architecture.num_segments} if self.architecture.num_segments else {}
        options = bert_models.bert_options(self.architecture, config, self._first(ids[PAD]))
        return {**options, **segments, "pad_token_id": ids[PAD]}

    def arguments(self, options: Options, config: Config) -> Config:
        num_labels, first = config.get("num_labels") or 0, self._first(options.size("pad_token_id"))
        fills = self.has_head and not num_labels
        arguments = bert_models.arguments(self.architecture, options, num_labels, fills, first)
        return bert_models.complete({**arguments, **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
        first, prefix = self._first(ids[PAD]), self.architecture.prefix
        sizes = 1 + max(ids), (first, first + config["context_length"]), self.architecture.num_segments
        found = bert_models.layout(self.architecture, file, config, [*ids], *sizes)
        if self.has_head:
            return found
        names = [(one.theirs.removeprefix(prefix), one.added.removeprefix(prefix)) for one in found.table]
        table = [one._replace(theirs=name, added=added) for one, (name, added) in zip(found.table, names, strict=True)]
        return found._replace(table=table)

    def _first(self, pad: int) -> int:
        """The row of the first position."""
        return 1 + pad if self.architecture.counts_pad else 0


class Roberta(Bert):
    """BERT with RoBERTa's special tokens, whose rows of positions begin behind the id of pad."""

    name, class_name, architecture = "roberta", "Roberta", bert_models.ROBERTA
    ids: Config = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}

    def reads(self, tokenizer: Tokenizer | None) -> bool:
        return _is_of_roberta(tokenizer)


class DistilBert(Bert):
    """BERT without segments, and with a ReLU in the layer before labels. Without labels BERT holds it too."""

    name, class_name, architecture = "distilbert", "DistilBert", bert_models.DISTILBERT


def _is_of_roberta(tokenizer: Tokenizer | None) -> bool:
    """Whether a vocabulary has RoBERTa's special tokens."""
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return False
    first = [tokenizer.library.id_to_token(id) for id in tokenizer.ids[: END + 1]]
    return first == [*bert_models.ROBERTA_SPECIAL[: END + 1]]


class Vit(Form):
    """A Vision Transformer with labels."""

    name, class_name, own_argument, first_position = "vit", "ViTForImageClassification", "image_size", 0
    ids: Config = {}

    def options(self, config: Config, ids: Sequence[int]) -> Config:
        return vit.vit_options(config)

    def arguments(self, options: Options, config: Config) -> Config:
        arguments = vit.arguments(options, config.get("num_labels") or 0)
        return vit.complete({**arguments, **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
        return vit.layout(config, has_biases=True)


# The first that holds a model is written.
FORMS: tuple[Form, ...] = (
    Marian(), Bart(), T5(), Gpt2(), Llama(), Bert(), Bert(has_head=False), Roberta(), Roberta(has_head=False),
    DistilBert(), Vit(),
)  # fmt: skip


def ids_of(tokenizer: Tokenizer | None, vocabulary_size: int) -> list[int]:
    """For each id of a run the one in the folder: the same, or that of the run's own tokenizer.json.

    Raises:
        RequestError: the ids there are not all from 0 on, as the rows of a matrix are.
    """
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return [*range(vocabulary_size)]
    if {*tokenizer.ids} != {*range(len({*tokenizer.ids}))}:
        raise RequestError(f"{FORMAT}: expected the ids in the run's tokenizer.json to be all from 0 on; some are left")
    return [*tokenizer.ids]


def form_of(model: FamilyModel, tokenizer: Tokenizer | None) -> tuple[Form, Config, Config]:
    """The architecture that holds a model, its options in config.json, and the configuration that the import will read.

    Args:
        model: the model.
        tokenizer: the vocabulary of what it writes; None for a model of images.

    Raises:
        RequestError: there is none. The message names what the nearest one lacks.
    """
    config, lacking, faults = model_config(model), {}, []
    ours, ids = resolved(config), ids_of(tokenizer, config.get("vocabulary_size", 0))
    if "max_source_length" in config:
        ours["num_positions"] = _num_positions(model, config)
    for form in FORMS:
        if form.own_argument not in config or not form.reads(tokenizer):
            continue
        options = form.options(ours, ids)
        try:
            found = form.arguments(Options(options, form.name), config)
        except (RequestError, ValueError) as error:
            faults.append(str(error))
            continue
        if found.get("kind", model_spec.DEFAULT_KIND) == config["kind"]:
            lacking[form] = differences(ours, resolved(found), form)
            if not lacking[form]:
                return form, options, found
    if not lacking:
        reason = "; ".join(faults) or f"none is a {config['kind']}"
        raise RequestError(f"{FORMAT} has no architecture for this model: {reason}")
    form = min(lacking, key=lambda form: len(lacking[form]))
    told = "; ".join(f"{one.path} {one.expected}, not {one.received}" for one in lacking[form])
    raise RequestError(
        f"{FORMAT} has no architecture for this model; the nearest, {form.name}, has {told}: train with these"
    )


def _num_positions(model: Any, config: Config) -> int:
    """The positions that a translator needs. The last vectors of an imported table are copies of the one before."""
    most, count = config["max_source_length"], longest(config["max_source_length"])
    if config["positions"]["name"] != "learned":
        return count
    tables = [array_of(table)[most - count :] for table in model.positions.weights]
    return most + 1 if all(np.all(table == table[0]) for table in tables) else count


def resolved(config: Config) -> Config:
    """The same configuration with each default that depends on other arguments written out."""
    config = {**config, "key_dim": part_registry.key_dim(config)}
    if "embedding_scale" in config:
        config["embedding_scale"] = config["embedding_scale"] or config["hidden_dim"] ** 0.5
    if "encoder_layers" in config:
        config["encoder_layers"], config["decoder_layers"] = model_spec.depths(config)
        config["decoder_attention"] = config["decoder_attention"] or config["attention"]
    if config.get("num_labels"):
        config |= {name: False for name in ("output_bias", "tied_output") if name in config}  # it has no such output
    for name in ("attention", "decoder_attention"):
        if config.get(name, {}).get("name") == "full":
            groups = config[name]["num_key_value_heads"] or config["num_heads"]
            config[name] = {**config[name], "num_key_value_heads": groups}
    return config


def differences(ours: Config, theirs: Config, form: Form) -> list[Difference]:
    """The arguments of which an architecture has no form. Biases that a model lacks are 0 there.

    An ε is written, or if the architecture has one of its own, the logits show whether it matters.
    """
    names = {name for name in theirs.keys() - NOT_COMPARED if theirs[name] != ours.get(name)}
    if ours.get("decoder_attention") == ours["attention"]:  # which is told once
        names -= {"decoder_attention"}
    arguments, found = model_spec.KINDS[ours["kind"]].arguments, []
    for name in sorted(names):
        one, other = theirs[name], ours[name]
        is_bias = name.endswith("_bias") and other is False
        is_table = name == "positions" and form.first_position is not None and other["name"] in ADDED
        is_folded = name == "embedding_scale" and bool(form.last_norm)
        if is_bias or is_table or is_folded or (name == "norm" and one["name"] == other["name"]):
            continue
        slot = arguments[name].slot
        found.append(
            Difference(name, *(model_spec.spelled(each, slot) if slot and each else each for each in (one, other)))
        )
    return found


def array_of(values: object) -> np.ndarray:
    """Numbers in float32."""
    return np.asarray(ops.convert_to_numpy(values), "float32")


def emitted(config: Config) -> list[int]:
    """The ids that a model writes."""
    return [END, *range(config["num_control_ids"], config["vocabulary_size"])]
