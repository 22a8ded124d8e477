"""Exports a run in Hugging Face's format: a folder that `transformers` loads, with weights, vocabularies and search.

What was written is imported again, and has to compute what the model computes.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
from keras import ops

from keras_transformer.core.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.importing.tensors import TensorFile, write_safetensors
from keras_transformer.importing.weights import Imported, Layout, variable_at
from keras_transformer.models.base import FamilyModel
from keras_transformer.models.model_factory import model_config
from keras_transformer.spec.options import Config
from keras_transformer.spec.search_options import longest
from keras_transformer.text.tokenizer import END, PAD, START, Tokenizer

from .artefacts import Decoding, TrainedRun, replaced, require_own_parts, require_precision
from .hub_forms import FORMAT, Form, array_of, emitted, form_of, ids_of, resolved
from .hub_text import beginning_of, named_ids, write_json, write_vocabularies

MIN_LENGTH = "min_new_tokens"  # their `min_length` counts the start, or the prompt
TOLERANCE = 1e-4  # as a share of the range of the logits
NUM_PROBES, PROBE_LENGTH = 4, 8


def require_form(run: TrainedRun) -> tuple[Form, Config, Config]:
    """Returns what `form_of` finds, or raises RequestError, which names what the nearest architecture lacks."""
    require_own_parts(run.model, FORMAT, "float32")
    form, options, read = form_of(run.model, vocabulary_of(run))
    beginning_of(run, form)
    if run.pipeline.longest_answer and not all(one.is_sentencepiece for one in run.tokenizers):
        raise RequestError(
            f"{FORMAT}: the run answers prompts behind a separator, which its own tokenizer.json does not put there"
        )
    return form, options, read


def vocabulary_of(run: TrainedRun) -> Tokenizer | None:
    """The vocabulary of what a run writes; None for images."""
    return run.tokenizers[-1] if run.tokenizers else None


def export_huggingface(
    run: TrainedRun, folder: str | os.PathLike[str], decoding: Decoding | None = None, precision: str = "float32"
) -> list[Path]:
    """Writes a folder that `transformers` loads.

    Args:
        run: what to export; `open_run` reads it from a run folder.
        folder: where to write; an older model there is replaced once the new one is whole.
        decoding: the options of the search.
        precision: "float32"; transformers itself casts weights as it loads them.

    Returns:
        The one path written, `huggingface`.

    Raises:
        RequestError: the precision does not exist, no architecture holds the model, its logits would differ there, or
            the path holds something else.
    """
    require_precision(FORMAT, precision)
    form, options, read = require_form(run)
    path = Path(folder) / FORMAT
    with replaced(path, "config.json", "a model") as aside:
        ids = with_own_start(run, form)
        layout = form.layout(TensorFile(aside, {}), read, ids)
        write_safetensors(aside / "model.safetensors", tensors_of(run.model, form, layout))
        write_json(aside / "config.json", options_of(run, form, ids, options))
        if run.tokenizers:
            write_vocabularies(run, aside, form)
        if "pixel_mean" in read:
            write_json(aside / "preprocessor_config.json", processor_of(read))
        if run.pipeline.own_search is not None:
            search = search_of(run, form, ids, decoding or run.decoding(), options.get("max_position_embeddings"))
            write_json(aside / "generation_config.json", search)
        check_logits(run, read_huggingface(aside), form, ids)
    return [path]


def with_own_start(run: TrainedRun, form: Form) -> list[int]:
    """Maps run ids to folder ids.

    An imported model may begin a translation with the id that ends one. Training gives the two vectors of their own
    here, and then a translation begins with the id of pad there, which nothing else reads.

    Raises:
        RequestError: training has done so with a language model that reads its start before a text.
    """
    tokenizer, config = vocabulary_of(run), model_config(run.model)
    ids = ids_of(tokenizer, config.get("vocabulary_size", 0))
    if tokenizer is None or ids[START] != ids[END]:
        return ids
    start, end = array_of(run.model.input_embedding().embeddings)[[START, END]]
    if np.array_equal(start, end) or not (tokenizer.has_start or "decoder_start_token_id" in form.ids):
        return ids
    if "decoder_start_token_id" not in form.ids:
        raise RequestError(
            f"{FORMAT}: start and end are one id in the run's tokenizer.json, and training gave them two vectors"
        )
    return [id if place != START else ids[PAD] for place, id in enumerate(ids)]


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
        array = array_of(variable)
        if path.endswith("embedding.embeddings") and not path.startswith("output"):
            return array * np.float32(scale)
        is_last = bool(form.last_norm) and path.startswith(form.last_norm) and config["tied_output"]
        return array / np.float32(scale) if is_last else array

    tensors = layout.tensors(values)
    for variable in model.weights:
        if id(variable) not in used and np.any(_counting(model, config, variable)):
            raise RequestError(f"{FORMAT}: {form.name} has no place for the weight {variable.path}, which is not 0")
    return tensors


def _position_table(model: FamilyModel, layout: Layout, first: int, path: str) -> np.ndarray:
    """What the model adds at each position, behind as many rows as the architecture does not use."""
    count = len(layout.orders.get("P", range(layout.sizes["P"]))) - first
    nothing = ops.convert_to_tensor(np.zeros((count, model.hidden_dim), "float32"))
    embed = model.positions.embed_target if "decoder" in path else model.positions.embed
    return np.pad(array_of(embed(nothing, ops.convert_to_tensor(np.arange(count)))), ((first, 0), (0, 0)))


def _counting(model: FamilyModel, config: Config, variable: keras.Variable) -> np.ndarray:
    """The numbers of a weight that a result depends on: no search takes the logits of control ids but the end's."""
    array, output = array_of(variable), getattr(model, "output_embedding", None)
    if output is None or variable is not output.bias:
        return array
    return array[emitted(config)] if not config.get("num_labels") else np.zeros(0)


