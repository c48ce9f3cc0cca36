"""Patterns of the paths of modules, as rules and rewrites take them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from fnmatch import translate
from functools import lru_cache

_WILDCARDS = re.compile(r"[*?[]")
Patterns = str | tuple[str, ...]


def several(given: Patterns) -> tuple[str, ...]:
    """Return one pattern as a tuple."""
    return (given,) if isinstance(given, str) else given


def only(name: str) -> str:
    """Return the glob that fits this name alone."""
    return _WILDCARDS.sub(r"[\g<0>]", name)


@lru_cache(1024)
def fit_of(given: Patterns) -> Callable[[str], bool]:
    """Return whether a name fits one of some globs, as a function.

    Names without wildcards are looked up, since lists may hold thousands.
    """
    exact = {pattern for pattern in several(given) if not _WILDCARDS.search(pattern)}
    globs = [re.compile(translate(p)).match for p in several(given) if p not in exact]
    return lambda name: name in exact or any(fits(name) for fits in globs)


@lru_cache(1024)
def cover_of(given: Patterns) -> Callable[[str], bool]:
    """Return whether the path of a module, or of one around it, fits one of some globs.

    So `encoder` covers `encoder.layers.0`, and `layer?.0` covers `layer1.0.conv1`. The empty path
    means the model itself, and covers no other.
    """
    fits = fit_of(given)
    return lru_cache(None)(lambda path: any(map(fits, _with_those_around(path))))


def _with_those_around(path: str) -> Iterator[str]:
    yield path
    while "." in path:
        path = path.rpartition(".")[0]
        yield path
