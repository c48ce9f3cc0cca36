"""Whether this package itself is at work: a pass, or the compilation of a rule's pattern."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar

_OWN_WORK: ContextVar[bool] = ContextVar("jit_passes_own_work", default=False)


def is_own_work() -> bool:
    """Return whether what is compiled now belongs to a pass or a rule, not to the user."""
    return _OWN_WORK.get()


@contextmanager
def own_work() -> Iterator[None]:
    """Keep scheduled passes away from what is compiled inside."""
    token = _OWN_WORK.set(True)
    try:
        yield
    finally:
        _OWN_WORK.reset(token)
