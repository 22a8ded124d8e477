"""Parts of your own: given as a class, registered, imported by commands, named by runs, and exported."""

import os
import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import keras_transformer
from keras_transformer.commands.graph_cache import content_of
from keras_transformer.core.errors import RequestError
from keras_transformer.decoding import processes
from keras_transformer.decoding.processes import run_in_subprocess
from keras_transformer.models import Transformer
from keras_transformer.runs.run_folder import RunFolder, read_config, resume_command
from keras_transformer.spec import custom_parts, options, part_registry
from tests.answers import printed, refused
from tests.models.variants import SIZES, make_inputs

PAGE = (Path(__file__).resolve().parent.parent / "docs" / "own_parts.md").read_text(encoding="utf-8")
MODULE = next(block for block in re.findall(r"```python\n(.*?)```", PAGE, re.DOTALL) if "class Maxout" in block)
COMMANDS = next(block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL))


@pytest.fixture
def place(tmp_path, monkeypatch):
    """The folder with the page's module; what is registered and imported is forgotten afterwards."""
    (tmp_path / "my_parts.py").write_text(MODULE, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setenv(custom_parts.VARIABLE, "")  # which restores the variable afterwards; `delenv` alone would not
    monkeypatch.setitem(part_registry.SLOTS, "feed_forward", {**part_registry.SLOTS["feed_forward"]})
    yield tmp_path
    sys.modules.pop("my_parts", None)


@pytest.fixture
def maxout(place, monkeypatch):
    """The class of the page's module, which is registered."""
    monkeypatch.syspath_prepend(str(place))
    import my_parts

    return my_parts.Maxout


def saved(folder, tokenizer, **arguments):
    """A run of a small model, written from Python."""
    model = Transformer(**{**SIZES, "vocabulary_size": tokenizer.vocabulary_size, **arguments})
    keras_transformer.Translator(model, tokenizer).save(folder)
    return model


def test_a_class_or_its_name_makes_the_same_model(maxout):
    inputs = make_inputs()
    by_name, by_class = (Transformer(**SIZES, feed_forward=one) for one in ("maxout", maxout))
    assert by_name.arguments() == by_class.arguments()
    assert by_name.arguments()["feed_forward"] == {"name": "maxout", "pieces": 2}
    by_class.set_weights(by_name.get_weights())
    np.testing.assert_array_equal(by_class(inputs), by_name(inputs))
    with pytest.raises(ValueError, match="`feed_forward:pieces` must be a whole number from 1 to 16. Received"):
        Transformer(**SIZES, feed_forward={"name": "maxout", "pieces": 17})


def test_a_class_that_is_defined_anew_takes_the_place_of_the_old_one_and_may_be_registered_later(place, monkeypatch):
    def defined(factor):
        class Scaled(keras_transformer.layers.FeedForward):
            """A multiple of the network."""

            def call(self, x):
                return factor * super().call(x)

        return Scaled

    inputs = make_inputs()
    once, twice = (Transformer(**SIZES, feed_forward=defined(factor)) for factor in (1, 2))
    twice.set_weights(once.get_weights())
    assert np.abs(np.array(once(inputs)) - np.array(twice(inputs))).max() > 1e-3
    scaled = defined(3)
    keras_transformer.register_part("feed_forward", "scaled", scaled, module="somewhere")
    model = Transformer(**SIZES, feed_forward=scaled)
    assert model.arguments()["feed_forward"] == {"name": "scaled"}
    assert custom_parts.modules_of({"kind": model.kind, **model.arguments()}) == ["somewhere"]


def test_a_class_that_is_not_registered_trains_and_cannot_be_saved(place, tokenizer):
    class Doubled(keras_transformer.layers.FeedForward):
        """Twice the network."""

        def call(self, x):
            return 2 * super().call(x)

    model = Transformer(**SIZES, feed_forward=Doubled)
    assert model.arguments()["feed_forward"] == {"name": "Doubled"}
    assert np.isfinite(model(make_inputs())).all()
    with pytest.raises(RequestError, match="Doubled has none: define it in a module, and call"):
        saved(place / "run", tokenizer, feed_forward=Doubled)
    assert not (place / "run").exists()


def test_what_cannot_be_registered_is_refused(maxout):
    wrong: dict[str, tuple[Any, ...]] = {
        "`slot` must be one of stem": ("feet", "maxout", maxout),
        "`name` must be of letters": ("feed_forward", "a:b", maxout),
        "`name` must be a new one": ("feed_forward", "standard", maxout),
        "`part_class` must be a class of layers": ("feed_forward", "other", dict),
        "`options` must be arguments of Maxout": ("feed_forward", "maxout", maxout, {"depth": options.Option(1, "")}),
        "must be a whole number from 3": ("feed_forward", "maxout", maxout, {"pieces": options.Option(2, "", least=3)}),
    }
    first = next(iter(part_registry.SLOTS["feed_forward"]))
    for message, (slot, name, *rest) in wrong.items():
        with pytest.raises(ValueError, match=message):
            keras_transformer.register_part(slot, first if name == "standard" else name, *rest)


def test_a_run_names_its_module_and_without_it_a_command_says_so(maxout, place, tokenizer):
    saved(place / "run", tokenizer, feed_forward="maxout")
    assert read_config(place / "run").modules == ["my_parts"]
    expected = keras_transformer.load(place / "run", engine="keras").translate(["a dog"], num_beams=1)
    del part_registry.SLOTS["feed_forward"]["maxout"], sys.modules["my_parts"]
    error = refused("info", place / "run")
    assert "has parts of modules that are not imported: import them before, or give --import my_parts to" in error
    assert "damaged" not in error and "my_parts" not in sys.modules
    words = ["translate", place / "run", "--engine", "keras", "--beams", 1, "--import=my_parts"]
    assert printed(*words, stdin="a dog\n") == f"{expected[0]}\n"
    assert resume_command(RunFolder(place / "run")).endswith(f"{place / 'run'} --import my_parts")
    del part_registry.SLOTS["feed_forward"]["maxout"]
    with pytest.raises(RequestError, match="has parts that my_parts no longer registers as the run has them: `feed_fo"):
        read_config(place / "run")


def test_kept_graphs_are_of_the_source_of_the_modules(maxout, place, tokenizer):
    saved(place / "run", tokenizer, feed_forward="maxout")
    before = content_of(RunFolder(place / "run"))
    assert content_of(RunFolder(place / "run")) == before
    (place / "my_parts.py").write_text(MODULE.replace("ops.max(", "ops.min("), encoding="utf-8")
    assert content_of(RunFolder(place / "run")) != before


def is_known() -> bool:
    """Whether the page's part is registered."""
    return "maxout" in part_registry.SLOTS["feed_forward"]


def test_processes_of_a_command_import_the_modules_too(place, monkeypatch):
    assert not is_known()
    monkeypatch.setenv(custom_parts.VARIABLE, "my_parts")
    assert run_in_subprocess(is_known)
    monkeypatch.setattr(processes, "_decoder", None)
    opened = processes._answer(lambda: SimpleNamespace(knew=is_known()), lambda decoder: decoder.knew)  # type: ignore
    assert opened and is_known()


def test_keras_is_loaded_quietly_first_and_what_is_installed_comes_before_the_folder(place, monkeypatch):
    (place / "colorsys.py").write_text("raise SystemExit")  # Python's own module has this name
    monkeypatch.delitem(sys.modules, "colorsys", raising=False)
    order: list[str] = []
    monkeypatch.setattr(custom_parts, "load_tensorflow", lambda: order.append(f"quiet before {is_known()}"))
    assert custom_parts.with_imports(["info", "--import", "colorsys", "--import=my_parts", "run"]) == ["info", "run"]
    assert order == ["quiet before False"] and is_known()
    assert custom_parts.with_imports(["info"]) == ["info"] and len(order) == 1


def test_a_module_that_cannot_be_imported_is_one_line(place):
    (place / "broken.py").write_text("1 / 0\n")
    for name, reason in (("nowhere", "No module named 'nowhere'"), ("broken", "division by zero")):
        error = refused("info", "run", "--import", name)
        assert f"--import {name}: the module cannot be imported" in error and reason in error and error.count("\n") == 1


@pytest.mark.long
def test_the_commands_of_the_page_train_translate_and_export_in_every_format(place):
    environment = {"PYTHONPATH": str(Path(keras_transformer.__file__).parents[1]), "TF_CPP_MIN_LOG_LEVEL": "3"}
    program = f"{sys.executable} -m keras_transformer"
    for command in COMMANDS.strip().splitlines():
        words = command.replace("keras-transformer", program).replace("--out runs/", "--threads 2 --out runs/")
        done = subprocess.run(words, shell=True, env={**os.environ, **environment}, capture_output=True, text=True)
        # Twenty steps teach nothing, so the certificate's answers may be near ties; what is written counts.
        assert done.returncode == 0 or "not every artefact" in done.stderr, done.stderr
    names = {path.name for path in (place / "exported" / "maxout").rglob("*") if path.is_file()}
    assert {"saved_model.pb", "translate.onnx", "translate_text.onnx", "translate.tflite"} <= names
