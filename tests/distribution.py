"""Which of xdist's processes runs which tests."""

from __future__ import annotations

from collections import deque

import pytest
from xdist.remote import Producer
from xdist.scheduler import LoadGroupScheduling
from xdist.workermanage import WorkerController

# A process gets one of so many tests that are left of a file, and not more than so many at once.
LEFT = 32
MOST = 16


class FilesTogether(LoadGroupScheduling):
    """Each process runs the tests of one file after another; at the end processes share a file.

    Models and imports that the tests of a file have in common are then made in one process.
    Groups, which no two processes can share, come first. Files follow by their number of tests:
    tests of small files take long, and the many tests of the last files end at about one time.

    A process gets some tests of a large file at once, fewer and fewer towards its end: a message
    for each takes time on both sides.

    For each test, `LoadGroupScheduling` goes over all tests that a process has had, which takes 23
    seconds of a processor for 20,000 tests. Here a test that is done is forgotten.
    """

    def __init__(self, config: pytest.Config, log: Producer | None = None) -> None:
        super().__init__(config, log)
        self.queues: dict[str, deque[str]] = {}
        self.file_of: dict[WorkerController, str] = {}
        self.numbers: dict[str, int] = {}

    def fill_queues(self) -> None:
        """Sort what is left to do by files; a group is a file of its own, with one unit."""
        queues: dict[str, deque[str]] = {}
        for scope in self.workqueue:
            queues.setdefault(scope.partition("::")[0], deque()).append(scope)
        groups = {scope for scope in self.workqueue if "::" not in scope}
        ordered = sorted(queues, key=lambda file: (file not in groups, len(queues[file])))
        self.queues = {file: queues[file] for file in ordered}
        assert self.collection is not None
        self.numbers = {test: number for number, test in enumerate(self.collection)}

    def file_for(self, node: WorkerController) -> str:
        """Return the file that a process goes on with: its own, a new one, or the longest left."""
        own = self.file_of.get(node, "")
        if own not in self.queues:
            taken = set(self.file_of.values())
            new = (file for file in self.queues if file not in taken)
            longest = max(self.queues, key=lambda file: len(self.queues[file]))
            own = self.file_of[node] = next(new, longest)
        return own

    def _assign_work_unit(self, node: WorkerController) -> None:
        if not self.queues:  # the first time, or a process has crashed
            self.fill_queues()
        file = self.file_for(node)
        queue, tests = self.queues[file], []
        for _ in range(min(MOST, 1 + len(queue) // LEFT)):
            scope = queue.popleft()
            unit = self.assigned_work[node][scope] = self.workqueue.pop(scope)
            tests += [self.numbers[test] for test, done in unit.items() if not done]
        if not queue:
            del self.queues[file]
        node.send_runtest_some(tests)

    def mark_test_complete(
        self, node: WorkerController, item_index: int, duration: float = 0
    ) -> None:
        test = self.registered_collections[node][item_index]
        scope = self._split_scope(test)
        unit = self.assigned_work[node][scope]
        del unit[test]
        if not unit:
            del self.assigned_work[node][scope]
        self._reschedule(node)
