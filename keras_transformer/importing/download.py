"""Fetches a model's files from the Hugging Face Hub, by its own package."""

from __future__ import annotations

from pathlib import Path

from keras_transformer.errors import JobError, RequestError

# No others are fetched, so that a model brings no code.
SMALL_FILES = [
    "config.json", "generation_config.json", "tokenizer_config.json", "vocab.json", "target_vocab.json", "source.spm",
    "target.spm", "spiece.model", "added_tokens.json", "preprocessor_config.json",
]  # fmt: skip
WEIGHTS = ["model.safetensors", "pytorch_model.bin"]  # the first that is there is fetched


def download(name: str, folder: Path) -> None:
    """Fetches the files that an import reads.

    The Hub is the one that huggingface_hub knows: the environment's HF_ENDPOINT changes it.

    Args:
        name: such as `Helsinki-NLP/opus-mt-en-de`; `@` and a branch, tag or commit may follow.
        folder: where to write.

    Raises:
        RequestError: huggingface_hub is not installed, or the Hub has no such model or revision.
        JobError: the Hub cannot be reached.
    """
    try:
        from huggingface_hub import HfApi
        from huggingface_hub.errors import HfHubHTTPError, HFValidationError
    except ImportError:
        raise RequestError(
            "--download needs the package huggingface_hub, which is not installed: pip install huggingface_hub"
        ) from None
    repository, _, revision = name.partition("@")
    hub = HfApi()
    try:
        there = set(hub.list_repo_files(repository, revision=revision or None))
        weights = [each for each in WEIGHTS if each in there][:1]
        for file in [each for each in SMALL_FILES if each in there] + weights:
            hub.hf_hub_download(repository, file, revision=revision or None, local_dir=folder)
    except HFValidationError as error:
        raise RequestError(f"--download {name:.80}: {' '.join(str(error).split())[:200]}") from error
    except HfHubHTTPError as error:
        reason = " ".join(str(error).split())[:200]
        if error.response is not None and error.response.status_code in (401, 403, 404):
            raise RequestError(f"--download {name:.80}: the Hub has no such model or revision: {reason}") from error
        raise JobError(f"cannot download {name:.80}: {reason}; try again later") from error
    except Exception as error:  # of the library beneath, which differs from version to version
        raise JobError(f"cannot download {name:.80}: {' '.join(str(error).split())[:200]}; try again later") from error
