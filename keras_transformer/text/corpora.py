"""Where parallel text comes from: the user's files, built-in number words, Multi30k, WMT14."""

from __future__ import annotations

import functools
import gzip
import hashlib
import itertools
import os
import random
import time
import zlib
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any

from keras_transformer.errors import JobError, RequestError
from keras_transformer.files import write_whole

Pair = tuple[str, str]

HELD_OUT_SHARE = 20  # One line in so many is held out of files without validation files, up to
HELD_OUT_LINES = 2_000

NUMBERS_LIMIT = 1_000_000
NUMBERS_SAMPLED = 24_000
NUMBERS_HELD_OUT = 2_000
NUMBERS_ALL_BELOW = 1_000
NUMBERS_RECIPE = {
    "num_layers": 2,
    "hidden_dim": 128,
    "intermediate_dim": 256,
    "num_heads": 4,
    "dropout": 0.05,
    "vocabulary_size": 200,
    "token_budget": 2_560,
    "steps": 2_400,
    "warmup_steps": 400,
    "learning_rate_factor": 0.6,
    "checkpoint_every": 200,
    "average_last": 4,
    "bleu_sentences": 100,
}

MULTI30K_URL = (
    "https://raw.githubusercontent.com/multi30k/dataset/2eed49f9b40b6d30566775c99823b23f2457bd55/data/task1/raw"
)
# SHA-256 of the text, not of its compressed form: a copy compressed again, or not at all, passes too.
MULTI30K_SHA256 = {
    "train.en": "460a15fbd157e34a7a9957ee388c1ca247fe47af3ef25fb50442af6c274e0fc6",
    "train.de": "2c2b73fd2b548fbcde3a875e0a78d6ee94d498bfdee6bd3eae3945779e9ddf72",
    "train.fr": "5925a3c18f1587b6b54b87743106e6e8ab93618edb6f65d19eac0621f853a10d",
    "val.en": "1f2a23d992769b5b3d209b0a10dd0b77c08cceb1f20dfb97ed0aafa49d107227",
    "val.de": "660e09eb7e1da2f856ea13ee5ad3cf6d36b3d5b0b733c857e94c5747a3dfc660",
    "val.fr": "5304e444d842e962b2dda4d816b70b22a1765b15401642b7ca37a67477e708dc",
    "test_2016_flickr.en": "399a4382932c1aadd3ceb9bef1008d388a64c76d4ae4e9d4728c6f4301cac182",
    "test_2016_flickr.de": "4be6b5b3236b79c25475c6bb829800a7ce559e9ba7a1f6c2394fe4d40be46d16",
    "test_2016_flickr.fr": "cb3160d69b002bb638e66cc7612fcd56cb0af82eadc9c142dedc438afb885ef6",
}
# A small model, long trained: 29,000 pairs are few (Wu et al. 2021, arXiv 2105.14462, found these sizes best).
MULTI30K_RECIPE = {
    "num_layers": 4,
    "hidden_dim": 128,
    "intermediate_dim": 256,
    "num_heads": 4,
    "dropout": 0.2,
    "vocabulary_size": 6_000,
    "sampling": 0.5,
    "token_budget": 4_096,
    "steps": 6_750,
    "warmup_steps": 1_500,
    "learning_rate_factor": 1.8,
    "checkpoint_every": 250,
    "average_last": 10,
}
_MAX_TEXT_BYTES = 64 * 2**20
_MAX_DOWNLOAD_BYTES = 16 * 2**20
_DOWNLOAD_SECONDS, _SILENCE_SECONDS = 120, 30
_FETCH_MEND = "fetch it by other means and pass its folder with --data-dir"

WMT14_RECIPE = {"vocabulary_size": 37_000}
RECIPES: dict[str, dict[str, Any]] = {"numbers": NUMBERS_RECIPE, "multi30k": MULTI30K_RECIPE, "wmt14": WMT14_RECIPE}
WMT14_LANGUAGES = ("cs", "de", "fr", "hi", "ru")


@dataclass(frozen=True)
class Corpus:
    """Parallel text to train on and to validate on, as streams that can be read again and again.

    `recipe` holds the settings that the corpus brings (they win over a preset), `identity` the SHA-256 of
    what it was made from, by which a resumed run knows its corpus again.
    """

    name: str
    source_language: str | None
    target_language: str | None
    train: Callable[[], Iterator[Pair]]
    valid: Callable[[], Iterator[Pair]]
    identity: str
    recipe: dict[str, Any] = field(default_factory=dict)


