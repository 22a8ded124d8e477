"""The files of Multi30k, task 1: fetched once, and checked."""

from __future__ import annotations

import os
from pathlib import Path

from keras_transformer.errors import RequestError
from keras_transformer.files import user_cache
from keras_transformer.text.fetching import fetch, text_sha256

URL = "https://raw.githubusercontent.com/multi30k/dataset/2eed49f9b40b6d30566775c99823b23f2457bd55/data/task1/raw"
# SHA-256 of the text, not of its compressed form: a copy compressed again, or not at all, passes too.
SHA256 = {
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


def multi30k_file(
    split: str,
    language: str,
    data_dir: str | os.PathLike[str] | None = None,
    base_url: str = URL,
) -> Path:
    """The path of a file of Multi30k (Elliott et al. 2016, arXiv 1605.00459), a sentence a line; its text is checked.

    Without `data_dir` the file is in `${XDG_CACHE_HOME:-~/.cache}/keras_transformer/multi30k` and is fetched if it is
    not there yet.

    Args:
        split: train, val or test_2016_flickr.
        language: de, en or fr.
        data_dir: a folder that holds the file, .gz or plain.
        base_url: where to fetch from.

    Raises:
        RequestError: unknown split or language, or `data_dir` does not hold the file or holds another text.
        JobError: it could not be fetched.
    """
    sha256 = sha256_of_file(split, language)
    name = f"{split}.{language}"
    if data_dir is not None:
        return _local_copy(name, Path(data_dir), sha256)
    path = user_cache() / "multi30k" / f"{name}.gz"
    if not path.exists() or text_sha256(path) != sha256:
        fetch(f"{base_url}/{name}.gz", path, sha256)
    return path


def sha256_of_file(split: str, language: str) -> str:
    """The SHA-256 of a file's text.

    Raises:
        RequestError: the corpus has no such file.
    """
    name = f"{split}.{language}"
    if name not in SHA256:
        raise RequestError(f"multi30k has no {name}; expected one of {', '.join(SHA256)}")
    return SHA256[name]


def _local_copy(name: str, folder: Path, sha256: str) -> Path:
    """The file in a folder of the user's, .gz or plain, once its text is checked."""
    for path in (folder / f"{name}.gz", folder / name):
        if path.exists():
            if text_sha256(path) != sha256:
                raise RequestError(f"{path} is not Multi30k's {name} (its SHA-256 differs): copy it again")
            return path
    raise RequestError(f"{folder} holds neither {name}.gz nor {name}: check --data-dir")
