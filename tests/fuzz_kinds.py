"""The kinds of files from strangers: how a folder with one is made, and what reads it, up to where a model is made."""

import importlib
import json
import math
from argparse import Namespace
from collections.abc import Callable
from functools import cache, partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from keras_transformer.errors import JobError, RequestError
from tests.golden.stored import unpack as golden

LINES = ["the sea", "two dogs and <mask> a cat", "ba do fi", ""]
TOKENIZED = (b"the sea\n", b"two dogs\n")


class Kind(NamedTuple):
    """A kind of file.

    Args:
        name: what it is.
        make: writes a folder in which such a file is whole.
        file: its name in the folder, as a pattern.
        read: reads it.
        form: how it is changed, a key of `fuzz.CHANGES`.
        modules: what is imported before, because `read` needs it.
        library: whether a library in C++ reads it, which may end the process.
    """

    name: str
    make: Callable[[Path], object]
    file: str
    read: Callable[[Path], object]
    form: str = "json"
    modules: tuple[str, ...] = ()
    library: bool = False

    def prepare(self) -> None:
        """Imports what reading needs."""
        for module in self.modules:
            importlib.import_module(module)


def done(status: int) -> None:
    """Raises what a command's status says; the command has told why."""
    if status:
        raise SystemExit(status)


@cache
def a_run(task: str) -> Callable[[Path], object]:
    """Writes a golden run, and what the commands need beside it."""
    return partial(golden, task)


@cache
def a_folder(kind: str, *more: str) -> Callable[[Path], None]:
    """Writes a folder in Hugging Face's format."""

    def make(folder: Path) -> None:
        from tests.importing.test_torch_file import torch_file
        from tests.importing.theirs import change, split, tensors_of, write

        write(kind, folder)
        for name in more:
            if name in ("archive", "row"):
                content = torch_file(tensors_of(folder), name == "archive")
                (folder / "model.safetensors").unlink()
                (folder / "pytorch_model.bin").write_bytes(content)
            elif name == "index":
                split(folder)
            elif name == "template":
                change(folder, "tokenizer_config.json", chat_template="{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}")
            elif name == "pooling":
                home = "sentence_transformers.models"
                modules = [{"path": "", "type": f"{home}.Transformer"}, {"path": "1_Pooling", "type": f"{home}.Pooling"}]
                (folder / "modules.json").write_text(json.dumps(modules))
                (folder / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 9, "do_lower_case": False}))
                (folder / "1_Pooling").mkdir()
                modes = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
                (folder / "1_Pooling" / "config.json").write_text(json.dumps(modes))
            elif name == "words":
                from tests.importing.theirs import WORDS

                for path in folder.glob("tokenizer*.json"):
                    path.unlink()
                (folder / "vocab.txt").write_text("".join(f"{word}\n" for word in WORDS))
                special = {"cls_token": "[CLS]", "mask_token": {"content": "[MASK]", "lstrip": False}}
                (folder / "special_tokens_map.json").write_text(json.dumps(special))
            elif name == "merges":
                from tests.importing.text_models import byte_bpe
                from tests.importing.theirs import SIZE

                (folder / "tokenizer.json").unlink()
                byte_bpe(special=["<|endoftext|>"], alphabet=False, size=SIZE).model.save(str(folder))
            elif name == "license":
                (folder / "README.md").write_text("---\nlicense: mit\ntags:\n- a\n---\n# Model\n")
            elif name == "added":
                (folder / "added_tokens.json").write_text('{"<extra_id_0>": 159}')
            elif name == "no pieces":
                (folder / "spiece.model").unlink()

    return make


def read_folder(folder: Path) -> None:
    """Reads a folder in Hugging Face's format, and lets its vocabularies read and write text."""
    from keras_transformer.importing.huggingface import read_huggingface

    imported = read_huggingface(folder)
    for name in [*imported.weights.names][:2] if hasattr(imported.weights, "names") else []:
        imported.weights[name]
    for vocabulary in imported.vocabularies:
        use(vocabulary.tokenizer)


def use(tokenizer: Any) -> None:
    """Reads and writes some text with a vocabulary."""
    rows = tokenizer.encode(LINES)
    tokenizer.decode([[id for id in row if id < tokenizer.vocabulary_size] for row in rows])
    tokenizer.pieces([0, 1, 2, 3, tokenizer.vocabulary_size - 1])
    tokenizer.surfaces()
    _ = tokenizer.tags, tokenizer.normalize(LINES[1]), tokenizer.unread(LINES[1]), tokenizer.has_line_breaks
    if tokenizer.has_mask:
        tokenizer.encode_masked(LINES[1])


