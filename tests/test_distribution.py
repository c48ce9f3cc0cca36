"""How tests are given to processes: each once, files together, groups whole."""

from __future__ import annotations

from collections import Counter
from itertools import groupby
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest
from xdist.scheduler import loadscope

from tests.distribution import FilesTogether

TESTS = [
    *(f"test_large.py::test[{i}]" for i in range(100)),
    *(f"test_models.py::test[{i}]@models" for i in range(10)),
    *(f"test_more_models.py::test[{i}@x]@models" for i in range(3)),
    *(f"test_small.py::test[{i}]" for i in range(5)),
    *(f"test_smaller.py::test[{i}@x]" for i in range(4)),
    "test_build.py::test@build",
]
ORDER = ["models", "build", "test_smaller.py", "test_small.py", "test_large.py"]


class Process:
    """A process as the scheduler sees it: it runs a test once it knows the next one."""

    def __init__(self) -> None:
        self.queue: list[int] = []
        self.ran: list[str] = []
        self.shutting_down = False
        self.gateway = SimpleNamespace(id=id(self))

    def send_runtest_some(self, indices: list[int]) -> None:
        self.queue += indices

    def shutdown(self) -> None:
        self.shutting_down = True

    def run_one(self, scheduler: Any) -> None:
        if len(self.queue) > 1 or (self.queue and self.shutting_down):
            self.ran.append(TESTS[self.queue[0]])
            scheduler.mark_test_complete(self, self.queue.pop(0))


def scheduler_of(processes: list[Process], monkeypatch: pytest.MonkeyPatch) -> Any:
    """A scheduler that knows the tests, and has given each process some."""
    monkeypatch.setattr(loadscope, "parse_tx_spec_config", lambda config: processes)
    config: Any = SimpleNamespace(option=SimpleNamespace(loadscopereorder=True))
    scheduler: Any = FilesTogether(config, Mock())
    for process in processes:
        scheduler.add_node(process)
    for process in processes:
        scheduler.add_node_collection(process, TESTS)
    scheduler.schedule()
    return scheduler


@pytest.mark.parametrize("speeds", [(1,), (1, 1), (1, 3), (4, 1, 2)], ids=str)
def test_each_test_runs_once(speeds: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    """Whole groups come first, small files before large ones; all processes share the largest."""
    processes = [Process() for _ in speeds]
    scheduler = scheduler_of(processes, monkeypatch)
    while scheduler.has_pending:
        for process, speed in zip(processes, speeds, strict=True):
            for _ in range(speed):
                process.run_one(scheduler)
    assert scheduler.tests_finished
    assert Counter(test for process in processes for test in process.ran) == Counter(TESTS)
    places = [
        [scheduler._split_scope(test).partition("::")[0] for test in process.ran]
        for process in processes
    ]
    for found in places:
        names = [name for name, _ in groupby(found)]
        assert names == sorted(set(names), key=ORDER.index)  # each is gone through once
        assert names[-1] == "test_large.py"
    for group, count in (("models", 13), ("build", 1)):
        assert sorted(found.count(group) for found in places)[-1] == count


def test_a_process_that_crashes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The scheduler tells which test it was in; the other process runs all that is left."""
    processes = [Process(), Process()]
    scheduler = scheduler_of(processes, monkeypatch)
    for _ in range(30):
        for process in processes:
            process.run_one(scheduler)
    crashed, other = processes
    assert scheduler.remove_node(crashed) == TESTS[crashed.queue[0]]
    while scheduler.has_pending:
        other.run_one(scheduler)
    assert {*crashed.ran, *other.ran} == {*TESTS}
