"""The kinds of files from strangers: how a folder with one is made, and what reads it, up to where a model is made."""

import io
import json
import os
import sys
from argparse import Namespace
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple
from unittest.mock import Mock

import numpy as np
import onnxruntime  # noqa: F401 (before the fork, as what else readers import late)
import tokenizers  # noqa: F401

from export.__main__ import main as export
from export.certificate.comparison import KeptCertificate, validation_text
from keras_transformer.__main__ import main
from keras_transformer.commands.graph_cache import content_of
from keras_transformer.commands.runs import info
from keras_transformer.core.errors import RequestError
from keras_transformer.importing.huggingface import read_huggingface
from keras_transformer.models import model_factory
from keras_transformer.models.model_factory import make_model
from keras_transformer.runs import run_folder
from keras_transformer.runs.run_folder import RunFolder, read_config, resume_command, write_config
from keras_transformer.tasks.images.batches import read_pixels
from keras_transformer.tasks.images.corpus import LabelledImage
from keras_transformer.tasks.images.signature import images_of
from keras_transformer.tasks.next_item.corpus import Items
from keras_transformer.tasks.translation.commands.distilled_text import DistilledText
from keras_transformer.tasks.translation.commands.translate import own_search_of
from keras_transformer.text.huggingface_tokenizer import load_tokenizer, rendered
from keras_transformer.text.tokenized import TokenizedCorpus
from keras_transformer.text.tokenizer import Tokenizer
from keras_transformer.text.word_vectors import read_word_vectors
from keras_transformer.training import checkpoints
from keras_transformer.training.callbacks import Progress
from keras_transformer.training.records import Records
from keras_transformer.training.request import open_run
from tests.golden.cases import write_files
from tests.golden.stored import unpack
from tests.importing import theirs
from tests.importing.test_torch_file import torch_file
from tests.importing.text_models import byte_bpe
from tests.tiny_text import lines

Maker = Callable[[Path], object]
TEXTS = ["the sea", "two dogs and <mask> a cat", "ba do fi", ""]
TEMPLATE = """{{ bos_token }}{% for m in messages %}{{ m.role ~ m['content']|trim }}{% endfor %}
{%- for i in range(3) %}{{ i ** 2 }}{% set n = namespace(a='b') %}{% set n.a = n.a ~ n.a * 2 %}{{ n.a|center(9) }}
{% if not loop.last %}{{ 'x' * 9 }}{% endif %}{% endfor %}
{% if not messages %}{{ raise_exception('no messages') }}{% endif %}{{ eos_token if add_generation_prompt }}
"""


class Kind(NamedTuple):
    """A kind of file.

    Args:
        name: what it is.
        make: writes a folder in which such a file is whole.
        file: its name in the folder, as a pattern.
        read: reads it; a whole number that it returns is the status of a command.
        form: how it is changed, a key of `fuzz.CHANGES`.
        library: whether a library in C++ reads it, which may end the process.
        may_differ: whether a model may compute otherwise than it should, which is told with status 1.
    """

    name: str
    make: Maker
    file: str
    read: Callable[[Path], object]
    form: str = "json"
    library: bool = False
    may_differ: bool = False


@cache
def golden(task: str) -> Maker:
    """Writes a golden run, and beside it the text that it trained on."""

    def make(folder: Path) -> None:
        unpack(task, folder)
        text = folder.with_name(f"{folder.name}-text")
        text.mkdir()
        write_files(task, text)

    return make


def with_modules(folder: Path) -> None:
    """Writes a run that names modules, of which none has a part of it."""
    theirs.change(unpack("classification", folder), "config.json", modules=["json.tool", "tests.tiny_text"])


def write_json(path: Path, value: object) -> None:
    """Writes a file of JSON, and its folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value), encoding="utf-8")


def in_torch(is_archive: bool, folder: Path) -> None:
    """Puts the tensors into a file of PyTorch's."""
    (folder / "pytorch_model.bin").write_bytes(torch_file(theirs.tensors_of(folder), is_archive))
    (folder / "model.safetensors").unlink()


