"""Logging under the name `jit_passes`: silent, unless a program or `JIT_PASSES_LOG` asks for it.

    JIT_PASSES_LOG=info python quantize.py      stages with their times
    JIT_PASSES_LOG=debug ...                    and passes

A program sets it up as any other: `logging.getLogger("jit_passes").setLevel(logging.INFO)`.
"""

from __future__ import annotations

import functools
import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import ParamSpec, TypeVar

from .errors import warn

LOGGER = logging.getLogger("jit_passes")
LEVELS = ("debug", "info", "warning")
VARIABLE = "JIT_PASSES_LOG"
Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def set_up() -> None:
    """Be silent, or log to stderr at the level that the environment asks for."""
    LOGGER.addHandler(logging.NullHandler())
    wanted = os.environ.get(VARIABLE, "").lower()
    if not wanted:
        return
    if wanted not in LEVELS:
        warn(f"{VARIABLE} is one of {', '.join(LEVELS)}, not '{wanted}': nothing is logged")
        return
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("%(asctime)s jit_passes: %(message)s", "%H:%M:%S"))
    LOGGER.addHandler(handler)
    LOGGER.setLevel(wanted.upper())
    LOGGER.propagate = False  # or a program with handlers of its own would show it twice


@contextmanager
def stage(name: str) -> Iterator[None]:
    """Log when a stage begins, and how long it took or that it failed."""
    if not LOGGER.isEnabledFor(logging.INFO):
        yield
        return
    LOGGER.info("%s begins", name)
    begin = time.perf_counter()
    try:
        yield
    except BaseException as error:
        LOGGER.info(
            "%s failed after %.2f s: %s", name, time.perf_counter() - begin, type(error).__name__
        )
        raise
    LOGGER.info("%s took %.2f s", name, time.perf_counter() - begin)


def timed(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Make a function a stage of its own name."""

    @functools.wraps(function)
    def run(*args: Arguments.args, **kwargs: Arguments.kwargs) -> Result:
        with stage(function.__name__):
            return function(*args, **kwargs)

    return run


@contextmanager
def silenced(name: str) -> Iterator[None]:
    """Silence a logger of PyTorch whose messages become errors here, or matter to nobody."""
    logger = logging.getLogger(name)
    disabled, logger.disabled = logger.disabled, True
    try:
        yield
    finally:
        logger.disabled = disabled


@contextmanager
def decomposing() -> Iterator[None]:
    """Silence a warning about PyTorch's own code, which it gives as it decomposes a program."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", ".*LeafSpec.. is deprecated", FutureWarning)
        yield