def read_config_of(folder: Path) -> None:
    """What the commands read of config.json."""
    from keras_transformer.commands.runs import info
    from keras_transformer.decoding.search_options import SearchOptions
    from keras_transformer.run_folder import RunFolder, main_verb, read_config, resume_command, write_config
    from keras_transformer.tasks.translation.commands.translate import own_search_of

    run = RunFolder(folder)
    config = read_config(run)
    info(Namespace(run=str(folder)))
    resume_command(run), main_verb(config)
    SearchOptions(**own_search_of(Namespace(run=str(folder))))
    aside = folder.parent / "written"
    aside.mkdir(exist_ok=True)
    write_config(RunFolder(aside), config)


def resume(folder: Path) -> None:
    """What a training that goes on reads before it makes a model."""
    from keras_transformer.training.request import open_run

    open_run({"resume": True, "out": str(folder), "steps": 10**9})


def read_weights(folder: Path) -> None:
    """The check of model.keras, for a model whose parameters were counted before."""
    from keras_transformer import run_folder
    from keras_transformer.commands.graph_cache import content_of

    run = run_folder.RunFolder(folder)
    number = run_folder.read_config(run)["parameters"]
    run_folder.count_parameters = lambda config: number  # type: ignore[assignment]
    run_folder.check_model(run)
    content_of(run)


@cache
def _model(folder: Path) -> Any:
    from keras_transformer import run_folder
    from keras_transformer.making import make_model

    return make_model(run_folder.read_config(folder)["model"])


def load_weights(folder: Path) -> None:
    """The weights in model.keras, for a model that was made before."""
    from keras_transformer import run_folder

    model = _model(folder)
    run_folder.make_model = lambda config: model  # type: ignore[assignment]
    number = run_folder.read_config(folder)["parameters"]
    run_folder.count_parameters = lambda config: number  # type: ignore[assignment]
    run_folder.load_model(folder)


def a_cache(folder: Path) -> None:
    """Writes a tokenised corpus, and the files of one text and of images."""
    from keras_transformer.tasks.language_modelling.batches import tokenized_text
    from keras_transformer.text.tokenized import TokenizedCorpus
    from keras_transformer.text.tokenizer import Tokenizer
    from tests.tiny_text import lines

    text = lines(0)
    tokenizer = Tokenizer.train(text, 64)
    tokenizer.save(folder / "tokenizer.model")
    TokenizedCorpus.build(folder / "train", zip(text[:40], text[40:80], strict=True), tokenizer, tokenizer)


def read_cache(folder: Path) -> None:
    """Reads all of a tokenised corpus."""
    from keras_transformer.text.tokenized import TokenizedCorpus

    corpus = TokenizedCorpus.open(folder / "train")
    corpus.sources_among([[5]], [4])
    rows = np.arange(min(len(corpus), 8))
    corpus.source_ids(rows, 8, int(corpus.source_lengths.max()))
    corpus.labels(rows, 8, int(corpus.target_lengths.max()))


def read_tokenizer(folder: Path) -> None:
    """Reads a vocabulary of either kind."""
    from keras_transformer.text.huggingface_tokenizer import load_tokenizer

    (path,) = folder.glob("tokenizer.*")
    use(load_tokenizer(path))


@cache
def a_tokenizer(kind: str) -> Callable[[Path], None]:
    """Writes a run's vocabulary that is a tokenizer of Hugging Face's."""

    def make(folder: Path) -> None:
        from keras_transformer.importing.huggingface import read_huggingface

        a_folder(kind, "template")(folder / "model")
        read_huggingface(folder / "model").vocabularies[0].tokenizer.save(folder / "tokenizer.json")

    return make


def read_template(folder: Path) -> None:
    """Renders a template for chats."""
    from keras_transformer.text.huggingface_tokenizer import rendered

    template = (folder / "template").read_bytes().decode("utf-8", "replace")
    rendered(template, [{"messages": [{"role": "user", "content": "5"}], "bos_token": "<s>", "eos_token": "</s>"}])


TEMPLATE = """{% for message in messages %}{% if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
{{ raise_exception('roles must alternate') }}{% endif %}{{ '<|im_start|>' ~ message.role + '\\n' + message['content']|trim }}
{%- for i in range(3) %}{{ i * 2 }}{{ 'x' * 9 }}{% endfor %}{% endfor %}{% if add_generation_prompt %}{{ bos_token }}{% endif %}
"""


def a_template(folder: Path) -> None:
    """Writes a template for chats."""
    folder.mkdir()
    (folder / "template").write_text(TEMPLATE)


def read_images(folder: Path) -> None:
    """The validation images of a run."""
    from keras_transformer.run_folder import RunFolder
    from keras_transformer.tasks.images.signature import images_of

    images_of(RunFolder(folder), json.loads((folder / "config.json").read_text())["model"])