def pooled(folder: Path) -> None:
    """Adds what sentence-transformers writes."""
    types = {"": "Transformer", "1_Pooling": "Pooling"}
    write_json(folder / "modules.json", [{"path": path, "type": f"models.{type}"} for path, type in types.items()])
    write_json(folder / "sentence_bert_config.json", {"max_seq_length": 9, "do_lower_case": False})
    write_json(folder / "1_Pooling/config.json", {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True})


def of_words(folder: Path) -> None:
    """Puts a list of words in place of a tokenizer.json."""
    for path in folder.glob("tokenizer*.json"):
        path.unlink()
    (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in theirs.WORDS))
    write_json(folder / "special_tokens_map.json", {"cls_token": "[CLS]", "mask_token": {"content": "[MASK]"}})


def of_merges(folder: Path) -> None:
    """Puts lists of tokens and of merges in place of a tokenizer.json."""
    (folder / "tokenizer.json").unlink()
    byte_bpe(special=["<|endoftext|>"], alphabet=False, size=theirs.SIZE).model.save(str(folder))


MORE: dict[str, Callable[[Path], object]] = {  # what is changed in a folder
    "archive": partial(in_torch, True), "row": partial(in_torch, False), "index": theirs.split, "pooled": pooled,
    "words": of_words, "merges": of_merges,
    "license": lambda folder: (folder / "README.md").write_text("---\nlicense: mit\ntags:\n- a\n---\n# Model\n"),
    "template": lambda folder: theirs.change(folder, "tokenizer_config.json", chat_template=TEMPLATE),
    "added": lambda folder: write_json(folder / "added_tokens.json", {"<extra_id_0>": 159}),
    "json alone": lambda folder: (folder / "spiece.model").unlink(),
}  # fmt: skip


@cache
def foreign(kind: str, more: str) -> Maker:
    """Writes a folder in Hugging Face's format."""
    return lambda folder: MORE[more](theirs.write(kind, folder))


@cache
def foreign_tokenizer(kind: str) -> Maker:
    """Writes the vocabulary that a run keeps of such a folder."""

    def make(folder: Path) -> None:
        foreign(kind, "template")(folder / "model")
        read_huggingface(folder / "model").vocabularies[0].tokenizer.save(folder / "tokenizer.json")

    return make


def corpus(folder: Path) -> None:
    """Writes a vocabulary, and a corpus as ids."""
    text = lines(0)
    tokenizer = Tokenizer.train(text, 64)
    TokenizedCorpus.build(folder / "train", zip(text[:40], text[40:80], strict=True), tokenizer, tokenizer)
    tokenizer.save(folder / "tokenizer.model")


def checkpoint(folder: Path) -> None:
    """Writes the two files of a checkpoint."""
    folder.mkdir()
    checkpoints._write_arrays(folder / "weights.npz", {name: np.ones(*like) for name, like in WEIGHTS.items()})
    checkpoints._write_arrays(folder / "state.npz", {"progress": checkpoints._json_array({"step": 3, "epoch": 1})})


def images(folder: Path) -> None:
    """Writes a run of images with its pixels."""
    some = [LabelledImage("ab"[place % 2], np.full((9, 9), place, "uint8"), "") for place in range(6)]
    read_pixels(unpack("images", folder) / "cache/train.images", some, ["a", "b"], 8, 1)


def vectors(folder: Path) -> None:
    """Writes word vectors, as text and in binary."""
    folder.mkdir()
    (folder / "text").write_text("4 3\n" + "".join(f"{word} 0.5 -1 2e-3\n" for word in ("the", "sea", "größe", "a b")))
    rows = b"".join(word + b" " + np.array([1, 2, 3], "<f4").tobytes() for word in (b"the", b"sea", b"cat"))
    (folder / "binary").write_bytes(b"3 3\n" + rows)


