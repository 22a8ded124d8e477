"""Decoders side by side: our three artefacts, and one model's weights in CTranslate2 and Hugging Face Marian.

`prepare` writes a model into a folder in everyone's format; the functions below it load it from there, each in a
process of its own, and import nothing but what their users would. All get the same batches of sentences, and each
returns a function that translates them all and returns the ids of the best translations, ends and pads left out.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from benchmarks.devices import onnx_session, require_ctranslate2, settle_torch
from keras_transformer.errors import RequestError

START, END = 2, 3  # the first ids: <pad>, <unk>, <s>, </s>
LAYER_NORM_EPSILON = 1e-6

Ids = list[list[int]]
Translate = Callable[[], Ids]


class Cell(NamedTuple):
    """One way to decode.

    Args:
        precision: float32 or int8.
        num_beams: K.
        batch_size: sentences at a time.
        num_threads: of the processor.
        num_sentences: to translate in one turn.
        num_steps: all translations have so many tokens; 0: they end where the model ends them.
        length_penalty: 0 where outputs are compared: CTranslate2 and Marian divide by another power of the length.
        device: cpu or cuda, of ONNX Runtime, CTranslate2 and PyTorch.
    """

    precision: str
    num_beams: int
    batch_size: int
    num_threads: int
    num_sentences: int
    num_steps: int
    length_penalty: float = 0.0
    device: str = "cpu"


def prepare(
    folder: Path,
    run_folder: str | None,
    sizes: dict[str, int],
    cells: Sequence[Cell],
    others: Collection[str] = (),
    source_length: int = 16,
) -> None:
    """Writes what the decoders load: `sentences.json`, and the model in each format.

    Args:
        folder: where to; must exist.
        run_folder: of a trained run, whose validation sentences are translated; None: random weights, which never
            end a translation.
        sizes: arguments of `Transformer`, for random weights.
        cells: the ways to decode that the artefacts must serve.
        others: who decodes beside ONNX: ctranslate2, marian, saved_model, tflite.
        source_length: pieces of a sentence, where weights are random.

    Raises:
        RequestError: a peer cannot hold the model: it is pre-norm, has two vocabularies, or a key size that is not D/N.
    """
    from export.onnx import translate_model
    from export.onnx_graph import write_model
    from export.saved_model import export_saved_model
    from export.signatures import Decoding, open_run
    from export.tflite import export_tflite

    run = open_run(run_folder) if run_folder else random_run(sizes)
    count = max(cell.num_sentences for cell in cells)
    tokenizer = run.translator.source_tokenizer
    lines = trained_lines(run_folder, count) if run_folder else word_salad(tokenizer, count, source_length)
    write_sentences(folder, run, lines)
    if "marian" in others:
        np.savez(folder / "weights.npz", **arrays_of(run.model))
    if "ctranslate2" in others:
        write_ctranslate2(folder / "ctranslate2", arrays_of(run.model), run)
    for cell in cells:
        decoding = Decoding(cell.num_beams, cell.length_penalty, cell.num_steps or None, n_best=1)
        beams = beams_folder(folder, cell)
        if not (path := beams / f"translate-{cell.precision}.onnx").exists():
            beams.mkdir(exist_ok=True)
            write_model(path, translate_model(run, decoding, cell.precision), {})
        if "tflite" in others and not (beams / "tflite" / tflite_name(cell.precision)).exists():
            export_tflite(run, beams, decoding, cell.precision)
        if "saved_model" in others and cell.precision == "float32" and not (beams / "saved_model").exists():
            export_saved_model(run, beams, decoding)


def beams_folder(folder: Path, cell: Cell) -> Path:
    """Of the artefacts with this many beams."""
    return folder / f"beams{cell.num_beams}"


def tflite_name(precision: str) -> str:
    """Of the file that takes ids."""
    return "translate.tflite" if precision == "float32" else f"translate-{precision}.tflite"


def random_run(sizes: dict[str, int]) -> Any:
    """A model with random weights, and a vocabulary of four-letter words."""
    import keras

    from export.signatures import TrainedRun
    from keras_transformer.decoding.translator import Translator
    from keras_transformer.models.transformer import Transformer
    from keras_transformer.text.tokenizer import Tokenizer

    keras.utils.set_random_seed(1)
    words = salad_words(sizes["vocabulary_size"])
    lines = [" ".join(row) for row in np.random.default_rng(0).choice(words, (4 * len(words), 8))]
    tokenizer = Tokenizer.train(lines, sizes["vocabulary_size"])
    model = Transformer(**sizes)
    table = np.array(model.target_embedding.embeddings)
    table[: END + 1] = 0  # their logits are 0 at every step, which is never among the best
    model.target_embedding.embeddings.assign(table)
    return TrainedRun(Translator(model, tokenizer), name="random")


def salad_words(count: int) -> np.ndarray:
    """Words of four letters, at random, each another one."""
    numbers = np.random.default_rng(0).permutation(26**4)[:count]
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))[numbers[:, None] // 26 ** np.arange(4) % 26]
    return np.array(["".join(word) for word in letters])


def word_salad(tokenizer: Any, count: int, num_pieces: int) -> list[str]:
    """Lines of random words that are so many pieces each."""
    words = salad_words(tokenizer.vocabulary_size).tolist()
    words = [word for word, pieces in zip(words, tokenizer.encode(words), strict=True) if len(pieces) == 1]
    return [" ".join(row) for row in np.random.default_rng(1).choice(words, (count, num_pieces))]


def trained_lines(run_folder: str, count: int) -> list[str]:
    """The first validation sentences of a run that are not blank."""
    lines = Path(run_folder, "validation.source").read_text(encoding="utf-8").split("\n")
    return [line for line in lines if line.strip()][:count]


def write_sentences(folder: Path, run: Any, lines: list[str]) -> None:
    """Texts and ids of the sentences, and the pieces of the vocabulary."""
    tokenizer = run.translator.source_tokenizer
    if tokenizer.model != run.translator.target_tokenizer.model:
        raise RequestError("expected a joint vocabulary, in which all peers are compared; received: two vocabularies")
    ids = [[*pieces, END] for pieces in tokenizer.encode(lines)]
    vocabulary = tokenizer.pieces(range(tokenizer.vocabulary_size))
    content = {"texts": lines, "ids": ids, "vocabulary": vocabulary}
    tokenizer.save(folder / "tokenizer.model")
    (folder / "sentences.json").write_text(json.dumps(content), encoding="utf-8")


def arrays_of(model: Any) -> dict[str, np.ndarray]:
    """A model's weights by plain names; kernels stand as (in, out)."""
    from keras import ops

    if unusual := unlike_the_papers(model):
        raise RequestError(
            "expected a model that all peers can hold: the paper's, of any size, with one embedding, stacks of the "
            f"same depth and key_dim = hidden_dim / num_heads; received {unusual}"
        )
    arrays: dict[str, Any] = {
        "embeddings": model.target_embedding.embeddings,
        "positions": model.positions(ops.arange(model.max_source_length)),
        "num_heads": np.array(model.num_heads),
    }
    for stack, blocks in (("encoder", model.encoder_blocks), ("decoder", model.decoder_blocks)):
        for number, block in enumerate(blocks):
            attentions = ["self"] if stack == "encoder" else ["self", "cross"]
            for name in attentions:
                attention = getattr(block, f"{name}_attention")
                for part in ("query", "key", "value", "output"):
                    arrays[f"{stack}/{number}/{name}/{part}"] = getattr(attention, f"{part}_kernel")
            for part in ("kernel_in", "bias_in", "kernel_out", "bias_out"):
                arrays[f"{stack}/{number}/{part}"] = getattr(block.feed_forward, part)
            for name in (*(f"{name}_attention" for name in attentions), "feed_forward"):
                for part in ("gamma", "beta"):
                    arrays[f"{stack}/{number}/{name}/{part}"] = getattr(getattr(block, f"{name}_residual").norm, part)
    return {name: np.asarray(ops.convert_to_numpy(array)) for name, array in arrays.items()}


