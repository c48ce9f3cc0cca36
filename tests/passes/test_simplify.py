"""Simplifications that golden files do not show."""

from __future__ import annotations

import torch
from torch import Tensor, nn

import jit_passes
from tests.advice import nested_tensors


class NestedBuffer(nn.Module):
    """A buffer may be nested, as a weight is not."""

    def __init__(self) -> None:
        super().__init__()
        parts = [torch.ones(2, 3), torch.ones(4, 3)]
        self.register_buffer("rows", torch.nested.nested_tensor(parts))

    def forward(self, x: Tensor, more: bool) -> Tensor:
        factor = 2.0 if self.rows.is_nested else 1.0  # type: ignore[union-attr]
        return x * factor if more else x


@nested_tensors
def test_nested_buffers_are_nested() -> None:
    settled = jit_passes.run_pass("simplify", torch.jit.script(NestedBuffer()))
    assert settled(torch.ones(1), True).item() == 2


class Chain(nn.Module):
    """Both sides of each branch lead to the one before."""

    def __init__(self, count: int) -> None:
        super().__init__()
        self.steps = nn.ModuleList(nn.Identity() for _ in range(count))

    def forward(self, x: Tensor, flag: bool) -> tuple[Tensor, Tensor]:
        y = x
        for step in self.steps:
            if flag:
                y = step(y.unsqueeze(0).squeeze(0))
        return y, torch.zeros([2], device=y.device)


def test_many_branches_in_a_row() -> None:
    """The device of the last value is that of the first: each branch is looked at once."""
    model = jit_passes.run_pass("freeze", torch.jit.script(Chain(200).eval()))
    settled = jit_passes.run_pass("simplify", model)
    (device,) = settled.graph.findAllNodes("prim::device")
    assert next(device.inputs()) == list(settled.graph.inputs())[1]
    y, zeros = settled(torch.ones(3), True)
    assert torch.equal(y, torch.ones(3)) and torch.equal(zeros, torch.zeros(2))
