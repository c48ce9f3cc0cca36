"""Freezing what is called: forks, futures, and modules that are known only while running."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from jit_passes import PassError, Pipeline
from tests.compare import assert_same
from tests.models.freezing.attributes import Counter, Middle, TensorCounter
from tests.models.freezing.calls import (
    Forks,
    ForksInBranch,
    ForksInterface,
    FutureList,
    Layer,
    NestedForks,
)
from tests.models.freezing.case import Case, vectors
from tests.passes.freezing import assert_freezes, build, freeze, graphs, kinds, run

# Forks.


@pytest.mark.parametrize("make", [Forks, NestedForks, ForksInterface, ForksInBranch])
def test_forks_are_inlined(make: Callable[[], nn.Module]) -> None:
    """Nothing runs on the side, so nothing waits."""
    frozen = freeze(build(Case(make), "script")[1])
    assert not kinds(frozen) & {"prim::fork", "aten::wait"}


class WaitsAtOnce(nn.Module):
    """Waits in the next line."""

    def __init__(self) -> None:
        super().__init__()
        self.side = Counter()

    def forward(self, x: Tensor) -> Tensor:
        return torch.jit.wait(torch.jit.fork(self.side, x))


def test_waiting_at_once() -> None:
    """A fork with nothing between it and the wait."""
    frozen = assert_freezes(WaitsAtOnce)
    assert not kinds(frozen) & {"prim::fork", "aten::wait"}


class CountingFutureList(FutureList):
    """A list of futures of modules that have state."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Counter(), nn.Linear(4, 4)])


def test_counting_in_a_list_of_futures() -> None:
    """Counters stay."""
    assert_freezes(CountingFutureList)


class Writes(TensorCounter):
    """Writes without assigning."""

    def forward(self, x: Tensor) -> Tensor:
        self.total.add_(1)
        return x + self.total


class TensorFutureList(FutureList):
    """A list of futures of modules one of which writes to a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Writes(), nn.Linear(4, 4)])


def test_writing_in_a_list_of_futures() -> None:
    """The tensor stays, and the caller's is not written to."""
    frozen = assert_freezes(TensorFutureList)
    assert [name for name, _ in frozen.named_buffers()] == ["layers.0.total"]


# Modules that are not known before running.


class Doubles(nn.Module):
    """One of two modules without state."""

    def forward(self, x: Tensor) -> Tensor:
        return 2 * x


class Increments(nn.Module):
    """The other one."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1


class Swaps(nn.Module):
    """Calls another module from the second call on."""

    now: Layer
    then: Layer

    def __init__(self) -> None:
        super().__init__()
        self.now, self.then = Doubles(), Increments()

    def forward(self, x: Tensor) -> Tensor:
        y = self.now.forward(x)
        self.now = self.then
        return y


class Indexes(nn.Module):
    """Calls the module that its argument says."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Doubles(), Increments()])

    def forward(self, x: Tensor) -> Tensor:
        layer: Layer = self.layers[x.size(0) % 2]
        return layer.forward(x)


def pick(one: Layer, other: Layer, first: bool) -> Layer:
    """One of two modules."""
    if first:
        return one
    return other


class Picks(nn.Module):
    """Calls the module that a function returns."""

    one: Layer
    other: Layer

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = Doubles(), Increments()

    def forward(self, x: Tensor) -> Tensor:
        return pick(self.one, self.other, bool(x.sum() > 0)).forward(x)


@pytest.mark.parametrize("make", [Swaps, Picks])
def test_unknown_modules_are_refused(make: Callable[[], nn.Module]) -> None:
    """No graph without calls exists; the error says so, and the caller's module is as it was."""
    model, module = build(Case(make), "script")
    before = graphs(module)
    with pytest.raises(PassError, match=r"not support|a call is left"):
        Pipeline("mine", ("freeze",)).run(module._c)
    assert graphs(module) == before
    assert_same(run(model, vectors()), run(module, vectors()), "the caller's")


def test_unknown_module_within_another() -> None:
    """Assigning a module is refused wherever it is done."""
    _, module = build(Case(lambda: Middle(Swaps())), "script")
    with pytest.raises(RuntimeError, match="not support"):
        freeze(module)


class Named(nn.Module):
    """Calls modules by their names, one of which counts its calls."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleDict({"a": Counter(), "b": Doubles()})

    def forward(self, x: Tensor) -> Tensor:
        for name in ["a", "b", "a"]:
            layer: Layer = self.layers[name]
            x = layer.forward(x)
        return x


@pytest.mark.parametrize("make", [Indexes, Named])
def test_modules_picked_by_an_index(make: Callable[[], nn.Module]) -> None:
    """A branch for each module that may be picked: equal results and states."""
    frozen = assert_freezes(make)
    assert "aten::relu" not in str(frozen.graph)
    assert not any(node.kind() == "prim::CallMethod" for node in frozen.graph.nodes())


def test_no_module_at_an_index() -> None:
    """An error, as in the model itself."""

    class Any(Indexes):
        def forward(self, x: Tensor, which: int) -> Tensor:
            layer: Layer = self.layers[which]
            return layer.forward(x)

    frozen = freeze(torch.jit.script(Any()))
    x = torch.ones(2)
    assert [frozen(x, which)[0].item() for which in (0, 1)] == [2, 2]
    with pytest.raises(torch.jit.Error, match="no module is at the place"):
        frozen(x * 3, 2)
