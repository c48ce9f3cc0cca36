"""Ranges in front of functions, by the error of the result, against searches in double by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import jit_passes
from jit_passes.graph.functions import function_behind
from jit_passes.graph.view import GraphView
from jit_passes.observers import FunctionError, Histogram, ObserverState
from jit_passes.observers.headroom import headroom
from jit_passes.quantizer import QuantizationSpec
from jit_passes.specification.qparams import choose_qparams
from jit_passes.stages.module import ModelStage, stage_of
from tests.compare import sqnr
from tests.observers.test_ranges import state_of

Number = Callable[[Tensor], Tensor]
FUNCTIONS: dict[str, Number] = {
    "silu": F.silu,
    "hardswish": F.hardswish,
    "gelu": F.gelu,
    "mish": F.mish,
    "sigmoid": torch.sigmoid,
    "tanh": torch.tanh,
    "exp": torch.exp,
    "hardtanh": lambda x: x.clamp(-1, 0.5),
}
Codes = tuple[int, int, bool]  # the least, the most, whether 0 is in the middle
GRIDS: dict[str, Codes] = {
    "uint8": (0, 255, False),
    "int8": (-127, 127, True),
    "int4": (-8, 7, True),
}
STEPS = 40


def rounded_to(low: float, high: float, codes: Codes) -> Number:
    """Quantize and dequantize in a range."""
    least, most, symmetric = codes
    if symmetric:
        scale, zero = 2 * max(-low, high) / (most - least), (least + most + 1) // 2
    else:
        scale = (high - low) / (most - least)
        zero = least - round(low / scale)
    return lambda x: (((x / scale).round() + zero).clamp(least, most) - zero) * scale


def error_of(
    state: ObserverState, f: Number, g: Number, low: float, high: float, codes: Codes
) -> float:
    """The squared error of the function's result, bin by bin, in double."""
    assert state.histogram is not None
    least, most, _, _, exponent, offset = state.range.tolist()
    bins = torch.arange(len(state.histogram), dtype=torch.float64)
    centres = ((offset + bins + 0.5) * 2.0**exponent).clamp(least, most)
    wrong = f(centres) - g(f(rounded_to(low, high, codes)(centres)))
    return float((state.histogram.double() * wrong.square())[state.histogram > 0].sum())


def least_error(state: ObserverState, f: Number, g: Number, codes: Codes) -> float:
    """The least error of all ranges of a grid, tried one by one."""
    low, high = min(float(state.range[0]), 0.0), max(float(state.range[1]), 0.0)
    if codes[2]:
        high = max(-low, high)
        return min(error_of(state, f, g, -high * a, high * a, codes) for a in parts())
    return min(error_of(state, f, g, low * a, high * b, codes) for a in parts() for b in parts())


def parts() -> list[float]:
    return [i / STEPS for i in range(1, STEPS + 1)]


def unrounded(x: Tensor) -> Tensor:
    return x


@pytest.mark.parametrize("rounds", [False, True])
@pytest.mark.parametrize("grid", GRIDS)
@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_error_of_the_result_is_the_least(name: str, grid: str, rounds: bool) -> None:
    """No range of a grid of 40 by 40 has less, but for 3 %; `Histogram` has more, or as much."""
    f, codes = FUNCTIONS[name], GRIDS[grid]
    generator = torch.Generator().manual_seed(1)
    state = state_of(2 * torch.randn(20_000, generator=generator) - 0.5)
    g = rounded_to(-0.3, 6.0, GRIDS["uint8"]) if rounds else unrounded
    known = replace(state, function=f, rounded=g if rounds else None)
    found = error_of(state, f, g, *FunctionError().find_range(known, *codes), codes)
    plain = error_of(state, f, g, *Histogram().find_range(state, *codes), codes)
    assert found <= 1.03 * least_error(state, f, g, codes)
    assert found <= plain
    if name in ("silu", "hardswish", "gelu", "mish") and grid == "uint8" and not rounds:
        assert found < 0.75 * plain


