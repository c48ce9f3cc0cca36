"""Many tests in one process: fast, and apart from each other."""

from __future__ import annotations

import gc
import logging
import os
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from xdist.remote import Producer

from tests.distribution import FilesTogether
from tests.folders import TESTS
from tests.onnx_translations import translations_once as made_once
from tests.scripting import script_faster

# Several processes share the cores: a thread that waits must not keep one busy. OpenMP reads this
# when torch is imported, in each of xdist's processes and in those that tests start. In a run of
# one process pytest has imported torch for its settings, so make sets it ahead.
os.environ.setdefault("OMP_WAIT_POLICY", "passive")
# The speed of packages of AOTInductor is not tested, and most of their time goes into compiling.
os.environ.setdefault("AOT_INDUCTOR_COMPILE_WRAPPER_OPT_LEVEL", "O0")
os.environ.setdefault("AOT_INDUCTOR_ENABLE_LINE_TABLES", "0")
# Seconds from which on a set-up is shown: `--durations-min` of make.
SHOWN = 1.0
# Tests of kernels, which share their work among threads.
THREADED = (TESTS / "x86", TESTS / "ops")


def pytest_configure(config: pytest.Config) -> None:
    """Give processes that share the cores one thread each, and repair what PyTorch does often."""
    if (config.getoption("numprocesses", None) or 0) > 1:
        os.environ.setdefault("OMP_NUM_THREADS", "1")  # a process reads it as it begins
    pass_logs_on()
    keep_operators()
    seed_devices_that_are_here()
    script_faster()
    collect_less_garbage()
    report_less(config)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> FilesTogether | None:
    """Keep files together wherever groups are."""
    return FilesTogether(config, log) if config.getoption("dist") == "loadgroup" else None


def pass_logs_on() -> None:
    """Let PyTorch's forty loggers hand what they log to the one that all lie under.

    pytest puts a handler at each logger that keeps things to itself, six times for a test, which
    takes longer than most tests.
    """
    import torch  # noqa: F401  makes the loggers

    for name, logger in logging.root.manager.loggerDict.items():
        # Names with `__` are of records that are no text.
        if isinstance(logger, logging.Logger) and name.startswith("torch.") and "__" not in name:
            logger.handlers.clear()
            logger.propagate = True


def seed_devices_that_are_here() -> None:
    """Let `torch.manual_seed` pass over devices that this machine lacks.

    Each of three kinds would note the seed for later, with the whole stack as text: milliseconds
    for the stack of a test, and memory that is never freed.
    """
    import torch

    for devices in (torch.cuda, torch.xpu, torch.mtia):
        if not devices.is_available():
            devices.manual_seed_all = lambda seed: None


def collect_less_garbage() -> None:
    """Look for garbage after 20,000 new objects, not after 700: to script a module takes more."""
    gc.set_threshold(20_000, 10, 10)


def report_less(config: pytest.Config) -> None:
    """Report results alone, and set-ups and clean-ups that fail or take as long as is shown.

    A process of xdist sends six messages for each test, which take longer than many tests.
    """
    if not hasattr(config, "workerinput"):
        return
    # Its class is of a module that xdist runs as a program.
    worker = next(one for one in config.pluginmanager.get_plugins() if hasattr(one, "sendevent"))
    send = worker.sendevent

    def sendevent(name: str, **about: Any) -> None:
        report = about.get("data", {})
        around = report.get("when") in ("setup", "teardown") and report["outcome"] == "passed"
        if name != "logstart" and not (around and report["duration"] < SHOWN):
            send(name, **about)

    worker.sendevent = sendevent


def keep_operators() -> None:
    """Keep functions alive that PyTorch's scripting knows by `id`.

    Scripting notes the id of each operator's function and keeps it, even if the operator is gone
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


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Import all test modules without garbage collection.

    Imports stay in memory, and each time the objects have grown by a quarter, Python goes through
    all of them: a third of the time of collecting tests.
    """
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()
        gc.freeze()


def pytest_collectstart(collector: pytest.Collector) -> None:
    """Give what a test module draws while it is imported the same numbers in every run.

    The import follows right behind this, whichever other modules are collected.
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
def threads(request: pytest.FixtureRequest) -> Iterator[None]:
    """Let kernels have a thread for each core in the tests of their own."""
    import torch

    before = torch.get_num_threads()
    if request.path.parent in THREADED:
        torch.set_num_threads(os.cpu_count() or 1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def short_collections() -> None:
    """Take what is alive out of garbage collection.

    Much of what tests compile stays for good, and after a while going through all of it takes
    longer than most tests. Objects that the tests of this module make are collected as ever.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture(scope="module")
def translations_once() -> Iterator[None]:
    """Make PyTorch's table of ONNX translations once for each opset."""
    pytest.importorskip("onnxscript")
    with made_once():
        yield
