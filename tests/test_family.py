"""The family's table: its classes exist, defaults agree, and what is not allowed is refused by name."""

import inspect
import json
import re

import keras
import pytest

from keras_transformer.core.task_registry import TASKS
from keras_transformer.models import Encoder, ImageClassifier, Transformer
from keras_transformer.spec import model_spec, part_registry
from keras_transformer.spec.options import parameters_of
from keras_transformer.training.flags import parser
from keras_transformer.training.request import model_arguments, model_settings
from tests.processes import ROOT
from tests.tiny_corpus import resolved

ROWS = [(slot, name) for slot, parts in model_spec.ALL_SLOTS.items() for name in parts]
OF_ALL_MODELS = [(slot, name) for slot, name in ROWS if slot in part_registry.SLOTS]
EVERY_ROW = pytest.mark.parametrize(("slot", "name"), ROWS)
SMALLEST = {"vocabulary_size": 9}


@EVERY_ROW
def test_every_part_has_the_methods_of_the_first_in_its_slot_and_the_defaults_of_its_class(slot, name):
    row, first = model_spec.ALL_SLOTS[slot][name], next(iter(model_spec.ALL_SLOTS[slot].values()))
    part_class = row.load()
    assert issubclass(part_class, keras.layers.Layer)
    assert {name for name in dir(first.load()) if not name.startswith("_")} <= set(dir(part_class))
    assert row.options.keys() <= parameters_of(part_class), "its options are arguments of its constructor"
    assert row.help and row.source
    assert keras.saving.get_registered_name(part_class) == f"keras_transformer>{part_class.__name__}"
    defaults = {
        key: parameter.default
        for one in reversed(part_class.__mro__)
        if "__init__" in vars(one)
        for key, parameter in inspect.signature(vars(one)["__init__"]).parameters.items()
    }
    assert {key: option.default for key, option in row.options.items()} == {key: defaults[key] for key in row.options}
    for option in row.options.values():
        option.checked("option", option.default)


def test_the_model_has_the_arguments_and_defaults_of_the_table():
    parameters = dict(inspect.signature(Transformer.__init__).parameters)
    assert parameters.pop("self") and parameters.pop("kwargs").kind is inspect.Parameter.VAR_KEYWORD
    assert list(parameters) == list(model_spec.ARGUMENTS)
    assert parameters.pop("vocabulary_size").default is inspect.Parameter.empty
    for name, parameter in parameters.items():
        default = model_spec.ARGUMENTS[name].default
        assert (type(parameter.default), parameter.default) == (type(default), default), name


@pytest.mark.parametrize("model_class", [Encoder, ImageClassifier])
def test_the_other_models_have_defaults_of_the_table(model_class):
    for name, parameter in inspect.signature(model_class.__init__).parameters.items():
        if parameter.default is not inspect.Parameter.empty:
            assert model_spec.KINDS[model_class.kind].arguments[name].default == parameter.default, name


def test_complete_fills_in_every_default_is_data_and_its_own_fixed_point():
    given = {**SMALLEST, "positions": {"name": "learned", "offset": 2}, "attention": "full", "key_dim": 3}
    before = json.dumps(given)
    config = model_spec.complete(given)
    assert json.dumps(given) == before, "the dictionary that was given is unchanged"
    assert list(config) == list(model_spec.ARGUMENTS)
    assert config["positions"] == {"name": "learned", "offset": 2, "separate": False}
    assert config["attention"] == {"name": "full", "num_key_value_heads": None}
    assert config["norm"] == {"name": "layer", "epsilon": 1e-6}
    assert config["decoder_attention"] is None and config["encoder_layers"] is None
    plain = {name: value for name, value in config.items() if not model_spec.ARGUMENTS[name].slot}
    assert plain == {name: model_spec.ARGUMENTS[name].default for name in plain} | SMALLEST | {"key_dim": 3}
    assert model_spec.complete(config) == model_spec.complete(json.loads(json.dumps(config))) == config
    config["positions"]["offset"] = 7
    assert model_spec.complete(given)["positions"]["offset"] == 2