def unlike_the_papers(model: Any) -> dict[str, Any]:
    """The arguments of a model in which it is not the paper's; sizes, rates and positions, which are arrays, are left
    out."""
    from keras_transformer import family

    any_value = {
        "vocabulary_size", "num_layers", "encoder_layers", "decoder_layers", "num_heads", "hidden_dim",
        "intermediate_dim", "key_dim", "dropout", "attention_dropout", "max_source_length", "positions",
    }  # fmt: skip
    arguments = model.arguments()
    usual = family.complete({"vocabulary_size": model.vocabulary_size})
    unusual = {name: arguments[name] for name in usual.keys() - any_value if arguments[name] != usual[name]}
    if model.encoder_layers != model.decoder_layers:
        unusual |= {"encoder_layers": model.encoder_layers, "decoder_layers": model.decoder_layers}
    if model.key_dim * model.num_heads != model.hidden_dim:
        unusual |= {name: getattr(model, name) for name in ("key_dim", "hidden_dim", "num_heads")}
    return dict(sorted(unusual.items()))


def write_ctranslate2(folder: Path, weights: dict[str, np.ndarray], run: Any) -> None:
    """The model in CTranslate2's format, in float32: it converts when it loads."""
    from ctranslate2.specs import TransformerSpec

    model = run.model
    spec = TransformerSpec.from_config(model.encoder_layers, model.num_heads, pre_norm=False)

    def linear(target: Any, *kernels: str, bias: str | None = None) -> None:
        target.weight = np.concatenate([weights[kernel].T for kernel in kernels])
        if bias:
            target.bias = weights[bias]

    def attention(target: Any, name: str, splits: Sequence[Sequence[str]]) -> None:
        for place, parts in zip(target.linear, splits, strict=True):
            linear(place, *(f"{name}/{part}" for part in parts))

    def norm(target: Any, name: str) -> None:
        target.gamma, target.beta = weights[f"{name}/gamma"], weights[f"{name}/beta"]

    for name, stack in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        embeddings = stack.embeddings[0] if isinstance(stack.embeddings, list) else stack.embeddings
        embeddings.weight, stack.position_encodings.encodings = weights["embeddings"], weights["positions"]
        for number, layer in enumerate(stack.layer):
            block = f"{name}/{number}"
            attention(layer.self_attention, f"{block}/self", [["query", "key", "value"], ["output"]])
            norm(layer.self_attention.layer_norm, f"{block}/self_attention")
            if name == "decoder":
                attention(layer.attention, f"{block}/cross", [["query"], ["key", "value"], ["output"]])
                norm(layer.attention.layer_norm, f"{block}/cross_attention")
            linear(layer.ffn.linear_0, f"{block}/kernel_in", bias=f"{block}/bias_in")
            linear(layer.ffn.linear_1, f"{block}/kernel_out", bias=f"{block}/bias_out")
            norm(layer.ffn.layer_norm, f"{block}/feed_forward")
    spec.decoder.projection.weight = weights["embeddings"]
    tokenizer = run.translator.source_tokenizer
    vocabulary = tokenizer.pieces(range(tokenizer.vocabulary_size))
    spec.register_source_vocabulary(vocabulary)
    spec.register_target_vocabulary(vocabulary)
    spec.config.layer_norm_epsilon = LAYER_NORM_EPSILON
    spec.validate()
    folder.mkdir()
    spec.save(str(folder))


