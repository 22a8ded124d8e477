"""Contenders work in turns in processes of their own, and ratios are computed from their times."""

import importlib
import multiprocessing
import os
from functools import partial
from types import SimpleNamespace

import pytest

from benchmarks import contest
from keras_transformer.core.errors import JobError, RequestError
from tests.benchmarks.contestants import start_broken, start_sleeper


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(contest, "PAUSE", 0.0)


def test_contenders_work_in_processes_of_their_own_and_errors_there_are_raised_here():
    starts = {name: (start_sleeper, seconds) for name, seconds in (("slow", 0.06), ("quick", 0.02))}
    with contest.contenders(starts, {"QUIET": "yes"}) as started:
        answers = [contender.answer for contender in started.values()]
        seconds = contest.rounds(started, 3)
        assert all(5 < contender.peak_mib() < 10_000 for contender in started.values())
    assert len({os.getpid(), *(process for process, _ in answers)}) == 3
    assert [quiet for _, quiet in answers] == ["yes", "yes"] and os.environ.get("QUIET") is None
    assert {name: len(turns) for name, turns in seconds.items()} == {"slow": 3, "quick": 3}
    assert min(seconds["slow"]) >= 0.06 and min(seconds["quick"]) >= 0.02
    for call, kind, message in (
        (lambda: contest.Contender(start_broken), ValueError, "expected a model; received none"),
        (lambda: contest.in_process(os._exit, 1), JobError, "died"),
        (lambda: contest.in_process(importlib.import_module, "no_such_peer"), RequestError, "no_such_peer.*: install"),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert not multiprocessing.active_children()


def test_each_round_begins_with_another_contender_and_a_ratio_is_taken_within_each():
    """If the machine is slow in one round, it is slow for both sides."""
    order: list[str] = []

    def work(name):
        order.append(name)
        return 1.0

    contest.rounds({name: SimpleNamespace(work=partial(work, name)) for name in "abc"}, 3)
    assert "".join(order) == "abcbcacab"
    ours = [1.0, 10.0, 2.0, 1.0, 4.0]
    assert contest.ratio([2 * seconds for seconds in ours], ours) == (2.0, 2.0, 2.0)
    assert contest.ratio([1.0, 3.0, 5.0], [1.0] * 3) == (3.0, 2.0, 4.0)
