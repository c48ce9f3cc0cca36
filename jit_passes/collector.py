"""A pause of Python's garbage collector, while graphs are looked at."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def paused() -> Iterator[None]:
    """Collect nothing meanwhile.

    Snapshots of graphs have several objects for each node, which live until their stage ends. The
    collector goes over all of them again and again, and finds nothing to free: a sixth of the time
    to quantize a chain of 400 convolutions. Any threads may pause it at once.
    """
    if not gc.isenabled():  # by the caller, or by another thread, which will go on with it
        yield
        return
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
