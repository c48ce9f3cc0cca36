"""Linear layers and matrix products."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .case import Case, values


class Perceptron(nn.Module):
    """Two linear layers, over inputs of any rank."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.ReLU(), nn.Linear(24, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class NormedPerceptron(nn.Module):
    """A normalization after a linear layer, over rows."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.Linear(12, 24), nn.BatchNorm1d(24), nn.ReLU(), nn.Linear(24, 5))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class Products(nn.Module):
    """Products of two values that calibration ranges separately."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(12, 16)
        self.key = nn.Linear(12, 16)

    def forward(self, x: Tensor) -> Tensor:
        return torch.matmul(self.query(x), self.key(x).transpose(1, 2))


class BatchedProduct(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Linear(12, 16)

    def forward(self, x: Tensor, weights: Tensor) -> Tensor:
        return torch.bmm(weights, self.value(x))


class ProductWithParameter(nn.Module):
    """`x @ w` with a parameter, and its transpose."""

    def __init__(self) -> None:
        super().__init__()
        self.down = nn.Parameter(torch.randn(12, 8) / 3)
        self.up = nn.Parameter(torch.randn(12, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(x @ self.down) @ self.up.t()


class AddMm(nn.Module):
    """addmm with and without factors."""

    def __init__(self) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.randn(8))
        self.weight = nn.Parameter(torch.randn(12, 8) / 3)
        self.square = nn.Parameter(torch.randn(8, 8) / 3)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(torch.addmm(self.bias, x, self.weight))
        return torch.addmm(self.bias, y, self.square, beta=0.5, alpha=2)


class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 16)
        self.mix = nn.Parameter(torch.randn(16, 4, 3))

    def forward(self, x: Tensor) -> Tensor:
        return torch.einsum("ntc,chd->nthd", self.linear(x), self.mix)


class ComputedLinear(nn.Module):
    """A weight that is normalized in forward."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.weight = nn.Parameter(torch.randn(5, 16))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(torch.relu(self.first(x)), F.normalize(self.weight))


class SumOfLinears(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.second = nn.Linear(12, 16, bias=False)
        self.head = nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(F.relu(self.first(x) + self.second(x)))


class Attention(nn.Module):
    """Self-attention written out by hand, with heads."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        n, t, c = x.size(0), x.size(1), x.size(2)
        qkv = self.qkv(x).view(n, t, 3, 4, c // 4).permute(2, 0, 3, 1, 4)
        q, k, v = qkv.unbind(0)
        weights = torch.softmax(q @ k.transpose(-2, -1) / 2.0, -1)
        return self.out((weights @ v).transpose(1, 2).reshape(n, t, c))


class FusedAttention(nn.Module):
    """Attention through scaled_dot_product_attention."""

    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(16, 48)
        self.out = nn.Linear(16, 16)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        return self.out(F.scaled_dot_product_attention(q, k, v))


class Bilinear(nn.Module):
    """A bilinear layer, which has a weight but no int8 kernel, after a linear one."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(12, 8)
        self.form = nn.Bilinear(8, 8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = self.linear(x)
        return self.form(y, torch.tanh(y))


class Plain(nn.Module):
    """No layer at all: nothing here can be quantized."""

    def forward(self, x: Tensor) -> Tensor:
        return torch.cumsum(torch.sin(x), -1).abs() + 1


def _weighted(n: int) -> tuple[Tensor, Tensor]:
    return torch.randn(n, 6, 12), torch.softmax(torch.randn(n, 4, 6), -1)


CASES = [
    # int8=0: the kernels of most engines want a batch dimension.
    Case("linear_1d", Perceptron, lambda _n: (torch.randn(12),), int8=0),
    Case("linear_2d", Perceptron, values(12), int8=2),
    Case("linear_3d", Perceptron, values(6, 12), int8=2),
    Case("linear_4d", Perceptron, values(2, 6, 12), int8=2),
    Case("linear_other_rank", Perceptron, values(12), int8=2, trace=False, others=values(6, 12)),
    Case("linear_batch_norm", NormedPerceptron, values(12), int8=2),
    Case("bare_linear", lambda: nn.Linear(12, 5, bias=False), values(12)),
    Case("linear_one_output", lambda: nn.Sequential(nn.Linear(12, 1)), values(12)),
    Case("sum_of_linears", SumOfLinears, values(12), int8=3),
    Case("matmul", Products, values(6, 12), int8=2),
    Case("bmm", BatchedProduct, _weighted),
    Case("matmul_parameter", ProductWithParameter, values(12), int8=0),
    Case("addmm", AddMm, values(12), int8=0),
    Case("einsum", Einsum, values(6, 12)),
    Case("computed_linear", ComputedLinear, values(12)),
    Case("attention", Attention, values(5, 16), int8=2),
    Case("fused_attention", FusedAttention, values(5, 16), int8=2),
    Case("bilinear", Bilinear, values(12)),
    Case("no_supported_op", Plain, values(6), floor=None, int8=0),
]
