"""Searches over one calibrated histogram, against references that are the formulas, in double."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from jit_passes.observers import (
    KLJ,
    Entropy,
    Fixed,
    Histogram,
    MeanSquaredError,
    MinMax,
    Observer,
    ObserverState,
    Percentile,
    ThreeSigma,
)
from jit_passes.observers.bins import filled_bins, magnitudes, mirrored_bins
from jit_passes.quantizer import QuantizationSpec
from jit_passes.specification.qparams import affine_qparams, choose_qparams

ops = torch.ops.jit_passes
Counts = np.ndarray
TIE = 1e-12  # of divergences: kDivergenceTie in cpp/ops/divergence.h
METHODS: dict[str, Observer] = {
    "min_max": MinMax(),
    "histogram": Histogram(),
    "percentile": Percentile(),
    "mean_squared_error": MeanSquaredError(),
    "entropy_nvidia": Entropy("nvidia"),
    "entropy_glow": Entropy("glow"),
    "klj": KLJ(),
    "three_sigma": ThreeSigma(),
    "fixed": Fixed(-2.0, 3.0),
}
SPECS = {
    "affine": QuantizationSpec(),
    "symmetric": QuantizationSpec("int8", -127, 127, "per_tensor_symmetric"),
    "with_uint8": QuantizationSpec("int8", -128, 127, "per_tensor_symmetric_with_uint8"),
    "power_of_two": QuantizationSpec("int8", -128, 127, "per_tensor_power_of_two"),
    "glow": QuantizationSpec("int8", -128, 127, range_form="glow"),
    "two_bits": QuantizationSpec.of_bits(2, qscheme="per_tensor_symmetric"),
    "four_bits": QuantizationSpec.of_bits(4, signed=False),
    "sixteen_bits": QuantizationSpec.of_bits(16),
}


def state_of(x: Tensor, bins: int = 2048) -> ObserverState:
    """The state of each method after one batch."""
    inf = math.inf
    buffer = torch.tensor([inf, -inf, inf, -inf, 0.0, 0.0], dtype=torch.float64)
    counts = torch.zeros(bins, dtype=torch.int64)
    ops.observe_histogram(x, buffer, counts, "x", "")
    return ObserverState(buffer, counts)


def normal(seed: int, size: int = 20_000) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(seed))


def histograms(bins: int) -> dict[str, Counts]:
    """Counts of all shapes: peaks, tails, gaps, few of them."""
    rng = np.random.default_rng(bins)
    x = np.abs(rng.standard_normal(50_000))
    place = np.arange(bins)
    one, ends = np.zeros(bins, np.int64), np.zeros(bins, np.int64)
    one[bins // 2] = 17
    ends[[0, -1]] = 9, 4
    return {
        "normal": np.histogram(x, bins)[0],
        "laplace": np.histogram(rng.exponential(size=50_000), bins)[0],
        "outlier": np.histogram(np.append(x, 40.0), bins)[0],
        "sparse": (rng.random(bins) < 0.1) * rng.integers(1, 50, bins),
        "gap": np.where((place > bins // 3) & (place < bins // 2), 0, 1 + bins - place),
        "uniform": np.full(bins, 7),
        "falling": (1e6 * 0.99**place).astype(np.int64),
        "large": rng.integers(1, 10**12, bins),
        "one": one,
        "ends": ends,
        "last": np.r_[np.zeros(bins - 1, np.int64), 1],
        "first": np.r_[5, np.zeros(bins - 1, np.int64)],
        "empty": np.zeros(bins, np.int64),
    }


SHAPES = list(histograms(2))


def entropy(p: Counts, q: Counts) -> float:
    """sum of P ln(P / Q), both normalized; scipy.stats.entropy."""
    p, q = p / p.sum(), q / q.sum()
    if np.any((p > 0) & (q == 0)):
        return math.inf
    return float(sum(a * math.log(a / b) for a, b in zip(p, q, strict=True) if a > 0))


def nvidia(counts: Counts, groups: int) -> int:
    """The bins that pytorch_quantization keeps."""
    counts = counts.astype(np.float64)
    if len(counts) < 128:
        return len(counts)
    counts[0] = counts[1]
    divergences = []
    for i in range(128, len(counts) + 1):
        group = np.digitize(np.arange(i), np.linspace(0, i, groups + 1)) - 1
        group[counts[:i] == 0] = -1
        q = np.zeros(i)
        for one in set(group) - {-1}:
            q[group == one] = counts[:i][group == one].mean()
        p = counts[:i].copy()
        p[-1] += counts[i:].sum()
        divergences.append(entropy(p, q) if q.any() else math.inf)
    least = min(divergences) + TIE
    return 128 + max(i for i, value in enumerate(divergences) if value <= least)


def condition(bins: Counts) -> Counts:
    """Empty bins become 1e-4; what they get is taken from the others."""
    empty = bins == 0
    taken = 1e-4 * empty.sum() / max((~empty).sum(), 1)
    return np.where(empty, 1e-4, bins - taken) if taken < 1 and not empty.all() else bins


def glow(counts: Counts, groups: int, symmetric: bool) -> tuple[int, int]:
    """The first bin that Glow keeps, and the end."""
    counts = counts.astype(np.float64)
    start, stop = 0, len(counts) - 1
    found = []
    while stop - start + 1 >= groups:
        window = counts[start : stop + 1]
        p = window.copy()
        p[0], p[-1] = counts[: start + 1].sum(), counts[stop:].sum()
        q = np.zeros(len(window))
        width = len(window) // groups
        ends = [*range(0, groups * width, width), len(window)]
        for a, b in pairwise(ends):
            if window[a:b].any():
                q[a:b] = np.where(p[a:b] != 0, window[a:b].sum() / np.count_nonzero(window[a:b]), 0)
        divergence = math.inf
        if window.any():
            divergence = entropy(condition(p), condition(q))
        found.append((divergence, start, stop + 1))
        losses = [
            counts[start] + counts[stop],
            counts[start] + counts[start + 1],
            counts[stop] + counts[stop - 1],
        ]
        step = 0 if symmetric else int(np.argmin(losses))
        start, stop = start + (1, 2, 0)[step], stop - (1, 0, 2)[step]
    if not found:
        return 0, len(counts)
    least = min(found)[0] + TIE
    return next((a, b) for divergence, a, b in found if divergence <= least)


def klj(counts: Counts, n: int) -> int:
    """The bins that algorithm 1 of arXiv:1805.07941 keeps."""
    bins = len(counts)
    if n + 1 > bins:
        return bins
    if not counts.any():
        return n + 1
    cdf = np.cumsum(counts) / counts.sum()
    divergences = []
    for i in range(n + 1, bins + 1):
        p = cdf.copy()
        p[i - 1 :] = 1
        f = np.interp(np.linspace(0, 1, n), np.linspace(0, 1, i), p[:i])
        q = p.copy()
        q[:i] = np.interp(np.linspace(0, 1, i), np.linspace(0, 1, n), f)
        used = cdf != 0
        divergences.append(float(((cdf - q)[used] * np.log2(cdf[used] / q[used])).sum()))
    least = min(divergences) + TIE
    return n + 1 + next(i for i, value in enumerate(divergences) if value <= least)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("bins", "levels"), [(2, 2), (127, 8), (128, 128), (291, 128), (300, 256)])
def test_entropy_nvidia(shape: str, bins: int, levels: int) -> None:
    """Search and formula give equal bins; of thresholds as good as each other, the largest."""
    counts = histograms(bins)[shape]
    assert ops.search_range_entropy(torch.from_numpy(counts), levels) == nvidia(counts, levels)


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("bins", "groups"), [(2, 3), (90, 3), (255, 255), (401, 255)])
def test_entropy_glow(shape: str, bins: int, groups: int, symmetric: bool) -> None:
    """Search and formula give equal bins; of ranges as good as each other, the widest."""
    counts = histograms(bins)[shape]
    found = ops.search_range_entropy_glow(torch.from_numpy(counts), groups, symmetric)
    assert found == glow(counts, groups, symmetric)


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize(("bins", "levels"), [(2, 2), (129, 128), (200, 128), (301, 2), (300, 256)])
def test_klj(shape: str, bins: int, levels: int) -> None:
    """Search and formula give equal bins; of thresholds as good as each other, the smallest."""
    counts = histograms(bins)[shape]
    assert ops.search_range_klj(torch.from_numpy(counts), levels) == klj(counts, levels)


def test_searches_refuse() -> None:
    """The message says what is wrong with the operands."""
    with pytest.raises(RuntimeError, match="int64 tensor with one dimension, got Float"):
        ops.search_range_entropy(torch.zeros(300), 128)
    with pytest.raises(RuntimeError, match="two levels, not 1"):
        ops.search_range_klj(torch.ones(300, dtype=torch.int64), 1)
    with pytest.raises(RuntimeError, match="two groups, not 1"):
        ops.search_range_entropy_glow(torch.ones(300, dtype=torch.int64), 1, True)
    with pytest.raises(RuntimeError, match="one factor, not 0"):
        ops.search_range_exhaustive(torch.ones(3, dtype=torch.int64), 0, 0, 0, 3, 0, 255, True, 0)


def squared_error(state: ObserverState, low: float, high: float, spec: QuantizationSpec) -> float:
    """sum of count * (x - dequantize(quantize(x)))**2 at the bins' centres, in double."""
    counts, first, width = filled_bins(state)
    x = (np.arange(first, first + len(counts)) + 0.5) * width
    x = np.clip(x, *state.range[:2].tolist())
    scale, zero_point = affine_qparams(low, high, spec)
    codes = np.clip(np.rint(x / scale) + zero_point, spec.quant_min, spec.quant_max)
    return float((counts.numpy() * ((codes - zero_point) * scale - x) ** 2).sum())


