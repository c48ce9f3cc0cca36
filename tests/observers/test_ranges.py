"""Ranges and parameters that observers choose, against references and PyTorch's observers."""

from __future__ import annotations

import json
import math
import warnings
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.ao import quantization as ao

import jit_passes
from jit_passes.observers import (
    Histogram,
    MinMax,
    MovingAverageMinMax,
    Observer,
    ObserverState,
    PairSums,
    Percentile,
)
from jit_passes.quantizer import Place, QuantizationSpec
from jit_passes.specification.qparams import (
    SCALE_OF_ZEROS,
    SMALLEST_SCALE,
    affine_qparams,
    choose_qparams,
)
from tests.compare import sqnr

search_range_l2 = torch.ops.jit_passes.search_range_l2
AFFINE = QuantizationSpec()
SYMMETRIC = QuantizationSpec("int8", -127, 127, "per_tensor_symmetric")
SEVEN_BITS = QuantizationSpec(quant_max=127)
SPECS = {"affine": AFFINE, "symmetric": SYMMETRIC, "seven_bits": SEVEN_BITS}


def state_of(x: Tensor, bins: int = 2048) -> ObserverState:
    """The state of a histogram observer after one batch."""
    inf = math.inf
    buffer = torch.tensor([inf, -inf, inf, -inf, 0.0, 0.0], dtype=torch.float64)
    counts = torch.zeros(bins, dtype=torch.int64)
    torch.ops.jit_passes.observe_histogram(x, buffer, counts, "x", "")
    return ObserverState(buffer, counts)


def datasets() -> dict[str, Tensor]:
    """Distributions that activations have."""
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(20_000, generator=generator)
    uniform = torch.rand(20_000, generator=generator)
    outlier = torch.cat([normal, torch.tensor([60.0])])
    return {
        "normal": normal,
        "relu": normal.relu(),
        "negative": -normal.abs(),
        "uniform": uniform,
        "shifted": normal + 3,
        "far": uniform + 100,
        "laplace": normal.sign() * -(1 - uniform).log(),
        "exponential": -(1 - uniform).log(),
        "outlier": outlier,
        "two_outliers": torch.cat([outlier, torch.tensor([-300.0])]),
        "bimodal": torch.cat([normal * 0.1 - 5, normal * 0.1 + 5]),
        "relu6": (4 * normal).clamp(0, 6),
        "sigmoid": normal.sigmoid(),
        "small": normal * 1e-3,
        "large": normal * 1e4,
        "sparse": normal * (uniform > 0.95),
    }


def error(
    x: np.ndarray, weight: np.ndarray | float, low: float, high: float, spec: object
) -> float:
    """Squared error of quantizing x with the parameters of the range, in double."""
    scale, zero_point = affine_qparams(low, high, spec)
    codes = np.clip(np.rint(x / scale) + zero_point, spec.quant_min, spec.quant_max)
    return float((weight * ((codes - zero_point) * scale - x) ** 2).sum())


def centres(state: ObserverState) -> tuple[np.ndarray, np.ndarray]:
    """Centres and counts of the bins that are not empty, kept within the range."""
    low, high, _, _, exponent, offset = state.range.tolist()
    counts = state.histogram.numpy()
    bins = np.nonzero(counts)[0]
    x = np.clip((offset + bins + 0.5) * 2.0**exponent, low, high)
    return x, counts[bins].astype(np.float64)


