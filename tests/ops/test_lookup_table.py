"""Lookup tables: the operator, the pass that makes them, and how near they come to the function."""

from __future__ import annotations

from collections.abc import Callable
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from jit_passes import _C, run_pass
from jit_passes.graph.traits import TRAITS
from jit_passes.quantizer import FIXED_RANGES
from tests.operators import Apply
from tests.seeds import in_turns

quantize = torch.ops.jit_passes.quantize
dequantize = torch.ops.jit_passes.dequantize
lookup_table = torch.ops.jit_passes.lookup_table

CODES = [torch.uint8, torch.int8, torch.int16, torch.int32]
ENTRIES = [*CODES, torch.int64, torch.bool, torch.float16, torch.float32, torch.float64]
FIRST, COUNT = 3, 100  # codes from 3 to 102 fit every dtype


def name_of(value: object) -> str:
    return str(value).removeprefix("torch.")


def some_codes(dtype: torch.dtype, *shape: int) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    return torch.randint(FIRST, FIRST + COUNT, shape, generator=generator).to(dtype)


def some_table(dtype: torch.dtype, count: int = COUNT) -> Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randint(0, 120, (count,), generator=generator).to(dtype)


def slow(codes: Tensor, table: Tensor, first: int) -> Tensor:
    """The definition, code by code."""
    entries = [table[code - first] for code in codes.reshape(-1).tolist()]
    return torch.stack(entries).reshape(codes.shape) if entries else table[:0].reshape(codes.shape)


@pytest.mark.parametrize("entry", ENTRIES, ids=name_of)
@pytest.mark.parametrize("dtype", CODES, ids=name_of)
def test_operator(dtype: torch.dtype, entry: torch.dtype) -> None:
    codes, table = some_codes(dtype, 3, 7, 5), some_table(entry)
    found = lookup_table(codes, table, FIRST)
    assert found.dtype == entry
    assert torch.equal(found, slow(codes, table, FIRST))


@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0, 3), (50_001,)], ids=str)
def test_sizes(shape: tuple[int, ...]) -> None:
    """None, one, and more than one thread takes."""
    codes, table = some_codes(torch.int16, *shape), some_table(torch.int8)
    found = lookup_table(codes, table, FIRST)
    assert found.shape == codes.shape
    assert torch.equal(found, table[codes.long() - FIRST])


