"""Convolutions of every rank, padding, grouping and dtype."""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from .case import Args, Case, conv, images, values


class OneConv(nn.Module):
    """One convolution whose raw output is returned."""

    def __init__(self, layer: nn.Module) -> None:
        super().__init__()
        self.layer = layer

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Fused(nn.Module):
    """Convolution, normalization and ReLU, the triple that is folded and fused."""

    def __init__(self, layer: nn.Module, norm: nn.Module, relu: nn.Module) -> None:
        super().__init__()
        self.layer = layer
        self.norm = norm
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        return self.relu(self.norm(self.layer(x)))


class CastBetween(nn.Module):
    """A float convolution, then a double one."""

    def __init__(self) -> None:
        super().__init__()
        self.single = conv()
        self.double_ = conv(8, 4).double()

    def forward(self, x: Tensor) -> Tensor:
        return self.double_(torch.relu(self.single(x)).double())


def _one(
    name: str, make: Callable[[], nn.Module], inputs: Callable[[int], Args], int8: int = 1
) -> Case:
    return Case(name, lambda: OneConv(make()), inputs, int8=int8)


def _left_float(name: str, dtype: torch.dtype, **more: bool) -> Case:
    """A convolution in another dtype than float32, which stays as it is."""
    return Case(
        name,
        lambda: OneConv(conv().to(dtype)),
        lambda n: (torch.randn(n, 4, 8, 8).to(dtype),),
        floor=None,
        int8=0,
        **more,
    )


LINE, PLANE, SPACE = values(4, 12), images(), images(4, 6, 6, 6)

PLAIN = [
    _one("conv1d", lambda: nn.Conv1d(4, 8, 3, padding=1), LINE),
    _one("conv1d_dilated", lambda: nn.Conv1d(4, 8, 3, dilation=2, stride=2), LINE),
    _one("conv1d_grouped", lambda: nn.Conv1d(4, 8, 3, groups=2, bias=False), LINE),
    _one("conv2d", conv, PLANE),
    _one("conv2d_no_bias", lambda: nn.Conv2d(4, 8, 3, bias=False), PLANE),
    _one("conv2d_pointwise", lambda: nn.Conv2d(4, 8, 1), PLANE),
    _one("conv2d_asymmetric", lambda: nn.Conv2d(4, 8, (3, 5), (1, 2), (0, 2)), PLANE),
    _one("conv2d_dilated", lambda: nn.Conv2d(4, 8, 3, padding=2, dilation=2), PLANE),
    _one("conv2d_grouped", lambda: nn.Conv2d(4, 8, 3, groups=2), PLANE),
    _one("conv2d_depthwise", lambda: nn.Conv2d(4, 4, 3, padding=1, groups=4), PLANE),
    _one("conv2d_depthwise_wider", lambda: nn.Conv2d(4, 8, 3, padding=1, groups=4), PLANE),
    # Not multiples of 16: kernels that read whole vectors of channels have a remainder here.
    # int8=0: a target may leave them float where its kernel is slower than the float one.
    _one("conv2d_depthwise_116", lambda: nn.Conv2d(116, 116, 3, groups=116), images(116, 6), 0),
    _one("conv2d_depthwise_122", lambda: nn.Conv2d(122, 122, 5, groups=122), images(122, 6), 0),
    _one("conv2d_one_channel", lambda: nn.Conv2d(1, 1, 3), images(1, 8)),
    _one("conv3d", lambda: nn.Conv3d(4, 8, 3, padding=1), SPACE),
    _one("conv3d_strided", lambda: nn.Conv3d(4, 8, (1, 3, 3), stride=(1, 2, 2)), SPACE),
    _one("conv3d_depthwise", lambda: nn.Conv3d(4, 4, 3, groups=4), SPACE),
]

# With padding the border of the output mixes in zeros (or copies), and a zero must be exact.
PADDED = [
    _one("padding_same", lambda: nn.Conv2d(4, 8, 3, padding="same"), PLANE),
    _one("padding_same_even", lambda: nn.Conv2d(4, 8, 4, padding="same"), PLANE),
    _one("padding_valid", lambda: nn.Conv2d(4, 8, 3, padding="valid"), PLANE),
    _one("padding_same_1d", lambda: nn.Conv1d(4, 8, 5, padding="same"), LINE),
    _one("padding_reflect", lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode="reflect"), PLANE),
    _one("padding_circular", lambda: nn.Conv2d(4, 8, 3, padding=1, padding_mode="circular"), PLANE),
    _one(
        "padding_replicate", lambda: nn.Conv2d(4, 8, 3, padding=2, padding_mode="replicate"), PLANE
    ),
    Case("padding_all_positive", lambda: OneConv(conv()), lambda n: (torch.rand(n, 4, 8, 8) + 5,)),
    Case("padding_all_negative", lambda: OneConv(conv()), lambda n: (torch.rand(n, 4, 8, 8) - 6,)),
]

