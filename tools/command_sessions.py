"""Commands that docs/command_line.md shows, and what they write."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import re
import shlex
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch
from torch import nn

from jit_passes.command_line import main

# Equal text on every processor: without VNNI activations have 7 bits by default.
TARGET = "x86"
# In this order, in one folder, as a person would type them.
SESSIONS = {
    "command_inspect": [f"jit-passes inspect model.pt --target {TARGET}"],
    "command_quantize": [
        f"jit-passes quantize model.pt --data calib.npz --target {TARGET} -o int8.pt"
    ],
    "command_compare": [
        "jit-passes quantize model.pt --data calib.npz --config low.yaml --target reference "
        "-o low.pt | head -2",
        "jit-passes compare model.pt low.pt --data calib.npz",
    ],
    "command_report": [
        "jit-passes report model.pt low.pt --data calib.npz -o report.html",
    ],
    "command_sensitivity": [
        "jit-passes sensitivity model.pt --data calib.npz --config low.yaml --target reference",
    ],
    "command_tune": [
        "jit-passes tune model.pt --data calib.npz --config low.yaml --target reference "
        "--budget 60 -o tuned.yaml",
        "cat tuned.yaml",
        "jit-passes quantize model.pt --data calib.npz --config tuned.yaml --target reference "
        "-o tuned.pt | head -2",
    ],
    "command_configured": [
        "cat layers.yaml",
        "jit-passes quantize model.pt --data calib.npz --config layers.yaml \\\n"
        f"  --target {TARGET} -o int8.pt",
        "jit-passes inspect int8.pt",
    ],
    "command_profile": [
        "jit-passes profile model.pt --data calib.npz -o ranges.yaml | head -4",
        "jit-passes quantize model.pt --profile ranges.yaml --target reference -o reference.pt",
        "jit-passes export reference.pt --format tensorrt -o calibration.cache",
    ],
    "command_errors": [
        "jit-passes quantize model.pt --data labels.npz -o int8.pt",
        "echo $?",
        "jit-passes inspect weights.pt",
        "jit-passes quantize model.pt --data calib.npz --config typo.yaml -o int8.pt",
    ],
    "command_listings": [
        "jit-passes targets",
        "jit-passes passes fold_batch_norm",
    ],
}
LAYERS = "version: 1\nrules:\n  - module: head\n    keep_float: true\n"
LOW = "version: 1\nrules:\n  - module: conv\n    weight: {bits: 2}\n"


class Net(nn.Module):
    """A convolution with its batch norm, and a head."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 16, 3, padding=1, bias=False)
        self.bn = nn.BatchNorm2d(16)
        self.head = nn.Linear(16, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        y = torch.relu(self.bn(self.conv(images)))
        return torch.cosh(self.head(y.mean([2, 3])))


def write_files(folder: Path) -> None:
    torch.manual_seed(0)
    model = Net().eval()
    torch.jit.save(torch.jit.script(model), folder / "model.pt")
    torch.save(model.state_dict(), folder / "weights.pt")
    images = torch.randn(100, 3, 16, 16).numpy()
    np.savez(folder / "calib.npz", images=images)
    np.savez(folder / "labels.npz", images=images, labels=np.zeros(100))
    (folder / "layers.yaml").write_text(LAYERS)
    (folder / "low.yaml").write_text(LOW)
    (folder / "typo.yaml").write_text(LAYERS.replace("keep_float", "keep_flaot"))


@contextlib.contextmanager
def working_folder() -> Iterator[Path]:
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        try:
            yield Path(folder)
        finally:
            os.chdir(before)


@functools.cache
def outputs() -> dict[str, str]:
    """Run all sessions; return what a terminal shows of each."""
    code = 0
    found: dict[str, str] = {}
    with working_folder() as folder, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        write_files(folder)
        for name, lines in SESSIONS.items():
            terminal = io.StringIO()
            for line in lines:
                terminal.write(f"$ {line}\n")
                written, begin = line.partition(" | head -"), terminal.tell()
                program, *arguments = shlex.split(written[0].replace("\\\n", ""))
                if program == "cat":
                    terminal.write(Path(arguments[0]).read_text())
                elif program == "echo":
                    terminal.write(f"{code}\n")
                else:
                    with (
                        contextlib.redirect_stdout(terminal),
                        contextlib.redirect_stderr(terminal),
                    ):
                        code = int(main(arguments))
                if written[2]:
                    terminal.seek(begin)
                    shown = terminal.read().splitlines(keepends=True)[: int(written[2])]
                    terminal.truncate(begin)
                    terminal.seek(begin)
                    terminal.writelines(shown)
            found[name] = re.sub(r"^torch: .*$", "torch: 2.13.0", terminal.getvalue(), flags=re.M)
    return found