def load_corpus(dataset: str = "numbers:en-de", data_dir: str | os.PathLike[str] | None = None) -> Corpus:
    """A named corpus: `numbers:<src>-<tgt>`, `multi30k:<src>-<tgt>` or `wmt14:<src>-<tgt>`.

    Raises:
        RequestError: unknown name or languages, or `data_dir` does not hold the corpus.
        JobError: it could not be fetched.
    """
    name, _, languages = dataset.partition(":")
    source, dash, target = languages.partition("-")
    if name not in _NAMED or not (source and dash and target) or source == target:
        raise RequestError(
            f"a dataset is one of {', '.join(f'{known}:<src>-<tgt>' for known in _NAMED)}, such as "
            f"multi30k:en-de; received: {dataset!r}"
        )
    return _NAMED[name](source, target, Path(data_dir) if data_dir is not None else None)


def read_lines(path: str | os.PathLike[str]) -> Iterator[str]:
    """Lines of a UTF-8 file, plain or .gz; a line ends at \\n alone, and a \\r before it is dropped.

    Raises:
        RequestError: names the file, and the line where there is one.
    """
    number = 0
    try:
        with _opened(Path(path)) as file:
            for number, line in enumerate(file, start=1):
                encoding = "utf-8-sig" if number == 1 else "utf-8"
                yield line.removesuffix(b"\n").removesuffix(b"\r").decode(encoding)
    except UnicodeDecodeError:
        raise RequestError(f"{path}, line {number}: not UTF-8; convert the file, as with iconv") from None
    except FileNotFoundError:
        raise RequestError(f"no such file: {path}; check the path") from None
    except (EOFError, gzip.BadGzipFile, zlib.error) as error:
        raise RequestError(f"{path}: broken gzip after line {number} ({error}); copy it again") from None
    except OSError as error:
        raise RequestError(
            f"cannot read {path} ({error.strerror or error}); expected a text file, plain or .gz"
        ) from None


