"""CTranslate2: a translator of pieces, for `ctranslate2.Translator`; and what reproduces the run's search with it."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from keras_transformer.errors import RequestError
from keras_transformer.files import write_folder_whole
from keras_transformer.lengths import EXTRA_LENGTH, longest
from keras_transformer.text.tokenizer import END, UNKNOWN, Tokenizer

from .ctranslate2_spec import require_held, spec_of
from .signatures import Decoding, TrainedRun, import_optional, require_precision, stem


def export_ctranslate2(
    run: TrainedRun, folder: str | os.PathLike[str], decoding: Decoding | None = None, precision: str = "float32"
) -> list[Path]:
    """Writes a folder that `ctranslate2.Translator` loads, with the vocabularies of SentencePiece in it.

    CTranslate2 takes the search when it runs. `metadata.json` has under "search" what reproduces the run's: see
    `search_of`.

    Args:
        run: what to export; `open_run` reads it from a run folder.
        folder: where to write; an older model there is replaced once the new one is whole.
        decoding: the options of the search.
        precision: "float32"; "float16" for GPUs; "int8" for weights in int8, with a scale for each row.

    Returns:
        The one path written, `ctranslate2`, `ctranslate2-float16` or `ctranslate2-int8`.

    Raises:
        RequestError: the precision does not exist, CTranslate2 has no such part as the model's, it is not installed, or
            the path holds something else.
    """
    require_precision("ctranslate2", precision)
    path = Path(folder) / stem("ctranslate2", precision)
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists() and not (path / "model.bin").is_file():
        raise RequestError(f"expected no file at {path}, or a model to replace; received something else: remove it")
    decoding = decoding or run.decoding()
    with write_folder_whole(path) as aside:
        write_model(run, aside, precision)
        run.pipeline.save_vocabularies(aside)
        metadata = {**run.metadata(decoding, precision), "search": search_of(run, decoding)}
        text = json.dumps(metadata, indent=2, ensure_ascii=False)
        (aside / "metadata.json").write_text(text + "\n", encoding="utf-8")
    return [path]


def write_model(run: TrainedRun, folder: Path, precision: str) -> None:
    """Writes the files of CTranslate2 alone into a folder: weights, configuration and lists of pieces.

    Raises:
        RequestError: CTranslate2 has no such part as the model's, or is not installed.
    """
    require_held(run.model, precision)
    import_optional("ctranslate2")
    spec = spec_of(run.model, *map(pieces_of, run.tokenizers))
    spec.optimize(None if precision == "float32" else precision)  # matrices that are the same are written once
    spec.save(str(folder))


def search_of(run: TrainedRun, decoding: Decoding) -> dict[str, Any]:
    """What reproduces the run's search with `translate_batch`.

    CTranslate2 divides log P by |y|^α, and the run by ((5 + |y|) / 6)^α. So CTranslate2 searches without a length
    penalty, gives all of its hypotheses, and the caller ranks them.

    Returns:
        "options": arguments of `translate_batch`. "max_source_length": the most pieces of a source. "extra_length" and
        "max_length": a translation has at most so many pieces more than its source, and at most so many, with its end.
        "length_penalty": the run's α.
    """
    model, (_, target) = run.model, run.tokenizers
    unwanted = [id for id in range(model.num_control_ids) if id not in (UNKNOWN, END)]
    options = {
        "beam_size": decoding.num_beams,
        "num_hypotheses": decoding.num_beams,
        "length_penalty": 0,
        "min_decoding_length": 0,
        "max_input_length": model.max_source_length + 1,  # it counts the end
        "disable_unk": True,
        "suppress_sequences": [[piece] for piece in target.pieces(unwanted)],
        "return_end_token": True,
        "return_scores": True,
    }
    most = longest(model.max_source_length)
    return {
        "options": options,
        "max_source_length": model.max_source_length,
        "extra_length": EXTRA_LENGTH,
        "max_length": most if decoding.max_length is None else min(decoding.max_length, most),
        "length_penalty": decoding.length_penalty,
    }


def pieces_of(tokenizer: Tokenizer) -> list[str]:
    """All pieces, in the order of their ids."""
    return tokenizer.pieces(range(tokenizer.vocabulary_size))
