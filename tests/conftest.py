"""What keeps many tests in one process fast."""

from __future__ import annotations

import gc
import os

import pytest

# Several processes share the cores: a thread that waits must not keep one busy. Read by OpenMP when
# torch is imported, which no test module has done yet, and by the processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


@pytest.fixture(scope="module", autouse=True)
def short_collections() -> None:
    """Take what is alive out of garbage collection.

    Much of what tests compile stays for good, and after a while going through all of it takes
    longer than most tests. What the tests of this module make is collected as ever.
    """
    gc.collect()
    gc.freeze()
