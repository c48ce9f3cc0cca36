"""Which encodings of a model a file for another engine holds, and which facts it cannot say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..errors import count_of, shortened
from .encoding import Encoding, Encodings


@dataclass(frozen=True)
class Form:
    """A form of files. Each function takes encodings and the options of `write`.

    Attributes:
        write: makes the content.
        held: returns the encodings that a file holds.
        losses: yields sentences on facts that a file cannot hold and the engine decides otherwise.
        others: how the engine treats values that a file does not hold.
    """

    write: Callable[..., Any]
    held: Callable[..., Sequence[Encoding]]
    losses: Callable[..., Iterator[str]]
    others: str


def loss(lost: Sequence[Encoding], of: Encodings, sentence: str) -> Iterator[str]:
    """Yield a sentence on encodings of one kind that a form does not say; nothing for none.

    Args:
        lost: these.
        of: all that there are.
        sentence: with `{}` where these are named: `2 of 7 activations ('x', 'add')`.
    """
    if lost:
        kind = lost[0].kind
        known = count_of(sum(encoding.kind == kind for encoding in of), kind)
        names = shortened([f"'{encoding.name}'" for encoding in lost], 3)
        yield sentence.format(f"{len(lost)} of {known} ({names})")
