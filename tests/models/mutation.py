"""Models that write in place: into values, through views, into their inputs and buffers.

An int8 value is a copy, so each of these breaks as soon as a pass forgets who else sees a write.
"""

import torch
from torch import Tensor, nn

from .case import Case, conv, images


class TwoConvs(nn.Module):
    """Base: what happens between two convolutions is the subclass's matter."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = conv()
        self.conv2 = conv(8, 4)


class Arithmetic(TwoConvs):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y += 1
        y.mul_(2)
        y -= 0.5
        y /= 3
        return self.conv2(y)


class FillChannel(TwoConvs):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y[:, 0] = 0
        return self.conv2(y)


class SliceAssign(TwoConvs):
    """A slice of one convolution's output is overwritten by a part of the input."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y[:, 2:6, 1:-1] = x[:, :, 1:-1] * 2
        y[0, :, :, ::2] += 1
        return self.conv2(y)


class ViewWrite(TwoConvs):
    """The write goes through a view; the viewed value is read afterwards."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        flat = y.view(y.size(0), -1)
        flat.add_(1)
        return self.conv2(y)


class TransposeWrite(TwoConvs):
    """Two views of one value: written through one, read through the other."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        seen = y.permute(0, 2, 3, 1)
        y.transpose(2, 3).mul_(3)
        return self.conv2(seen.permute(0, 3, 1, 2))


class SelectWrite(TwoConvs):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y.select(1, 3).zero_()
        y.narrow(1, 4, 2).fill_(0.5)
        return self.conv2(y)


class ChunkWrite(TwoConvs):
    """In-place ReLU on one half only."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        left, right = y.chunk(2, 1)
        left.relu_()
        return self.conv2(y) + right


class DetachWrite(TwoConvs):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y.detach().clamp_(-0.5, 0.5)
        return self.conv2(y)


class ReluSeenElsewhere(TwoConvs):
    """`y` is read before and after the in-place ReLU; only the reads after it see it."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        before = y * 2
        r = torch.relu_(y)
        return self.conv2(before + y + r)


class WriteAfterRead(TwoConvs):
    """The second convolution reads `y` before it is written."""

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.conv1(x)
        z = self.conv2(y)
        y.add_(5)
        return z, y


class CopyInto(TwoConvs):
    """copy_ from another value, then from a constant through a mask."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        kept = y.clone()
        y.copy_(torch.sigmoid(kept))
        y.masked_fill_(kept > 1, 0.25)
        return self.conv2(y) + kept[:, :4]


class IndexPut(TwoConvs):
    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        y[y < 0] = 0.1
        return self.conv2(y)


class OutArgument(TwoConvs):
    """`out=` writes into a value that is read under its own name."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        torch.mul(y, 0.5, out=y)
        return self.conv2(y)


class ResidualInPlace(nn.Module):
    """The block of torchvision's ResNet: in-place ReLUs and `out += identity`."""

    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(4)
        self.conv2 = nn.Conv2d(4, 4, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(4)
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x: Tensor) -> Tensor:
        identity = x
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += identity
        return self.relu(out)


class PreActivation(nn.Module):
    """In-place ReLU at the top: the identity path sees it too."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = conv(4, 4)
        self.relu = nn.ReLU(inplace=True)
        self.conv = conv(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.conv(self.relu(x)) + x


class ListOfViews(TwoConvs):
    """Views collected in a list, written in a loop."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        parts = list(y.split(2, 1))
        for part in parts:
            part.mul_(1.5)
        return self.conv2(y)


class InputAdd(TwoConvs):
    """The caller's tensor sees the addition."""

    def forward(self, x: Tensor) -> Tensor:
        x += 1
        return self.conv2(torch.relu(self.conv1(x)))


class InputRelu(nn.Module):
    """An in-place ReLU first: the caller's tensor is rectified."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(nn.ReLU(inplace=True), conv(), nn.ReLU(inplace=True))

    def forward(self, x: Tensor) -> Tensor:
        return self.net(x)


class InputView(TwoConvs):
    """Written through a view of the input, after the first convolution has read it."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv1(x)
        x.view(-1).mul_(0.5)
        return self.conv2(torch.relu(y)) + x


class InputReceives(TwoConvs):
    """A result is copied into the input: the caller reads an int8 value's float image."""

    def forward(self, x: Tensor) -> Tensor:
        y = self.conv2(torch.relu(self.conv1(x)))
        x.copy_(y)
        return y * 2


MODELS = (
    Arithmetic, FillChannel, SliceAssign, ViewWrite, TransposeWrite, SelectWrite, ChunkWrite,
    DetachWrite, ReluSeenElsewhere, WriteAfterRead, CopyInto, IndexPut, OutArgument,
    ResidualInPlace, PreActivation, ListOfViews, InputAdd, InputView, InputReceives,
)  # fmt: skip

CASES = [
    *(Case(f"inplace_{model.__name__}", model, images(), int8=2) for model in MODELS),
    Case("inplace_InputRelu", InputRelu, images()),
]
