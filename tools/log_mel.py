"""The picture of a log-mel spectrum in docs/configuration.md, made anew: `make gallery`.

A sound with loud and quiet parts, as three models give its spectrum: the float model, all on 8 bits
(mode static), and mode auto, which leaves the front end in float. On the target `reference`, which
computes the same on any processor.
"""

from __future__ import annotations

import sys
import warnings

import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor, nn

import jit_passes
from tools.site_pages import ROOT

FILE = ROOT / "docs" / "pictures" / "log_mel.png"
RATE = 16000
BANDS = 48
SCALE = 6, 5  # pixels of a frame and of a band, twice the width of what a page shows
HEAD, GAP, FONT = 44, 20, 26
LOW, HIGH = -100.0, 30.0  # dB, the ends of the colours
COLOURS = torch.tensor(  # viridis, which is as dark in grey as it is in colour
    [[68, 1, 84], [59, 82, 139], [33, 145, 140], [94, 201, 98], [253, 231, 37]]
)


class LogMel(nn.Module):
    """The logarithm of the power in mel bands, in dB, and a layer that reads it."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("window", torch.hann_window(512))
        mel = torch.linspace(0, 1, BANDS + 2)  # 2595 log10(1 + f / 700), from 0 to half the rate
        hertz = 700 * ((1 + RATE / 1400) ** mel - 1)
        place = torch.linspace(0, RATE / 2, 257)[:, None]
        rise = (place - hertz[:-2]) / (hertz[1:-1] - hertz[:-2])
        fall = (hertz[2:] - place) / (hertz[2:] - hertz[1:-1])
        self.register_buffer("filters", torch.minimum(rise, fall).clamp(0))
        self.layer = nn.Conv1d(BANDS, 8, 3)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return dB, [1, BANDS, frames], and what the layer makes of it."""
        spectrum = torch.stft(x, 512, 256, 512, self.window, return_complex=True)
        power = spectrum.abs().square().transpose(1, 2)
        decibels = 10 * torch.log10(torch.matmul(power, self.filters) + 1e-10).transpose(1, 2)
        return decibels, self.layer(decibels)


def sound() -> Tensor:
    """Return three notes that fade, over a quiet sweep and quieter noise, [1, samples]."""
    time = torch.arange(RATE * 3 // 2) / RATE
    sweep = torch.sin(2 * torch.pi * (300 * time + 1500 * time.square()))
    total = 0.003 * sweep + 0.0001 * torch.randn(len(time))
    for start, pitch in ((0.1, 220.0), (0.5, 330.0), (0.9, 277.0)):
        since = (time - start).clamp(0)
        fade = (since > 0) * torch.exp(-8 * since)
        for harmonic in range(1, 9):
            total += fade * torch.sin(2 * torch.pi * harmonic * pitch * since) / harmonic
    return total[None]


def panels() -> list[tuple[str, Tensor]]:
    """Return a title and the spectrum in dB, [BANDS, frames], of each model."""
    torch.manual_seed(0)
    model, x = torch.jit.script(LogMel().eval()), sound()
    found = [("float", model(x)[0][0])]
    for title, mode in (("on 8 bits", "static"), ("mode auto", "auto")):
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", jit_passes.JitPassesWarning)  # which says what one sees
            quantized = jit_passes.quantize_script(model, [x], mode=mode, target="reference")
        found.append((title, quantized(x)[0][0]))
    return found


def drawn(spectrum: Tensor) -> Image.Image:
    """Return a picture of a spectrum, low bands below."""
    place = ((spectrum.flip(0) - LOW) / (HIGH - LOW)).clamp(0, 1) * (len(COLOURS) - 1)
    first = place.floor().clamp(max=len(COLOURS) - 2)
    share = (place - first)[..., None]
    index = first.long()
    colours = COLOURS[index] * (1 - share) + COLOURS[index + 1] * share
    small = Image.fromarray(colours.round().to(torch.uint8).numpy())
    return small.resize((small.width * SCALE[0], small.height * SCALE[1]), Image.Resampling.NEAREST)


def picture() -> Image.Image:
    """Return the spectra side by side, each below its title."""
    parts = [(title, drawn(spectrum)) for title, spectrum in panels()]
    width, height = parts[0][1].size
    whole = Image.new("RGB", (len(parts) * (width + GAP) - GAP, HEAD + height), "white")
    text, font = ImageDraw.Draw(whole), ImageFont.load_default(FONT)
    for number, (title, part) in enumerate(parts):
        left = number * (width + GAP)
        whole.paste(part, (left, HEAD))
        text.text((left, 4), title, "black", font)
    return whole


def main() -> int:
    FILE.parent.mkdir(exist_ok=True)
    picture().quantize(256).save(FILE, optimize=True)
    print(f"{FILE.name}: {FILE.stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
