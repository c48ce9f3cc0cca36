"""Test vectors of operators: plain numpy makes each result out of the files alone."""

from __future__ import annotations

import json
from math import isqrt
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes import JitPassesError
from jit_passes.targets import FixedPoint
from jit_passes.targets.fixed_point.rescale import ROUNDINGS
from tests.command_line.running import Run, run_fixture  # noqa: F401
from tests.integer_oracle import rounded
from tests.published_forms import apply_scale_32
from tests.targets.fixed_point.test_fixed_point import Everything, Residual, data, models, slots

Array = np.ndarray[Any, Any]


class Files:
    """The folder, as a testbench reads it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.manifest = json.loads((folder / "manifest.json").read_text())

    def arrays(self, operator: Any) -> dict[str, Array]:
        """The arrays of an operator by name; both kinds of files have the same numbers."""
        found = {}
        for entry in operator["operands"] + operator["constants"] + operator["results"]:
            array = np.load(self.folder / entry["npy"])
            bits = array.dtype.itemsize * 8
            lines = (self.folder / entry["hex"]).read_text().split()
            numbers = [int(line, 16) for line in lines]
            if array.dtype.kind == "i":
                numbers = [n - (1 << bits) if n >> (bits - 1) else n for n in numbers]
            assert all(len(line) == bits // 4 for line in lines)
            assert numbers == array.flatten().tolist()
            assert str(array.dtype) == entry["dtype"]
            lead = [self.manifest["batches"]] if entry in operator["operands"] else []
            lead = [self.manifest["batches"]] if entry in operator["results"] else lead
            assert list(array.shape) == lead + entry["shape"], entry
            found[entry["name"]] = array.astype(np.int64)
        return found

    def rescaled(self, sums: Array, channel: int, given: Any, arrays: dict[str, Array]) -> Array:
        """clamp(round(sum * multiplier / 2^shift) + zero, low, high), of Python's integers."""
        r = given["rescaling"]
        k = channel if r["per_channel"] else 0
        multiplier, shift = int(arrays["multipliers"][k]), int(arrays["shifts"][k])
        if self.manifest["rounding"] == "double_round":
            return (scaled(sums, multiplier, shift) + r["zero"]).clip(r["low"], r["high"])
        return self.saturated(sums * multiplier, shift, r)

    def quotients(self, numerators: Array, divisors: Array, given: Any) -> Array:
        """clamp(round(numerator / (divisor * number)) + zero, low, high)."""
        r, by, rounding = given["rescaling"], given["divisor"], self.manifest["rounding"]
        pairs = zip(numerators.flatten().tolist(), divisors.flatten().tolist(), strict=True)
        found = [rounded(n, d * by, rounding) + r["zero"] for n, d in pairs]
        return np.array(found).clip(r["low"], r["high"])

    def saturated(self, sums: Array, shift: int, r: Any) -> Array:
        rounding = self.manifest["rounding"]
        found = [rounded(int(n), 2**shift, rounding) + r["zero"] for n in sums.flatten()]
        return np.array(found).clip(r["low"], r["high"]).reshape(sums.shape)


def scaled(numbers: Array, multiplier: int, shift: int) -> Array:
    """Do as TOSA does, with double_round."""
    found = [apply_scale_32(int(n), multiplier, shift, True) for n in numbers.flatten()]
    return np.array(found).reshape(numbers.shape)


def addition_of_rescaled(files: Files, given: Any, arrays: dict[str, Array]) -> Array:
    left, right = (
        scaled(
            (arrays[x] - given[f"zero_{x}"]) * given["lift"],
            given[f"multiplier_{x}"],
            given[f"shift_{x}"],
        )
        for x in ("a", "b")
    )
    return files.rescaled(left + given["sign"] * right, 0, given, arrays)


