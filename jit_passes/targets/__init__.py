"""Backends, one file each."""

from __future__ import annotations

from typing import Any

from ..errors import JitPassesError
from .quantizers import PowerOfTwoQuantizer, QnnpackQuantizer, TargetQuantizer, X86Quantizer
from .reference import Reference
from .stock import Stock
from .target import Target

__all__ = [
    "PowerOfTwoQuantizer",
    "QnnpackQuantizer",
    "Reference",
    "Stock",
    "Target",
    "TargetQuantizer",
    "X86Quantizer",
    "make_target",
    "resolve_target",
    "targets",
]

targets: dict[str, type[Target]] = {Stock.name: Stock, Reference.name: Reference}


def resolve_target(target: str | Target) -> Target:
    """Return the backend that a name stands for; "auto" is the best one for this machine."""
    if isinstance(target, Target):
        return target
    if target == "auto":
        return Stock()
    if not isinstance(target, str) or target not in targets:
        raise JitPassesError(
            f"unknown target {target!r}: use 'auto', {', '.join(map(repr, targets))}, or a Target "
            "such as jit_passes.targets.Stock(engine='onednn')"
        )
    return targets[target]()


def make_target(name: str, options: dict[str, Any]) -> Target:
    """Return the backend of that name with the arguments that `Target.options` gave.

    Raises:
        JitPassesError: it cannot be had here.
    """
    if name not in targets:
        raise JitPassesError(f"unknown target {name!r}: known are {', '.join(map(repr, targets))}")
    return targets[name](**options)