# A value, or the spelling of a kind of positions, and how the message about it begins.
REFUSED: list[tuple[dict | str, str]] = [
    ({5: 3}, f"expected arguments among {', '.join(model_spec.ARGUMENTS)}. Received: '5'"),
    ({"positions": {"name": "learned", "offsets": 2}},
     "`positions`: 'learned' has the options offset, separate. Received: offsets"),
    ({"residual": {"name": "pre_norm", "offset": 2}}, "`residual`: 'pre_norm' has no options. Received: offset"),
    ({"norm": {"name": "layer", "epsilon": 0}}, "`norm:epsilon` must be a number from 1e-12 to 1.0."),
    ({"norm": {"name": ["x"]}}, "`norm` must be a name, or a dictionary with a name. Received: norm={'name': ['x']}"),
    ({"positions": None}, "`positions` must be a name, or a dictionary with a name. Received: positions=None"),
    ({"tied_output": 1}, "`tied_output` must be true or false. Received: tied_output=1"),
    ({"num_heads": True}, "`num_heads` must be a whole number from 1 to 1,024. Received: num_heads=True"),
    ({"vocabulary_size": None}, "`vocabulary_size` must be a whole number from 1 to 4,000,000. Received: "),
    ({"dropout": 1}, "`dropout` must be a number of at least 0 and less than 1. Received: dropout=1"),
    ({"num_control_ids": 9}, "`vocabulary_size` must be larger than `num_control_ids`."),
    ({"num_heads": 5, "hidden_dim": 12}, "`num_heads` must divide `hidden_dim`, or `key_dim` must be given."),
    ({"num_heads": 3, "hidden_dim": 9}, "`hidden_dim` must be even for sinusoidal positions. Received: hidden_dim=9"),
    ({"decoder_attention": {"name": "full", "num_key_value_heads": 3}},
     "`decoder_attention:num_key_value_heads` must divide `num_heads`."),
    ({"num_heads": 3, "hidden_dim": 9, "positions": "rotary"}, "`key_dim` must be even for rotary positions."),
    ({"positions": {"name": "xpos", "scale_base": 100}},
     "`max_source_length` must be at most four times `positions:scale_base`, 400: later keys would"),
    ({"positions": {"name": "xpos", "scale_base": 10}, "max_source_length": 40},
     "`positions:scale_base` must be at least a seventh of the longest translation, 90: later keys would"),
    ({"feed_forward": {"name": "experts", "num_experts": 2, "top_k": 3}},
     "`feed_forward:top_k` must be at most `feed_forward:num_experts`. Received: feed_forward:top_k=3, "),
    ({"positions": {"name": "buckets", "num_buckets": 9}}, "`positions:num_buckets` must be even. Received: "),
    ({"positions": {"name": "buckets", "max_distance": 16}},
     "`positions:max_distance` must be greater than half of `positions:num_buckets`, 16. Received: max_distance=16"),
    ({"positions": "alibi", "decoder_attention": "compressed"},
     "`positions` must be sinusoidal or learned or none with compressed attention. Received: positions='alibi'"),
    ({"stack": "universal", "attention": "compressed"},
     "`stack` must be layers with compressed attention. Received: stack='universal'"),
    *(({"score": "location", side: "local"}, f"`{side}` must be 'full' for the score 'location', which needs the "
       f"positions of all keys. Received: {side}='local'") for side in ("attention", "decoder_attention")),
    ("learned:offset=two",
     "`positions:offset` must be a whole number from 0 to 1,000. Received: positions:offset='two'"),
    ("learned:offset", "`positions:offset` must be a whole number from 0 to 1,000. Received: positions:offset=''"),
    ("learned:offset=1,offset=2", "`positions`: an option may be given once. Received: 'learned:offset=1,offset=2'"),
    ("learned:separate=maybe", "`positions:separate` must be true or false. Received: positions:separate='maybe'"),
    ("learnt:offset=2", f"`positions` must be one of {', '.join(part_registry.SLOTS['positions'])}. Received: "),
]  # fmt: skip


@pytest.mark.parametrize(("given", "message"), REFUSED, ids=[str(given) for given, _ in REFUSED])
def test_what_is_not_allowed_is_refused(given, message):
    with pytest.raises(ValueError, match=f"^{re.escape(message)}"):
        model_spec.parse(given, "positions") if isinstance(given, str) else model_spec.complete({**SMALLEST, **given})


