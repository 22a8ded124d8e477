"""Measures the road of a trained model from outside: import, translate, evaluate, fine-tune, export and certify.

    python -m benchmarks.road --shape opus --text text.en --references text.de

The folder is made here in Hugging Face's format: OPUS-MT's shape (Marian, D 512, 6+6 layers, 58,101 pieces) or that of
NLLB-200's distilled model (D 1024, 12+12 layers, 256,206 pieces), with random weights. Most pieces of its vocabulary
stand in for those of the real one. `--folder` takes a model that is there in its place.

Every row is a command of its own. Peak memory is the process's or its largest child's, in Linux's count; "less imports"
subtracts that of a process which imports the same and does nothing. It needs the extra `bench`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

from benchmarks.contest import in_process
from keras_transformer.core.errors import RequestError, exit_status
from keras_transformer.core.files import write_text
from keras_transformer.importing.folder import ModelFolder
from keras_transformer.importing.weights import open_weights
from keras_transformer.text.lines import read_lines

SHAPES: dict[str, dict[str, int]] = {
    "opus": {"d_model": 512, "layers": 6, "attention_heads": 8, "ffn_dim": 2048, "vocab_size": 58_101},
    "nllb": {"d_model": 1024, "layers": 12, "attention_heads": 16, "ffn_dim": 4096, "vocab_size": 256_206},
    "small": {"d_model": 16, "layers": 1, "attention_heads": 2, "ffn_dim": 16, "vocab_size": 206},
}
TAGS = ("deu_Latn", "eng_Latn", "fra_Latn")
# What is exported: SavedModel's own precisions are float32 and float16.
EXPORTS = [("saved_model", "float32"), *(("onnx", each) for each in ("float32", "float16", "int8"))]
EXPORTS += [("tflite", each) for each in ("float32", "float16", "int8")]
EXPORTS += [*(("ctranslate2", each) for each in ("float32", "int8")), ("huggingface", "float32")]
IMPORTS = (
    "from keras_transformer.core.extras import load_tensorflow; load_tensorflow(); import keras, keras_transformer"
)


class Cost(NamedTuple):
    """Holds what a process took.

    Args:
        status: its exit status.
        seconds: by the clock.
        processor: seconds of processor time.
        mib: its peak memory.
    """

    status: int
    seconds: float
    processor: float
    mib: float


class Row(NamedTuple):
    """Names a command of the road.

    Args:
        name: what it is called in the table.
        command: the arguments of `keras-transformer`.
        written: the folder that it writes.
    """

    name: str
    command: list[str]
    written: Path | None = None


def measured(command: list[str], log: Path, given: Path | None = None) -> Cost:
    """Runs a command, whose standard input is a file. What it says is added to the log."""
    with (given or Path(os.devnull)).open("rb") as stdin, log.open("ab") as said:
        said.write(f"$ {' '.join(command)}\n".encode())
        said.flush()
        started = time.perf_counter()
        process = subprocess.Popen(command, stdin=stdin, stdout=said, stderr=said)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
    seconds = time.perf_counter() - started
    return Cost(process.returncode, seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)


def vocabulary_of(text: Path, size: int) -> bytes:
    """Makes a SentencePiece model of `size` pieces: those of the text, and others that stand in for more text."""
    import io

    import sentencepiece
    from sentencepiece import sentencepiece_model_pb2 as proto

    file = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=islice(read_lines(text), 20_000), model_writer=file, minloglevel=2,
        vocab_size=min(4_000, size // 2), hard_vocab_limit=False, byte_fallback=False, unk_id=0, bos_id=1, eos_id=2,
    )  # fmt: skip
    model = proto.ModelProto.FromString(file.getvalue())  # type: ignore[attr-defined]
    for number in range(size - len(model.pieces)):
        model.pieces.add(piece=f"▁{number:x}☆", score=-99.0 - number / size)
    return model.SerializeToString()


def write_folder(shape: str, text: Path, folder: Path) -> None:
    """Writes a model of this shape in Hugging Face's format."""
    import torch

    sizes: Any = dict(SHAPES[shape])
    layers, heads, inner = (sizes.pop(name) for name in ("layers", "attention_heads", "ffn_dim"))
    for stack in ("encoder", "decoder"):
        sizes |= {f"{stack}_layers": layers, f"{stack}_attention_heads": heads, f"{stack}_ffn_dim": inner}
    torch.manual_seed(1)
    folder.mkdir(parents=True)
    model = (marian if shape == "opus" else m2m_100)(sizes, text, folder)
    model.generation_config.num_beams, model.generation_config.max_length = 4, 64
    model.save_pretrained(folder)


def marian(sizes: Any, text: Path, folder: Path) -> Any:
    """Makes OPUS-MT's model of these sizes, and writes its vocabularies."""
    from transformers import MarianConfig, MarianMTModel

    pad = sizes["vocab_size"] - 1
    pieces = vocabulary_of(text, pad)
    for side in ("source", "target"):
        (folder / f"{side}.spm").write_bytes(pieces)
    write_text(folder / "vocab.json", json.dumps(ids_of_marian(pieces, pad), ensure_ascii=False))
    write_text(folder / "tokenizer_config.json", json.dumps({"source_lang": "en", "target_lang": "de"}))
    sizes |= {"decoder_vocab_size": pad + 1, "pad_token_id": pad, "decoder_start_token_id": pad, "eos_token_id": 0}
    made = MarianMTModel(
        MarianConfig(**sizes, forced_eos_token_id=0, activation_function="swish", scale_embedding=True)
    )
    made.generation_config.bad_words_ids = [[pad]]
    return made


