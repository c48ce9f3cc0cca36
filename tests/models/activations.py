"""Activations, pools and reductions between two convolutions."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .case import Case, conv, images, values


class Sandwich(nn.Module):
    """A layer between two convolutions."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.conv1 = conv()
        self.layer = layer
        self.conv2 = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.layer(self.conv1(x)))


class Last(nn.Module):
    """A layer whose result is the output."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.conv = conv()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(self.conv(x))


class FixedRange(nn.Module):
    """Clamps of every form."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv()
        self.conv2 = conv(8, 8)
        self.conv3 = conv(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(torch.clamp(self.conv1(x), -0.5, 1.0))
        return self.conv3(y.clamp(min=0.0)).clamp(max=0.5)


class Means(nn.Module):
    """Means, sums and maxima over dimensions, with and without keepdim."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = conv()
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = torch.relu(self.conv(x))
        pooled = y.mean(dim=[2, 3]) + y.amax(dim=(2, 3)) + y.sum([-2, -1]) / 64
        return self.head(pooled), y.mean(1, keepdim=True)


class PoolIndices(nn.Module):
    """Pooling that also returns where the maxima were.

    The maxima are those of the input itself, so the indices must come out exactly: rounding the
    input before the pooling would make ties and move them.
    """

    def __init__(self) -> None:
        super().__init__()
        self.pool = nn.MaxPool2d(2, return_indices=True)
        self.conv = conv()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y, indices = self.pool(x)
        return self.conv(y), indices


class Dropouts(nn.Module):
    """Every dropout does nothing in eval mode."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv()
        self.drop1 = nn.Dropout2d(0.5)
        self.norm = nn.BatchNorm2d(8)
        self.drop2 = nn.Dropout(0.5, inplace=True)
        self.head = nn.Linear(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.norm(self.drop1(self.conv1(x))))
        return self.head(self.drop2(y.mean([2, 3])))


class Pools1d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv1d(4, 8, 3), nn.ReLU(), nn.MaxPool1d(2), nn.Conv1d(8, 8, 1), nn.AvgPool1d(2),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(8, 5),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Pools3d(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(
            nn.Conv3d(4, 8, 3, padding=1), nn.ReLU(), nn.MaxPool3d(2), nn.Conv3d(8, 8, 1),
            nn.AvgPool3d(2), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(8, 5),
        )  # fmt: skip

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


LAYERS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "relu6": nn.ReLU6,
    "relu6_inplace": lambda: nn.ReLU6(inplace=True),
    "hardtanh": nn.Hardtanh,
    "hardswish": nn.Hardswish,
    "hardswish_inplace": lambda: nn.Hardswish(inplace=True),
    "hardsigmoid": nn.Hardsigmoid,
    "sigmoid": nn.Sigmoid,
    "tanh": nn.Tanh,
    "silu": nn.SiLU,
    "gelu": nn.GELU,
    "gelu_tanh": lambda: nn.GELU(approximate="tanh"),
    "mish": nn.Mish,
    "softplus": nn.Softplus,
    "leaky_relu": lambda: nn.LeakyReLU(0.1),
    "leaky_relu_inplace": lambda: nn.LeakyReLU(0.2, inplace=True),
    "elu": nn.ELU,
    "elu_scaled": lambda: nn.ELU(alpha=0.5),
    "celu": nn.CELU,
    "prelu": nn.PReLU,
    "prelu_channels": lambda: nn.PReLU(8),
    "threshold": lambda: nn.Threshold(0.1, 0.0),
    "softmax": lambda: nn.Softmax(1),
    "log_softmax": lambda: nn.LogSoftmax(1),
    "max_pool": lambda: nn.MaxPool2d(3, 2, padding=1),
    "max_pool_ceil": lambda: nn.MaxPool2d(3, 2, ceil_mode=True),
    "max_pool_dilated": lambda: nn.MaxPool2d(2, 1, dilation=2),
    "avg_pool": lambda: nn.AvgPool2d(2),
    "avg_pool_padded": lambda: nn.AvgPool2d(3, 2, padding=1, count_include_pad=False),
    "avg_pool_ceil": lambda: nn.AvgPool2d(3, 2, ceil_mode=True),
    "avg_pool_divisor": lambda: nn.AvgPool2d(2, divisor_override=3),
    "lp_pool": lambda: nn.Sequential(nn.ReLU(), nn.LPPool2d(2, 2)),
    "adaptive_avg_pool": lambda: nn.AdaptiveAvgPool2d(3),
    "adaptive_avg_pool_one": lambda: nn.AdaptiveAvgPool2d(1),
    "adaptive_max_pool": lambda: nn.AdaptiveMaxPool2d(2),
    "identity": nn.Identity,
}


def _between(name: str, make: Callable[[], nn.Module]) -> Case:
    return Case(f"then_{name}", lambda: Sandwich(make()), images(), int8=2)


def _last(name: str, make: Callable[[], nn.Module]) -> Case:
    return Case(f"last_{name}", lambda: Last(make()), images())


# The layers whose int8 forms have an output range of their own, fixed by the function.
LAST = ("relu", "relu6", "hardswish", "hardsigmoid", "sigmoid", "tanh", "elu", "softmax")

CASES = [
    *(_between(name, make) for name, make in LAYERS.items()),
    *(_last(name, LAYERS[name]) for name in LAST),
    Case("clamps", FixedRange, images(), int8=3),
    Case("means", Means, images(), int8=2),
    Case("pool_indices", PoolIndices, images()),
    Case("dropouts", Dropouts, images(), int8=2),
    Case("pools_1d", Pools1d, values(4, 16), int8=3),
    Case("pools_3d", Pools3d, images(4, 6, 6, 6), int8=3),
]
