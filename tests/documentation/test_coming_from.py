"""The tables for people who come from other tools: our calls run, and theirs exist."""

from __future__ import annotations

import ast
import importlib.util
import inspect
import re
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from tests.folders import ROOT
from tests.processor import bits_here

FOLDER = ROOT / "docs" / "coming_from"
PAGES = {path.stem: path.read_text("utf-8") for path in sorted(FOLDER.glob("*.md"))}
PACKAGES = {
    "quantize_jit": ("torch",),
    "pt2e": ("torchao",),
    "onnx_runtime": ("onnxruntime", "onnx"),
    "nncf": ("nncf", "openvino"),
}
CODE = re.compile(r"`([^`]+)`")


def table(page: str) -> list[list[str]]:
    """The rows of the table of tasks: task, their calls, ours."""
    rows = [line.strip("|").split(" | ") for line in PAGES[page].split("\n") if line[:1] == "|"]
    return [[cell.strip() for cell in row] for row in rows[2:]]


def calls(cell: str) -> list[str]:
    """The lines of a cell that are code alone."""
    return [code[1] for code in map(CODE.fullmatch, cell.split("<br>")) if code]


def imports(page: str) -> str:
    found = re.search(r"^```python\n(.*?)^```$", PAGES[page], re.DOTALL | re.MULTILINE)
    assert found is not None
    return found[1]


class Net(nn.Module):
    """A convolution, and a head that groups of 32 inputs divide."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 64, 3), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(torch.relu(self.conv(x)).mean([2, 3]))


@pytest.fixture
def names(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> dict[str, Any]:
    """Names that the pages take for given."""
    monkeypatch.chdir(tmp_path)
    torch.manual_seed(0)
    model = Net().eval()
    batches = [torch.randn(4, 3, 10, 10) for _ in range(4)]
    labels = [model(batch).argmax(1) for batch in batches]

    def accuracy(model: Any) -> float:
        hits = [(model(x).argmax(1) == y).float() for x, y in zip(batches, labels, strict=True)]
        return float(torch.cat(hits).mean())

    def train(model: Any) -> None:
        optimizer = torch.optim.SGD(model.parameters(), lr=1e-3)
        for x, y in zip(batches, labels, strict=True):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model.train()(x), y).backward()
            optimizer.step()

    return {"model": model, "batches": batches, "batch": batches[0], "accuracy": accuracy,
            "train": train}  # fmt: skip


def test_the_same_ten_tasks() -> None:
    assert set(PAGES) == set(PACKAGES)
    first, *others = ([(row[0], row[2]) for row in table(page)] for page in PAGES)
    assert len(first) == 10 and all(other == first for other in others)


def test_our_calls(names: dict[str, Any]) -> None:
    """Each does what its task says."""
    rows = table("nncf")
    names |= {"torch": torch, "jit_passes": jit_passes}
    names["scripted"] = torch.jit.script(names["model"])
    results: list[Any] = []
    for _, _, ours in rows:
        result = None
        for code in calls(ours):
            tree = ast.parse(code)
            last = tree.body[-1]
            if isinstance(last, ast.Expr):
                result = eval(code, names)
            else:
                exec(code, names)
                assert isinstance(last, ast.Assign)
                result = eval(ast.unparse(last.targets[0]), names)
        results.append(result)
    bits = [
        {row.name.partition(":")[0]: (row.precision, row.mode) for row in jit_passes.coverage(made)}
        for made in (results[i] for i in (0, 1, 2, 3, 4, 5, 7, 8, 9))
    ]
    whole, kept, entropy, narrow, dynamic, weights, tuned, trained, loaded = bits
    eight, four = (bits_here(text) for text in ("w8a8", "w4a8"))
    assert whole == entropy == loaded == {"conv": (eight, "static"), "head": (eight, "static")}
    assert kept["head"][0] == "float" and kept["conv"] == whole["conv"]
    assert narrow["head"] == (four, "static")
    assert dynamic["head"][1] == "dynamic"
    assert weights["head"][1] == "weight_only" and weights["head"][0].startswith("w4")
    assert tuned == whole  # nothing is lost, so nothing is otherwise
    assert trained == whole
    calibrated, by_entropy, reread = (results[i](names["batch"]) for i in (0, 2, 9))
    assert torch.equal(reread, calibrated) and not torch.equal(by_entropy, calibrated)


def test_calls_of_quantize_jit(names: dict[str, Any]) -> None:
    """PyTorch is here, so they run."""
    exec("import torch", names)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(imports("quantize_jit"), names)
        for _, theirs, _ in table("quantize_jit"):
            for code in calls(theirs):
                exec(code, names)
    assert "quantized::conv2d" in str(names["loaded"].inlined_graph)


@pytest.mark.parametrize("page", sorted(PAGES))
def test_their_calls(page: str) -> None:
    """Names are there, and take these arguments."""
    missing = [name for name in PACKAGES[page] if importlib.util.find_spec(name) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    names: dict[str, Any] = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(imports(page).partition("\nscripted")[0], names)
    bound = 0
    for _, theirs, _ in table(page):
        for node in ast.walk(ast.parse("\n".join(calls(theirs)))):
            if isinstance(node, ast.Call) and (function := dotted(node.func, names)) is not None:
                given = {word.arg: None for word in node.keywords if word.arg}
                signature_of(function).bind(*[None] * len(node.args), **given)
                bound += 1
            elif isinstance(node, ast.Attribute):
                dotted(node, names)
    assert bound >= 8


def dotted(name: ast.expr, names: dict[str, Any]) -> Any:
    """Return the object `a.b.c`; None where it begins with a value of the reader's own."""
    first = name
    while isinstance(first, ast.Attribute):
        first = first.value
    known = isinstance(first, ast.Name) and first.id in names
    return eval(ast.unparse(name), names) if known else None


def signature_of(function: Any) -> inspect.Signature:
    try:
        return inspect.signature(function)
    except ValueError:  # of C++
        return inspect.signature(lambda *args, **kwargs: None)