def distilled(folder: Path) -> None:
    """Writes what a distillation keeps."""
    folder.mkdir()
    (folder / "source").write_text("the sea\ntwo dogs\na cat\n")
    text = DistilledText(str(folder / "text"))
    text.begin(text.making([], str(folder / "source"), {"num_beams": 2}))
    (text.shards / "000000.jsonl").write_text('["das Meer", true]\n["zwei Hunde", true]\n["eine Katze", true]\n')
    write_json(text.report, {"lines": 3, "validation": "x", "kept": 3, "left_out": {}, "examples": {}})


def answering(folder: Path) -> None:
    """Writes a run that keeps the graph of its answers."""
    unpack("classification", folder / "run")
    assert answer("classify", "run", folder) == 0


def exported(task: str) -> Maker:
    """Writes an export of a run."""
    return lambda folder: export([str(unpack(task, folder / "run")), "--format", "onnx", "--out", f"{folder}/export"])


def chat(folder: Path) -> None:
    """Writes a template for chats."""
    folder.mkdir()
    (folder / "template").write_text(TEMPLATE)


def read_config_of(folder: Path) -> None:
    """What commands read of config.json."""
    run, aside = RunFolder(folder), RunFolder(folder.with_name("aside"))
    config = read_config(run)
    info(Namespace(run=str(folder)))
    resume_command(run)
    if config.main_command == "translate":
        own_search_of(Namespace(run=str(folder)))
    aside.path.mkdir(exist_ok=True)
    write_config(aside, config)


def resume(folder: Path) -> None:
    """What a training that goes on reads before it makes a model."""
    os.chdir(folder.with_name(f"{folder.name}-text"))
    open_run({"resume": True, "out": str(folder), "steps": 10**9})


@cache
def model_of(folder: Path) -> Any:
    """The model of a run, made once in a process."""
    return make_model(read_config(folder).model)


def read_weights(loads: bool, folder: Path) -> None:
    """The check of model.keras, and if asked the weights in it, without making the model each time."""
    number = read_config(folder).parameters
    model_factory.count_parameters = lambda config: number or 0  # type: ignore[assignment]
    if loads:
        model = model_of(folder)
        model_factory.make_model = lambda config, dtype="": model
        run_folder.load_model(folder)
    run_folder.check_model(RunFolder(folder), read_config(folder))
    content_of(RunFolder(folder))


def use(tokenizer: Any) -> None:
    """Reads and writes some text with a vocabulary."""
    tokenizer.decode(tokenizer.encode(TEXTS))
    tokenizer.pieces([0, 1, 2, 3, tokenizer.vocabulary_size - 1])
    _ = tokenizer.tags, tokenizer.surfaces(), tokenizer.unread(TEXTS[1]), tokenizer.has_line_breaks
    if tokenizer.has_mask:
        tokenizer.encode_masked(TEXTS[1])


def read_foreign(folder: Path) -> None:
    """Reads a folder in Hugging Face's format."""
    for vocabulary in read_huggingface(folder).vocabularies:
        use(vocabulary.tokenizer)


def read_tokenizer(folder: Path) -> None:
    """Reads a vocabulary of either kind."""
    (path,) = folder.glob("tokenizer.*")
    use(load_tokenizer(path))


def read_corpus(folder: Path) -> None:
    """Reads a corpus as ids."""
    corpus = TokenizedCorpus.open(folder / "train")
    corpus.sources_among([[5]], [4])
    rows = np.arange(min(len(corpus), 8))
    corpus.source_ids(rows, 8, int(corpus.source_lengths.max()))
    corpus.labels(rows, 8, int(corpus.target_lengths.max()))


def read_template(folder: Path) -> None:
    """Makes a chat a text."""
    template = (folder / "template").read_text("utf-8", "replace")
    rendered(template, [{"messages": [{"role": "user", "content": "5"}], "bos_token": "<s>", "eos_token": "</s>"}])


def read_images(folder: Path) -> None:
    """The validation images of a run, and the pixels that it keeps."""
    images_of(RunFolder(folder), json.loads((folder / "config.json").read_text())["model"])
    pixels = read_pixels(folder / "cache/train.images", [], ["a", "b"], 8, 1)
    assert {0, 1}.issuperset(pixels.labels.tolist()) and pixels.images.max() >= 0


