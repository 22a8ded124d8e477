"""Finds the architecture of Hugging Face's that holds a model, with its options and tensors there.

An architecture holds a model if the import reads its options as the model's own arguments. The import's tables of names
and tensors are read backwards, and there are no others.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

import numpy as np
from keras import ops

from keras_transformer.core.errors import RequestError
from keras_transformer.importing import bart_models, causal_models, encoders, t5
from keras_transformer.importing.folder import Options
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.weights import Layout
from keras_transformer.models.base import FamilyModel
from keras_transformer.models.model_factory import Difference, model_config
from keras_transformer.ops import Tensor
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


# The names of our control ids, by what transformers calls them.
CONTROL = dict(zip(("pad_token", "unk_token", "bos_token", "eos_token"), CONTROL_PIECES, strict=True))


@dataclass(frozen=True, eq=False)
class Form:
    """An architecture of Hugging Face's, which holds some models.

    Args:
        name: its `model_type`.
        class_of: names its class in transformers for a model of this configuration.
        own_argument: an argument that models of other kinds lack.
        options: gives the options of config.json that are not ids, from the resolved configuration of a model, and for
            each id of the run the one in the folder.
        arguments: gives what the import reads from these options, a complete configuration; takes the model's own too.
        layout: tells where the weights lie, see `Layout`; takes the file, the configuration, and ids as `options` does.
        reads: tells whether the folder holds such a vocabulary.
        first_position: the row of the first position, of architectures with a table of positions.
        last_norm: the norm before the output, of architectures that do not multiply embeddings by a factor.
        ids: the ids that config.json names.
        control: the names of our control ids, by what transformers calls them.
        mask: the name of the mask.
        around: the names of the control ids that stand before and behind a text.
    """

    name: str
    class_of: Callable[[Config], str]
    own_argument: str
    options: Callable[[Config, Sequence[int]], Config]
    arguments: Callable[[Options, Config], Config]
    layout: Callable[[TensorFile, Config, Sequence[int]], Layout]
    reads: Callable[[Tokenizer | None], bool] = lambda tokenizer: True
    first_position: int | None = None
    last_norm: str = ""
    ids: Config = field(default_factory=dict)
    control: Mapping[str, str] = field(default_factory=lambda: CONTROL)
    mask: str = MASK_PIECE
    around: tuple[list[str], list[str]] = ([], [CONTROL_PIECES[END]])


OF_TEXT: Config = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
# At the longest translation Marian and BART force an end, unless told otherwise.
OF_TRANSLATORS: Config = {
    **OF_TEXT, "decoder_start_token_id": START, "forced_eos_token_id": None, "is_encoder_decoder": True,
}  # fmt: skip


def _is_sentencepiece(tokenizer: Tokenizer | None) -> bool:
    """Whether a folder can have SentencePiece's own files."""
    return tokenizer is not None and tokenizer.is_sentencepiece


def _completed(
    complete: Callable[[Config], Config], read: Callable[[Options], Config], **own: None
) -> Callable[[Options, Config], Config]:
    """What completes the arguments that the import reads; the model's own hold what the options do not tell."""
    return lambda options, config: complete({**read(options), **_taken_over(config), **own})


def _taken_over(config: Config) -> Config:
    return {name: config[name] for name in TAKEN_OVER if name in config}


def _marian_options(config: Config, ids: Sequence[int]) -> Config:
    most = longest(config["max_source_length"])
    sizes = {"vocab_size": config["source_vocabulary_size"] or config["vocabulary_size"]}
    sizes["decoder_vocab_size"] = config["vocabulary_size"]
    is_shared = config["source_vocabulary_size"] is None
    options = bart_models.marian_options({**config, "max_source_length": most - 1})
    return {**options, **sizes, "share_encoder_decoder_embeddings": is_shared}


