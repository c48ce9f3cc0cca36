"""Work that all ranks of `torch.distributed` share: results of each for all, and errors too."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, TypeVar

import torch.distributed as dist

from ..errors import JitPassesError, first_line

T = TypeVar("T")
_Sent = tuple[Any, str]  # a result, or None and the message of an error


def are_several() -> bool:
    """Say whether this process is one of several ranks."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gathered(own: Callable[[], T]) -> list[T]:
    """Return the results of all ranks, in their order, on each rank.

    Args:
        own: makes this rank's result, which pickle can send.

    Raises:
        JitPassesError: the work failed on a rank, which the message names; a rank has ended, or
            was later than the time limit of the process group.
        Exception: on the rank where the work itself raised another error.
    """
    sent, failed = _outcome(own)
    found: list[_Sent] = [(None, "")] * dist.get_world_size()
    _meet(partial(dist.all_gather_object, found, sent))
    if failed is not None:
        raise failed
    for rank, (_, message) in enumerate(found):
        _check(rank, message)
    return [result for result, _ in found]


def in_turn(own: Callable[[], T], take: Callable[[T], None]) -> None:
    """Let the ranks work one after another, each on the result of the previous one.

    Args:
        own: makes this rank's result, which pickle can send.
        take: is given each result, on all ranks.

    Raises:
        JitPassesError: as `gathered`.
        Exception: as `gathered`.
    """
    for rank in range(dist.get_world_size()):
        box: list[_Sent] = [(None, "")]
        failed: Exception | None = None
        if rank == dist.get_rank():
            box[0], failed = _outcome(own)
        _meet(partial(dist.broadcast_object_list, box, src=rank))
        if failed is not None:
            raise failed
        result, message = box[0]
        _check(rank, message)
        take(result)


def _outcome(own: Callable[[], T]) -> tuple[_Sent, Exception | None]:
    """Return the result or the message to send, and the error that is this rank's alone."""
    try:
        return (own(), ""), None
    except JitPassesError as error:
        return (None, str(error)), None
    except Exception as error:  # of the caller's data, say: the others must not wait for this rank
        name, text = f"{type(error).__name__}: ", first_line(error)
        return (None, name + text.removeprefix(name)), error


def _meet(exchange: Callable[[], Any]) -> None:
    try:
        exchange()
    except (RuntimeError, ValueError) as error:
        raise JitPassesError(
            f"rank {dist.get_rank()} of {dist.get_world_size()} waits for others in vain: a rank "
            "has ended, or was later than the time limit of the process group, "
            f"init_process_group(timeout=). PyTorch says: {first_line(error)}"
        ) from error


def _check(rank: int, message: str) -> None:
    if message:
        raise JitPassesError(f"rank {rank}: {message}")
