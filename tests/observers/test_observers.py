"""Observers: what they write down, against slow references."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar

import pytest
import torch
from torch import Tensor, nn

from jit_passes import JitPassesError
from jit_passes.observers import HistogramObserver, ObserverState
from jit_passes.specification.qparams import choose_qparams
from jit_passes.specification.specification import QuantizationSpec

ops = torch.ops.jit_passes
INFINITY = math.inf


def new_range(channels: int = 0) -> Tensor:
    """An observer's buffer before anything was seen."""
    if channels:
        row = torch.full((channels,), INFINITY, dtype=torch.float64)
        return torch.stack([row, -row])
    values = [INFINITY, -INFINITY, INFINITY, -INFINITY, 0.0, 0.0]
    return torch.tensor(values, dtype=torch.float64)


def histogram_range(x: Tensor, state: Tensor) -> None:
    """observe_histogram with a histogram that nobody looks at."""
    ops.observe_histogram(x, state, torch.zeros(64, dtype=torch.int64), "layer:relu", "")


RANGES: dict[str, Callable[[Tensor, Tensor], None]] = {
    "min_max": lambda x, state: ops.observe_min_max(x, state, "layer:relu", ""),
    "moving_average": lambda x, state: ops.observe_moving_average(x, state, 1.0, "layer:relu", ""),
    "histogram": histogram_range,
}
PER_CHANNEL: dict[str, Callable[[Tensor, Tensor], None]] = {
    "per_channel": lambda x, state: ops.observe_per_channel_min_max(x, state, 0, "layer:relu", ""),
    "pair_sums": lambda x, state: ops.observe_pair_sums(x, state, 0, "layer:relu", ""),
}


def batch(seed: int, *shape: int) -> Tensor:
    """Random values, the same for the same seed."""
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def views() -> dict[str, Tensor]:
    """Tensors whose memory or type is not plain."""
    x = batch(0, 4, 6, 7, 5)
    return {
        "plain": x,
        "channels_last": x.contiguous(memory_format=torch.channels_last),
        "transposed": x.transpose(1, 3),
        "sliced": x[1:, ::2, :, 2:],
        "expanded": x[:, :1].expand(-1, 3, -1, -1),
        "flipped": x.flip(0)[::3],
        "half": x.half(),
        "bfloat16": x.bfloat16(),
        "double": x.double(),
        "double_sliced": x.double()[..., 1::2],
        "scalar": x[0, 0, 0, 0],
        "needs_grad": x.clone().requires_grad_(),
        "many": batch(1, 300_001),
        "many_sliced": batch(2, 200, 3000)[:, 1::2],
    }


@pytest.mark.parametrize("view", views())
@pytest.mark.parametrize("name", RANGES)
def test_range_of_one_batch(name: str, view: str) -> None:
    """Smallest and largest value, and the rank; the input is as it was."""
    x = views()[view]
    before, state = x.clone(), new_range()
    RANGES[name](x, state)
    assert state[:4].tolist() == [x.min().item(), x.max().item(), x.dim(), x.dim()]
    assert torch.equal(x, before)


@pytest.mark.parametrize("position", [0, 1, 63, 64, 65, 40_000, 299_999, 300_000])
@pytest.mark.parametrize("sign", [1, -1])
def test_extreme_anywhere(position: int, sign: int) -> None:
    """Whichever vector lane, remainder or thread it falls to."""
    x = batch(3, 300_001)
    x[position] = 100.0 * sign
    state = new_range()
    RANGES["min_max"](x, state)
    assert state[:2].tolist() == [x.min().item(), x.max().item()]
    assert 100 * sign in state[:2].tolist()


def test_min_max_over_batches() -> None:
    """The range of all batches, and all ranks seen."""
    batches = [batch(i, *[3] * (1 + i % 3)) * (i + 1) for i in range(6)]
    state = new_range()
    for x in batches:
        RANGES["min_max"](x, state)
    everything = torch.cat([x.reshape(-1) for x in batches])
    assert state[:4].tolist() == [everything.min().item(), everything.max().item(), 1, 3]


