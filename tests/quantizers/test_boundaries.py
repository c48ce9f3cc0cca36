"""The fewest conversions, against trying all choices."""

from __future__ import annotations

import random
from collections.abc import Hashable, Iterable
from itertools import chain, combinations

import pytest
import torch
from torch import Tensor, nn

import jit_passes
from jit_passes.quantizers.boundaries import FLOAT, INTEGERS, Flow, on_integers


def conversions(flows: Iterable[Flow], integers: set[Hashable]) -> int:
    """Return how many values are converted, for a choice."""
    count = 0
    for flow in flows:
        made, *read = (v == INTEGERS or v in integers for v in (flow.maker, *flow.readers))
        count += any(side != made for side in read)
    return count


def random_flows(seed: int) -> tuple[int, list[Flow]]:
    """Up to six operators, and values between them and both sides."""
    draw = random.Random(seed)
    count = draw.randint(1, 6)
    ends = [INTEGERS, FLOAT, *range(count), *range(count)]
    flows = [
        Flow(draw.choice(ends), tuple(draw.choices(ends, k=draw.randint(1, 3))))
        for _ in range(draw.randint(1, 8))
    ]
    return count, flows


@pytest.mark.parametrize("start", range(0, 2000, 200))
def test_fewest_conversions(start: int) -> None:
    """As few as the best of all choices, and of these the one with the fewest on integers."""
    for seed in range(start, start + 200):
        count, flows = random_flows(seed)
        choices = chain.from_iterable(combinations(range(count), k) for k in range(count + 1))
        best = min((conversions(flows, set(choice)), len(choice)) for choice in choices)
        found = on_integers(flows)
        assert (conversions(flows, found), len(found)) == best, seed


def test_long_chains() -> None:
    """A thousand operators between two convolutions are on integers, behind the last in float."""
    between = [Flow(i, (i + 1,)) for i in range(999)]
    assert on_integers([Flow(INTEGERS, (0,)), *between, Flow(999, (INTEGERS,))]) == set(range(1000))
    assert on_integers([Flow(INTEGERS, (0,)), *between, Flow(999, (FLOAT,))]) == set()


class Residual(nn.Module):
    """Two convolutions whose sum only float operators read."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.other = nn.Conv2d(4, 4, 1), nn.Conv2d(4, 4, 1)

    def forward(self, x: Tensor) -> Tensor:
        return torch.relu(self.one(x) + self.other(x)).mean([2, 3]).softmax(-1)


def test_a_sum_is_converted_instead_of_its_operands() -> None:
    """One conversion behind the sum takes the place of two in front of it."""
    x = torch.randn(2, 4, 6, 6)
    model = torch.jit.script(Residual().eval())
    lowered = jit_passes.quantize_script(model, [x], target="stock", progress=False)
    kinds = [node.kind() for node in lowered.graph.nodes()]
    assert kinds.count("aten::dequantize") == 1
    assert not {"aten::add", "aten::relu"} & set(kinds)
