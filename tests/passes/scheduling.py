"""Passes to schedule, functions and models to compile, and that nothing is left of a schedule."""

from __future__ import annotations

import itertools
import linecache
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import GraphEditor, GraphView, Stage, scheduled, scheduled_passes

F = nn.functional
EXECUTOR_STAGES = [Stage.AFTER_AUTOGRAD, Stage.AFTER_FUSION]
PLACES = [
    (torch.jit._script, "_script_impl"),
    (torch.jit._trace, "_trace_impl"),
    (torch.jit._trace, "trace_module"),
    (torch.jit._trace, "make_module"),
    (torch.jit._trace, "_check_trace"),
    (torch.jit, "trace_module"),
]
ORIGINALS: list[object] = []


def is_restored() -> bool:
    """Whether PyTorch's functions are the very same objects as at the start of the test."""
    return all(getattr(o, n) is f for (o, n), f in zip(PLACES, ORIGINALS, strict=True))


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """Every test leaves PyTorch and the registry as they were.

    PyTorch's functions are read anew for each test: the first torch.compile of a process wraps some
    of them for good.
    """
    names = set(jit_passes.passes)
    ORIGINALS[:] = [getattr(owner, name) for owner, name in PLACES]
    yield
    left = scheduled_passes()
    for handle in left:
        handle.remove()
    assert left == ()
    assert is_restored()
    assert set(jit_passes.passes) == names


def relu_to_gelu(graph: GraphEditor) -> None:
    """Turn relu into gelu."""
    for node in graph.nodes:
        if node.kind == "aten::relu":
            gelu = graph.insert("aten::gelu", [node.inputs[0], "none"], before=node)
            graph.replace(node.output, gelu.output)
            graph.remove(node)


def swap(old: str, new: str) -> Callable[[GraphEditor], None]:
    """Return a pass that turns one unary operator into another."""

    def swap_operator(graph: GraphEditor) -> None:
        for node in graph.nodes:
            if node.kind == f"aten::{old}":
                made = graph.insert(f"aten::{new}", [node.inputs[0]], before=node)
                graph.replace(node.output, made.output)
                graph.remove(node)

    return swap_operator


def nothing(graph: GraphEditor) -> None:
    """Change nothing."""


def fail(graph: GraphEditor) -> None:
    """Fail, after a change."""
    relu_to_gelu(graph)
    raise ValueError("no more paper")


def kinds(view: GraphView) -> list[str]:
    """All operators but constants, in order."""
    return [node.kind for node in view.nodes if node.kind != "prim::Constant"]


@contextmanager
def graphs_seen(stage: Stage) -> Iterator[list[list[str]]]:
    """Collect the operators of all graphs that a stage sees inside the block."""
    seen: list[list[str]] = []

    def where(view: GraphView) -> bool:
        seen.append(kinds(view))
        return False

    with scheduled(nothing, stage=stage, where=where):
        yield seen


def fresh(
    body: str = "torch.relu(x)", arguments: str = "x: Tensor", **names: object
) -> Callable[..., Tensor]:
    """Return a function that PyTorch has not compiled yet, of its own source file."""

    name = f"<fresh {next(NUMBERS)}>"
    source = f"def function({arguments}) -> Tensor:\n    return {body}\n"
    linecache.cache[name] = (len(source), None, source.splitlines(True), name)
    scope = {"__name__": __name__, "torch": torch, "Tensor": Tensor, **names}
    exec(compile(source, name, "exec"), scope)
    return scope["function"]  # type: ignore[return-value]


NUMBERS = itertools.count()
EMPTY = "graph(%x):\n  return (%x)"
X = torch.tensor([-2.0, -0.5, 0.0, 0.5, 2.0])


class Net(nn.Module):
    """A layer, a relu, an exported method and a buffer."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.norm = nn.Linear(5, 5), nn.BatchNorm1d(5)

    def forward(self, x: Tensor, scale: float = 2.0) -> Tensor:
        return torch.relu(self.norm(self.linear(x))) * scale

    @torch.jit.export
    def encode(self, x: Tensor) -> Tensor:
        return torch.relu(x)

    @torch.jit.ignore
    def describe(self) -> str:
        return "a net"


def gradient(function: Callable[[Tensor], Tensor]) -> Tensor:
    """The gradient of the sum at X."""
    x = X.clone().requires_grad_()
    function(x).sum().backward()
    assert x.grad is not None
    return x.grad
