"""Linear layers with a scale for each group of inputs: kernels, plans, files, and whole models.

Results are compared with the same sums in float64. A float32 sum of n parts is within n EPS times
the sum of their sizes.
"""

from __future__ import annotations

import ctypes
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

import jit_passes
from jit_passes import JitPassesWarning
from jit_passes.graph.view import GraphView
from jit_passes.report.cost import file_size
from tests.codes import codes_of
from tests.compare import sqnr
from tests.plans import plans_in
from tests.processor import VNNI
from tests.x86.kernels.calls import Image, Memory, call, forms
from tests.x86.kernels.test_dynamic_kernels import EPS, GRID, NONE
from tests.x86.kernels.test_float_kernels import floats_in, image_of
from tests.x86.operators.test_floats import kinds_of
from tests.x86.program.test_state import mutate, restored

Floats = NDArray[np.float32]
RELU6 = 2  # a FloatFunction: clip
SIZES = [
    (64, 32), (128, 64), (128, 128), (96, 96), (40, 40), (7, 7), (1, 1), (256, 32), (320, 160),
    (300, 300),
]  # fmt: skip


class Shape(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in ("inputs", "outputs", "group", "bits"))


class Drawn:
    """Weights of a layer, packed in front of memory that nobody may touch."""

    def __init__(
        self, inputs: int, outputs: int, group: int, bits: int, seed: int = 0, affine: bool = False
    ) -> None:
        rng = np.random.default_rng(seed)
        low, high = -(2 ** (bits - 1)), 2 ** (bits - 1)
        self.shape = Shape(inputs, outputs, group, bits)
        self.codes = rng.integers(low, high, (outputs, inputs)).astype(np.int8)
        self.scales = rng.uniform(1e-3, 1e-2, (outputs, inputs // group)).astype(np.float32)
        self.bias = rng.normal(0, 1, outputs).astype(np.float32)
        self.zeros = rng.integers(low, high, self.scales.shape) * affine
        self.memory = Memory(int(call("grouped_bytes", self.shape)))  # type: ignore[call-overload]
        self.memory_of_zeros = Memory(-(-outputs // 16) * 16 * self.zeros.shape[1])
        self.zero_points: Any = self.memory_of_zeros.bytes if affine else ctypes.c_void_p()
        self.pack()

    def pack(self) -> None:
        outputs, groups = self.zeros.shape
        padded = np.zeros((-(-outputs // 16) * 16, groups), np.int8)
        padded[:outputs] = self.zeros
        of_blocks = padded.reshape(-1, 16, groups).transpose(0, 2, 1).copy()
        self.memory_of_zeros.bytes[:] = of_blocks.view(np.uint8).reshape(-1)
        call("pack_grouped", self.shape, self.codes, self.scales, self.zero_points, self.bias,
             self.memory.bytes)  # fmt: skip

    @property
    def weights(self) -> NDArray[np.float64]:
        scales, zeros = (x.repeat(self.shape.group, 1) for x in (self.scales, self.zeros))
        return (self.codes.astype(np.float64) - zeros) * scales

    @property
    def sizes(self) -> NDArray[np.float64]:
        """The sizes of the numbers that are added for a weight."""
        scales, zeros = (x.repeat(self.shape.group, 1) for x in (self.scales, self.zeros))
        return (np.abs(self.codes.astype(np.float64)) + np.abs(zeros)) * scales

    def close(self, found: Floats, x: NDArray[np.float64], offset: float = 0) -> None:
        """Compare with x, whose steps begin `offset` below 0."""
        wanted = x @ self.weights.T + self.bias
        size = (np.abs(x) + offset) @ self.sizes.T + np.abs(self.bias)
        count = self.shape.inputs // self.shape.group + self.shape.group / 4 + 6
        assert (np.abs(found - wanted) <= count * EPS * size).all()

    def of_floats(
        self, x: Floats, form: int, part: int = 1 << 40, gap: int = 0, function: int = NONE
    ) -> Floats:
        out = image_of(np.full((1, 1, 1, len(x), self.shape.outputs), 7, np.float32), gap)
        rows = image_of(x[None, None, None], gap)
        call("grouped_floats", self.shape, self.memory.bytes, self.zero_points, rows, function, out,
             form, part)  # fmt: skip
        out.check()
        return floats_in(out).reshape(len(x), -1)

    def of_codes(
        self, x: NDArray[np.uint8], grids: Any, form: int, part: int = 1 << 40,
        residual: Floats | None = None,
    ) -> Floats:  # fmt: skip
        out = image_of(np.full((1, 1, 1, len(x), self.shape.outputs), 7, np.float32), 3)
        rows = Image.of(x[None, None, None])
        other = None if residual is None else image_of(residual[None, None, None], 1)
        call("grouped_codes", self.shape, self.memory.bytes, self.zero_points, rows.codes, grids,
             len(grids) > 1, ctypes.c_void_p() if other is None else other, out, form,
             part)  # fmt: skip
        out.check()
        return floats_in(out).reshape(len(x), -1)


def grids_of(count: int, rng: np.random.Generator) -> Any:
    grids = np.zeros(count, GRID)
    grids["scale"], grids["zero_point"] = rng.uniform(0.01, 1, count), rng.integers(0, 256, count)
    return grids


bits = pytest.mark.parametrize("bits", [4, 8])
affine = pytest.mark.parametrize("affine", [False, True], ids=["symmetric", "affine"])


@forms
@bits
@affine
@pytest.mark.parametrize(("inputs", "group"), SIZES)
def test_kernels(inputs: int, group: int, affine: bool, bits: int, form: int) -> None:
    """Against float64, and the bits of the plain form; nothing is read behind weights and rows."""
    rng = np.random.default_rng(inputs)
    for outputs, rows in itertools.product((1, 16, 17, 40), (1, 2, 3, 4, 5, 7, 8, 9, 64, 65, 70)):
        drawn = Drawn(inputs, outputs, group, bits, outputs, affine)
        x = rng.normal(0, 1, (rows, inputs)).astype(np.float32)
        plain = drawn.of_floats(x, 0)
        drawn.close(plain, x.astype(np.float64))
        for part in (1, 2, 3):  # blocks of outputs, one by one, in pairs, and both
            assert np.array_equal(drawn.of_floats(x, form, part, 3), plain)
        codes = rng.integers(0, 256, (rows, inputs), dtype=np.uint8)
        for count in {1, rows}:
            grids = grids_of(count, rng)
            of_codes = drawn.of_codes(codes, grids, 0)
            zero = grids["zero_point"].astype(np.float64)[:, None]
            scale = grids["scale"].astype(np.float64)[:, None]
            drawn.close(of_codes, (codes - zero) * scale, float(255 * scale.max()))
            assert np.array_equal(drawn.of_codes(codes, grids, form, 2), of_codes)


@forms
@bits
@affine
@pytest.mark.parametrize("group", [32, 128, 2048])
def test_rows_of_many_inputs(group: int, affine: bool, bits: int, form: int) -> None:
    """64 rows of 2048 floats leave the second cache, so a tile fetches the rows of the next.

    Weights of codes are decoded some groups at a time, for 128 rows at a time.
    """
    drawn, rng = Drawn(2048, 49, group, bits, affine=affine), np.random.default_rng(group)
    for rows in (64, 67):
        x = rng.normal(0, 1, (rows, 2048)).astype(np.float32)
        plain = drawn.of_floats(x, 0)
        drawn.close(plain, x.astype(np.float64))
        assert np.array_equal(drawn.of_floats(x, form, gap=3), plain)
    for rows in (8, 32, 47, 128, 135):
        codes, grids = rng.integers(0, 256, (rows, 2048), dtype=np.uint8), grids_of(rows, rng)
        of_codes = drawn.of_codes(codes, grids, 0)
        scale = grids["scale"].astype(np.float64)[:, None]
        drawn.close(of_codes, (codes - grids["zero_point"].astype(np.float64)[:, None]) * scale,
                    float(255 * scale.max()))  # fmt: skip
        residual = rng.normal(0, 1, (rows, 49)).astype(np.float32)
        for part in (1, 2, 3):
            assert np.array_equal(drawn.of_codes(codes, grids, form, part), of_codes)
        added = drawn.of_codes(codes, grids, form, residual=residual)
        assert np.array_equal(added, of_codes + residual)


@forms
@bits
@affine
def test_the_largest_sums(affine: bool, bits: int, form: int) -> None:
    """No pair of products saturates, and no sum of a step wraps around."""
    drawn = Drawn(96, 18, 96, bits, affine=affine)
    ends = (-(2 ** (bits - 1)), 2 ** (bits - 1) - 1)
    for code, end, zero in itertools.product((0, 255), ends, ends if affine else (0,)):
        drawn.codes[:], drawn.scales[:], drawn.bias[:], drawn.zeros[:] = end, 1, 0, zero
        drawn.pack()
        grids = np.array([(1, 0)], GRID)
        found = drawn.of_codes(np.full((5, 96), code, np.uint8), grids, form)
        assert (found == code * (end - zero) * 96).all()


@forms
@affine
def test_rows_that_are_not_finite(affine: bool, form: int) -> None:
    """A row whose grid has no scale is NaN, and so is one of float32 with a NaN; others are not."""
    drawn = Drawn(33, 20, 33, 4, affine=affine)
    grids = grids_of(3, np.random.default_rng(0))
    grids["scale"][1] = np.nan
    found = drawn.of_codes(np.zeros((3, 33), np.uint8), grids, form)
    assert np.isnan(found).all(1).tolist() == [False, True, False] and np.isfinite(found[::2]).all()
    x = np.ones((3, 33), np.float32)
    x[1, 32] = np.nan
    found = drawn.of_floats(x, form)
    assert np.isnan(found).all(1).tolist() == [False, True, False] and np.isfinite(found[::2]).all()


@forms
def test_functions_and_sums_behind_them(form: int) -> None:
    drawn, rng = Drawn(64, 19, 32, 4), np.random.default_rng(1)
    x = rng.normal(0, 30, (5, 64)).astype(np.float32)
    clipped = drawn.of_floats(x, form, function=RELU6)  # to [0, 0], as both its numbers are 0
    assert not clipped.any()
    codes, grids = rng.integers(0, 256, (5, 64), dtype=np.uint8), grids_of(5, rng)
    residual = rng.normal(0, 1, (5, 19)).astype(np.float32)
    added = drawn.of_codes(codes, grids, form, residual=residual)
    assert np.array_equal(added, drawn.of_codes(codes, grids, form) + residual)


# ------------------------------------------------------------------------------------------ models


def config(mode: str, group: int | None = 32, bits: int = 4, **more: Any) -> dict[str, Any]:
    weight: dict[str, Any] = {"bits": bits} | ({"group_size": group} if group else {})
    return {"version": 1, "global": {"mode": mode, "weight": weight}, **more}


class Block(nn.Module):
    """Half of a transformer's block."""

    def __init__(self, width: int = 64, hidden: int = 128) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up, self.down = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


def quantized(model: nn.Module, target: str, config: Any) -> torch.jit.ScriptModule:
    return jit_passes.quantize_script(torch.jit.script(model.eval()), target=target, config=config)


SYMMETRIC: dict[str, Any] = {}
AFFINE: dict[str, Any] = {"scheme": "affine"}


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
@pytest.mark.parametrize(
    ("group", "bits", "more"),
    [
        (32, 4, SYMMETRIC),
        (64, 4, SYMMETRIC),
        (32, 8, SYMMETRIC),
        (None, 4, SYMMETRIC),
        (32, 4, AFFINE),
        (64, 8, AFFINE),
        (None, 4, AFFINE),
        (None, 8, AFFINE | {"channelwise": False}),
    ],
    ids=str,
)
def test_models(mode: str, group: int | None, bits: int, more: dict[str, Any]) -> None:
    """All of a block is one plan, as near to the reference model as sums in another order are."""
    torch.manual_seed(0)
    model = Block().eval()
    with torch.no_grad():
        for layer in (model.up, model.down):
            layer.weight += 0.05 if more else 0  # far from symmetric
    rules = config(mode, group, bits)
    rules["global"]["weight"] |= more
    plan, reference = (quantized(model, target, rules) for target in ("x86", "reference"))
    [of_block] = plans_in(plan)
    kinds = kinds_of(of_block)
    suffix = "_dynamic" if mode == "dynamic" else ""
    plain = mode == "dynamic" and group is None and not more
    wanted = "linear_dynamic" if plain else f"linear_grouped{suffix}"
    assert kinds.count(wanted) == 2 and "layer_norm" in kinds
    for shape in ((64,), (1, 64), (5, 64), (2, 3, 64)):
        x = torch.randn(shape)
        # In the mode dynamic, a number next to a tie may have another code in the second layer.
        assert sqnr(reference(x), plan(x)) > (40 if mode == "dynamic" else 100)
        assert sqnr(model(x), plan(x)) > (15 if bits == 4 else 35)


def test_codes_of_the_plan() -> None:
    """A layer with rows of whole codes is exact: scales are powers of two, and sums small."""
    layer = nn.Linear(64, 24, bias=False).eval()
    codes = torch.randint(-7, 8, (24, 64)).float()
    codes[:, ::32] = 7
    layer.weight.data = codes / 8
    x = torch.randint(0, 256, (6, 64)).float()
    x[:, 0], x[:, 1] = 0, 255
    plan = quantized(layer, "x86", config("dynamic"))
    assert torch.equal(plan(x), layer(x))


def test_slow_form() -> None:
    """Rows of activations, number by number, in float64."""
    model = nn.Sequential(nn.Linear(96, 20)).eval()
    rules = config("dynamic")
    rules["global"]["input"] = {"tokenwise": True}
    plan = quantized(model, "x86", rules)
    reference = quantized(model, "reference", rules)
    x = torch.randn(7, 96)
    scale = ((x.amax(1).clamp(min=0) - x.amin(1).clamp(max=0)) / 255)[:, None]
    zero = -(x.amin(1, keepdim=True).clamp(max=0) / scale).round()
    each = zip(x, scale, zero, strict=True)
    rows = torch.stack([codes_of(r, float(1 / s), int(z)).clamp(0, 255) for r, s, z in each])
    wanted = reference(((rows - zero) * scale).float())
    assert sqnr(wanted, plan(x)) > 100


def test_files(tmp_path: Path) -> None:
    """4 bits in groups of 32 take 0.16 of float32, and a file gives the same bits."""
    model = nn.Sequential(*(Block(256, 512) for _ in range(2))).eval()
    for mode in ("dynamic", "weight_only"):
        plan = quantized(model, "x86", config(mode))
        assert file_size(plan) <= 0.16 * file_size(torch.jit.script(model)) + 20_000
        plan.save(str(tmp_path / "model.pt"))
        loaded = torch.jit.load(str(tmp_path / "model.pt"))
        x = torch.randn(3, 256)
        assert torch.equal(loaded(x), plan(x))


def test_groups_that_no_kernel_has() -> None:
    """The mode weight_only decodes them, and the mode dynamic says which groups there are."""
    model = nn.Sequential(nn.Linear(48, 16)).eval()
    x = torch.randn(4, 48)
    decoded = quantized(model, "x86", config("weight_only", 12))
    assert sqnr(quantized(model, "reference", config("weight_only", 12))(x), decoded(x)) > 100
    assert not plans_in(decoded)
    with pytest.warns(JitPassesWarning, match="groups of 12, and the target has groups of 32"):
        quantized(model, "x86", config("dynamic", 12))


@pytest.mark.parametrize("bits", [4, 8])
def test_unsigned_weights(bits: int) -> None:
    """Codes from 0 on are moved to int8, with their zero points."""
    model = nn.Sequential(nn.Linear(64, 20)).eval()
    rules = config("weight_only", 32, bits)
    rules["global"]["weight"] |= {"scheme": "affine", "dtype": "uint8"}
    plan = quantized(model, "x86", rules)
    assert kinds_of(plans_in(plan)[0]).count("linear_grouped") == 1
    x = torch.randn(4, 64)
    assert sqnr(quantized(model, "reference", rules)(x), plan(x)) > 100


def test_affine_weights_are_more_exact() -> None:
    """Weights on one side of 0 have twice as many codes, so about 6 dB less error."""
    torch.manual_seed(0)
    model = nn.Linear(256, 64, bias=False).eval()
    with torch.no_grad():
        model.weight.copy_(torch.rand(64, 256) + 0.5)
    x = torch.randn(50, 256)
    affine = config("dynamic")
    affine["global"]["weight"] |= AFFINE
    found = {name: sqnr(model(x), quantized(model, "x86", rules)(x))
             for name, rules in (("symmetric", config("dynamic")), ("affine", affine))}  # fmt: skip
    assert found["affine"] > found["symmetric"] + 4


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_inputs_that_are_not_finite(mode: str) -> None:
    """A token with a NaN is NaN, and the others are not."""
    rules = config(mode)
    if mode == "dynamic":
        rules["global"]["input"] = {"tokenwise": True}
    plan = quantized(nn.Linear(64, 8), "x86", rules)
    x = torch.randn(3, 64)
    x[1, 5] = float("nan")
    assert plan(x).isnan().all(1).tolist() == [False, True, False]


@pytest.mark.parametrize("mode", ["dynamic", "weight_only"])
def test_states_from_elsewhere(mode: str) -> None:
    """Thousands of states that are wrong somewhere are refused, or run."""
    [plan] = plans_in(quantized(Block(64, 96), "x86", config(mode)))
    x = torch.randn(5, 64)
    refused, ran = mutate(plan, x, 1500)
    assert refused > 300 and ran > 30


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ([64, 96, 32], "3 attributes"),
        ([64, 96, 48, 4], "groups of 48 of 64 inputs"),
        ([64, 96, 32, 5], "weights of 5 bits"),
        ([64, 112, 32, 4], "its packed weights are [0-9]* bytes"),
        ([0, 96, 32, 4], "it has 0 inputs"),
    ],
)
def test_messages(numbers: list[int], message: str) -> None:
    [plan] = plans_in(quantized(nn.Linear(64, 96), "x86", config("weight_only")))
    lists, scales, operators = plan.__getstate__()[0]
    place = next(i for i, (texts, _, _) in enumerate(operators) if texts[0] == "linear_grouped")
    texts, (inputs, output, _), tensors = operators[place]
    changed = [*operators]
    changed[place] = (texts, [inputs, output, numbers], tensors)
    with pytest.raises(RuntimeError, match=message):
        restored((lists, scales, changed))
    packed = tensors[0].clone()
    packed[128:192].view(torch.float32)[3] = float("inf")  # a scale of the first group
    changed[place] = (texts, operators[place][1], [packed])
    with pytest.raises(RuntimeError, match="a scale of its weights is not finite"):
        restored((lists, scales, changed))


def test_states_of_zero_points() -> None:
    rules = config("weight_only")
    rules["global"]["weight"] |= AFFINE
    [plan] = plans_in(quantized(nn.Linear(64, 96), "x86", rules))
    x = torch.randn(5, 64)
    refused, ran = mutate(plan, x, 500)
    assert refused > 100 and ran > 10
    lists, scales, operators = plan.__getstate__()[0]
    place = next(i for i, (texts, _, _) in enumerate(operators) if texts[0] == "linear_grouped")
    texts, numbers, (packed, zeros) = operators[place]
    for wrong in (zeros[1:], zeros.int(), torch.zeros(6, 2, 15).char()):
        changed = [*operators]
        changed[place] = (texts, numbers, [packed, wrong])
        with pytest.raises(
            RuntimeError, match="its zero points are int8 of the shape \\[6, 2, 16]"
        ):
            restored((lists, scales, changed))


@pytest.mark.parametrize("group", [32, None])
def test_rounded_inputs_on_stock(group: int | None) -> None:
    """PyTorch has no kernel for groups, nor for zero points that are right with all engines.

    Inputs are rounded as they come, and products are in float.
    """
    model = nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 8)).eval()
    with torch.no_grad():
        for layer in (model[0], model[2]):
            layer.weight += 0.05  # else there may be no zero points
    x = torch.randn(6, 64)
    rules = config("dynamic", group)
    rules["global"]["weight"] |= SYMMETRIC if group else AFFINE
    stock, reference = (quantized(model, target, rules) for target in ("stock", "reference"))
    found = sqnr(reference(x), stock(x))  # 7 bits on processors without VNNI
    assert found > (100 if VNNI else 35)
    kinds = [node.kind for node in GraphView.of(stock).nodes]
    assert kinds.count("aten::_choose_qparams_per_tensor") == 2
    assert not any(kind.startswith("jit_passes::") for kind in kinds)
    assert stock(x[:0]).shape == (0, 8) and stock(x[0]).shape == (8,)
