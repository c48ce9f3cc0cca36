"""Lines of source: of the user's code, whichever way the model came."""

from __future__ import annotations

import inspect
import zipfile
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes.errors import without_folders

HERE = Path(__file__).name


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 3, 3, padding=1)
        self.act = nn.Sequential(nn.SiLU())

    def forward(self, x: Tensor) -> Tensor:
        return self.act(self.conv(x))  # within Block


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.block = Block()
        self.head = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        x = F.silu(self.block(x))  # in Net
        y = torch.sigmoid(x)  # a sigmoid
        return self.head(y.mean([2, 3]))  # the head


LINES = {  # by operator, the comment of its line
    "block.conv:conv2d": "within Block",
    "block.act.0:silu": "within Block",
    "silu": "in Net",
    "sigmoid": "a sigmoid",
    "head:linear": "the head",
}


def line_of(comment: str) -> str:
    text = Path(inspect.getfile(Net)).read_text().splitlines()
    return f"{HERE}:{next(k for k, line in enumerate(text, 1) if line.endswith('# ' + comment))}"


def modules(folder: Path, model: nn.Module, example: Tensor) -> dict[str, torch.jit.ScriptModule]:
    """Scripted, traced, loaded, and loaded from a file of what was loaded."""
    found: dict[str, Any] = {
        "script": torch.jit.script(model.eval()),
        "trace": torch.jit.trace(model.eval(), example),
    }
    for name in ("script", "trace"):
        for again in ("loaded", "loaded again"):
            torch.jit.save(found.get(f"{name} loaded", found[name]), folder / "model.pt")
            found[f"{name} {again}"] = torch.jit.load(folder / "model.pt")
    return found


def test_lines_of_the_users_code(tmp_path: Path) -> None:
    """Also of what PyTorch's modules and functions call, and of models from files."""
    x = torch.randn(2, 3, 8, 8)
    for way, model in modules(tmp_path, Net(), x).items():
        rows = {row.name: row.source for row in jit_passes.inspect(model, target="reference")}
        if way == "script loaded again":
            # PyTorch writes no line for calls of functions of a model that it has loaded.
            assert rows.pop("silu").startswith("code/__torch__/tests/graph/test_source_lines.py:")
        for name, source in rows.items():
            if name in LINES:
                assert source.startswith("/"), (way, name)
                assert without_folders(source) == line_of(LINES[name]), (way, name)
        assert rows.keys() >= LINES.keys() - {"silu"}
        quantized = jit_passes.quantize_script(model, [x], target="reference", progress=False)
        torch.jit.save(quantized, tmp_path / "int8.pt")
        for row in jit_passes.coverage(torch.jit.load(tmp_path / "int8.pt")):
            assert without_folders(row.source) == line_of(LINES[row.name]), (way, row.name)
        compared = jit_passes.compare(model, quantized, [x], progress=False)
        assert without_folders(compared["sigmoid"].source) == line_of("a sigmoid"), way


def test_models_without_code_of_the_user(tmp_path: Path) -> None:
    """The line of PyTorch's module; that which traced the model is none of it."""
    x = torch.randn(2, 3, 8, 8)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.SiLU())
    for way, module in modules(tmp_path, model, x).items():
        (row, *_) = jit_passes.inspect(module, target="reference")
        assert "/torch/nn/modules/" in row.source and "in the file" not in row.source, way


def test_files_without_the_lines_of_other_code(tmp_path: Path) -> None:
    """A message says that the line is of the code within the file, with or without folders."""
    whole, stripped = tmp_path / "whole.pt", tmp_path / "stripped.pt"
    torch.jit.save(torch.jit.script(Net().eval()), whole)
    with zipfile.ZipFile(whole) as source, zipfile.ZipFile(stripped, "w") as target:
        for name in source.namelist():
            if not name.endswith(".debug_pkl"):
                target.writestr(name.replace("whole/", "stripped/", 1), source.read(name))
    model = torch.jit.load(stripped)
    for row in jit_passes.inspect(model, target="reference"):
        path, _, line = row.source.removesuffix(" in the file").partition(":")
        with zipfile.ZipFile(stripped) as archive:
            code = archive.read(f"stripped/{path}").decode().splitlines()
        assert (
            row.name.rpartition(":")[2].rstrip("_") in code[int(line) - 1]
            or "forward" in code[int(line) - 1]
        )
        assert row.source.startswith("code/__torch__") and row.source.endswith(" in the file")
        assert without_folders(row.source) == row.source
