"""Models that change their attributes, directly, in views, or under several names."""

import torch
from torch import Tensor, nn


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
    """Tensors in nested modules, without a number."""

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