def options_of(run: TrainedRun, form: Form, ids: Sequence[int], options: Config) -> Config:
    """The content of config.json.

    Args:
        run, form: the run, and its architecture.
        ids: for each id of the run the one in the folder.
        options: those of the architecture.
    """
    config = model_config(run.model)
    sizes = {"vocab_size": 1 + max(ids)} if ids else {}
    named: Config = {"model_type": form.name, "architectures": [form.class_of(config)], "dtype": "float32"}
    options = {**named, **sizes, **(named_ids(run, form, ids) if ids else {}), **options}
    if config.get("num_labels"):
        labels = [*run.pipeline.names]
        options["id2label"] = {str(number): label for number, label in enumerate(labels)}
        options["label2id"] = {label: number for number, label in enumerate(labels)}
    return options


def search_of(
    run: TrainedRun, form: Form, ids: Sequence[int], decoding: Decoding, num_positions: int | None = None
) -> Config:
    """The content of generation_config.json: the run's search.

    Transformers divides log P by |y|^α, and the run by ((5 + |y|) / 6)^α. α is kept.

    Args:
        run, form: the run, and its architecture.
        ids: for each id of the run the one in the folder.
        decoding: the search.
        num_positions: the most positions that the folder has, of an architecture with such a limit.
    """
    config = model_config(run.model)
    search: Config = {name: id for name, id in named_ids(run, form, ids).items() if name.endswith("_token_id")}
    if beginning := beginning_of(run, form):
        search["forced_bos_token_id"] = ids[beginning[0]]
    search |= {"num_beams": decoding.num_beams, "do_sample": False}
    if decoding.max_length_factor is not None:
        raise RequestError("transformers has no limit relative to the source: leave out --max-length-factor")
    search |= {MIN_LENGTH if name == "min_length" else name: value for name, value in decoding.active_guards().items()}
    if decoding.num_beams > 1:
        search["length_penalty"] = decoding.length_penalty
    control = config["num_control_ids"]
    if banned := {*ids[:control]} - {ids[END], *ids[control:]}:
        search["bad_words_ids"] = [[id] for id in sorted(banned)]
    if "max_source_length" in config:
        most = longest(config["max_source_length"])
        most = min(most, num_positions or most)
        search["max_length"] = 1 + min(decoding.max_length or most, most)  # with the start
    elif decoding.max_length is None:
        search["max_length"] = config["context_length"]
    else:
        search["max_new_tokens"] = decoding.max_length
    return search


