"""Freezing: what a method does not change becomes constants, what it changes stays state.

The table of models is run scripted, loaded from a file, and traced where a trace can record it. A
frozen module does what the eager model does, call after call, to the bit: freezing computes
nothing.
"""

import copy
import enum
import gc
import io
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Dict, List, NamedTuple, Optional, Tuple  # noqa: UP035

import pytest
import torch
import torch.nn.functional as F
from compare import Args, assert_same, call, clone
from torch import Tensor, nn

from jit_passes import _C, JitPassesError, PassError, Pipeline, prepare
from jit_passes.passes.subject import wrap

Script = torch.jit.ScriptModule
PRIVATE = set(vars(nn.Module())) - {"training"}  # how nn.Module keeps what it has


# Helpers: freezing, running, and what a module has.


def freeze(module: Script, method: str = "forward") -> Script:
    """Freeze one method; the graph is sound, has no calls, and its module is in eval mode."""
    frozen, changed, _ = _C.run_pass("freeze", module._c, method, {})
    assert changed
    _C.lint(frozen, method)
    assert _C.check_invariant("inlined", frozen, method) is None
    return wrap(frozen)


def reload(module: Script) -> Script:
    """Through a file and back."""
    file = io.BytesIO()
    torch.jit.save(module, file)
    file.seek(0)
    return torch.jit.load(file)


def run(module: Any, calls: list[Args], method: str = "forward") -> list[Any]:
    """Call after call: the results, and the arguments afterwards."""
    outcomes = []
    for args in clone(calls):
        with torch.no_grad():
            outcomes.append({"output": clone(call(module, args, method)), "arguments": args})
    return outcomes


def plain(value: Any) -> Any:
    """A copy of an attribute's value; instances of classes cannot be compared.

    Named tuples become plain ones, which they are when they come from a file.
    """
    if isinstance(value, tuple):
        return tuple(plain(element) for element in value)
    known = isinstance(value, Tensor | int | float | str | list | tuple | dict | torch.device)
    return clone(value) if known or value is None else type(None)


def parts(module: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """All C++ modules with their paths; one that has two names comes twice."""
    yield path, module
    for name, child in torch._C.ModuleDict(module).items():
        yield from parts(child, f"{path}{name}.")


def names(module: nn.Module) -> set[str]:
    """What the attributes of an eager model's modules are called."""
    found: set[str] = set()
    for part in module.modules():
        if isinstance(part, torch.jit.ScriptModule):
            continue  # of the same class as an eager one
        found |= {*part._parameters, *part._buffers, *vars(part)} - PRIVATE
    return found


def state(module: Script, model: nn.Module) -> dict[str, Any]:
    """Copies of all attributes that are not modules, but the first `training`, which is always."""
    found = {
        path + name: plain(part.getattr(name))
        for path, part in parts(module._c)
        for name in names(model)
        if part.hasattr(name) and not isinstance(part.getattr(name), torch._C.ScriptModule)
    }
    assert isinstance(found.pop("training", False), bool)
    return found


def graphs(module: Script) -> dict[str, str]:
    """The text of all methods."""
    return {
        path + name: str(part._get_method(name).graph)
        for path, part in parts(module._c)
        for name in part._method_names()
    }


def kinds(module: Script, method: str = "forward") -> set[str]:
    """Operators of a method, nested blocks included."""
    found: set[str] = set()

    def visit(block: Any) -> None:
        for node in block.nodes():
            found.add(node.kind())
            for inner in node.blocks():
                visit(inner)

    visit(module._c._get_method(method).graph)
    return found


def attribute(model: nn.Module, path: str) -> Any:
    """What a path leads to."""
    value: Any = model
    for name in path.split("."):
        value = getattr(value, name)
    return value


def assert_same_state(model: nn.Module, found: dict[str, Any], what: str) -> None:
    """The eager model's attributes have these values."""
    assert_same({path: plain(attribute(model, path)) for path in found}, found, what)


# Arguments: batches of different sizes.


def vectors() -> list[Args]:
    """Batches of four numbers."""
    generator = torch.Generator().manual_seed(1)
    return [(torch.randn(batch, 4, generator=generator),) for batch in (2, 3, 1, 2, 5)]


def rows() -> list[Args]:
    """One vector of four each."""
    return [(x[0],) for (x,) in vectors()]


def images() -> list[Args]:
    """Batches of small images of different sizes."""
    generator = torch.Generator().manual_seed(1)
    sizes = ((2, 3, 8, 8), (1, 3, 9, 7), (3, 3, 8, 8), (2, 3, 12, 6))
    return [(torch.randn(size, generator=generator),) for size in sizes]


# Models.


class ConvNormRelu(nn.Module):
    """Nothing that changes."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4)
        self.norm.running_mean.normal_()
        self.norm.running_var.uniform_(0.5, 2)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.norm(self.conv(x)))


class Counter(nn.Module):
    """Counts its calls in a number and in a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0
        self.step = 2
        self.register_buffer("total", torch.zeros(1))
        self.register_buffer("scale", torch.full((1,), 0.5))

    def forward(self, x: Tensor) -> Tensor:
        self.calls += self.step
        self.total.add_(1)
        return x * self.scale + self.total * 10 + self.calls


class TensorCounter(nn.Module):
    """Counts its calls in a tensor only, as a trace needs it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("total", torch.zeros(1))

    def forward(self, x: Tensor) -> Tensor:
        self.total += 1
        return x + self.total


class Middle(nn.Module):
    """A linear layer and something else."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.linear, self.inner = nn.Linear(4, 4), inner

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(self.linear(x))


class Nested(nn.Module):
    """A counter two levels down."""

    def __init__(self) -> None:
        super().__init__()
        self.middle, self.last = Middle(Counter()), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.middle(x))


class NestedTensor(Nested):
    """The same without a number."""

    def __init__(self) -> None:
        super().__init__()
        self.middle = Middle(TensorCounter())


