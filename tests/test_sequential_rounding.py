"""Codes of weights by the inputs that a layer has in the quantized model."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from test_round_weights import codes_of, prepared_net, scripted, smooth_images, sqnr
from torch import Tensor, nn

import jit_passes
from jit_passes.errors import JitPassesError
from jit_passes.stages.input_sums import InputSums

WAYS = ("gptq", "adaround")


def rows(seed: int, groups: int, count: int, inputs: int) -> tuple[Tensor, Tensor]:
    """Return inputs in float, and with what quantization makes of them."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(groups, count, inputs, generator=generator)
    return x, x + 0.1 + 0.2 * torch.randn(groups, count, inputs, generator=generator)


def test_weight_that_is_aimed_at() -> None:
    """It is the solution of least squares with a row for each input that pulls to the weight."""
    sums, pairs = InputSums(), [rows(seed, 2, 30, 5) for seed in range(3)]
    for x, y in pairs:
        sums.add([x[:, :10], x[:, 10:]], [y[:, :10], y[:, 10:]])
    weight = torch.randn(2, 4, 5, generator=torch.Generator().manual_seed(9))
    found = sums.aim(weight, damping=0.1)
    for group in range(2):
        x = torch.cat([x[group] for x, _ in pairs]).double()
        y = torch.cat([y[group] for _, y in pairs]).double()
        pull = math.sqrt(0.1 * float((y.T @ y).diagonal().mean())) * torch.eye(5).double()
        w = weight[group].double().T
        wanted = torch.linalg.lstsq(torch.cat([y, pull]), torch.cat([x @ w, pull @ w])).solution
        assert torch.allclose(found[group], wanted.T, rtol=1e-5, atol=1e-5)
        assert not torch.allclose(found[group], w.T, rtol=1e-2, atol=1e-2)


def test_error_of_the_result() -> None:
    sums, (x, y) = InputSums(), rows(0, 2, 50, 5)
    assert not sums.is_finite
    sums.add([x], [y])
    assert sums.is_finite
    generator = torch.Generator().manual_seed(1)
    weight = torch.randn(2, 4, 5, generator=generator)
    other = weight + 0.1 * torch.randn(2, 4, 5, generator=generator)
    wanted = (x @ weight.transpose(1, 2) - y @ other.transpose(1, 2)).double().square().sum()
    assert sums.error(weight, other) == pytest.approx(float(wanted), rel=1e-4)
    single, (x, y) = InputSums(), rows(0, 3, 50, 1)  # a depthwise layer with a window of 1 x 1
    single.add([x], [y])
    assert single.is_finite


@pytest.mark.parametrize("way", WAYS)
def test_a_net_has_less_error(way: str) -> None:
    """On images of their own, and weights stay on their grids."""
    model = scripted()
    prepared, data = prepared_net(model), smooth_images(0, 8)
    made = {
        how: jit_passes.convert(jit_passes.round_weights(prepared, iter(data), how=how))
        for how in (way, f"{way}_sequential")
    }
    assert sqnr(model, made[f"{way}_sequential"]) > sqnr(model, made[way])
    for codes in codes_of(made[f"{way}_sequential"]).values():
        assert codes.min() >= -8 and codes.max() <= 7
    known = jit_passes.provenance(made[f"{way}_sequential"])
    assert known is not None and known["weight_rounding"] == f"{way}_sequential"
    remarks = [row.remark for row in jit_passes.coverage(made[f"{way}_sequential"])]
    assert sum("less error on batches held back" in remark for remark in remarks) >= 3


class Blocks(nn.Module):
    """A layer in each branch of an `if`, and one behind both."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.last = (nn.Linear(8, 8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x) if bool(x.sum() > 0) else self.second(x)
        return self.last(torch.relu(x))


def test_branches() -> None:
    """A layer of a branch that no data took keeps its codes."""
    torch.manual_seed(0)
    model = torch.jit.script(Blocks().eval())
    how: dict[str, Any] = {"target": "reference", "mode": "weight_only"}
    config = {"version": 1, "global": {"weight": {"bits": 4}}}
    data = [torch.randn(64, 8).abs() for _ in range(4)]
    prepared = jit_passes.prepare(model, config=config, **how)
    rounded = jit_passes.round_weights(prepared, data, how="gptq_sequential")
    before, after = (codes_of(jit_passes.convert(each)) for each in (prepared, rounded))
    changed = {name: not torch.equal(codes, after[name]) for name, codes in before.items()}
    assert [name for name, other in changed.items() if not other] == ["second:linear"]


def test_data_that_are_wrong() -> None:
    bad = [*smooth_images(0, 1), torch.full((1, 3, 16, 16), torch.nan)]
    with pytest.raises(JitPassesError, match="holds a NaN or an infinity"):
        jit_passes.round_weights(prepared_net(scripted()), bad, how="gptq_sequential")
    with pytest.raises(JitPassesError, match="the data is empty"):
        jit_passes.round_weights(prepared_net(scripted()), [], how="gptq_sequential")
