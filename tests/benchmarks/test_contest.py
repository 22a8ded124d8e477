"""Processes take turns, and ratios are computed from their times."""

import importlib
import multiprocessing
import os
from functools import partial
from types import SimpleNamespace

import pytest

from benchmarks import contest
from keras_transformer.errors import JobError, RequestError
from tests.benchmarks.contestants import start_broken, start_sleeper, start_unreadable, start_without


@pytest.fixture(autouse=True)
def no_pause(monkeypatch):
    monkeypatch.setattr(contest, "PAUSE", 0.0)


def test_contenders_work_in_processes_of_their_own():
    starts = {name: (start_sleeper, seconds) for name, seconds in (("slow", 0.06), ("quick", 0.02))}
    with contest.contenders(starts, {"QUIET": "yes"}) as started:
        answers = [contender.answer for contender in started.values()]
        seconds = contest.rounds(started, 3)
        assert all(5 < contender.peak_mib() < 10_000 for contender in started.values())
        started["slow"]._process.kill()
        started["slow"]._process.join()
        with pytest.raises(JobError, match="died"):
            contest.rounds(started, 1)
    assert len({os.getpid(), *(process for process, _ in answers)}) == 3
    assert [quiet for _, quiet in answers] == ["yes", "yes"]
    assert os.environ.get("QUIET") is None
    assert {name: len(turns) for name, turns in seconds.items()} == {"slow": 3, "quick": 3}
    assert min(seconds["slow"]) >= 0.06 and min(seconds["quick"]) >= 0.02


def test_an_error_in_a_process_is_raised_in_the_parent_and_leaves_no_process():
    for call, kind, message in (
        (lambda: contest.Contender(start_broken), ValueError, "expected a model; received none"),
        (lambda: contest.Contender(start_without), RequestError, "no_such_peer.*: install"),
        (lambda: contest.Contender(start_unreadable), ValueError, "no number"),
        (lambda: contest.in_process(os._exit, 1), JobError, "died"),
        (lambda: contest.in_process(importlib.import_module, "no_such_peer"), RequestError, "no_such_peer.*: install"),
    ):
        with pytest.raises(kind, match=message):
            call()
    assert not multiprocessing.active_children()


def test_each_round_begins_with_another_contender():
    order: list[str] = []

    def work(name):
        order.append(name)
        return 1.0

    contest.rounds({name: SimpleNamespace(work=partial(work, name)) for name in "abc"}, 3)
    assert "".join(order) == "abcbcacab"


def test_a_ratio_is_taken_within_each_round():
    """If the machine is slow in one round, it is slow for both sides."""
    ours = [1.0, 10.0, 2.0, 1.0, 4.0]
    assert contest.ratio([2 * seconds for seconds in ours], ours) == (2.0, 2.0, 2.0)
    assert contest.ratio([1.0, 3.0, 5.0], [1.0] * 3) == (3.0, 2.0, 4.0)
    assert str(contest.Ratio(1.234, 1.1, 1.5)) == "1.23 (1.10–1.50)"