def read_vectors(name: str, folder: Path) -> None:
    """Reads word vectors."""
    read_word_vectors(folder / name, 3, {"the", "sea", "größe"})


def verify(folder: Path) -> None:
    """What `export --verify` reads of a certificate."""
    KeptCertificate(folder / "export").expected()


def read_records(folder: Path) -> None:
    """The records of a run: those that a training goes on with, and those that `info` prints."""
    Records(RunFolder(folder), Progress(step=3))
    info(Namespace(run=str(folder)))


def read_checkpoint(folder: Path) -> None:
    """Reads a checkpoint. Training leaves a damaged one out with a warning; here it is an error."""
    like = {name: SimpleNamespace(shape=shape, dtype=dtype) for name, (shape, dtype) in WEIGHTS.items()}
    try:
        for _ in checkpoints._read_arrays(folder / "weights.npz", like):
            pass
        checkpoints._read_progress(folder / "state.npz", {"step": 1, "epoch": 1})
    except checkpoints.DamagedFile as error:
        raise RequestError(str(error)) from None


def read_distilled(folder: Path) -> None:
    """Reads what a distillation keeps, and chooses from it."""
    text = DistilledText(str(folder / "text"))
    text.check()
    text.is_filtered([])
    text.missing(text.making([], str(folder / "source"), {"num_beams": 2}))
    report = text.report.read_bytes()
    text.filter(str(folder / "source"), [])
    text.report.write_bytes(report)


def answer(verb: str, name: str, folder: Path) -> int:
    """Answers by the graphs of a run or of an export."""
    sys.stdin = Mock(buffer=io.BytesIO(b"the cat\n"))
    return main([verb, str(folder / name), "--engine", "onnx", "--threads", "1"])


def tell(folder: Path) -> int:
    """Tells of an export."""
    return main(["info", str(folder / "export")])