@pytest.mark.parametrize("first", [-1000, -128, -3, 0])
@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8], ids=name_of)
def test_codes_of_a_byte(dtype: torch.dtype, first: int) -> None:
    """All of them that the table has, in rows of any length; it may have more than a byte holds."""
    table = some_table(torch.uint8, 2000 if first == -1000 else 256)
    limits = torch.iinfo(dtype)
    every = range(max(first, limits.min), min(first + table.numel() - 1, limits.max) + 1)
    for length in (len(every), 63, 64, 65, 1000):
        codes = torch.tensor(every).repeat(1000 // len(every) + 1)[:length].to(dtype)
        assert torch.equal(lookup_table(codes, table, first), slow(codes, table, first))


LAYOUTS: dict[str, Callable[[Tensor], Tensor]] = {
    "contiguous": lambda x: x,
    "channels_last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "permuted": lambda x: x.permute(3, 1, 0, 2),
    "sliced": lambda x: x[:, 1::2, :, ::3],
    "expanded": lambda x: x[:, :1].expand(-1, 7, -1, -1),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_memory_formats(layout: str) -> None:
    """The result is laid out as a copy of the codes is; so it is where only shapes are computed."""
    codes = LAYOUTS[layout](some_codes(torch.uint8, 4, 6, 5, 8))
    table = some_table(torch.int8, COUNT * 2)[::2]  # not contiguous either
    found = lookup_table(codes, table, FIRST)
    assert torch.equal(found, slow(codes, table, FIRST))
    assert found.stride() == codes.clone().stride()
    meta = lookup_table(codes.to("meta"), table.to("meta"), FIRST)
    assert (meta.shape, meta.stride(), meta.dtype) == (found.shape, found.stride(), found.dtype)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_opcheck(layout: str) -> None:
    codes = LAYOUTS[layout](some_codes(torch.uint8, 4, 6, 5, 8))
    torch.library.opcheck(lookup_table, (codes, some_table(torch.int16), FIRST))


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("layout", LAYOUTS)
def test_on_a_gpu(layout: str) -> None:
    codes, table = LAYOUTS[layout](some_codes(torch.uint8, 4, 6, 5, 8)), some_table(torch.int8)
    found = lookup_table(codes.cuda(), table.cuda(), FIRST)
    assert torch.equal(found.cpu(), lookup_table(codes, table, FIRST))
    with pytest.raises(RuntimeError, match="the codes 3 to 102, and the input holds 103"):
        lookup_table((codes.clamp_min(102) + 1).cuda(), table.cuda(), FIRST)


def wrong_code(code: int, dtype: torch.dtype, count: int) -> tuple[Tensor, Tensor, int]:
    codes = some_codes(dtype, count)
    codes[count // 2] = code
    return codes, some_table(torch.int8), FIRST


BAD: dict[str, tuple[tuple[Any, ...], str]] = {
    "below": (wrong_code(2, torch.uint8, 9), "codes 3 to 102, and the input holds 2: make a table"),
    "above": (wrong_code(103, torch.int8, 99_999), "codes 3 to 102, and the input holds 103"),
    "negative": (wrong_code(-9, torch.int32, 9), "and the input holds -9"),
    "matrix": ((some_codes(torch.int8, 2), torch.zeros(2, 50), 3), "one dimension.*2, 50"),
    "empty": ((some_codes(torch.int8, 2), torch.zeros(0), 3), "no entries"),
    "float codes": ((torch.zeros(3), torch.zeros(5), 0), "not Float: jit_passes::quantize"),
    "complex": ((some_codes(torch.int8, 2), torch.zeros(5) * 1j * 1.0, 0), ""),
    "first": ((some_codes(torch.int8, 2), torch.zeros(5), 2**40), "codes that no dtype holds"),
}
BAD["complex"] = (
    (some_codes(torch.int8, 2), torch.zeros(5, dtype=torch.complex128), 0),
    "1 to 8 bytes, and the table is of ComplexDouble",
)


@pytest.mark.parametrize("case", BAD)
def test_errors(case: str) -> None:
    arguments, message = BAD[case]
    with pytest.raises(RuntimeError, match=message):
        lookup_table(*arguments)


# How the input and the result are quantized: quantize's operands behind the tensor.
Grid = tuple[float, int, int, int, torch.dtype]
GRIDS: dict[str, Grid] = {
    "uint8": (8 / 255, 128, 0, 255, torch.uint8),
    "int8": (6 / 255, -100, -128, 127, torch.int8),
    "int4": (0.5, 1, -8, 7, torch.int8),
    "int16": (8 / 65535, 12, -(2**15), 2**15 - 1, torch.int16),
    "uint16": (8 / 65535, 2**15, 0, 2**16 - 1, torch.int32),
}


def grid_of(low: float, high: float, levels: int = 255) -> Grid:
    """All codes of uint8 on a range that contains 0."""
    scale = (high - low) / levels
    return (scale, round(-low / scale), 0, levels, torch.uint8)


def pass_through(x: Tensor, grid: Grid) -> Tensor:
    return dequantize(quantize(x, *grid), grid[0], grid[1])


class Between(nn.Module):
    """A float function between dequantize and quantize, as in a reference model."""

    def __init__(self, function: Callable[[Tensor], Tensor], before: Grid, after: Grid) -> None:
        super().__init__()
        self.function, self.before, self.after = function, before, after

    def forward(self, x: Tensor) -> Tensor:
        return quantize(self.function(pass_through(x, self.before)), *self.after)


def every_value(grid: Grid) -> Tensor:
    """A value for each code, in order."""
    scale, zero_point, low, high, _ = grid
    x = ((torch.arange(low, high + 1) - zero_point).double() * scale).float()
    assert quantize(x, *grid).tolist() == list(range(low, high + 1))
    return x


def trace(module: nn.Module, *inputs: Tensor) -> torch.jit.ScriptModule:
    return torch.jit.trace(module.eval(), inputs, check_trace=False)


def kinds(module: torch.jit.ScriptModule) -> list[str]:
    """Operators of the graph, without constants."""
    found = [node.kind() for node in module.graph.nodes()]
    return [kind for kind in found if not kind.startswith("prim::")]


ONE_TABLE = ["jit_passes::quantize", "jit_passes::lookup_table"]
WEIGHT, LEAST = torch.tensor([0.25]), torch.tensor(0.4)

# Each operator of the table in cpp/graph/operators.cpp, with options other than the defaults.
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **{
        name: getattr(torch, name)
        for name in (
            "abs", "acos", "acosh", "asin", "asinh", "atan", "atanh", "ceil", "cos", "cosh", "erf",
            "erfc", "exp", "exp2", "expm1", "floor", "frac", "log", "log10", "log1p", "log2", "neg",
            "reciprocal", "relu", "round", "rsqrt", "selu", "sigmoid", "sign", "sin", "sinc",
            "sinh", "sqrt", "square", "tan", "tanh", "trunc",
        )
    },
    **{name: getattr(F, name) for name in ("gelu", "hardsigmoid", "hardswish", "mish", "silu")},
    "celu": lambda x: F.celu(x, 0.7),
    "clamp": lambda x: torch.clamp(x, -0.3, 1.1),
    "clamp_max": lambda x: torch.clamp_max(x, 1.1),
    "clamp_min": lambda x: torch.clamp_min(x, -1.1),
    "elu": lambda x: F.elu(x, 0.7),
    "gelu tanh": lambda x: F.gelu(x, approximate="tanh"),
    "hardshrink": lambda x: F.hardshrink(x, 0.7),
    "hardtanh": lambda x: F.hardtanh(x, -0.6, 0.7),
    "leaky_relu": lambda x: F.leaky_relu(x, 0.2),
    "log_sigmoid": F.logsigmoid,
    "logit": lambda x: torch.logit(x, 0.1),
    "relu6": lambda x: torch.ops.aten.relu6(x),
    "softplus": lambda x: F.softplus(x, 2, 3),
    "softshrink": lambda x: F.softshrink(x, 0.7),
    "threshold": lambda x: F.threshold(x, 0.3, 0.1),
    "add": lambda x: torch.add(x, 0.3, alpha=2),
    "atan2": lambda x: torch.atan2(x, x + 1),
    "div": lambda x: x / 3,
    "div floor": lambda x: torch.div(x, 0.4, rounding_mode="floor"),
    "eq": lambda x: x * (x.round() == x),
    "floor_divide": lambda x: torch.floor_divide(x, 0.3),
    "fmod": lambda x: torch.fmod(x, 0.7),
    "ge": lambda x: x * (x >= 0.5),
    "gt": lambda x: x * (x > 0.5),
    "le": lambda x: x * (x <= 0.5),
    "lt": lambda x: x * (x < 0.5),
    "maximum": lambda x: torch.maximum(x, LEAST),
    "minimum": lambda x: torch.minimum(x, -x),
    "mul": lambda x: x * 0.7,
    "ne": lambda x: x * (x.round() != x),
    "pow": lambda x: x.pow(3),
    "pow of a number": lambda x: 2**x,
    "pow of a fraction": lambda x: x**0.5,
    "prelu": lambda x: F.prelu(x, WEIGHT),
    "remainder": lambda x: torch.remainder(x, 0.7),
    "rsub": lambda x: torch.rsub(x, 1.5, alpha=2),
    "sub": lambda x: x - 0.3,
    "where": lambda x: torch.where(x > 0.2, x, x.exp() - 1),
    "x * sigmoid(x)": lambda x: x * torch.sigmoid(x),
    "x * relu6(x + 3) / 6": lambda x: x * F.relu6(x + 3) / 6,
    "a chain": lambda x: torch.tanh(torch.exp(-x.abs()) * 3 - 1),
    "x * x": lambda x: x * x,
}  # fmt: skip


def test_every_operator_has_a_function() -> None:
    table = {kind for kind, traits in TRAITS.items() if traits.elementwise}
    x = torch.linspace(-1, 1, 9)
    used: set[str] = set()
    for function in FUNCTIONS.values():
        used |= set(kinds(trace(Apply(function), x)))
    assert table <= used, sorted(table - used)


@pytest.mark.parametrize(
    ("function", "grids"),
    [(name, [grid for _, grid in pairs])
     for name, pairs in groupby(in_turns([*FUNCTIONS], [*GRIDS], few=2), key=itemgetter(0))],
)  # fmt: skip
def test_every_code(function: str, grids: list[str]) -> None:
    """The table is the function between dequantize and quantize, to the bit, in any layout.

    Among them NaNs, of the logarithm of what is below 0 say: the codes that quantize has for them.
    """
    for grid in (GRIDS[name] for name in grids):
        x = every_value(grid)
        module = trace(Between(FUNCTIONS[function], grid, GRIDS["uint8"]), x[:5])
        folded = run_pass("fold_lookup_tables", module)
        assert kinds(folded) == ONE_TABLE, folded.graph
        assert torch.equal(folded(x), module(x))
        batch = x.repeat(2, 3, 1, 1).contiguous(memory_format=torch.channels_last)
        found = folded(batch)
        assert torch.equal(found, module(batch))
        assert found.stride() == batch.stride()


@pytest.mark.parametrize("after", GRIDS)
@pytest.mark.parametrize("before", GRIDS)
def test_every_width(before: str, after: str) -> None:
    """Of input and result; a table has an entry for each code, and the dtype of the result."""
    x = every_value(GRIDS[before])
    module = trace(Between(torch.sin, GRIDS[before], GRIDS[after]), x[:5])
    folded = run_pass("fold_lookup_tables", module)
    assert kinds(folded) == ONE_TABLE
    node = folded.graph.findNode("jit_passes::lookup_table")
    table, first = node.inputsAt(1).toIValue(), node.inputsAt(2).toIValue()
    _, _, low, high, _ = GRIDS[before]
    assert (first, table.numel(), table.dtype) == (low, high - low + 1, GRIDS[after][4])
    assert torch.equal(folded(x), module(x))
    assert folded(x).unique().numel() > 4, "a test of one code shows nothing"
    assert folded(x).dtype == GRIDS[after][4]


def test_one_code_more_than_16_bits_stays() -> None:
    grid = (8 / 65535, 2**15, 0, 2**16, torch.int32)
    module = trace(Between(torch.sin, grid, GRIDS["uint8"]), torch.randn(5))
    assert "aten::sin" in kinds(run_pass("fold_lookup_tables", module))


def test_nan_beyond_quantize() -> None:
    """The code of NaN is that of quantize, in long rows as in short ones."""
    row = torch.full((1027,), torch.nan)
    for grid in GRIDS.values():
        assert quantize(row, *grid).unique().numel() == 1
        assert torch.equal(quantize(row[:3], *grid), quantize(row, *grid)[:3])


def test_another_user_keeps_the_value() -> None:
    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        d = pass_through(x, GRIDS["int8"])
        return quantize(d.tanh(), *GRIDS["int8"]), torch.softmax(d, 0)

    x = every_value(GRIDS["int8"])
    module = trace(Apply(function), x)
    folded = run_pass("fold_lookup_tables", module)
    assert "aten::softmax" in kinds(folded) and "aten::tanh" not in kinds(folded)
    for found, expected in zip(folded(x), module(x), strict=True):
        assert torch.equal(found, expected)


def chain(x: Tensor, grids: list[str], functions: list[Callable[[Tensor], Tensor]]) -> Tensor:
    for grid, function in zip(grids, functions, strict=True):
        x = function(pass_through(x, GRIDS[grid]))
    return quantize(x, *GRIDS[grids[0]])


@pytest.mark.parametrize(
    "grids", [["uint8"] * 3, ["int8", "uint16", "int4"], ["uint16", "int4", "int8"]]
)
def test_tables_of_tables(grids: list[str]) -> None:
    """One table for any number of functions in a row."""
    functions = [torch.tanh, lambda x: x * torch.sigmoid(x), torch.log]
    x = every_value(GRIDS[grids[0]])
    module = trace(Apply(lambda x: chain(x, grids, functions)), x)
    folded = run_pass("fold_lookup_tables", module)
    assert kinds(folded) == ONE_TABLE
    assert torch.equal(folded(x), module(x))
    again = _C.run_pass("fold_lookup_tables", folded._c, "forward", {})
    assert not again[1]


def test_written_values_stay() -> None:
    """A write between dequantize and quantize, and one to the codes."""

    def written(x: Tensor) -> Tensor:
        d = pass_through(x, GRIDS["int8"])
        y = d.tanh()
        y[0] = 1
        return quantize(y.sigmoid(), *GRIDS["uint8"])

    def codes(x: Tensor) -> tuple[Tensor, Tensor]:
        q = quantize(x, *GRIDS["int8"])
        y = dequantize(q, GRIDS["int8"][0], GRIDS["int8"][1]).tanh()
        q[0] = 5
        return quantize(y, *GRIDS["uint8"]), q

    x = every_value(GRIDS["int8"])
    for function in (written, codes):
        module = trace(Apply(function), x)
        folded = run_pass("fold_lookup_tables", module)
        assert "jit_passes::lookup_table" not in kinds(folded)
        torch.testing.assert_close(folded(x), module(x), rtol=0, atol=0)


def test_save_and_load(tmp_path: Path) -> None:
    x = every_value(GRIDS["int16"])
    module = trace(Between(F.gelu, GRIDS["int16"], GRIDS["int8"]), x)
    folded = run_pass("fold_lookup_tables", module)
    torch.jit.save(folded, tmp_path / "folded.pt")
    loaded = torch.jit.load(tmp_path / "folded.pt")
    assert "jit_passes::lookup_table" in kinds(loaded)
    assert torch.equal(loaded(x), module(x))


# The range of the input, and that of the result.
NEAR: dict[str, tuple[Callable[[Tensor], Tensor], tuple[float, float], tuple[float, float]]] = {
    "sigmoid": (torch.sigmoid, *FIXED_RANGES["aten::sigmoid"]),
    "tanh": (torch.tanh, *FIXED_RANGES["aten::tanh"]),
    "gelu": (F.gelu, (-4, 4), (-0.17, 4)),
    "hardswish": (F.hardswish, (-4, 4), (-0.375, 4)),
    "silu": (F.silu, (-6, 6), (-0.28, 6)),
    "mish": (F.mish, (-6, 6), (-0.31, 6)),
    "exp": (torch.exp, (-4, 2), (0, 7.4)),
    "x * sigmoid(x)": (lambda x: x * torch.sigmoid(x), (-6, 6), (-0.28, 6)),
}


@pytest.mark.parametrize("function", NEAR)
def test_error_under_half_a_step(function: str) -> None:
    """An entry is the nearest code to the float function at its input's value, within the range.

    A tie may fall to either side by the rounding of float32, a relative 1e-5 of a step here:
    the quotient of value and step is below 256, and float32 holds it to 256 * 2**-24.
    """
    compute, inside, outside = NEAR[function]
    before, after = grid_of(*inside), grid_of(*outside)
    x = every_value(before)
    folded = run_pass("fold_lookup_tables", trace(Between(compute, before, after), x))
    assert kinds(folded) == ONE_TABLE
    scale, zero_point, low, high, _ = after
    exact = compute(dequantize(quantize(x, *before), *before[:2]).double())
    limits = ((low - zero_point) * scale, (high - zero_point) * scale)
    found = (folded(x).double() - zero_point) * scale
    steps = ((found - exact.clamp(*limits)) / scale).abs().max().item()
    assert 0.25 < steps <= 0.5 + 1e-4


@pytest.mark.parametrize("kind", FIXED_RANGES)
def test_fixed_ranges_lose_less_than_a_step(kind: str) -> None:
    """Beyond the input's range the function is within one step of 8 bits of its last value."""
    (low, high), (lowest, highest) = FIXED_RANGES[kind]
    function = getattr(torch, kind.removeprefix("aten::"))
    x = torch.linspace(-100, 100, 20001, dtype=torch.float64)
    lost = (function(x) - function(x.clamp(low, high))).abs().max().item()
    assert 0 < lost < (highest - lowest) / 255
    assert lowest <= function(x).min() and function(x).max() <= highest
