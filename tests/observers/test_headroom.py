"""Ranges of values with little data: against order statistics, and on numbers held out."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.observers import (
    Fixed,
    Histogram,
    MeanSquaredError,
    Observer,
    ObserverState,
    Percentile,
    observer_of,
)
from jit_passes.observers.headroom import headroom
from jit_passes.observers.observer import HistogramObserver
from jit_passes.registered import UnknownError
from jit_passes.specification.qparams import choose_qparams
from jit_passes.specification.specification import QuantizationSpec
from jit_passes.stages.prepare import fresh_range

SPEC = QuantizationSpec(observer=Histogram())


def observed(x: Tensor, bins: int = 2048) -> ObserverState:
    state = ObserverState(fresh_range(), torch.zeros(bins, dtype=torch.int64))
    torch.ops.jit_passes.observe_histogram(x, state.range, state.histogram, "x", "")
    return state


def slow(x: Tensor, whole: int) -> float:
    """Return the room above, number by number."""
    ordered, n = sorted(x.flatten().tolist(), reverse=True), x.numel()
    if n == 1:
        excess = abs(ordered[0])
    else:
        k = min(math.ceil(math.sqrt(n)), n - 1)
        excess = sum(value - ordered[k] for value in ordered[:k]) / k
    return excess * sum(1 / i for i in range(n + 1, whole + 1))


@pytest.mark.parametrize("count", [1, 2, 3, 7, 8, 9, 32, 64, 1000, 1023])
def test_formula(count: int) -> None:
    """Of both ends, to the width of the histogram's bins."""
    torch.manual_seed(count)
    x = torch.randn(count, dtype=torch.float64).float()
    x[0], x[-1] = x[0].abs(), -x[-1].abs() if count > 1 else x[-1]
    below, above = headroom(observed(x), 256, 1024)
    harmonic = math.fsum(1 / i for i in range(count + 1, 1025))
    bins = 2 * harmonic * 2.0 ** float(observed(x).range[4])
    assert above == pytest.approx(slow(x, 1024), rel=1e-9, abs=bins)
    assert below == pytest.approx(slow(-x, 1024), rel=1e-9, abs=bins)


def test_expected_maximum() -> None:
    """The largest of exponential numbers comes, on average, to that of 1024 of them."""
    torch.manual_seed(0)
    for count in (16, 64, 256):
        x = torch.empty(2000, count).exponential_()
        ends = [float(row.max()) + headroom(observed(row), 256, 1024)[1] for row in x]
        expected = sum(1 / i for i in range(1, 1025))
        # Standard error below 0.11: d varies by 1 / sqrt(k), times at most H(1024) - H(16) = 4.1.
        assert sum(ends) / len(ends) == pytest.approx(expected, abs=0.4)


@pytest.mark.parametrize("count", [1024, 1025, 100_000])
@pytest.mark.parametrize("observer", [Histogram(), MeanSquaredError(factors=20)], ids=str)
def test_much_data_changes_nothing(count: int, observer: Any) -> None:
    torch.manual_seed(0)
    state = observed(torch.randn(count))
    spec = replace(SPEC, observer=observer)
    assert choose_qparams(spec, state, sampled=True) == choose_qparams(spec, state)


def test_fewer_codes_need_less_data() -> None:
    torch.manual_seed(0)
    state = observed(torch.randn(64))
    assert headroom(state, 16, 1024) == (0, 0)
    assert min(headroom(state, 17, 1024)) > 0
    assert headroom(state, 256, 64) == headroom(state, 256, 0) == (0, 0)


def test_zero_is_an_end_of_its_own() -> None:
    behind_relu = torch.tensor([0.0, 0.5, 1.0, 3.0])
    assert headroom(observed(behind_relu), 256, 1024)[0] == 0
    assert headroom(observed(-behind_relu), 256, 1024)[1] == 0
    few, many = torch.linspace(0.1, 1, 7), torch.linspace(0.1, 1, 8)
    assert headroom(observed(few), 256, 1024)[0] > 0.1
    assert headroom(observed(many), 256, 1024)[0] == pytest.approx(0.1)
    assert headroom(observed(-many), 256, 1024)[1] == pytest.approx(0.1)