def theirs(x: Tensor, spec: QuantizationSpec) -> tuple[float, int]:
    """Scale and zero point of PyTorch's histogram observer."""
    signed = spec.dtype == "int8"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observer = ao.HistogramObserver(
            dtype=torch.qint8 if signed else torch.quint8,
            qscheme=torch.per_tensor_symmetric if spec.symmetric else torch.per_tensor_affine,
            quant_min=spec.quant_min,
            quant_max=spec.quant_max,
        )
        observer(x)
        scale, zero_point = observer.calculate_qparams()
    return float(scale), int(zero_point)


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("name", datasets())
def test_least_squares(name: str, spec: QuantizationSpec) -> None:
    """No worse than all of the range on the bins, and than PyTorch's choice on the data."""
    x = datasets()[name]
    state = state_of(x)
    found = Histogram().find_range(state, spec.quant_min, spec.quant_max, spec.symmetric)
    whole = (state.range[0].item(), state.range[1].item())
    bins, counts = centres(state)
    assert error(bins, counts, *found, spec) <= error(bins, counts, *whole, spec) * (1 + 1e-3)
    assert min(whole[0], -whole[1] if spec.symmetric else 0, 0) <= found[0] <= found[1]
    data = x.double().numpy()
    scale, zero_point = theirs(x, spec)
    codes = np.clip(np.rint(data / scale) + zero_point, spec.quant_min, spec.quant_max)
    their_error = float((((codes - zero_point) * scale - data) ** 2).sum())
    assert error(data, 1.0, *found, spec) <= their_error * 1.02


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("name", ["normal", "relu", "negative", "outlier", "laplace"])
def test_near_the_best_of_a_grid(name: str, spec: QuantizationSpec) -> None:
    """Within 2 % of a search over 40 x 40 ranges."""
    state = state_of(datasets()[name])
    bins, counts = centres(state)
    found = Histogram().find_range(state, spec.quant_min, spec.quant_max, spec.symmetric)
    low, high = min(state.range[0].item(), 0), max(state.range[1].item(), 0)
    factors = np.linspace(1 / 40, 1, 40)
    pairs = [(low * a, high * b) for a in (factors if low else [1]) for b in factors]
    best = min(error(bins, counts, *pair, spec) for pair in pairs)
    assert error(bins, counts, *found, spec) <= best * 1.02


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_degenerate_histograms(spec: QuantizationSpec) -> None:
    """All zeros, one value, a constant: a range that holds the value."""
    for value in (0.0, 2.5, -2.5, 1e-30):
        state = state_of(torch.full((9,), value))
        found = Histogram().find_range(state, spec.quant_min, spec.quant_max, spec.symmetric)
        assert all(map(math.isfinite, found))
        scale, zero_point = affine_qparams(*found, spec)
        code = min(max(round(value / scale) + zero_point, spec.quant_min), spec.quant_max)
        assert abs((code - zero_point) * scale - value) <= max(abs(value) * 1e-2, SMALLEST_SCALE)


@pytest.mark.parametrize("percentile", [50.1, 90.0, 99.0, 99.9, 99.99, 100.0])
@pytest.mark.parametrize("name", datasets())
def test_percentile(name: str, percentile: float) -> None:
    """Both ends are numpy's to one bin, and outwards."""
    x = datasets()[name]
    state = state_of(x)
    low, high = Percentile(percentile).find_range(state, 0, 255, False)
    tail = (100 - percentile) / 2
    width = 2.0 ** state.range[4].item()
    # Where the tail is a whole number of values, the end may be the last of it or the next value.
    ends = [np.percentile(x.numpy(), p, method="inverted_cdf") for p in (tail, tail + 0.01)]
    assert ends[0] - width <= low <= ends[1] + width
    ends = [np.percentile(x.numpy(), 100 - p, method="inverted_cdf") for p in (tail + 0.01, tail)]
    assert ends[0] - width <= high <= ends[1] + width
    inside = ((x >= low) & (x <= high)).double().mean().item()
    assert inside >= percentile / 100 - 1e-9
    if percentile == 100:
        assert (low, high) == (x.min().item(), x.max().item())


RANGES = [
    (-1.0, 2.0), (0.0, 6.0), (0.5, 3.0), (-4.0, -1.0), (-1e-3, 5.0), (-5.0, 1e-3),
    (0.0, 0.0), (-1e-12, 1e-12), (-1e6, 1e6), (1e30, 2e30), (-0.37, 0.211),
]  # fmt: skip


@pytest.mark.parametrize("limits", RANGES, ids=str)
@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_parameters_of_a_range(spec: QuantizationSpec, limits: tuple[float, float]) -> None:
    """Zero is a code, the range is covered, and PyTorch's observer says the same."""
    scale, zero_point = affine_qparams(*limits, spec)
    assert SMALLEST_SCALE <= scale <= max(1.02 * (limits[1] - min(limits[0], 0)), SCALE_OF_ZEROS)
    assert isinstance(zero_point, int)
    assert spec.quant_min <= zero_point <= spec.quant_max
    low, high = min(limits[0], 0.0), max(limits[1], 0.0)
    assert (spec.quant_min - zero_point) * scale <= low + scale * 0.51
    assert (spec.quant_max - zero_point) * scale >= high - scale * 0.51
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observer = ao.MinMaxObserver(
            dtype=torch.qint8 if spec.dtype == "int8" else torch.quint8,
            qscheme=torch.per_tensor_symmetric if spec.symmetric else torch.per_tensor_affine,
            quant_min=spec.quant_min,
            quant_max=spec.quant_max,
        )
        observer(torch.tensor(limits))
        their_scale, their_zero = observer.calculate_qparams()
    if not 0 < scale < SCALE_OF_ZEROS:  # theirs have this least scale, and lose small numbers
        assert scale == pytest.approx(their_scale.item(), rel=1e-6)
        assert zero_point == int(their_zero)