# The decoders: (folder, cell) → what translates the sentences of a turn.


def batches_of(folder: Path, cell: Cell, kind: str) -> list[list[Any]]:
    """The sentences of a turn as "ids", "texts" or "vocabulary" pieces, those of like length together."""
    content = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))
    ids = content["ids"][: cell.num_sentences]
    order = sorted(range(len(ids)), key=lambda place: len(ids[place]))
    if kind == "vocabulary":
        rows: list[Any] = [[content["vocabulary"][piece] for piece in row] for row in ids]
    else:
        rows = content[kind]
    return [
        [rows[place] for place in order[first : first + cell.batch_size]]
        for first in range(0, len(order), cell.batch_size)
    ]


def padded(batch: Ids) -> np.ndarray:
    """Rows of ids as an array (B, S), with 0 for pad."""
    rows = np.zeros((len(batch), max(map(len, batch))), "int32")
    for row, ids in zip(rows, batch, strict=True):
        row[: len(ids)] = ids
    return rows


def emitted(rows: np.ndarray) -> Ids:
    """The ids in rows that end with an end id, then pad."""
    return [[piece for piece in row if piece > END] for row in rows.tolist()]


def start_onnx(folder: Path, cell: Cell) -> Translate:
    """Our ONNX artefact."""
    path = beams_folder(folder, cell) / f"translate-{cell.precision}.onnx"
    session = onnx_session(path, cell.device, cell.num_threads)
    batches = [padded(batch) for batch in batches_of(folder, cell, "ids")]
    return lambda: [ids for batch in batches for ids in emitted(session.run(["target_ids"], {"source_ids": batch})[0])]


def start_tflite(folder: Path, cell: Cell) -> Translate:
    """Our TFLite artefact, in LiteRT."""
    from ai_edge_litert.interpreter import Interpreter

    path = beams_folder(folder, cell) / "tflite" / tflite_name(cell.precision)
    interpreter = Interpreter(str(path), num_threads=cell.num_threads)
    translate = interpreter.get_signature_runner("translate")
    batches = [padded(batch) for batch in batches_of(folder, cell, "ids")]
    return lambda: [ids for batch in batches for ids in emitted(translate(source_ids=batch)["target_ids"])]


def start_saved_model(folder: Path, cell: Cell) -> Callable[[], list[str]]:
    """Our SavedModel, which takes text and gives text."""
    import tensorflow as tf
    import tensorflow_text  # noqa: F401  its operators are in the model

    tf.config.threading.set_intra_op_parallelism_threads(cell.num_threads)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    tf.config.set_visible_devices([], "GPU")
    loaded = tf.saved_model.load(str(beams_folder(folder, cell) / "saved_model"))
    translate = loaded.signatures["serving_default"]
    batches = [tf.constant(batch) for batch in batches_of(folder, cell, "texts")]
    return lambda: [text.decode() for batch in batches for text in translate(text=batch)["translation"].numpy()]


