"""The pictures of docs/gallery.md, made anew: `make gallery`, with a Chromium.

The page is about ResNet-18 with one large channel, as in docs/first_hour.md, in int8 for `stock`.
"""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from PIL import Image, ImageChops

import jit_passes
from benchmarks.inputs import images
from benchmarks.models import MODELS
from jit_passes.report.page import page
from tools import browser
from tools.site_pages import ROOT

FOLDER = ROOT / "docs" / "pictures"
COLOURS = 256  # of a picture; text and flat areas need no more
MARGIN = 16


@dataclass(frozen=True)
class Picture:
    """A part of the page as a browser shows it.

    Attributes:
        name: of the file.
        width, height: of the window; what is empty above and below is cut off.
        dark: the theme.
        section: id of the one that is shown; "" for the top of the page.
    """

    name: str
    width: int
    height: int
    dark: bool = False
    section: str = ""


PICTURES = (
    *(Picture(f"overview_{width}_{theme}", width, height, theme == "dark")
      for width, height in ((500, 1000), (900, 900), (1400, 800)) for theme in ("light", "dark")),
    Picture("operators", 1100, 700, section="operators"),
    Picture("errors", 1100, 700, section="errors"),
    Picture("errors_dark", 500, 900, True, "errors"),
    Picture("graph", 1100, 700, section="graph"),
    Picture("graph_dark", 1100, 700, True, "graph"),
    Picture("values", 1100, 700, section="values"),
)  # fmt: skip


def page_text() -> str:
    """Return the page of the network of docs/first_hour.md."""
    model = MODELS["resnet18"].build()
    with torch.no_grad():
        block = model.get_submodule("layer2.0")
        block.bn1.weight[3] *= 100
        block.bn1.bias[3] *= 100
        block.conv2.weight[:, 3] /= 100
    scripted = torch.jit.script(model)
    data = list(images(16, seed=0).split(8))
    quantized = jit_passes.quantize_script(scripted, data, target="stock")
    return page(scripted, quantized, data, title="ResNet-18", latency=True)


def without_others(text: str, section: str) -> str:
    """Return a page that shows one section, or all."""
    hidden = f"<style>header, main > :not(#{section}) {{ display: none }}</style></head>"
    return text.replace("</head>", hidden) if section else text


def photographed(text: str, picture: Picture, folder: Path) -> Image.Image:
    """Return a picture of a page."""
    file, shot = folder / "page.html", folder / "shot.png"
    file.write_text(without_others(text, picture.section), encoding="utf-8")
    theme = f"--blink-settings=preferredColorScheme={0 if picture.dark else 1}"
    browser.opened(file, (picture.width, picture.height), theme, f"--screenshot={shot}")
    whole = Image.open(shot).convert("RGB")
    ground = Image.new("RGB", whole.size, whole.getpixel((0, whole.height - 1)))  # type: ignore[arg-type]
    found = ImageChops.difference(whole, ground).getbbox()
    _, top, _, bottom = found or (0, 0, whole.width, whole.height)
    above, below = max(0, top - MARGIN), min(whole.height, bottom + MARGIN)
    return whole.crop((0, above, whole.width, below))


def pictures(text: str) -> Iterator[tuple[str, Image.Image]]:
    """Yield names and pictures of a page."""
    with tempfile.TemporaryDirectory() as folder:
        for picture in PICTURES:
            yield picture.name, photographed(text, picture, Path(folder))


def main() -> int:
    if not browser.find():
        print(f"there is no Chromium: install one, or name it in {browser.VARIABLE}")
        return 1
    FOLDER.mkdir(exist_ok=True)
    for name, picture in pictures(page_text()):
        picture.quantize(COLOURS).save(FOLDER / f"{name}.png", optimize=True)
        print(f"{name}.png: {(FOLDER / f'{name}.png').stat().st_size / 1024:.0f} KiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
