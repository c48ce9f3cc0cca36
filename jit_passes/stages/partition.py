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

    A region is a largest set of operators that the target has on integers. Two operators are joined
    where one hands integers to the other, or both read equal integers. A region can be computed as
    one: no path leaves it and comes back, and it crosses no branch, no loop and no value that is
    written in place. The results of the model stay equal to the bit. So any region can be handed to
    a compiler, and the model serves to check it.

    Args:
        model: the result of `convert`, prepared for any target; it is not touched.
        target: a name or an instance. Its capability decides, and why an operator stays outside is
            in `Partition.refused`.

    Raises:
        JitPassesError: the model is not a reference model, or the target is unknown.
    """
    report = stage_of(model, ModelStage.REFERENCE, "call jit_passes.convert(prepared) first")
    backend = resolve_target(target)
    module = _C.clone(model._c, report.method)
    names = by_position(GraphView.of(module, report.method), report.names)
    found = cut(module, report.method, backend, names)
    report.located(found.module).write(found.module)
    return Partition(backend, wrap(found.module), found.regions, found.refused)
