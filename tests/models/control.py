"""Models with branches and loops, including branches that calibration never takes."""

import torch
from torch import Tensor, nn

from .case import Case, conv, images


class TwoWays(nn.Module):
    """Base: two convolutions, `usual` and `rare`, of which a call takes one."""

    def __init__(self) -> None:
        super().__init__()
        self.usual = conv()
        self.rare = conv()
        self.head = conv(8, 4)


class ShapeBranch(TwoWays):
    """Images larger than those of calibration go another way."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.rare(x) if x.size(2) > 8 else self.usual(x)
        return self.head(torch.relu(y))


class BoolBranch(TwoWays):
    """An argument decides."""

    def forward(self, x: Tensor, fine: bool = False) -> Tensor:
        y = torch.relu(self.usual(x))
        if fine:
            y = y + torch.relu(self.rare(x))
        return self.head(y)


class DataBranch(TwoWays):
    """The data decides."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.usual(x) if bool(x.mean() > 0) else self.rare(x)
        return self.head(torch.relu(y))


class BranchOutput(TwoWays):
    """The two ways end in two outputs, one of them early."""

    def forward(self, x: Tensor) -> Tensor:
        if bool(x.mean() < 0):
            return self.rare(x)
        return torch.relu(self.usual(x)) * 2


class BothBranches(TwoWays):
    """Both branches are calibrated, and have ranges of their own."""

    def forward(self, x: Tensor, rare: bool) -> Tensor:
        y = self.rare(x * 5) if rare else self.usual(x)
        return self.head(torch.relu(y) if rare else torch.sigmoid(y))


class Checks(nn.Module):
    """An assertion and an exception before the work, as careful authors write them."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, x: Tensor) -> Tensor:
        assert x.dim() == 4, "expected a batch of images"
        if x.size(1) != 4:
            raise ValueError("expected 4 channels")
        return torch.relu(self.conv(x))


class ModuleLoop(nn.Module):
    """A loop over a ModuleList, which scripting unrolls, with dense connections."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(conv(4 + 4 * i, 4) for i in range(3))

    def forward(self, x: Tensor) -> Tensor:
        maps = [x]
        for layer in self.layers:
            maps.append(torch.relu(layer(torch.cat(maps, 1))))
        return torch.cat(maps, 1)


class CountedLoop(nn.Module):
    """A loop whose count is an argument; its convolution runs anew on its own output."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(4, 4)
        self.body = conv(4, 4)

    def forward(self, x: Tensor, n: int) -> Tensor:
        x = self.stem(x)
        for _ in range(n):
            x = torch.relu(self.body(x)) + x
        return x


class DataLoop(nn.Module):
    """A loop whose count the data decides."""

    def __init__(self) -> None:
        super().__init__()
        self.body = conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        steps = int(x.abs().amax().item()) % 2 + 2
        maps: list[Tensor] = []
        for _ in range(steps):
            x = torch.tanh(self.body(x))
            maps.append(x)
        return maps[0] + maps[1]


class WhileLoop(nn.Module):
    """A while loop with a branch inside it."""

    def __init__(self) -> None:
        super().__init__()
        self.even = conv(4, 4)
        self.odd = conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        step = 0
        while step < 3:
            x = torch.relu(self.even(x)) if step % 2 == 0 else torch.tanh(self.odd(x))
            step += 1
        return x


class LoopOverBatch(nn.Module):
    """Every image of the batch on its own; calibration sees several sizes of list."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, x: Tensor) -> Tensor:
        return torch.stack([torch.relu(self.conv(image.unsqueeze(0)))[0] for image in x])


class OptionalRefine(nn.Module):
    """An Optional submodule attribute and an Optional value."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.down: nn.Module | None = None

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        if self.down is not None:
            y = self.down(y)
        return torch.relu(y)


class MethodCalls(nn.Module):
    """forward goes through other methods, and through a method of a submodule."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = OptionalRefine()
        self.conv = conv(8, 4)

    def head(self, x: Tensor) -> Tensor:
        return self.conv(x)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.inner.forward(x))


class Forked(nn.Module):
    """Two convolutions in tasks of their own; whether these are quantized is left open."""

    def __init__(self) -> None:
        super().__init__()
        self.left = conv()
        self.right = conv()
        self.head = conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        task = torch.jit.fork(self.left, x)
        y = self.right(x)
        return self.head(torch.relu(torch.jit.wait(task) + y))


def _either(n: int) -> tuple[Tensor, bool]:
    """Takes either branch, on the toss of torch's seeded generator."""
    return torch.randn(n, 4, 8, 8), bool(torch.rand(()) > 0.5)


SHARED_RANGE = 20.0
"""Floor in dB where one range serves values of several distributions: iterations or branches."""

CASES = [
    Case(
        "shape_branch",
        ShapeBranch,
        images(),
        int8=2,
        trace=False,
        warning="rare",
        others=images(4, 16),
    ),
    Case(
        "bool_branch",
        BoolBranch,
        images(),
        int8=2,
        trace=False,
        warning="rare",
        floor=SHARED_RANGE,
        others=lambda n: (torch.randn(n, 4, 8, 8), True),
    ),
    Case(
        "data_branch",
        DataBranch,
        images(),
        int8=2,
        trace=False,
        warning="rare",
        others=lambda n: (torch.randn(n, 4, 8, 8) - 0.3,),
    ),
    Case(
        "branch_output",
        BranchOutput,
        images(),
        trace=False,
        warning="rare",
        others=lambda n: (torch.randn(n, 4, 8, 8) - 0.3,),
    ),
    Case("both_branches", BothBranches, _either, int8=3, trace=False, floor=SHARED_RANGE),
    Case("checks", Checks, images()),
    Case("module_loop", ModuleLoop, images(), int8=3),
    Case(
        "counted_loop",
        CountedLoop,
        lambda n: (torch.randn(n, 4, 8, 8), 3),
        trace=False,
        floor=SHARED_RANGE,
        others=lambda n: (torch.randn(n, 4, 8, 8), 0),
    ),
    Case("data_loop", DataLoop, images(), int8=0, trace=False, floor=SHARED_RANGE),
    Case("while_loop", WhileLoop, images(), int8=0, trace=False, floor=SHARED_RANGE),
    Case("loop_over_batch", LoopOverBatch, images(), int8=0, trace=False),
    Case("optional_refine", OptionalRefine, images()),
    Case("method_calls", MethodCalls, images(), int8=2),
    Case("forked", Forked, images(), trace=False),
]