def convolution(files: Files, given: Any, arrays: dict[str, Array]) -> Array:
    """Sums over windows, channel by channel."""
    s = given["conv2d_shape"]
    groups, outs = s["groups"], s["out_channels"]
    size = (-1, s["in_channels"], s["in_height"], s["in_width"])
    edge = [(s["padding_y"],) * 2, (s["padding_x"],) * 2]
    x = np.pad(arrays["x"].reshape(size) - s["zero"], [(0, 0), (0, 0), *edge])
    weight = arrays["weight"].reshape(outs, -1, s["kernel_height"], s["kernel_width"])
    ins, planes = weight.shape[1], []
    for channel in range(outs):
        first = channel // (outs // groups) * ins
        bias = arrays["bias"][channel] if "bias" in arrays else 0
        total = np.full((len(x), s["out_height"], s["out_width"]), bias)
        for j in range(s["kernel_height"]):
            for i in range(s["kernel_width"]):
                top, left = j * s["dilation_y"], i * s["dilation_x"]
                rows = slice(top, top + s["out_height"] * s["stride_y"], s["stride_y"])
                columns = slice(left, left + s["out_width"] * s["stride_x"], s["stride_x"])
                part = x[:, first : first + ins, rows, columns]
                part = part[:, :, : s["out_height"], : s["out_width"]]
                total += np.einsum("nkhw,k->nhw", part, weight[channel, :, j, i])
        planes.append(files.rescaled(total, channel, given, arrays))
    return np.stack(planes, 1)


def linear(files: Files, given: Any, arrays: dict[str, Array]) -> Array:
    sums = (arrays["x"].reshape(-1, given["ins"]) - given["zero"]) @ arrays["weight"].T
    sums = sums + arrays.get("bias", np.zeros(1, np.int64))
    rows = [files.rescaled(sums[:, c], c, given, arrays) for c in range(given["outs"])]
    return np.stack(rows, 1)


def addition(files: Files, given: Any, arrays: dict[str, Array]) -> Array:
    left = (arrays["a"] - given["zero_a"]) * given["factor_a"]
    right = (arrays["b"] - given["zero_b"]) * given["factor_b"]
    return files.saturated(left + right, given["shift"], given["rescaling"])


def bias(files: Files, given: Any, arrays: dict[str, Array]) -> Array:
    x = arrays["x"].reshape(-1, given["channels"], given["inner"])
    sums = (x - given["zero"]) * given["factor"] + arrays["bias"].reshape(-1, 1)
    return files.saturated(sums, given["shift"], given["rescaling"])


def lookup(files: Files, given: Any, arrays: dict[str, Array]) -> Array:
    return arrays["table"][arrays["x"] - given["first"]]


def product(files: Files, given: Any, arrays: dict[str, Array]) -> Array:
    sums = (arrays["a"] - given["zero_a"]) * (arrays["b"] - given["zero_b"])
    return files.rescaled(sums, 0, given, arrays)


def matrices(files: Files, given: Any, arrays: dict[str, Array]) -> Array:
    """Batches of both operands are alike, or one has none."""
    left = arrays["a"].reshape(-1, given["rows"], given["inner"]) - given["zero_a"]
    right = arrays["b"].reshape(-1, given["inner"], given["columns"]) - given["zero_b"]
    return files.rescaled(left @ right, 0, given, arrays)


def softmax(files: Files, given: Any, arrays: dict[str, Array]) -> Array:
    x = arrays["x"].reshape(-1, given["count"], given["inner"])
    shares = arrays["table"][x.max(1, keepdims=True) - x]
    pairs = np.broadcast_arrays(shares * given["multiplier"], shares.sum(1, keepdims=True))
    return files.quotients(*pairs, given)


def layer_norm(files: Files, given: Any, arrays: dict[str, Array]) -> Array:
    """Of one group; each number of a row is a channel."""
    assert (given["groups"], given["inner"]) == (1, 1)
    count = given["channels"]
    x = arrays["x"].reshape(-1, count) - given["zero"]
    sums = x.sum(1, keepdims=True)
    spread = (count * (x * x).sum(1, keepdims=True) - sums * sums) * given["factor"]
    root = np.vectorize(isqrt)(spread + given["epsilon"])
    centred = (count * x - sums) * given["lift"]
    scaled = centred * arrays["gain"].flatten() + root * arrays["offset"].flatten()
    return files.quotients(*np.broadcast_arrays(scaled, root), given)


FORMS = {
    "conv2d": convolution,
    "linear": linear,
    "add": addition,
    "add_rescaled": addition_of_rescaled,
    "add_bias": bias,
    "lookup": lookup,
    "multiply": product,
}
ROWS = {"matmul": matrices, "softmax": softmax, "group_norm": layer_norm}


def check(folder: Path) -> list[str]:
    """Recompute results; return the functions that were seen."""
    files = Files(folder)
    seen = []
    for operator in files.manifest["operators"]:
        arrays = files.arrays(operator)
        seen.append(operator["function"])
        if (form := (FORMS | ROWS).get(operator["function"])) is not None:
            found = form(files, operator["numbers"], arrays)
            assert len(np.unique(arrays["y"])) > 1
            assert np.array_equal(found.flatten(), arrays["y"].flatten()), operator["name"]
    return seen


