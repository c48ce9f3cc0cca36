"""The parts of a reference model that a backend takes as a whole, as modules of their own."""

from __future__ import annotations

import torch

from .. import _C
from ..graph.view import GraphView
from ..passes.subject import wrap
from ..targets import Target, resolve_target
from ..targets.partition import Partition, cut
from .module import ModelStage, by_position, stage_of


def partition(model: torch.jit.ScriptModule, target: str | Target) -> Partition:
    """Return a reference model whose regions for a target are submodules.

    A region is a largest set of operators that the target has on integers, joined where one hands
    integers to the other, or both read the same ones. It can be computed as one: no path leaves it
    and comes back, it never crosses a branch or a loop, and never a value that is written in place.
    The model computes the same to the bit, so that any part of it can be handed to a compiler, and
    the model used to check it.

    Args:
        model: what `convert` returns, for whichever target it was prepared; it is not touched.
        target: a name or an instance. Its capability decides, and why an operator stays outside is
            in `Partition.refused`.

    Raises:
        JitPassesError: the model is not a reference model, or there is no such target.
    """
    report = stage_of(model, ModelStage.REFERENCE, "call jit_passes.convert(prepared) first")
    backend = resolve_target(target)
    module = _C.clone(model._c, report.method)
    names = by_position(GraphView.of(module, report.method), report.names)
    found = cut(module, report.method, backend, names)
    report.located(found.module).write(found.module)
    return Partition(backend, wrap(found.module), found.regions, found.refused)
