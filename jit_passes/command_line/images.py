"""From pictures to tensors."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..errors import JitPassesError

IMAGES = (".jpg", ".jpeg", ".png", ".bmp", ".webp", ".tif", ".tiff")
MARGIN = 8 / 7  # scaled size over cropped size: 256 over 224, as torchvision evaluates


@dataclass(frozen=True)
class Images:
    """How pictures become float32 [samples, channels, height, width].

    A picture is scaled, bilinear: its shorter side becomes 8/7 of the crop's in that direction. Its
    middle is cropped, and then (x / 255 - mean) / std computed.

    Attributes:
        size: height and width of the crop.
        mean, std: one for each channel, or one for all: of 1 or 3 channels.
        channels: 3, or 1 for grey.
    """

    size: tuple[int, int]
    mean: tuple[float, ...]
    std: tuple[float, ...]
    channels: int = 3

    def batches(self, paths: Sequence[Path], size: int) -> Iterator[tuple[torch.Tensor]]:
        """Yield batches of so many pictures, which are read as they are needed."""
        for begin in range(0, len(paths), size):
            yield (torch.stack([self.read(path) for path in paths[begin : begin + size]]),)

    def read(self, path: Path) -> torch.Tensor:
        """Return a picture as a tensor.

        Raises:
            JitPassesError: it cannot be read, or there is no Pillow to read it.
        """
        try:
            from PIL import Image
        except ImportError as error:
            raise JitPassesError(
                "reading images needs the package Pillow: pip install 'jit_passes[data]', or pillow"
            ) from error
        try:
            with Image.open(path) as opened:
                picture: Any = opened.convert("RGB" if self.channels == 3 else "L")
        except OSError as error:
            raise JitPassesError(f"{path} is no image that Pillow can read: {error}") from error
        height, width = self.size
        scale = max(width / picture.width, height / picture.height) * MARGIN
        scaled = (round(picture.width * scale), round(picture.height * scale))
        picture = picture.resize(scaled, Image.Resampling.BILINEAR)
        left, top = (scaled[0] - width) // 2, (scaled[1] - height) // 2
        picture = picture.crop((left, top, left + width, top + height))
        pixels = torch.from_numpy(np.array(picture, dtype=np.float32) / 255)
        pixels = pixels.reshape(height, width, self.channels).permute(2, 0, 1)
        mean, std = (torch.tensor(values).reshape(-1, 1, 1) for values in (self.mean, self.std))
        return ((pixels - mean) / std).contiguous()