@pytest.mark.parametrize("shift", [-20.0, -1.0, 0.0, 20.0])
@pytest.mark.parametrize("grid", GRIDS)
def test_an_identity_has_the_plain_error(grid: str, shift: float) -> None:
    """The two searches try other ranges: the errors differ by 2 % at most."""
    codes = GRIDS[grid]
    state = state_of(torch.randn(20_000, generator=torch.Generator().manual_seed(2)) + shift)
    known = replace(state, function=unrounded)
    found = error_of(state, unrounded, unrounded, *FunctionError().find_range(known, *codes), codes)
    plain = error_of(state, unrounded, unrounded, *Histogram().find_range(state, *codes), codes)
    assert found == pytest.approx(plain, rel=0.02)


@pytest.mark.parametrize(
    ("function", "most"),
    [(None, 255), (F.silu, 65535), (lambda x: x * torch.nan, 255), (lambda x: x / 0, 255)],
    ids=["no function", "16 bits", "NaN", "infinite"],
)
def test_the_plain_search_remains(function: Number | None, most: int) -> None:
    state = state_of(torch.randn(5_000, generator=torch.Generator().manual_seed(3)))
    found = FunctionError().find_range(replace(state, function=function), 0, most, False)
    assert found == Histogram().find_range(state, 0, most, False)


def test_numbers_without_a_finite_result_do_not_count() -> None:
    """Of log(1 + x), all below -1: the range does not reach the least of them."""
    state = state_of(torch.randn(5_000, generator=torch.Generator().manual_seed(3)) + 1)
    low, high = FunctionError().find_range(replace(state, function=torch.log1p), 0, 255, False)
    assert state.range[0] < -2 < low < 0 < high <= state.range[1]


def test_zeros_alone_have_the_plain_range() -> None:
    state = state_of(torch.zeros(2_000))
    known = replace(state, function=F.silu)
    assert FunctionError().find_range(known, 0, 255, False) == (0.0, 0.0)


def test_few_numbers_have_headroom() -> None:
    """The range reaches beyond the numbers seen, as with the plain search, to the bit."""
    state = state_of(torch.randn(100, generator=torch.Generator().manual_seed(4)))
    below, above = headroom(state, 256, 1024)
    assert below > 0 and above > 0
    plain = choose_qparams(QuantizationSpec(), state, sampled=True)
    spec = QuantizationSpec(observer=FunctionError())
    assert choose_qparams(spec, replace(state, function=F.silu), sampled=True) == plain


class Layers(nn.Module):
    """A convolution, something behind it, and another convolution."""

    def __init__(self, behind: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 16, 3), nn.Conv2d(16, 4, 1)
        self.behind = behind

    def forward(self, x: Tensor) -> Tensor:
        y: Tensor = self.second(self.behind(self.first(x)))
        return y