def test_degenerate_data() -> None:
    for x in (torch.zeros(1), torch.zeros(9), torch.full((9,), 0.3)):
        assert headroom(observed(x), 256, 1024) == (0, 0)
    huge = torch.tensor([3.4e38, -3.4e38])
    parameters = choose_qparams(SPEC, observed(huge), sampled=True)
    assert math.isfinite(parameters.scale)


def test_methods_that_say_so() -> None:
    """Ranges of exact definition stay; any method that reads a histogram can ask for it."""
    torch.manual_seed(0)
    state = observed(torch.randn(32))
    plain, asked = Percentile(), Percentile(headroom=1024)
    scales = [
        choose_qparams(replace(SPEC, observer=observer), state, sampled=True).scale
        for observer in (plain, asked)
    ]
    assert scales[0] == choose_qparams(replace(SPEC, observer=plain), state).scale < scales[1]


def observers(kind: type[Observer] = HistogramObserver) -> list[type[Observer]]:
    found = [known for child in kind.__subclasses__() for known in [child, *observers(child)]]
    return [known for known in found if known.__module__.startswith("jit_passes.")]


@pytest.mark.parametrize("kind", observers())
def test_options_are_whole_numbers(kind: Any) -> None:
    for bins in (0, 1, 64.0):
        with pytest.raises(ValueError, match=f"at least two bins, not {bins}"):
            kind(bins=bins)
    if kind is Fixed:
        with pytest.raises(UnknownError, match="fixed has no parameter 'headroom'"):
            observer_of("fixed", headroom=1024)
        return
    for count in (-1, 10.5):
        with pytest.raises(ValueError, match=f"number of values, 0 or more, not {count}"):
            kind(headroom=count)


class Small(nn.Module):
    """A value of four numbers a batch, and one of thousands."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 8, 3, padding=1), nn.Linear(8, 4)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.conv(x).mean([2, 3]))


def scale_of(batches: list[Tensor], **options: Any) -> dict[str, float]:
    torch.manual_seed(0)
    model = torch.jit.script(Small().eval())
    prepared = jit_passes.prepare(model, target="x86", mode="static", **options)
    reference = jit_passes.convert(jit_passes.calibrate(prepared, batches))
    return {
        str(node.inputs[0].name): float(node.inputs[1].constant)
        for node in jit_passes.GraphView.of(reference._c).nodes
        if node.kind == "jit_passes::quantize"
    }


def test_of_a_model() -> None:
    """The ninth sample of a small value is held; what has thousands of numbers is as it was."""
    torch.manual_seed(1)
    batches = list(torch.randn(8, 1, 3, 16, 16))
    plain = scale_of(batches, config={"version": 1, "global": OFF})
    found = scale_of(batches)
    changed = {name for name in found if found[name] != plain[name]}
    assert changed == {"mean"}
    assert all(found[name] > plain[name] for name in changed)


OFF = {
    side: {"calibration": {"method": "histogram", "headroom": 0}} for side in ("input", "output")
}


def test_constants_have_none() -> None:
    """All of their numbers are known."""

    class Shifted(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.last = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 4, 3)
            self.shift = nn.Parameter(torch.randn(8, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return self.last(torch.relu(self.conv(x)) + self.shift)

    torch.manual_seed(0)
    model = torch.jit.script(Shifted().eval())
    prepared = jit_passes.prepare(model, target="x86", mode="static")
    reference = jit_passes.convert(jit_passes.calibrate(prepared, [torch.randn(4, 3, 32, 32)]))
    shift = [
        node
        for node in jit_passes.GraphView.of(reference._c).nodes
        if node.kind == "jit_passes::dequantize" and isinstance(node.inputs[0].constant, Tensor)
    ]
    (values,) = shift
    codes = values.inputs[0].constant
    assert int(codes.max()) - int(codes.min()) >= 250  # nearly all codes are taken
