"""Models that join, split, pad, resize and reshape between two convolutions."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .case import Case, conv, images


class Between(nn.Module):
    """Base: two maps of 8 channels are made, changed, and read by a last convolution.

    Attributes:
        channels: how many channels `change` returns.
    """

    channels: int = 8

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv()
        self.side = conv()
        self.conv2 = nn.Conv2d(self.channels, 4, 1)

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        raise NotImplementedError

    def forward(self, x: Tensor) -> Tensor:
        return self.conv2(self.change(self.conv1(x), torch.relu(self.side(x))))


class Cat(Between):
    """Two ranges, one signed and one not, in one tensor."""

    channels = 16

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, y * 4], 1)


class CatMixed(Between):
    """Joined with a value that no int8 operation made."""

    channels = 17

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.cat([x, torch.cumsum(y, 1) / 4, torch.ones_like(x[:, :1])], dim=-3)


class Stack(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.stack([x, y], 1).amax(1)


class Chunk(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return torch.cat([b, a], 1) + y


class Split(Between):
    channels = 5

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        a, b = torch.split(x, [3, 5], dim=1)
        return b + F.pad(a, [0, 0, 0, 0, 1, 1]) + y[:, 3:]


class ChannelShuffle(Between):
    """The shuffle of ShuffleNet, with sizes read from the value."""

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        n, c, h, w = x.shape
        shuffled = (x + y).view(n, 2, c // 2, h, w).transpose(1, 2).contiguous()
        return shuffled.view(n, c, h, w)


class BuiltinShuffle(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return F.channel_shuffle(x, 2) + y


class PadZero(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return F.pad(x, [1, 2, 0, 1]) + F.pad(y, [1, 2, 0, 1], mode="constant", value=0.0)


class PadOne(Between):
    """A padding that the calibrated range of the value need not contain."""

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return F.pad(x, [1, 1, 1, 1], value=1.0) + F.pad(y, [1, 1, 1, 1], value=-2.0)


class PadReflect(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return F.pad(x, [2, 2, 1, 1], mode="reflect") + F.pad(y, [2, 2, 1, 1], mode="replicate")


class Crop(Between):
    """A negative padding."""

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return F.pad(x + y, [-1, -1, 0, -2])


class Nearest(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return F.interpolate(x, scale_factor=2.0) + F.interpolate(y, size=[16, 16])


class Bilinear(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        wide = F.interpolate(x, size=[12, 11], mode="bilinear", align_corners=False)
        return wide + F.interpolate(y, size=[12, 11], mode="bilinear", align_corners=True)


class Bicubic(Between):
    """Overshoots the range of what it reads."""

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return F.interpolate(x + y, scale_factor=2.0, mode="bicubic")


class SizeOfOther(Between):
    """Resized to the size of another value, which is read at run time."""

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        small = F.max_pool2d(x, 2)
        return F.interpolate(small, size=y.shape[2:], mode="nearest") + y


class PixelShuffle(Between):
    channels = 2

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return F.pixel_shuffle(x + y, 2)


class PixelUnshuffle(Between):
    channels = 32

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return F.pixel_unshuffle(x + y, 2)


class Reshape(Between):
    """Reshaped by sizes of the value, and back."""

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        rows = x.flatten(2).reshape(x.size(0) * x.size(1), -1)
        return rows.view(y.size(0), y.size(1), y.size(2), -1) + y


class Squeeze(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        lifted = x.unsqueeze(2).expand(-1, -1, 3, -1, -1)
        return lifted[:, :, 1] + y.unsqueeze(0).squeeze(0)


class Transpose(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return x.permute(0, 1, 3, 2) + y.transpose(2, 3)


class Roll(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.roll(x, 1, 2) + torch.flip(y, [3])


class Gather(Between):
    """Rows picked by an index tensor, and every second column."""

    channels = 4

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        index = torch.tensor([6, 0, 3, 3])
        return torch.index_select(x, 1, index)[..., ::2] + y[:, index][..., 1::2]


class Repeat(Between):
    channels = 16

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return (x + y).repeat(1, 2, 1, 1)


class Excitation(Between):
    """Squeeze and excitation: a `[N, C, 1, 1]` gate multiplies the whole map."""

    def __init__(self) -> None:
        super().__init__()
        self.reduce = nn.Conv2d(8, 4, 1)
        self.expand = nn.Conv2d(4, 8, 1)

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        gate = torch.relu(self.reduce(F.adaptive_avg_pool2d(x, 1)))
        return x * torch.sigmoid(self.expand(gate)) + y


class Broadcast(Between):
    """Sums and products over sizes that differ."""

    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return x * y.mean(3, keepdim=True) + y.amax(1, keepdim=True)


class Where(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.where(x > y, x, y * 0.5)


class Extremes(Between):
    def change(self, x: Tensor, y: Tensor) -> Tensor:
        return torch.maximum(x, y) - torch.minimum(x, -y)


MODELS = (
    Cat, CatMixed, Stack, Chunk, Split, ChannelShuffle, BuiltinShuffle, PadZero, PadOne, PadReflect,
    Crop, Nearest, Bilinear, Bicubic, SizeOfOther, PixelShuffle, PixelUnshuffle, Reshape, Squeeze,
    Transpose, Roll, Gather, Repeat, Excitation, Broadcast, Where, Extremes,
)  # fmt: skip

CASES = [Case(f"between_{model.__name__}", model, images(), int8=3) for model in MODELS]