# int8=0: a transposed convolution may stay float where the engine has no kernel for it.
TRANSPOSED = [
    _one("transposed_1d", lambda: nn.ConvTranspose1d(4, 8, 3, stride=2), LINE, 0),
    _one("transposed_2d", lambda: nn.ConvTranspose2d(4, 8, 3, stride=2), PLANE, 0),
    _one("transposed_3d", lambda: nn.ConvTranspose3d(4, 8, 2, stride=2), SPACE, 0),
    _one("transposed_no_bias", lambda: nn.ConvTranspose2d(4, 8, 3, bias=False), PLANE, 0),
    _one(
        "transposed_output_padding",
        lambda: nn.ConvTranspose2d(4, 8, 3, stride=2, padding=1, output_padding=1),
        PLANE,
        0,
    ),
    _one(
        "transposed_1d_output_padding",
        lambda: nn.ConvTranspose1d(4, 8, 3, stride=3, output_padding=2),
        LINE,
        0,
    ),
    _one(
        "transposed_3d_output_padding",
        lambda: nn.ConvTranspose3d(4, 8, 3, stride=2, padding=1, output_padding=1),
        SPACE,
        0,
    ),
    _one("transposed_grouped", lambda: nn.ConvTranspose2d(4, 8, 3, groups=2), PLANE, 0),
    _one("transposed_depthwise", lambda: nn.ConvTranspose2d(4, 4, 4, 2, 1, groups=4), PLANE, 0),
    _one("transposed_dilated", lambda: nn.ConvTranspose2d(4, 8, 3, dilation=2), PLANE, 0),
    _one("transposed_1d_grouped", lambda: nn.ConvTranspose1d(4, 8, 3, groups=2), LINE, 0),
    _one("transposed_3d_grouped", lambda: nn.ConvTranspose3d(4, 8, 2, groups=2), SPACE, 0),
]

FUSED = [
    Case(
        "fused_1d",
        lambda: Fused(nn.Conv1d(4, 8, 3), nn.BatchNorm1d(8), nn.ReLU(inplace=True)),
        LINE,
    ),
    Case("fused_2d", lambda: Fused(conv(), nn.BatchNorm2d(8), nn.ReLU(inplace=True)), PLANE),
    Case("fused_2d_relu6", lambda: Fused(conv(), nn.BatchNorm2d(8), nn.ReLU6()), PLANE),
    Case("fused_3d", lambda: Fused(nn.Conv3d(4, 8, 3), nn.BatchNorm3d(8), nn.ReLU()), SPACE),
    Case(
        "fused_no_affine",
        lambda: Fused(conv(), nn.BatchNorm2d(8, affine=False), nn.ReLU()),
        PLANE,
    ),
    # Without running statistics the normalization depends on the batch and cannot be folded.
    Case(
        "fused_batch_statistics",
        lambda: Fused(conv(), nn.BatchNorm2d(8, track_running_stats=False), nn.ReLU()),
        PLANE,
    ),
    Case(
        "fused_transposed",
        lambda: Fused(nn.ConvTranspose2d(4, 8, 3), nn.BatchNorm2d(8), nn.ReLU()),
        PLANE,
        int8=0,
    ),
]

OTHER = [
    # The module that is scripted is the convolution itself.
    Case("bare_conv2d", conv, PLANE),
    # `n` serves as the height of the only image there is.
    Case("unbatched_conv2d", conv, lambda n: (torch.randn(4, n + 4, 8),), int8=0),
    Case(
        "unbatched_conv1d", lambda: nn.Conv1d(4, 8, 3), lambda n: (torch.randn(4, n + 8),), int8=0
    ),
    Case(
        "empty_batch", lambda: nn.Sequential(conv(), nn.ReLU()), PLANE, others=lambda _n: PLANE(0)
    ),
    Case("other_size", lambda: nn.Sequential(conv(), nn.ReLU()), PLANE, others=images(4, 13, 5)),
    Case(
        "channels_last",
        lambda: nn.Sequential(conv(), nn.ReLU(), conv(8, 4)),
        lambda n: (torch.randn(n, 4, 8, 8).to(memory_format=torch.channels_last),),
        int8=2,
    ),
    Case(
        "not_contiguous",
        lambda: nn.Sequential(conv(), nn.ReLU()),
        lambda n: (torch.randn(8, 8, 4, n).permute(3, 2, 0, 1),),
    ),
    Case("double_after_float", CastBetween, PLANE),
    _left_float("double_weights", torch.float64),
    _left_float("half_weights", torch.float16),
    _left_float("bfloat16_weights", torch.bfloat16),
]

CASES = [*PLAIN, *PADDED, *TRANSPOSED, *FUSED, *OTHER]
