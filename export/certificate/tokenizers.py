"""Compares an artefact's tokenizer with the vocabulary, before anything is translated."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from keras_transformer.core.errors import RequestError
from keras_transformer.core.extras import required
from keras_transformer.core.schema import list_of, read_json
from keras_transformer.runs.run_folder import RunFolder

from ..artefacts import Artefact, BrokenArtefact
from .expected import Expected, Input, known_difference

MAX_LIST_BYTES = 2**26  # the largest list of pieces


def reads_of(artefact: Artefact, expected: Expected, inputs: Sequence[Input]) -> list[tuple[str, list[int]]]:
    """Texts as an artefact is given them, and their ids by the model's vocabulary; none if it takes no text.

    They are the probes; for a vocabulary that is not SentencePiece's all texts but long ones.
    """
    texts = expected.texts
    if artefact.interface != "text":
        return []
    is_own = all(one.is_sentencepiece for one in expected.tokenizers)
    places = range(texts.num_long, texts.first_given if is_own else len(inputs))
    pairs = [
        (inputs[place], expected.pieces(place)) for place in places if not known_difference(artefact, texts, place)
    ]
    return [(text, ids) for text, ids in pairs if isinstance(text, str) and ids is not None]


def check_vocabularies(artefact: Artefact, folder: Path, expected: Expected) -> None:
    """Raises BrokenArtefact if the vocabularies that an artefact's caller takes are not the model's.

    Args:
        artefact: what takes ids or pieces.
        folder: the export folder, with vocabularies beside the artefacts.
        expected: what the model gives.
    """
    if artefact.interface == "text":
        return
    try:
        differing = [*lists_that_differ(artefact, expected), *files_that_differ(artefact, folder, expected)]
    except (OSError, ValueError, RequestError) as error:
        raise BrokenArtefact(f"its vocabulary cannot be read: {' '.join(str(error).split())[:200]}") from error
    for name in differing:
        raise BrokenArtefact(f"its tokenizer differs: {name} is not the model's vocabulary")


def lists_that_differ(artefact: Artefact, expected: Expected) -> Iterator[str]:
    """The names of CTranslate2's lists of pieces that are not the model's."""
    if artefact.interface == "pieces":
        lists = [artefact.path / f"{side}_vocabulary.json" for side in ("source", "target")]
        lists = lists if lists[0].is_file() else [artefact.path / "shared_vocabulary.json"]
        for path, tokenizer in zip(lists, expected.tokenizers, strict=False):
            if read_json(path, list_of(str), MAX_LIST_BYTES) != tokenizer.pieces(range(tokenizer.vocabulary_size)):
                yield path.name


def files_that_differ(artefact: Artefact, folder: Path, expected: Expected) -> Iterator[str]:
    """The names of vocabularies beside an artefact that are not the model's. CTranslate2's folder has its own."""
    is_alone = artefact.interface == "pieces"
    found = vocabularies_in(artefact.path if is_alone else folder)
    if is_alone and not found:
        raise BrokenArtefact("its folder has no tokenizer.model")
    for path, tokenizer in zip(found, expected.tokenizers, strict=False):
        if path.read_bytes() != tokenizer.model:
            yield path.name
    beside = RunFolder(folder)
    names = expected.signature.names_file(beside)
    if names and names.is_file() and expected.signature.names_in(beside, {}) != [*expected.names]:
        yield names.name


def vocabularies_in(folder: Path) -> list[Path]:
    """The vocabularies of a folder, of source and target if there are two."""
    run = RunFolder(folder)
    return [path for path in run.tokenizers(run.has_two_tokenizers) if path.is_file()]


def cut_tokenizer(artefact: Artefact, folder: Path) -> Path | None:
    """Writes a file with the artefact's tokenizer alone, from text to ids and the starts of rows; returns its path.

    None if the artefact takes no text, or if its format has functions that one can ask (SavedModel).

    Raises:
        BrokenArtefact: the artefact has no tokenizer of the kind that exports have.
    """
    cut = {"onnx": cut_onnx, "tflite": cut_tflite}.get(artefact.format)
    if artefact.interface != "text" or cut is None:
        return None
    path = folder / f"tokenizer{artefact.path.suffix}"
    try:
        path.write_bytes(cut(artefact.path))
    except (ValueError, IndexError, AttributeError, TypeError) as error:
        raise BrokenArtefact(f"it has no tokenizer of ours: {str(error)[:200]}") from error
    return path


def cut_onnx(path: Path) -> bytes:
    """The nodes of a graph from its input to the ids of its first tokenizer, and where rows start in them."""
    onnx = required("onnx", "export", "certifying")
    model = onnx.load(path, load_external_data=False)
    graph, kept = model.graph, []
    types = [node.op_type for node in graph.node]
    if "SentencepieceTokenizer" not in types:
        raise BrokenArtefact("it takes text, and has no SentencepieceTokenizer")
    last = types.index("SentencepieceTokenizer")
    names = [*graph.node[last].output[:2]]
    if "Compress" in types:  # WordPiece's, see `of_words`
        last = types.index("Compress")
        names = [graph.node[last].output[0], graph.node[last - 1].output[0]]
    needed = {*names}
    for node in reversed(graph.node[: last + 1]):
        if needed & {*node.output}:
            kept.append(node)
            needed.update(node.input)
    nodes = [*reversed(kept)]
    arrays = [array for array in graph.initializer if array.name in needed]
    kinds = (onnx.TensorProto.INT32, onnx.TensorProto.INT64)
    outputs = [onnx.helper.make_tensor_value_info(name, kind, [None]) for name, kind in zip(names, kinds, strict=True)]
    del graph.node[:], graph.initializer[:], graph.output[:], graph.value_info[:]
    graph.node.extend(nodes)
    graph.initializer.extend(arrays)
    graph.output.extend(outputs)
    return model.SerializeToString()


def cut_tflite(path: Path) -> bytes:
    """The operators of a file from its input to its first tokenizer."""
    schema = required("ai_edge_litert.schema_py_generated", "export", "certifying")
    flatbuffers = required("flatbuffers", "export", "certifying")
    model = schema.ModelT.InitFromPackedBuf(path.read_bytes(), 0)
    graph, codes = model.subgraphs[0], model.operatorCodes
    names = [(codes[operator.opcodeIndex].customCode or b"").decode() for operator in graph.operators]
    place = next((place for place, name in enumerate(names) if name.endswith("FastSentencepieceTokenize")), None)
    if place is None:
        raise BrokenArtefact("it takes text, and has no FastSentencepieceTokenize")
    graph.operators = graph.operators[: place + 1]
    graph.outputs = list(graph.operators[place].outputs[:2])
    model.subgraphs, model.signatureDefs = [graph], []
    used = {graph.tensors[tensor].buffer for operator in graph.operators for tensor in operator.inputs}
    for number, buffer in enumerate(model.buffers):
        if number not in used:
            buffer.data, buffer.offset, buffer.size = None, 0, 0
    model.metadata = None
    builder: Any = flatbuffers.Builder(1 << 20)
    builder.Finish(model.Pack(builder), b"TFL3")
    return bytes(builder.Output())
