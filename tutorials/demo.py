"""Trains two networks, quantizes them, and shows in one table what that did.

    python tutorials/demo.py [--output FOLDER]

Everything in the table about speed and accuracy comes from the saved files, loaded in a fresh
process that imports torch only. Exits with 1 if int8 loses more than half a point of top-1.
"""

import argparse
import json
import math
import subprocess
import sys
import tempfile
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

import torch
from digits import Digits, DigitsMobileNet, DigitsResNet, load_digits_tensors, train
from torch import Tensor

import jit_passes

EVALUATE = Path(__file__).with_name("evaluate.py")
ALLOWED_LOSS = 0.5  # points of top-1
CALIBRATION_IMAGES = 512


@dataclass(frozen=True)
class Row:
    """A network's line of the table; pairs are float, then int8."""

    name: str
    top1: tuple[float, float]
    sqnr: float
    kib: tuple[float, float]
    latency_1: tuple[float, float]
    latency_64: tuple[float, float]
    seconds: float
    left_float: str

    def cells(self) -> list[str]:
        """Returns the texts of the line, in the order of HEADINGS."""
        speed_1, speed_64 = (a / b for a, b in (self.latency_1, self.latency_64))
        return [
            self.name,
            *(f"{value:.2f}" for value in self.top1),
            f"{self.sqnr:.1f}",
            *(f"{value:.0f}" for value in self.kib),
            *(f"{value:.2f}" for value in self.latency_1),
            f"{speed_1:.2f}x",
            *(f"{value:.2f}" for value in self.latency_64),
            f"{speed_64:.2f}x",
            f"{self.seconds:.1f}",
            self.left_float,
        ]


# The group over the columns, the column, and how many columns the group spans.
GROUPS = (("", 1), ("top-1 %", 2), ("SQNR", 1), ("file KiB", 2), ("ms, batch 1", 3),
          ("ms, batch 64", 3), ("quantize", 1), ("", 1))  # fmt: skip
HEADINGS = ("model", "float", "int8", "dB", "float", "int8", "float", "int8", "speed-up",
            "float", "int8", "speed-up", "s", "stayed float")  # fmt: skip


def build(model: torch.nn.Module, data: Digits, folder: Path) -> Row:
    """Trains `model`, saves it in float and int8, and measures the two files."""
    name = type(model).__name__
    scripted = torch.jit.script(train(model, data))
    batches = data.train_x[:CALIBRATION_IMAGES].split(64)
    start = time.perf_counter()
    quantized = jit_passes.quantize_script(scripted, batches, target="stock")
    seconds = time.perf_counter() - start
    paths = folder / f"{name}-float.pt", folder / f"{name}-int8.pt"
    for module, path in zip((scripted, quantized), paths, strict=True):
        torch.jit.save(module, str(path))
    floats = [row for row in jit_passes.coverage(quantized) if row.dtype == "float"]
    results = evaluate(*paths, folder / "test.pt")
    before, after = results["float"], results["int8"]
    return Row(
        name=name,
        top1=(before["top1"], after["top1"]),
        sqnr=sqnr(torch.tensor(before["logits"]), torch.tensor(after["logits"])),
        kib=(paths[0].stat().st_size / 1024, paths[1].stat().st_size / 1024),
        latency_1=(before["latency_1"], after["latency_1"]),
        latency_64=(before["latency_64"], after["latency_64"]),
        seconds=seconds,
        left_float="; ".join(f"{row.name} ({row.kind}): {row.reason}" for row in floats)
        or "nothing",
    )


def evaluate(float_path: Path, int8_path: Path, data_path: Path) -> dict:
    """Runs evaluate.py on two saved modules, in a process of its own."""
    command = [sys.executable, str(EVALUATE), str(float_path), str(int8_path), str(data_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"the saved modules do not run in a fresh process:\n{done.stderr}")
    return json.loads(done.stdout)


def sqnr(reference: Tensor, actual: Tensor) -> float:
    """Returns the signal to quantization noise ratio in dB."""
    noise = (reference - actual).double().square().sum().item()
    return 10 * math.log10(reference.double().square().sum().item() / noise) if noise else math.inf


def table(rows: list[Row]) -> str:
    """Lays the rows out under two lines of headings, numbers flush right."""
    lines = [list(HEADINGS), *(row.cells() for row in rows)]
    widths = [max(len(line[i]) for line in lines) for i in range(len(HEADINGS))]
    widths[3] = max(widths[3], len("SQNR"))
    widths[12] = max(widths[12], len("quantize"))
    last = len(HEADINGS) - 1
    texts = [
        "  ".join(
            f"{cell:<{width}}" if i in (0, last) else f"{cell:>{width}}"
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in lines
    ]
    groups, first = [], 0
    for title, span in GROUPS:
        width = sum(widths[first : first + span]) + 2 * (span - 1)
        groups.append(f"{title:^{width}}" if span > 1 else f"{title:>{width}}")
        first += span
    rule = "-" * max(len(text.rstrip()) for text in texts)
    return "\n".join(["  ".join(groups).rstrip(), texts[0], rule, *map(str.rstrip, texts[1:])])


def main() -> int:
    """Runs the demo and returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--output", type=Path, help="keep the .pt files in this folder")
    output = parser.parse_args().output
    warnings.filterwarnings("ignore", "`torch.jit")  # PyTorch deprecates it
    data = load_digits_tensors()
    with tempfile.TemporaryDirectory() as temporary:
        folder = output or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        torch.save({"x": data.test_x, "y": data.test_y}, folder / "test.pt")
        rows = []
        for make in (DigitsResNet, DigitsMobileNet):
            torch.manual_seed(0)
            rows.append(build(make(), data, folder))
    print(f"\n{len(data.test_y)} held-out digits; latencies are medians on one thread;")
    print("float runs through torch.jit.optimize_for_inference\n")
    print(table(rows))
    if output is not None:
        print(f"\nsaved in {output}")
    lost = [row.name for row in rows if row.top1[0] - row.top1[1] > ALLOWED_LOSS]
    if lost:
        print(f"\nint8 lost more than {ALLOWED_LOSS} points of top-1: {', '.join(lost)}")
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
