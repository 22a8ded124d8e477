"""--download takes the files that an import reads from the Hub, by huggingface_hub, and nothing else."""

import shutil
import sys
from types import SimpleNamespace
from unittest.mock import create_autospec

import pytest

from keras_transformer.__main__ import main
from tests.importing.theirs import write

NAME = "someone/opus-mt-en-de"


@pytest.mark.parity
def test_a_model_is_fetched_and_imported(tmp_path, monkeypatch):
    """The functions that ask the Hub answer for one model; they are called as their signatures say."""
    from huggingface_hub import HfApi

    theirs, fetched = write("marian", tmp_path / "theirs"), []
    (theirs / "modeling_marian.py").write_text("raise SystemExit('this must not run')")

    def fetch(hub, repository, file, revision, local_dir):
        fetched.append(f"{repository}@{revision}/{file}")
        shutil.copy(theirs / file, local_dir)

    names = [path.name for path in theirs.iterdir()]
    monkeypatch.setattr(HfApi, "list_repo_files", create_autospec(HfApi.list_repo_files, return_value=names))
    monkeypatch.setattr(HfApi, "hf_hub_download", create_autospec(HfApi.hf_hub_download, side_effect=fetch))
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert main(["import", "--download", f"{NAME}@v1", str(tmp_path / "run")]) == 0
    assert (tmp_path / "run" / "model.keras").is_file() and f"{NAME}@v1/source.spm" in fetched
    assert not any("modeling_marian" in name for name in fetched), "code is not fetched"
    assert {path.name for path in tmp_path.iterdir()} == {"run", "theirs"}, "what was fetched is removed"


@pytest.mark.parity
def test_what_the_hub_lacks_and_one_that_does_not_answer(tmp_path, monkeypatch, capsys):
    from huggingface_hub import HfApi, constants
    from huggingface_hub.errors import HfHubHTTPError

    def refuses(name, status, message):
        assert main(["import", "--download", name, str(tmp_path / "run")]) == status
        assert f"error: {message}" in capsys.readouterr().err
        assert not (tmp_path / "run").exists()

    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    refuses("a/b/c", 2, "--download a/b/c: ")
    refuses(NAME, 1, f"cannot download {NAME}: ")
    lacking = HfHubHTTPError("404", response=SimpleNamespace(headers={}, request=None, status_code=404))  # type: ignore[arg-type]
    monkeypatch.setattr(HfApi, "list_repo_files", create_autospec(HfApi.list_repo_files, side_effect=lacking))
    refuses(f"{NAME}@v2", 2, f"--download {NAME}@v2: the Hub has no such model or revision")


def test_without_the_package(tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    assert main(["import", "--download", NAME, str(tmp_path / "run")]) == 2
    assert "pip install huggingface_hub" in capsys.readouterr().err