class ParentWrites(nn.Module):
    """The parent assigns to the child's number and writes to its tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.child = Counter()

    def forward(self, x: Tensor) -> Tensor:
        self.child.calls = self.child.calls + 100
        self.child.total.mul_(2)
        return self.child(x)


class Element(nn.Module):
    """Writes to one element."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("buf", torch.zeros(3))
        self.register_buffer("other", torch.ones(3))

    def forward(self, x: Tensor) -> Tensor:
        self.buf[0] = x.mean()
        return self.buf + self.other


class View(Element):
    """Writes through views."""

    def forward(self, x: Tensor) -> Tensor:
        self.buf.view(-1)[1:3].add_(1)
        self.buf.unsqueeze(0).t().detach()[0].mul_(2).add_(1)
        return self.buf + self.other


class Chunk(Element):
    """Writes to a view out of a list of views."""

    def forward(self, x: Tensor) -> Tensor:
        self.buf.chunk(3)[1].add_(x.sum())
        return self.buf + self.other


class Out(Element):
    """Gives the buffer to an operator as the place for its result."""

    def forward(self, x: Tensor) -> Tensor:
        torch.add(self.buf, x.mean(), out=self.buf)
        return self.buf + self.other


class Result(Element):
    """Writes to what an in-place operator returned, in a loop."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.buf
        for _ in range(3):
            y = y.add_(1)
        return self.buf + self.other + x.mean()


class Either(nn.Module):
    """Writes to one of two, and neither is known to stay as it is."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(2))
        self.register_buffer("b", torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        y = self.a if bool(x.sum() > 0) else self.b
        y.add_(1)
        return self.a + 10 * self.b


class Both(Either):
    """Writes to both, as elements of a list and of a dictionary."""

    def forward(self, x: Tensor) -> Tensor:
        for y in [self.a, self.b]:
            y.add_(1)
        {"b": self.b}["b"].add_(x.mean())
        return self.a + 10 * self.b


class SwapThenWrite(Either):
    """From the first call on, writing to one is writing to the other."""

    def forward(self, x: Tensor) -> Tensor:
        self.a = self.b
        self.a.add_(1)
        return self.a + 10 * self.b + x.mean()


class WriteThenSwap(Either):
    """Only the second call writes to what was the other."""

    def forward(self, x: Tensor) -> Tensor:
        self.a.add_(1)
        self.a = self.b
        return self.a + 10 * self.b + x.mean()


class SwapView(Either):
    """Keeps a view of the other, to write to in the next call."""

    def forward(self, x: Tensor) -> Tensor:
        self.a.add_(1)
        self.a = self.b[:1]
        return self.a + 10 * self.b + x.mean()


class Exchange(Either):
    """The two change places."""

    def forward(self, x: Tensor) -> Tensor:
        self.a.add_(1)
        kept = self.a
        self.a = self.b
        self.b = kept
        return self.a + 10 * self.b + x.mean()


class Shared(nn.Module):
    """Two names of one tensor, one of which is written to, and a third that is not theirs."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", self.a)
        self.register_buffer("c", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        self.a.add_(1)
        return x * self.b + self.c


class SharedAcross(nn.Module):
    """Two modules have one tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two = Element(), TensorCounter()
        self.two.total = self.one.buf

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.one(x)[0]) + self.one.buf


class SharedInList(nn.Module):
    """The tensor that is written to is also the element of a list."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.items = [self.a, torch.ones(4)]
        self.others = [torch.ones(4)]

    def forward(self, x: Tensor) -> Tensor:
        self.a.add_(1)
        return x * self.items[0] + self.items[1] + self.others[0]


class TwoNames(nn.Module):
    """One counter, called twice, under two names."""

    def __init__(self) -> None:
        super().__init__()
        self.one = torch.jit.script(Counter())  # scripting would make two of an eager one
        self.two = self.one
        self.other = Counter()

    def forward(self, x: Tensor) -> Tensor:
        return self.two(self.other(self.one(x)))


class CalledTwice(nn.Module):
    """One counter, called twice."""

    def __init__(self) -> None:
        super().__init__()
        self.one = TensorCounter()
        self.two = self.one

    def forward(self, x: Tensor) -> Tensor:
        return self.two(2 * self.one(x))


class AppendsNumbers(nn.Module):
    """A list that grows, one that shrinks and one that is read."""

    seen: List[int]  # noqa: UP006
    left: List[int]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.seen, self.left, self.read = [], [5, 6, 7, 8, 9, 10], [7, 8]

    def forward(self, x: Tensor) -> Tuple[List[int], int, int]:  # noqa: UP006
        seen = self.seen
        seen.append(x.size(0))
        return self.seen, self.left.pop(), self.read[1]


class AddsToList(nn.Module):
    """A list that is assigned longer."""

    seen: List[int]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def forward(self, x: Tensor) -> List[int]:  # noqa: UP006
        self.seen += [x.size(0)]
        return self.seen


class AppendsTensors(nn.Module):
    """A list of tensors that grows."""

    seen: List[Tensor]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.seen = []

    def forward(self, x: Tensor) -> Tuple[Tensor, List[Tensor]]:  # noqa: UP006
        self.seen.append(x.sum())
        return torch.stack(self.seen).sum(), self.seen


class Containers(nn.Module):
    """Writes to the tensors within a list, a tuple and a dictionary, and reads one of each."""

    def __init__(self) -> None:
        super().__init__()
        self.items = [torch.zeros(4), torch.zeros(4)]
        self.pair = (torch.zeros(4), 2)
        self.table = {"a": torch.zeros(4)}
        self.read_items, self.read_table = [torch.ones(4)], {"a": torch.ones(4)}
        self.read_pair = (torch.ones(4), 2)

    def forward(self, x: Tensor) -> Tensor:
        self.items[1].add_(1)
        self.pair[0].add_(2)
        self.table["a"].add_(3)
        written = self.items[0] + self.items[1] + self.pair[0] * self.pair[1] + self.table["a"]
        read = self.read_items[0] + self.read_table["a"] + self.read_pair[0] * self.read_pair[1]
        return written + read + x


class KeepsInList(nn.Module):
    """Writes to a buffer by way of a list into which it was put the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.zeros(4))
        self.items = [torch.zeros(4)]

    def forward(self, x: Tensor) -> Tensor:
        self.items[0].add_(2)
        self.items[0] = self.b
        return self.items[0] + self.b + x