def processor_of(config: Config) -> Config:
    """The content of preprocessor_config.json: how images become what the model takes."""
    size, channels = config["image_size"], config["channels"]
    mean, std = (np.broadcast_to(config[name], channels).tolist() for name in ("pixel_mean", "pixel_std"))
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": size, "width": size},
        "resample": 2,
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": mean,
        "image_std": std,
    }


def check_logits(run: TrainedRun, imported: Imported, form: Form, ids: Sequence[int]) -> None:
    """Raises RequestError unless the model that was read again has the same logits.

    Args:
        run, form: the run, and its architecture.
        imported: what was read.
        ids: for each id of the run the one in the folder.
    """
    model, tokenizer = run.model, vocabulary_of(run)
    config, other = model_config(model), imported.model()
    inputs = probes(config, begins=tokenizer is None or tokenizer.has_start)
    if not imported.vocabularies:
        ours, theirs = (array_of(one(inputs)) for one in (model, other))
    else:
        of_target = ours_of(imported.target.ids, ids)
        maps = dict.fromkeys(inputs, of_target)
        if size := config.get("source_vocabulary_size"):
            maps["source_ids"] = ours_of(imported.source.ids, range(size))
        elif "source_ids" in maps:
            maps["source_ids"] = ours_of(imported.source.ids, ids)
        ours, theirs = array_of(model(inputs)), array_of(other({name: maps[name][inputs[name]] for name in inputs}))
        if not config.get("num_labels"):
            written = np.array(emitted(config))
            ours, theirs = ours[..., written], theirs[..., of_target[written]]
    difference = float(np.max(np.abs(ours - theirs)) / np.ptp(ours))
    if not difference <= TOLERANCE:
        epsilons = (one["norm"]["epsilon"] for one in (imported.config, config))
        raise RequestError(
            f"{FORMAT}: as {form.name} the model has other logits, by {difference:.1e} of their range, which is more "
            "than {:g}; its norms have an ε of {:g} there, and of {:g} here".format(TOLERANCE, *epsilons)
        )


def ours_of(read: Sequence[int], ids: Sequence[int]) -> np.ndarray:
    """Maps ids of the run to ids of the re-imported model.

    Args:
        read: for each id of the model that was read again, the one in the folder.
        ids: the same of the run.
    """
    found = np.zeros(1 + max(*read, *ids), "int32")
    for place, id in reversed([*enumerate(read)]):
        found[id] = place
    places = found[[*ids]]
    places[[PAD, START, END]] = PAD, START, END  # several may stand for one id
    return places


def probes(config: Config, begins: bool = True) -> Config:
    """Inputs of a model, drawn at random: ids of text, or pixels. `begins` is whether a text begins with the start."""
    draw = np.random.default_rng(0)
    if "image_size" in config:
        shape = (NUM_PROBES, config["image_size"], config["image_size"], config["channels"])
        return {"images": draw.integers(0, 256, shape).astype("uint8")}

    def rows(size: int, begins: bool, ends: bool) -> np.ndarray:
        most = min(PROBE_LENGTH, config.get("context_length", PROBE_LENGTH) - begins - ends)
        text = draw.integers(config["num_control_ids"], size, (NUM_PROBES, most))
        sides = [np.full((NUM_PROBES, 1), id) for id in (START, END)]
        return np.concatenate([*sides[:begins], text, *sides[1:][:ends]], axis=1).astype("int32")

    size = config["vocabulary_size"]
    if "max_source_length" not in config:
        return {"ids": rows(size, begins, ends="num_labels" in config)}
    source = rows(config["source_vocabulary_size"] or size, begins=False, ends=True)
    return {"source_ids": source, "target_ids": rows(size, begins=True, ends=False)}