def test_a_long_value_is_cut_in_the_message_and_one_argument_may_allow_values_of_another():
    with pytest.raises(ValueError, match=r"^.{,200}\Z"):
        model_spec.complete({**SMALLEST, "dropout": "x" * 500})
    assert model_spec.complete({**SMALLEST, "num_heads": 5, "hidden_dim": 12, "key_dim": 7})["key_dim"] == 7
    assert model_spec.complete({**SMALLEST, "num_heads": 3, "hidden_dim": 9, "positions": "learned"})["hidden_dim"] == 9


@EVERY_ROW
def test_spelling_and_parsing_are_inverse(slot, name):
    options = model_spec.ALL_SLOTS[slot][name].options
    other_values = {key: not one.default if one.kind is bool else one.most for key, one in options.items()}
    config = {"name": name, **other_values}
    text = model_spec.spelled(config, slot)
    assert model_spec.parse(text, slot) == config and model_spec.row(slot, config) is model_spec.ALL_SLOTS[slot][name]
    assert text.startswith(name) and (":" in text) == bool(options)
    assert model_spec.spelled(name, slot) == name, "defaults are left out"


def test_an_integer_is_allowed_for_a_float_and_none_where_it_is_a_value():
    assert model_spec.parse("layer:epsilon=1", "norm") == model_spec.part("norm", {"name": "layer", "epsilon": 1})
    assert model_spec.spelled({"name": "layer", "epsilon": 1}, "norm") == "layer:epsilon=1.0"
    assert model_spec.parse("full:num_key_value_heads=None", "attention") == model_spec.part("attention", "full")
    assert model_spec.parse("learned:separate=True", "positions")["separate"] is True


def test_build_holds_the_table():
    """`python -c "from keras_transformer.spec import model_spec; print(model_spec.table())"` prints it."""
    assert f"\n\n{model_spec.table()}\n" in (ROOT / "BUILD.md").read_text(encoding="utf-8")


def test_the_readme_names_source_and_test_of_every_variant():
    rows = re.findall(
        r"^\| `(\w+)` \| `(\w+)` \| (.*?) \| \[\w+\]\((tests/.*?\.py)\) \| [\d.]+ % \| [\d.]+ % \|$",
        (ROOT / "README.md").read_text(encoding="utf-8"),
        re.MULTILINE,
    )
    assert [(slot, name, source) for slot, name, source, _ in rows] == [
        (slot, name, part_registry.SLOTS[slot][name].source) for slot, name in OF_ALL_MODELS
    ]
    assert all((ROOT / test).is_file() for *_, test in rows)


def test_every_argument_is_a_setting_of_train():
    """All but three: train.py has another setting for separate vocabularies, its tokenizers have four control ids, and
    an imported model alone may have a bias that does not learn."""
    not_settings = set(model_spec.ARGUMENTS) - set(model_settings(TASKS["translation"].settings))
    assert not_settings == {"source_vocabulary_size", "num_control_ids", "fixed_output_bias"}
    for slot, task in [*((slot, "translation") for slot in part_registry.SLOTS), ("stem", "images")]:
        help = " ".join(parser(task).format_help().split())
        assert f"{', '.join(model_spec.ALL_SLOTS[slot])} (" in help
        assert help.isascii(), "a terminal may show only ASCII"


def test_a_flag_becomes_an_argument():
    flags = ["--positions", "learned:offset=2", "--norm", "layer:epsilon=1e-3", "--decoder-layers", "1"]
    flags += ["--attention-bias", "--no-tied-output", "--embedding-scale", "2", "--residual", "pre_norm"]
    settings = resolved(vars(parser().parse_args(flags)))
    config = model_spec.complete({**model_arguments(settings), **SMALLEST})
    assert (settings.positions, settings.norm) == ("learned:offset=2", "layer:epsilon=0.001")
    assert config == {
        **model_spec.complete({**model_arguments(resolved({})), **SMALLEST}),
        "positions": {"name": "learned", "offset": 2, "separate": False},
        "norm": {"name": "layer", "epsilon": 0.001},
        "decoder_layers": 1,
        "attention_bias": True,
        "tied_output": False,
        "embedding_scale": 2.0,
        "residual": {"name": "pre_norm"},
    }