def test_parameters_per_channel() -> None:
    """PyTorch's symmetric per-channel parameters; no zero point, no scale of 0."""
    spec = QuantizationSpec("int8", -127, 127, "per_channel_symmetric", 0, MinMax())
    x = torch.randn(6, 50, generator=torch.Generator().manual_seed(3))
    x[4] = 0
    x[5] = x[5].abs() + 1
    state = ObserverState(torch.stack([x.amin(1), x.amax(1)]).double(), None)
    chosen = choose_qparams(spec, state)
    expected = (x.abs().amax(1) / 127).double()
    expected[4] = SCALE_OF_ZEROS
    assert torch.equal(chosen.scale, chosen.scale.float().double())
    torch.testing.assert_close(chosen.scale, expected, rtol=1e-6, atol=0)
    assert chosen.zero_point.tolist() == [0] * 6


@pytest.mark.parametrize("scheme", ["affine", "power_of_two"])
def test_other_schemes_per_channel(scheme: str) -> None:
    """Each channel has the parameters that it has alone."""
    lows, highs = torch.tensor([[-1.0, 0.5, -4, 0], [3, 6, 2, 0]], dtype=torch.float64)
    spec = QuantizationSpec("int8", -128, 127, f"per_channel_{scheme}", 1, MinMax())
    found = choose_qparams(spec, ObserverState(torch.stack([lows, highs]), None))
    alone = QuantizationSpec("int8", -128, 127, f"per_tensor_{scheme}", None, MinMax())
    pairs = [
        affine_qparams(*pair, alone) for pair in zip(lows.tolist(), highs.tolist(), strict=True)
    ]
    assert list(zip(found.scale.tolist(), found.zero_point.tolist(), strict=True)) == pairs
    assert found.axis == 1
    if scheme == "power_of_two":
        assert found.scale.tolist() == [2**-5, 2**-4, 2**-5, 2**-126]


def test_rounding_is_kept() -> None:
    """In a file's text, and in the parameters."""
    spec = QuantizationSpec(observer=MinMax(), rounding="floor")
    assert Place.from_text(Place(0, "conv", "input", spec, 0).to_text()).spec == spec
    state = ObserverState(torch.tensor([0.0, 1.0], dtype=torch.float64), None)
    assert choose_qparams(spec, state).rounding == "floor"
    with pytest.raises(ValueError, match="rounding is one of half_even"):
        QuantizationSpec(rounding="up")
    with pytest.raises(ValueError, match=r"\[3, 255\] does not hold 0"):
        QuantizationSpec(quant_min=3, qscheme="per_tensor_power_of_two")


THEIR_TYPES = [
    (torch.quint8, "uint8", 0, 255, {}),
    (torch.quint8, "uint8", 0, 127, {"reduce_range": True}),
    (torch.quint8, "uint8", 0, 15, {"quant_min": 0, "quant_max": 15}),
    (torch.qint8, "int8", -128, 127, {}),
    (torch.qint8, "int8", -64, 63, {"reduce_range": True}),
    (torch.qint8, "int8", -8, 7, {"quant_min": -8, "quant_max": 7}),
]
THEIR_OBSERVERS = {
    "min_max": (ao.MinMaxObserver, MinMax(), "observe_min_max", ()),
    "moving_average": (
        ao.MovingAverageMinMaxObserver,
        MovingAverageMinMax(0.5),
        "observe_moving_average",
        (0.5,),
    ),
    "per_channel": (
        ao.PerChannelMinMaxObserver,
        MinMax(),
        "observe_per_channel_min_max",
        (1,),
    ),
}