CHECKPOINT = "weights.npz", "state.npz"
WEIGHTS = {"0000-kernel": ((3, 4), "float32"), "0001-seed": ((2,), "int64")}  # of a checkpoint
TASKS = "translation", "classification", "images", "language-model", "masked-tokens", "next-item", "answers", "experts"
CONFIG, MODEL, PROBES, GRAPH = "config.json", "model.keras", "run/cache/onnx-*/*.json", "run/cache/onnx-*/*.onnx"
EXPORTED = "export/certificate.json", "export/onnx/translate.onnx", "export/onnx/certificate.json"
CLASSIFY, TRANSLATE = partial(answer, "classify", "run"), partial(answer, "translate", "export")
LABEL, LABELLING = partial(answer, "classify", "export"), "export/onnx/classify.onnx"
# By the model and what is changed in its folder: files, with their form where it is not JSON.
FOREIGN: dict[tuple[str, str], list[Any]] = {
    **{(model, "license"): [CONFIG] for model in ("llama", "t5", "roberta")},
    **{(model, "license"): [CONFIG, "tokenizer.json"] for model in ("bert-labels", "bart", "gpt2")},
    ("marian", "license"): [
        *(CONFIG, "generation_config.json", "tokenizer_config.json", "vocab.json", ("README.md", "text")),
        *(("source.spm", "bytes"), ("model.safetensors", "bytes")),
    ],
    ("marian", "archive"): [("pytorch_model.bin", "bytes")], ("marian", "row"): [("pytorch_model.bin", "bytes")],
    ("marian", "index"): ["model.safetensors.index.json"], ("vit", "license"): [CONFIG, "preprocessor_config.json"],
    ("t5", "added"): ["tokenizer_config.json", "added_tokens.json", ("spiece.model", "bytes")],
    ("t5", "json alone"): ["tokenizer.json"], ("llama", "template"): ["tokenizer_config.json"],
    ("bert", "pooled"): ["modules.json", "1_Pooling/config.json", "sentence_bert_config.json"],
    ("bert", "words"): [("vocab.txt", "text"), "special_tokens_map.json"],
    ("gpt2", "merges"): [("merges.txt", "text"), "vocab.json"],
}  # fmt: skip
IN_CPP = {"source.spm", "spiece.model"}
TRANSLATOR, CLASSIFIER = exported("translation"), exported("classification")
KINDS = [
    *(Kind(f"config.json of {task}", golden(task), CONFIG, read_config_of) for task in TASKS),
    *(Kind(f"config.json to resume {task}", golden(task), CONFIG, resume) for task in TASKS[:6]),
    Kind("config.json with modules", with_modules, CONFIG, partial(read_weights, False)),
    Kind("model.keras", golden("next-item"), MODEL, partial(read_weights, False), "bytes", library=True),
    Kind("weights in model.keras", golden("next-item"), MODEL, partial(read_weights, True), "bytes", library=True),
    *(Kind(name, images, name, read_images, "bytes") for name in (
        "validation.npz", "cache/train.images", "cache/train.labels*",
    )),
    *(Kind(f"{file} of {task}", golden(task), file, validation_text, "text") for task, file in (
        ("translation", "validation.source"), ("answers", "validation.target"), ("classification", "validation.text"),
        ("masked-tokens", "validation.text"), ("language-model", "validation.text"),
    )),
    Kind("items.txt", golden("next-item"), "items.txt", lambda folder: Items.load(folder / "items.txt"), "text"),
    *(Kind(name, golden("translation"), name, read_records, "text") for name in ("metrics.csv", "samples.txt")),
    *(Kind(f"checkpoint's {name}", checkpoint, name, read_checkpoint, "bytes") for name in CHECKPOINT),
    Kind("tokenizer.model", corpus, "tokenizer.model", read_tokenizer, "bytes", library=True),
    *(Kind(f"tokenizer.json of {model}", foreign_tokenizer(model), "tokenizer.json", read_tokenizer)
      for model in ("bert-tokens", "gpt2")),
    Kind("cache/train/meta.json", corpus, "train/meta.json", read_corpus),
    *(Kind(f"cache/train/{side}.{part}", corpus, f"train/{side}.{part}", read_corpus, "bytes")
      for side in ("source", "target") for part in ("ids", "offsets")),
    *(Kind(f"word vectors, {name}", vectors, name, partial(read_vectors, name), form)
      for name, form in (("text", "text"), ("binary", "bytes"))),
    *(Kind(f"distilled {name}", distilled, f"text/{name}", read_distilled, form) for name, form in (
        ("made_of.json", "json"), ("report.json", "json"), ("translations/000000.jsonl", "text"),
    )),
    *(Kind(f"{file} of {model}, {more}", foreign(model, more), file, read_foreign, form, file in IN_CPP)
      for (model, more), files in FOREIGN.items()
      for file, form in (one if isinstance(one, tuple) else (one, "json") for one in files)),
    Kind("kept probes", answering, PROBES, CLASSIFY, may_differ=True),
    Kind("kept graph", answering, GRAPH, CLASSIFY, "bytes", library=True, may_differ=True),
    Kind("kept graph's metadata", answering, GRAPH, CLASSIFY, "metadata", may_differ=True),
    Kind("certificate.json to verify", TRANSLATOR, EXPORTED[0], verify),
    Kind("certificate.json", TRANSLATOR, EXPORTED[2], TRANSLATE, may_differ=True),
    Kind("export's metadata", TRANSLATOR, EXPORTED[1], TRANSLATE, "metadata", may_differ=True),
    Kind("graph of an exported classifier", CLASSIFIER, LABELLING, LABEL, "bytes", library=True, may_differ=True),
    Kind("its metadata", CLASSIFIER, LABELLING, LABEL, "metadata", may_differ=True),
    Kind("its certificate.json", CLASSIFIER, EXPORTED[2], LABEL, may_differ=True),
    *(Kind(f"its {form}, told by info", CLASSIFIER, LABELLING, tell, form, may_differ=True)
      for form in ("metadata", "bytes")),
    Kind("its certificate.json, told by info", CLASSIFIER, EXPORTED[2], tell, may_differ=True),
    Kind("chat template", chat, "template", read_template, "text"),
]  # fmt: skip