def start_ctranslate2(folder: Path, cell: Cell) -> Translate:
    """CTranslate2, with our weights."""
    require_ctranslate2(cell.device)
    import ctranslate2

    translator = ctranslate2.Translator(
        str(folder / "ctranslate2"),
        device=cell.device,
        compute_type=cell.precision,
        intra_threads=cell.num_threads,
        inter_threads=1,
    )
    vocabulary = json.loads((folder / "sentences.json").read_text(encoding="utf-8"))["vocabulary"]
    ids = {piece: number for number, piece in enumerate(vocabulary)}
    batches = batches_of(folder, cell, "vocabulary")
    how: dict[str, Any] = {"beam_size": cell.num_beams, "length_penalty": cell.length_penalty}
    if cell.num_steps:
        how["max_decoding_length"] = cell.num_steps

    def run() -> Ids:
        results = (result for batch in batches for result in translator.translate_batch(batch, **how))
        return [[ids[piece] for piece in result.hypotheses[0]] for result in results]

    return run


def start_marian(folder: Path, cell: Cell) -> Translate:
    """Hugging Face's Marian, on PyTorch, with our weights."""
    settle_torch(cell.device, cell.num_threads)
    import torch

    model = marian(dict(np.load(folder / "weights.npz"))).to(cell.device)
    batches = [torch.from_numpy(padded(batch)).long().to(cell.device) for batch in batches_of(folder, cell, "ids")]
    how: dict[str, Any] = {"num_beams": cell.num_beams, "do_sample": False, "max_new_tokens": 256}
    if cell.num_beams > 1:
        how |= {"length_penalty": cell.length_penalty, "early_stopping": False}
    if cell.num_steps:
        how["max_new_tokens"] = cell.num_steps

    def run() -> Ids:
        with torch.inference_mode():
            results = (model.generate(input_ids=batch, attention_mask=(batch != 0).long(), **how) for batch in batches)
            return [ids for rows in results for ids in emitted(rows.cpu().numpy())]

    return run


def marian(weights: dict[str, np.ndarray]) -> Any:
    """`MarianMTModel` with these weights."""
    import torch
    from transformers import MarianConfig, MarianMTModel

    vocabulary_size, hidden_dim = weights["embeddings"].shape
    num_layers = sum(name.startswith("encoder/") and name.endswith("/bias_in") for name in weights)
    sizes = {"layers": num_layers, "attention_heads": int(weights["num_heads"]),
             "ffn_dim": len(weights["encoder/0/bias_in"])}  # fmt: skip
    config = MarianConfig(
        vocab_size=vocabulary_size, decoder_vocab_size=vocabulary_size, d_model=hidden_dim, activation_function="relu",
        scale_embedding=True, max_position_embeddings=len(weights["positions"]), pad_token_id=0, bos_token_id=START,
        eos_token_id=END, decoder_start_token_id=START, forced_eos_token_id=None,
        **{f"{stack}_{name}": size for stack in ("encoder", "decoder") for name, size in sizes.items()},
    )  # fmt: skip
    model = MarianMTModel(config).eval()
    state = {name: torch.zeros_like(tensor) for name, tensor in model.state_dict().items()}
    tensors = {name: torch.from_numpy(array) for name, array in weights.items() if array.ndim}
    for name in state:
        if "embed_positions" in name:
            state[name] = tensors["positions"]
        elif "embed_tokens" in name or "shared" in name or "lm_head" in name:
            state[name] = tensors["embeddings"]
    for stack in ("encoder", "decoder"):
        for number in range(num_layers):
            ours, theirs = f"{stack}/{number}", f"model.{stack}.layers.{number}"
            for name, attention in (("self", "self_attn"), ("cross", "encoder_attn")):
                if stack == "encoder" and name == "cross":
                    continue
                for part, place in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "out")):
                    state[f"{theirs}.{attention}.{place}_proj.weight"] = tensors[f"{ours}/{name}/{part}"].T
                for part, place in (("gamma", "weight"), ("beta", "bias")):
                    state[f"{theirs}.{attention}_layer_norm.{place}"] = tensors[f"{ours}/{name}_attention/{part}"]
            for part, place in (("in", "fc1"), ("out", "fc2")):
                state[f"{theirs}.{place}.weight"] = tensors[f"{ours}/kernel_{part}"].T
                state[f"{theirs}.{place}.bias"] = tensors[f"{ours}/bias_{part}"]
            for part, place in (("gamma", "weight"), ("beta", "bias")):
                state[f"{theirs}.final_layer_norm.{place}"] = tensors[f"{ours}/feed_forward/{part}"]
    model.load_state_dict(state)
    for module in model.modules():
        if isinstance(module, torch.nn.LayerNorm):
            module.eps = LAYER_NORM_EPSILON
    return model