@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
@pytest.mark.parametrize("kind", THEIR_TYPES, ids=lambda kind: f"{kind[1]}_{kind[3]}")
@pytest.mark.parametrize("name", THEIR_OBSERVERS)
def test_equal_to_pytorch(name: str, kind: tuple, scheme: str) -> None:
    """Scales to the last bit of float32, and zero points, from the same batches.

    The batches are multiples of 2**-10, so that the averages of both are exact. PyTorch refuses
    symmetric quint8 with reduce_range, and rounds the middle down where the range is given.
    """
    make, observer, op, options = THEIR_OBSERVERS[name]
    dtype, ours, quant_min, quant_max, extra = kind
    if scheme == "symmetric" and ours == "uint8" and "reduce_range" in extra:
        extra = {"quant_min": quant_min, "quant_max": quant_max}
    per_channel = name == "per_channel"
    granularity = "per_channel" if per_channel else "per_tensor"
    spec = QuantizationSpec(
        ours, quant_min, quant_max, f"{granularity}_{scheme}", 1 if per_channel else None, observer
    )
    if name == "moving_average":
        extra = {**extra, "averaging_constant": 0.5}
    if per_channel:
        extra = {**extra, "ch_axis": 1}
    for seed in range(20):
        generator = torch.Generator().manual_seed(seed)
        shape = (8, 5)
        batches = [
            (torch.randn(shape, generator=generator) * 3 + seed % 3 - 1).mul(1024).round() / 1024
            for _ in range(3)
        ]
        if seed % 5 == 4:
            batches = [batch.abs() for batch in batches]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            qscheme = getattr(torch, f"{granularity}_{scheme}")
            theirs = make(dtype=dtype, qscheme=qscheme, **extra)
            rows = [math.inf, -math.inf]
            state = torch.tensor(
                [[row] * 5 for row in rows] if per_channel else [*rows, *rows], dtype=torch.float64
            )
            for batch in batches:
                theirs(batch)
                getattr(torch.ops.jit_passes, op)(batch, state, *options, "x", "")
            scale, zero_point = theirs.calculate_qparams()
        found = choose_qparams(spec, ObserverState(state, None))
        assert torch.equal(
            torch.as_tensor(found.scale, dtype=torch.float64).flatten(), scale.double()
        )
        if scheme == "affine" or quant_min < 0 or quant_max == 255:
            assert torch.equal(torch.as_tensor(found.zero_point).flatten(), zero_point.long())
        else:
            middle = torch.full_like(zero_point, (quant_max + 1) // 2).long()
            assert torch.equal(torch.as_tensor(found.zero_point).flatten(), middle)


GLOW = {
    "affine": [(0.0235294, -128), (0.0156863, -64), (0.0235294, 42), (0.1, 0)],
    "symmetric": [(0.0472441, 0), (0.0236220, 0), (0.03125, 0), (0.1, 0)],
    "symmetric_with_uint8": [(0.0235294, -128), (0.0236220, 0), (0.03125, 0), (0.1, 0)],
    "power_of_two": [(0.0625, 0), (0.03125, 0), (0.03125, 0), (0.125, 0)],
}


@pytest.mark.parametrize("scheme", GLOW)
def test_parameters_in_the_form_of_glow(scheme: str) -> None:
    """Golden vectors of `chooseQuantizationParams`, to the digits given."""
    spec = QuantizationSpec("int8", -128, 127, f"per_tensor_{scheme}", range_form="glow")
    for limits, expected in zip([(0, 6), (-1, 3), (-4, 2), (0, 0)], GLOW[scheme], strict=True):
        scale, zero_point = affine_qparams(*limits, spec)
        assert scale == pytest.approx(expected[0], abs=5e-8)
        assert zero_point == expected[1]
    assert Place.from_text(Place(0, "conv", "input", spec, 0).to_text()).spec == spec


def test_form_of_glow_for_other_codes() -> None:
    """Unsigned codes are the signed ones, moved; channels have what they have alone."""
    for limits in RANGES:
        for scheme in ("affine", "symmetric", "symmetric_with_uint8", "power_of_two"):
            pairs = [
                affine_qparams(*limits, QuantizationSpec.of_bits(
                    8, signed, f"per_tensor_{scheme}", range_form="glow"
                ))
                for signed in (True, False)
            ]  # fmt: skip
            assert pairs[1] == (pairs[0][0], pairs[0][1] + 128)
    spec = QuantizationSpec.of_bits(
        8, qscheme="per_channel_symmetric", ch_axis=0, range_form="glow"
    )
    state = ObserverState(torch.tensor([[0.0, -4.0], [6.0, 2.0]], dtype=torch.float64), None)
    found = choose_qparams(spec, state)
    assert found.scale.tolist() == pytest.approx([0.0472441, 0.03125], abs=5e-8)
    assert found.zero_point.tolist() == [0, 0]


def test_symmetric_with_uint8() -> None:
    """All codes are used where nothing is below 0; otherwise it is symmetric."""
    spec = QuantizationSpec("int8", -128, 127, "per_tensor_symmetric_with_uint8")
    assert affine_qparams(0.0, 6.0, spec) == affine_qparams(0.0, 6.0, replace(
        spec, qscheme="per_tensor_affine"
    ))  # fmt: skip
    assert affine_qparams(-1.0, 6.0, spec) == affine_qparams(-1.0, 6.0, replace(
        spec, qscheme="per_tensor_symmetric"
    ))  # fmt: skip
    x = datasets()["relu"]
    relu = choose_qparams(spec, state_of(x))
    assert relu.zero_point == -128
    assert choose_qparams(spec, state_of(x - 0.1)).zero_point == 0
    spec = replace(spec, qscheme="per_channel_symmetric_with_uint8", ch_axis=0)
    ends = torch.tensor([[0.0, -1.0], [6.0, 6.0]], dtype=torch.float64)
    assert choose_qparams(spec, ObserverState(ends, None)).zero_point.tolist() == [-128, 0]


@pytest.mark.parametrize("signed", [True, False])
@pytest.mark.parametrize("bits", range(2, 17))
def test_of_bits(bits: int, signed: bool) -> None:
    """As many codes as the bits hold, in a dtype that holds them."""
    for scheme in ("affine", "symmetric", "symmetric_with_uint8", "power_of_two"):
        spec = QuantizationSpec.of_bits(bits, signed, f"per_tensor_{scheme}")
        assert spec.quant_max - spec.quant_min + 1 == 2**bits
        assert (spec.quant_min < 0) == signed
        scale, zero_point = affine_qparams(-0.75, 3.0, spec)
        steps = spec.quant_max - zero_point
        # Symmetric grids end half a step before the largest value.
        assert steps * scale >= 3.0 - scale * 0.51
        assert spec.quant_min <= zero_point <= spec.quant_max


@pytest.mark.parametrize(
    "observer",
    [
        MinMax(),
        MovingAverageMinMax(0.2),
        Histogram(bins=100),
        PairSums(),
        Percentile(99.0, bins=512),
    ],
    ids=lambda observer: type(observer).__name__,
)
def test_observers_are_values(observer: Observer) -> None:
    """Equal by their fields, and rebuilt from them."""
    record = json.loads(json.dumps(observer.record()))
    assert Observer.from_record(record) == observer
    assert hash(Observer.from_record(record)) == hash(observer)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Histogram(bins=1), "two bins"),
        (lambda: Percentile(50), "percentile"),
        (lambda: Percentile(100.5), "percentile"),
        (lambda: MovingAverageMinMax(0), "averaging_constant"),
        (lambda: MovingAverageMinMax(1.5), "averaging_constant"),
        (lambda: QuantizationSpec("int8", 0, 255), "does not fit"),
        (lambda: QuantizationSpec("int4"), "dtype"),
        (lambda: QuantizationSpec(qscheme="per_row"), "qscheme"),
        (lambda: QuantizationSpec(ch_axis=0), "ch_axis"),
    ],
)
def test_options_that_make_no_sense(make: object, message: str) -> None:
    """The message names the option."""
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize("symmetric", [False, True])
@pytest.mark.parametrize("exponent", [-90, -60, 55, 63, 100])
def test_least_squared_error_of_any_magnitude(exponent: int, symmetric: bool) -> None:
    """A power of two in front of all numbers is one in front of the range, and changes no more.

    Squares of the smallest and the largest of these are beyond float32.
    """
    x = torch.randn(20_000, generator=torch.Generator().manual_seed(3))
    x[0] = 40
    low, high = (-8, 7) if symmetric else (0, 15)

    def found(data: Tensor) -> tuple[float, float]:
        state, counts = state_of(data).range, state_of(data).histogram
        layout = (int(state[4]), int(state[5]), float(state[0]), float(state[1]))
        return search_range_l2(counts, *layout, low, high, symmetric)

    power = 2.0**exponent
    expected = found(x)
    assert expected[1] < 20  # not the largest number
    assert found(x * power) == (expected[0] * power, expected[1] * power)


# PyTorch's dynamic kernels are not among these: they choose steps of 6.1e-5 at least.
KERNELS = [("x86", "static"), ("x86", "dynamic"), ("reference", "static"),
           ("reference", "dynamic"), ("stock", "static")]  # fmt: skip


@pytest.mark.parametrize(("target", "mode"), KERNELS)
@pytest.mark.parametrize("size", [1e-5, 1e-9, 1e-12])
def test_small_units(size: float, target: str, mode: str) -> None:
    """Inputs of any size have eight bits: volts of an EEG, say."""
    net = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 4)).eval()
    with torch.no_grad():
        net[0].bias.mul_(size)
        net[2].bias.mul_(size)
    script = torch.jit.script(net)
    data = [torch.randn(64, 16) * size for _ in range(3)]
    quantized = jit_passes.quantize_script(script, data, target=target, mode=mode)
    assert sqnr(script(data[0]), quantized(data[0])) > 30
