"""Nets of torchvision, with random weights, and their results as one tensor."""

# PyTorch declares that calling a module returns Any.
# mypy: disable-error-code="no-any-return"

from __future__ import annotations

import importlib
from typing import Any

import torch
from torch import Tensor, nn


def torchvision() -> Any:
    """The package's models.

    Raises:
        SystemExit: the package is missing.
    """
    try:
        return importlib.import_module("torchvision.models")
    except ImportError as error:
        raise SystemExit(f"this needs torchvision: pip install torchvision ({error})") from None


class SSDlite(nn.Module):
    """MobileNetV3 and the heads of SSDlite: boxes and scores ``[batch, anchors, 4 + classes]``."""

    def __init__(self) -> None:
        super().__init__()
        detection = torchvision().detection
        net = detection.ssdlite320_mobilenet_v3_large(weights=None, weights_backbone=None)
        self.backbone, self.head = net.backbone, net.head

    def forward(self, x: Tensor) -> Tensor:
        found = self.head(list(self.backbone(x).values()))
        return torch.cat([found["bbox_regression"], found["cls_logits"]], 2)


class Pyramid(nn.Module):
    """The backbone of Mask R-CNN: the features of all levels ``[batch, numbers]``."""

    def __init__(self) -> None:
        super().__init__()
        detection = torchvision().detection
        net = detection.maskrcnn_resnet50_fpn(weights=None, weights_backbone=None)
        self.backbone = net.backbone

    def forward(self, x: Tensor) -> Tensor:
        return torch.cat([level.flatten(1) for level in self.backbone(x).values()], 1)


class Inception(nn.Module):
    """Inception v3 with both of its heads: logits ``[batch, 2000]``."""

    def __init__(self) -> None:
        super().__init__()
        self.net = torchvision().inception_v3(weights=None, init_weights=False)

    def forward(self, x: Tensor) -> Tensor:
        self.net.training = True  # of the net alone, and not of its layers: so it has both
        logits, auxiliary = self.net(x)
        return torch.cat([logits, auxiliary], 1)