@pytest.mark.parametrize("name", ["affine", "symmetric", "four_bits"])
@pytest.mark.parametrize("data", ["normal", "relu", "outlier"])
def test_exhaustive(name: str, data: str) -> None:
    """No range of the grid has less error, to what float32 resolves.

    Histogram's, with the same error, is 6 % above the finer grid's where two minima are far apart
    (four bits, an outlier), and 2 % at most elsewhere.
    """
    spec, x = SPECS[name], normal(1)
    x = {"normal": x, "relu": x.relu(), "outlier": torch.cat([x, torch.tensor([30.0])])}[data]
    state = state_of(x, 512)
    low, high = min(x.min().item(), 0.0), max(x.max().item(), 0.0)
    if spec.symmetric:
        low, high = -max(-low, high), max(-low, high)
    grid = np.arange(1, 13) / 12
    one = spec.symmetric or low == 0
    pairs = [(low * a, high * b) for b in grid for a in ([b] if one else grid)]
    least = min(squared_error(state, *pair, spec) for pair in pairs)
    found = MeanSquaredError(12).find_range(state, spec.quant_min, spec.quant_max, spec.symmetric)
    assert squared_error(state, *found, spec) <= least * (1 + 1e-3)
    assert min(abs(found[0] - a) + abs(found[1] - b) for a, b in pairs) <= 1e-6 * high
    finer = MeanSquaredError().find_range(state, spec.quant_min, spec.quant_max, spec.symmetric)
    other = Histogram().find_range(state, spec.quant_min, spec.quant_max, spec.symmetric)
    assert squared_error(state, *other, spec) <= squared_error(state, *finer, spec) * 1.07