@pytest.mark.parametrize("constant", [0.01, 0.3, 1.0])
def test_moving_average(constant: float) -> None:
    """range + c * (range of the batch - range), in double, from the first batch's range on."""
    state, low, high = new_range(), None, None
    for i in range(5):
        x = batch(i, 40) * (i + 1)
        ops.observe_moving_average(x, state, constant, "x", "")
        smallest, largest = x.min().item(), x.max().item()
        low = smallest if low is None else low + constant * (smallest - low)
        high = largest if high is None else high + constant * (largest - high)
        assert state[:2].tolist() == [low, high]


def test_constant() -> None:
    """The range measured before stays; only that the operator has run is noted."""
    state, reached = new_range(), torch.zeros(1).bool()
    before = state.clone()
    ops.observe_constant(torch.tensor([1.0, 2.0]), reached, state, None, None, "w", "")
    assert reached.item() and torch.equal(state, before)


@pytest.mark.parametrize("axis", [0, 1, 2, 3])
@pytest.mark.parametrize("view", ["plain", "channels_last", "sliced", "expanded", "half", "double"])
def test_per_channel(view: str, axis: int) -> None:
    """Each channel's range over two batches."""
    x = views()[view]
    state = new_range(x.size(axis))
    for values in (x, x * 0.5 + 0.25):
        ops.observe_per_channel_min_max(values, state, axis, "w", "")
    both = torch.stack([x, x * 0.5 + 0.25]).transpose(0, axis + 1).reshape(x.size(axis), -1)
    assert torch.equal(state, torch.stack([both.amin(1), both.amax(1)]).double())


@pytest.mark.parametrize("shape", [(5, 8), (5, 7), (5, 1), (3, 4, 3, 3), (2, 3, 5)], ids=str)
def test_pair_sums(shape: tuple[int, ...]) -> None:
    """Values, and sums of positive and of negative parts of neighbours 2k and 2k + 1."""
    x = batch(5, *shape)
    state = new_range(shape[0])
    ops.observe_pair_sums(x, state, 0, "w", "")
    for channel, row in enumerate(x.reshape(shape[0], -1).tolist()):
        low, high = min(row), max(row)
        for a, b in zip(row[::2], row[1::2], strict=False):
            low = min(low, min(a, 0) + min(b, 0))
            high = max(high, max(a, 0) + max(b, 0))
        assert state[:, channel].tolist() == pytest.approx([low, high], rel=1e-6)


def test_pair_sums_keep_int16() -> None:
    """Quantized with the resulting scale, no pair of products with 255 leaves int16."""
    x = batch(6, 16, 64)
    state = new_range(16)
    ops.observe_pair_sums(x, state, 0, "w", "")
    scales = 2 * torch.maximum(-state[0], state[1]) / 254
    q = torch.round(x.double() / scales[:, None]).clamp(-127, 127)
    pairs = q.reshape(16, 32, 2)
    worst = torch.maximum(pairs.clamp_min(0).sum(2), -pairs.clamp_max(0).sum(2)).max()
    assert 255 * worst <= 32767


def test_reach() -> None:
    """Notes the rank of the first value alone; a range that is there already stays."""
    state = new_range()
    ops.observe_reach(torch.zeros(0, 3), state, "x", "")
    assert state[0] == INFINITY, "an empty tensor has no values"
    ops.observe_reach(batch(0, 2, 3), state, "x", "")
    assert state[:2].tolist() == [0, 0]
    assert state[3] == 2
    state = new_range()
    RANGES["min_max"](torch.tensor([-3.0, 5.0]), state)
    ops.observe_reach(batch(0, 2, 3, 4), state, "x", "")
    assert state[:4].tolist() == [-3, 5, 1, 1]