def read_validation(folder: Path) -> None:
    """The validation text of a run, on which its exports are certified."""
    from export.artefacts import validation_text

    validation_text(folder)


def read_items(folder: Path) -> None:
    """The items of a run."""
    from keras_transformer.tasks.next_item.corpus import Items

    Items.load(folder / "items.txt").encode(["a", "novel 1"])


def read_records(folder: Path) -> None:
    """The records of a run that goes on."""
    from keras_transformer.run_folder import RunFolder
    from keras_transformer.training.callbacks import Progress
    from keras_transformer.training.records import Records

    Records(RunFolder(folder), Progress(step=3))


def print_info(folder: Path) -> None:
    """`info`, which prints the last row of metrics.csv."""
    from keras_transformer.commands.runs import info

    info(Namespace(run=str(folder)))


class Variable(NamedTuple):
    """What a checkpoint holds, as far as its check needs it."""

    shape: tuple[int, ...]
    dtype: str


WEIGHTS = {"0000-kernel": Variable((3, 4), "float32"), "0001-seed": Variable((2,), "int64")}


def a_checkpoint(folder: Path) -> None:
    """Writes a checkpoint's file, and one of its progress."""
    from keras_transformer.training import checkpoints

    folder.mkdir()
    arrays = {name: np.ones(each.shape, each.dtype) for name, each in WEIGHTS.items()}
    checkpoints._write_arrays(folder / "1.weights.npz", arrays)
    checkpoints._write_arrays(folder / "1.state.npz", {"progress": checkpoints._json_array({"step": 3, "epoch": 1})})


def read_checkpoint(folder: Path) -> None:
    """Reads a checkpoint. A damaged one is left out with a warning; here it is told as an error."""
    from keras_transformer.training import checkpoints

    try:
        for _ in checkpoints._read_arrays(folder / "1.weights.npz", WEIGHTS):
            pass
        checkpoints._read_progress(folder / "1.state.npz", {"step": 1, "epoch": 1})
    except checkpoints.DamagedFile as error:
        raise RequestError(str(error)) from None


def vectors(folder: Path) -> None:
    """Writes word vectors, as text and in binary."""
    folder.mkdir()
    (folder / "text").write_text("4 3\n" + "".join(f"{word} 0.5 -1 2e-3\n" for word in ("the", "sea", "größe", "a b")))
    rows = b"".join(word + b" " + np.array([1, 2, 3], "<f4").tobytes() for word in (b"the", b"sea", b"cat"))
    (folder / "binary").write_bytes(b"3 3\n" + rows)


def read_vectors(name: str, folder: Path) -> None:
    """Reads word vectors."""
    from keras_transformer.text.word_vectors import read_word_vectors

    read_word_vectors(folder / name, 3, {"the", "sea", "größe"})


def distilled(folder: Path) -> None:
    """Writes what a distillation keeps."""
    (folder / "text/translations").mkdir(parents=True)
    (folder / "source").write_text("the sea\ntwo dogs\na cat\n")
    making = {"shard_lines": 2, "teachers": ["x"], "text": "y", "lines": 3, "search": {"num_beams": 2}}
    (folder / "text/made_of.json").write_text(json.dumps(making))
    (folder / "text/report.json").write_text(json.dumps({"lines": 3, "validation": "x", "kept": 3, "left_out": {}, "examples": {}}))
    (folder / "text/translations/000000.jsonl").write_text('["das Meer", true]\n["zwei Hunde", true]\n')
    (folder / "text/translations/000001.jsonl").write_text('["eine Katze", true]\n')


def read_distilled(folder: Path) -> None:
    """Reads what a distillation keeps, and chooses from it."""
    from keras_transformer.tasks.translation.commands.distilled_text import DistilledText

    text = DistilledText(str(folder / "text"))
    text.check()
    text.is_filtered([])
    text.missing(text._made_of())
    report = text.report.read_bytes()
    text.filter(str(folder / "source"), [])
    text.report.write_bytes(report)


def own_parts(folder: Path) -> None:
    """Writes a run that names modules."""
    golden("classification", folder)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, "modules": ["json.tool", "tests.tiny_text"]}))


def classify(folder: Path) -> None:
    """Answers by the graphs that a run, or an export, keeps."""
    from keras_transformer.__main__ import main

    (folder.parent / "lines").write_text("the cat\n")
    done(main(["classify", str(next(folder.glob("run*"))), "--input", str(folder.parent / "lines"), "--engine", "onnx"]))


