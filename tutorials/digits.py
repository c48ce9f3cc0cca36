"""Handwritten digits: real data and two small networks that train in seconds.

The data ships inside scikit-learn (`sklearn.datasets.load_digits`: 1797 scans of 8x8 pixels), so
nothing is downloaded. The two networks are small on purpose, yet each holds what makes its family
awkward to quantize: residual additions and in-place activations in `DigitsResNet`, depthwise
convolutions, ReLU6 and linear bottlenecks in `DigitsMobileNet`.

Run it on its own to train both and print their accuracy:

    python tutorials/digits.py
"""

import sys
import time
from typing import Final, NamedTuple

import torch
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn import functional as F
from tqdm import tqdm

SIDE = 16
"""Height and width of an image after upsampling; three stages of strides need more than 8."""

CLASSES = 10


class Digits(NamedTuple):
    """The two halves of the data set; images are `[N, 1, 16, 16]`, normalized, float32."""

    train_x: Tensor
    train_y: Tensor
    test_x: Tensor
    test_y: Tensor


def load_digits_tensors(test_size: int = 597, seed: int = 0) -> Digits:
    """Loads the scans, splits them and prepares them as network inputs.

    The split is stratified and fixed by `seed`. Images are upsampled here, once, rather than in
    the networks: both networks and the calibration then see the same tensors.

    Args:
        test_size: how many of the 1797 images are held out.
        seed: seed of the split.

    Returns:
        The training and the test half.
    """
    pixels, labels = load_digits(return_X_y=True)
    train_x, test_x, train_y, test_y = train_test_split(
        pixels, labels, test_size=test_size, random_state=seed, stratify=labels
    )
    train, test = _as_images(train_x), _as_images(test_x)
    # The statistics of the training half serve both: the test half must stay unseen.
    mean, std = train.mean(), train.std()
    return Digits(
        train_x=(train - mean) / std,
        train_y=torch.as_tensor(train_y, dtype=torch.int64),
        test_x=(test - mean) / std,
        test_y=torch.as_tensor(test_y, dtype=torch.int64),
    )


def _as_images(pixels: object) -> Tensor:
    """Turns rows of 64 values in 0..16 into `[N, 1, 16, 16]` images in 0..1."""
    images = torch.as_tensor(pixels, dtype=torch.float32).reshape(-1, 1, 8, 8) / 16
    return F.interpolate(images, size=(SIDE, SIDE), mode="bilinear", align_corners=False)