def corpus_from_files(
    source: str | os.PathLike[str],
    target: str | os.PathLike[str],
    valid_source: str | os.PathLike[str] | None = None,
    valid_target: str | os.PathLike[str] | None = None,
) -> Corpus:
    """The user's own parallel text: UTF-8 files, plain or .gz, a sentence a line.

    Without validation files the last lines are held out, one in twenty and at most 2,000; a pair that stands
    among them is left out of training wherever else it stands.

    Raises:
        RequestError: a file is missing, empty, unreadable or not UTF-8, or two files differ in length.
    """
    if (valid_source is None) != (valid_target is None):
        raise RequestError("validation takes a source and a target file; received one: give both or none")
    train = _ParallelFiles(Path(source), Path(target))
    if valid_source is not None and valid_target is not None:
        valid = _ParallelFiles(Path(valid_source), Path(valid_target))
        identity = _sha256([train.identity, valid.identity])
        return Corpus("files", None, None, train.pairs, valid.pairs, identity)
    if train.count < 2:
        raise RequestError(f"{source} holds one line, which cannot be trained on and held out: add more")
    held_out = train.last_pairs[-max(1, train.count // HELD_OUT_SHARE) :]

    def remaining() -> Iterator[Pair]:
        apart = set(held_out)
        pairs = itertools.islice(train.pairs(), train.count - len(held_out))
        return (pair for pair in pairs if pair not in apart)

    if next(remaining(), None) is None and any(map(any, held_out)):
        raise RequestError(
            f"{source}, {target}: every pair stands also among the last {len(held_out)}, which are held out for "
            "validation: add other text, or give --valid-source and --valid-target"
        )
    return Corpus("files", None, None, remaining, lambda: iter(held_out), train.identity)


class _ParallelFiles:
    """Two files read through once: their number of lines, their hash, and their last pairs."""

    def __init__(self, source: Path, target: Path):
        self.source, self.target = source, target
        source_survey, target_survey = _survey(source), _survey(target)
        self.count = source_survey.count
        if self.count != target_survey.count:
            raise RequestError(
                f"{source} has {self.count:,} lines and {target} has {target_survey.count:,}: "
                "each line of one must translate the same line of the other; align them"
            )
        self.last_pairs = list(zip(source_survey.last, target_survey.last, strict=True))
        self.identity = _sha256([source_survey.sha256, target_survey.sha256])

    def pairs(self) -> Iterator[Pair]:
        return zip(read_lines(self.source), read_lines(self.target), strict=True)


@dataclass(frozen=True)
class _Survey:
    count: int
    sha256: str
    last: deque[str]


def _survey(path: Path) -> _Survey:
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise RequestError(f"{path} is a pipe or a device, and training reads its text more than once: give a file")
    digest, count, last = hashlib.sha256(), 0, deque[str](maxlen=HELD_OUT_LINES)
    for line in read_lines(path):
        count += 1
        digest.update(line.encode() + b"\n")
        last.append(line)
    if not count:
        raise RequestError(f"{path} is empty; expected a sentence a line")
    return _Survey(count, digest.hexdigest(), last)


def _opened(path: Path) -> IO[bytes]:
    return gzip.open(path, "rb") if path.suffix == ".gz" else path.open("rb")  # type: ignore[return-value]


def _sha256(lines: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for line in lines:
        digest.update(line.encode() + b"\n")
    return digest.hexdigest()


def _numbers(source: str, target: str, data_dir: Path | None) -> Corpus:
    if data_dir is not None:
        raise RequestError(f"number words are made, not read: leave out --data-dir; received: {data_dir}")
    train, valid = _number_pairs(source, target)
    identity = _sha256(line for pair in itertools.chain(train, valid) for line in pair)
    return Corpus(
        f"numbers:{source}-{target}",
        source,
        target,
        lambda: iter(train),
        lambda: iter(valid),
        identity,
        NUMBERS_RECIPE,
    )


@functools.cache
def _number_pairs(source: str, target: str) -> tuple[list[Pair], list[Pair]]:
    """Training and held-out pairs: no number, and no spelling, is in both."""
    drawn = random.Random(0).sample(range(NUMBERS_LIMIT), NUMBERS_HELD_OUT + NUMBERS_SAMPLED)
    held_out = drawn[:NUMBERS_HELD_OUT]
    trained = sorted(set(drawn[NUMBERS_HELD_OUT:]).union(range(NUMBERS_ALL_BELOW)).difference(held_out))
    valid = list(zip(_spelled(held_out, source), _spelled(held_out, target), strict=True))
    apart = set(itertools.chain.from_iterable(valid))
    train = zip(_spelled(trained, source), _spelled(trained, target), strict=True)
    # Some languages spell two numbers alike.
    return [pair for pair in train if apart.isdisjoint(pair)], valid


def _spelled(numbers: Iterable[int], language: str) -> Iterator[str]:
    import num2words

    if language not in num2words.CONVERTER_CLASSES:
        known = [code for code in sorted(num2words.CONVERTER_CLASSES) if "_" not in code]
        raise RequestError(
            f"num2words spells no numbers in {language!r}; expected one of {', '.join(known)}, "
            "or a regional form such as pt_BR"
        )
    for number in numbers:
        try:
            words = num2words.num2words(number, lang=language)
        except Exception as error:
            raise RequestError(
                f"num2words fails to spell {number} in {language!r} ({error}): choose another language"
            ) from None
        yield " ".join(words.split())


def _multi30k(source: str, target: str, data_dir: Path | None) -> Corpus:
    languages = (source, target)
    hashes = [_multi30k_sha256(split, language) for split in ("train", "val") for language in languages]
    train = [multi30k_file("train", language, data_dir) for language in languages]
    valid = [multi30k_file("val", language, data_dir) for language in languages]
    if data_dir is None:
        for language in languages:
            multi30k_file("test_2016_flickr", language)  # Fetched with the rest, for `evaluate`.
    return Corpus(
        f"multi30k:{source}-{target}",
        source,
        target,
        lambda: zip(read_lines(train[0]), read_lines(train[1]), strict=True),
        lambda: zip(read_lines(valid[0]), read_lines(valid[1]), strict=True),
        _sha256(hashes),
        MULTI30K_RECIPE,
    )


def _multi30k_sha256(split: str, language: str) -> str:
    name = f"{split}.{language}"
    if name not in MULTI30K_SHA256:
        raise RequestError(f"multi30k has no {name}; expected one of {', '.join(MULTI30K_SHA256)}")
    return MULTI30K_SHA256[name]


def multi30k_file(
    split: str,
    language: str,
    data_dir: str | os.PathLike[str] | None = None,
    base_url: str = MULTI30K_URL,
) -> Path:
    """A checked file of Multi30k (Elliott et al. 2016, arXiv 1605.00459), task 1, a sentence a line.

    Splits: train, val, test_2016_flickr; languages: de, en, fr. Read from `data_dir`, .gz or plain, or else
    from the cache `${XDG_CACHE_HOME:-~/.cache}/keras_transformer/multi30k`, into which it is fetched once.

    Raises:
        RequestError: unknown split or language, or `data_dir` does not hold the file or holds another text.
        JobError: it could not be fetched.
    """
    sha256 = _multi30k_sha256(split, language)
    name = f"{split}.{language}"
    if data_dir is not None:
        return _local_copy(name, Path(data_dir), sha256)
    caches = Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    path = caches / "keras_transformer" / "multi30k" / f"{name}.gz"
    if not path.exists() or _text_sha256(path) != sha256:
        _fetch(f"{base_url}/{name}.gz", path, sha256)
    return path


def _local_copy(name: str, folder: Path, sha256: str) -> Path:
    for path in (folder / f"{name}.gz", folder / name):
        if path.exists():
            if _text_sha256(path) != sha256:
                raise RequestError(f"{path} is not Multi30k's {name} (its SHA-256 differs): copy it again")
            return path
    raise RequestError(f"{folder} holds neither {name}.gz nor {name}: check --data-dir")


def _text_sha256(path: Path) -> str | None:
    """SHA-256 of the decompressed text; None where it is broken or larger than any file of the corpus."""
    digest, size = hashlib.sha256(), 0
    try:
        with _opened(path) as file:
            while block := file.read(2**20):
                size += len(block)
                if size > _MAX_TEXT_BYTES:
                    return None
                digest.update(block)
    except (EOFError, OSError, zlib.error):
        return None
    return digest.hexdigest()


def _fetch(url: str, path: Path, sha256: str) -> None:
    """Fetches `url` to `path`, whole and checked or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with write_whole(path) as aside:
        aside.write_bytes(_download(url))
        if _text_sha256(aside) != sha256:
            raise JobError(f"{url} sent another text than expected (its SHA-256 differs); {_FETCH_MEND}")


def _download(url: str) -> bytes:
    # Imported when first used: they take a while, and `train.py --help` reads the recipes of this module.
    import http.client
    import urllib.request

    body, deadline = bytearray(), time.monotonic() + _DOWNLOAD_SECONDS
    try:
        with urllib.request.urlopen(url, timeout=_SILENCE_SECONDS) as response:
            while block := response.read(2**16):
                body += block
                if len(body) > _MAX_DOWNLOAD_BYTES or time.monotonic() > deadline:
                    raise OSError(f"over {_MAX_DOWNLOAD_BYTES} bytes or {_DOWNLOAD_SECONDS} seconds")
    except (OSError, http.client.HTTPException) as error:
        raise JobError(f"could not fetch {url} ({error}); {_FETCH_MEND}") from None
    return bytes(body)


def _wmt14(source: str, target: str, data_dir: Path | None) -> Corpus:
    other = target if source == "en" else source
    if other not in WMT14_LANGUAGES or "en" not in (source, target):
        raise RequestError(f"wmt14 pairs English (en) with {', '.join(WMT14_LANGUAGES)}; received: {source}-{target}")
    try:
        import tensorflow_datasets as tfds
    except ImportError:
        raise RequestError(
            "wmt14 takes tensorflow-datasets: from the repository's root, pip install -e '.[wmt]'"
        ) from None
    # One configuration serves both directions: its examples name their languages.
    name = f"wmt14_translate/{other}-en"
    try:
        splits, info = tfds.load(
            name, split=["train", "validation"], data_dir=data_dir, shuffle_files=False, with_info=True
        )
    except Exception as error:
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise JobError(f"tensorflow-datasets could not prepare {name} ({reason}); see --data-dir") from error

    def pairs(split: Any) -> Iterator[Pair]:
        for example in tfds.as_numpy(split):
            yield _one_line(example[source]), _one_line(example[target])

    return Corpus(
        f"wmt14:{source}-{target}",
        source,
        target,
        lambda: pairs(splits[0]),
        lambda: pairs(splits[1]),
        _sha256([str(info.full_name), source, target]),
        WMT14_RECIPE,
    )


def _one_line(text: bytes) -> str:
    return " ".join(text.decode("utf-8", "replace").splitlines())


_NAMED: dict[str, Callable[[str, str, Path | None], Corpus]] = {
    "numbers": _numbers,
    "multi30k": _multi30k,
    "wmt14": _wmt14,
}
