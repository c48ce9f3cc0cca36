"""The histogram: bins, exact merging, and the ranges that are found in it."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from torch import Tensor

import jit_passes  # noqa: F401  registers the operators
from tests.seeds import seeds

ops = torch.ops.jit_passes
BINS = 2048
SMALLEST = -140


def observe(batches: list[Tensor], bins: int = BINS) -> tuple[Tensor, Tensor]:
    """The two buffers after some batches."""
    inf = math.inf
    state = torch.tensor([inf, -inf, inf, -inf, 0.0, 0.0], dtype=torch.float64)
    counts = torch.zeros(bins, dtype=torch.int64)
    for batch in batches:
        ops.observe_histogram(batch, state, counts, "x", "")
    return state, counts


def indices(x: np.ndarray, exponent: int) -> np.ndarray:
    """floor(x / 2**exponent) of float32 values, exactly: no float64 of that size underflows."""
    return np.floor(np.ldexp(x.astype(np.float64), -exponent))


def assert_exact(batches: list[Tensor], bins: int = BINS) -> tuple[Tensor, Tensor]:
    """Asserts range, smallest exponent, offset and every count."""
    state, counts = observe(batches, bins)
    x = torch.cat([batch.float().reshape(-1) for batch in batches]).numpy()
    low, high = x.min(), x.max()
    assert state[:2].tolist() == [low, high]
    exponent, offset = int(state[4]), int(state[5])
    first, last = indices(np.array([low, high]), exponent)
    assert offset == first
    assert last - first < bins
    largest = max(abs(float(low)), abs(float(high)))
    finest = max(math.frexp(largest)[1] - 1 - 22, SMALLEST) if largest else SMALLEST
    if exponent > finest:  # one less would not hold the range, or resolve what float32 cannot
        below = indices(np.array([low, high]), exponent - 1)
        assert below[1] - below[0] >= bins
    assert exponent >= finest
    expected = np.bincount((indices(x, exponent) - offset).astype(np.int64), minlength=bins)
    assert counts.tolist() == expected.tolist()
    return state, counts


def normal(seed: int, *shape: int) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


CASES = {
    "normal": [normal(0, 5000)],
    "relu": [normal(0, 5000).relu()],
    "negative": [-normal(0, 5000).abs() - 1],
    "uniform_large": [normal(0, 3000) * 1e30],
    "small": [normal(0, 3000) * 1e-30],
    "denormals": [torch.arange(-50, 50) * 1e-45],
    "denormals_wide": [normal(0, 2000) * 1e-38],
    "zeros": [torch.zeros(77)],
    "zeros_then_values": [torch.zeros(77), normal(0, 100)],
    "zeros_then_denormals": [torch.zeros(7), torch.tensor([1e-45, -1e-45])],
    "minus_zero": [torch.tensor([-0.0, 0.0, -0.0, 1.0])],
    "constant": [torch.full((100,), 3.7)],
    "constants": [torch.full((10,), 3.7), torch.full((10,), -1e-3), torch.full((10,), 1e6)],
    "one": [torch.tensor([-2.5])],
    "one_then_one": [torch.tensor([-2.5]), torch.tensor([1e10])],
    "offset": [1e6 + normal(0, 3000)],
    "offset_negative": [-1e6 + normal(0, 3000), -1e6 + 50 * normal(1, 3000)],
    "growing": [normal(i, 500) * 10.0**i for i in range(-30, 31, 5)],
    "shrinking": [normal(i, 500) * 10.0**-i for i in range(-30, 31, 5)],
    "powers": [torch.tensor([s * 2.0**i for i in range(-20, 20) for s in (1, -1)])],
    "edges": [torch.arange(-1024, 1024) / 64, torch.nextafter(torch.ones(3), torch.zeros(3))],
    "largest": [torch.tensor([3.4e38, -3.4e38, 1.0, -1.0, 0.0])],
    "one_sided_largest": [torch.tensor([3.4e38, 1e-45])],
    "tiny_negative": [torch.tensor([-1e-30, 1e30])],
    "half": [normal(0, 999).half()],
    "bfloat16": [normal(0, 999).bfloat16()],
    "double": [normal(0, 999).double() / 3],
    "channels_last": [normal(0, 3, 5, 7, 9).contiguous(memory_format=torch.channels_last)],
    "sliced": [normal(0, 30, 50)[::3, 1::2], normal(1, 30, 50).T[5:]],
    "expanded": [normal(0, 30, 1).expand(30, 7)],
    "threads": [normal(0, 700_001)],
    "threads_lumped": [normal(0, 300_000).relu(), normal(1, 262_144) + 5],
}


@pytest.mark.parametrize("bins", [2, 100, BINS])
@pytest.mark.parametrize("name", CASES)
def test_every_count(name: str, bins: int) -> None:
    """Range, layout and all counts, by the definition."""
    assert_exact(CASES[name], bins)


@pytest.mark.parametrize("seed", seeds(25))
def test_order_and_split_do_not_matter(seed: int) -> None:
    """Equal buffers for any order of any cut of the same values."""
    rng = np.random.default_rng(seed)
    scale = 10.0 ** rng.integers(-12, 12, 8)
    data = [normal(i + 100 * seed, 200) * float(s) + float(s) * seed for i, s in enumerate(scale)]
    everything = torch.cat(data)
    state, counts = assert_exact([everything])
    for _ in range(4):
        shuffled = everything[torch.from_numpy(rng.permutation(len(everything)))]
        cuts = sorted(rng.choice(len(everything), rng.integers(1, 30)).tolist())
        pieces = [piece for piece in torch.tensor_split(shuffled, cuts) if len(piece)]
        again, counted = observe(pieces)
        assert torch.equal(again, state)
        assert torch.equal(counted, counts)


def test_tiny_negative_values_in_any_order() -> None:
    """A negative value so small that its share of a bin underflows is in the bin below 0."""
    x = torch.tensor([-1e-30, -1e-40, 1e30])
    together = observe([x])
    for order in ([0, 1, 2], [2, 1, 0], [1, 2, 0]):
        apart = observe([x[i : i + 1] for i in order])
        assert torch.equal(apart[0][[0, 1, 4, 5]], together[0][[0, 1, 4, 5]])
        assert torch.equal(apart[1], together[1])


def test_input_is_left_alone() -> None:
    """Denormals, which are scaled for counting, included."""
    for x in (normal(0, 100_000), normal(0, 2000) * 1e-40):
        before = x.clone()
        observe([x])
        assert torch.equal(x, before)


def test_number_of_threads_does_not_matter() -> None:
    """One thread and several give equal buffers."""
    x, threads = normal(9, 500_000), torch.get_num_threads()
    several = observe([x])
    try:
        torch.set_num_threads(1)
        one = observe([x])
    finally:
        torch.set_num_threads(threads)
    assert torch.equal(one[0], several[0])
    assert torch.equal(one[1], several[1])
