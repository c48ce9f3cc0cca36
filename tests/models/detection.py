"""Parts of detectors around their convolutions, in plain operators: boxes, regions, pyramids."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from .case import Case, conv, images


def decode(deltas: Tensor, anchors: Tensor) -> Tensor:
    """Boxes [N, K, 4] of offsets from anchors [K, 4], as detectors write them."""
    sizes, centres = anchors[:, 2:] - anchors[:, :2], (anchors[:, 2:] + anchors[:, :2]) / 2
    middle = deltas[..., :2] * sizes * 0.1 + centres
    half = torch.exp(deltas[..., 2:].clamp(max=4.135)) * sizes * 0.5
    return torch.cat([middle - half, middle + half], -1).clamp(0, 8)


def overlaps(a: Tensor, b: Tensor) -> Tensor:
    """Intersection over union of boxes [K, 4] and [L, 4]."""
    low = torch.max(a[:, None, :2], b[None, :, :2])
    high = torch.min(a[:, None, 2:], b[None, :, 2:])
    both = (high - low).clamp(min=0).prod(2)
    area_a, area_b = (a[:, 2:] - a[:, :2]).prod(1), (b[:, 2:] - b[:, :2]).prod(1)
    return both / (area_a[:, None] + area_b[None] - both + 1e-6)


def suppressed(boxes: Tensor, scores: Tensor, most: int) -> Tensor:
    """Indices of the boxes that greedy suppression keeps, best first; -1 where there are fewer."""
    overlap = overlaps(boxes, boxes)
    left = torch.ones_like(scores)
    kept: list[Tensor] = []
    for _ in range(most):
        best = torch.argmax(scores * left - (1 - left))
        kept.append(torch.where(left.sum() > 0, best, torch.full_like(best, -1)))
        left = left * (overlap[best] < 0.5).to(left.dtype)
    return torch.stack(kept)


def aligned(features: Tensor, boxes: Tensor, size: int) -> Tensor:
    """Average of 2x2 bilinear samples in each of size x size bins of boxes [K, 4] of each image.

    The sampling of aligned regions of interest, with zeros beyond the image.
    """
    steps = (torch.arange(2 * size, dtype=features.dtype) + 0.5) / (2 * size)
    width = boxes[..., 2:] - boxes[..., :2]
    x = boxes[..., 0:1] + width[..., 0:1] * steps
    y = boxes[..., 1:2] + width[..., 1:2] * steps
    n, k = boxes.size(0), boxes.size(1)
    grid = torch.stack(
        [
            x[:, :, None, :].expand(n, k, 2 * size, 2 * size),
            y[:, :, :, None].expand(n, k, 2 * size, 2 * size),
        ],
        -1,
    )
    grid = (grid / 4 - 1).reshape(n, k * 2 * size, 2 * size, 2)
    found = F.grid_sample(features, grid, align_corners=False)
    found = found.reshape(n, features.size(1), k, 2 * size, 2 * size).transpose(1, 2)
    return F.avg_pool2d(found.flatten(0, 1), 2)


ANCHORS = [[0.0, 0.0, 4.0, 4.0], [2.0, 2.0, 7.0, 6.0], [4.0, 1.0, 8.0, 8.0], [1.0, 3.0, 5.0, 8.0]]


class Regions(nn.Module):
    """A second stage: regions of the first one's boxes, and a head on each."""

    anchors: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.deltas = conv(), nn.Conv2d(8, 16, 8)
        self.head, self.scores = conv(8, 8), nn.Linear(8 * 9, 5)
        self.register_buffer("anchors", torch.tensor(ANCHORS))

    def forward(self, x: Tensor) -> Tensor:
        features = torch.relu(self.backbone(x))
        boxes = decode(self.deltas(features).reshape(-1, 4, 4), self.anchors)
        regions = torch.relu(self.head(aligned(features, boxes, 3)))
        return self.scores(regions.flatten(1)).reshape(-1, 4, 5)


class Pyramid(nn.Module):
    """Levels that are resized and added from the coarsest to the finest, and one head for all."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = conv(), nn.Conv2d(8, 12, 3, 2, 1)
        self.lateral = nn.ModuleList([nn.Conv2d(8, 8, 1), nn.Conv2d(12, 8, 1)])
        self.head = conv(8, 6)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        fine = torch.relu(self.first(x))
        coarse = torch.relu(self.second(fine))
        top = self.lateral[1](coarse)
        below = self.lateral[0](fine) + F.interpolate(top, size=fine.shape[-2:], mode="nearest")
        pooled = F.max_pool2d(top, 1, 2)
        return self.head(below), self.head(top), self.head(pooled)


class Suppressed(nn.Module):
    """Greedy suppression of boxes that do not depend on codes, and the features at those kept."""

    anchors: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.backbone, self.head = conv(), conv(8, 4)
        self.register_buffer("anchors", torch.tensor(ANCHORS))
        self.register_buffer("scores", torch.tensor([0.9, 0.6, 0.8, 0.7]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        y = self.head(torch.relu(self.backbone(x)))
        kept = suppressed(self.anchors, self.scores, 3)
        return y.mean([2, 3])[:, kept.clamp(min=0)], kept


class Deformed(nn.Module):
    """A convolution on what offsets, which another one computes, pick: deformable convolution."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.offsets, self.last = conv(), conv(8, 2), conv(8, 5)

    def forward(self, x: Tensor) -> Tensor:
        y = torch.relu(self.first(x))
        line = torch.linspace(-0.875, 0.875, 8)
        rows, columns = torch.meshgrid(line, line, indexing="ij")
        shift = 0.1 * torch.tanh(self.offsets(y)).permute(0, 2, 3, 1)
        return self.last(
            F.grid_sample(y, torch.stack([columns, rows], -1) + shift, align_corners=False)
        )


CASES = [
    Case("regions_of_interest", Regions, images(), int8=4),
    Case("feature_pyramid", Pyramid, images(), int8=5),
    Case("suppressed_boxes", Suppressed, images(), int8=2),
    Case("deformed_convolution", Deformed, images(), int8=3),
]