def data(seed: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [3 * torch.randn(4, 3, 12, 12, generator=generator) for _ in range(4)]


def traced(behind: Callable[[Tensor], Tensor]) -> torch.jit.ScriptModule:
    torch.manual_seed(0)
    model = Layers(behind).eval()
    with torch.no_grad():
        model.first.weight.mul_(4)
    return torch.jit.trace(model, data(0)[0])


def converted(
    behind: Callable[[Tensor], Tensor], target: str = "reference", config: Any = None
) -> torch.jit.ScriptModule:
    prepared = jit_passes.prepare(traced(behind), target=target, mode="static", config=config)
    return jit_passes.convert(jit_passes.calibrate(prepared, data(1)))


def grid_of(reference: torch.jit.ScriptModule, name: str = "first:conv2d") -> tuple[float, int]:
    """Scale and zero point at a value."""
    report = stage_of(reference, ModelStage.REFERENCE, "")
    found = {value.name: value for value in report.values}
    return found[name].scale[0], found[name].zero_point[0]


PLAIN = {"version": 1, "rules": [{"module": "first", "output": {"calibration": "histogram"}}]}


@pytest.mark.parametrize("target", ["reference", "x86", "stock"])
def test_a_layer_has_a_range_for_its_function(target: str) -> None:
    """On held-out data the result has less error than with the plain search: 0.5 dB or more."""
    model = traced(F.silu)
    expected, gained = [model(x) for x in data(7)], []
    for config in (PLAIN, None):
        reference = converted(F.silu, target, config)
        lowered = jit_passes.lower(reference)
        got = [lowered(x) for x in data(7)]
        gained.append(float(sqnr(torch.cat(expected), torch.cat(got))))
    assert gained[1] > gained[0] + 0.5


def test_the_report_has_the_function() -> None:
    reference = converted(F.silu)
    remark = "the range of its result gives silu the least error"
    assert remark in str(jit_passes.coverage(reference))
    assert jit_passes.provenance(reference)["calibration"] == "function_error, histogram"
    plain = converted(F.silu, config=PLAIN)
    assert remark not in str(jit_passes.coverage(plain))
    assert jit_passes.provenance(plain)["calibration"] == "histogram"


def test_spellings_of_one_function_have_one_range() -> None:
    """The operators of x sigmoid(x), and of relu6, are a function together."""
    assert grid_of(converted(lambda x: x * torch.sigmoid(x))) == grid_of(converted(F.silu))
    spelled = converted(lambda x: x * F.relu6(x + 3) / 6)
    assert grid_of(spelled)[0] == pytest.approx(grid_of(converted(F.hardswish))[0], rel=0.05)


@pytest.mark.parametrize(
    "behind",
    [
        lambda x: F.silu(x) + x.mean((2, 3), keepdim=True),
        lambda x: F.silu(x) + F.gelu(x).flip(3),
        lambda x: F.silu(F.max_pool2d(x, 2)),
        lambda x: F.softmax(x, 1),
        lambda x: 0.5 - x * 2 / 3,
        lambda x: x,
    ],
    ids=["another reader", "two results", "a pool", "no function", "numbers", "none"],
)
def test_other_readers_have_the_plain_range(behind: Callable[[Tensor], Tensor]) -> None:
    found, plain = grid_of(converted(behind)), grid_of(converted(behind, config=PLAIN))
    assert found == plain


def test_options_stay_as_asked() -> None:
    """A calibration of the layer, of its reader, and of all layers."""
    plain = grid_of(converted(F.silu, config=PLAIN))
    assert grid_of(converted(F.silu)) != plain
    everywhere = {"version": 1, "global": {"output": {"calibration": "histogram"}}}
    assert grid_of(converted(F.silu, config=everywhere)) == plain
    seen = {"version": 1, "rules": [{"module": "first", "output": {"range": [-5.1, 5.1]}}]}
    assert grid_of(converted(F.silu, config=seen))[0] == pytest.approx(10.2 / 255)


def test_a_profile_gives_equal_ranges() -> None:
    """The function is read from the graph, and not from the data."""
    model = traced(F.silu)
    prepared = jit_passes.prepare(model, target="reference", mode="static")
    jit_passes.fill(prepared, jit_passes.profile(model, data(1)))
    assert grid_of(jit_passes.convert(prepared)) == grid_of(converted(F.silu))


def test_training_starts_as_before() -> None:
    """Ranges of training follow from its own batches, whatever the range search is."""
    grids = []
    for config in (None, PLAIN):
        torch.manual_seed(0)
        model = jit_passes.prepare_qat(
            torch.jit.script(Layers(nn.SiLU())), target="reference", config=config
        )
        model.train()
        for x in data(1):
            model(x)
        grids.append(grid_of(jit_passes.convert(model)))
    assert grids[0] == grids[1]


@pytest.mark.parametrize(
    "behind",
    [
        F.silu,
        lambda x: F.gelu(x, approximate="tanh"),
        lambda x: torch.where(x > 0.5, x * 2, x - x / 3),
        lambda x: torch.add(x, torch.sigmoid(x), alpha=3).clamp(-1, 2).round(),
        lambda x: F.softplus(x, 2.0, 3.0) ** 2 - 1.5,
        lambda x: F.prelu(x, torch.full((1,), 0.25, dtype=x.dtype)),
    ],
    ids=["silu", "gelu", "where", "alpha", "numbers", "prelu"],
)
def test_a_function_of_a_graph_is_computed(behind: Callable[[Tensor], Tensor]) -> None:
    """As PyTorch computes it, in double."""
    x = torch.linspace(-3, 3, 64, dtype=torch.float64)
    frozen = torch.jit.freeze(torch.jit.trace(Layers(behind).eval(), data(0)[0]))
    view = GraphView.of(frozen)
    layer = next(node for node in view.nodes if node.kind in ("aten::conv2d", "aten::_convolution"))
    found = function_behind(layer.output)
    assert found is not None
    torch.testing.assert_close(found(x), behind(x), rtol=1e-12, atol=1e-12)