@pytest.mark.parametrize("name", RANGES)
def test_nothing_to_measure(name: str) -> None:
    """Empty and integer tensors leave the range alone; their rank counts."""
    state = new_range()
    RANGES[name](torch.zeros(0, 4), state)
    RANGES[name](torch.ones(3, dtype=torch.int64), state)
    assert state[:4].tolist() == [INFINITY, -INFINITY, 1, 2]
    RANGES[name](torch.tensor([1.0, 2.0]), state)
    assert state[:2].tolist() == [1, 2]


@pytest.mark.parametrize("bad", [math.nan, INFINITY, -INFINITY])
@pytest.mark.parametrize("place", [0, 70, 250_000, -1])
@pytest.mark.parametrize("name", [*RANGES, *PER_CHANNEL])
def test_not_finite(name: str, place: int, bad: float) -> None:
    """The error names the value, wherever in a large tensor it is; the state is as it was."""
    x = batch(7, 2, 150_001)
    x.view(-1)[place] = bad
    state = new_range(2) if name in PER_CHANNEL else new_range()
    before = state.clone()
    with pytest.raises(ValueError, match="'layer:relu' holds a NaN or an infinity"):
        (RANGES | PER_CHANNEL)[name](x, state)
    assert torch.equal(state[:2], before[:2])


def test_too_large_for_float32() -> None:
    """A float64 value that float32 does not hold is an infinity there."""
    with pytest.raises(ValueError, match="in float32"):
        RANGES["min_max"](torch.tensor([1e300], dtype=torch.float64), new_range())


def test_wrong_number_of_channels() -> None:
    """The message has the shape and the axis."""
    with pytest.raises(RuntimeError, match=r"'layer:relu' has shape \[2, 3\].*axis 0 for 5"):
        PER_CHANNEL["per_channel"](torch.zeros(2, 3), new_range(5))


class Observed(nn.Module):
    """Observers inside a scripted method; nothing reads what they return."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("ranges", new_range())
        self.register_buffer("counts", torch.zeros(32, dtype=torch.int64))
        self.register_buffer("average", new_range())

    def forward(self, x: Tensor) -> Tensor:
        y = x + 1
        torch.ops.jit_passes.observe_histogram(y, self.ranges, self.counts, "y", "")
        torch.ops.jit_passes.observe_moving_average(x, self.average, 0.5, "x", "")
        return y


def test_survive_dead_code_elimination() -> None:
    """Observers write to their buffers, so that no optimization may drop them."""
    script = torch.jit.script(Observed().eval())
    graph = script.graph
    torch._C._jit_pass_dce(graph)
    torch._C._jit_pass_cse(graph)
    kinds = [node.kind() for node in graph.nodes()]
    assert "jit_passes::observe_histogram" in kinds
    assert "jit_passes::observe_moving_average" in kinds
    x = batch(8, 10)
    for _ in range(4):  # profiled, then optimized
        assert torch.equal(script(x), x + 1)
    assert script.counts.sum() == 40
    assert script.ranges[1] == (x + 1).max()
    assert script.average[0] == x.min()


@dataclass(frozen=True)
class Wrong(HistogramObserver):
    """An observer whose results are not ranges."""

    name: ClassVar[str] = "wrong"
    found: Any = None

    def find_range(self, *_: Any) -> Any:
        return self.found


@pytest.mark.parametrize(
    "found", [None, (1.0, -1.0), (math.nan, 1.0), (-math.inf, 1.0), (1.0, 2.0, 3.0), "ab"], ids=str
)
def test_an_observer_that_gives_no_range(found: Any) -> None:
    state = ObserverState(torch.tensor([-1.0, 1.0]), None)
    spec = QuantizationSpec("uint8", qscheme="per_tensor_affine", observer=Wrong(found=found))
    with pytest.raises(JitPassesError, match=r"'wrong' gives .* for 'x': it returns two finite"):
        choose_qparams(spec, state, name="x")