@pytest.mark.parametrize("rounding", [*ROUNDINGS, "double_round"])
def test_numpy_makes_the_results(rounding: str, tmp_path: Path) -> None:
    _, lowered = models(Everything, FixedPoint(rounding=rounding))
    jit_passes.export_vectors(lowered, [x[:1] for x in data(2)], tmp_path)
    seen = check(tmp_path)
    other = "add" if rounding == "double_round" else "add_rescaled"
    assert set(FORMS) - {"add_bias", other} < set(seen)


def test_formats_of_slots(tmp_path: Path) -> None:
    """With powers of two each format says where the point is, and scales are exact."""
    _, lowered = slots("shift")
    jit_passes.export_vectors(lowered, [data(1)[0][:1]], tmp_path)
    assert "add_bias" in check(tmp_path)
    for operator in Files(tmp_path).manifest["operators"]:
        entries = operator["operands"] + operator["results"]
        entries += [entry for entry in operator["constants"] if entry["name"] == "weight"]
        for entry in entries:
            whole, _, fraction = entry["format"].removeprefix("Q").partition(".")
            bits = np.iinfo(entry["dtype"]).bits
            assert int(whole) + int(fraction) + 1 == bits
            scales = entry["scale"] if isinstance(entry["scale"], list) else [entry["scale"]]
            assert scales == [2.0 ** -int(fraction)] * len(scales)


def test_results_are_those_of_the_model(tmp_path: Path) -> None:
    _, lowered = models(Residual, FixedPoint("shift"))
    batches = [x[:2] for x in data(3)]
    jit_passes.export_vectors(lowered, batches, tmp_path)
    files = Files(tmp_path)
    (last,) = files.manifest["operators"][-1]["results"]
    found = np.load(tmp_path / last["npy"]) * last["scale"]
    assert last["zero_point"] == 0 and last["axes"] == "NC"
    for batch, values in zip(batches, found, strict=True):
        assert torch.equal(lowered(batch).double(), torch.from_numpy(values))
    first = files.manifest["operators"][0]
    assert first["source"] and first["operands"][0]["axes"] == "NCHW"
    assert first["constants"][0]["axes"] == "OIHW"


def test_command_line(run: Run, tmp_path: Path) -> None:
    _, lowered = models(Residual, FixedPoint())
    model, samples, folder = (tmp_path / name for name in ("model.pt", "data.pt", "folder"))
    torch.jit.save(lowered, model)
    torch.save(data(1)[0], samples)
    done = run("export", model, "--to", "vectors", "--data", samples, "-o", folder)
    assert done.code == 0, done.err
    assert {"conv2d", "add", "linear"} <= set(check(folder))


def test_refusals_leave_nothing(tmp_path: Path) -> None:
    reference, lowered = models(Residual, FixedPoint())
    folder = tmp_path / "folder"
    x = data(1)[0]
    with pytest.raises(JitPassesError, match="there is no batch"):
        jit_passes.export_vectors(lowered, [], folder)
    with pytest.raises(JitPassesError, match=r"has the sizes .* and the example"):
        jit_passes.export_vectors(lowered, [x, x[:1]], folder)
    with pytest.raises(JitPassesError, match=r"call jit_passes\.lower\(model\) first"):
        jit_passes.export_vectors(reference, [x], folder)
    assert not folder.exists()


class Turned(nn.Module):
    """The input is moved before it is quantized, and an argument has a default."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)

    def forward(self, x: Tensor, stride: int = 2) -> Tensor:
        return self.conv(x.permute(0, 1, 3, 2))[:, :, ::stride]


def test_grid_of_a_moved_input(tmp_path: Path) -> None:
    reference, lowered = models(Turned, FixedPoint())
    jit_passes.export_vectors(lowered, [{"x": data(1)[0]}], tmp_path)
    first = Files(tmp_path).manifest["operators"][0]
    assert first["function"] == "copy"
    (operand,) = first["operands"]
    x = data(1)[0]
    codes = np.load(tmp_path / operand["npy"])[0].astype(np.int64)
    values = (codes - operand["zero_point"]) * operand["scale"]
    inside = values[(values > values.min()) & (values < values.max())]
    expected = x.numpy()[(values > values.min()) & (values < values.max())]
    assert np.abs(inside - expected).max() <= operand["scale"] / 2 * 1.001
    found = jit_passes.conformance(reference, data(1), ["c", "fixed_point"])
    assert found.equal and not found.missing, found