def m2m_100(sizes: Any, text: Path, folder: Path) -> Any:
    """Makes NLLB-200's model of these sizes, and writes its vocabulary and the tags of a few languages."""
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    (folder / "sentencepiece.bpe.model").write_bytes(vocabulary_of(text, sizes["vocab_size"] - 2 - len(TAGS)))
    write_text(folder / "special_tokens_map.json", json.dumps({"additional_special_tokens": list(TAGS)}))
    return M2M100ForConditionalGeneration(
        M2M100Config(**sizes, activation_function="relu", scale_embedding=True, decoder_start_token_id=2)
    )


def ids_of_marian(model: bytes, pad: int) -> dict[str, int]:
    """Returns the ids of the pieces as Marian's folders have them."""
    import sentencepiece

    pieces = sentencepiece.SentencePieceProcessor(model_proto=model)
    names = [pieces.id_to_piece(id) for id in range(pieces.get_piece_size())]
    others = [name for name in names if name not in ("</s>", "<unk>")]
    return {name: id for id, name in enumerate(["</s>", "<unk>", *others][:pad])} | {"<pad>": pad}


def rows_of(arguments: argparse.Namespace, folder: Path, run: Path) -> Iterator[Row]:
    """Yields the commands of the road, in their order."""
    languages = ["--source-language", "eng_Latn", "--target-language", "deu_Latn"] if arguments.shape != "opus" else []
    search, (source, reference) = [*languages, "--max-length", "20", "--beams", "4"], files_of_few(run)
    pair = ["--source", str(arguments.text), "--target", str(arguments.references)]
    tuning = ["--steps", "50", "--token-budget", str(arguments.token_budget), "--bleu-sentences", "0"]
    tuned = run.with_name("tuned")
    yield Row("import", ["import", str(folder), str(run)], run)
    yield Row("translate, first use", ["translate", str(run), *search])
    yield Row("translate, again", ["translate", str(run), *search])
    yield Row("evaluate", ["evaluate", str(run), "--source", source, "--reference", reference, *search])
    yield Row("fine-tune", ["train", "--init-from", str(run), *languages, *pair, *tuning, "--out", str(tuned)], tuned)
    for format, precision in EXPORTS:
        place = run.with_name(f"{format}-{precision}")
        options = [*languages, "--format", format, "--precision", precision, "--max-length", "12", "--out", str(place)]
        options += [] if format == "huggingface" else ["--sentences", source, "--references", reference]
        yield Row(f"export {format} {precision}", ["export", str(run), *options], place)


def files_of_few(run: Path) -> tuple[str, str]:
    """Returns the files of a few lines of the text and of their translations."""
    return str(run.with_name("few.source")), str(run.with_name("few.target"))


def size_of(path: Path) -> int:
    """Counts the bytes of a file, or of all files in a folder."""
    return sum(each.stat().st_size for each in [path, *path.rglob("*")] if each.is_file())


def options() -> argparse.ArgumentParser:
    """Makes the parser of the command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--shape", choices=SHAPES, default="opus")
    parser.add_argument("--folder", type=Path, help="a translator in Hugging Face's format; made by default")
    parser.add_argument("--text", type=Path, required=True, help="lines to translate and to learn from")
    parser.add_argument("--references", type=Path, required=True, help="their translations")
    parser.add_argument("--lines", type=int, default=16, help="so many are translated")
    parser.add_argument("--token-budget", type=int, default=1024, help="of a batch of fine-tuning")
    parser.add_argument("--work", type=Path, default=Path("road"), help="a folder for everything that is written")
    parser.add_argument("--only", default="", help="a regular expression: rows whose names have no match are left out")
    return parser


def main() -> None:
    """Prints a Markdown table.

    Raises:
        RequestError: the files have no lines.
    """
    arguments = options().parse_args()
    arguments.work.mkdir(parents=True, exist_ok=True)
    run, log = arguments.work / "run", arguments.work / "log.txt"
    for path, text in zip(files_of_few(run), (arguments.text, arguments.references), strict=True):
        lines = list(islice(read_lines(text), arguments.lines))
        if not lines:
            raise RequestError(f"expected lines in {text}; received none")
        write_text(Path(path), "".join(f"{line}\n" for line in lines))
    folder = arguments.folder or arguments.work / arguments.shape
    if not folder.exists():
        in_process(write_folder, arguments.shape, arguments.text, folder)  # a child's peak begins with its parent's
    places = open_weights(ModelFolder(folder)).places.values()
    mib = sum(math.prod(place.shape) for place in places) * 4 / 2**20
    idle = measured([sys.executable, "-c", IMPORTS], log)
    print(f"model {mib:,.0f} MiB in float32, imports alone {idle.mib:,.0f} MiB\n")
    print("| command | status | seconds | processor seconds | peak MiB less imports | × the model | MiB written |")
    print("| --- | --- | --- | --- | --- | --- | --- |")
    for row in rows_of(arguments, folder, run):
        if re.search(arguments.only, row.name):
            print_row(row, run, idle, mib)


def print_row(row: Row, run: Path, idle: Cost, mib: float) -> None:
    """Runs a command and prints its row; what it wrote is removed, but for the run."""
    if row.written:
        shutil.rmtree(row.written, ignore_errors=True)
    given = Path(files_of_few(run)[0]) if row.command[0] == "translate" else None
    cost = measured([sys.executable, "-m", "keras_transformer", *row.command], run.with_name("log.txt"), given)
    times, more = f"{cost.seconds:.1f} | {cost.processor:.1f}", cost.mib - idle.mib
    written = f"{size_of(row.written) / 2**20:,.0f}" if row.written else ""
    print(f"| {row.name} | {cost.status} | {times} | {more:,.0f} | {more / mib:.2f} | {written} |", flush=True)
    if row.written and row.written != run:
        shutil.rmtree(row.written, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(exit_status(main))