class BasicBlock(nn.Module):
    """Two 3x3 convolutions and a residual addition, the block of ResNet-18."""

    def __init__(self, channels_in: int, channels_out: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(channels_in, channels_out, 3, stride, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(channels_out)
        self.conv2 = nn.Conv2d(channels_out, channels_out, 3, padding=1, bias=False)
        self.bn2 = nn.BatchNorm2d(channels_out)
        self.relu = nn.ReLU(inplace=True)
        self.shortcut: nn.Module = nn.Identity()
        if stride != 1 or channels_in != channels_out:
            self.shortcut = nn.Sequential(
                nn.Conv2d(channels_in, channels_out, 1, stride, bias=False),
                nn.BatchNorm2d(channels_out),
            )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's output, `[N, channels_out, H / stride, W / stride]`."""
        out = self.relu(self.bn1(self.conv1(x)))
        out = self.bn2(self.conv2(out))
        out += self.shortcut(x)
        return self.relu(out)


class DigitsResNet(nn.Module):
    """A ResNet of six residual blocks for 16x16 digits (about 0.17 million weights)."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, width, 3, padding=1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.layer1 = self._stage(width, width, stride=1)
        self.layer2 = self._stage(width, 2 * width, stride=2)
        self.layer3 = self._stage(2 * width, 4 * width, stride=2)
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc = nn.Linear(4 * width, CLASSES)

    @staticmethod
    def _stage(channels_in: int, channels_out: int, stride: int) -> nn.Sequential:
        return nn.Sequential(
            BasicBlock(channels_in, channels_out, stride),
            BasicBlock(channels_out, channels_out, 1),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits `[N, 10]` of images `[N, 1, 16, 16]`."""
        x = self.relu(self.bn1(self.conv1(x)))
        x = self.layer3(self.layer2(self.layer1(x)))
        return self.fc(torch.flatten(self.avgpool(x), 1))


class InvertedResidual(nn.Module):
    """Expand, depthwise convolution, linear projection: the block of MobileNetV2."""

    residual: Final[bool]  # so that scripting keeps one of the two branches below

    def __init__(self, channels_in: int, channels_out: int, stride: int, expand: int) -> None:
        super().__init__()
        hidden = channels_in * expand
        self.residual = stride == 1 and channels_in == channels_out
        self.conv = nn.Sequential(
            nn.Conv2d(channels_in, hidden, 1, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, hidden, 3, stride, padding=1, groups=hidden, bias=False),
            nn.BatchNorm2d(hidden),
            nn.ReLU6(inplace=True),
            nn.Conv2d(hidden, channels_out, 1, bias=False),
            nn.BatchNorm2d(channels_out),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Returns the block's output; the input is added where the shapes allow it."""
        if self.residual:
            return x + self.conv(x)
        return self.conv(x)


class DigitsMobileNet(nn.Module):
    """A MobileNetV2 of five inverted residuals for 16x16 digits."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU6(inplace=True),
            InvertedResidual(width, width, stride=1, expand=4),
            InvertedResidual(width, 2 * width, stride=2, expand=4),
            InvertedResidual(2 * width, 2 * width, stride=1, expand=4),
            InvertedResidual(2 * width, 3 * width, stride=2, expand=4),
            InvertedResidual(3 * width, 3 * width, stride=1, expand=4),
            nn.Conv2d(3 * width, 8 * width, 1, bias=False),
            nn.BatchNorm2d(8 * width),
            nn.ReLU6(inplace=True),
        )
        self.dropout = nn.Dropout(0.1)
        self.classifier = nn.Linear(8 * width, CLASSES)

    def forward(self, x: Tensor) -> Tensor:
        """Returns logits `[N, 10]` of images `[N, 1, 16, 16]`."""
        x = self.features(x).mean([2, 3])
        return self.classifier(self.dropout(x))


def train(
    model: nn.Module,
    data: Digits,
    *,
    epochs: int = 14,
    batch_size: int = 64,
    peak_rate: float = 8e-3,
    seed: int = 0,
    progress: bool | None = None,
) -> nn.Module:
    """Trains `model` on the training half and leaves it in eval mode.

    Args:
        model: a freshly made network; seed `torch.manual_seed` before making it.
        data: what `load_digits_tensors` returned.
        epochs: passes over the training half.
        batch_size: images per step.
        peak_rate: learning rate at the top of its one-cycle schedule.
        seed: seed of the shuffling and of the augmentation.
        progress: whether to draw a bar; `None` draws one on a terminal only.

    Returns:
        The module itself, trained, in eval mode.
    """
    threads = torch.get_num_threads()
    # A second thread gains little on images this small, and costs a lot on a busy machine, where
    # threads wait for one another; also, results then do not depend on the number of cores.
    torch.set_num_threads(1)
    try:
        _run_epochs(model.train(), data, epochs, batch_size, peak_rate, seed, progress)
    finally:
        torch.set_num_threads(threads)
    return model.eval()


def _run_epochs(
    model: nn.Module,
    data: Digits,
    epochs: int,
    batch_size: int,
    peak_rate: float,
    seed: int,
    progress: bool | None,
) -> None:
    """Runs the training loop of `train`."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=peak_rate, weight_decay=0.02)
    steps = len(data.train_x) // batch_size
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, peak_rate, total_steps=epochs * steps)
    show = sys.stderr.isatty() if progress is None else progress
    bar = tqdm(total=epochs * steps, desc=f"train {type(model).__name__}", disable=not show)
    for _ in range(epochs):
        order = torch.randperm(len(data.train_x), generator=generator)
        for picked in order[: steps * batch_size].split(batch_size):
            logits = model(shift(data.train_x[picked], generator))
            loss = F.cross_entropy(logits, data.train_y[picked], label_smoothing=0.05)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            bar.update()
    bar.close()


def shift(images: Tensor, generator: torch.Generator) -> Tensor:
    """Moves a batch by up to one pixel: the only augmentation that 8x8 scans can take."""
    dy, dx = torch.randint(-1, 2, (2,), generator=generator).tolist()
    background = images.amin().item()
    padded = F.pad(images, (1, 1, 1, 1), value=background)
    return padded[:, :, 1 + dy : 1 + dy + SIDE, 1 + dx : 1 + dx + SIDE]


@torch.no_grad()
def top1(model: nn.Module, x: Tensor, y: Tensor, batch_size: int = 256) -> float:
    """Returns the percentage of images whose highest logit is the right digit."""
    right = sum(
        int((model(images).argmax(1) == labels).sum())
        for images, labels in zip(x.split(batch_size), y.split(batch_size), strict=True)
    )
    return 100.0 * right / len(x)


def main() -> None:
    """Trains both networks and prints their accuracy on the test half."""
    data = load_digits_tensors()
    for make in (DigitsResNet, DigitsMobileNet):
        torch.manual_seed(0)
        start = time.perf_counter()
        model = train(make(), data)
        seconds = time.perf_counter() - start
        score = top1(model, data.test_x, data.test_y)
        print(f"{make.__name__:16s} top-1 {score:6.2f} %  trained in {seconds:.1f} s")


if __name__ == "__main__":
    main()
