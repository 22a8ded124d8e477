"""`make mutants` draws the same places for the same seed, changes more than types, and knows which lines run."""

import ast
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.parity  # cosmic-ray and coverage are not in the lock


@pytest.fixture(scope="module")
def mutation() -> Any:
    return pytest.importorskip("tests.mutation")


CODE = '''"""A module."""

LIMIT = 2 + 1


def larger(one: int | None, other: int) -> int | None:
    if one is None or other > LIMIT:
        return None

    return max(
        one,
        2 * other,
    )
'''


@pytest.mark.parametrize(("line", "expected"), [(3, None), (6, None), (7, {7}), (8, {8}), (12, {10, 11, 12, 13})])
def test_the_lines_of_a_statement_run_together_and_others_when_the_module_is_imported(mutation, line, expected):
    assert mutation.lines_run(ast.parse(CODE), line) == expected


def test_a_change_of_types_alone_or_to_what_is_no_python_is_none(mutation):
    assert mutation.is_changed(CODE, CODE.replace("2 * other", "2 + other"))
    assert not mutation.is_changed(CODE, CODE.replace("int | None", "int & None"))
    assert not mutation.is_changed(CODE, CODE.replace("2 * other", "* / other"))
    assert not mutation.is_changed(CODE, None)


def test_a_seed_draws_the_same_mutants_and_asks_for_the_tests_of_their_lines(mutation, tmp_path):
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "code.py").write_text(CODE)
    asked = []

    class Map:
        def tests(self, file: str, lines: set[int] | None) -> tuple[str, ...]:
            asked.append((file, lines))
            return ("a test",)

    one, same, other = (list(islice(mutation.drawn(Path(tmp_path), Map(), seed), 4)) for seed in (1, 1, 2))
    assert one == same != other
    assert all(mutant.difference(tmp_path) and mutant.tests == ("a test",) for mutant in one)
    assert {lines if lines is None else min(lines) for _, lines in asked} <= {None, 7, 10}
