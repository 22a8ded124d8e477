"""`load` of a run: graphs that the run keeps translate, and what needs other graphs or Keras gets them when it asks."""

import shutil
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from keras_transformer.core.errors import RequestError
from keras_transformer.runs.export_folder import NEAR_TIE
from keras_transformer.tasks.translation.loading import load
from keras_transformer.tasks.translation.pipeline import Translator
from tests.processes import run_python
from tests.tiny_run import OWN

pytestmark = pytest.mark.usefixtures("eager")
LINES = ["to the sea", "seven hundred and two", "", "two dogs"]
PROGRAM = """
import sys
import keras_transformer
translator = keras_transformer.load(sys.argv[1])
print(repr(translator.translate(sys.argv[2:])), {"keras", "tensorflow", "onnx"} & set(sys.modules))
"""


@pytest.fixture
def run(kept_run) -> str:
    return str(kept_run)


def graphs_of(run: str) -> set[str]:
    return {path.name for path in Path(run).glob("cache/onnx-*/*.onnx")}


def agree(one: Translator, other: Translator, **options: Any) -> bool:
    """Whether two translate the same, or as well."""
    options = {**OWN, **options}
    pairs = zip(one.n_best(LINES, **options), other.n_best(LINES, **options), strict=True)
    return all(found.text == best.text or abs(found.score - best.score) < NEAR_TIE for [found], [best] in pairs)


def test_a_run_translates_as_with_keras_and_imports_none(run, translator):
    by_keras = load(run, engine="keras")
    assert agree(load(run), by_keras) and agree(load(run, engine="onnx"), by_keras)
    expected = f"{translator.translate(LINES, **OWN)!r} set()\n"
    assert run_python("-c", PROGRAM, run, *LINES).stdout == expected


def test_what_the_graph_lacks_is_made_when_it_is_asked_for(run, translator, keras_is_used):
    found = load(run)
    assert agree(found, translator)
    own = graphs_of(run)
    assert len(own) == 1 and not keras_is_used.called
    sampled: dict[str, Any] = {"sampling": True, "seed": 3, "max_length": 6, "n_best": 2}
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: found.n_best(LINES, **sampled), range(4)))
    expected = translator.n_best(LINES, **sampled)
    for one in drawn:
        assert [[each.text for each in texts] for texts in one] == [[each.text for each in texts] for texts in expected]
    assert graphs_of(run) == {*own, "encoder.onnx", "step.onnx"}
    assert agree(found, translator, num_beams=1) and not keras_is_used.called
    assert found.score(["two dogs"], ["sea"])[0].log_prob == pytest.approx(
        translator.score(["two dogs"], ["sea"])[0].log_prob, abs=1e-3
    )


def test_graphs_are_made_with_any_number_of_threads_after_keras_has_computed(run):
    for num_threads in (2, 3):
        found = load(run, precision="float16", num_threads=num_threads)
        assert found.translate(LINES) and graphs_of(run) != set()
        shutil.rmtree(Path(run) / "cache")


def test_keras_is_used_once_for_attention_and_the_model_and_not_for_alignments(run, translator, keras_is_used):
    found = load(run)
    found.translate(LINES[:1])
    assert not keras_is_used.called
    aligned = [one.n_best(LINES[-1:], num_beams=1, max_length=5, alignments=True) for one in (found, translator)]
    assert aligned[0][0][0].alignment == aligned[1][0][0].alignment != ()
    assert not keras_is_used.called
    assert found.model is translator.model and [*found.attention("two dogs")] == [*translator.attention("two dogs")]
    assert keras_is_used.call_count == 1


def test_a_wrong_engine_is_refused(run):
    """That an export has no Keras model, and Keras one precision, is in `commands/test_engines.py`."""
    with pytest.raises(RequestError, match="engine must be one of auto, onnx, keras; received: 'tensorflow'"):
        load(run, engine="tensorflow")
    with pytest.raises(RequestError, match="Keras takes the threads of TensorFlow; received 2"):
        load(run, engine="keras", num_threads=2)
