"""Functions of two maps between convolutions, and of two rows of vectors between linears."""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .case import Case, conv, images, values

Function = Callable[[Tensor, Tensor], Tensor]


class OfMaps(nn.Module):
    """A function of two maps `[N, 8, 8, 8]`; a last convolution reads what it returns."""

    def __init__(self, function: Function) -> None:
        super().__init__()
        self.first = conv()
        self.second = conv()
        self.function = function
        self.last = nn.Conv2d(8, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x), torch.relu(self.second(x))))


class OfRows(nn.Module):
    """A function of two rows of vectors `[N, 6, 16]`; a last linear reads what it returns."""

    def __init__(self, function: Function, width: int = 16) -> None:
        super().__init__()
        self.first = nn.Linear(12, 16)
        self.second = nn.Linear(12, 16)
        self.function = function
        self.last = nn.Linear(width, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.function(self.first(x), torch.relu(self.second(x))))


def of_maps(*functions: Function, int8: int = 3) -> list[Case]:
    """Cases of these functions, named like them; `int8=2` of those that read one of the maps."""
    return [
        Case(f"maps_{f.__name__}", lambda f=f: OfMaps(f), images(), int8=int8) for f in functions
    ]


def of_rows(*functions: Function, int8: int = 3, width: int = 16) -> list[Case]:
    """Cases of these functions, named like them."""
    return [
        Case(f"rows_{f.__name__}", lambda f=f: OfRows(f, width), values(6, 12), int8=int8)
        for f in functions
    ]


# Numbers and constants next to integers.


def scaled_and_shifted(x: Tensor, y: Tensor) -> Tensor:
    return x * 0.5 + 1


def normalized(x: Tensor, y: Tensor) -> Tensor:
    return (y - 0.3) / 0.7


def one_minus(x: Tensor, y: Tensor) -> Tensor:
    return 1 - torch.sigmoid(x)


def negated(x: Tensor, y: Tensor) -> Tensor:
    return -x + y.neg()


def reciprocal(x: Tensor, y: Tensor) -> Tensor:
    return 2 / (y + 1)


def power(x: Tensor, y: Tensor) -> Tensor:
    return y**2 / 2


def combined(x: Tensor, y: Tensor) -> Tensor:
    return 3 * x - y * 2


def scaled_sum(x: Tensor, y: Tensor) -> Tensor:
    return torch.add(x, y, alpha=2) - torch.sub(x, y, alpha=0.5)


def reversed_difference(x: Tensor, y: Tensor) -> Tensor:
    return torch.rsub(x, y, alpha=1) + torch.rsub(y, 1.0)


def fused_product(x: Tensor, y: Tensor) -> Tensor:
    return torch.addcmul(x, x, y, value=0.5)


def interpolated(x: Tensor, y: Tensor) -> Tensor:
    return torch.lerp(x, y, 0.25)


def constant_by_channel(x: Tensor, y: Tensor) -> Tensor:
    factors = torch.tensor([0.5, 1.0, 1.5, 2.0, -0.5, -1.0, 0.1, 1.0]).view(1, 8, 1, 1)
    return x * factors + y


def constant_plane(x: Tensor, y: Tensor) -> Tensor:
    return x + torch.linspace(-1.0, 1.0, 8).view(8, 1) * torch.linspace(0.0, 1.0, 8)


def filled_like(x: Tensor, y: Tensor) -> Tensor:
    return torch.full_like(x, 0.5) * x + torch.zeros_like(y) + torch.ones(1, dtype=y.dtype)


# Sums and products of unequal shapes.