@pytest.mark.parametrize("bins", [64, 2048])
@pytest.mark.parametrize("shift", [0.0, 1.0, -1.0, 100.0])
def test_magnitudes(bins: int, shift: float) -> None:
    """The histogram of |x|, and the mirrored one, have the counts of the values themselves."""
    x = normal(2) + shift
    state = state_of(x, bins)
    counts, width = magnitudes(state)
    steps = x.double() / width  # a negative edge belongs to the bin above it, nearer to 0
    expected = torch.bincount(torch.where(x < 0, (-steps).ceil() - 1, steps.floor()).long())
    assert torch.equal(counts, expected)
    assert len(counts) <= bins
    counts, first, width = mirrored_bins(state)
    assert len(counts) == -2 * first <= bins
    indices = (x.double() / width).floor().long() - first
    assert torch.equal(counts, torch.bincount(indices, minlength=len(counts)))
    counts, first, width = filled_bins(state)
    assert torch.equal(counts, torch.bincount((x.double() / width).floor().long() - first))


def test_three_sigma() -> None:
    """Off by two bins at most."""
    for x in (normal(3), normal(3).relu(), normal(3) * 0.01 + 5):
        state = state_of(x, 128)
        data = x.double()
        exact = abs((data + 1e-6).mean().item()) + 3 * data.std(correction=0).item()
        low, high = ThreeSigma().find_range(state, -127, 127, True)
        assert low == -high
        assert abs(high - exact) <= 2 * 2.0 ** state.range[4].item()