def _marian_layout(file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
    count = config["vocabulary_size"]
    counts = config["source_vocabulary_size"] or count, count
    is_shared = config["source_vocabulary_size"] is None
    return bart_models.marian_layout(file, config, is_shared, ([*range(counts[0])], [*range(count)]), counts)


def _bart_layout(file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
    found = bart_models.bart_layout(file, config, [*ids], 1 + max(ids))
    return found._replace(orders={"V": found.orders["V"]})  # no position is a copy there


# The paper's model with sinusoids and biases, and with vocabularies of SentencePiece.
MARIAN = Form(
    "marian", lambda config: "MarianMTModel", "encoder_layers", _marian_options,
    _completed(model_spec.complete, bart_models.marian_arguments), _marian_layout, _is_sentencepiece,
    ids=OF_TRANSLATORS,
)  # fmt: skip
# Learned positions of encoder and decoder apart, a norm after the embedding, biases, one vocabulary.
BART = Form(
    "bart", lambda config: "BartForConditionalGeneration", "encoder_layers",
    lambda config, ids: bart_models.bart_options({**config, "max_source_length": config["num_positions"] - 1}),
    _completed(model_spec.complete, bart_models.bart_arguments, source_vocabulary_size=None), _bart_layout,
    first_position=bart_models.OFFSET, ids=OF_TRANSLATORS,
)  # fmt: skip
# Buckets of distances, RMS norms before the sub-layers, no biases, one vocabulary.
T5 = Form(
    "t5", lambda config: "T5ForConditionalGeneration", "encoder_layers",
    lambda config, ids: {**t5.t5_options(config), "scale_decoder_outputs": config["tied_output"]},
    _completed(
        model_spec.complete,
        lambda options: {**t5.arguments(options), "tied_output": options.switch("tie_word_embeddings", True)},
        source_vocabulary_size=None,
    ),
    lambda file, config, ids: t5.layout(file, config, [*ids], 1 + max(ids), is_scaled=config["tied_output"]),
    _is_sentencepiece, last_norm="decoder_stack.norm", ids=OF_TRANSLATORS,
)  # fmt: skip
# A decoder alone with norms before its sub-layers, learned positions and biases.
GPT2 = Form(
    "gpt2", lambda config: "GPT2LMHeadModel", "context_length",
    lambda config, ids: causal_models.gpt2_options(config),
    _completed(causal_models.complete_language_model, causal_models.gpt2_arguments),
    lambda file, config, ids: causal_models.gpt2_layout(file, config, [*ids], 1 + max(ids)),
    first_position=0, last_norm="stack.norm", ids=OF_TEXT, around=([CONTROL_PIECES[START]], []),
)  # fmt: skip
# A decoder alone with RMS norms, rotary positions and gated networks, without biases.
LLAMA = replace(
    GPT2, name="llama", class_of=lambda config: "LlamaForCausalLM", first_position=None,
    options=lambda config, ids: causal_models.llama_options(config),
    arguments=_completed(causal_models.complete_language_model, causal_models.llama_arguments),
    layout=lambda file, config, ids: causal_models.llama_layout(file, config, [*ids], 1 + max(ids)),
)  # fmt: skip
# A Vision Transformer with labels.
VIT = Form(
    "vit", lambda config: "ViTForImageClassification", "image_size", lambda config, ids: encoders.vit_options(config),
    lambda options, config: encoders.complete_vit(
        {**encoders.vit_arguments(options, config.get("num_labels") or 0), **_taken_over(config)}
    ),
    lambda file, config, ids: encoders.vit_layout(config, has_biases=True), first_position=0,
)  # fmt: skip


class _Bert(NamedTuple):
    """BERT or one of its kind: an encoder with learned positions, a norm after the embedding, and biases.

    Args:
        architecture: what the import knows of it.
        name: see `Form`.
        class_name: its class in transformers, without the name of the head.
        has_head: whether it has a head for labels or masked tokens; else it makes vectors alone.
        is_roberta: whether it has RoBERTa's special tokens.
    """

    architecture: encoders.Architecture
    name: str
    class_name: str
    has_head: bool = True
    is_roberta: bool = False

    def _first(self, pad: int) -> int:
        """Returns the row of the first position."""
        return 1 + pad if self.architecture.counts_pad else 0

    def class_of(self, config: Config) -> str:
        head = "ForSequenceClassification" if config["num_labels"] else "ForMaskedLM" if self.has_head else "Model"
        return self.class_name + head

    def options(self, config: Config, ids: Sequence[int]) -> Config:
        segments = {"type_vocab_size": self.architecture.num_segments} if self.architecture.num_segments else {}
        found = encoders.bert_options(self.architecture, config, self._first(ids[PAD]))
        return {**found, **segments, "pad_token_id": ids[PAD]}

    def arguments(self, options: Options, config: Config) -> Config:
        num_labels = config.get("num_labels") or 0
        own = num_labels, self.has_head and not num_labels, self._first(options.size("pad_token_id"))
        return encoders.complete({**encoders.arguments(self.architecture, options, *own), **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config, ids: Sequence[int]) -> Layout:
        start, prefix = self._first(ids[PAD]), self.architecture.prefix
        sizes = 1 + max(ids), (start, start + config["context_length"]), self.architecture.num_segments
        found = encoders.layout(self.architecture, file, config, [*ids], *sizes)
        if self.has_head:
            return found
        names = [(one.theirs.removeprefix(prefix), one.added.removeprefix(prefix)) for one in found.table]
        table = [one._replace(theirs=name, added=added) for one, (name, added) in zip(found.table, names, strict=True)]
        return found._replace(table=table)

    def form(self) -> Form:
        """Returns the architecture's record."""
        return Form(
            self.name, self.class_of, "context_length", self.options, self.arguments, self.layout,
            lambda tokenizer: _is_of_roberta(tokenizer) == self.is_roberta,
            first_position=0,
            last_norm="head_layer.norm" if self.has_head else "",
            ids=OF_TEXT if self.is_roberta else {"pad_token_id": PAD},
            control=dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), encoders.SPECIAL, strict=False)),
            mask=encoders.SPECIAL[-1],
            around=(["[CLS]"], ["[SEP]"]),
        )  # fmt: skip


def _is_of_roberta(tokenizer: Tokenizer | None) -> bool:
    """Whether a vocabulary has RoBERTa's special tokens."""
    if not isinstance(tokenizer, HuggingFaceTokenizer):
        return False
    first = [tokenizer.library.id_to_token(id) for id in tokenizer.ids[: END + 1]]
    return first == [*encoders.ROBERTA_SPECIAL[: END + 1]]


# The first that holds a model is written. RoBERTa's rows of positions begin behind the id of pad; DistilBERT has no
# segments, and a ReLU in the layer before labels: without labels BERT holds it too.
FORMS: tuple[Form, ...] = (
    MARIAN, BART, T5, GPT2, LLAMA,
    *(_Bert(encoders.BERT, "bert", "Bert", has_head).form() for has_head in (True, False)),
    *(_Bert(encoders.ROBERTA, "roberta", "Roberta", has_head, is_roberta=True).form() for has_head in (True, False)),
    _Bert(encoders.DISTILBERT, "distilbert", "DistilBert").form(), VIT,
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


def _num_positions(model: FamilyModel, config: Config) -> int:
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


def array_of(values: Tensor) -> np.ndarray:
    """Numbers in float32."""
    return np.asarray(ops.convert_to_numpy(values), "float32")


def emitted(config: Config) -> list[int]:
    """The ids that a model writes."""
    return [END, *range(config["num_control_ids"], config["vocabulary_size"])]