class Dictionary(nn.Module):
    """Counts what it sees."""

    counts: Dict[int, int]  # noqa: UP006
    last: Dict[str, Tensor]  # noqa: UP006

    def __init__(self) -> None:
        super().__init__()
        self.counts, self.last, self.read = {}, {}, {"a": 3, "b": 4}

    def forward(self, x: Tensor) -> Tuple[Dict[int, int], Dict[str, Tensor], int]:  # noqa: UP006
        batch = x.size(0)
        self.counts[batch] = self.counts.get(batch, 0) + 1
        self.last["x"] = x if "x" not in self.last else torch.cat([self.last["x"], x])
        return self.counts, self.last, self.read["b"]


class Stream(nn.Module):
    """A state that grows."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("state", torch.zeros(1, 4))
        self.linear = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        self.state = torch.cat([self.state[-2:], self.linear(x)])
        return self.state.cumsum(0)


class Lazy(nn.Module):
    """A state that the first call makes."""

    state: Optional[Tensor]  # noqa: UP045
    never: Optional[Tensor]  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.state, self.never = None, None

    def forward(self, x: Tensor) -> Tensor:
        state, never = self.state, self.never
        new = x if state is None else state + x
        self.state = new
        return new if never is None else new + never


class OnlyInTraining(nn.Module):
    """What it writes to in training is read otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.dropout = nn.BatchNorm1d(4), nn.Dropout()
        self.calls = 3
        self.register_buffer("total", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        if self.training:
            self.calls += 1
            self.total = self.total + 1
            self.total.add_(1)
        return self.dropout(self.norm(x)) * self.total + self.calls


class Measures(nn.Module):
    """Statistics are measured, whatever the mode."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(3))
        self.register_buffer("var", torch.ones(3))
        self.register_buffer("weight", torch.full((3,), 2.0))

    def forward(self, x: Tensor) -> Tensor:
        y = F.batch_norm(x, self.mean, self.var, self.weight, training=True)
        return y.mean((0, 2, 3)) + self.mean + self.var


class MeasuresInstances(Measures):
    """The same by the norm of single images."""

    def forward(self, x: Tensor) -> Tensor:
        y = F.instance_norm(x, self.mean, self.var, self.weight, use_input_stats=True)
        return y.mean((0, 2, 3)) + self.mean + self.var


class NormInTraining(nn.Module):
    """A batch norm that stays in training mode, and one in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.trained, self.fixed = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
        for value in (*self.parameters(), *self.buffers()):
            if value.is_floating_point():
                value.data.uniform_(0.5, 2)

    def train(self, mode: bool = True) -> "NormInTraining":
        super().train(mode)
        self.trained.train()
        return self

    def forward(self, x: Tensor) -> Tensor:
        return self.fixed(self.trained(x)).mean((0, 2, 3)) + self.trained.running_mean


class Never(nn.Module):
    """Calls one of three modules."""

    def __init__(self) -> None:
        super().__init__()
        self.used, self.unused, self.counter = nn.Linear(4, 4), nn.Linear(100, 100), Counter()
        self.switch = False

    def forward(self, x: Tensor) -> Tensor:
        if self.switch:
            x = self.counter(x)
        return self.used(x)


@torch.jit.interface
class Layer(nn.Module):
    """A module that has one of several classes."""

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[empty-body]
        pass


def apply_layer(layer: Layer, x: Tensor) -> Tensor:
    """Call a module that a function is given."""
    return layer.forward(x)


class Interface(nn.Module):
    """Calls modules that are known by their interface only."""

    first: Layer
    second: Layer

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Counter(), Middle(TensorCounter())

    def forward(self, x: Tensor) -> Tensor:
        return apply_layer(self.second, self.first.forward(x))


class Forks(nn.Module):
    """Calls one module on the side and waits for it."""

    def __init__(self) -> None:
        super().__init__()
        self.side, self.own = Middle(Counter()), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        future = torch.jit.fork(self.side, x)
        y = self.own(x)
        return torch.jit.wait(future) + y


class NestedForks(nn.Module):
    """What is called on the side does the same; two wait for one."""

    def __init__(self) -> None:
        super().__init__()
        self.forks = Forks()

    def forward(self, x: Tensor) -> Tensor:
        future = torch.jit.fork(self.forks, x)
        y = torch.relu(x)
        return torch.jit.wait(future) + y * torch.jit.wait(future)


class ForksInterface(nn.Module):
    """Calls an interface on the side."""

    side: Layer

    def __init__(self) -> None:
        super().__init__()
        self.side = Counter()

    def forward(self, x: Tensor) -> Tensor:
        future = torch.jit.fork(self.side.forward, x)
        y = torch.relu(x)
        return torch.jit.wait(future) + y


class ForksInBranch(nn.Module):
    """Waits within a branch, and nobody waits for the second."""

    def __init__(self) -> None:
        super().__init__()
        self.side, self.other = nn.Linear(4, 4), nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        future = torch.jit.fork(self.side, x)
        torch.jit.fork(self.other, x)
        y = torch.relu(x)
        if bool(x.sum() > 0):
            y = y + torch.jit.wait(future)
        return y


class FutureList(nn.Module):
    """Waits for several that are kept in a list."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(4, 4) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        futures: List[torch.jit.Future[Tensor]] = []  # noqa: UP006
        for layer in self.layers:
            futures.append(torch.jit.fork(layer, x))
        for future in futures:
            x = x + torch.jit.wait(future)
        return x


@torch.jit.script
class Holder:
    """A class that is no module."""

    def __init__(self, value: Tensor, calls: int) -> None:
        self.value = value
        self.calls = calls

    def count(self, by: int) -> int:
        self.calls += by
        return self.calls


class HasHolder(nn.Module):
    """Instances of a class: one that is written to and one that is read."""

    def __init__(self) -> None:
        super().__init__()
        self.holder, self.read = Holder(torch.zeros(4), 0), Holder(torch.ones(4), 5)

    def forward(self, x: Tensor) -> Tensor:
        self.holder.value.add_(1)
        return x + self.holder.value + self.holder.count(2) + self.read.value * self.read.calls


class KeepsInHolder(nn.Module):
    """Writes to a buffer by way of an instance into which it was put the call before."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("b", torch.zeros(4))
        self.holder = Holder(torch.zeros(4), 0)

    def forward(self, x: Tensor) -> Tensor:
        self.holder.value.add_(2)
        self.holder.value = self.b
        return self.holder.value + self.b + x


class Point(NamedTuple):
    """A tuple with names."""

    x: Tensor
    weight: float


class Color(enum.Enum):
    """Two numbers."""

    RED = 1
    BLUE = 2


def double(x: Tensor) -> Tensor:
    """A function to have as an attribute."""
    return 2 * x


class Literals(nn.Module):
    """Attributes of all kinds, which are read."""

    empty: List[int]  # noqa: UP006
    nothing: Optional[Tensor]  # noqa: UP045
    maybe: Optional[int]  # noqa: UP045
    empty_table: Dict[str, int]  # noqa: UP006
    point: Point

    def __init__(self) -> None:
        super().__init__()
        self.number, self.ratio, self.flag, self.text = 3, 0.5, True, 'a "word"\n'
        self.infinite = float("inf")
        self.pair, self.empty, self.nothing, self.maybe = (2, "two", (1.5, None)), [], None, 4
        self.point, self.color, self.where = Point(torch.ones(4), 0.25), Color.BLUE, double
        self.table, self.empty_table = {"a": [1, 2], "b": [3]}, {}
        self.kind, self.device, self.phase = torch.float64, torch.device("cpu"), 1 + 2j
        self.words, self.ratios, self.flags = ["a", "b"], [0.5, 1.5], [True, False]

    def forward(self, x: Tensor) -> Dict[str, Tensor]:  # noqa: UP006
        maybe = self.maybe
        if self.flag and self.nothing is None and maybe is not None:
            x = x * maybe
        if self.color == Color.BLUE:
            x = x + len(self.empty) + len(self.empty_table) + len(self.text)
        x = self.where(x) * self.number + self.ratio + self.pair[0] + self.pair[2][0]
        x = x.clamp(max=self.infinite) + self.point.x * self.point.weight
        x = x + sum(self.table["a"]) + self.ratios[1] + abs(self.phase)
        if self.words[1] == "b" and self.flags[0]:
            x = x.to(device=self.device, dtype=self.kind)
        return {self.pair[1]: x, self.text: x + 1}


class ReturnsLiterals(Literals):
    """The same, returned as they are."""

    def forward(
        self, x: Tensor
    ) -> Tuple[  # noqa: UP006
        Optional[Tensor],  # noqa: UP045
        Optional[int],  # noqa: UP045
        List[int],  # noqa: UP006
        Dict[str, int],  # noqa: UP006
        Tuple[int, str, Tuple[float, Optional[Tensor]]],  # noqa: UP006, UP045
        Dict[str, List[int]],  # noqa: UP006
        List[str],  # noqa: UP006
        complex,
    ]:
        pair = (self.pair[0], self.pair[1], (self.pair[2][0], self.nothing))
        return (
            self.nothing,
            self.maybe,
            self.empty,
            self.empty_table,
            pair,
            self.table,
            self.words,
            self.phase,
        )


class Assigned(nn.Module):
    """Attributes of all kinds, which are assigned."""

    maybe: Optional[int]  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.number, self.ratio, self.flag, self.text = 3, 0.5, True, "a"
        self.pair, self.maybe, self.words = (1, "x"), None, ["a"]

    def forward(self, x: Tensor) -> Tuple[Tensor, int, float, bool, str, Tuple[int, str]]:  # noqa: UP006
        maybe = self.maybe
        self.maybe = 1 if maybe is None else maybe + 1
        self.number, self.ratio, self.flag = self.number * 2, self.ratio / 2, not self.flag
        self.text = self.text + "b"
        self.pair = (self.pair[0] + 1, self.pair[1] + "y")
        self.words = self.words + [self.text]  # noqa: RUF005
        return x * len(self.words), self.number, self.ratio, self.flag, self.text, self.pair


class Iterates(nn.Module):
    """Lists, dictionaries and sequences of modules and of parameters."""

    def __init__(self) -> None:
        super().__init__()
        self.list = nn.ModuleList([nn.Linear(4, 4), TensorCounter(), TensorCounter()])
        self.dict = nn.ModuleDict({"first": nn.Linear(4, 4), "second": TensorCounter()})
        self.sequence = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), TensorCounter())
        self.biases = nn.ParameterList([nn.Parameter(torch.full((4,), float(i))) for i in (1, 2)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.list:
            x = layer(x)
        for index, layer in enumerate(self.list):
            x = layer(x) + index
        for key, layer in self.dict.items():
            x = layer(x) + len(key)
        for bias in self.biases:
            x = x + bias
        return self.sequence(x) + self.dict["second"](x) + self.sequence[0](self.list[-1](x))


def double_input(module: nn.Module, args: Tuple[Tensor]) -> Tuple[Tensor]:  # noqa: UP006
    """What a module is given."""
    return (args[0] * 2,)


def add_input(module: nn.Module, args: Tuple[Tensor], result: Tensor) -> Tensor:  # noqa: UP006
    """What a module returns."""
    return result + args[0]


class Hooked(nn.Module):
    """Calls a module that has hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = Middle(TensorCounter())
        self.inner.register_forward_pre_hook(double_input)
        self.inner.register_forward_hook(add_input)

    def forward(self, x: Tensor) -> Tensor:
        return self.inner(x)


class Shapes(nn.Module):
    """What a trace writes the shapes of its example next to."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(4, 6)
        self.register_buffer("state", torch.zeros(1, 6))

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x).view(x.size(0), 2, 3).transpose(1, 2)
        self.state += y.reshape(-1, 6).mean(0, keepdim=True)
        return y.flatten(1).expand(x.size(0), 6) + self.state.expand_as(y.flatten(1))


class WrittenParameter(nn.Module):
    """A parameter that is written to without a gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.moving, self.fixed = nn.Parameter(torch.zeros(4)), nn.Parameter(torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            self.moving.add_(1)
        return x * self.moving + self.fixed


class Recurrent(nn.Module):
    """An LSTM, which has its parameters in a list too."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.lstm(x)[0]


class Attention(nn.Module):
    """Attention, whose module has a fast path and many attributes."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2)

    def forward(self, x: Tensor) -> Tensor:
        return self.attention(x, x, x)[0]


@dataclass(frozen=True)
class Case:
    """A model, what stays of it, and its calls.

    Attributes:
        make: makes the eager model.
        stays: paths of the attributes that the frozen module has, but `training`.
        calls: makes the arguments of consecutive calls.
        trace: whether a trace records what it does.
        one_name: the path under which a trace has what has several.
        loaded: what stays in addition when the model was loaded: named tuples have lost their name.
    """

    make: Callable[[], nn.Module]
    stays: tuple[str, ...] = ()
    calls: Callable[[], list[Args]] = vectors
    trace: bool = True
    one_name: str = ""
    loaded: tuple[str, ...] = ()

    def paths(self, frontend: str) -> list[str]:
        """What stays, as this frontend calls it."""
        if frontend == "trace" and self.one_name:
            return [self.one_name]
        return sorted((*self.stays, *(self.loaded if frontend == "load" else ())))


CASES = [
    Case(ConvNormRelu, calls=images),
    Case(Nested, ("middle.inner.calls", "middle.inner.total"), trace=False),
    Case(NestedTensor, ("middle.inner.total",)),
    Case(ParentWrites, ("child.calls", "child.total"), trace=False),
    Case(Element, ("buf",)),
    Case(View, ("buf",)),
    Case(Chunk, ("buf",)),
    Case(Out, ("buf",)),
    Case(Result, ("buf",)),
    Case(Either, ("a", "b"), trace=False),
    Case(Both, ("a", "b")),
    Case(SwapThenWrite, ("a", "b"), trace=False),
    Case(WriteThenSwap, ("a", "b"), trace=False),
    Case(SwapView, ("a", "b"), trace=False),
    Case(Exchange, ("a", "b"), trace=False),
    Case(Shared, ("a", "b"), trace=False),
    Case(SharedAcross, ("one.buf", "two.total"), one_name="one.buf"),
    Case(SharedInList, ("a", "items"), trace=False),
    Case(
        TwoNames,
        ("one.calls", "one.total", "other.calls", "other.total", "two.calls", "two.total"),
        trace=False,
    ),
    Case(CalledTwice, ("one.total", "two.total"), one_name="one.total"),
    Case(AppendsNumbers, ("left", "seen"), trace=False),
    Case(AddsToList, ("seen",), trace=False),
    Case(AppendsTensors, ("seen",), trace=False),
    Case(  # what comes out of one container could be from any
        Containers,
        ("items", "pair", "read_items", "read_pair", "read_table", "table"),
        trace=False,
    ),
    Case(KeepsInList, ("b", "items"), trace=False),
    Case(Dictionary, ("counts", "last"), trace=False),
    Case(Stream, ("state",), trace=False),
    Case(Lazy, ("state",), calls=rows, trace=False),
    Case(OnlyInTraining),
    Case(Measures, ("mean", "var"), images),
    Case(MeasuresInstances, ("mean", "var"), images),
    Case(
        NormInTraining,
        ("trained.num_batches_tracked", "trained.running_mean", "trained.running_var"),
        images,
    ),
    Case(Never),
    Case(Interface, ("first.calls", "first.total", "second.inner.total"), trace=False),
    Case(Forks, ("side.inner.calls", "side.inner.total"), trace=False),
    Case(NestedForks, ("forks.side.inner.calls", "forks.side.inner.total"), trace=False),
    Case(ForksInterface, ("side.calls", "side.total"), trace=False),
    Case(ForksInBranch, trace=False),
    Case(
        FutureList,
        tuple(f"layers.{i}.{name}" for i in range(3) for name in ("bias", "weight")),
        trace=False,
    ),
    Case(HasHolder, ("holder", "read"), trace=False),
    Case(KeepsInHolder, ("b", "holder"), trace=False),
    Case(Literals, trace=False, loaded=("point",)),
    Case(ReturnsLiterals, trace=False),
    Case(Assigned, ("flag", "maybe", "number", "pair", "ratio", "text", "words"), trace=False),
    Case(Iterates, ("dict.second.total", "list.1.total", "list.2.total", "sequence.2.total")),
    Case(Hooked, ("inner.inner.total",), trace=False),
    Case(Shapes, ("state",)),
    Case(WrittenParameter, ("moving",)),
    Case(Recurrent, trace=False),
    Case(Attention),
]


def everywhere(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test on all models, by all frontends."""
    rows = [
        pytest.param(
            case,
            frontend,
            id=f"{case.make.__name__}-{frontend}",
        )
        for case in CASES
        for frontend in ("script", "load", "trace")
        if case.trace or frontend != "trace"
    ]
    return pytest.mark.parametrize(("case", "frontend"), rows)(test)


def build(case: Case, frontend: str) -> tuple[nn.Module, Script]:
    """An eager model, and a module of TorchScript with the same values but memory of its own."""
    torch.manual_seed(0)
    model = case.make().eval()
    if frontend == "trace":
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore", torch.jit.TracerWarning)
            module = torch.jit.trace(model, case.calls()[0], check_trace=False)
    else:
        module = torch.jit.script(model)
    if frontend == "load":
        module = reload(module)
    return copy.deepcopy(model), module


# Tests of all models.


@everywhere
def test_runs_as_before(case: Case, frontend: str) -> None:
    """The results and the state of consecutive calls are those of the eager model."""
    model, module = build(case, frontend)
    frozen = freeze(module)
    if frontend == "load":  # nobody else has its classes
        del module
        gc.collect()
    expected = run(model, case.calls())
    assert len({str(outcome) for outcome in expected}) > 1
    assert_same(expected, run(frozen, case.calls()), "frozen")
    assert_same_state(model, state(frozen, model), "state")


@everywhere
def test_caller_keeps_its_module(case: Case, frontend: str) -> None:
    """Freezing leaves it as it was, and so does running what was frozen; then it runs as ever."""
    model, module = build(case, frontend)
    attributes, text = state(module, model), graphs(module)
    tensors = {name: (value, clone(value)) for name, value in module.state_dict().items()}
    frozen = freeze(module)
    assert_same(attributes, state(module, model), "freezing")
    run(frozen, case.calls())
    assert_same(attributes, state(module, model), "running")
    assert graphs(module) == text
    assert all(torch.equal(value, before) for value, before in tensors.values())
    assert_same(run(model, case.calls()), run(module, case.calls()), "the caller's")


@everywhere
def test_what_stays(case: Case, frontend: str) -> None:
    """What the method changes, at its path, and one mode; parameters and buffers are still that."""
    model, module = build(case, frontend)
    frozen = freeze(module)
    assert sorted(state(frozen, model)) == case.paths(frontend)
    if "prim::fork" not in kinds(frozen):  # which PyTorch freezes
        assert frozen._c.hasattr("training") and not frozen.training
    paths = {
        name: {path for path, _ in getattr(module, name)(remove_duplicate=False)}
        for name in ("named_buffers", "named_parameters")
    }
    for name, known in paths.items():
        found = {path for path, _ in getattr(frozen, name)(remove_duplicate=False)}
        assert found == known & set(case.paths(frontend)), name
    assert frozen._c._method_names() == ["forward"]
    frozen.eval()
    assert_same(run(model, case.calls()), run(frozen, case.calls()), "after eval()")


@everywhere
def test_survives_a_file(case: Case, frontend: str) -> None:
    """Saved fresh or after two calls: equal to the bit in the calls that follow."""
    model, module = build(case, frontend)
    frozen, calls = freeze(module), case.calls()
    loaded = reload(frozen)
    expected = run(model, calls)
    assert_same(expected, run(loaded, calls), "saved fresh")
    run(frozen, calls[:2])
    assert_same(expected[2:], run(reload(frozen), calls[2:]), "saved later")
    assert_same_state(model, state(loaded, model), "state")


@everywhere
def test_freezing_again(case: Case, frontend: str) -> None:
    """Of a frozen module that has run: what stays is the same, with its values of now."""
    model, module = build(case, frontend)
    once, calls = freeze(module), case.calls()
    expected = run(model, calls)
    run(once, calls[:2])
    twice = freeze(once)
    assert sorted(state(twice, model)) == case.paths(frontend)
    assert_same(expected[2:], run(once, calls[2:]), "frozen once")
    assert_same(expected[2:], run(twice, calls[2:]), "frozen twice")


@everywhere
def test_constants_need_no_gradient(case: Case, frontend: str) -> None:
    """Whatever the parameters did."""
    frozen = freeze(build(case, frontend)[1])
    for node in frozen.graph.findAllNodes("prim::Constant"):
        value = node.output().toIValue()
        assert not isinstance(value, Tensor) or not value.requires_grad


# Tests of single things.


def assert_freezes(
    make: Callable[[], nn.Module], calls: Callable[[], list[Args]] = vectors
) -> Script:
    """Freeze a scripted model, run both, see that the caller's is untouched, return the frozen."""
    model, module = build(Case(make), "script")
    before = state(module, model)
    frozen = freeze(module)
    assert_same(run(model, calls()), run(frozen, calls()), "frozen")
    assert_same_state(model, state(frozen, model), "state")
    assert_same(before, state(module, model), "the caller's")
    return frozen


def test_nothing_is_left() -> None:
    """Of a model without state: no parameter, no module, and no read of an attribute."""
    frozen = freeze(build(Case(ConvNormRelu), "script")[1])
    assert not list(frozen.named_parameters()) and not list(frozen.named_buffers())
    assert not list(frozen.named_children()) and not frozen.state_dict()
    assert not kinds(frozen) & {"prim::GetAttr", "prim::SetAttr"}


def test_unused_modules_vanish() -> None:
    """And their parameters are not in the file."""
    _, module = build(Case(Never), "script")
    file, frozen = io.BytesIO(), freeze(module)
    torch.jit.save(frozen, file)
    assert len(file.getvalue()) < 100 * 100 * 4 // 2
    assert not any(hasattr(frozen, name) for name in ("used", "unused", "counter", "switch"))


def test_modules_without_state_vanish() -> None:
    """What is on the way to state stays, what is beside it does not."""
    frozen = freeze(build(Case(Nested), "script")[1])
    assert [name for name, _ in frozen.named_modules()] == ["", "middle", "middle.inner"]


def test_names_of_constants() -> None:
    """A constant is named after the first path that leads to it, and is there once."""
    frozen = freeze(build(Case(Nested), "script")[1])
    constants = [node.output() for node in frozen.graph.findAllNodes("prim::Constant")]
    found = [value.debugName() for value in constants if isinstance(value.toIValue(), Tensor)]
    assert sorted(found) == [
        "last.bias",
        "last.weight",
        "middle.inner.scale",
        "middle.linear.bias",
        "middle.linear.weight",
    ]


def test_two_names_stay_one() -> None:
    """A module that has two names has them in the frozen one, and after a file."""
    frozen = freeze(build(Case(TwoNames), "script")[1])
    loaded = reload(frozen)
    for module in (frozen, loaded):
        module(torch.ones(1, 4))
        assert module.one.calls == module.two.calls == 4
        assert module.other.calls == 2
        assert module.one.total.data_ptr() == module.two.total.data_ptr()


def test_frozen_modules_are_independent() -> None:
    """Two of one module each have a state of their own, which starts where the caller's is."""
    model, module = build(Case(Nested), "script")
    x = vectors()[0][0]
    module(x)
    model(x)
    first, second = freeze(module), freeze(module)
    expected = run(model, vectors())
    assert_same(expected, run(first, vectors()), "first")
    assert_same(expected, run(second, vectors()), "second")


@pytest.mark.parametrize("frontend", ["script", "trace"])
def test_outlives_the_original(frontend: str) -> None:
    """Loaded, frozen, and run when the module that it was made from is gone."""
    model, module = build(Case(NestedTensor), frontend)
    loaded, total = reload(module), module.middle.inner.total.clone()
    del module
    frozen = freeze(loaded)
    del loaded
    gc.collect()
    file = io.BytesIO()
    torch.jit.save(frozen, file)
    assert_same(run(model, vectors()), run(frozen, vectors()), "frozen")
    del frozen
    gc.collect()
    file.seek(0)
    assert torch.equal(torch.jit.load(file).middle.inner.total, total)


def test_trace_forgets_shapes() -> None:
    """Values have no shape in the graph, and batches of any size run."""
    model, module = build(Case(Shapes), "trace")
    assert "Float(2, 6" in str(module.inlined_graph)
    frozen = freeze(module)
    values = [output for node in frozen.graph.nodes() for output in node.outputs()]
    values += list(frozen.graph.inputs())
    for value in values:
        if value.node().kind() != "prim::Constant":
            assert "Float(" not in str(value.type()), value
    for batch in (1, 2, 7):
        calls = [(torch.randn(batch, 4),)] * 3
        assert_same(run(model, calls), run(frozen, calls), f"batch of {batch}")


def test_long_chain() -> None:
    """The operands of 300 convolutions are constants, in order."""
    torch.manual_seed(0)
    layers: list[nn.Module] = []
    for _ in range(300):
        layers += [nn.Conv2d(2, 2, 1), nn.ReLU()]
    module = torch.jit.script(nn.Sequential(*layers).eval())
    frozen = freeze(module)
    convolutions = frozen.graph.findAllNodes("aten::conv2d")
    assert len(convolutions) == 300
    for node, layer in zip(convolutions, layers[::2], strict=True):
        _, weight, bias = list(node.inputs())[:3]
        assert weight.node().kind() == bias.node().kind() == "prim::Constant"
        assert torch.equal(weight.toIValue(), layer.weight)
        assert torch.equal(bias.toIValue(), layer.bias)
    assert not frozen.state_dict() and not kinds(frozen) & {"prim::GetAttr", "prim::CallMethod"}


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


# Sharing.


class SharedView(nn.Module):
    """One tensor is a part of another."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.register_buffer("b", self.a[1:3])

    def forward(self, x: Tensor) -> Tensor:
        self.a.add_(1)
        return self.b * x.mean()


def test_shared_view() -> None:
    """Writing to the one is writing to the other."""
    frozen = assert_freezes(SharedView)
    assert [name for name, _ in frozen.named_buffers()] == ["a", "b"]


class SharedWithHolder(nn.Module):
    """A buffer is also the tensor of an instance of a class, through which it is written to."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("a", torch.zeros(4))
        self.holder = Holder(self.a, 0)

    def forward(self, x: Tensor) -> Tensor:
        self.holder.value.add_(2)
        return self.a + x


def test_shared_with_an_instance() -> None:
    """Writing to the one is writing to the other."""
    frozen = assert_freezes(SharedWithHolder)
    assert [name for name, _ in frozen.named_buffers()] == ["a"]


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


@pytest.mark.parametrize("make", [Swaps, Indexes, Picks])
def test_unknown_modules_are_refused(make: Callable[[], nn.Module]) -> None:
    """There is no graph without calls; the error says so, and the caller's module is as it was."""
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


# Gradients.


@pytest.mark.parametrize(
    "make",
    [
        ConvNormRelu,
        WrittenParameter,
        Recurrent,
    ],
)
def test_gradients_stay_away(make: Callable[[], nn.Module]) -> None:
    """A gradient goes to the input, and not on to the caller's parameters."""
    _, module = build(Case(make), "script")
    frozen = freeze(module)
    assert all(parameter.is_leaf for parameter in frozen.parameters())
    calls = images() if make is ConvNormRelu else vectors()
    x = calls[0][0].requires_grad_()
    frozen(x).sum().backward()
    assert x.grad is not None and x.grad.any()
    assert all(parameter.grad is None for parameter in module.parameters())
    assert all(p.requires_grad for p in module.parameters())


# Methods and schemas.


class Methods(nn.Module):
    """Three methods with state, two of which call each other."""

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.counter, self.calls = nn.Linear(4, 4), TensorCounter(), 0
        self.register_buffer("offset", torch.ones(4))

    def forward(self, x: Tensor) -> Tensor:
        return self.encode(x, 3.0) + self.offset

    @torch.jit.export
    def encode(self, x: Tensor, scale: float = 2.0) -> Tensor:
        self.calls += 1
        return self.counter(self.linear(x)) * scale

    @torch.jit.export
    def shift(self) -> None:
        self.offset.add_(1)


@pytest.mark.parametrize(
    ("method", "stays", "calls"),
    [
        ("forward", ["calls", "counter.total"], vectors()),
        ("encode", ["calls", "counter.total"], [*vectors(), {"x": torch.ones(1, 4), "scale": 0.5}]),
        ("shift", ["offset"], [(), ()]),
    ],
)
def test_one_method(method: str, stays: list[str], calls: list[Args]) -> None:
    """Others go, with what only they change; what is called is inlined."""
    model, module = build(Case(Methods), "script")
    before, text = state(module, model), graphs(module)
    frozen = freeze(module, method)
    assert frozen._c._method_names() == [method]
    assert sorted(state(frozen, model)) == stays
    loaded = reload(frozen)
    expected = run(model, calls, method)
    assert_same(expected, run(frozen, calls, method), "frozen")
    assert_same(expected, run(loaded, calls, method), "loaded")
    assert_same_state(model, state(frozen, model), "state")
    assert_same_state(model, state(loaded, model), "loaded state")
    assert_same(before, state(module, model), "the caller's")
    assert graphs(module) == text


def test_unknown_method() -> None:
    """An error that names it."""
    with pytest.raises(RuntimeError, match="nonsense"):
        freeze(build(Case(Methods), "script")[1], "nonsense")


class Features(NamedTuple):
    """A result with names."""

    sums: Tensor
    count: int
    extra: Optional[Tensor]  # noqa: UP045


class Signature(nn.Module):
    """Arguments and results of all kinds."""

    nothing: Optional[Tensor]  # noqa: UP045

    def __init__(self) -> None:
        super().__init__()
        self.linear, self.nothing = nn.Linear(4, 4), None

    def forward(
        self,
        x: Tensor,
        scale: float = 2.0,
        shift: Optional[Tensor] = None,  # noqa: UP045
        sizes: Tuple[int, int] = (1, 2),  # noqa: UP006
        more: Optional[List[Tensor]] = None,  # noqa: UP006, UP045
        key: str = "y",
    ) -> Tuple[Features, Dict[str, Tensor], Optional[Tensor]]:  # noqa: UP006, UP045
        y = self.linear(x) * scale + sizes[1]
        if shift is not None:
            y = y + shift
        if more is not None:
            y = y + more[0]
        return Features(y.sum(0), sizes[0], shift), {key: y}, self.nothing


class KeywordOnly(nn.Module):
    """Two arguments that have no place."""

    def forward(self, x: Tensor, *, key: str, scale: int) -> Dict[str, Tensor]:  # noqa: UP006
        return {key: x * scale}


SIGNATURES: dict[type[nn.Module], list[Args]] = {
    Signature: [
        (torch.ones(2, 4),),
        (torch.ones(3, 4), 0.5, torch.ones(4)),
        {"x": torch.ones(1, 4), "key": "z", "sizes": (5, 6)},
        {"shift": torch.ones(4), "x": torch.ones(2, 4), "more": [torch.ones(4)]},
    ],
    KeywordOnly: [{"x": torch.ones(2), "key": "y", "scale": 3}],
}


@pytest.mark.parametrize("frontend", ["script", "load"])
@pytest.mark.parametrize("make", SIGNATURES)
def test_schema(make: type[nn.Module], frontend: str) -> None:
    """Names, types, defaults, keyword-only arguments and results are those of the method."""
    model, module = build(Case(make), frontend)
    frozen, calls = freeze(module), SIGNATURES[make]
    for caller, found in ((module, frozen), (reload(module), reload(frozen))):
        old, new = caller.forward.schema, found.forward.schema
        for one, other in ((old.arguments[1:], new.arguments[1:]), (old.returns, new.returns)):
            assert [argument.name for argument in one] == [argument.name for argument in other]
            for left, right in zip(one, other, strict=True):
                assert left.type.annotation_str == right.type.annotation_str
                assert left.has_default_value() == right.has_default_value()
                assert left.default_value == right.default_value
                assert left.kwarg_only == right.kwarg_only
        assert new.name == "forward" and new.arguments[0].type.str() == found._c._type().str()
        assert_same(run(model, calls), run(found, calls), "results")
        with pytest.raises(RuntimeError, match="missing value for argument 'x'"):
            found(key="y", scale=1)


class ReturnsPoint(nn.Module):
    """Returns an attribute whose type has names."""

    point: Point

    def __init__(self) -> None:
        super().__init__()
        self.point = Point(torch.ones(4), 0.25)

    def forward(self, x: Tensor) -> Point:
        return self.point


def test_named_tuple_attribute() -> None:
    """A constant that keeps its names."""
    frozen = freeze(torch.jit.script(ReturnsPoint().eval()))
    expected = ReturnsPoint()(torch.ones(1))
    assert_same(expected, frozen(torch.ones(1)), "frozen")
    assert_same(expected, reload(frozen)(torch.ones(1)), "loaded")


def test_named_tuple_attribute_of_a_loaded_module() -> None:
    """What was loaded returns a plain tuple, and what is frozen the same, after a file too."""
    module = reload(torch.jit.script(ReturnsPoint().eval()))
    frozen, expected = freeze(module), module(torch.ones(1))
    assert_same(expected, frozen(torch.ones(1)), "frozen")
    assert_same(expected, reload(frozen)(torch.ones(1)), "loaded")


class Numbered(nn.ParameterList):
    """Parameters of the first module, named by numbers."""

    def forward(self, x: Tensor) -> Tensor:
        for parameter in self:
            x = x + parameter
        return x


def test_attribute_named_by_a_number() -> None:
    """A constant like others."""
    module = torch.jit.script(Numbered([torch.ones(4), torch.full((4,), 2.0)]).eval())
    frozen = freeze(module)
    assert not frozen.state_dict()
    assert_same(run(module, vectors()), run(frozen, vectors()), "frozen")


def hooked() -> nn.Module:
    """A model that has hooks itself."""
    model = TensorCounter()
    model.register_forward_pre_hook(double_input)
    model.register_forward_hook(add_input)
    return model


def test_hooks_of_the_model() -> None:
    """They are no part of its method: refused, rather than lost."""
    with pytest.raises(JitPassesError, match="forward hooks of its own"):
        prepare(torch.jit.script(hooked().eval()))
