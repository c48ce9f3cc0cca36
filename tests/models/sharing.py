"""Models in which a module, a weight or a value is used more than once, or never."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .case import Case, conv, images, values


class UnusedSubmodule(nn.Module):
    """`spare` is never called and must survive with its weights."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.spare = nn.Sequential(nn.Conv2d(8, 8, 3), nn.BatchNorm2d(8))

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.conv(x))


class ConvCalledTwice(nn.Module):
    """One convolution over two feature maps of very different ranges."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv(torch.relu(self.conv(x)) * 8)


class BlockCalledTwice(nn.Module):
    """A whole block with a normalization, called on two scales."""

    def __init__(self) -> None:
        super().__init__()
        self.block = nn.Sequential(conv(), nn.BatchNorm2d(8), nn.ReLU())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.block(x), self.block(F.avg_pool2d(x, 2))


class ConvTwoNorms(nn.Module):
    """One convolution feeds two normalizations: at most one could be folded, and none safely."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.first = nn.BatchNorm2d(8)
        self.second = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return torch.relu(self.first(y)) + torch.relu(self.second(y))


class SharedConvTwoNorms(nn.Module):
    """One convolution called twice, each time followed by a normalization of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.first = nn.BatchNorm2d(8)
        self.second = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.first(self.conv(x)) + self.second(self.conv(-x))


class NormAndRaw(nn.Module):
    """A convolution's output goes to its normalization and past it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv(x)
        return torch.relu(self.norm(y)) + y


class ReluAndRaw(nn.Module):
    """A convolution's output goes to a ReLU and past it."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.relu = nn.ReLU()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv(x)
        return self.relu(y), y * 2


class TiedLinears(nn.Module):
    """Two linear layers with one weight and two biases."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(16, 16)
        self.second = nn.Linear(16, 16)
        self.second.weight = self.first.weight

    def forward(self, x: Tensor) -> Tensor:
        return self.second(torch.relu(self.first(x)))


class TiedEmbedding(nn.Module):
    """The embedding's table is also the weight of the last layer, as in language models."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(40, 16)
        self.hidden = nn.Linear(16, 16)
        self.head = nn.Linear(16, 40, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(torch.tanh(self.hidden(self.embedding(ids))))


class WeightReadElsewhere(nn.Module):
    """The weight of a convolution is itself an output: folding must not show there."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.norm = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        return self.norm(self.conv(x)), self.conv.weight.square().sum()


class ComputedWeight(nn.Module):
    """The weight of the second convolution is computed in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.weight = nn.Parameter(torch.randn(4, 8, 3, 3) / 8)

    def forward(self, x: Tensor) -> Tensor:
        return F.conv2d(torch.relu(self.conv(x)), self.weight * 2, padding=1)


class WeightFromInput(nn.Module):
    """The weight of the second convolution depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.weight = nn.Parameter(torch.randn(4, 8, 1, 1) / 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv(x))
        return F.conv2d(y, self.weight * y.mean())


class FunctionalWeights(nn.Module):
    """Plain parameters given to functional convolution and linear."""

    def __init__(self) -> None:
        super().__init__()
        self.kernel = nn.Parameter(torch.randn(8, 4, 3, 3) / 6)
        self.matrix = nn.Parameter(torch.randn(5, 8) / 3)
        self.bias = nn.Parameter(torch.randn(5))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(F.conv2d(x, self.kernel, padding=1)).mean([2, 3])
        return F.linear(y, self.matrix, self.bias)


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv(4, 4)
        self.conv2 = conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x + self.conv2(torch.relu(self.conv1(x))))


class SelfAdd(nn.Module):
    """A value added to itself and multiplied with itself."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.conv(x))
        return (y + y) * y


class Constants(nn.Module):
    """Numbers and a buffer added, subtracted, multiplied and divided."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv()
        self.conv2 = conv(8, 4)
        self.register_buffer("offset", torch.linspace(-1, 1, 8).view(8, 1, 1))

    def forward(self, x: Tensor) -> Tensor:
        y = (self.conv1(x) + 1.5) * 2
        y = (3 - y) / 4 + self.offset
        return self.conv2(y) - 0.5


class ScaledAdd(nn.Module):
    """`alpha` of an addition, reflected subtraction, and an integer constant."""

    def __init__(self) -> None:
        super().__init__()
        self.left = conv()
        self.right = conv()

    def forward(self, x: Tensor) -> Tensor:
        y = torch.add(self.left(x), self.right(x), alpha=3)
        return torch.sub(y, self.left(x), alpha=2) + 1


class BareNorm(nn.Module):
    """Normalizations that no convolution precedes."""

    def __init__(self) -> None:
        super().__init__()
        self.before = nn.BatchNorm2d(4)
        self.conv = conv()
        self.after = nn.BatchNorm2d(8)

    def forward(self, x: Tensor) -> Tensor:
        return self.after(torch.relu(self.conv(self.before(x))))


class ByName(nn.Module):
    """Submodules in a ModuleDict, and nested Sequentials."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleDict({"stem": conv(), "body": nn.Sequential(conv(8), nn.ReLU())})

    def forward(self, x: Tensor) -> Tensor:
        for part in self.parts.values():
            x = part(x)
        return x


CASES = [
    Case("unused_submodule", UnusedSubmodule, images()),
    Case("conv_called_twice", ConvCalledTwice, images(), int8=2),
    Case("block_called_twice", BlockCalledTwice, images(), int8=2),
    Case("conv_two_norms", ConvTwoNorms, images()),
    Case("shared_conv_two_norms", SharedConvTwoNorms, images(), int8=2),
    Case("norm_and_raw", NormAndRaw, images()),
    Case("relu_and_raw", ReluAndRaw, images()),
    Case("tied_linears", TiedLinears, values(16), int8=2),
    Case("tied_embedding", TiedEmbedding, lambda n: (torch.randint(40, (n, 6)),), int8=2),
    Case("weight_read_elsewhere", WeightReadElsewhere, images()),
    Case("computed_weight", ComputedWeight, images()),
    Case("weight_from_input", WeightFromInput, images()),
    Case("functional_weights", FunctionalWeights, images(), int8=2),
    Case("residual", Residual, images(), int8=2),
    Case("self_add", SelfAdd, images()),
    Case("constants", Constants, images(), int8=2),
    Case("scaled_add", ScaledAdd, images(), int8=2, floor=20.0),
    Case("bare_norm", BareNorm, images()),
    Case("by_name", ByName, images(), int8=2),
]
