"""Models that call modules through interfaces, forks, lists and hooks."""

from typing import List, Tuple  # noqa: UP035

import torch
from torch import Tensor, nn

from .attributes import Counter, Middle, TensorCounter


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
    """A call on the side does the same; two wait for one."""

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
    """The arguments of a module."""
    return (args[0] * 2,)


def add_input(module: nn.Module, args: Tuple[Tensor], result: Tensor) -> Tensor:  # noqa: UP006
    """The result of a module."""
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