def excited(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.sigmoid(y.mean([2, 3], keepdim=True)) + y


def excited_in_tensor(x: Tensor, y: Tensor) -> Tensor:
    n, c = y.shape[:2]
    return x * torch.sigmoid(F.adaptive_avg_pool2d(y, 1).view(n, c)).view(n, c, 1, 1).expand_as(x)


def spatially_gated(x: Tensor, y: Tensor) -> Tensor:
    pooled = torch.cat([y.mean(1, keepdim=True), y.amax(1, keepdim=True)], 1)
    return x * torch.sigmoid(pooled.sum(1, keepdim=True))


def rows_and_columns(x: Tensor, y: Tensor) -> Tensor:
    return x.mean(2, keepdim=True) + y.mean(3, keepdim=True)


def outer_product(x: Tensor, y: Tensor) -> Tensor:
    return x.mean(2, keepdim=True) * y.mean(3, keepdim=True) * 4


def gated_by_sample(x: Tensor, y: Tensor) -> Tensor:
    return x * y.mean([1, 2, 3], keepdim=True) + y


def other_rank(x: Tensor, y: Tensor) -> Tensor:
    return x + y[:1, :, 0, 0].reshape(8, 1, 1)


# Chains of one variable, and functions that no kernel has.


def chain(x: Tensor, y: Tensor) -> Tensor:
    return torch.tanh(torch.sigmoid(x) * 2 - 1) + 0.5


def spelled_out_gelu(x: Tensor, y: Tensor) -> Tensor:
    return 0.5 * x * (1 + torch.erf(x / 1.4142135623730951))


def spelled_out_swish(x: Tensor, y: Tensor) -> Tensor:
    return x * torch.sigmoid(1.5 * x) + y * F.relu6(y + 3) / 6


def roots(x: Tensor, y: Tensor) -> Tensor:
    return torch.sqrt(y + 0.1) - torch.rsqrt(y + 0.5)


def exponentials(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-x.square()) + torch.log1p(y) + torch.expm1(-y)


def trigonometry(x: Tensor, y: Tensor) -> Tensor:
    return torch.sin(x) + torch.cos(y) * torch.atan(x)


def shrinking(x: Tensor, y: Tensor) -> Tensor:
    return F.softshrink(x, 0.2) + F.tanhshrink(y) + F.softsign(x) + F.logsigmoid(x)


def selu(x: Tensor, y: Tensor) -> Tensor:
    return F.selu(x) + F.rrelu(x, 0.1, 0.3, False)


def gated_halves(x: Tensor, y: Tensor) -> Tensor:
    return F.glu(torch.cat([x, y], 1), 1)


def logarithm_of_softmax(x: Tensor, y: Tensor) -> Tensor:
    return F.log_softmax(x, 1) + F.softmin(y, 1)


def bounded(x: Tensor, y: Tensor) -> Tensor:
    return x.clamp(-0.5, 0.5) + y.clamp_max(0.7) + torch.clip(x, min=0.1)


def absolute(x: Tensor, y: Tensor) -> Tensor:
    return torch.abs(x) * torch.maximum(x, torch.zeros_like(x))


# Resizing, sampling, padding.


def area(x: Tensor, y: Tensor) -> Tensor:
    return F.interpolate(x, size=[5, 6], mode="area") + F.interpolate(y, [5, 6], mode="area")


def nearest_exact(x: Tensor, y: Tensor) -> Tensor:
    return F.interpolate(x, scale_factor=1.5, mode="nearest-exact")


def antialiased(x: Tensor, y: Tensor) -> Tensor:
    small = F.interpolate(x, size=[5, 5], mode="bilinear", antialias=True)
    return small + F.interpolate(y, size=[5, 5], mode="bicubic", align_corners=True)


def recomputed_factors(x: Tensor, y: Tensor) -> Tensor:
    return F.interpolate(
        x, scale_factor=[1.3, 0.7], mode="bilinear", recompute_scale_factor=True
    )  # fmt: skip


def sampled(x: Tensor, y: Tensor) -> Tensor:
    theta = torch.tensor([[[0.8, 0.2, 0.1], [-0.2, 0.9, 0.0]]]).expand(x.size(0), 2, 3)
    grid = F.affine_grid(theta, [x.size(0), 8, 6, 7], align_corners=False)
    padded = F.grid_sample(y, grid, padding_mode="border", align_corners=True)
    return F.grid_sample(x, grid, align_corners=False) + padded


def mirrored(x: Tensor, y: Tensor) -> Tensor:
    return F.pad(x, [1, 2, 1, 0], "reflect") + F.pad(y, [1, 2, 1, 0], "circular")


def unfolded(x: Tensor, y: Tensor) -> Tensor:
    columns = F.unfold(x, 3, padding=1) * 0.5
    return F.fold(columns, [8, 8], 3, padding=1) / 4 + y


def windows(x: Tensor, y: Tensor) -> Tensor:
    """The windows of Swin, and back."""
    n, c, h, w = x.shape
    parts = x.view(n, c, h // 4, 4, w // 4, 4).permute(0, 2, 4, 3, 5, 1).reshape(-1, 16, c)
    parts = torch.softmax(parts, 1)
    maps = parts.view(n, h // 4, w // 4, 4, 4, c).permute(0, 5, 1, 3, 2, 4).reshape(n, c, h, w)
    return maps * 4 + y


# Products that are written with letters.


def products_by_letters(x: Tensor, y: Tensor) -> Tensor:
    scores = torch.einsum("nic,njc->nij", x, y)
    return torch.einsum("nij,njd->nid", torch.softmax(scores / 4, -1), x)


def sums_by_letters(x: Tensor, y: Tensor) -> Tensor:
    return torch.einsum("nic,nid->ncd", x, y) / 6


def tensordot(x: Tensor, y: Tensor) -> Tensor:
    return torch.tensordot(x, torch.eye(16) * 2 + 0.1, dims=[[2], [0]])


def distances(x: Tensor, y: Tensor) -> Tensor:
    return torch.exp(-torch.cdist(x, y) / 4)


def similarities(x: Tensor, y: Tensor) -> Tensor:
    near = F.cosine_similarity(x, y, -1).unsqueeze(-1)
    return F.normalize(x, dim=-1) * 4 + near


# Picking and writing by index.


def gathered(x: Tensor, y: Tensor) -> Tensor:
    index = (torch.arange(16).view(1, 1, 16) % 6).expand(x.size(0), 2, 16)
    return torch.gather(x, 1, index) + torch.take_along_dim(y, index, 1)


def scattered(x: Tensor, y: Tensor) -> Tensor:
    index = ((torch.arange(6).view(1, 6, 1) + 1) % 6).expand(x.size(0), 6, 16)
    moved = torch.zeros_like(x).scatter(1, index, x)
    return moved.scatter_add(1, index, y)


def added_by_index(x: Tensor, y: Tensor) -> Tensor:
    index = torch.tensor([0, 2, 2])
    return torch.index_add(x, 1, index, y[:, :3]).index_copy(1, index[:2], y[:, 3:5])


def picked(x: Tensor, y: Tensor) -> Tensor:
    index = torch.tensor([3, 0, 0])
    return torch.cat([x[:, index], y.index_select(1, index), x[:, 1:3], y[:, -1:]], 1)


def written_by_index(x: Tensor, y: Tensor) -> Tensor:
    z = x.clone()
    z[:, torch.tensor([0, 2])] = y[:, 4:] * 2
    z[:, 5, ::2] = 0.5
    return z


def written_by_mask(x: Tensor, y: Tensor) -> Tensor:
    odd = torch.arange(16) % 2 == 1
    z = x.masked_fill(odd, 0.25)
    z[:, :, odd] = y[:, :, odd]
    return z


def chosen_by_sign(x: Tensor, y: Tensor) -> Tensor:
    return torch.where(x > 0, x, y * -0.5) + torch.where(y == 0, 0.0, 1.0) * y


def largest(x: Tensor, y: Tensor) -> Tensor:
    return torch.topk(x, 3, 1)[0] + y.sort(1, descending=True)[0][:, :3]


def selected_extremes(x: Tensor, y: Tensor) -> Tensor:
    return x.max(1, keepdim=True)[0] - y.min(1, keepdim=True)[0] + x.median(1, keepdim=True)[0]


def accumulated(x: Tensor, y: Tensor) -> Tensor:
    return x.cumsum(1) / 3 + torch.cummax(y, 1)[0]


def triangles(x: Tensor, y: Tensor) -> Tensor:
    return torch.tril(x) + torch.triu(y, 1)


def diagonals(x: Tensor, y: Tensor) -> Tensor:
    square = x[:, :, :6] * 2
    return torch.cat([torch.diag_embed(y.diagonal(0, 1, 2)), square, y[:, :, :4]], 2)


def reduced(x: Tensor, y: Tensor) -> Tensor:
    total = torch.logsumexp(x, 1, keepdim=True) + torch.norm(y, dim=1, keepdim=True)
    return total + x.std(1, keepdim=True) + y.var(1, unbiased=False, keepdim=True)


# Fourier transforms and complex numbers.


def mixed_by_frequency(x: Tensor, y: Tensor) -> Tensor:
    """The token mixing of FNet."""
    return torch.fft.fft(torch.fft.fft(x, dim=-1), dim=-2).real / 4 + y


def filtered(x: Tensor, y: Tensor) -> Tensor:
    spectrum = torch.fft.rfft2(x, norm="ortho")
    gains = torch.complex(torch.linspace(1, 0, 5), torch.linspace(0, 0.5, 5))
    return torch.fft.irfft2(spectrum * gains, s=[8, 8], norm="ortho") + y


def rotated_as_complex(x: Tensor, y: Tensor) -> Tensor:
    pairs = torch.view_as_complex(x.reshape(x.size(0), 6, 8, 2))
    angles = torch.outer(torch.arange(6.0), torch.linspace(1, 0.1, 8))
    turned = pairs * torch.polar(torch.ones_like(angles), angles)
    return torch.view_as_real(turned).flatten(2)


def magnitudes(x: Tensor, y: Tensor) -> Tensor:
    return torch.fft.rfft(x, dim=1).abs() + torch.fft.rfft(y, dim=1).real


CASES = [
    *of_maps(
        scaled_and_shifted, normalized, one_minus, reciprocal, power, constant_plane, chain,
        spelled_out_gelu, roots, selu, absolute, nearest_exact, recomputed_factors, int8=2,
    ),
    *of_maps(
        negated, combined, scaled_sum, reversed_difference, fused_product, interpolated,
        constant_by_channel, filled_like, excited, excited_in_tensor, spatially_gated,
        rows_and_columns, outer_product, gated_by_sample, other_rank, spelled_out_swish,
        exponentials, trigonometry, shrinking, gated_halves, logarithm_of_softmax, bounded, area,
        antialiased, sampled, mirrored, unfolded, windows, filtered,
    ),
    *of_rows(scaled_and_shifted, chain, tensordot, rotated_as_complex, int8=2),
    *of_rows(
        combined, gated_halves, products_by_letters, sums_by_letters, similarities, gathered,
        scattered, added_by_index, picked, written_by_index, written_by_mask, chosen_by_sign,
        largest, selected_extremes, accumulated, triangles, diagonals, reduced, mixed_by_frequency,
        magnitudes,
    ),
    *of_rows(distances, width=6),
]  # fmt: skip
