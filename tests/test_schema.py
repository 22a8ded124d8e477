"""What a schema allows, and what is said of everything else: in one short line, however large or deep the value is."""

import json

import pytest

from keras_transformer.core import schema
from keras_transformer.core.schema import having, line, list_of, number, object_of, one_of, or_null, whole

HUGE = [["x" * 10**6] * 10**3] * 10**6  # 10^15 characters, if it were spelled out
SOME = object_of({"size": whole(1, 9)}, {"names": list_of(line(3, 1), 1, 2)})
REFUSED: list[tuple[schema.Allowed, object, str]] = [
    (whole(1), True, "expected a whole number from 1; received True"),
    (whole(1, 9), 10**400, "expected a whole number from 1 to 9; received 1000000000000"),
    (int, 2.0, "expected a whole number; received 2.0"),
    (number(0, 1), "1", "expected a number from 0 to 1; received '1'"),
    (float, 10**400, "expected a number; received 1000"),
    (float, float("nan"), "expected a number; received nan"),
    (number(0, below=1), 1, "expected a number of at least 0 and less than 1; received 1"),
    (bool, 1, "expected true or false; received 1"),
    (one_of(("a", "b")), ["a"], "expected one of a, b; received ['a']"),
    (or_null(str), 1, "expected a text; received 1"),
    (line(9), "\x1b[31m", "expected at most 9 characters in a line; received '\\x1b[31m'"),
    (line(9), "\ud800", "expected at most 9 characters in a line; received '\\ud800'"),
    (SOME, HUGE, "expected an object with the keys size; received [["),
    (SOME, {"size": HUGE}, "expected a whole number from 1 to 9 under 'size'; received [["),
    (SOME, {"size": 1, "names": ["a", ""]}, "expected 1 to 3 characters in a line under 'names[1]'; received ''"),
    (SOME, {"size": 1, "names": []}, "expected a list of 1 to 2 under 'names'; received []"),
    (SOME, {"names": ["a"]}, "expected an object with the keys size; received {'names': ['a']}"),
    (or_null(list_of(int)), [1, None], "expected a whole number under '[1]'; received None"),
    (SOME, {"size": 1, "more": 2}, "expected only known keys; received 'more'"),
    (having(a=having(b=bool)), {"a": {"b": 1}}, "expected true or false under 'a.b'; received 1"),
    (object_of({}, others=bool, names=object), {"\x1b" * 999: 1}, "expected true or false under '\\u001b\\u001b"),
]


@pytest.mark.parametrize(("allowed", "value", "message"), REFUSED)
def test_what_is_not_allowed_is_told_in_a_short_line(allowed, value, message):
    with pytest.raises(schema.Mismatch) as refused:
        schema.of_type(allowed).checked(value)
    told = str(refused.value)
    assert told.startswith(message) and len(told) < 2_000 and "\n" not in told and "\x1b" not in told


def test_what_is_allowed_is_given_back():
    for allowed, value in (
        (whole(-1), -1), (number(0), 1), (or_null(bool), None), (line(9), "\u200cé 文\u3000"), (str, "\n\0"),
        (SOME, {"size": 9, "names": ["a"]}), (having(a=object), {"a": HUGE, "\n": 1}),
    ):  # fmt: skip
        assert schema.of_type(allowed).checked(value) is value


def test_json_that_is_no_json_too_deep_or_too_large_is_one_error(tmp_path):
    deep = "[" * schema.MAX_DEPTH + "]" * schema.MAX_DEPTH
    assert json.dumps(schema.parse_json(deep, object)) == deep
    assert schema.parse_json("NaN", object, has_constants=True) != 0
    for content in ("", "{", b"\xff", "NaN", "-Infinity", f"[{deep}]", "[" * 100_000, "9" * 5_000, '{"a":' * 900):
        with pytest.raises(ValueError, match="."):
            schema.parse_json(content, object)
    path = tmp_path / "file"
    path.write_text("[1]")
    assert schema.read_json(path, list_of(int), 3) == [1]
    with pytest.raises(schema.Mismatch, match="larger than 2 bytes"):
        schema.read_json(path, object, 2)


def test_a_printable_text_has_no_character_that_acts_on_a_terminal():
    assert schema.printable("a\x1b[31m\n\x9b\u202e é文") == r"a\u001b[31m\u000a\u009b\u202e é文"
