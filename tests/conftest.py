"""Many tests in one process: fast, and apart from each other."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable

import pytest

# Several processes share the cores: a thread that waits must not keep one busy. Read by OpenMP when
# torch is imported, which no test module has done yet, and by the processes that tests start.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")


def pytest_configure() -> None:
    """Keep functions alive that PyTorch's scripting knows by `id`.

    It notes the id of each operator's function and never forgets one, even if the operator is gone
    or defined anew, as `opcheck` does. An attribute of a module that gets such an id later, a list
    say, is then taken for the operator, and the module cannot be scripted.
    """
    from torch.jit import _builtins

    alive: list[object] = []
    note: Callable[[object, str], None] = _builtins._register_builtin

    def register(function: object, operator: str) -> None:
        alive.append(function)
        note(function, operator)

    _builtins._register_builtin = register


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Give what a test module draws while it is imported the same numbers in every run.

    It is imported right behind this, whichever other modules are collected.
    """
    import torch

    if isinstance(collector, pytest.Module):
        torch.manual_seed(0)


@pytest.fixture(autouse=True)
def same_numbers() -> None:
    """Give each test the same numbers in every run, alone and among others."""
    import torch

    torch.manual_seed(0)


@pytest.fixture(scope="module", autouse=True)
def short_collections() -> None:
    """Take what is alive out of garbage collection.

    Much of what tests compile stays for good, and after a while going through all of it takes
    longer than most tests. Objects that the tests of this module make are collected as ever.
    """
    gc.collect()
    gc.freeze()
