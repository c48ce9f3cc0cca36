"""Statements of a random module as they are written: executed at once, so sizes are known."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Item = TypeVar("Item")

# Results are as large as x; {i} is a small number, {c} one between 0 and 1.
SAME = (
    "torch.relu({x})", "F.relu({x})", "F.relu6({x})", "F.hardtanh({x}, -{c}, {i}.0)",
    "torch.clamp({x}, -{c}, {i}.5)", "{x}.clamp(min=0)", "torch.clamp_min({x}, 0.0)",
    "{x}.clamp(max={i})", "F.leaky_relu({x}, {c})", "F.elu({x}, {c})", "F.hardswish({x})",
    "torch.sigmoid({x})", "torch.tanh({x})", "F.hardsigmoid({x})", "F.gelu({x})", "F.silu({x})",
    "torch.softmax({x}, {dim})", "F.softmax({x}, dim=-1)", "F.log_softmax({x}, -1)",
    "torch.neg({x})", "torch.neg({x}).abs()", "torch.cos(torch.neg({x}))",
    "torch.relu(torch.relu({x}))", "{x} + {c}", "{x} * {c}", "{x} - {i}",
    "{x} / {i}", "{c} - {x}", "{x} * 1", "{x} + 0", "{x}.contiguous()", "{x}.clone()",
    "{x}.detach()", "{x}.abs()", "{x}.square()", "{x} + {x}.mean()", "torch.cos({x})",
    "{x} - {x}.mean(-1, keepdim=True)", "F.relu6(F.relu({x}))", "torch.exp(-{x}.abs())",
    "torch.where({x} > {c}, {x}, {x} * {c})", "{x} * ({x} > 0)", "{x}.flip(0)", "{x}.roll(1, -1)",
    "torch.sub({x}, {x}.relu(), alpha={i})", "{x} * ({i} + 1)", "{x} * (2 * 3 - {i})",
    "{x}.permute({ranks}).permute({ranks}).reshape({x}.shape)",
    "{x}.transpose({dim}, -1).transpose({dim}, -1)", "{x}.expand_as({x})",
    "self.helper({x})", "self.helper({x}, {x})", "self.helper({x}, None, {c})",
)  # fmt: skip


class DoesNotFit(LookupError):
    """There is no value for a statement, or it does not run."""


@dataclass
class Writer:
    """The statements so far, and the values they have left."""

    rng: random.Random
    inputs: list[str]
    shapes: list[tuple[int, ...]]
    members: list[str] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    shared: list[tuple[str, tuple[int, ...], str]] = field(default_factory=list)
    results: list[str] = field(default_factory=list)
    scope: dict[str, Any] = field(default_factory=dict)
    names: int = 0

    def __post_init__(self) -> None:
        self.execute_all()

    def execute_all(self) -> None:
        """Execute from the start, after something that went wrong."""
        torch.default_generator.manual_seed(0)
        net: Any = nn.Module()
        values = [torch.randn(shape) for shape in self.shapes]
        # Leaves cannot be written to.
        leaves = [value.requires_grad_() for value in values]
        self.scope = {"torch": torch, "F": F, "nn": nn, "Tensor": Tensor, "self": net}
        self.scope |= {"List": list, "missing": None}
        net.helper = _helper
        self.scope["leaves"] = leaves
        for name, leaf in zip(self.inputs, leaves, strict=True):
            self.scope[name] = leaf.clone()
        for line in [*self.members, *self.lines]:
            exec(line, self.scope)

    def new(self, prefix: str = "v") -> str:
        self.names += 1
        return f"{prefix}{self.names}"

    def add(self, lines: str, members: Sequence[str] = (), *, writes: bool = False) -> None:
        """Add statements, which must run, and leave autograd intact if they write."""
        try:
            for line in (*members, lines):
                exec(line, self.scope)
            for value in self.tensors().values():
                if value.numel() > 1500 or value.numel() == 0:
                    raise ValueError("it is too large, or empty")
            if writes:
                total = sum(v.sum() for v in self.tensors().values() if v.requires_grad)
                torch.autograd.grad(total, self.scope["leaves"], retain_graph=True)  # type: ignore[arg-type]
        except (RuntimeError, ValueError, IndexError, TypeError, AttributeError, AssertionError):
            self.execute_all()
            raise DoesNotFit from None
        self.members += members
        self.lines.append(lines)

    def tensors(self) -> dict[str, Tensor]:
        return {k: v for k, v in self.scope.items() if isinstance(v, Tensor) and k != "extra"}

    def keep(self) -> None:
        """Return the latest value from forward: dead, it might not run, and this shows.

        Dropout draws numbers, which others then do not get, and batch norm updates its buffers.
        """
        self.results.append(f"v{self.last}")

    @property
    def last(self) -> int:
        """The number of the latest value."""
        return max(int(name[1:]) for name in self.tensors() if name[0] == "v")

    def pick(self, ranks: Sequence[int] = (1, 2, 3, 4, 5), *, made: bool = False) -> str:
        """Return the name of a value, one of the latest most of the time."""
        names = [k for k, v in self.tensors().items() if v.dim() in ranks]
        if made:
            names = [name for name in names if name not in self.inputs]
        return self.choice(names[-3:] if names and self.rng.random() < 0.7 else names)

    def choice(self, several: Sequence[Item]) -> Item:
        if not several:
            raise DoesNotFit
        return self.rng.choice(several)

    def shape(self, name: str) -> tuple[int, ...]:
        return tuple(self.scope[name].shape)

    def fill(self, template: str, x: str, **names: str) -> str:
        shape = self.shape(x)
        order = list(range(len(shape)))
        self.rng.shuffle(order)
        sizes = list(shape)
        self.rng.shuffle(sizes)
        return template.format(
            x=x,
            c=self.rng.choice((0.25, 0.5, 0.75, 1.5)),
            i=self.rng.randint(1, 4),
            dim=self.rng.randrange(len(shape)) if shape else 0,
            ranks=", ".join(map(str, order)),
            sizes=", ".join(map(str, sizes)),
            **names,
        )

    def same(self, x: str) -> str:
        return self.fill(self.rng.choice(SAME), x)


def _helper(x: Tensor, scale: Tensor | None = None, offset: float | None = None) -> Tensor:
    """The body of the method of that name."""
    if scale is not None:
        x = x * scale
    return x if offset is None else x + offset
