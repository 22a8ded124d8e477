"""Which architecture of Hugging Face's holds a model, and its options and tensors there.

An architecture holds a model if the import reads its options as the model's own arguments. The import's tables of names
and tensors are read backwards, and there are no others.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from keras import ops

from keras_transformer import family
from keras_transformer.errors import RequestError
from keras_transformer.importing import bart_models, bert_models, causal_models, layouts, t5, vit
from keras_transformer.importing.folder import Options
from keras_transformer.importing.tensors import TensorFile
from keras_transformer.importing.weights import Layout, variable_at
from keras_transformer.lengths import longest
from keras_transformer.making import model_config
from keras_transformer.models.base import FamilyModel
from keras_transformer.models.inspection import Difference
from keras_transformer.options import Config
from keras_transformer.text.tokenizer import CONTROL_PIECES, END, MASK_PIECE, PAD, START

FORMAT = "huggingface"
NUM_SEGMENTS = 2  # BERT has two, which get the same vector
# What decides no logit, or what a folder has beside config.json.
TAKEN_OVER = ("vocabulary_size", "source_vocabulary_size", "num_control_ids", "end_ids", "pixel_mean", "pixel_std")
NOT_COMPARED = {"dropout", "attention_dropout", "max_source_length", "num_layers"}
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

    def class_of(self, config: Config) -> str:
        """The class in transformers for a model of this configuration."""
        return self.class_name

    def options(self, config: Config) -> Config:
        """The options of config.json that are not ids, from the resolved configuration of a model."""
        raise NotImplementedError

    def arguments(self, options: Options, config: Config) -> Config:
        """What the import reads from these options, a complete configuration."""
        raise NotImplementedError

    def layout(self, file: TensorFile, config: Config) -> Layout:
        """Where the weights lie, see `Layout`."""
        raise NotImplementedError


def _taken_over(config: Config) -> Config:
    return {name: config[name] for name in TAKEN_OVER if name in config}


def _ids(config: Config) -> tuple[list[int], int]:
    """For each id of the run the one in the folder, which is the same, and their number."""
    count = config["vocabulary_size"]
    return [*range(count)], count


class Marian(Form):
    """The paper's model with sinusoids and biases, and with vocabularies of SentencePiece."""

    name, class_name = "marian", "MarianMTModel"

    def options(self, config: Config) -> Config:
        most = longest(config["max_source_length"])
        sizes = {"vocab_size": config["source_vocabulary_size"] or config["vocabulary_size"]}
        sizes["decoder_vocab_size"] = config["vocabulary_size"]
        is_shared = config["source_vocabulary_size"] is None
        options = bart_models.marian_options({**config, "max_source_length": most - 1})
        return {**options, **sizes, "share_encoder_decoder_embeddings": is_shared}

    def arguments(self, options: Options, config: Config) -> Config:
        return family.complete({**bart_models.marian_arguments(options), **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config) -> Layout:
        count = config["vocabulary_size"]
        counts = config["source_vocabulary_size"] or count, count
        is_shared = config["source_vocabulary_size"] is None
        return bart_models.marian_layout(file, config, is_shared, ([*range(counts[0])], [*range(count)]), counts)


class Bart(Form):
    """Learned positions of encoder and decoder apart, a norm after the embedding, biases, one vocabulary."""

    name, class_name, first_position = "bart", "BartForConditionalGeneration", bart_models.OFFSET

    def options(self, config: Config) -> Config:
        return bart_models.bart_options({**config, "max_source_length": longest(config["max_source_length"]) - 1})

    def arguments(self, options: Options, config: Config) -> Config:
        one = {"source_vocabulary_size": None}
        return family.complete({**bart_models.bart_arguments(options), **_taken_over(config), **one})

    def layout(self, file: TensorFile, config: Config) -> Layout:
        return bart_models.bart_layout(file, config, *_ids(config))


class T5(Form):
    """Buckets of distances, RMS norms before the sub-layers, no biases, one vocabulary."""

    name, class_name, last_norm = "t5", "T5ForConditionalGeneration", "decoder_stack.norm"

    def options(self, config: Config) -> Config:
        return {**t5.t5_options(config), "scale_decoder_outputs": config["tied_output"]}

    def arguments(self, options: Options, config: Config) -> Config:
        own = {"source_vocabulary_size": None, "tied_output": options.switch("tie_word_embeddings", True)}
        return family.complete({**t5.arguments(options), **_taken_over(config), **own})

    def layout(self, file: TensorFile, config: Config) -> Layout:
        return t5.layout(file, config, *_ids(config), is_scaled=config["tied_output"])


class Gpt2(Form):
    """A decoder alone with norms before its sub-layers, learned positions and biases."""

    name, class_name, last_norm = "gpt2", "GPT2LMHeadModel", "stack.norm"
    first_position: int | None = 0
    own_argument, ids = "context_length", {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    around = ([CONTROL_PIECES[START]], [])

    def options(self, config: Config) -> Config:
        return causal_models.gpt2_options(config)

    def arguments(self, options: Options, config: Config) -> Config:
        return layouts.complete_language_model({**causal_models.gpt2_arguments(options), **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config) -> Layout:
        return causal_models.gpt2_layout(file, config, *_ids(config))


class Llama(Gpt2):
    """A decoder alone with RMS norms, rotary positions and gated networks, without biases."""

    name, class_name, first_position = "llama", "LlamaForCausalLM", None

    def options(self, config: Config) -> Config:
        return causal_models.llama_options(config)

    def arguments(self, options: Options, config: Config) -> Config:
        return layouts.complete_language_model({**causal_models.llama_arguments(options), **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config) -> Layout:
        return causal_models.llama_layout(file, config, *_ids(config))


class Bert(Form):
    """An encoder with learned positions, a norm after the embedding, biases, and a head for labels or masked tokens."""

    name, first_position, last_norm = "bert", 0, "head_layer.norm"
    own_argument, ids = "context_length", {"pad_token_id": PAD}
    control = dict(zip(("pad_token", "unk_token", "cls_token", "sep_token"), bert_models.SPECIAL, strict=False))
    mask = bert_models.SPECIAL[-1]
    around = (["[CLS]"], ["[SEP]"])

    def class_of(self, config: Config) -> str:
        return "BertForSequenceClassification" if config["num_labels"] else "BertForMaskedLM"

    def options(self, config: Config) -> Config:
        return {**bert_models.bert_options(config), "type_vocab_size": NUM_SEGMENTS}

    def arguments(self, options: Options, config: Config) -> Config:
        num_labels = config.get("num_labels") or 0
        arguments = bert_models.arguments(bert_models.BERT, options, num_labels, fills=not num_labels)
        return bert_models.complete({**arguments, **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config) -> Layout:
        rows = (0, config["context_length"])
        return bert_models.layout(bert_models.BERT, file, config, *_ids(config), rows, NUM_SEGMENTS)


class Vit(Form):
    """A Vision Transformer with labels."""

    name, class_name, own_argument, first_position = "vit", "ViTForImageClassification", "image_size", 0
    ids: Config = {}

    def options(self, config: Config) -> Config:
        return vit.vit_options(config)

    def arguments(self, options: Options, config: Config) -> Config:
        arguments = vit.arguments(options, config.get("num_labels") or 0)
        return vit.complete({**arguments, **_taken_over(config)})

    def layout(self, file: TensorFile, config: Config) -> Layout:
        return vit.layout(config, has_biases=True)


# The first that holds a model is written.
FORMS: tuple[Form, ...] = (Marian(), Bart(), T5(), Gpt2(), Llama(), Bert(), Vit())


def form_of(config: Config) -> tuple[Form, Config]:
    """The architecture that holds a model, and the configuration that the import will read.

    Args:
        config: the model's kind and complete arguments, see `model_config`.

    Raises:
        RequestError: there is none. The message names what the nearest one lacks.
    """
    ours, lacking, faults = resolved(config), {}, []
    for form in FORMS:
        if form.own_argument not in config:
            continue
        try:
            found = form.arguments(Options(form.options(ours), form.name), config)
        except (RequestError, ValueError) as error:
            faults.append(str(error))
            continue
        if found.get("kind", family.DEFAULT_KIND) == config["kind"]:
            lacking[form] = differences(ours, resolved(found), form)
            if not lacking[form]:
                return form, found
    if not lacking:
        reason = "; ".join(faults) or f"none is a {config['kind']}"
        raise RequestError(f"{FORMAT} has no architecture for this model: {reason}")
    form = min(lacking, key=lambda form: len(lacking[form]))
    told = "; ".join(f"{one.path} {one.expected}, not {one.received}" for one in lacking[form])
    raise RequestError(
        f"{FORMAT} has no architecture for this model; the nearest, {form.name}, has {told}: train with these"
    )


def resolved(config: Config) -> Config:
    """The same configuration with each default that depends on other arguments written out."""
    config = {**config, "key_dim": family.key_dim(config)}
    if "embedding_scale" in config:
        config["embedding_scale"] = config["embedding_scale"] or config["hidden_dim"] ** 0.5
    if "encoder_layers" in config:
        config["encoder_layers"], config["decoder_layers"] = family.depths(config)
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
    arguments, found = family.KINDS[ours["kind"]].arguments, []
    for name in sorted(names):
        one, other = theirs[name], ours[name]
        is_bias = name.endswith("_bias") and other is False
        is_table = name == "positions" and form.first_position is not None and other["name"] in ADDED
        is_folded = name == "embedding_scale" and bool(form.last_norm)
        if is_bias or is_table or is_folded or (name == "norm" and one["name"] == other["name"]):
            continue
        slot = arguments[name].slot
        found.append(
            Difference(name, *(family.spelled(each, slot) if slot and each else each for each in (one, other)))
        )
    return found


def tensors_of(model: FamilyModel, form: Form, layout: Layout) -> dict[str, np.ndarray]:
    """The tensors of an architecture that holds the model.

    An architecture without a factor on embeddings gets larger embeddings, and a smaller norm before an output that
    shares their matrix.

    Raises:
        RequestError: a weight of the model has no place there, and is not 0.
    """
    config, used = resolved(model_config(model)), set()
    scale = config["embedding_scale"] if form.last_norm else 1.0
    tables = form.first_position is not None
    if tables:
        used |= {id(variable) for variable in model.positions.weights}

    def values(path: str) -> np.ndarray | None:
        if tables and path.startswith("positions."):
            return _position_table(model, layout, form.first_position or 0, path)
        try:
            variable = variable_at(model, path)
        except AttributeError:
            return None
        if variable is None:
            return None
        used.add(id(variable))
        array = _array(variable)
        if path.endswith("embedding.embeddings") and not path.startswith("output"):
            return array * np.float32(scale)
        is_last = bool(form.last_norm) and path.startswith(form.last_norm) and config["tied_output"]
        return array / np.float32(scale) if is_last else array

    tensors = layout.tensors(values)
    for variable in model.weights:
        if id(variable) not in used and np.any(_counting(model, config, variable)):
            raise RequestError(f"{FORMAT}: {form.name} has no place for the weight {variable.path}, which is not 0")
    return tensors


def _array(values: object) -> np.ndarray:
    return np.asarray(ops.convert_to_numpy(values), "float32")


def _position_table(model: FamilyModel, layout: Layout, first: int, path: str) -> np.ndarray:
    """What the model adds at each position, behind as many rows as the architecture does not use."""
    count = len(layout.orders.get("P", range(layout.sizes["P"]))) - first
    nothing = ops.convert_to_tensor(np.zeros((count, model.hidden_dim), "float32"))
    embed = model.positions.embed_target if "decoder" in path else model.positions.embed
    return np.pad(_array(embed(nothing, ops.convert_to_tensor(np.arange(count)))), ((first, 0), (0, 0)))


def _counting(model: Any, config: Config, variable: Any) -> np.ndarray:
    """The numbers of a weight that a result depends on: no search takes the logits of control ids but the end's."""
    array, output = _array(variable), getattr(model, "output_embedding", None)
    if output is None or variable is not output.bias:
        return array
    return array[emitted(config)] if not config.get("num_labels") else np.zeros(0)


def emitted(config: Config) -> list[int]:
    """The ids that a model writes."""
    return [END, *range(config["num_control_ids"], config["vocabulary_size"])]