RUNS = ("translation", "classification", "images", "language-model", "masked-tokens", "next-item", "answers", "experts", "modern")
KERAS = ("keras", "keras_transformer.training.request", "keras_transformer.training.records", "export.artefacts")
READERS = ("keras_transformer.importing.huggingface", "tokenizers", "sentencepiece")
KINDS = [
    *(Kind(f"config.json of {task}", a_run(task), "config.json", read_config_of, modules=KERAS) for task in RUNS),
    *(Kind(f"config.json of {task} to go on with", a_run(task), "config.json", resume, modules=KERAS) for task in RUNS[:6]),
    Kind("config.json with modules", own_parts, "config.json", read_weights, modules=KERAS),
    Kind("model.keras", a_run("next-item"), "model.keras", read_weights, "bytes", KERAS, library=True),
    Kind("weights in model.keras", a_run("next-item"), "model.keras", load_weights, "bytes", KERAS, library=True),
    Kind("validation.npz", a_run("images"), "validation.npz", read_images, "bytes", KERAS),
    *(Kind(f"{file} of {task}", a_run(task), file, read_validation, "text", KERAS) for task, file in (
        ("translation", "validation.source"), ("translation", "validation.target"), ("classification", "validation.text"),
        ("masked-tokens", "validation.source"), ("language-model", "validation.source"),
    )),
    Kind("items.txt", a_run("next-item"), "items.txt", read_items, "text"),
    Kind("metrics.csv", a_run("translation"), "metrics.csv", print_info, "text", KERAS),
    Kind("metrics.csv to go on with", a_run("translation"), "metrics.csv", read_records, "text", KERAS),
    Kind("samples.txt", a_run("translation"), "samples.txt", read_records, "text", KERAS),
    Kind("checkpoint", a_checkpoint, "1.weights.npz", read_checkpoint, "bytes", KERAS),
    Kind("progress", a_checkpoint, "1.state.npz", read_checkpoint, "bytes", KERAS),
    Kind("tokenizer.model", a_cache, "tokenizer.model", read_tokenizer, "bytes", READERS, library=True),
    *(Kind(f"tokenizer.json of {kind}", a_tokenizer(kind), "tokenizer.json", read_tokenizer, modules=READERS) for kind in ("bert-tokens", "gpt2")),
    Kind("cache/train/meta.json", a_cache, "train/meta.json", read_cache),
    *(Kind(f"cache/train/{name}", a_cache, f"train/{name}", read_cache, "bytes") for name in (
        "source.ids", "source.offsets", "target.ids", "target.offsets",
    )),
    Kind("word vectors in text", vectors, "text", partial(read_vectors, "text"), "text", ("gensim.models",)),
    Kind("word vectors in binary", vectors, "binary", partial(read_vectors, "binary"), "bytes", ("gensim.models",)),
    *(Kind(f"distilled {name}", distilled, f"text/{name}", read_distilled, form) for name, form in (
        ("made_of.json", "json"), ("report.json", "json"), ("translations/000000.jsonl", "text"),
    )),
    *(Kind(f"imported {name} of {kind}", a_folder(kind, *more), name, read_folder, form, READERS, name.endswith((".spm", ".model")))
      for kind, more, name, form in (
        *((kind, ("license",), "config.json", "json") for kind in ("marian", "bart", "gpt2", "llama", "bert-labels", "vit", "t5", "roberta")),
        *(("marian", ("license",), name, "json") for name in ("generation_config.json", "tokenizer_config.json", "vocab.json")),
        ("marian", ("license",), "README.md", "text"), ("marian", ("license",), "source.spm", "bytes"),
        ("marian", ("license",), "model.safetensors", "bytes"), ("marian", ("archive",), "pytorch_model.bin", "bytes"),
        ("marian", ("row",), "pytorch_model.bin", "bytes"), ("marian", ("index",), "model.safetensors.index.json", "json"),
        *((kind, ("license",), "tokenizer.json", "json") for kind in ("bert-labels", "bart", "gpt2")),
        ("vit", ("license",), "preprocessor_config.json", "json"), ("t5", ("added",), "tokenizer_config.json", "json"),
        ("t5", ("added",), "added_tokens.json", "json"), ("t5", ("license",), "spiece.model", "bytes"),
        ("t5", ("no pieces",), "tokenizer.json", "json"), ("bert", ("pooling",), "modules.json", "json"),
        ("bert", ("pooling",), "1_Pooling/config.json", "json"), ("bert", ("pooling",), "sentence_bert_config.json", "json"),
        ("bert", ("words",), "vocab.txt", "text"), ("bert", ("words",), "special_tokens_map.json", "json"),
        ("gpt2", ("merges",), "merges.txt", "text"), ("gpt2", ("merges",), "vocab.json", "json"),
        ("llama", ("template",), "tokenizer_config.json", "json"),
    )),
    Kind("chat template", a_template, "template", read_template, "text", ("keras_transformer.text.huggingface_tokenizer",)),
]  # fmt: skip
