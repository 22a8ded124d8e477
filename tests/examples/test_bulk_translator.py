"""The callable that translates batches: as the translator does, in any process, with a reason where it cannot.

That it imports neither TensorFlow nor Ray is in `tests/decoding/test_onnx_decoder.py`.
"""

import multiprocessing
import pickle
import re
from types import SimpleNamespace

import numpy as np
import pytest

import keras_transformer
from bulk_translator import BulkTranslator
from keras_transformer.core.errors import RequestError
from tests.examples.conftest import ROOT

LINES = ["two dogs", "", "seven hundred and two", "one dog runs to the sea", "the quick brown dog " * 30]


@pytest.fixture(scope="module")
def translate(small_export) -> BulkTranslator:
    return BulkTranslator(str(small_export))


def batch_of(values) -> dict[str, np.ndarray]:
    made = np.empty(len(values), object)
    made[:] = values
    return {"text": made}


def test_translations_and_scores_are_the_translators(translate, small_export):
    found = translate({"id": np.arange(5), **batch_of(LINES)})
    translator = keras_transformer.load(small_export)
    expected = [best for [best] in translator.stream(LINES, translator.search_options(n_best=1), long="split")]
    assert list(found) == ["id", "text", "translation", "score", "error"] and found["text"].tolist() == LINES
    assert found["translation"].tolist() == [one.text for one in expected]
    np.testing.assert_allclose(found["score"], [one.score for one in expected], atol=1e-5)
    assert found["error"].tolist() == [None] * 5 and found["score"].dtype == np.float64
    assert [len(column) for column in translate(batch_of([])).values()] == [0, 0, 0, 0]
    greedy = BulkTranslator(str(small_export), num_beams=1)(batch_of(LINES))
    assert greedy["translation"].tolist() == translator.translate(LINES, num_beams=1, long="split")


def test_what_is_no_string_does_not_disturb_its_neighbours(translate):
    whole = translate(batch_of(LINES))
    found = translate(batch_of([None, *LINES[:3], 7, float("nan"), b"bytes", *LINES[3:], ["a list"]]))
    wrong = [0, 4, 5, 6, 9]
    assert [place for place, error in enumerate(found["error"]) if error is not None] == wrong
    assert all("expected a string; received" in found["error"][place] for place in wrong)
    assert [found["translation"][place] for place in wrong] == [None] * 5 and np.isnan(found["score"][wrong]).all()
    assert found["translation"][[1, 2, 3, 7, 8]].tolist() == whole["translation"].tolist()


def test_a_row_that_the_translator_refuses_does_not_disturb_its_neighbours(translate, small_export):
    refuses = BulkTranslator(str(small_export))
    translator, options = refuses.load()
    calls = []

    def stream(lines, *args, **options):
        calls.append(lines)
        if "bad" in lines:
            raise ArithmeticError("it cannot")
        return translator.stream(lines, *args, **options)

    refuses._loaded = SimpleNamespace(stream=stream), options
    found = refuses(batch_of(["bad", *LINES, "bad", *LINES * 20]))
    assert [place for place, error in enumerate(found["error"]) if error is not None] == [0, 6]
    assert found["error"][6] == "ArithmeticError: it cannot" and found["translation"][6] is None
    texts = translate(batch_of(LINES))["translation"].tolist()
    assert found["translation"].tolist() == [None, *texts, None, *texts * 20]
    assert len(calls) < 30, "it halves what was refused, and does not take each of 107 lines by itself"


def test_processes_of_pythons_own(translate):
    """As `docs/bulk.md` shows for `multiprocessing`. A pickled translator has no weights."""
    expected = translate(batch_of(LINES))["translation"].tolist()
    assert len(pickle.dumps(translate)) < 2_000
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        batches = pool.map(translate, [batch_of(LINES[:2]), batch_of(LINES[2:])])
    assert [text for batch in batches for text in batch["translation"]] == expected


def test_wrong_requests_are_errors_not_rows(translate, tmp_path):
    assert {path.name for path in translate.files()} >= {"translate.onnx", "tokenizer.model"}
    for one, batch, message in (
        (translate, {"en": np.array(["one"], object)}, "expected a column 'text' in the batch; it has en"),
        (BulkTranslator(str(tmp_path)), batch_of(["one"]), "expected an export with graphs for ONNX Runtime"),
        (BulkTranslator(translate.export, num_beams=0), batch_of(["one"]), "num_beams must be a whole number from 1"),
    ):
        with pytest.raises(RequestError, match=message):
            one(batch)


@pytest.mark.parity
def test_frames_as_spark_and_dask_hand_them(translate, small_export):
    """The function in the docs, with the frames of pandas that Spark's `mapInPandas` hands it."""
    import pandas

    page = (ROOT / "docs" / "bulk.md").read_text(encoding="utf-8")
    [block] = [block for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL) if "def translated(" in block]
    names: dict = {}
    exec(block.replace("exported/mine", str(small_export)), names)
    [one] = names["translated"](iter([pandas.DataFrame({"id": [1, 2, 3], "text": ["two dogs", None, ""]})]))
    assert list(one["id"]) == [1, 2, 3] and list(one.columns) == ["id", "text", "translation", "score", "error"]
    assert [*one["translation"][[0, 2]]] == translate(batch_of(["two dogs", ""]))["translation"].tolist()
    assert one["translation"].isna().tolist() == one["error"].notna().tolist() == [False, True, False]