def test_one_state_for_all_methods() -> None:
    """Every method reads the same buffers, which it leaves alone."""
    state = state_of(torch.cat([normal(4), torch.tensor([25.0])]))
    before = ObserverState(state.range.clone(), state.histogram.clone())
    spec = QuantizationSpec("int8", -128, 127)
    found = {}
    for name, method in METHODS.items():
        assert method.op == "observe_histogram" or isinstance(method, MinMax)
        found[name] = method.find_range(state, spec.quant_min, spec.quant_max, False)
        assert torch.equal(state.range, before.range)
        assert torch.equal(state.histogram, before.histogram)
    assert found["min_max"] == tuple(state.range[:2].tolist())
    assert found["fixed"] == (-2, 3)
    for name in METHODS.keys() - {"min_max", "fixed"}:
        low, high = found[name]
        assert 2 < high < 25, "the outlier is clipped"
        assert -6 < low < -2 or name == "three_sigma"
    assert len(set(found.values())) == len(found)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("name", METHODS)
def test_edges(name: str, spec: QuantizationSpec) -> None:
    """A finite positive scale in float32, and 0 exact, whatever the values are."""
    data: dict[str, Tensor] = {
        "zeros": torch.zeros(9),
        "constant": torch.full((100,), 3.7),
        "negative_constant": torch.full((100,), -3.7),
        "one": torch.tensor([-2.5]),
        "denormals": torch.arange(-50, 50) * 1e-45,
        "one_denormal": torch.tensor([1e-45]),
        "half": torch.tensor([65504.0, -65504.0, 6e-8], dtype=torch.float16),
        "largest": torch.tensor([3.4e38, -3.4e38]),
        "relu": normal(5, 1000).relu(),
        "negative": -normal(5, 1000).relu(),
        "far": normal(5, 1000) + 1e6,
        "two": torch.tensor([0.0, 1.0]),
    }
    for kind, x in data.items():
        chosen = choose_qparams(replace_observer(spec, METHODS[name]), state_of(x))
        assert isinstance(chosen.scale, float), kind
        scale = float(torch.tensor(chosen.scale, dtype=torch.float32))
        assert 0 < scale < math.inf, kind
        assert math.isfinite(1 / scale), kind
        assert spec.quant_min <= chosen.zero_point <= spec.quant_max, kind


def replace_observer(spec: QuantizationSpec, observer: Observer) -> QuantizationSpec:
    """Return a specification with equal codes, whose range another method finds."""
    return QuantizationSpec(
        spec.dtype, spec.quant_min, spec.quant_max, spec.qscheme, None, observer, "half_even",
        spec.range_form,
    )  # fmt: skip


def test_fixed_per_channel() -> None:
    """The range of every channel."""
    spec = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, Fixed(-1, 1.27))
    seen = torch.tensor([[-9.0, -1.0], [0.0, 1.0]], dtype=torch.float64)
    found = choose_qparams(spec, ObserverState(seen, None))
    torch.testing.assert_close(found.scale, torch.full((2,), 0.01, dtype=torch.float64))


@pytest.mark.parametrize("name", METHODS)
def test_methods_are_values(name: str) -> None:
    """Equal by their fields, and rebuilt from them."""
    observer = METHODS[name]
    record = json.loads(json.dumps(observer.record()))
    assert Observer.from_record(record) == observer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Entropy("tvm"), "form is one of nvidia, glow"),
        (lambda: Entropy(bins=1), "two bins"),
        (lambda: KLJ(bins=1), "two bins"),
        (lambda: MeanSquaredError(0), "one factor"),
        (lambda: Fixed(2, 1), r"\[2, 1\] is not a finite range"),
        (lambda: Fixed(0, math.inf), "finite range"),
        (lambda: QuantizationSpec(range_form="tvm"), "range_form is one of"),
        (lambda: QuantizationSpec(quant_max=1, range_form="glow"), "either side"),
        (lambda: QuantizationSpec.of_bits(17), "from 2 to 16"),
    ],
)
def test_options_that_make_no_sense(make: Callable[[], object], message: str) -> None:
    """The message names the option."""
    with pytest.raises(ValueError, match=message):
        make()
